"""When warps ran and which ranges they had, of synthetic traces whose answers are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neutrino.tracing import Trace
from neutrino.tracing.timeline import LaunchTimeline, Names, Piece, Unit, paired, stable_order, timelines
from tests.tracing.trace_writer import BLOCK_SCHED, TraceWriter, fill_regions, make_map

EVENTS = make_map(
    "Events", "array", "warp", {"clock": "u64", "verb": "u32", "name": "u32", "token": "u32", "payload": "s32"}, 8
)
WAITS = make_map("Waits", "array", "warp", {"start": "u64", "elapsed": "u32", "site": "u32"}, 4)
PROGRESS = make_map("Progress", "array", "warp", {"clock": "u64", "site": "u32", "sm": "u32"}, 4)
ACCESSES = make_map("Accesses", "array", "thread", {"address": "u64", "clock": "u64", "site": "u32"}, 2)
TIMES = make_map("Times", "array", "warp", {"begin": "u64", "end": "u64", "sm": "u32"})


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=40))
def test_pairs_are_brackets(rows: list[tuple[int, bool]]) -> None:
    open_of: dict[int, list[int]] = {}
    expected = {}
    for index, (key, is_begin) in enumerate(rows):
        if is_begin:
            open_of.setdefault(key, []).append(index)
            expected[index] = -1
        elif open_of.get(key):
            expected[open_of[key].pop()] = index
    first, last = paired(np.array([key for key, _ in rows], np.int64), np.array([begin for _, begin in rows], bool))
    assert dict(zip(first.tolist(), last.tolist(), strict=True)) == expected
    assert first.tolist() == sorted(expected)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 5) | st.integers(0, (1 << 63) - 1), max_size=40))
def test_equal_numbers_keep_their_order(numbers: list[int]) -> None:
    found = stable_order(np.array(numbers, np.int64))
    assert found.tolist() == sorted(range(len(numbers)), key=numbers.__getitem__)


def one_launch(path: Path, maps: list, values: dict, *, blocks: int = 2, threads: int = 64) -> LaunchTimeline:
    writer = TraceWriter(path)
    writer.kernel(1, "gemm", maps=maps, sites=[
        {"site": 3, "probe": "p", "tracepoint": "bar", "line": 7, "instruction": "bar.sync 0;", "source": "gemm.cu:42"},
        {"site": None, "probe": "p", "tracepoint": "kernel", "line": 1, "instruction": ".entry gemm", "source": None},
    ])  # fmt: skip
    warps = -(-threads // 32)
    writer.launch(1, (blocks, 1, 1), (threads, 1, 1), fill_regions(maps, warps, values, blocks=blocks))
    trace = Trace(writer.write())
    (found,) = timelines(trace, trace.kernels, Names())
    return found


def test_warps_of_multiprocessors_begin_with_their_first(tmp_path: Path) -> None:
    rows = [(1000, 10, 0), (1005, 20, 0), (500, 7, 1), (0, 0, 0)]
    launch = one_launch(tmp_path / "trace", [BLOCK_SCHED], {"BlockSched": rows})
    assert launch.unit is Unit.CYCLES
    assert (launch.span.duration, launch.span.warps, launch.span.missing) == (25, 3, 1)
    (piece,) = launch.pieces()
    assert piece.lifetimes.warp.tolist() == [0, 1, 2]
    assert piece.lifetimes.begin.tolist() == [0, 5, 0]
    assert piece.lifetimes.end.tolist() == [10, 25, 7]
    # One multiprocessor at a time, if so few warps may be held.
    parts = list(launch.pieces(1))
    assert [part.lifetimes.sm.tolist() for part in parts] == [[0, 0], [1]]


def test_nanoseconds_are_of_one_clock(tmp_path: Path) -> None:
    rows = [(1000, 1010, 0), (1100, 1180, 0), (1050, 1057, 1), (1001, 0, 1)]
    launch = one_launch(tmp_path / "trace", [TIMES], {"Times": rows})
    assert launch.unit is Unit.NS
    assert (launch.span.begin, launch.span.duration) == (1000, 180)
    (piece,) = launch.pieces()
    assert piece.lifetimes.begin.tolist() == [0, 100, 50, 1]
    # The last one was not ended.
    assert piece.lifetimes.end.tolist() == [10, 180, 57, 180]
    assert piece.lifetimes.is_open.tolist() == [False, False, False, True]


def _ranges_of(piece: Piece, names: list[str]) -> list[tuple[str, int, int, int, bool]]:
    return [
        (names[name], row, begin, end, is_open)
        for ranges in piece.ranges
        for name, row, begin, end, is_open in zip(
            ranges.name.tolist(), ranges.row.tolist(), ranges.begin.tolist(), ranges.end.tolist(),
            ranges.is_open.tolist(), strict=True,
        )
    ]  # fmt: skip


def test_verbs_nest_and_open_ranges_end_with_the_warp(tmp_path: Path) -> None:
    lifetimes = [(1000, 100, 0), (1000, 50, 1)]
    events = np.zeros((2, 8), EVENTS.dtype)
    first = [(1010, 1, 5, 0, 7), (1020, 1, 6, 0, 8), (1030, 2, 0, 0, 0), (1040, 3, 7, 1, 9), (1045, 3, 7, 2, 10),
             (1050, 4, 7, 1, 0), (1060, 4, 7, 2, 0), (1070, 0, 8, 0, 11)]  # fmt: skip
    events[0] = first
    values = {"BlockSched": lifetimes, "Events": events, "Events.counts": [8, 0]}
    launch = one_launch(tmp_path / "trace", [BLOCK_SCHED, EVENTS], values, threads=32)
    (piece,) = launch.pieces()
    assert sorted(_ranges_of(piece, launch._names.texts), key=lambda row: row[2]) == [
        ("Events 5", 0, 10, 100, True), ("Events 6", 0, 20, 30, False), ("Events 7", 0, 40, 50, False),
        ("Events 7", 0, 45, 60, False), ("Events 8", 0, 70, 70, False),
    ]  # fmt: skip
    assert [ranges.is_mark for ranges in piece.ranges] == [True, False, False]
    assert [ranges.payload.tolist() for ranges in piece.ranges] == [[11], [7, 8], [9, 10]]


def test_intervals_are_named_by_their_instructions(tmp_path: Path) -> None:
    waits = np.zeros((2, 4), WAITS.dtype)
    waits[1, :2] = [(2010, 5, 3), (2030, 1, 9)]
    values = {"BlockSched": [(1000, 10, 0), (2000, 50, 1)], "Waits": waits, "Waits.counts": [0, 2]}
    launch = one_launch(tmp_path / "trace", [BLOCK_SCHED, WAITS], values, threads=32)
    (piece,) = launch.pieces()
    assert _ranges_of(piece, launch._names.texts) == [
        ("bar.sync 0 (gemm.cu:42)", 1, 10, 15, False), ("site 9", 1, 30, 31, False)
    ]  # fmt: skip


def test_marks_of_entry_and_end_tell_lifetimes(tmp_path: Path) -> None:
    rows = np.zeros((2, 4), PROGRESS.dtype)
    rows[0, :3] = [(100, 0xFFFFFFFF, 4), (110, 3, 4), (130, 0xFFFFFFFE, 4)]
    rows[1, :2] = [(105, 0xFFFFFFFF, 4), (120, 3, 4)]
    launch = one_launch(tmp_path / "trace", [PROGRESS], {"Progress": rows, "Progress.counts": [3, 2]}, threads=32)
    (piece,) = launch.pieces()
    assert (piece.lifetimes.begin.tolist(), piece.lifetimes.end.tolist()) == ([0, 5], [30, 30])
    assert piece.lifetimes.is_open.tolist() == [False, True]
    assert piece.lifetimes.sm.tolist() == [4, 4]
    assert [row[:3] for row in _ranges_of(piece, launch._names.texts)] == [
        ("bar.sync 0 (gemm.cu:42)", 0, 10), ("bar.sync 0 (gemm.cu:42)", 1, 20)
    ]  # fmt: skip


def test_marks_of_another_clock_tell_no_lifetimes_beside_a_map_that_does(tmp_path: Path) -> None:
    progress = np.zeros((2, 4), PROGRESS.dtype)
    progress[:, :2] = [(100, 0xFFFFFFFF, 4), (130, 0xFFFFFFFE, 4)]
    values = {"Progress": progress, "Progress.counts": [2, 2], "Times": [(70_000, 70_900, 4), (70_100, 70_300, 4)]}
    for maps in ([PROGRESS, TIMES], [TIMES, PROGRESS]):
        launch = one_launch(tmp_path / maps[0].name, maps, values, threads=32)
        (piece,) = launch.pieces()
        assert (launch.unit, launch.sources.left_out) == (Unit.NS, ("Progress",))
        assert piece.lifetimes.begin.tolist() == [0, 100]
        assert piece.lifetimes.end.tolist() == [900, 300]


def test_a_warp_has_no_lifetime_by_marks_of_other_instructions(tmp_path: Path) -> None:
    """The first access of a warp is later than its begin, and its last one earlier than its end."""
    accesses = np.zeros((2, 2, 32), ACCESSES.dtype)
    accesses[:, 0] = (4096, 500, 3)
    values = {"Accesses": accesses, "Accesses.counts": np.ones((2, 32))}
    launch = one_launch(tmp_path / "alone", [ACCESSES], values, threads=32)
    assert (launch.span.warps, launch.span.missing, list(launch.pieces())) == (0, 2, [])

    # A warp of which the mark of the entry was lost is left out; the accesses of the other are marks on it.
    progress = np.zeros((2, 4), PROGRESS.dtype)
    progress[0, :2] = [(400, 0xFFFFFFFF, 4), (700, 0xFFFFFFFE, 4)]
    progress[1, :1] = [(720, 0xFFFFFFFE, 4)]
    values |= {"Progress": progress, "Progress.counts": [2, 1]}
    launch = one_launch(tmp_path / "both", [ACCESSES, PROGRESS], values, threads=32)
    (piece,) = launch.pieces()
    assert (launch.span.warps, launch.span.missing) == (1, 1)
    assert (piece.lifetimes.warp.tolist(), piece.lifetimes.end.tolist()) == ([0], [300])
    assert _ranges_of(piece, launch._names.texts) == [("bar.sync 0 (gemm.cu:42)", 0, 100, 100, False)] * 32


def test_a_trace_without_times_has_no_timeline(tmp_path: Path) -> None:
    counts = make_map("Counts", "sum", "thread", {"all": "u64"})
    writer = TraceWriter(tmp_path / "trace")
    writer.kernel(1, "gemm", maps=[counts])
    writer.launch(1, (1, 1, 1), (32, 1, 1), fill_regions([counts], 1, {"Counts": [(3,)]}))
    trace = Trace(writer.write())
    assert list(timelines(trace, trace.kernels, Names())) == []


@pytest.mark.parametrize("most", [1, 7, 1 << 20])
def test_pieces_together_are_all_warps(tmp_path: Path, most: int) -> None:
    random = np.random.default_rng(3)
    blocks, warps = 50, 4
    rows = np.zeros(blocks * warps, BLOCK_SCHED.dtype)
    rows["start"], rows["elapsed"] = random.integers(1, 10**6, len(rows)), random.integers(1, 1000, len(rows))
    rows["cuid"] = random.integers(0, 9, len(rows))
    launch = one_launch(tmp_path / "trace", [BLOCK_SCHED], {"BlockSched": rows}, blocks=blocks, threads=32 * warps)
    pieces = list(launch.pieces(most))
    found = np.concatenate([piece.lifetimes.warp for piece in pieces])
    assert sorted(found.tolist()) == list(range(len(rows)))
    for piece in pieces:
        part = piece.lifetimes
        firsts = np.array([rows["start"][rows["cuid"] == sm].min() for sm in part.sm.tolist()], np.int64)
        assert (part.begin == rows["start"][part.warp].astype(np.int64) - firsts).all()
    assert (len(pieces) > 1) == (most < len(rows))
