"""A trace as a file for Perfetto's viewer: kernel → launch → multiprocessor → block → warp, with what each marked.

Blocks that were on a multiprocessor at once are in its slots, of which each has a track for each warp, so there are no
more tracks than warps that are there at once. Each launch is also an event of the GPU, with the number that the host's
submission has. What is written is bounded in memory: the warps of some multiprocessors at a time.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from neutrino.errors import TraceError
from neutrino.late_dataclass import dataclass
from neutrino.maps.declaration import Map, Report
from neutrino.tracing import perfetto_packets as pb
from neutrino.tracing.block_begins import BlockBegins, begins_map, block_begins
from neutrino.tracing.perfetto_packets import Column
from neutrino.tracing.residency import slots_of
from neutrino.tracing.timeline import (
    LATEST,
    MOST_WARPS,
    LaunchTimeline,
    Lifetimes,
    Names,
    Piece,
    Ranges,
    Unit,
    paired,
    stable_order,
    timelines,
)
from neutrino.tracing.trace import Clock, Trace, TraceKernel

Array = npt.NDArray[Any]
LIFETIME, WAVE_LIFETIME, UNCLOSED = "WarpLifeTime", "Wave Span", " (unclosed)"
"""Names of the slices of NVIDIA's and AMD's warps; what follows the name of a slice without an end."""
_LIFETIMES = (LIFETIME, LIFETIME + UNCLOSED, WAVE_LIFETIME, WAVE_LIFETIME + UNCLOSED)
"""The first interned names, from 1; those of ranges follow, each with and without an end."""
_RANGES = len(_LIFETIMES) + 1
_SEQUENCE = pb.number(pb.SEQUENCE, 1) + pb.number(pb.SEQUENCE_FLAGS, pb.NEEDS_STATE)
_MONOTONIC, _REALTIME, _BOOTTIME = 3, 1, 6
"""Clocks of Perfetto."""
_COMPUTE = 2
_APIS = {"sm": 4, "gf": 5}
"""Perfetto's numbers of CUDA and HIP, by how the architecture's name begins."""
_TIME_BITS, _KEY_BITS = 38, 22
"""Of times in a piece of a launch, and of numbers of tracks, that are sorted as one number."""
_ROWS = 1 << 15
"""Packets that are made at once."""
_KEPT_LAUNCHES = 1 << 12
"""Launches whose measures are kept between the two times that they are asked for."""
_TRACK = Column("track", pb.EVENT_TRACK, 5)
_TIME = Column("time", pb.TIMESTAMP)
_NAME = Column("name", pb.EVENT_NAME_IID, 3)


def _event(*pieces: pb.Piece, kind: bytes | Column) -> pb.Form:
    """Return the form of a track's event. kind: its type. pieces: further fields of it."""
    return pb.form(_TIME, _SEQUENCE, event=(pb.TRACK_EVENT, (kind, _TRACK, *pieces)))


_KIND = Column("kind", pb.EVENT_TYPE, 1)
_EVENT = _event(_NAME, kind=_KIND)
_BEGIN = _event(_NAME, kind=pb.number(pb.EVENT_TYPE, pb.SLICE_BEGIN))
_END = _event(kind=pb.number(pb.EVENT_TYPE, pb.SLICE_END))
_PAYLOAD_NAME = pb.text(pb.ARGUMENT_NAME, "payload")


def _with_payload(value: Column) -> pb.Form:
    """Return the form of an event with a number as its argument ``payload``."""
    size = len(_PAYLOAD_NAME) + len(pb.varint(value.field << 3)) + (8 if value.is_fixed else value.width)
    head = pb.varint(pb.EVENT_ARGUMENT << 3 | 2) + pb.varint(size) + _PAYLOAD_NAME
    return _event(_NAME, head, value, kind=_KIND)


_INTEGER_EVENT = _with_payload(Column("payload", pb.ARGUMENT_INT, 10))
_UNSIGNED_EVENT = _with_payload(Column("payload", pb.ARGUMENT_UINT, 10))
_FRACTION_EVENT = _with_payload(Column("payload", pb.ARGUMENT_DOUBLE, is_fixed=True))
_BLOCK = pb.named_form(
    _TIME, _SEQUENCE, message=pb.TRACK_EVENT, inner=(pb.number(pb.EVENT_TYPE, pb.SLICE_BEGIN), _TRACK),
    name=pb.EVENT_NAME,
)  # fmt: skip
_BEGUN = pb.named_form(
    _TIME, _SEQUENCE, message=pb.TRACK_EVENT, inner=(pb.number(pb.EVENT_TYPE, pb.INSTANT), _TRACK), name=pb.EVENT_NAME
)  # fmt: skip
_TRACKS = (Column("uuid", pb.TRACK_UUID, 5), Column("parent", pb.TRACK_PARENT, 5))


