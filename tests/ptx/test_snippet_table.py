"""ptxas judges the table of instructions that snippets may use, and the rules of its operands."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from pathlib import Path

import pytest
from machine import arithmetic, refused_lines

from neutrino.errors import ProbeError
from neutrino.ptx.isa.form_table import FORBIDDEN, NEWER_FORMS, REASONS, SINCE_ALL, Need
from neutrino.ptx.isa.forms import TYPES, is_collective
from neutrino.ptx.isa.forms import forms as known_forms
from neutrino.ptx.isa.instruction import machine_arithmetic
from neutrino.ptx.isa.opcodes import FIRST_PARTS
from neutrino.ptx.isa.scalars import SPECIAL_REGISTERS
from neutrino.ptx.snippets.language import REGISTER_TYPES
from neutrino.verification import load_probe_file

pytestmark = pytest.mark.usefixtures("tools")

REGISTERS = {"u8": "u16", "s8": "s16", "bf16": "b16", "bf16x2": "b32", "u16x2": "b32", "s16x2": "b32", "tf32": "b32"}
"""Registers for the types that have none of their own."""


def forms(need: Need | None) -> list[tuple[str, list[str]]]:
    """Every instruction of the table that targets from this one on know, with each operand's register types."""
    found = []
    for form in itertools.chain.from_iterable(known_forms().values()):
        if form.need != need:
            continue
        slots = [
            [*slot.rstrip("?").split("|"), *([""] if slot.endswith("?") else [])] for slot in form.modifiers.split()
        ]
        for choice in itertools.product(*slots):
            chosen = [word for word in choice if word]
            types = [word for word in chosen if word in TYPES]
            kinds = []
            for operand in form.operands:
                pair = []
                for kind in operand.strip("=?").split("|"):
                    if kind in {"t", "m", "T"}:
                        kind = types[0]
                    elif kind in {"s", "S"}:
                        kind = types[1]
                    elif kind == "w":
                        kind = f"{types[0][0]}{2 * int(types[0][1:])}"
                    elif kind == "p":
                        kind = "pred"
                    elif kind == "lanes":
                        kind = "b32"
                    elif kind == "byte":
                        kind = "u32"
                    pair.append(REGISTERS.get(kind, kind))
                kinds.append("|".join(pair))
            found.append((".".join([form.opcode, *chosen]), kinds))
    return found


def refused(lines: list[str], tmp_path: Path, version: str = "6.5", arch: str = "sm_75") -> set[int]:
    """Numbers of the lines that ptxas refuses."""
    declarations = "".join(f".reg .{kind} %{kind}_x, %{kind}_y;\n" for kind in REGISTER_TYPES)
    head = f".version {version}\n.target {arch}\n.address_size 64\n.visible .entry k()\n{{\n{declarations}"
    first = head.count("\n") + 1
    found = refused_lines(head + "\n".join(lines) + "\nret;\n}\n", arch, tmp_path)
    return {number - first for number in found}


def operand(kinds: str) -> str:
    return "1" if kinds == "i" else "|".join(f"%{kind}_{'xy'[place]}" for place, kind in enumerate(kinds.split("|")))


@pytest.mark.parametrize("need", [None, *NEWER_FORMS], ids=str)
def test_every_form_assembles_on_the_oldest_target(tmp_path: Path, need: Need | None) -> None:
    lines = [f"{opcode} {', '.join(map(operand, kinds))};" for opcode, kinds in forms(need)]
    assert len(lines) > (1000 if need is None else 0)
    (major, minor), architecture = need or SINCE_ALL
    bad = refused(lines, tmp_path, f"{major}.{minor}", f"sm_{architecture}")
    assert {lines[number] for number in bad} == set()


def kernel(number: int, opcode: str, kinds: list[str]) -> str:
    """One instruction, from memory to memory, so that ptxas knows no operand."""
    lines = []
    for place, kind in enumerate(kinds[1:]):
        lines.append(f".reg .{kind} %s{place}; ld.global.b{size(kind)} %s{place}, [%rd + {16 * place}];")
    sources = ", ".join(f"%s{place}" for place in range(len(kinds) - 1))
    lines += [f".reg .{kinds[0]} %d;", f"{opcode} %d, {sources};", f"st.global.b{size(kinds[0])} [%rd + 256], %d;"]
    head = f".visible .entry k{number}(.param .u64 p) {{ .reg .b64 %rd; ld.param.u64 %rd, [p];"
    return "\n".join([head, *lines, "ret; }\n"])


def size(kind: str) -> int:
    match = re.search(r"(\d+)(x2)?$", kind)
    assert match, kind
    return int(match[1]) * (2 if match[2] else 1)


