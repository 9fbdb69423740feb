"""Bodies as streams of statements: they tile the text, whatever it is, and say what each instruction is."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neutrino.ptx.isa.instruction import read_instruction
from neutrino.ptx.text.body import Body
from neutrino.ptx.text.module import LOCATION, NOT_CODE, blank, parse

FIXTURES = sorted((Path(__file__).parents[1] / "fixtures" / "kernels").rglob("*.ptx"))

_GAPS = st.sampled_from(["", " ", "\n\t", " \n\n "])
_LABELS = st.sampled_from(["", "", "", "L{}:", "$L__BB0_{}: ", "ret{} : ", "add{}:\n"])
_GUARDS = st.sampled_from(["", "", "@%p1 ", "@!%p2\t", "@ ! %p3 "])
_CODES = st.sampled_from([
    "add.u32 %r1, %r1, 1", "st.global.v2.b32 [%rd1], {%r1, %r2}", "ret", "bra L1", "call (r), f, (p, q)", "call f",
    "ld.global.L2::128B.b32 %r1,[%rd2+4]", "bar.sync 0", "unheard.of %r1", "mov.b64 {%r1, %r2}, %rd1", "exit",
    "ld.const[3].u32 %r1, [c]", "brx.idx %r1, T",
])  # fmt: skip
_OTHERS = st.sampled_from(["", ".reg .b32 %t<3>", ".param .align 4 .b8 p[16]", ".pragma  ", "%r1, %r2", "{ }", "} {"])


@st.composite
def _bodies(draw):
    """A body's text, and of each statement in it the label's name, the guard and the code."""
    pieces, wanted = [], []
    for number in range(draw(st.integers(0, 12))):
        label = draw(_LABELS).format(number)
        guard, code = draw(_GUARDS), draw(_CODES | _OTHERS)
        is_code = code[:1].islower()
        guard = guard if is_code else ""
        pieces.append(f"{draw(_GAPS)}{label}{draw(_GAPS)}{guard}{code}{draw(_GAPS)};")
        wanted.append((label.strip(" :\n"), guard.strip(), code if is_code else ""))
    return "{" + "".join(pieces) + draw(_GAPS) + "}", wanted


@given(_bodies())
def test_generated_statements(made):
    text, wanted = made
    body = Body(text, 0, len(text))
    assert len(body) == len(wanted) + 1
    assert [body.code[begin:end] for begin, end in zip([0, *body.ends], body.ends, strict=False)] == [
        *(piece + ";" for piece in text.split(";")[:-1]), text.split(";")[-1],
    ]  # fmt: skip
    names = {label.before: label.name for label in body.labels}
    for statement, (label, guard, code) in zip(body, wanted, strict=False):
        assert names.get(statement.index, "") == label
        assert (statement.guard or "").strip() == guard
        if code:
            assert statement.text[statement.position - statement.start :].strip() == code
            assert statement.instruction is not None
            assert statement.instruction == read_instruction(statement.text)
            again = read_instruction(statement.instruction.text[:-1])
            assert again == statement.instruction
        else:
            assert statement.mnemonic is None
            assert statement.instruction is None


@given(st.text(alphabet="{}:;@!%.ab \n,[]()", max_size=60))
def test_any_text(text):
    """Nothing in a text leads to an error, or to statements that overlap."""
    text = "{" + text + "}"
    body = Body(text, 0, len(text))
    assert body.ends == sorted(body.ends)
    assert body.ends[-1] == len(text)
    before = 0
    for statement in body:
        assert before <= statement.start <= statement.end == body.ends[statement.index]
        assert body.index_at(statement.start) in {statement.index, len(body) - 1}
        before = statement.end
    assert all(text[label.start : label.colon].startswith(label.name) for label in body.labels)
    assert all(text[label.colon] == ":" for label in body.labels)


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name)
def test_kernels(path):
    """Of each kernel the statements are what is between its semicolons, and all of them are known."""
    module = parse(path.read_bytes().decode("latin-1"))
    for function in (*module.entries, *module.functions):
        if function.body is None:
            continue
        body = Body(module.code, *function.body)
        pieces = module.code[body.start : body.end].split(";")
        assert len(pieces) == len(body)
        for piece, statement in zip(pieces, body, strict=True):
            rest = piece.strip(" \t\n{}")
            if statement.index == len(body) - 1:
                assert rest == "" or rest.endswith(":")
            else:
                assert piece.endswith(statement.text)
                assert statement.mnemonic is not None or statement.text.startswith(".") or not statement.text
        assert all(opcode.row is not None for opcode in body.opcodes), body.opcodes


@st.composite
def _blocks(draw, depth=0):
    """Statements and blocks of braces, of opcodes that are names of symbols, too; and which of them operands name."""
    text, named = "", set()
    for _ in range(draw(st.integers(0, 4))):
        if depth < 3 and draw(st.booleans()):
            inner, inner_named = draw(_blocks(depth + 1))
            text += f"{{{inner}}}{draw(_GAPS)}"
            named |= inner_named
            continue
        word, operand = draw(_SYMBOLS), draw(_SYMBOLS)
        form, names_it = draw(_FORMS)
        label = draw(st.sampled_from(["", "", "trap: ", "L: "]))
        text += draw(_GAPS) + label + draw(st.sampled_from(["", "@%p "])) + word + form.format(operand)
        if names_it:
            named.add(operand)
    return text + draw(_GAPS), named


_SYMBOLS = st.sampled_from(["add", "trap", "ret", "mov"])
_FORMS = st.sampled_from([
    (";", False), (".f16 %h1,%h2,%h3;", False), (" %r1, {};", True), (".v2 [%r1], {{{}, %r2}};", True),
    (".u32 %r1, [{}+4];", True), (".u32 %r1, {{ {} }};", True),
])  # fmt: skip


@given(_blocks())
def test_opcodes_are_no_operands(blocks):
    """Wherever a block begins: kernels and functions may be named like instructions."""
    text, named = blocks
    text = f"{{{text}}}"
    body = Body(text, 0, len(text))
    assert body.operand_names == named
    for name in ("add", "trap", "ret", "mov"):
        assert body.names_operand(name) == (name in named)
        for start, _ in body.occurrences(name):
            assert all(statement.position != start for statement in body if statement.mnemonic)


@given(st.lists(st.sampled_from([*"{}{}", ".reg .b32 a;", ".reg .b32 a<2>;", "add a0, a, a;", "L: ret;"]), max_size=60))
def test_scopes(pieces):
    """What encloses a place, and what a name means there, is found as by looking through all of them."""
    text = "{" + "".join(pieces) + "}"
    body = Body(text, 0, len(text))
    for position in range(1, len(text)):
        around = [(start, end) for start, end in body.scopes if start < position <= end]
        assert body.enclosing(position) == max(around, default=body.scopes[0])
        assert list(body.scopes_around(position))[: len(around)] == sorted(around, reverse=True)
        for name in ("a", "a0", "a1", "a2"):
            reached = [
                entry
                for declared in body.declarations.values()
                for entry in declared
                if entry.start <= position < entry.end
                and (entry.name == name if entry.count is None else name in {"a0", "a1"})
            ]
            assert body.declaration(name, position) == max(reached, key=lambda entry: entry.start, default=None)


@given(st.lists(st.sampled_from(["a", "ab", "%a", "a.x", "b", *"[], (){};\n", "call "])))
def test_names_of_operands(pieces):
    """One name is looked for as all are gathered."""
    text = "{" + "".join(pieces) + "}"
    body = Body(text, 0, len(text))
    for name in ("a", "ab", "b"):
        assert body.names_operand(name) == (name in body.operand_names)


@given(st.lists(st.sampled_from(['"', "//", "/*", "*/", "\n", "\\", "a", "/", "*", ";", ".loc 1 2 3"]), max_size=30))
def test_what_is_no_code_is_blanked(pieces):
    """As one expression for all of it does."""
    text = "".join(pieces)
    expected = NOT_CODE.sub(lambda match: " " * len(match[0]), text)
    assert blank(text) == LOCATION.sub(lambda match: " " * len(match[0]), expected)


@given(st.text("0123456789", max_size=11))
def test_registers_of_a_series_are_numbered_without_zeros_before(digits: str) -> None:
    text = ".version 8.0\n.target sm_80\n.entry k() {\n.reg .b32 %r<300>;\nret;\n}\n"
    module = parse(text)
    body = Body(module.code, *module.entries[0].body)
    is_one = digits != "" and str(int(digits)) == digits and int(digits) < 300
    assert (body.declaration(f"%r{digits}", body.end - 2) is not None) == is_one


@pytest.mark.parametrize(("first", "are_leading"), [
    (".reg .b32 %r<3>; .shared .b8 a[4];", True), ("\n.pragma \"nounroll\";\n.local .b8 a[4];", True),
    ("L: .reg .b32 %r<3>;", False), ("{ .reg .b32 %r<3>; }", False), (".registers .b32 %r;", False),
    (".shared .b8 a[2] = {1, 2};", False),
])  # fmt: skip
def test_the_entry_is_after_the_declarations_at_the_beginning(first: str, are_leading: bool) -> None:
    module = parse(f".version 8.0\n.target sm_80\n.entry k() {{{first} ret; }}\n")
    body = Body(module.code, *module.entries[0].body)
    begin = body.start + 1
    leading = first.strip() if are_leading else ""
    assert module.text[begin : body.entry].strip() == leading
