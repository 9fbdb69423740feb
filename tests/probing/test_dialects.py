"""The older dialect beside the newer: the same records of the same launches, byte for byte, on the embedded device.

Clocks count how often they were read here. The device's own count instructions, and twins that declare another number
of registers begin with another number of instructions.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path

import numpy as np
import pytest

from neutrino.abi.levels import Level
from neutrino.abi.scalars import ScalarType
from neutrino.emulator.state import State
from neutrino.maps.registry import SUM
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.tracing.views import MapView
from neutrino.verification import load_probe_file, read_probes
from tests.fronts import read_probe_text
from tests.oracle.bench import Bench, make_twins
from tests.oracle.kernels import BRANCHES, CALLS, KERNELS, MEMORY
from tests.oracle.twin_launch import LoadedTwin

DRAFTS = Path(__file__).parents[1] / "fixtures" / "probes"


def records(bench: Bench, probes: ProbeSet) -> list[tuple[int, bytes, bytes | None]]:
    """Of each map of one launch: bytes of a record, the records, the counts."""
    twins = make_twins(bench.kernel, probes)
    (twin,) = twins.kernels
    place = bench.place(None)
    launch = place.launch()
    reads = count(1000)
    loaded = LoadedTwin(twin, place.device.load(twins.render()), place.module.variables)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(State, "clock_register", lambda *_: np.uint64(next(reads)))
        views = loaded.launch(place.device, launch)
    assert place.results() == bench.results(None)
    return [_content(views[entry.name]) for entry in probes.maps]


def _content(view: MapView) -> tuple[int, bytes, bytes | None]:
    # Of a sum the padding is nobody's.
    summed = view.map.kind == SUM
    parts = [view.records[field.name] for field in view.map.fields] if summed else [view.records]
    data = b"".join(part.tobytes() for part in parts)
    return view.map.size, data, None if view.counts is None else view.counts.tobytes()


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_the_drafts_examples_record_the_same(kernel) -> None:  # type: ignore[no-untyped-def]
    bench = Bench(kernel, ())
    found = [
        records(bench, load_probe_file(DRAFTS / f"{name}.toml"))
        for name in ("readme_block_sched", "website_block_sched", "guide_cuda")
    ]
    assert found[0] == found[1] == found[2]
    ((size, data, _),) = found[0]
    warps = kernel.geometry.blocks * kernel.geometry.warps
    assert len(data) == size * warps == 16 * warps
    assert any(data)


NEWER = """[map.M]
type = "{type}"
level = "{level}"
size = {size}
{cap}
data = {{ {fields} }}
[probe.p]
position = "{position}"
level = "{level}"
"""
OLDER = """[p]
position = "{position}"
datamodel = "{datamodel}"
"""


@pytest.mark.parametrize(
    ("datamodel", "level", "kind", "cap", "size", "older", "newer", "fields"),
    [
        ("thread:8", "thread", "array", 1, 8, "SAVE.u64 {ADDR};", "SAVE [ M ] { ADDR };", "u64"),
        ("thread:8:4", "thread", "array", 4, 8, "SAVE.b64 {ADDR};", "SAVE [ M ] { ADDR };", "u64"),
        ("thread:8:count", "thread", "log", 1, 8, "SAVE.s64 {ADDR};", "SAVE [ M ] { ADDR };", "s64"),
        ("thread:array:8:1", "thread", "array", 1, 8, "SAVE.u64 {BYTES};", "SAVE [ M ] { BYTES };", "u64"),
        ("thread:array:4:2", "thread", "array", 2, 4, "SAVE.u16 {7, 8};", "SAVE [ M ] { 7, 8 };", "u16 u16"),
        ("warp:16:3", "warp", "array", 3, 16, "SAVE.u64 {ADDR}; SAVE.u32 {OUT, 3};", "SAVE [ M ] { ADDR, OUT, 3 };",
         "u64 u32 u32"),
        ("block:8:2", "block", "array", 2, 8, "SAVE.u32 {OUT};\nSAVE.u8 {1}; SAVE.s16 {-2};",
         "SAVE [ M ] { OUT, 1, -2 };", "u32 u8 s16"),
        ("thread:sum:8:1", "thread", "sum", 1, 8, "SAVE.u64 {BYTES};", "SAVE [ M ] { BYTES };", "u64"),
        ("warp:sum:16", "warp", "sum", 1, 16, "SAVE.u64 {BYTES}; SAVE.u32 {1};", "SAVE [ M ] { BYTES, 1 };", "u64 u32"),
        # What changes between two SAVEs is saved as it was at the first.
        ("thread:16:2", "thread", "array", 2, 16, ".reg .u64 %a; mov.u64 %a, ADDR; SAVE.u64 {%a}; add.u64 %a, %a, 1; "
         "SAVE.u64 {%a};", ".reg .u64 %a, %b; mov.u64 %a, ADDR; mov.b64 %b, %a; add.u64 %a, %a, 1; SAVE [M] {%b, %a};",
         "u64 u64"),
        ("thread:8", "thread", "array", 1, 8, "SAVE.u32 {%tid.x, %smid};", ".reg .u32 %t, %s; mov.u32 %t, %tid.x;"
         "mov.u32 %s, %smid; SAVE [ M ] { %t, %s };", "u32 u32"),
        ("thread:16", "thread", "array", 1, 16, "SAVE.u64 {%clock64}; SAVE.u64 {%clock64};", ".reg .u64 %t, %s;"
         "mov.u64 %t, %clock64; mov.u64 %s, %clock64; SAVE [ M ] { %t, %s };", "u64 u64"),
    ],
)  # fmt: skip
def test_every_datamodel_is_a_map(  # type: ignore[no-untyped-def]
    datamodel: str, level: str, kind: str, cap, size: int, older: str, newer: str, fields: str
) -> None:
    position = "ld.global"
    old = read_probes("old.toml", OLDER.format(position=position, datamodel=datamodel) + f'after = """{older}"""')
    room = f"cap = {cap}" if kind == "array" else ""
    words = ", ".join(f'f{index} = "{word}"' for index, word in enumerate(fields.split()))
    text = NEWER.format(type=kind, level=level, size=size, cap=room, fields=words, position=position)
    new = read_probes("new.toml", text + f'after = """{newer}"""')
    (entry,) = old.maps
    assert (entry.level, entry.kind.name, entry.size, entry.cap) == (Level(level), kind, size, cap)
    assert [field.type for field in entry.fields] == [ScalarType(word) for word in fields.split()]
    bench = Bench(MEMORY, ())
    found = records(bench, old)
    assert found == records(bench, new)
    assert any(found[0][1])


def test_fields_are_called_as_their_operands() -> None:
    save = "SAVE.u32 {%tid.x, OUT, 7, IN1.y, 8, %Ab, %tid.x, %value_2};"
    text = OLDER.format(position="ld", datamodel="thread:32") + f'after = "{save}"'
    probes = read_probe_text("p.toml", text)
    names = [field.name for field in probes.maps[0].fields]
    assert names == ["tid_x", "out", "value", "in1_y", "value_2", "Ab", "tid_x_2", "value_2_2"]


def test_both_sides_save() -> None:
    """Records of one form, from before and from after, in one map."""
    text = OLDER.format(position="st.global", datamodel="thread:8:8")
    probes = read_probes("p.toml", text + 'before = "SAVE.u32 {1, 2};"\nafter = "SAVE.u32 {3}; SAVE.u32 {4};"')
    assert probes.warnings == ()
    ((_, data, counts),) = records(Bench(MEMORY, ()), probes)
    assert counts is not None
    saved = bytes.fromhex("0100000002000000 0300000004000000".replace(" ", ""))
    assert data.count(saved) > 0
    once = read_probes("p.toml", text.replace("8:8", "8") + 'before = "SAVE.u64 {1};"\nafter = "SAVE.u64 {3};"')
    assert [warning.code for warning in once.warnings] == ["one-record"]


def test_probes_without_a_datamodel_share_registers() -> None:
    """One counts, at thread level, what the other saves at warp level; in both dialects, and in a mixture."""
    count = '[count]\nposition = "ld.global"\nbefore = ".reg .u32 %n; add.u32 %n, %n, 1;"\n'
    save = '[last]\nposition = "kernel"\ndatamodel = "warp:4"\nafter = "SAVE.u32 {%n};"\n'
    newer = (
        '[map.last]\nlevel = "warp"\ndata = { n = "u32" }\n[probe.count]\nposition = "ld.global"\nlevel = "thread"\n'
        'before = ".reg .u32 %n; add.u32 %n, %n, 1;"\n[probe.last]\nposition = "kernel"\nlevel = "warp"\n'
        'after = "SAVE [ last ] { %n };"\n'
    )
    mixed = count + newer.replace("[probe.count]", "[probe.other]").replace("ld.global", "st.shared")
    bench = Bench(BRANCHES, ())
    older = read_probes("older.toml", count + save)
    assert [probe.level for probe in older.probes] == [Level.THREAD, Level.WARP]
    assert records(bench, older) == records(bench, read_probes("newer.toml", newer))
    both = read_probes("mixed.toml", mixed)
    assert [probe.name for probe in both.probes] == ["count", "other", "last"]
    assert both.digest != older.digest


def test_an_older_probe_may_save_to_a_declared_map() -> None:
    text = (
        '[map.M]\nlevel = "warp"\ncap = 2\ndata = { a = "u32" }\n[p]\nposition = "kernel"\nlevel = "warp"\n'
        'before = "SAVE [ M ] { 5 };"\n'
    )
    probes = read_probes("p.toml", text)
    ((_, data, _),) = records(Bench(CALLS, ()), probes)
    assert data.count(b"\5\0\0\0") == CALLS.geometry.blocks * CALLS.geometry.warps


def test_a_datamodel_that_nothing_is_saved_to() -> None:
    text = '[map.M]\nlevel = "warp"\ndata = { a = "u32" }\n' + OLDER.format(position="ld", datamodel="warp:8")
    probes = read_probes("p.toml", text + 'after = ".reg .u32 %a; mov.u32 %a, 1;"')
    assert {warning.code for warning in probes.warnings} == {"unused-map"}
    assert probes.probes[0].level is Level.WARP


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_the_guides_example_in_python_records_the_same(kernel) -> None:  # type: ignore[no-untyped-def]
    bench = Bench(kernel, ())
    written = records(bench, load_probe_file(DRAFTS / "guide_block_sched.py"))
    assert written == records(bench, load_probe_file(DRAFTS / "guide_cuda.toml"))


WEBSITE = """[map.block_sched]
level = "warp"
data = { gstart = "u64", elapsed = "u32", smid = "u32" }
[probe.block_start]
position = "kernel"
level = "warp"
before = ".reg .u64 %gstart; mov.u64 %gstart, %globaltimer;"
[probe.block_sched]
position = "kernel"
level = "warp"
after = '''.reg .u64 %gend; .reg .u32 %elapsed, %sm; mov.u64 %gend, %globaltimer; sub.u64 %gend, %gend, %gstart;
cvt.u32.u64 %elapsed, %gend; mov.u32 %sm, %smid; SAVE [ block_sched ] { %gstart, %elapsed, %sm };'''
"""


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_the_websites_example_in_python_records_the_same(kernel) -> None:  # type: ignore[no-untyped-def]
    bench = Bench(kernel, ())
    python = load_probe_file(DRAFTS / "website_block_sched.py")
    assert python.warnings == ()
    written = records(bench, python)
    assert written == records(bench, read_probes("website.toml", WEBSITE))
    ((size, data, _),) = written
    words = np.frombuffer(data, [("start", "u8"), ("elapsed", "u4"), ("sm", "u4")])
    assert len(words) == kernel.geometry.blocks * kernel.geometry.warps
    # The device's clock counts up, and the records are those of warps that have run.
    assert (words["start"] > 0).all()
    assert (words["elapsed"] > 0).all()
    assert size == 16