@dataclass
class Written:
    """What a file for Perfetto has. slices: with begin and end. left_out: maps whose times are of another clock than
    the warps'. without_times: kernels of which nothing tells when warps ran in any launch."""

    launches: int = 0
    slices: int = 0
    marks: int = 0
    tracks: int = 0
    unclosed: int = 0
    units: set[Unit] = field(default_factory=set)
    left_out: set[str] = field(default_factory=set)
    without_times: int = 0

    def notes(self) -> list[str]:
        """Return what a reader of the picture must know, a sentence each."""
        notes = []
        if Unit.CYCLES in self.units:
            notes.append(
                "times within a launch are cycles, drawn as one nanosecond each; each multiprocessor begins with its "
                "own first warp, since their clocks have no common zero: the probe warp_timeline has nanoseconds"
            )
        if Unit.STEPS in self.units:
            notes.append("times within a launch are steps of the embedded device: an order, no durations")
        if Unit.NS in self.units:
            notes.append(
                "the GPU's clock is moved so that no launch begins before it was submitted; how much later one began "
                "than it is drawn is not known"
            )
        if self.unclosed:
            notes.append(f"{self.unclosed:,} slices have no end in the trace: they are marked (unclosed)")
        if self.left_out:
            names = ", ".join(sorted(self.left_out))
            notes.append(f"{names}: left out, since no map tells the warps' times by its clock")
        if self.without_times:
            what = "kernel has" if self.without_times == 1 else "kernels have"
            notes.append(
                f"{self.without_times:,} {what} no record that tells when warps ran (begin and end, or start and "
                "elapsed, of each warp, or marks of its entry): their launches are drawn at their submission"
            )
        return notes


