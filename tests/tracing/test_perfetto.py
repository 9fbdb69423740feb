"""Files for Perfetto, read back by the messages of Perfetto's own package."""

from __future__ import annotations

import gzip
import re
import tracemalloc
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as messages

from neutrino.cli.probe import main as probe
from neutrino.tracing import Trace, perfetto, perfetto_packets
from neutrino.tracing.iket import read_iket, write_iket
from neutrino.tracing.perfetto import write_perfetto
from tests.tracing.test_timeline import EVENTS, WAITS
from tests.tracing.trace_writer import BLOCK_SCHED, GMEM_BYTES, TraceWriter, fill_regions, make_map

TIMES = make_map("Times", "array", "warp", {"begin": "u64", "end": "u64", "sm": "u32"})


@dataclass
class Slice:
    name: str
    begin: int
    end: int = -1
    arguments: dict[str, Any] = field(default_factory=dict)
    correlation: int = 0


@dataclass
class Seen:
    """What a reader of the file finds, by the names of tracks from the root. marks: time and name; counters: value."""

    trace: Any
    slices: dict[tuple[str, ...], list[Slice]]
    marks: dict[tuple[str, ...], list[tuple[int, str]]]
    counters: dict[tuple[str, ...], list[tuple[int, float]]]
    stages: list[Any]
    names: dict[int, str]


def value_of(annotation: Any) -> Any:
    return getattr(annotation, annotation.WhichOneof("value"))


def seen(path: Path) -> Seen:
    """Read a file as Perfetto's importer does: interned names, tracks by number, slices as a stack on each track."""
    data = path.read_bytes()
    trace = messages.Trace.FromString(gzip.decompress(data) if path.suffix == ".gz" else data)
    names: dict[int, str] = {}
    tracks: dict[int, tuple[int, str]] = {}
    events = []
    stages = []
    for index, packet in enumerate(trace.packet):
        assert packet.trusted_packet_sequence_id == 1
        for entry in packet.interned_data.event_names:
            assert entry.iid not in names
            names[entry.iid] = entry.name
        kind = packet.WhichOneof("data")
        if kind == "track_descriptor":
            track = packet.track_descriptor
            assert track.uuid not in tracks
            assert not track.parent_uuid or track.parent_uuid in tracks
            name = track.process.process_name if track.HasField("process") else track.name
            tracks[track.uuid] = (track.parent_uuid, name)
        elif kind == "track_event":
            assert packet.sequence_flags == messages.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
            events.append((packet.timestamp, index, packet.track_event))
        elif kind == "gpu_render_stage_event":
            stages.append((packet.timestamp, packet.gpu_render_stage_event))

    def whole(uuid: int) -> tuple[str, ...]:
        parent, name = tracks[uuid]
        return (*(whole(parent) if parent else ()), name)

    slices: dict[tuple[str, ...], list[Slice]] = defaultdict(list)
    marks: dict[tuple[str, ...], list[tuple[int, str]]] = defaultdict(list)
    counters: dict[tuple[str, ...], list[tuple[int, float]]] = defaultdict(list)
    stacks: dict[int, list[Slice]] = defaultdict(list)
    # Perfetto sorts by time, and keeps the file's order of what has one.
    for time, _, event in sorted(events, key=lambda row: row[:2]):
        path_of = whole(event.track_uuid)
        name = event.name or names.get(event.name_iid, "")
        if event.type == event.TYPE_SLICE_BEGIN:
            arguments = {entry.name: value_of(entry) for entry in event.debug_annotations}
            found = Slice(name, time, arguments=arguments, correlation=event.correlation_id)
            slices[path_of].append(found)
            stacks[event.track_uuid].append(found)
        elif event.type == event.TYPE_SLICE_END:
            stacks[event.track_uuid].pop().end = time
        elif event.type == event.TYPE_INSTANT:
            marks[path_of].append((time, name))
        else:
            field_name = event.WhichOneof("counter_value_field")
            counters[path_of].append((time, getattr(event, field_name)))
    assert not any(stacks.values())
    return Seen(trace, slices, marks, counters, stages, names)


