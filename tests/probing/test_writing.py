"""Sets written back as probe files: they read back to the same set, whatever they came from."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neutrino.abi.levels import LEVELS, Level
from neutrino.abi.records import lay_out_fields
from neutrino.abi.scalars import ScalarType
from neutrino.errors import Span
from neutrino.ir.operands import Immediate, Register
from neutrino.ir.statements import Assembly
from neutrino.ir.types import Type
from neutrino.maps.declaration import Map
from neutrino.maps.registry import ARRAY, SUM
from neutrino.probing.ir.probe_set import Probe, ProbeSet, Snippet, verified
from neutrino.probing.ir.structured import Save
from neutrino.probing.merging import merge
from neutrino.probing.model import Lanes
from neutrino.ptx.snippets.language import REGISTER_TYPES
from neutrino.ptx.snippets.lowering import lower
from neutrino.resources import shipped_probes
from neutrino.targets import trace_text
from neutrino.targets import written as write
from neutrino.verification import load_probe_file, load_probes, read_probes
from tests.fronts import parse_tracepoint

DRAFTS = Path(__file__).parents[1] / "fixtures" / "probes"
HERE = Span(1, 1)


def judge(probes: ProbeSet, *, slips: bool = True) -> ProbeSet:
    """What is written reads back to the same set; written again it is the same text."""
    text = write(probes)
    back = read_probes("/nowhere/back.toml", text)
    assert back.digest == probes.digest
    assert (back.analyze_hooks, back.callbacks) == (probes.analyze_hooks, probes.callbacks)
    assert write(back).partition("\n")[2] == text.partition("\n")[2]
    if slips:
        assert {warning.code for warning in back.warnings} <= {"padding", "unused-map"}
    kept = read_probes("/nowhere/probe.toml", trace_text(probes))
    assert kept.digest == probes.digest
    return back


HAND = DRAFTS / "hand"
FILES = [path for path in sorted(DRAFTS.rglob("*.toml")) if path.stem != "guide_hip"] + [*shipped_probes().values()]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_files(path: Path) -> None:
    judge(lower(load_probe_file(path)))


def test_all_shipped_probes_together_and_twice() -> None:
    merged = load_probes(list(shipped_probes()))
    judge(lower(merged))


def test_merged_with_the_older_dialect() -> None:
    """Both name a probe block_sched, and registers alike; each keeps its own."""
    older = load_probe_file(DRAFTS / "readme_block_sched.toml")
    merged = merge([older, *map(load_probe_file, shipped_probes().values())])
    names = [probe.name for probe in merged.probes]
    assert names[0] == "block_sched"
    assert "block_sched_2" in names
    assert len(set(names)) == len(names)
    judge(lower(merged))


def test_scripts_are_written_as_absolute_paths(tmp_path: Path) -> None:
    for name in ("a.py", "b.py", 'c "d".py'):
        (tmp_path / name).write_text("")
    plain = (HAND / "block_sched.toml").read_text()
    path = tmp_path / "p.toml"
    path.write_text(f'analyze_hook = ["a.py", "./b.py", "missing.py"]\nCALLBACK = \'c "d".py\'\n{plain}')
    probes = load_probe_file(path)
    assert probes.analyze_hooks == (str(tmp_path / "a.py"), str(tmp_path / "b.py"))
    assert probes.callbacks == (str(tmp_path / 'c "d".py'),)
    assert [warning.code for warning in probes.warnings] == ["script-missing"]
    judge(probes)
    (tmp_path / "one.toml").write_text(f'analyze_hook = "a.py"\n{plain}')
    assert f'analyze_hook = "{tmp_path / "a.py"}"\n' in trace_text(load_probe_file(tmp_path / "one.toml"))


def test_a_sound_file_is_kept_with_its_comments() -> None:
    path = HAND / "block_sched.toml"
    assert trace_text(load_probe_file(path)) == path.read_text()
    # With a slip, or in the older dialect, its form is not the one that traces have.
    slip = read_probes("p.toml", path.read_text().replace("size = 16", 'size = "16"'))
    assert trace_text(slip) == write(slip)
    older = read_probes("p.toml", '[p]\nposition = "ld"\ndatamodel = "thread:8"\nafter = "SAVE.u64 {ADDR};"\n')
    assert older.warnings == ()
    assert trace_text(older) == write(older)


# Random sets

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
PROBE_NAMES = NAMES | st.text(st.sampled_from(string.ascii_letters + " .-\"'\\é|[]#="), min_size=1, max_size=8).filter(
    lambda name: bool(name.strip())
)
POSITIONS = st.sampled_from(
    ["kernel", "*", "memory !shared", "ld.global", "ld | st.shared", "func:void f<int>(char const*)", "a.cu:3-7",
     "cp.async.bulk !tensor func:g", "kernel|*", "  mma  ", "add @"]
)  # fmt: skip

@st.composite
def maps(draw: st.DrawFn, name: str) -> Map:
    kind = draw(st.sampled_from([ARRAY, SUM]))
    types = list(ScalarType) if kind == ARRAY else [ScalarType.U32, ScalarType.S64]
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    fields, size, _ = lay_out_fields([(field, draw(st.sampled_from(types))) for field in names])
    cap = draw(st.sampled_from([1, 2, 1 << 20])) if kind == ARRAY else 1
    return Map(name, kind, draw(st.sampled_from(LEVELS)), size, cap, fields, HERE)


@st.composite
def registers(draw: st.DrawFn) -> list[Register]:
    found = []
    for name in draw(st.lists(NAMES, max_size=12, unique_by=lambda name: name)):
        kind = draw(st.sampled_from(REGISTER_TYPES))
        initial = draw(st.just(0) | st.integers(0, (1 << Type(kind).bits) - 1))
        found.append(Register(f"%own_{name}", Type(kind), initial, HERE))
    return found


def moved(register: Register, number: int) -> Assembly:
    """An instruction that gives a register a value, in a form that its type has."""
    kind = register.type
    if kind is Type.PRED:
        operands = (register, Immediate(str(number)), Immediate("1"))
        return Assembly("ptx", "setp.eq.u32", operands, HERE, writes=(register,))
    if kind.is_float and kind.bits >= 32:
        return Assembly("ptx", f"abs.{kind}", (register, register), HERE, writes=(register,))
    return Assembly("ptx", f"mov.b{kind.bits}", (register, Immediate(str(number))), HERE, writes=(register,))


@st.composite
def snippets(draw: st.DrawFn, level: Level, known: Sequence[Map], own: Sequence[Register]) -> Snippet:
    floats = {ScalarType.F32, ScalarType.F64}
    targets = [
        entry for entry in known
        if entry.level is level and not any(field.type in floats for field in entry.fields)
    ]  # fmt: skip
    guards = [register for register in own if register.type is Type.PRED]
    statements: list[Assembly | Save] = []
    for _ in range(draw(st.integers(1, 4))):
        if targets and draw(st.booleans()):
            target = draw(st.sampled_from(targets))
            operands = tuple(Immediate(str(draw(st.integers(0, 127)))) for _ in target.fields)
            statements.append(Save(target, operands, HERE))
        elif own:
            made = moved(draw(st.sampled_from(own)), draw(st.integers(0, 127)))
            if guards and draw(st.booleans()):
                made = replace(made, guard=draw(st.sampled_from(guards)), is_inverted=draw(st.booleans()))
            statements.append(made)
    # Without registers and maps of the level there is nothing that a snippet could do.
    return Snippet(tuple(statements) or (moved(Register("%always", Type.U32, 0, HERE), 1),))


@st.composite
def probe_sets(draw: st.DrawFn) -> ProbeSet:
    names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    known = [draw(maps(name)) for name in names]
    own = draw(registers())
    probes = []
    for name in draw(st.lists(PROBE_NAMES, min_size=1, max_size=4, unique=True)):
        level = draw(st.sampled_from(LEVELS))
        tracepoint, _ = parse_tracepoint(draw(POSITIONS))
        assert tracepoint is not None
        before = draw(st.none() | snippets(level, known, own))
        after = draw(snippets(level, known, own) if before is None else st.none() | snippets(level, known, own))
        probes.append(Probe(name, tracepoint, level, before, after, HERE, draw(st.sampled_from(Lanes))))
    own.append(Register("%always", Type.U32, 0, HERE))
    return verified("random.toml", "", False, "ptx", tuple(known), tuple(own), tuple(probes))


@settings(max_examples=40, deadline=None)
@given(probe_sets())
def test_random_sets(probes: ProbeSet) -> None:
    judge(probes)


@settings(max_examples=10, deadline=None)
@given(st.lists(probe_sets(), min_size=2, max_size=3))
def test_random_sets_merged(parts: list[ProbeSet]) -> None:
    apart = [
        read_probes(f"{index}.toml", write(part)) for index, part in enumerate(parts)
    ]
    names = [entry.name for part in apart for entry in part.maps]
    if len(set(names)) == len(names):
        judge(merge(apart))