def write_perfetto(
    trace: Trace,
    path: str | Path,
    kernels: Sequence[TraceKernel] | None = None,
    launches: range | None = None,
    roles: Callable[[TraceKernel], Mapping[int, str]] | None = None,
    *,
    most: int = MOST_WARPS,
) -> Written:
    """Write a file that ui.perfetto.dev opens; compressed if its name ends in ``.gz``. Returns what is in it.

    kernels: all by default. launches: by their numbers, all by default. roles: what the warps of a kernel's blocks do,
    by their numbers in the block. most: warps that are held at once. Raises OSError if the file cannot be written, and
    TraceError for damaged data.
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with part.open("wb") as raw:
            if target.suffix == ".gz":
                # Level 3 is twice as fast as the default, and the file hardly larger.
                with gzip.GzipFile("", "wb", 3, raw, mtime=0) as packed:
                    written = _Writer(trace, packed, roles, most).write(kernels, launches)
            else:
                written = _Writer(trace, raw, roles, most).write(kernels, launches)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return written


class _Writer:
    """Writes one trace."""

    def __init__(
        self, trace: Trace, file: IO[bytes] | gzip.GzipFile,
        roles: Callable[[TraceKernel], Mapping[int, str]] | None, most: int,
    ) -> None:  # fmt: skip
        """Prepare to write packets to a file."""
        self._trace, self._file, self._most = trace, file, most
        self._roles_of = roles
        self._roles: dict[int, Mapping[int, str]] = {}
        self._names = Names()
        self._known_names = 0
        self._next_track = 1
        self._tracks: dict[Any, int] = {}
        self._queues: dict[tuple[int, int], int] = {}
        self._contexts: dict[int, int] = {}
        self._last_of_queue: dict[tuple[int, int], tuple[int, int]] = {}
        self._written = Written()
        self._kernels = {kernel.id: kernel for kernel in trace.kernels}
        self._totals: dict[int, tuple[Map, ...]] = {}

    def write(self, kernels: Sequence[TraceKernel] | None, launches: range | None) -> Written:
        """Write all packets."""
        chosen = list(self._trace.kernels if kernels is None else kernels)
        self._head()
        timed: set[int] = set()
        offsets, kept = self._offsets(chosen, launches)
        for launch in kept or timelines(self._trace, chosen, self._names, launches):
            if launch.span.warps:
                timed.add(launch.number)
                self._launch(launch, offsets.get(int(launch.record["device"])))
        for kernel in chosen:
            numbers = kernel.written_numbers(launches).tolist()
            rest = [number for number in numbers if number not in timed]
            is_known = len(rest) < len(numbers)
            for number in rest:
                self._submission(number, kernel)
                begin, before = int(self._trace.launches["submit_ns"][number]), self._written.launches
                for begun in block_begins(kernel, np.array([number])):
                    is_known, begin = True, self._begins(begun, kernel, begin, offsets)
                self._written.launches += self._written.launches == before  # drawn at its submission
                self._counters(kernel, number, begin, None)
            self._written.without_times += bool(numbers) and not is_known
        return self._written

    def _put(self, *fields: bytes) -> None:
        """Write a packet of the sequence that has the names."""
        self._file.write(pb.packet(_SEQUENCE, *fields))

    def _head(self) -> None:
        """Write the clocks, the GPUs and the process."""
        trace = self._trace
        begin = trace._launches.monotonic_ns
        clocks = [
            pb.data(1, pb.number(1, clock) + pb.number(2, time))
            for clock, time in (
                (_BOOTTIME, begin), (_MONOTONIC, begin), (_REALTIME, round(trace.started * 1e9)),
            )
        ]  # fmt: skip
        snapshot = pb.data(pb.CLOCK_SNAPSHOT, b"".join(clocks) + pb.number(2, _MONOTONIC))
        self._file.write(pb.packet(pb.number(pb.TIMESTAMP, begin), pb.number(pb.SEQUENCE, 1), snapshot))
        interned = b"".join(pb.data(2, pb.number(1, iid) + pb.text(2, name)) for iid, name in enumerate(_LIFETIMES, 1))
        interned += pb.data(24, pb.number(1, 1) + pb.text(2, "Kernel") + pb.number(4, _COMPUTE))
        self._file.write(pb.packet(
            pb.number(pb.SEQUENCE, 1), pb.number(pb.SEQUENCE_FLAGS, pb.STATE_CLEARED),
            pb.data(pb.INTERNED_DATA, interned), pb.data(pb.DEFAULTS, pb.number(58, _MONOTONIC)),
        ))  # fmt: skip
        gpus = b""
        for device in trace.devices:
            name, arch = str(device.get("name", "")), str(device.get("arch", ""))
            vendor = "NVIDIA" if arch.startswith("sm") else "AMD" if arch.startswith("gfx") else ""
            gpus += pb.data(1, pb.text(1, name) + pb.text(2, vendor) + pb.text(3, name) + pb.text(4, arch))
        if gpus:
            self._put(pb.data(pb.GPU_INFO, gpus))
        words = trace.process.get("argv")
        command = [str(word) for word in words] if isinstance(words, list) else []
        pid = self._pid()
        process = pb.number(1, pid) + b"".join(pb.text(2, word) for word in command[:100])
        process += pb.text(6, f"{command[0] if command else 'program'} on {trace.process.get('host', '?')}")
        self._process = self._track((), "", 0, more=pb.data(3, process))

    def _pid(self) -> int:
        """Return the process's number; 1 where the trace does not say it."""
        pid = self._trace.process.get("pid")
        return pid if isinstance(pid, int) and 0 < pid < 1 << 31 else 1

    def _track(self, key: Any, name: str, parent: int, rank: int | None = None, more: bytes = b"") -> int:
        """Return the track with a key, which is described the first time. rank: among its parent's. more: fields."""
        known = self._tracks.get(key)
        if known is not None:
            return known
        uuid = self._tracks[key] = self._new_tracks(1)
        fields = pb.number(pb.TRACK_UUID, uuid)
        if parent:
            fields += pb.number(pb.TRACK_PARENT, parent)
        if name:
            fields += pb.text(pb.TRACK_NAME, name)
        if rank is not None:
            fields += pb.number(pb.TRACK_RANK, rank)
        fields += pb.number(pb.TRACK_ORDERING, pb.BY_RANK)
        self._put(pb.data(pb.TRACK_DESCRIPTOR, fields + more))
        return uuid

    def _new_tracks(self, count: int) -> int:
        """Return the first of so many new numbers of tracks."""
        first = self._next_track
        self._next_track += count
        self._written.tracks += count
        return first

    def _offsets(
        self, kernels: Sequence[TraceKernel], launches: range | None
    ) -> tuple[dict[int, int], list[LaunchTimeline]]:
        """Return for each device what is added to its nanoseconds: the least number by which no launch begins before
        it was submitted; and the launches, if they are few enough to be kept."""
        offsets: dict[int, int] = {}
        kept: list[LaunchTimeline] | None = []
        for launch in timelines(self._trace, kernels, self._names, launches):
            if launch.unit is Unit.NS and launch.span.warps:
                device = int(launch.record["device"])
                late = int(launch.record["submit_ns"]) - launch.span.begin
                offsets[device] = max(offsets.get(device, late), late)
            if kept is not None:
                kept.append(launch)
                kept = kept if len(kept) <= _KEPT_LAUNCHES else None
        for kernel in kernels if self._trace.clock is not Clock.STEPS else ():
            for begun in block_begins(kernel, kernel.written_numbers(launches)) if begins_map(kernel) else ():
                record = self._trace.launches[begun.number]
                device, late = int(record["device"]), int(record["submit_ns"]) - begun.first
                offsets[device] = max(offsets.get(device, late), late)
        return offsets, kept or []

    def _launch(self, launch: LaunchTimeline, offset: int | None) -> None:
        """Write a launch: its event of the GPU, its submission, its tracks and what is on them."""
        written, kernel, record = self._written, launch.kernel, launch.record
        span = launch.span
        queue = (int(record["context"]), int(record["stream"]))
        before, free = self._last_of_queue.get(queue, (0, 0))
        if launch.unit is Unit.NS and offset is not None:
            begin = span.begin + offset
        else:
            # Nothing tells when it began: after it was submitted, and after the launch before it in its stream.
            begin = max(int(record["submit_ns"]), free)
        begin = min(max(begin, 0), LATEST)
        self._last_of_queue[queue] = (launch.number + 1, begin + span.duration)
        written.launches += 1
        written.units.add(launch.unit)
        written.left_out.update(launch.sources.left_out)
        self._submission(launch.number, kernel)
        self._stage(launch, begin, before, queue)

        parent = self._kernel_track(kernel)
        track = self._track(("launch", launch.number), f"Launch {launch.number}", parent, launch.number & 0x7FFFFFFF)
        grid, block = (tuple(map(int, record[name])) for name in ("grid", "block"))
        facts: dict[str, int | str] = {
            "grid": "x".join(map(str, grid)), "block": "x".join(map(str, block)), "shared": int(record["shared"]),
            "stream": f"{queue[1]:#x}", "unit": launch.unit.value, "duration": span.duration,
            "warps": span.warps, "warps_without_times": span.missing,
        }  # fmt: skip
        arguments = b"".join(pb.argument(name, value) for name, value in facts.items())
        event = pb.number(pb.EVENT_TYPE, pb.SLICE_BEGIN) + pb.number(pb.EVENT_TRACK, track)
        event += pb.text(pb.EVENT_NAME, f"Launch {launch.number}") + arguments
        event += pb.number(pb.EVENT_CORRELATION, launch.number + 1)
        event += pb.fixed64(pb.EVENT_ENDING_FLOWS, launch.number + 1)
        self._put(pb.number(pb.TIMESTAMP, begin), pb.data(pb.TRACK_EVENT, event))
        ended = pb.number(pb.EVENT_TYPE, pb.SLICE_END) + pb.number(pb.EVENT_TRACK, track)
        self._put(pb.number(pb.TIMESTAMP, begin + span.duration), pb.data(pb.TRACK_EVENT, ended))
        written.slices += 1
        self._counters(kernel, launch.number, begin, begin + span.duration)
        if kernel.id not in self._roles:
            self._roles[kernel.id] = self._roles_of(kernel) if self._roles_of else {}
        for piece in launch.pieces(self._most):
            self._intern()
            self._piece(launch, piece, begin, track)
        del self._tracks["launch", launch.number]

    def _begins(self, begun: BlockBegins, kernel: TraceKernel, submitted: int, offsets: Mapping[int, int]) -> int:
        """Write when each block of a launch began, of which nothing else is known; return the launch's begin.

        submitted: when it was. offsets: of the devices' clocks.
        """
        record = self._trace.launches[begun.number]
        offset = offsets.get(int(record["device"]))
        begin = min(max(submitted if offset is None else begun.first + offset, 0), LATEST)
        self._written.units.add(Unit.STEPS if self._trace.clock is Clock.STEPS else Unit.NS)
        self._written.launches += 1
        self._written.marks += len(begun.block)
        number = begun.number
        parent = self._track(
            ("launch", number), f"Launch {number}: begins of blocks", self._kernel_track(kernel), number & 0x7FFFFFFF
        )
        is_amd = _is_amd(kernel)
        sms, sm_of = np.unique(begun.sm, return_inverse=True)
        first = self._new_tracks(len(sms))
        for index, sm in enumerate(sms.tolist()):
            ids = pb.number(pb.TRACK_UUID, first + index) + pb.number(pb.TRACK_PARENT, parent)
            self._put(pb.data(pb.TRACK_DESCRIPTOR, ids + _described(f"{'CU' if is_amd else 'SM'} {sm}", sm)))
        x, y, _ = (int(size) for size in record["grid"])
        for at in range(0, len(begun.block), _ROWS):
            block, track = begun.block[at : at + _ROWS], first + sm_of.reshape(-1)[at : at + _ROWS]
            names, lengths = pb.decimals(
                [b"WG(" if is_amd else b"CTA(", block % x, b", ", block // x % y, b", ", block // (x * y), b")"]
            )
            times = begin + begun.since[at : at + _ROWS]
            self._file.write(pb.joined(_BEGUN.rows(names, lengths, time=times, track=track)))
        del self._tracks["launch", number]
        return begin

    def _kernel_track(self, kernel: TraceKernel) -> int:
        """Return the track of a kernel."""
        return self._track(
            ("kernel", kernel.id), kernel.demangled, self._process, kernel.id & 0x7FFFFFFF,
            # A viewer would draw kernels of one name on one track.
            pb.text(pb.TRACK_DESCRIPTION, kernel.name) + pb.number(pb.TRACK_MERGING, pb.NOT_MERGED),
        )  # fmt: skip

    def _submission(self, number: int, kernel: TraceKernel) -> None:
        """Write that the host submitted a launch."""
        record = self._trace.launches[number]
        thread = int(record["thread"])
        track = self._track(("thread", thread), f"Submissions of thread {thread}", self._process)
        event = pb.number(pb.EVENT_TYPE, pb.INSTANT) + pb.number(pb.EVENT_TRACK, track)
        event += pb.text(pb.EVENT_NAME, f"launch {kernel.demangled}") + pb.argument("launch", number)
        event += pb.number(pb.EVENT_CORRELATION, number + 1) + pb.fixed64(pb.EVENT_FLOWS, number + 1)
        self._put(pb.number(pb.TIMESTAMP, int(record["submit_ns"])), pb.data(pb.TRACK_EVENT, event))

    def _stage(self, launch: LaunchTimeline, begin: int, before: int, queue: tuple[int, int]) -> None:
        """Write a launch as an event of the GPU. before: the event of the one before it in its stream, 0 for none."""
        record = launch.record
        interned = b""
        if queue[0] not in self._contexts:
            number = self._contexts[queue[0]] = len(self._contexts) + 1
            arch = str(self._trace.devices[0].get("arch", "")) if self._trace.devices else ""
            api = _APIS.get(arch[:2], 0)
            interned += pb.data(23, pb.number(1, number) + pb.number(2, self._pid()) + pb.number(3, api))
        if queue not in self._queues:
            number = self._queues[queue] = len(self._queues) + 2
            interned += pb.data(24, pb.number(1, number) + pb.text(2, f"Stream {queue[1]:#x}") + pb.number(4, _COMPUTE))
        if interned:
            self._put(pb.data(pb.INTERNED_DATA, interned))
        sizes = b"".join(
            pb.data(number, b"".join(pb.number(axis, int(size)) for axis, size in enumerate(record[name], 1)))
            for number, name in ((1, "grid"), (2, "block"))
        )
        facts = {"kernel": launch.kernel.demangled, "unit": launch.unit.value}
        event = pb.number(1, launch.number + 1) + pb.number(2, launch.span.duration)
        event += pb.number(13, self._queues[queue]) + pb.number(14, 1) + pb.number(11, int(record["device"]))
        event += pb.number(5, self._contexts[queue[0]]) + pb.number(10, (launch.number + 1) & 0xFFFFFFFF)
        event += pb.text(17, launch.kernel.demangled) + pb.data(21, sizes)
        event += b"".join(pb.data(6, pb.text(1, name) + pb.text(2, value)) for name, value in facts.items())
        if before:
            event += pb.number(18, before)
        self._put(pb.number(pb.TIMESTAMP, begin), pb.data(pb.GPU_RENDER_STAGE, event))

    def _counters(self, kernel: TraceKernel, number: int, begin: int, end: int | None) -> None:
        """Write what a launch added up, from its begin on, and zeros at its end where that is known."""
        if kernel.id not in self._totals:
            maps = kernel.manifest.probed_maps if kernel.manifest else ()
            self._totals[kernel.id] = tuple(
                entry for entry in maps if entry.kind.report is Report.TOTALS and not entry.per.has_rows
                and entry.per.value == "launch"
            )  # fmt: skip
        if not self._totals[kernel.id]:
            return
        ((_, views),) = kernel.numbered_stacks(np.array([number]), is_checked=True)
        for entry in self._totals[kernel.id]:
            rows = views[entry.name].valid()
            for name in rows.dtype.names or ():
                value = rows[name][0].item()
                key = ("counter", kernel.id, entry.name, name)
                track = self._track(
                    key, f"{entry.name}.{name}", self._kernel_track(kernel), more=pb.data(pb.TRACK_COUNTER, b"")
                )
                for time, shown in ((begin, value), (end, 0)):
                    if time is None:
                        continue
                    is_whole = isinstance(shown, int) and -(1 << 63) <= shown < 1 << 63
                    encoded = (
                        pb.number(pb.EVENT_COUNT, shown) if is_whole else pb.double(pb.EVENT_DOUBLE_COUNT, float(shown))
                    )
                    event = pb.number(pb.EVENT_TYPE, pb.COUNTER) + pb.number(pb.EVENT_TRACK, track) + encoded
                    self._put(pb.number(pb.TIMESTAMP, time), pb.data(pb.TRACK_EVENT, event))

    def _intern(self) -> None:
        """Write the names of ranges that are new, and of the same without an end."""
        texts = self._names.texts
        if len(texts) > 1 << 19:
            raise TraceError(f"{self._trace.path}: {len(texts):,} different names of ranges, which are no names")
        parts = []
        for at in range(self._known_names, len(texts)):
            for offset, ending in ((0, ""), (1, UNCLOSED)):
                parts.append(pb.data(2, pb.number(1, _RANGES + 2 * at + offset) + pb.text(2, texts[at] + ending)))
        self._known_names = len(texts)
        if parts:
            self._put(pb.data(pb.INTERNED_DATA, b"".join(parts)))

    def _piece(self, launch: LaunchTimeline, piece: Piece, begin: int, parent: int) -> None:
        """Write the warps of some multiprocessors. begin: of the launch. parent: its track."""
        part, warps = piece.lifetimes, launch.warps
        if not len(part):
            return
        is_amd = _is_amd(launch.kernel)
        # The blocks, by their warps, which are in order.
        block = part.warp // warps
        starts = np.flatnonzero(np.append(True, block[1:] != block[:-1]))
        blocks, owner = block[starts], part.sm[starts]
        first, last = np.minimum.reduceat(part.begin, starts), np.maximum.reduceat(part.end, starts)
        slots = slots_of(owner, first, last)
        sms, sm_of = np.unique(owner, return_inverse=True)
        per_sm = int(slots.max()) + 1
        places = sm_of.reshape(-1) * per_sm + slots
        used, place_of = np.unique(places, return_inverse=True)
        place_of = place_of.reshape(-1)
        slot_tracks, warp_tracks = self._describe(launch, parent, sms, used, per_sm)

        # The blocks.
        grid = launch.record["grid"].astype(np.int64)
        order = np.lexsort((last, first))
        for at in range(0, len(order), _ROWS):
            some = order[at : at + _ROWS]
            x, y, z = blocks[some] % grid[0], blocks[some] // grid[0] % grid[1], blocks[some] // (grid[0] * grid[1])
            names, lengths = pb.decimals([b"WG(" if is_amd else b"CTA(", x, b", ", y, b", ", z, b")"])
            tracks = slot_tracks + place_of[some]
            ends = _END.rows(len(some), time=begin + last[some], track=tracks)
            self._file.write(pb.joined(
                _BLOCK.rows(names, lengths, time=begin + first[some], track=tracks), (ends, np.ones(ends.shape, bool))
            ))  # fmt: skip
        self._written.slices += len(order)
        counts = np.diff(np.append(starts, len(block)))
        tracks = warp_tracks + np.repeat(place_of, counts) * warps + part.warp % warps
        self._warps(part, piece.ranges, tracks, begin, is_amd)

    def _describe(self, launch: LaunchTimeline, parent: int, sms: Array, used: Array, per_sm: int) -> tuple[int, int]:
        """Describe the tracks of multiprocessors, of their slots and of the warps there.

        sms: numbers of the multiprocessors. used: of all slots, those with blocks: index in sms · per_sm + slot.
        Returns the first track of the slots, and of their warps.
        """
        warps, roles = launch.warps, self._roles[launch.kernel.id]
        prefix, short, place = ("CU", "Wave", "WG slot") if _is_amd(launch.kernel) else ("SM", "Warp", "CTA slot")
        sm_tracks = self._new_tracks(len(sms))
        for index, sm in enumerate(sms.tolist()):
            ids = pb.number(pb.TRACK_UUID, sm_tracks + index) + pb.number(pb.TRACK_PARENT, parent)
            name = f"{prefix} {sm}" if sm >= 0 else f"{prefix} not known"
            self._put(pb.data(pb.TRACK_DESCRIPTOR, ids + _described(name, max(sm, 0))))
        slot_tracks = self._new_tracks(len(used))
        warp_tracks = self._new_tracks(len(used) * warps)
        uuids = slot_tracks + np.arange(len(used))
        slots = used % per_sm
        for slot in np.unique(slots).tolist():
            mask = slots == slot
            form = _track_form(f"{place} {slot}", slot)
            rows = form.rows(int(mask.sum()), uuid=uuids[mask], parent=sm_tracks + used[mask] // per_sm)
            self._file.write(rows.tobytes())
        for warp in range(warps):
            form = _track_form(f"{short} {warp}" + (f" ({roles[warp]})" if warp in roles else ""), warp)
            rows = form.rows(len(used), uuid=warp_tracks + np.arange(len(used)) * warps + warp, parent=uuids)
            self._file.write(rows.tobytes())
        return slot_tracks, warp_tracks

    def _warps(
        self, part: Lifetimes, ranges: Sequence[Ranges], tracks: Array, begin: int, is_amd: bool
    ) -> None:
        """Write the slices of warps and of what is on them. tracks: of each warp."""
        open_name = np.where(part.is_open, 2, 1) + 2 * is_amd
        self._written.slices += len(part)
        self._written.unclosed += int(part.is_open.sum())
        if not ranges:
            # Of a track's warps that begin at one time, those without length come first.
            order = stable_order(2 * part.begin + (part.end > part.begin))
            for at in range(0, len(order), _ROWS):
                some = order[at : at + _ROWS]
                begins = _BEGIN.rows(len(some), time=begin + part.begin[some], track=tracks[some], name=open_name[some])
                ends = _END.rows(len(some), time=begin + part.end[some], track=tracks[some])
                self._file.write(np.concatenate([begins, ends], axis=1).tobytes())
            return
        events = _Events.of(part, ranges, tracks, open_name)
        for inner in ranges:
            self._written.slices += 0 if inner.is_mark else len(inner.row)
            self._written.marks += len(inner.row) if inner.is_mark else 0
            self._written.unclosed += int(inner.is_open.sum())
        # Tracks of their own for what does not nest.
        tracks = events.track
        if len(events.aside):
            extra = self._new_tracks(events.extra_tracks)
            form = _track_form("overlapping ranges", 0)
            self._file.write(form.rows(
                events.extra_tracks, uuid=extra + np.arange(events.extra_tracks), parent=events.extra_parents
            ).tobytes())  # fmt: skip
            tracks = tracks.copy()
            tracks[events.aside] = extra + events.extra_of
        for rows in events.rows(tracks, begin):
            self._file.write(rows)


def _is_amd(kernel: TraceKernel) -> bool:
    """Whether a kernel is AMD's, which has other names for the same things."""
    return bool(kernel.manifest and kernel.manifest.arch.startswith("gfx"))


@lru_cache(maxsize=4096)
def _track_form(name: str, rank: int) -> pb.Form:
    """Return the form of descriptions of tracks with one name and one rank among their parents' tracks."""
    return pb.form(_SEQUENCE, track=(pb.TRACK_DESCRIPTOR, (*_TRACKS, _described(name, rank))))


@lru_cache(maxsize=4096)
def _described(name: str, rank: int) -> bytes:
    """Return the fields of a track that tell its name, its rank among its parent's, and that its own have ranks."""
    return pb.text(pb.TRACK_NAME, name) + pb.number(pb.TRACK_RANK, rank) + pb.number(pb.TRACK_ORDERING, pb.BY_RANK)


@dataclass(frozen=True)
class _Events:
    """The slices and marks of some warps, those on one track nested. All arrays ``[slice]``: track, begin, end, name.

    key: what nests on each other. aside: slices that cross others, or a warp's time, and need a track of their own:
    extra_of is its number, and extra_parents the tracks that these belong to.
    """

    track: Array
    key: Array
    begin: Array
    end: Array
    name: Array
    is_mark: Array
    payload: Array
    payload_kind: Array
    aside: Array
    extra_of: Array
    extra_parents: Array

    @property
    def extra_tracks(self) -> int:
        """How many further tracks are needed."""
        return len(self.extra_parents)

    @staticmethod
    def of(part: Lifetimes, ranges: Sequence[Ranges], tracks: Array, open_name: Array) -> _Events:
        """Put the lifetimes of warps and their ranges together."""
        rows = np.concatenate([np.arange(len(part)), *(inner.row for inner in ranges)])
        begin = np.concatenate([part.begin, *(inner.begin for inner in ranges)])
        end = np.concatenate([part.end, *(inner.end for inner in ranges)])
        name = np.concatenate([open_name, *(_RANGES + 2 * inner.name + inner.is_open for inner in ranges)])
        marks = [np.full(len(inner.row), inner.is_mark) for inner in ranges]
        is_mark = np.concatenate([np.zeros(len(part), bool), *marks])
        bits, kinds = [np.zeros(len(part), np.uint64)], [np.zeros(len(part), np.int8)]
        for inner in ranges:
            kind = inner.payload.dtype.kind
            wide = inner.payload.astype({"f": np.float64, "u": np.uint64}.get(kind, np.int64))
            bits.append(wide.view(np.uint64))
            number = {"u": 2, "f": 3}.get(kind, 1) if inner.has_payload else 0
            kinds.append(np.full(len(inner.row), number, np.int8))
        outside = (begin < part.begin[rows]) | (end > part.end[rows])
        # Those that are within the warp's time nest on it.
        slices = np.flatnonzero(~is_mark & ~outside & (np.arange(len(rows)) >= len(part)))
        crossed = slices[crossing(rows[slices], begin[slices], end[slices])]
        aside = np.union1d(np.flatnonzero(outside & ~is_mark), crossed)
        extra = slots_of(rows[aside], begin[aside], end[aside])
        pairs = np.stack([rows[aside], extra])
        needed, extra_of = np.unique(pairs, axis=1, return_inverse=True)
        return _Events(
            tracks[rows], rows, begin, end, name, is_mark, np.concatenate(bits), np.concatenate(kinds), aside,
            extra_of.reshape(-1), tracks[needed[0]] if len(aside) else np.zeros(0, np.int64),
        )  # fmt: skip

    def rows(self, tracks: Array, origin: int) -> Iterator[bytes]:
        """Yield the packets of all slices and marks, in an order in which those of a track nest."""
        which, is_begin = ordered(tracks, self.begin, self.end, self.is_mark)
        for at in range(0, len(which), _ROWS):
            some, opens = which[at : at + _ROWS], is_begin[at : at + _ROWS]
            time = origin + np.where(opens, self.begin[some], self.end[some])
            kind = np.where(self.is_mark[some], pb.INSTANT, np.where(opens, pb.SLICE_BEGIN, pb.SLICE_END))
            forms = np.where(opens, self.payload_kind[some], 0)
            groups = []
            for number, form in enumerate((_EVENT, _INTEGER_EVENT, _UNSIGNED_EVENT, _FRACTION_EVENT)):
                here = np.flatnonzero(forms == number)
                if not len(here):
                    continue
                it = some[here]
                columns = {"time": time[here], "kind": kind[here], "track": tracks[it], "name": self.name[it]}
                if number:
                    columns["payload"] = self.payload[it]
                groups.append((here, form.rows(len(here), **columns)))
            yield pb.mixed(*groups)


def ordered(keys: Array, begins: Array, ends: Array, is_mark: Array) -> tuple[Array, Array]:
    """Return the begins and ends of intervals in an order in which those of one key nest where they can: the index of
    the interval, and whether it is its begin. A mark has a begin alone.

    At one time, ends come first, of the latest begun; then begins, of the longest; then intervals without length.
    """
    count = len(keys)
    rank = np.empty(count, np.int64)
    rank[np.lexsort((-ends, begins))] = np.arange(count)
    is_point = begins == ends
    which = np.concatenate([np.arange(count), np.flatnonzero(~is_mark)])
    is_begin = np.arange(len(which)) < count
    point = is_point[which]
    phase = np.where(point, 2, is_begin)
    turn = np.where(point, 2 * rank[which] + ~is_begin, np.where(is_begin, rank[which], -rank[which]))
    times = np.where(is_begin, begins[which], ends[which])
    first = int(times.min()) if len(times) else 0
    if count and (int(times.max()) - first) >> _TIME_BITS == 0 and int(keys.max()) >> _KEY_BITS == 0:
        # One number in place of three, which is sorted in a third of the time.
        order = np.lexsort((turn, (keys[which] << (_TIME_BITS + 2)) | ((times - first) << 2) | phase))
    else:
        order = np.lexsort((turn, phase, times, keys[which]))
    return which[order], is_begin[order]


def crossing(keys: Array, begins: Array, ends: Array) -> Array:
    """Return for each interval whether it overlaps another one of its key of which neither is inside the other."""

    order = np.lexsort((begins, keys))
    key, begin, end = keys[order], begins[order], ends[order]
    if ((begin[1:] >= end[:-1]) | (key[1:] != key[:-1])).all():
        # None overlap, as most.
        return np.zeros(len(keys), bool)
    which, is_begin = ordered(keys, begins, ends, np.zeros(len(keys), bool))
    first, last = paired(keys[which], is_begin)
    crossed = np.zeros(len(keys), bool)
    differs = which[first] != which[last]
    crossed[which[first[differs]]] = True
    return crossed