def gemm(
    path: Path, maps: list, values: dict, *, blocks: int = 2, threads: int = 64, name: str = "gemm"
) -> TraceWriter:
    writer = TraceWriter(path)
    writer.kernel(1, name, maps=maps, sites=[
        {"site": 3, "probe": "p", "tracepoint": "bar", "line": 7, "instruction": "bar.sync 0;", "source": "gemm.cu:42"}
    ])  # fmt: skip
    warps = -(-threads // 32)
    writer.launch(1, (blocks, 1, 1), (threads, 1, 1), fill_regions(maps, warps, values, blocks=blocks))
    return writer


def test_kernel_launch_multiprocessor_block_and_warp(tmp_path: Path) -> None:
    # Blocks 0 and 1 are on multiprocessor 5 at once, block 2 after block 0.
    rows = [(1000, 10, 5), (1001, 11, 5), (1004, 20, 5), (1004, 30, 5), (1020, 5, 5), (1022, 8, 5)]
    gemm(tmp_path / "trace", [BLOCK_SCHED], {"BlockSched": rows}, blocks=3).write()
    written = write_perfetto(Trace(tmp_path / "trace"), tmp_path / "out.pftrace")
    found = seen(tmp_path / "out.pftrace")
    root = ("python on node", "gemm(int*)", "Launch 0")
    (launch,) = found.slices[root]
    base = launch.begin
    assert (launch.name, launch.end - base) == ("Launch 0", 34)
    assert launch.arguments["unit"] == "cycles"
    assert launch.arguments["grid"] == "3x1x1"
    sm = (*root, "SM 5")

    def times(*path: str) -> list[tuple[str, int, int]]:
        return [(row.name, row.begin - base, row.end - base) for row in found.slices[(*sm, *path)]]

    assert times("CTA slot 0") == [("CTA(0, 0, 0)", 0, 12), ("CTA(2, 0, 0)", 20, 30)]
    assert times("CTA slot 1") == [("CTA(1, 0, 0)", 4, 34)]
    assert times("CTA slot 0", "Warp 0") == [("WarpLifeTime", 0, 10), ("WarpLifeTime", 20, 25)]
    assert times("CTA slot 0", "Warp 1") == [("WarpLifeTime", 1, 12), ("WarpLifeTime", 22, 30)]
    assert times("CTA slot 1", "Warp 1") == [("WarpLifeTime", 4, 34)]
    assert written.slices == 1 + 3 + 6
    assert any("no common zero" in note for note in written.notes())


def test_a_launch_is_an_event_of_the_gpu_with_its_submission(tmp_path: Path) -> None:
    writer = gemm(tmp_path / "trace", [TIMES], {"Times": [(5000, 5100, 0), (5000, 5400, 1)]}, threads=32)
    data = fill_regions([TIMES], 1, {"Times": [(9000, 9100, 0)]})
    writer.launch(1, (1, 1, 1), (32, 1, 1), data)
    writer.records[0]["submit_ns"], writer.records[1]["submit_ns"] = 700, 4710
    writer.write()
    written = write_perfetto(Trace(tmp_path / "trace"), tmp_path / "out.pftrace")
    found = seen(tmp_path / "out.pftrace")
    # The GPU's clock is behind by 4,290 at least: the second launch then begins as it is submitted.
    (first, one), (second, two) = found.stages
    assert (first, one.duration, one.event_id, list(one.event_wait_ids)) == (710, 400, 1, [])
    assert (second, two.duration, two.event_id, list(two.event_wait_ids)) == (4710, 100, 2, [1])
    assert (one.name, one.launch.grid_size.x, one.launch.workgroup_size.x) == ("gemm(int*)", 2, 32)
    interned = [packet.interned_data for packet in found.trace.packet]
    queues = {entry.iid: entry.name for data in interned for entry in data.gpu_specifications}
    assert (queues[one.stage_iid], queues[one.hw_queue_iid]) == ("Kernel", "Stream 0x0")
    contexts = {entry.iid: entry for data in interned for entry in data.graphics_contexts}
    assert contexts[one.context].api == messages.InternedGraphicsContext.CUDA
    submissions = found.marks["python on node", "Submissions of thread 0"]
    assert submissions == [(700, "launch gemm(int*)"), (4710, "launch gemm(int*)")]
    flows: dict[int, list[str]] = defaultdict(list)
    for packet in found.trace.packet:
        for flow in packet.track_event.flow_ids:
            flows[flow].append("from")
        for flow in packet.track_event.terminating_flow_ids:
            flows[flow].append("to")
    assert flows == {1: ["from", "to"], 2: ["from", "to"]}
    assert any("is not known" in note for note in written.notes())


def test_ranges_nest_on_the_warp_and_others_have_their_own_track(tmp_path: Path) -> None:
    events = np.zeros((1, 8), EVENTS.dtype)
    events[0] = [(1010, 1, 5, 0, 7), (1020, 1, 6, 0, -8), (1030, 2, 0, 0, 0), (1040, 3, 7, 1, 9), (1045, 3, 7, 2, 10),
                 (1050, 4, 7, 1, 0), (1060, 4, 7, 2, 0), (1070, 0, 8, 0, 11)]  # fmt: skip
    values = {"BlockSched": [(1000, 100, 0)], "Events": events, "Events.counts": [8]}
    gemm(tmp_path / "trace", [BLOCK_SCHED, EVENTS], values, threads=32, blocks=1).write()
    written = write_perfetto(Trace(tmp_path / "trace"), tmp_path / "out.pftrace.gz")
    found = seen(tmp_path / "out.pftrace.gz")
    warp = ("python on node", "gemm(int*)", "Launch 0", "SM 0", "CTA slot 0", "Warp 0")
    base = found.slices[warp][0].begin
    rows = [(row.name, row.begin - base, row.end - base, row.arguments) for row in found.slices[warp]]
    assert rows[:3] == [
        ("WarpLifeTime", 0, 100, {}), ("Events 5 (unclosed)", 10, 100, {"payload": 7}),
        ("Events 6", 20, 30, {"payload": -8}),
    ]  # fmt: skip
    aside = found.slices[(*warp, "overlapping ranges")]
    shown = [(row.name, row.begin - base, row.end - base) for row in aside]
    assert shown == [("Events 7", 40, 50), ("Events 7", 45, 60)]
    assert found.marks[warp] == [(base + 70, "Events 8")]
    assert (written.slices, written.marks, written.unclosed) == (1 + 1 + 1 + 4, 1, 1)


def test_amd_has_names_of_its_own(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "trace", device="AMD Instinct MI300X")
    writer.events[1]["arch"] = "gfx942"
    writer.kernel(1, "gemm", maps=[BLOCK_SCHED], arch="gfx942")
    data = fill_regions([BLOCK_SCHED], 2, {"BlockSched": [(5, 9, 7), (5, 8, 7)]}, lanes=64)
    writer.launch(1, (1, 1, 1), (128, 1, 1), data, lanes=64)
    writer.write()
    write_perfetto(Trace(tmp_path / "trace"), tmp_path / "out.pftrace")
    found = seen(tmp_path / "out.pftrace")
    launch = ("python on node", "gemm(int*)", "Launch 0", "CU 7", "WG slot 0")
    assert [row.name for row in found.slices[launch]] == ["WG(0, 0, 0)"]
    assert [row.name for row in found.slices[(*launch, "Wave 1")]] == ["Wave Span"]
    (info,) = [packet.gpu_info for packet in found.trace.packet if packet.HasField("gpu_info")]
    assert [(gpu.vendor, gpu.architecture) for gpu in info.gpus] == [("AMD", "gfx942")]
    contexts = [entry for packet in found.trace.packet for entry in packet.interned_data.graphics_contexts]
    assert [entry.api for entry in contexts] == [messages.InternedGraphicsContext.HIP]


def test_kernels_of_one_name_stay_apart(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "trace")
    for identity in (1, 2):
        writer.kernel(identity, "gemm", maps=[BLOCK_SCHED])
        data = fill_regions([BLOCK_SCHED], 1, {"BlockSched": [(5, 9, 7)]})
        writer.launch(identity, (1, 1, 1), (32, 1, 1), data)
    writer.write()
    write_perfetto(Trace(tmp_path / "trace"), tmp_path / "out.pftrace")
    tracks = [packet.track_descriptor for packet in seen(tmp_path / "out.pftrace").trace.packet]
    kernels = [track for track in tracks if track.name == "gemm(int*)"]
    assert len(kernels) == 2
    apart = messages.TrackDescriptor.SIBLING_MERGE_BEHAVIOR_NONE
    assert {track.sibling_merge_behavior for track in kernels} == {apart}


def test_roles_are_in_the_names_of_warps(tmp_path: Path) -> None:
    gemm(tmp_path / "trace", [BLOCK_SCHED], {"BlockSched": [(1, 9, 0)] * 4}).write()
    write_perfetto(Trace(tmp_path / "trace"), tmp_path / "out.pftrace", roles=lambda _: {1: "producer"})
    names = {path[-1] for path in seen(tmp_path / "out.pftrace").slices}
    assert names >= {"Warp 0", "Warp 1 (producer)"}


def test_sums_of_launches_are_counters(tmp_path: Path) -> None:
    sums = [(4096, 0, (1 << 64) - 1, 3, 0)]
    values = {"BlockSched": [(1000, 100, 0)], "GmemBytes": sums}
    gemm(tmp_path / "trace", [BLOCK_SCHED, GMEM_BYTES], values, threads=32, blocks=1).write()
    write_perfetto(Trace(tmp_path / "trace"), tmp_path / "out.pftrace")
    found = seen(tmp_path / "out.pftrace")
    base = found.stages[0][0]
    kernel = ("python on node", "gemm(int*)")
    assert found.counters[(*kernel, "GmemBytes.load")] == [(base, 4096), (base + 100, 0)]
    assert found.counters[(*kernel, "GmemBytes.atomic")] == [(base, float((1 << 64) - 1)), (base + 100, 0)]


def test_warps_of_two_probes_have_the_times_of_their_own_map(tmp_path: Path) -> None:
    """Of a run on the embedded device: not those of the log of another probe, which has a clock, too."""
    root = Path(__file__).resolve().parents[2]
    kernel = [str(root / "examples/patterns.ptx"), "-k", "patterns", "--grid", "3", "--block", "72"]
    probes = ["program_progress", "dmat", "warp_timeline"]
    assert probe(["try", *probes, *kernel, "--tracedir", str(tmp_path / "trace")]) == 0
    (folder,) = (tmp_path / "trace").iterdir()
    trace = Trace(folder)
    (views,) = trace.kernels[0].stacks()
    records, accesses = (views[name].valid() for name in ("WarpTimes", "GlobalAccesses"))
    written = write_perfetto(trace, tmp_path / "out.pftrace")
    found = seen(tmp_path / "out.pftrace")
    lives = [row for rows in found.slices.values() for row in rows if row.name == "WarpLifeTime"]
    lengths = sorted((records["end"] - records["begin"]).tolist())
    assert sorted(row.end - row.begin for row in lives) == lengths
    # What the log alone would give.
    assert np.ptp(accesses["clock"]) < min(lengths)
    assert written.left_out >= {"ProgramProgress", "GlobalAccesses"}
    exported = write_iket(trace, tmp_path / "out.json")
    lifetimes = read_iket(tmp_path / "out.json").launches[0].lifetimes
    assert sorted(one.end - one.begin for one in lifetimes) == lengths
    assert exported.left_out == written.left_out


def test_blocks_that_only_began_are_marks_on_their_multiprocessor(tmp_path: Path) -> None:
    """As launch_skew has them: the GPU's clock is behind by 4,500 at least, by the second launch."""
    begins = make_map("Begins", "array", "block", {"time": "u64", "sm": "u32", "cycle": "u32"})
    writer = TraceWriter(tmp_path / "trace")
    writer.kernel(1, "gemm", maps=[begins])
    for rows in ([(1000, 3, 0), (1700, 5, 0), (1200, 3, 0), (0, 0, 0)], [(9500, 5, 0), (9400, 3, 0)]):
        data = fill_regions([begins], 1, {"Begins": rows}, blocks=len(rows))
        writer.launch(1, (2, len(rows) // 2, 1), (32, 1, 1), data)
    writer.records[0]["submit_ns"], writer.records[1]["submit_ns"] = 5000, 13_900
    written = write_perfetto(Trace(writer.write()), tmp_path / "out.pftrace")
    found = seen(tmp_path / "out.pftrace")
    root = ("python on node", "gemm(int*)", "Launch 0: begins of blocks")
    assert found.marks[(*root, "SM 3")] == [(5500, "CTA(0, 0, 0)"), (5700, "CTA(0, 1, 0)")]
    assert found.marks[(*root, "SM 5")] == [(6200, "CTA(1, 0, 0)")]
    second = (*root[:2], "Launch 1: begins of blocks")
    assert found.marks[(*second, "SM 3")] == [(13_900, "CTA(1, 0, 0)")]
    assert not found.slices
    assert (written.marks, written.launches, written.without_times) == (5, 2, 0)
    assert len(written.notes()) == 1


def test_a_kernel_without_times_is_drawn_at_its_submission(tmp_path: Path) -> None:
    gemm(tmp_path / "trace", [GMEM_BYTES], {"GmemBytes": [(1, 2, 3, 4, 5)]}, blocks=1, threads=32).write()
    written = write_perfetto(Trace(tmp_path / "trace"), tmp_path / "out.pftrace")
    found = seen(tmp_path / "out.pftrace")
    assert not found.stages
    assert found.counters["python on node", "gemm(int*)", "GmemBytes.load"] == [(0, 1)]
    assert any("begin and end" in note for note in written.notes())


@settings(max_examples=40, deadline=None)
@given(st.text(min_size=1, max_size=2000) | st.text("<&\"'\x00\x1b\udc80ẞ", min_size=1, max_size=700))
def test_names_are_data(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    folder = tmp_path_factory.mktemp("names")
    gemm(folder / "trace", [BLOCK_SCHED], {"BlockSched": [(1, 1, 0)]}, blocks=1, threads=32, name=name).write()
    write_perfetto(Trace(folder / "trace"), folder / "out.pftrace")
    found = seen(folder / "out.pftrace")
    (shown,) = {path[1] for path in found.slices if len(path) == 3}
    whole = f"{name}(int*)".encode("utf-8", "backslashreplace")
    assert len(shown.encode()) <= perfetto_packets.MOST_NAME
    assert shown.encode() == whole or (len(whole) > 1000 and shown.encode().startswith(whole[:400]))
    assert shown.endswith("(int*)")


_SPANS = st.tuples(st.integers(0, 1), st.integers(0, 30), st.integers(0, 20), st.integers(0, 2))


@settings(max_examples=80, deadline=None)
@given(st.lists(_SPANS, max_size=8), st.integers(1, 3))
def test_every_range_is_drawn_once_and_nests(
    tmp_path_factory: pytest.TempPathFactory, spans: list[tuple[int, int, int, int]], most: int
) -> None:
    folder = tmp_path_factory.mktemp("ranges")
    waits = np.zeros((2, 4), WAITS.dtype)
    counts = [0, 0]
    expected = []
    for warp, begin, length, site in spans:
        if counts[warp] == 4:
            continue
        waits[warp, counts[warp]] = (1000 + begin, length, site)
        counts[warp] += 1
        expected.append((warp, f"site {site}", begin, begin + length))
    values = {"BlockSched": [(1000, 40, 0), (1000, 40, 1)], "Waits": waits, "Waits.counts": counts}
    gemm(folder / "trace", [BLOCK_SCHED, WAITS], values, threads=32).write()
    write_perfetto(Trace(folder / "trace"), folder / "out.pftrace", most=most)
    found = seen(folder / "out.pftrace")
    base = found.stages[0][0]
    drawn = []
    for path, rows in found.slices.items():
        for row in rows:
            if row.name.startswith("site"):
                drawn.append((int(path[3].split()[1]), row.name, row.begin - base, row.end - base))
    assert sorted(drawn) == sorted(expected)


def test_work_grows_with_slices_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packets are made by the thousand: calls per slice would take hours for real traces."""
    calls = {}
    for blocks in (64, 640):
        rows = np.zeros(blocks * 4, BLOCK_SCHED.dtype)
        rows["start"] = 1 + np.arange(len(rows)) // 8 * 100
        rows["elapsed"], rows["cuid"] = 90, np.arange(len(rows)) // 4 % 2
        folder = tmp_path / f"trace{blocks}"
        gemm(folder, [BLOCK_SCHED], {"BlockSched": rows}, blocks=blocks, threads=128).write()
        count = 0

        def counted(*pieces: Any, kept: Any = perfetto_packets.Form.rows, **columns: Any) -> Any:
            nonlocal count
            count += 1
            return kept(*pieces, **columns)

        with monkeypatch.context() as patched:
            patched.setattr(perfetto_packets.Form, "rows", counted)
            written = write_perfetto(Trace(folder), tmp_path / "out.pftrace")
        assert written.slices == 1 + blocks * 5
        calls[blocks] = count
        # One slot of each multiprocessor, since none of its blocks overlap.
        assert written.tracks == 1 + 1 + 1 + 1 + 2 + 2 + 2 * 4
    assert calls[64] == calls[640]


def test_numbers_have_room_or_are_refused() -> None:
    form = perfetto_packets.form(perfetto_packets.Column("time", 8, 2))
    assert form.rows(2, time=np.array([0, 16383])).tobytes() == bytes.fromhex("0a03408000 0a0340ff7f")
    with pytest.raises(ValueError, match="16384 needs more than 2 bytes"):
        form.rows(1, time=16384)


def test_texts_of_numbers() -> None:
    numbers = np.array([0, 7, 10, 4095])
    table, lengths = perfetto_packets.decimals([b"CTA(", numbers, b", ", numbers[::-1], b")"])
    shown = [bytes(row[:length]).decode() for row, length in zip(table, lengths, strict=True)]
    assert shown == ["CTA(0, 4095)", "CTA(7, 10)", "CTA(10, 7)", "CTA(4095, 0)"]


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gemm(tmp_path / "trace", [BLOCK_SCHED], {"BlockSched": [(1, 1, 0)]}, blocks=1, threads=32).write()
    monkeypatch.setattr(perfetto._Writer, "_piece", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(OSError, match="No space left"):
        write_perfetto(Trace(tmp_path / "trace"), tmp_path / "out.pftrace")
    assert not re.findall(r"out", " ".join(path.name for path in tmp_path.iterdir()))


def test_memory_does_not_grow_with_the_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The warps of some multiprocessors are held at a time, with their ranges: four times as many take no more."""
    monkeypatch.setattr("neutrino.tracing.timeline._READ", 1000)
    monkeypatch.setattr("neutrino.tracing.recorded.MOST_RECORDS", 1000)
    peaks = {}
    for blocks in (1500, 6000):
        rows = np.zeros((blocks, 4), BLOCK_SCHED.dtype)
        rows["start"], rows["elapsed"] = 1 + np.arange(blocks)[:, None] // 64 * 100, 90
        # More multiprocessors, since one's warps are held together.
        rows["cuid"] = (np.arange(blocks) % (blocks // 25))[:, None]
        waits = np.zeros((blocks, 4, 4), WAITS.dtype)
        waits["start"], waits["elapsed"] = rows["start"][..., None] + 5 * np.arange(4), 4
        values = {"BlockSched": rows, "Waits": waits, "Waits.counts": np.full((blocks, 4), 4)}
        folder = tmp_path / f"trace{blocks}"
        gemm(folder, [BLOCK_SCHED, WAITS], values, blocks=blocks, threads=128).write()
        trace = Trace(folder)
        tracemalloc.start()
        written = write_perfetto(trace, tmp_path / "out.pftrace", most=4000)
        _, peaks[blocks] = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert written.slices == 1 + blocks * (1 + 4 + 16)
    assert peaks[6000] < 1.25 * peaks[1500]