def test_the_arithmetic_of_each_form_is_counted(tmp_path: Path) -> None:
    """What ptxas makes of a probe's instruction is what is taken off when a twin's arithmetic is compared."""
    found = [
        (opcode, kinds)
        for need in (None, *NEWER_FORMS)
        for opcode, kinds in forms(need)
        if re.search(r"\.b?f(16|32|64)", opcode) and not {"pred", "pred|pred"} & set(kinds)
    ]
    head = ".version 8.0\n.target sm_90\n.address_size 64\n"
    text = head + "".join(kernel(number, *entry) for number, entry in enumerate(found))
    counted = arithmetic(text, "sm_90", tmp_path)
    differing = {
        opcode: counted[f"k{number}"]
        for number, (opcode, _) in enumerate(found)
        if Counter(machine_arithmetic(opcode)) != counted[f"k{number}"]
    }
    assert len(found) > 400
    assert differing == {}


def accepted_by_us(lines: list[str], tmp_path: Path, *, at_once: int = 5000) -> list[bool]:
    """at_once: lines of one file, which has at most half a million characters."""
    if len(lines) > at_once:
        return accepted_by_us(lines[:at_once], tmp_path) + accepted_by_us(lines[at_once:], tmp_path)
    path = tmp_path / "probe.toml"
    declarations = "".join(f".reg .{kind} %{kind}_x, %{kind}_y;\n" for kind in REGISTER_TYPES)
    head = '[map.M]\nlevel = "thread"\ndata = { a = "u32" }\n'
    head += f'[probe.p]\nposition = "ld"\nlevel = "thread"\nbefore = """\n{declarations}'
    path.write_text(head + "\n".join(lines) + '\nSAVE [ M ] { 1 };"""\n')
    first = head.count("\n") + 1
    wrong: set[int] = set()
    try:
        load_probe_file(path)
    except ProbeError as error:
        wrong = {fault.line - first for fault in error.diagnostics}
    assert min(wrong, default=0) >= 0, "a fault of the frame"
    return [number not in wrong for number in range(len(lines))]


LANES = "LANES"
OPERATIONS = [
    ("add.u32", "u32", 3), ("and.b64", "b64", 3), ("add.rn.f32", "f32", 3), ("add.rn.f16", "f16", 3),
    ("add.rn.f16x2", "f16x2", 3), ("mov.b32", "b32", 2), ("mov.f64", "f64", 2), ("mov.pred", "pred", 2),
    ("cvt.u64.u32", "u64", 2), ("cvt.u32.u64", "u32", 2), ("cvt.rn.f32.s64", "f32", 2), ("cvt.f64.f32", "f64", 2),
    ("cvt.rzi.s16.f64", "s16", 2), ("cvt.u8.u32", "u16", 2), ("mul.wide.s16", "s32", 3), ("popc.b64", "u32", 2),
    ("selp.b16", "b16", 4), ("setp.lt.s32", "pred", 3), ("shl.b64", "b64", 3), ("bfe.u64", "u64", 4),
    ("slct.f32.s32", "f32", 4), ("not.b16", "b16", 2), ("fma.rn.bf16", "b16", 4), ("add.rn.bf16x2", "b32", 3),
    ("cvt.f32.bf16", "f32", 2), ("cvt.rn.bf16x2.f32", "b32", 3), ("tanh.approx.f16", "f16", 2),
    ("setp.lt.f16", "pred", 3), ("max.f16x2", "f16x2", 3), ("bmsk.clamp.b32", "u32", 3), ("szext.wrap.s32", "s32", 3),
    ("cvt.sat.u8.s32", "u16", 2), ("cvt.rn.f16.s32", "f16", 2),
    ("cvt.rzi.s64.f16", "s64", 2), ("cvt.rna.tf32.f32", "b32", 2), ("min.s16x2", "b32", 3),
    ("match.any.sync.b64", "u32", 3), ("redux.sync.min.s32", "s32", 3), ("vote.sync.any.pred", "pred", 3),
    ("shfl.sync.idx.b32", "b32", 5), ("vote.sync.ballot.b32", "b32", 3), ("getctarank.u64", "u32", 2),
]  # fmt: skip


def test_type_rules_are_those_of_ptxas(tmp_path: Path) -> None:
    """Each operand of many instructions in every register type: ptxas and the verifier agree.

    But for one thing: ptxas lets .f16x2 registers pass for integers and predicates, against the manual (9.4).
    """
    by_opcode = dict(entry for need in (None, *NEWER_FORMS) for entry in forms(need))
    lines = []
    for opcode, _, count in OPERATIONS:
        kinds = by_opcode[opcode]
        assert len(kinds) == count
        kinds = [kind.partition("|")[0] for kind in kinds]
        between = is_collective(opcode)
        for place in range(count - between):
            for kind in REGISTER_TYPES:
                words = [f"%{other}_x" for other in kinds]
                words[-1] = LANES if between else words[-1]
                words[place] = f"%{kind}_y"
                lines.append(f"{opcode} {', '.join(words)};")
    bad = refused([line.replace(LANES, "%u32_x") for line in lines], tmp_path, "8.0", "sm_90")
    ours = accepted_by_us(lines, tmp_path)
    differing = [
        (line, "ptxas refuses" if number in bad else "ptxas accepts")
        for number, line in enumerate(lines)
        if ours[number] is (number in bad) and (number in bad or "%f16x2_y" not in line)
    ]
    assert differing == [], "\n".join(map(str, differing))


