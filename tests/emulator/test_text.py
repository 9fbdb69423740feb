"""The reader: what it finds in good text, and that bad text is refused and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neutrino.emulator.constant_expressions import evaluate_integer, float_bits
from neutrino.emulator.device import Device
from neutrino.emulator.text import Declaration, Label, Statement, read_module, split_operands
from neutrino.errors import PtxRefusedError
from tests.emulator.kernels_by_hand import HEAD, module_text

_FIXTURES = sorted((Path(__file__).parents[1] / "fixtures" / "kernels").rglob("*.ptx"))
# A whole instruction on a line of its own, whatever it is.
_INSTRUCTION = re.compile(r"\s*(?:@!?%?\w+\s+)?[a-z]\w*(?:\.[\w:]+)*(?:\s+[^;:][^;]*)?;\s*\Z")
_PIECES = st.sampled_from(
    [
        ".visible .entry k(.param .u64 p0)", "{", "}", ".reg .b32 %r<4>;", ".reg .pred %p;", "add.s32 %r1, %r2, 3;",
        "L:", "bra L;", "@%p bra L;", "@!%p ret;", ".shared .align 4 .b8 s[16];", "ld.param.u64 %r1, [p0];",
        "/*", "*/", "//x", "\n", ";", ",", "(", ")", "[", "]", "<", ">", '"', "\\", "mov.b64 {%r1, %r2}, %r3;",
        ".global .u32 g = 1;",
        ".global .u64 h[2] = {g, 0xFF(g)};", ".func (.reg .u32 r) f(.reg .u32 a)", "call (%r1), f, (%r2);", "%r1|%p",
        "0f3F800000", "-1", "0x", "99999999999999999999", ".loc 1 2 3", ".section .debug_x {",
        ".const .b8 c[99999999999];",
        "x: .branchtargets L;", "brx.idx %r1, x;", "y: .callprototype _ ();", ".version 8.5", ".target sm_90", "trap;",
        ".local .b8 l[1000000000];", ".reg .b32 %q<999999999>;", "mov.u32 %q999999998, 1;", "ret;", "\u00e9", "\0",
    ]
)  # fmt: skip


def test_statements_know_their_lines_and_their_text() -> None:
    text = module_text("    // a comment; with a semicolon\n    add.s32 %r0, /* inside */\n        %r1, 5;\n"
                       "WHERE: @!%p0 bra WHERE;")
    (function,) = read_module(text).functions
    statements = {item.opcode: item for item in function.items or () if isinstance(item, Statement)}
    lines = text.splitlines()
    add = statements["add.s32"]
    assert lines[add.line - 1].strip() == "add.s32 %r0, /* inside */"
    assert (add.operands, add.guard) == (("%r0", "%r1", "5"), None)
    bra = statements["bra"]
    assert bra.text == "@!%p0 bra WHERE;"
    assert (bra.guard, bra.negated, bra.operands) == ("%p0", True, ("WHERE",))
    assert Label(bra.line, "WHERE") in (function.items or ())


def test_declarations() -> None:
    module = read_module(
        HEAD + '.visible .global .align 8 .b8 text[] = "a;b}\\n";\n.const .f32 table[2][2] = {{1.0, 2.0}, {3.0}};\n'
        ".extern .shared .align 16 .b8 room[];\n"
        ".entry k(.param .align 8 .b8 p[24], .param .u64 .ptr .global .align 4 q)"
        " .maxntid 128, 1, 1 .minnctapersm 2\n{\n    .reg .v2 .f32 v;\n    .reg .b32 a, b<3>;\n    ret;\n}\n"
    )
    text, table, room = module.variables
    assert (text.space, text.dimensions, text.alignment, text.initialiser) == ("global", (None,), 8, '"a;b}\\n"')
    assert (table.dimensions, table.initialiser) == ((2, 2), "{{1.0, 2.0}, {3.0}}")
    assert (room.space, room.linkage, room.dimensions) == ("shared", "extern", (None,))
    (function,) = module.functions
    first, second = function.parameters
    assert (first.dimensions, first.alignment, first.type) == ((24,), 8, "b8")
    assert (second.name, second.alignment, second.type) == ("q", None, "u64")
    assert function.directives == {"maxntid": (128, 1, 1), "minnctapersm": (2,)}
    names = [(item.name, item.count, item.vector) for item in function.items or () if isinstance(item, Declaration)]
    assert names == [("v", None, 2), ("a", None, 1), ("b", 3, 1)]


@pytest.mark.parametrize("path", _FIXTURES, ids=lambda path: path.stem)
def test_every_line_of_real_text_that_looks_like_an_instruction_is_one(path: Path) -> None:
    text = path.read_text()
    found = {
        item.line for function in read_module(text).functions for item in function.items or ()
        if isinstance(item, Statement)
    }  # fmt: skip
    expected = {
        number for number, line in enumerate(text.splitlines(), 1) if _INSTRUCTION.match(line.split("//")[0])
    }
    assert expected
    assert not expected - found


@settings(max_examples=300, deadline=None)
@given(st.lists(_PIECES, max_size=30))
def test_bad_text_is_refused_and_nothing_else(pieces: list[str]) -> None:
    try:
        module = Device(memory=1 << 16).load(" ".join(pieces))
        for function in module.functions.values():
            function.kernel.units(observed=False)
    except PtxRefusedError:
        pass


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(_FIXTURES), st.data())
def test_damaged_text_is_refused_or_read(path: Path, data: st.DataObject) -> None:
    text = path.read_text()[:20000]
    start = data.draw(st.integers(0, len(text)))
    length = data.draw(st.integers(0, 40))
    filling = data.draw(_PIECES)
    try:
        module = Device(memory=1 << 20).load(text[:start] + filling + text[start + length :])
        for function in module.functions.values():
            function.kernel.units(observed=False)
    except PtxRefusedError:
        pass


@pytest.mark.parametrize(
    "text", ["{" * 20000, HEAD + ".entry k() {" + "{" * 20000, "(" * 20000, '"' * 9999, "/*" * 9999]
)
def test_deep_text_does_not_exhaust_the_reader(text: str) -> None:
    with pytest.raises(PtxRefusedError):
        Device(memory=1 << 16).load(text)


def test_operands_are_split_at_outer_commas() -> None:
    assert split_operands("{%a, %b}, [%c+4], (d, e), _") == ("{%a, %b}", "[%c+4]", "(d, e)", "_")
    assert split_operands("  ") == ()


@given(st.text("a ,{}[]()", max_size=12))
def test_operands_are_split_as_brackets_nest(text: str) -> None:
    expected = [""]
    depth = 0
    for character in text:
        depth += (character in "{[(") - (character in "}])")
        if character == "," and depth == 0:
            expected.append("")
        else:
            expected[-1] += character
    assert split_operands(text) == (tuple(part.strip() for part in expected) if text.strip() else ())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0x10", 16), ("010", 8), ("0b101", 5), ("7U", 7), ("-1", -1), ("~0", -1), ("!3", 0), ("2+3*4", 14),
        ("(2+3)*4", 20), ("-7/2", -3), ("-7%2", 1), ("1<<4|1", 17), ("3>2 ? 10 : 20", 10), ("1&&0||1", 1),
        ("0xFFFFFFFFFFFFFFFF", -1),
        ("1/0", None), ("08", None), ("x", None), ("", None), ("1 2", None), ("(1", None), ("1?2", None),
    ],
)  # fmt: skip
def test_constant_expressions(text: str, value: int | None) -> None:
    assert evaluate_integer(text) == value


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-(1 << 63), (1 << 63) - 1), st.sampled_from("+-*&|^"))
def test_constant_expressions_wrap_at_64_bits(left: int, right: int, operator: str) -> None:
    exact = {"+": left + right, "-": left - right, "*": left * right, "&": left & right, "|": left | right,
             "^": left ^ right}[operator]  # fmt: skip
    found = evaluate_integer(f"({left}) {operator} ({right})")
    assert found is not None
    assert (found - exact) % (1 << 64) == 0


def test_float_constants() -> None:
    assert float_bits("0f3F800000") == (0x3F800000, 4)
    assert float_bits("-0f3F800000") == (0xBF800000, 4)
    assert float_bits("0d3FF0000000000000") == (0x3FF0000000000000, 8)
    assert float_bits("1.0") == (0x3FF0000000000000, 8)
    assert float_bits("17") is None
