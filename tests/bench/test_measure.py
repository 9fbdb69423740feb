"""What the bench reads out of a trace, against traces written from the layouts and against plain counting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.measure import (
    GMEM_COLUMNS,
    LAUNCH_COLUMNS,
    OWN_CLOCKS,
    SCHED_COLUMNS,
    Launch,
    measure,
    most_resident,
    pair,
)
from neutrino.abi.reasons import Reason
from neutrino.errors import TraceError
from neutrino.tracing import Trace
from tests.tracing.trace_writer import BLOCK_SCHED, GMEM_BYTES, TraceWriter, fill_regions

Json = Any
GRID, BLOCK = (3, 2, 1), (48, 1, 1)
WARPS = 12


def sched(first: int = 1000) -> list[tuple[int, int, int]]:
    """Twelve warps on three multiprocessors, four on each, one after another in pairs."""
    return [(first + 500 * (warp // 6), 400 + warp, warp % 3) for warp in range(WARPS)]


def report(path: Path, launches: list[list[Json]], workload: str = "made_up") -> Path:
    path.write_text(json.dumps({"workload": workload, "launches": launches}))
    return path


def row(kernel: str = "work", asked: tuple[int | None, ...] = (800, 400, 0, 0)) -> list[Json]:
    return [kernel, list(GRID), list(BLOCK), 0.5, list(asked)]


def table(measured: dict[str, Json], index: int = 0) -> dict[str, Json]:
    return dict(zip(measured["columns"], measured["rows"][index], strict=True))


def test_rows_hold_what_the_maps_hold(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "traces" / "Nov21_100000_1")
    maps = [BLOCK_SCHED, GMEM_BYTES]
    writer.kernel(1, "work", maps=maps)
    totals = [(500, 400, 0, 16, 0), (300, 0, 0, 0, 2)]
    regions = fill_regions(maps, WARPS, {"BlockSched": sched(), "GmemBytes": totals})
    writer.launch(1, GRID, BLOCK, regions)
    writer.event("image", id=1, kind="cubin", size=77, source="", cached=1, ready_ms=1.25)
    writer.write()
    measured = measure(report(tmp_path / "r.json", [row(), row()]), tmp_path / "traces")
    assert tuple(measured["columns"]) == (*LAUNCH_COLUMNS, *SCHED_COLUMNS, *GMEM_COLUMNS)
    first = table(measured)
    assert (first["kernel"], first["grid"], first["block"], first["ms"]) == (
        "work",
        list(GRID),
        list(BLOCK),
        0.5,
    )
    assert first["records"] == WARPS
    assert (first["zero_start"], first["zero_elapsed"]) == (0, 0)
    assert (first["elapsed_min"], first["elapsed_median"], first["elapsed_max"]) == (400, 405, 411)
    assert first["span_max"] == 500 + 411
    assert (first["sm_max"], first["sm_seen"], first["resident_max"]) == (2, 3, 2)
    assert [first[f"want_{name}"] for name in ("load", "store", "atomic", "async")] == [800, 400, 0, 0]
    assert [first[f"got_{name}"] for name in ("load", "store", "atomic", "async")] == [800, 400, 0, 16]
    assert first["uncounted"] == 2
    second = table(measured, 1)
    assert second["records"] is None
    assert second["got_load"] is None
    assert measured["images"] == [["cubin", 77, True, 1.25]]
    assert measured["complete"]


def test_empty_slots_are_counted(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "traces" / "t")
    writer.kernel(1, "work", maps=[BLOCK_SCHED])
    records = sched()
    records[3], records[7] = (0, 0, 0), (5, 0, 1)
    writer.launch(1, GRID, BLOCK, fill_regions([BLOCK_SCHED], WARPS, {"BlockSched": records}))
    writer.write()
    first = table(measure(report(tmp_path / "r.json", [row()]), tmp_path / "traces"))
    assert (first["zero_start"], first["zero_elapsed"]) == (1, 2)


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
        Launch("add", (1, 1, 1), BLOCK, 0.1, (0,)),
        Launch("add", (2, 1, 1), BLOCK, 0.1, (0,)),
        Launch("cupy_add*", None, None, 0.1, (0,)),
        Launch("add", (9, 1, 1), BLOCK, 0.1, (0,)),
        Launch("add", (1, 1, 1), BLOCK, 0.1, (0,)),
    ]
    pairing = pair(told, trace)
    loads = [entry.traced and entry.traced.maps["GmemBytes"].total()["load"] for entry in pairing.pairs]
    assert loads == [10, 30, 20, None, 40]
    assert pairing.unmatched == 1


def test_a_module_loaded_again_is_one_row(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "traces" / "t")
    for identity in (1, 2):
        writer.kernel(identity, "work", maps=[BLOCK_SCHED])
        writer.launch(identity, GRID, BLOCK, fill_regions([BLOCK_SCHED], WARPS, {"BlockSched": sched()}))
    writer.kernel(3, "work", Reason.UNSUPPORTED, "a texture")
    writer.count(3, Reason.UNSUPPORTED, 4)
    writer.write()
    kernels = measure(report(tmp_path / "r.json", [row()]), tmp_path / "traces")["kernels"]
    assert [(kernel["reason"], kernel["loaded"], kernel["counters"]) for kernel in kernels] == [
        ("probed", 2, {"probed": 2}),
        ("unsupported", 1, {"unsupported": 4}),
    ]
    assert kernels[0]["registers"] == {"original": 18, "twin": 20, "capped": None}


def test_the_trace_with_most_launches_is_the_programs(tmp_path: Path) -> None:
    for name, launches in (("a", 0), ("b", 2), ("c", 1)):
        writer = TraceWriter(tmp_path / "traces" / name)
        writer.kernel(1, "work", maps=[BLOCK_SCHED])
        for _ in range(launches):
            writer.launch(1, GRID, BLOCK, fill_regions([BLOCK_SCHED], WARPS, {"BlockSched": sched()}))
        writer.write()
    measured = measure(report(tmp_path / "r.json", [row(), row()]), tmp_path / "traces")
    assert measured["traces"] == 3
    assert all(entry[measured["columns"].index("records")] == WARPS for entry in measured["rows"])


def test_no_trace_is_said(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    with pytest.raises(TraceError, match=r"no events\.jsonl"):
        measure(report(tmp_path / "r.json", [row()]), tmp_path / "traces")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ((0, 0, 0), [0, 0, 0]),
        ((1, 0, 0), [0, 1, 0]),
        ((0, -1, 0), [0, 0, 1]),
        ((0, 0, 1), [1, 0, 0]),
    ],
)
def test_own_clocks_are_compared_warp_by_warp(tmp_path: Path, change: tuple[int, int, int], fault: list[int]) -> None:
    writer = TraceWriter(tmp_path / "traces" / "t")
    writer.kernel(1, "work", maps=[BLOCK_SCHED])
    records = sched()
    own = np.zeros(WARPS, OWN_CLOCKS)
    for warp, (start, elapsed, sm) in enumerate(records):
        own[warp] = (start, start + elapsed, sm, 0)
    start, elapsed, sm = records[5]
    moved = (start + change[0], elapsed - change[0] + change[1], sm + change[2])
    records[5] = moved
    writer.launch(1, GRID, BLOCK, fill_regions([BLOCK_SCHED], WARPS, {"BlockSched": records}))
    writer.write()
    told = report(tmp_path / "r.json", [row()], "clocks")
    own.tofile(tmp_path / "r.json.clocks")
    clocks = measure(told, tmp_path / "traces")["clocks"]
    assert clocks["rows"][0][:4] == [WARPS, *fault]
    assert clocks["samples"][5] == [start, start + elapsed, sm, *moved]


def test_overlaps_count_multiprocessors(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "traces" / "t")
    writer.kernel(1, "left", maps=[BLOCK_SCHED])
    writer.kernel(2, "right", maps=[BLOCK_SCHED])
    for kernel, first in ((1, 1000), (2, 1800), (1, 10_000), (2, 50_000)):
        writer.launch(kernel, GRID, BLOCK, fill_regions([BLOCK_SCHED], WARPS, {"BlockSched": sched(first)}))
    writer.write()
    told = report(tmp_path / "r.json", [row("left"), row("right")] * 2, "streams")
    assert measure(told, tmp_path / "traces")["overlaps"] == [3, 0]


intervals = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20), st.integers(0, 2)), min_size=1, max_size=30)


@given(intervals)
def test_residence_against_counting_each_moment(warps: list[tuple[int, int, int]]) -> None:
    start, elapsed, sm = (np.array(column, np.uint64) for column in zip(*warps, strict=True))
    want = max(
        sum(place == other and first <= moment < first + length for first, length, other in warps)
        for moment, _, place in warps
    )
    assert most_resident(start, start + elapsed, sm) == want