def test_what_passes_assembles(tmp_path: Path) -> None:
    """Each operand of one instruction of every form and type, in every register type."""
    kinds_of = {}
    for need in (None, *NEWER_FORMS):
        for opcode, kinds in forms(need):
            kinds_of.setdefault((opcode.partition(".")[0], *kinds, opcode.rpartition(".")[2]), (opcode, kinds))
    lines = []
    for opcode, kinds in kinds_of.values():
        words = [operand(kind) for kind in kinds]
        if is_collective(opcode):
            words[-1] = LANES
        for place, (word, kind) in enumerate(zip(words, kinds, strict=True)):
            for other in REGISTER_TYPES if word.startswith("%") else ():
                changed = "|".join([f"%{other}_y", *(f"%{second}_x" for second in kind.split("|")[1:])])
                lines.append(f"{opcode} {', '.join([*words[:place], changed, *words[place + 1 :]])};")
    bad = refused([line.replace(LANES, "%u32_x") for line in lines], tmp_path, "8.0", "sm_90")
    ours = accepted_by_us(lines, tmp_path)
    assert len(lines) > 15000
    assert sum(ours) > 3000
    assert {line for number, line in enumerate(lines) if ours[number] and number in bad} == set()


def test_immediates_are_judged_like_ptxas_does(tmp_path: Path) -> None:
    words = ["1", "-1", "0x1F", "0b101", "017", "7U", "1.5", "0f3F800000", "0d3FF0000000000000", "-2.5e3"]
    lines = [
        f"{opcode} {operand}, {word};"
        for word in words
        for opcode, operand in (
            ("mov.u32", "%u32_x"),
            ("mov.b64", "%b64_x"),
            ("mov.f32", "%f32_x"),
            ("mov.f64", "%f64_x"),
            ("add.s64", "%s64_x, %s64_y"),
            ("add.rn.f16", "%f16_x, %f16_y"),
        )
    ]
    bad = refused(lines, tmp_path)
    ours = accepted_by_us(lines, tmp_path)
    differing = {line for number, line in enumerate(lines) if ours[number] is (number in bad)}
    # ptxas takes the bits of a double here; a probe says what it means.
    assert differing == {f"mov.b64 %b64_x, {word};" for word in ("1.5", "-2.5e3", "0d3FF0000000000000")}


def test_immediates_of_conversions_are_judged_like_ptxas_does(tmp_path: Path) -> None:
    words = ["1.5", "0f3F800000", "0F3F800000", "0d3FF0000000000000", "-2.5e3"]
    forms = ("cvt.rna.tf32.f32 %b32_x", "cvt.rn.f16.f32 %b16_x", "cvt.rn.f32.f64 %f32_x", "cvt.rzi.s32.f32 %s32_x")
    lines = [f"{form}, {word};" for word in words for form in forms]
    # One by one, since ptxas stops at the first of these that it refuses.
    bad = {line for line in lines if refused([line], tmp_path, "8.0", "sm_90")}
    assert bad == {f"cvt.rna.tf32.f32 %b32_x, {word};" for word in words if word[:2].lower() != "0f"}
    assert [line not in bad for line in lines] == list(accepted_by_us(lines, tmp_path))


def test_special_registers_have_the_types_of_the_table(tmp_path: Path) -> None:
    lines = [f"mov.{kind} %{kind}_x, {name};" for name, kind in SPECIAL_REGISTERS.items()]
    bad = refused(lines, tmp_path, "8.5", "sm_90")
    assert {lines[number] for number in bad} == set()
    wrong = {"u32": "u64", "b32": "b64", "u64": "u32"}
    swapped = [f"mov.{wrong[kind]} %{wrong[kind]}_x, {name};" for name, kind in SPECIAL_REGISTERS.items()]
    # The manual has %gridid as u64; ptxas still reads its older 32-bit form.
    accepted = set(range(len(swapped))) - refused(swapped, tmp_path, "8.5", "sm_90")
    assert {swapped[number] for number in accepted} <= {"mov.u32 %u32_x, %gridid;"}


def test_the_tables_do_not_contradict_each_other() -> None:
    allowed = set(known_forms())
    assert allowed <= FIRST_PARTS
    assert set(FORBIDDEN) <= FIRST_PARTS
    assert not allowed & set(FORBIDDEN)
    assert set(FORBIDDEN.values()) == set(REASONS)
