"""The reader against traces written from the layouts alone."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_writer import (
    BLOCK_SCHED,
    GMEM_BYTES,
    RECORDS_OFFSET,
    TraceWriter,
    fill_regions,
    make_map,
    write_histogram,
)

from neutrino.abi.launches import LAUNCH, LAUNCHES_HEADER, LAUNCHES_HEADER_SIZE, LaunchState
from neutrino.abi.levels import Level
from neutrino.abi.reasons import Reason
from neutrino.abi.records import record_dtype
from neutrino.abi.results import FRAME
from neutrino.cli.report import main
from neutrino.errors import TraceError
from neutrino.maps.declaration import Map
from neutrino.maps.regions import copies_in
from neutrino.maps.registry import SUM
from neutrino.tracing import Trace, find_traces, summarize
from tests.work import counted


def write_sched(
    path: Path, launches: int = 3, grid: tuple[int, int, int] = (4, 2, 1), threads: int = 64
) -> Path:
    writer = TraceWriter(path)
    writer.kernel(1, "vecadd", maps=[BLOCK_SCHED])
    warps = grid[0] * grid[1] * grid[2] * -(-threads // 32)
    for number in range(launches):
        rows = [(1000 * number + warp + 1, 10 + warp, warp % 4) for warp in range(warps)]
        writer.launch(1, grid, (threads, 1, 1), fill_regions([BLOCK_SCHED], warps, {"BlockSched": rows}))
    return writer.write()


def test_warp_level_records_keep_their_axes(tmp_path: Path) -> None:
    trace = Trace(write_sched(tmp_path / "t"))
    (kernel,) = trace.kernels
    launches = list(kernel.launches())
    assert [launch.index for launch in launches] == [0, 1, 2]
    view = launches[2].maps["BlockSched"]
    assert view.records.shape == (8, 2, 1)
    assert view.records["start"][3, 1, 0] == 2000 + 3 * 2 + 1 + 1
    assert view.valid()["elapsed"].tolist() == [10 + warp for warp in range(16)]
    assert np.shares_memory(view.valid(), view.records)
    assert view.counts is None
    assert view.dropped == 0
    assert trace.complete
    assert trace.notes == ()
    assert kernel.counters == {Reason.PROBED: 3}
    assert kernel.demangled == "vecadd(int*)"


@pytest.mark.parametrize("threads", [33, 48, 1000, 1])
def test_lanes_that_do_not_exist_are_left_out(tmp_path: Path, threads: int) -> None:
    entry = make_map("Values", "array", "thread", {"value": "u32"})
    writer = TraceWriter(tmp_path / "t")
    writer.kernel(1, "k", maps=[entry])
    warps = -(-threads // 32)
    values = np.arange(2 * warps * 32, dtype="<u4")
    writer.launch(1, (2, 1, 1), (threads, 1, 1), fill_regions([entry], 2 * warps, {"Values": values}))
    trace = Trace(writer.write())
    (launch,) = trace.kernels[0].launches()
    view = launch.maps["Values"]
    assert view.records.shape == (2, warps, 1, 32)
    expected = [block * warps * 32 + thread for block in range(2) for thread in range(threads)]
    assert view.valid()["value"].tolist() == expected


def test_counts_tell_valid_records_and_dropped_ones(tmp_path: Path) -> None:
    entry = make_map("Sites", "array", "warp", {"at": "u64"}, cap=3)
    writer = TraceWriter(tmp_path / "t")
    writer.kernel(1, "k", maps=[entry])
    counts = [0, 1, 3, 7]
    values = np.arange(12, dtype="<u8")
    writer.launch(
        1, (2, 1, 1), (64, 1, 1), fill_regions([entry], 4, {"Sites": values, "Sites.counts": counts})
    )
    trace = Trace(writer.write())
    (launch,) = trace.kernels[0].launches()
    view = launch.maps["Sites"]
    assert view.records.shape == (2, 2, 3)
    assert view.counts is not None
    assert view.counts.tolist() == [[0, 1], [3, 7]]
    assert view.valid()["at"].tolist() == [3, 6, 7, 8, 9, 10, 11]
    assert view.dropped == 4
    (kernel,) = summarize(trace).kernels
    assert kernel.maps[0].records == 7
    assert kernel.maps[0].dropped == 4
    assert any("4 records of map Sites were dropped" in note for note in summarize(trace).notes)


def test_sum_totals_wrap_around_like_the_field(tmp_path: Path) -> None:
    entry = make_map("S", "sum", "thread", {"a": "u32", "b": "s32", "c": "u64", "d": "s64"})
    writer = TraceWriter(tmp_path / "t")
    writer.kernel(1, "k", maps=[entry])
    rows = [(0xFFFF_FFFF, -5, 2**63, -1)] * 2 + [(3, 2, 1, -(2**62))] + [(0, 0, 0, 0)] * 5
    writer.launch(1, (1, 1, 1), (32, 1, 1), fill_regions([entry], 1, {"S": rows}))
    trace = Trace(writer.write())
    (launch,) = trace.kernels[0].launches()
    assert launch.maps["S"].total() == {"a": 1, "b": -8, "c": 1, "d": -2 - 2**62}


def test_sum_summary_has_the_grand_total_beyond_64_bits(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "t")
    writer.kernel(1, "k", maps=[GMEM_BYTES])
    for load in (2**63, 2**63 + 5, 7):
        rows = [(load, 1, 0, 0, 0)] + [(0, 0, 0, 0, 0)] * 7
        writer.launch(1, (1, 1, 1), (32, 1, 1), fill_regions([GMEM_BYTES], 1, {"GmemBytes": rows}))
    (kernel,) = summarize(Trace(writer.write())).kernels
    load = kernel.maps[0].fields[0]
    assert (load.minimum, load.median, load.maximum) == (7, 2**63, 2**63 + 5)
    assert load.total == 2**64 + 12
    assert kernel.maps[0].records == 3


def test_partial_kernels_and_the_reasons(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "t")
    writer.kernel(1, "seen", maps=[BLOCK_SCHED])
    writer.kernel(2, "cublas", Reason.VENDOR, "libcublas.so.13")
    writer.kernel(3, "unlaunched", Reason.NO_PTX, "sm_90 machine code only")
    regions = fill_regions([BLOCK_SCHED], 1, {"BlockSched": [(5, 6, 7)]})
    writer.launch(1, (1, 1, 1), (32, 1, 1), regions)
    writer.launch(1, (1, 1, 1), (32, 1, 1), None, LaunchState.SUBMITTED)
    writer.count(1, Reason.GRAPH, 9)
    writer.count(2, Reason.VENDOR, 40)
    summary = summarize(Trace(writer.write()))
    (kernel,) = summary.kernels
    assert (kernel.submitted, kernel.written, kernel.pending, kernel.unprobed) == (2, 1, 1, 9)
    rows = [(row.kernel.name, row.reason, row.detail, row.launches) for row in summary.not_probed]
    assert rows == [
        ("cublas", Reason.VENDOR, "libcublas.so.13", 40),
        ("seen", Reason.GRAPH, "", 9),
        ("unlaunched", Reason.NO_PTX, "sm_90 machine code only", 0),
    ]
    assert "seen(int*): the data of 1 launch had not arrived when the trace ended" in summary.notes


def test_killed_process_leaves_a_readable_trace(tmp_path: Path) -> None:
    path = write_sched(tmp_path / "t")
    launches = path / "launches.bin"
    data = bytearray(launches.read_bytes())
    data[60:64] = bytes(4)
    launches.write_bytes(data)
    events = path / "events.jsonl"
    text = events.read_text().splitlines(keepends=True)
    events.write_text("".join(text[:-1]) + '{"event":"ker')
    trace = Trace(path)
    assert not trace.complete
    assert len(list(trace.kernels[0].launches())) == 3
    assert "events.jsonl: its last line is cut off; it is left out" in trace.notes
    assert any("killed" in note for note in trace.notes)


def test_a_trace_of_the_version_before_is_read(tmp_path: Path) -> None:
    path = write_sched(tmp_path / "t")
    expected = [(kernel.counters, len(list(kernel.launches()))) for kernel in Trace(path).kernels]
    data = (path / "launches.bin").read_bytes()
    # The counters were a table between header and records, and there was nothing where the header goes on.
    counters = (path / "counters.bin").read_bytes()
    header = bytearray(data[:LAUNCHES_HEADER_SIZE])
    header[8:12] = (3).to_bytes(4, "little")
    header[16:24] = (LAUNCHES_HEADER_SIZE + len(counters)).to_bytes(8, "little")
    header[24:32] = (1 << 15).to_bytes(8, "little")
    (path / "launches.bin").write_bytes(bytes(header) + counters + data[LAUNCHES_HEADER_SIZE:])
    (path / "counters.bin").unlink()
    assert [(kernel.counters, len(list(kernel.launches()))) for kernel in Trace(path).kernels] == expected
    assert any(launches for _, launches in expected)


@pytest.mark.parametrize("kept", [0, 200])
def test_counters_that_were_cut_off_are_faults(tmp_path: Path, kept: int) -> None:
    path = write_sched(tmp_path / "t")
    launches = Trace(path).coverage.launches
    counters = path / "counters.bin"
    counters.write_bytes(counters.read_bytes()[:kept])
    with pytest.raises(TraceError, match=r"counters\.bin: "):
        Trace(path)
    trace = Trace(path, is_tolerant=True)
    assert any("counters.bin: " in fault for fault in trace.faults)
    assert not trace.coverage.is_known
    assert 0 < trace.coverage.launches <= launches


def damage(path: Path, offset: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[offset : offset + len(data)] = data
    path.write_bytes(content)


def without_fields(manifest: Path, kind: str) -> None:
    """Make the only map one of that type, without fields."""
    document = json.loads(manifest.read_text())
    (entry,) = document["maps"]
    entry |= {"kind": kind, "scale": "log2", "fields": []}
    manifest.write_text(json.dumps(document))


RESULT_FRAME = 128
"""Offset of the first frame of a file with one map: 32 bytes of header, 80 of descriptor, aligned to 64."""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: (p / "events.jsonl").write_text("{\n"), "line 1: not JSON"),
        (lambda p: (p / "events.jsonl").write_text('{"event": 3}\n'), "line 1: not an event"),
        (
            lambda p: (p / "events.jsonl").write_text('{"event":"kernel","id":"x"}\n'),
            "id is 'x', expected int",
        ),
        (
            lambda p: (p / "events.jsonl").write_text('{"event":"kernel","id":1,"reason":"bad"}\n'),
            "reason 'bad'",
        ),
        (lambda p: (p / "launches.bin").write_bytes(b"NTLAUNCH"), "it is cut off"),
        (lambda p: (p / "launches.bin").unlink(), "cannot be read"),
        (lambda p: damage(p / "launches.bin", 0, b"ELF!"), "magic"),
        (lambda p: damage(p / "launches.bin", 8, b"\x09"), "version is 9, expected 4"),
        (lambda p: damage(p / "launches.bin", 32, b"\xff\xff"), "records are used but only"),
        (lambda p: damage(p / "launches.bin", 16, b"\0\0\0\0"), "records_offset"),
        (lambda p: damage(p / "result/1.bin", 0, b"XX"), "magic"),
        (lambda p: damage(p / "result/1.bin", 8, b"\x02"), "version is 2, expected 8"),
        (lambda p: damage(p / "result/1.bin", 12, b"\x07"), "kernel is 7, expected 1"),
        (lambda p: damage(p / "result/1.bin", 32, b"Other"), "differs from the one in the kernel's manifest"),
        (lambda p: damage(p / "result/1.bin", 112, b"X"), None),
        (
            lambda p: (p / "result/1.bin").write_bytes((p / "result/1.bin").read_bytes()[:300]),
            "it is cut off",
        ),
        (lambda p: (p / "result/1.bin").write_bytes(b""), "it is cut off"),
        (lambda p: (p / "result/1.bin").unlink(), "cannot be read"),
        (lambda p: damage(p / "result/1.bin", RESULT_FRAME, b"BAD"), "magic in the frame of launch 0"),
        (lambda p: damage(p / "launches.bin", RECORDS_OFFSET + 32, b"\xff" * 8), "cut off"),
        (lambda p: damage(p / "launches.bin", RECORDS_OFFSET + 48, b"\x63"), "frame of launch 0"),
        (lambda p: (p / "kernel/1/manifest.json").write_text("[]"), "the document is []"),
        (lambda p: (p / "kernel/1/manifest.json").write_text("nope"), "not JSON"),
        (
            lambda p: (p / "kernel/1/manifest.json").write_text(
                (p / "kernel/1/manifest.json").read_text().replace('"u64"', '"u65"')
            ),
            "type such as 'u64'",
        ),
        (
            lambda p: (p / "kernel/1/manifest.json").write_text(
                (p / "kernel/1/manifest.json").read_text().replace('"offset": 12', '"offset": 13')
            ),
            "room in a record of 16 bytes",
        ),
        (lambda p: without_fields(p / "kernel/1/manifest.json", "array"), "fields is [], expected at least one"),
        (lambda p: without_fields(p / "kernel/1/manifest.json", "histogram"), "fields is [], expected at least one"),
        (
            lambda p: (p / "kernel/1/manifest.json").write_text(
                (p / "kernel/1/manifest.json").read_text().replace('"BlockSched"', '"\\ud800"')
            ),
            "differs from the one in the kernel's manifest",
        ),
    ],
)
def test_damage_is_named(tmp_path: Path, change, message: str | None) -> None:  # type: ignore[no-untyped-def]
    path = write_sched(tmp_path / "t")
    change(path)
    if message is None:
        summarize(Trace(path))
        return
    with pytest.raises(TraceError, match=message.replace("[", r"\[").replace("]", r"\]")) as caught:
        summarize(Trace(path))
    assert str(path) in str(caught.value)


def test_a_manifest_with_more_buckets_than_records_have_room_for(tmp_path: Path) -> None:
    path = write_histogram(tmp_path / "t", scale="linear", low=0, high=4000, step=1)
    with pytest.raises(TraceError, match="the size of map 'Values' is 264, expected room for its cells"):
        summarize(Trace(path))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["launches.bin", "result/1.bin", "events.jsonl", "kernel/1/manifest.json"]),
    st.data(),
)
def test_damaged_bytes_raise_trace_errors_only(tmp_path_factory, name: str, data: st.DataObject) -> None:  # type: ignore[no-untyped-def]
    path = write_sched(tmp_path_factory.mktemp("trace") / "t", launches=2)
    target = path / name
    size = target.stat().st_size
    for _ in range(data.draw(st.integers(0, 3))):
        # The counter table is large and holds nothing that could be wrong.
        near = data.draw(st.integers(0, min(size, 512) - 1))
        offset = data.draw(st.sampled_from([near, RECORDS_OFFSET + near])) if name == "launches.bin" else near
        damage(target, min(offset, size - 1), data.draw(st.binary(min_size=1, max_size=8)))
    if data.draw(st.booleans()):
        target.write_bytes(target.read_bytes()[: data.draw(st.integers(0, size))])
    # Whatever else is raised fails the test.
    with contextlib.suppress(TraceError):
        summarize(Trace(path))


SCALARS = st.sampled_from(["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64", "f32", "f64"])


@st.composite
def maps(draw: st.DrawFn) -> list[Map]:
    chosen = []
    for index in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["array", "sum"]))
        scalar = st.sampled_from(["u32", "s32", "u64", "s64"]) if kind == "sum" else SCALARS
        fields = {f"f{number}": draw(scalar) for number in range(draw(st.integers(1, 4)))}
        cap = 1 if kind == "sum" else draw(st.sampled_from([1, 2, 3]))
        chosen.append(make_map(f"M{index}", kind, draw(st.sampled_from(["block", "warp", "thread"])), fields, cap))
    return chosen


def slots_of(entry: Map, blocks: int, warps: int) -> tuple[int, ...]:
    return {
        Level.BLOCK: (blocks,), Level.WARP: (blocks, warps), Level.THREAD: (blocks, warps, 32),
    }[entry.level]  # fmt: skip


def random_values(entries: list[Map], blocks: int, warps: int, seed: int) -> dict[str, Any]:
    """Records and counts of every map: [block][warp][k][lane], and the same without k."""
    generator = np.random.default_rng(seed)
    values: dict[str, Any] = {}
    for entry in entries:
        slots = slots_of(entry, blocks, warps)
        by_thread = entry.level is Level.THREAD
        shape = (*slots[:-1], entry.cap, 32) if by_thread else (*slots, entry.cap)
        shape = (copies_in(blocks * warps),) if entry.kind == SUM else shape
        raw = generator.integers(0, 100, (*shape, entry.size), np.uint8)
        values[entry.name] = raw.reshape(-1, entry.size).view(record_dtype(entry.fields, entry.size)).reshape(shape)
        if entry.cap != 1:
            values[f"{entry.name}.counts"] = generator.integers(0, 5, slots, np.uint32)
    return values


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(maps(), st.integers(1, 3), st.integers(1, 70), st.integers(0, 2**32 - 4))
def test_regions_round_trip(tmp_path_factory, entries: list[Map], blocks: int, threads: int, seed: int) -> None:  # type: ignore[no-untyped-def]
    """What region_layout places, the views find: every record and count, slot by slot."""
    warps = -(-threads // 32)
    written = [random_values(entries, blocks, warps, seed + number) for number in range(3)]
    writer = TraceWriter(tmp_path_factory.mktemp("trace") / "t")
    writer.kernel(1, "k", maps=entries)
    for values in written:
        regions = fill_regions(entries, warps, values, blocks=blocks)
        writer.launch(1, (blocks, 1, 1), (threads, 1, 1), regions)
    trace = Trace(writer.write())
    for launch, values in zip(trace.kernels[0].launches(), written, strict=True):
        for entry in entries:
            view = launch.maps[entry.name]
            for item in entry.fields:
                np.testing.assert_array_equal(view.records[item.name], values[entry.name][item.name])
            if entry.cap == 1:
                continue
            counts = values[f"{entry.name}.counts"]
            np.testing.assert_array_equal(view.counts, counts)
            assert view.cap == entry.cap
            saved, lost = naive(entry, view.cap, threads, values)
            assert [tuple(row) for row in view.valid()[[f.name for f in entry.fields]].tolist()] == saved
            assert (view.dropped, view.wanted) == (lost, counts.max())
    stacks = list(trace.kernels[0].stacks())
    assert len(stacks) == 1
    for entry in entries:
        assert stacks[0][entry.name].records.shape[0] == 3
        first = entry.fields[0].name
        np.testing.assert_array_equal(stacks[0][entry.name].records[first][1], written[1][entry.name][first])
    for entry, summary in zip(entries, summarize(trace).kernels[0].maps, strict=True):
        if entry.cap != 1:
            assert summary.records == sum(len(naive(entry, entry.cap, threads, values)[0]) for values in written)


def naive(entry: Map, cap: int, threads: int, values: dict[str, Any]) -> tuple[list[tuple[object, ...]], int]:
    """The records that were saved, in the order of the axes, and how many saves there were beyond the cap."""
    rows: dict[tuple[int, ...], tuple[object, ...]] = {}
    lost = 0
    for slot, count in np.ndenumerate(values[f"{entry.name}.counts"]):
        # Lanes without a thread count nothing in a real launch, but have a slot.
        lost += max(int(count) - cap, 0)
        if entry.level is Level.THREAD and slot[1] * 32 + slot[2] >= threads:
            continue
        for k in range(min(int(count), cap)):
            index = (*slot[:-1], k, slot[-1]) if entry.level is Level.THREAD else (*slot, k)
            record = values[entry.name][index]
            rows[index] = tuple(record[field.name].item() for field in entry.fields)
    return [rows[index] for index in sorted(rows)], lost


def test_launches_of_many_kernels_and_geometries_find_their_frames(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "t")
    for kernel in (1, 2):
        writer.kernel(kernel, f"k{kernel}", maps=[BLOCK_SCHED])
    expected: dict[int, list[int]] = {1: [], 2: []}
    for number in range(40):
        kernel = 1 + number % 3 % 2
        blocks = 1 + number // 7
        rows = [(number * 100 + warp, 1, 0) for warp in range(blocks)]
        regions = fill_regions([BLOCK_SCHED], blocks, {"BlockSched": rows})
        if number % 5 == 4:
            writer.launch(kernel, (blocks, 1, 1), (32, 1, 1), None, LaunchState.SUBMITTED)
        else:
            writer.launch(kernel, (blocks, 1, 1), (32, 1, 1), regions)
            expected[kernel] += [number * 100 + warp for warp in range(blocks)]
    trace = Trace(writer.write())
    for kernel in trace.kernels:
        by_launch = [
            start for launch in kernel.launches() for start in launch.maps["BlockSched"].valid()["start"]
        ]
        stacked = [start for stack in kernel.stacks() for start in stack["BlockSched"].valid()["start"]]
        assert by_launch == expected[kernel.id]
        assert stacked == expected[kernel.id]


def test_twenty_thousand_launches_are_summarised_together(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "t")
    writer.kernel(1, "k", maps=[BLOCK_SCHED, GMEM_BYTES])
    regions = fill_regions(
        [BLOCK_SCHED, GMEM_BYTES],
        8,
        {"BlockSched": [(warp + 1, 9, 0) for warp in range(8)], "GmemBytes": [(4, 0, 0, 0, 0)] * copies_in(8)},
    )
    for _ in range(20_000):
        writer.launch(1, (4, 1, 1), (64, 1, 1), regions)
    path = writer.write()
    with counted() as work:
        (kernel,) = summarize(Trace(path)).kernels
    assert kernel.written == 20_000
    assert kernel.maps[0].records == 160_000
    assert kernel.maps[1].fields[0].total == 20_000 * 4 * copies_in(8)
    # All launches together, not one after the other: 8,000 calls are usual.
    assert work.calls < 20_000


def test_find_traces(tmp_path: Path) -> None:
    first = write_sched(tmp_path / "job" / "Nov20_131500_1")
    second = write_sched(tmp_path / "job" / "Nov20_131501_2")
    assert find_traces(first) == [first]
    assert sorted(find_traces(tmp_path / "job")) == [first, second]
    with pytest.raises(TraceError, match=f"kernel: a folder in a trace, and no trace: give {first}"):
        find_traces(first / "kernel")
    (tmp_path / "empty").mkdir()
    with pytest.raises(TraceError, match="neither a trace directory nor a folder"):
        find_traces(tmp_path / "empty")
    with pytest.raises(TraceError, match="cannot be read"):
        find_traces(tmp_path / "absent")


def test_manifest_that_was_never_written_is_noted(tmp_path: Path) -> None:
    path = write_sched(tmp_path / "t")
    (path / "kernel/1/manifest.json").unlink()
    events = (path / "events.jsonl").read_text().splitlines(keepends=True)
    (path / "events.jsonl").write_text("".join(line for line in events if '"end"' not in line))
    damage(path / "launches.bin", (LAUNCHES_HEADER.dtype.fields or {})["ended"][1], bytes(4))
    trace = Trace(path)
    summary = summarize(trace)
    assert summary.kernels == ()
    assert any("manifest.json is missing" in note for note in summary.notes)
    assert not trace.faults


@pytest.mark.parametrize("option", ["--records", "--json", "--perfetto", "--why"])
def test_a_manifest_that_is_gone_is_a_fault(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a damaged one is: the program ended, so it was written."""
    path = write_sched(tmp_path / "t")
    (path / "kernel/1/manifest.json").unlink()
    options = [option, str(tmp_path / "out")] if option == "--perfetto" else [option]
    assert main([str(path), *options]) == 2
    assert "kernel/1/manifest.json is missing: the data of vecadd cannot be read" in capsys.readouterr().err
    with pytest.raises(TraceError, match="is missing"):
        summarize(Trace(path))


