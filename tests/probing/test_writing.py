"""Sets written back as probe files: they read back to the same set, whatever they came from."""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neutrino.probing import ProbeSet, load_probe_file, load_probes
from neutrino.probing.layout import lay_out_fields
from neutrino.probing.merging import merge
from neutrino.probing.model import (
    DYNAMIC_CAP,
    Instruction,
    Lanes,
    Level,
    Map,
    MapKind,
    Probe,
    Register,
    Save,
    ScalarType,
    Snippet,
    Span,
)
from neutrino.probing.statements import REGISTER_TYPES, bits_of
from neutrino.probing.toml import read_probes
from neutrino.probing.tracepoints import parse_tracepoint
from neutrino.probing.writing import trace_text, write
from neutrino.ptx.instrument.snippet import check_snippets
from neutrino.resources import shipped_probes

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


@pytest.mark.parametrize("path", [*DRAFTS.glob("*.toml"), *shipped_probes().values()], ids=lambda path: path.stem)
def test_files(path: Path) -> None:
    judge(load_probe_file(path))


def test_all_shipped_probes_together_and_twice() -> None:
    merged = load_probes(list(shipped_probes()))
    back = judge(merged)
    check_snippets(back)


def test_merged_with_the_older_dialect() -> None:
    """Both name a probe block_sched, and registers alike; each keeps its own."""
    older = load_probe_file(DRAFTS / "readme_block_sched.toml")
    merged = merge([older, *map(load_probe_file, shipped_probes().values())])
    names = [probe.name for probe in merged.probes]
    assert names[0] == "block_sched"
    assert "block_sched_2" in names
    assert len(set(names)) == len(names)
    check_snippets(judge(merged))


def test_two_files_for_amd() -> None:
    text = (DRAFTS / "guide_hip.toml").read_text()
    again = read_probes("b.toml", text.replace("BlockSched", "Other").replace("block_sched", "Other"))
    merged = merge([read_probes("a.toml", text), again])
    assert [register.name for register in merged.registers] == ["P0", "P1", "PD0", "PD1", "PD2"]
    back = judge(merged)
    assert back.platform == "hip"
    assert back.probes[0].registers == (("u32", 2), ("u64", 3), ("type", "sgpr"))


def test_scripts_are_written_as_absolute_paths(tmp_path: Path) -> None:
    for name in ("a.py", "b.py", 'c "d".py'):
        (tmp_path / name).write_text("")
    plain = shipped_probes()["block_sched"].read_text()
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
    path = shipped_probes()["block_sched"]
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
     "cp.async.bulk !tensor func:g", "kernel|*", "  mma  ", "bra @"]
)  # fmt: skip
# Of the words that statements are made of, and of some that they are not.
WORDS = st.text(st.sampled_from("abRx0%._-+|!<>@()[]:?é\"'\\\x01\x7f\u2028"), min_size=1, max_size=6).map(
    lambda word: " ".join(word.split()) or "x"
)


@st.composite
def maps(draw: st.DrawFn, name: str) -> Map:
    kind = draw(st.sampled_from(MapKind))
    types = list(ScalarType) if kind is MapKind.ARRAY else [ScalarType.U32, ScalarType.S64]
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    fields, size, _ = lay_out_fields([(field, draw(st.sampled_from(types))) for field in names])
    cap = draw(st.sampled_from([1, 2, 1 << 20, DYNAMIC_CAP])) if kind is MapKind.ARRAY else 1
    return Map(name, kind, draw(st.sampled_from(Level)), size, cap, fields, HERE)


@st.composite
def registers(draw: st.DrawFn) -> list[Register]:
    found = []
    for name in draw(st.lists(NAMES, max_size=12, unique_by=lambda name: name)):
        kind = draw(st.sampled_from(REGISTER_TYPES))
        initial = draw(st.just(0) | st.integers(0, (1 << bits_of(kind)) - 1))
        found.append(Register(f"%own_{name}", kind, initial, HERE))
    return found


@st.composite
def snippets(draw: st.DrawFn, level: Level, known: Sequence[Map], own: Sequence[Register]) -> Snippet:
    words = WORDS | st.sampled_from([register.name for register in own] or ["%x"])
    targets = [entry for entry in known if entry.level is level]
    statements: list[Instruction | Save] = []
    for _ in range(draw(st.integers(1, 4))):
        if targets and draw(st.booleans()):
            target = draw(st.sampled_from(targets))
            operands = tuple(draw(words) for _ in target.fields)
            statements.append(Save(target, operands, HERE))
        else:
            text = " ".join([draw(st.sampled_from(["mov", "add.u64", "@%p", "x"])), *draw(st.lists(words, max_size=4))])
            statements.append(Instruction(text, HERE))
    return Snippet(tuple(statements))


@st.composite
def probe_sets(draw: st.DrawFn) -> ProbeSet:
    names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    known = [draw(maps(name)) for name in names]
    own = draw(registers())
    probes = []
    for name in draw(st.lists(PROBE_NAMES, min_size=1, max_size=4, unique=True)):
        level = draw(st.sampled_from(Level))
        tracepoint, _ = parse_tracepoint(draw(POSITIONS))
        assert tracepoint is not None
        before = draw(st.none() | snippets(level, known, own))
        after = draw(snippets(level, known, own) if before is None else st.none() | snippets(level, known, own))
        probes.append(Probe(name, tracepoint, level, before, after, HERE, draw(st.sampled_from(Lanes))))
    return ProbeSet("random.toml", "", tuple(known), tuple(own), tuple(probes))


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
