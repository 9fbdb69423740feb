"""What the bench reads out of a trace, against traces written from the layouts and against plain counting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.measure import OWN_CLOCKS, Launch, measure, most_resident, numerics_fault, pair
from neutrino.abi.reasons import Reason
from neutrino.errors import TraceError
from neutrino.tracing import Trace
from tests.tracing.trace_writer import BLOCK_SCHED, GMEM_BYTES, TraceWriter, fill_regions

Json = Any
GRID, BLOCK = (3, 2, 1), (48, 1, 1)
WARPS = 12
DEVICE = {"sm_count": 132, "clock_khz": 1_980_000}
TOTALS = [(500, 400, 0, 16, 0), (300, 0, 0, 0, 0)]


def sched(first: int = 1000) -> list[tuple[int, int, int]]:
    """Twelve warps on three multiprocessors, four on each, one after another in pairs."""
    return [(first + 500 * (warp // 6), 400 + warp, warp % 3) for warp in range(WARPS)]


def report(path: Path, launches: list[list[Json]], workload: str = "made_up") -> Path:
    path.write_text(json.dumps({"workload": workload, "launches": launches}))
    return path


def row(kernel: str = "work", asked: tuple[int | None, ...] = (800, 400, 0, 16), ms: float = 0.5) -> list[Json]:
    return [kernel, list(GRID), list(BLOCK), ms, list(asked)]


def measured(
    folder: Path, records: list[tuple[int, int, int]], totals: list[tuple[int, ...]], told: list[list[Json]]
) -> Json:
    """What is kept of one launch with these records of the probes, of which the program told so."""
    writer = TraceWriter(folder / "traces" / "Nov21_100000_1")
    maps = [BLOCK_SCHED, GMEM_BYTES]
    writer.kernel(1, "work", maps=maps)
    writer.launch(1, GRID, BLOCK, fill_regions(maps, WARPS, {"BlockSched": records, "GmemBytes": totals}))
    writer.event("image", id=1, kind="cubin", size=77, source="", cached=1, ready_ms=1.25)
    writer.write()
    return measure(report(folder / "r.json", told), folder / "traces", DEVICE)


def test_a_launch_that_is_as_the_program_says_is_good(tmp_path: Path) -> None:
    found = measured(tmp_path, sched(), TOTALS, [row(asked=(None, 400, 0, 16))])
    assert (found["good"], found["faults"]) == ({"BlockSched": {"work": 1}, "GmemBytes": {"work": 1}}, [])
    assert (found["images"], found["complete"], found["copied"]) == ([["cubin", 77, True, 1.25]], True, 16)


@pytest.mark.parametrize(
    ("warp", "record", "fault"),
    [
        (3, (0, 400, 1), "1 slots without a start"), (3, (1000, 0, 1), "1 without an elapsed time"),
        (3, (1000, 2_000_000, 1), "a span of 2000000 cycles; 0.5 ms hold"),
        (3, (1000, 400, 132), "multiprocessor 132 of 132"),
    ],
)  # fmt: skip
def test_records_that_cannot_be_are_faults(
    tmp_path: Path, warp: int, record: tuple[int, int, int], fault: str
) -> None:
    records = sched()
    records[warp] = record
    found = measured(tmp_path, records, TOTALS, [row()])
    assert found["good"] == {"BlockSched": {"work": 0}, "GmemBytes": {"work": 1}}
    assert len(found["faults"]) == 1
    assert fault in found["faults"][0]


@pytest.mark.parametrize(
    ("totals", "asked", "fault"),
    [
        (TOTALS, (801, 400, 0, 16), "load: 800 B counted, 801 B by hand"),
        (TOTALS, (800, 400, None, 16), "atomic: 0 B counted, some B by hand"),
        ([(800, 400, 0, 16, 2)], (800, 400, 0, 16), "2 accesses of unknown size"),
    ],
)  # fmt: skip
def test_other_bytes_than_the_programs_are_faults(
    tmp_path: Path, totals: list[tuple[int, ...]], asked: tuple[int | None, ...], fault: str
) -> None:
    found = measured(tmp_path, sched(), totals, [row(asked=asked)])
    assert found["faults"] == [f"launch 0 of work: {fault}"]


def test_a_launch_without_data_and_one_that_is_not_told_are_seen(tmp_path: Path) -> None:
    found = measured(tmp_path, sched(), TOTALS, [row(), row(), row("other")])
    assert found["faults"] == ["launch 1 of work: no data"] * 2 + ["launch 2 of other: no data"] * 2
    assert found["unmatched"] == 0
    writer = TraceWriter(tmp_path / "again" / "t")
    writer.kernel(1, "work", maps=[BLOCK_SCHED])
    for _ in range(2):
        writer.launch(1, GRID, BLOCK, fill_regions([BLOCK_SCHED], WARPS, {"BlockSched": sched()}))
    writer.write()
    assert measure(report(tmp_path / "r.json", [row()]), tmp_path / "again", DEVICE)["unmatched"] == 1


def test_launches_pair_by_kernel_shape_and_order(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "t")
    for identity, name in enumerate(("add", "cupy_add__float", "other"), 1):
        writer.kernel(identity, name, maps=[GMEM_BYTES])

    def launch(kernel: int, grid: tuple[int, int, int], load: int) -> None:
        writer.launch(kernel, grid, BLOCK, fill_regions([GMEM_BYTES], 1, {"GmemBytes": [(load, 0, 0, 0, 0)]}))

    launch(1, (1, 1, 1), 10)
    launch(2, (7, 1, 1), 20)
    launch(1, (2, 1, 1), 30)
    launch(1, (1, 1, 1), 40)
    launch(3, (1, 1, 1), 50)
    trace = Trace(writer.write())
    told = [
        Launch("add", (1, 1, 1), BLOCK, 0.1, (0,)), Launch("add", (2, 1, 1), BLOCK, 0.1, (0,)),
        Launch("cupy_add*", None, None, 0.1, (0,)), Launch("add", (9, 1, 1), BLOCK, 0.1, (0,)),
        Launch("add", (1, 1, 1), BLOCK, 0.1, (0,)),
    ]  # fmt: skip
    pairs, unmatched = pair(told, trace)
    assert [traced and traced.maps["GmemBytes"].total()["load"] for _, traced in pairs] == [10, 30, 20, None, 40]
    assert unmatched == 1


def test_a_module_loaded_again_is_one_row(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "traces" / "t")
    for identity in (1, 2):
        writer.kernel(identity, "work", maps=[BLOCK_SCHED])
        writer.launch(identity, GRID, BLOCK, fill_regions([BLOCK_SCHED], WARPS, {"BlockSched": sched()}))
    writer.kernel(3, "work", Reason.UNSUPPORTED, "a texture")
    writer.count(3, Reason.UNSUPPORTED, 4)
    writer.write()
    kernels = measure(report(tmp_path / "r.json", [row()]), tmp_path / "traces", DEVICE)["kernels"]
    assert [(kernel["reason"], kernel["loaded"], kernel["counters"]) for kernel in kernels] == [
        ("probed", 2, {"probed": 2}), ("unsupported", 1, {"unsupported": 4}),
    ]  # fmt: skip
    assert kernels[0]["registers"] == [18, 20]


@pytest.mark.parametrize(
    ("twin", "own", "proof", "fault"),
    [
        ({"FFMA": 2}, {}, "counts", ""), ({"FFMA": 3}, {"FFMA": 1}, "counts", ""), ({"FFMA": 4}, {}, "lines", ""),
        ({"FFMA": 1, "FMUL": 1}, {}, "counts", "FFMA: 2 in the original, 1 in the twin, 0 its own"),
        ({"FFMA": 2, "FMUL": 1}, {"FMUL": 1}, "counts", ""),
        ({}, {}, "lines", "FFMA: 2 in the original, 0 in the twin"),
        ({"FFMA": 2}, {}, "luck", "shown by 'luck'"),
    ],
)  # fmt: skip
def test_other_arithmetic_is_a_fault(twin: Json, own: Json, proof: str, fault: str) -> None:
    found = numerics_fault({"original": {"FFMA": 2}, "twin": twin, "own": own, "proof": proof})
    assert found == "" if not fault else found.startswith(fault)


def test_the_trace_with_most_launches_is_the_programs(tmp_path: Path) -> None:
    for name, launches in (("a", 0), ("b", 2), ("c", 1)):
        writer = TraceWriter(tmp_path / "traces" / name)
        writer.kernel(1, "work", maps=[BLOCK_SCHED])
        for _ in range(launches):
            writer.launch(1, GRID, BLOCK, fill_regions([BLOCK_SCHED], WARPS, {"BlockSched": sched()}))
        writer.write()
    found = measure(report(tmp_path / "r.json", [row(), row()]), tmp_path / "traces", DEVICE)
    assert (found["good"], found["faults"]) == ({"BlockSched": {"work": 2}}, [])


def test_no_trace_is_said(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    with pytest.raises(TraceError, match=r"no events\.jsonl"):
        measure(report(tmp_path / "r.json", [row()]), tmp_path / "traces", DEVICE)


@pytest.mark.parametrize(
    ("change", "faults"),
    [
        ((0, 0, 0), []), ((1, 0, 0), ["1 warps started late"]), ((0, -1, 0), ["1 warps ended early"]),
        ((0, 0, 1), ["1 warps on another multiprocessor"]),
    ],
)  # fmt: skip
def test_own_clocks_are_compared_warp_by_warp(
    tmp_path: Path, change: tuple[int, int, int], faults: list[str]
) -> None:
    writer = TraceWriter(tmp_path / "traces" / "t")
    writer.kernel(1, "work", maps=[BLOCK_SCHED])
    records = sched()
    own = np.zeros(WARPS, OWN_CLOCKS)
    for warp, (start, elapsed, sm) in enumerate(records):
        own[warp] = (start + 3, start + elapsed - 3, sm, 0)
    start, elapsed, sm = records[5]
    own[5] = (start, start + elapsed, sm, 0)
    records[5] = (start + change[0], elapsed - change[0] + change[1], sm + change[2])
    writer.launch(1, GRID, BLOCK, fill_regions([BLOCK_SCHED], WARPS, {"BlockSched": records}))
    writer.write()
    told = report(tmp_path / "r.json", [row()], "clocks")
    own.tofile(tmp_path / "r.json.clocks")
    clocks = measure(told, tmp_path / "traces", DEVICE)["clocks"]
    assert clocks == {"launches": 1, "warps": WARPS, "excess": [6], "faults": faults}


def test_overlaps_count_multiprocessors(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "traces" / "t")
    writer.kernel(1, "left", maps=[BLOCK_SCHED])
    writer.kernel(2, "right", maps=[BLOCK_SCHED])
    for kernel, first in ((1, 1000), (2, 1800), (1, 10_000), (2, 50_000)):
        writer.launch(kernel, GRID, BLOCK, fill_regions([BLOCK_SCHED], WARPS, {"BlockSched": sched(first)}))
    writer.write()
    told = report(tmp_path / "r.json", [row("left"), row("right")] * 2, "streams")
    assert measure(told, tmp_path / "traces", DEVICE)["overlaps"] == [3, 0]


intervals = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20), st.integers(0, 2)), min_size=1, max_size=30)


@given(intervals)
def test_residence_against_counting_each_moment(warps: list[tuple[int, int, int]]) -> None:
    start, elapsed, sm = (np.array(column, np.uint64) for column in zip(*warps, strict=True))
    want = max(
        sum(place == other and first <= moment < first + length for first, length, other in warps)
        for moment, _, place in warps
    )
    assert most_resident(start, start + elapsed, sm) == want