def test_the_writer_agrees_with_the_layout() -> None:
    assert LAUNCH.size == 128
    assert FRAME.size == 64
    assert json.dumps(BLOCK_SCHED.size) == "16"


def test_kernels_by_name(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "t")
    for number, name in enumerate(("_Z5scalePfi", "sum", "_ZN3lib4copyIfEEvPT_", "sum"), 1):
        writer.kernel(number, name, maps=[BLOCK_SCHED])
    trace = Trace(writer.write())
    for name in ("_Z5scalePfi", "scale(float*, int)", "scale"):
        assert trace.kernels[name] is trace.kernels[0]
    assert trace.kernels["void lib::copy<float>"].id == 3
    assert [kernel.id for kernel in trace.kernels[1:3]] == [2, 3]
    with pytest.raises(TraceError, match=r"'sum': 2 kernels have this name: kernels\[1\], kernels\[3\]$"):
        trace.kernels["sum"]
    with pytest.raises(TraceError, match="'sum': no kernel of set 2 has this name; there are those of set 1"):
        trace.kernels["sum", 2]
    with pytest.raises(IndexError, match="kernel 4: there are 4: scale"):
        trace.kernels[4]
    names = "scale, sum, void lib::copy<float>"
    with pytest.raises(TraceError, match=f"no kernel of the trace has this name; it has {names}"):
        trace.kernels["scal"]
    assert repr(trace.kernels) == f"<4 kernels: {names}>"
    assert repr(trace.kernels[0]) == "<TraceKernel 1 scale: probed, 0 launches>"
    assert repr(trace) == f"<Trace '{tmp_path}/t': 4 kernels, 0 launches>"


def test_launches_have_a_short_text(tmp_path: Path) -> None:
    (kernel,) = Trace(write_sched(tmp_path / "t")).kernels
    assert [repr(launch) for launch in kernel.launches()][2] == "<TraceLaunch 2: BlockSched>"
