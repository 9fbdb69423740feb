"""Which multiprocessor ran each block, from when to when, for the views of the schedule, of warps and of kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.page.columns import Columns
from neutrino.page.source import Blocks, Json, Source, evenly, multiprocessors_of
from neutrino.page.spans import SpanFields, Spans, by_block, read_spans, span_fields
from neutrino.tracing.summary import KernelSummary
from neutrino.tracing.trace import Clock
from neutrino.tracing.views import MapView

Array = npt.NDArray[Any]
MOST_BLOCKS = 1 << 20
"""Blocks that a page has one by one, of all launches together."""
_MOST_WARPS = 1 << 18
"""Warps that a page has one by one, of all launches together."""
_WARPS_OF_LAUNCH = 1 << 16
_MOST_LAUNCHES = 16
"""Of a kernel that are drawn."""
_MOST_TIMED = 2048
"""Launches of a kernel whose times are taken."""
GRID_COLUMNS = 1 << 13
"""Of a schedule that is too long for a page: moments of each multiprocessor."""
_MOST_CELLS = 1 << 22
_GRID_SCALE = 128
"""Of the number of blocks that are on a multiprocessor at a moment, in a grid."""


@dataclass
class _Launch:
    """What is known of a launch once its spans were read.

    of: how many multiprocessors its device has, 0 if that is not known. sms: the
    ids of those with blocks, ascending. first, last: the least begin and the greatest end on each. blocks:
    how many; busy: the sum of their times. kept: its blocks, None where they were too many to be kept.
    """

    number: int
    of: int = 0
    sms: Array = field(default_factory=lambda: np.empty(0, np.int64))
    first: Array = field(default_factory=lambda: np.empty(0, np.int64))
    last: Array = field(default_factory=lambda: np.empty(0, np.int64))
    blocks: int = 0
    busy: int = 0
    kept: list[Spans] | None = None

    def add(self, spans: Spans) -> None:
        """Add some blocks to what is known."""
        ids, place = np.unique(spans.sm, return_inverse=True)
        all_ids = np.union1d(self.sms, ids)
        first = np.full(len(all_ids), np.iinfo(np.int64).max)
        last = np.full(len(all_ids), np.iinfo(np.int64).min)
        known = np.searchsorted(all_ids, self.sms)
        first[known], last[known] = self.first, self.last
        at = np.searchsorted(all_ids, ids)[place]
        np.minimum.at(first, at, spans.begin)
        np.maximum.at(last, at, spans.end)
        self.sms, self.first, self.last = all_ids, first, last
        self.blocks += len(spans.block)
        self.busy += int((spans.end - spans.begin).sum())

    def all_sms(self) -> Array:
        """Return the ids of all multiprocessors that its device has, so that idle ones are seen; where these are not
        known, those of its own.
        """
        is_known = len(self.sms) and int(self.sms[0]) >= 0 and int(self.sms[-1]) < self.of
        return np.arange(self.of, dtype=np.int64) if is_known else self.sms

    def time(self, *, shared: bool) -> int:
        """Return how long the launch took: from the first begin to the last end; of clocks that multiprocessors do not
        share, the longest on one multiprocessor.
        """
        if not len(self.sms):
            return 0
        return int(self.last.max() - self.first.min()) if shared else int((self.last - self.first).max())


@dataclass
class _Spanned:
    """A kernel's map with spans. launches: those that were read, in the order of submission. written: how many have
    data."""

    kernel: KernelSummary
    fields: SpanFields
    shared: bool
    launches: list[_Launch]
    written: int

    def choice(self) -> list[_Launch]:
        """Return the launches to be drawn, the most telling ones first."""
        ordered = sorted(self.launches, key=lambda launch: launch.time(shared=self.shared))
        telling = [ordered[-1], ordered[len(ordered) // 2], self.launches[0], self.launches[-1], ordered[0]]
        spread = [self.launches[at] for at in evenly(len(self.launches), _MOST_LAUNCHES)]
        return list({launch.number: launch for launch in (*telling, *spread)}.values())[:_MOST_LAUNCHES]


def prepare_spans(source: Source, blocks: Blocks) -> Json:
    """Write the schedules of the launches with spans into a page; return what says where they are.

    The launches of all kernels are written by turns, until the page has enough blocks.
    """
    rows = [row for kernel in source.summary.kernels for row in _read_kernel(source, kernel)]
    # Those with most time first: they have the most room, and views begin with the first.
    rows.sort(key=lambda row: -sum(launch.time(shared=row.shared) for launch in row.launches))
    room, room_for_warps = MOST_BLOCKS, _MOST_WARPS
    documents: list[Json] = [_document(row) for row in rows]
    turns = [row.choice() for row in rows]
    for turn in range(_MOST_LAUNCHES):
        for row, chosen, document in zip(rows, turns, documents, strict=True):
            if turn >= len(chosen):
                continue
            launch = chosen[turn]
            if launch.blocks <= room:
                room -= launch.blocks
                drawn, warps = _write_exact(row, launch, blocks, min(room_for_warps, _WARPS_OF_LAUNCH))
                room_for_warps -= warps
            elif turn == 0:
                drawn = _write_grid(row, launch, blocks)
            else:
                continue
            document["drawn"].append(drawn)
    for document in documents:
        document["drawn"].sort(key=lambda drawn: drawn["launch"])
    return {"kernels": documents}


def _read_kernel(source: Source, kernel: KernelSummary) -> Iterator[_Spanned]:
    """Yield each map of a kernel that has spans, with the times of its launches."""
    trace_kernel = kernel.kernel
    manifest = trace_kernel.manifest
    for entry in manifest.probed_maps if manifest else ():
        fields = span_fields(entry)
        if fields is None:
            continue
        numbers = trace_kernel.written_numbers(source.launches)
        timed = numbers[list(evenly(len(numbers), _MOST_TIMED))]
        shared = fields.shared or source.summary.trace.clock is Clock.STEPS
        row = _Spanned(kernel, fields, shared, [], len(numbers))
        room = MOST_BLOCKS
        for number, view in _views(row, timed):
            launch = _Launch(number, multiprocessors_of(source, number), kept=[])
            for spans in map(by_block, read_spans(view, fields)):
                launch.add(spans)
                if launch.kept is not None and launch.blocks <= room:
                    launch.kept.append(spans)
                else:
                    launch.kept = None
            if launch.kept is not None:
                room -= launch.blocks
            row.launches.append(launch)
        if row.launches:
            yield row


def _views(row: _Spanned, numbers: Array) -> Iterator[tuple[int, MapView]]:
    """Yield the view of a map of each of some launches, with the launch's number. numbers: ascending."""
    name = row.fields.map.name
    for indices, views in row.kernel.kernel.numbered_stacks(numbers):
        for at, number in enumerate(indices.tolist()):
            yield number, views[name].of(at)


def _blocks_of(row: _Spanned, launch: _Launch) -> Iterator[Spans]:
    """Yield the blocks of a launch: those that were kept, else they are read again."""
    if launch.kept is not None:
        yield from launch.kept
        return
    for _, view in _views(row, np.array([launch.number])):
        yield from map(by_block, read_spans(view, row.fields))


def _document(row: _Spanned) -> Json:
    """Return what a page says of a kernel with spans, without a launch drawn."""
    times = [launch.time(shared=row.shared) for launch in row.launches]
    ordered = sorted(times)
    return {
        "kernel": row.kernel.kernel.id,
        "map": row.fields.map.name,
        "level": row.fields.map.level.value if row.fields.map.per.value == "launch" else row.fields.map.per.value,
        "shared": row.shared,
        "ns": row.fields.shared,
        "launches": row.written,
        "timed": len(times),
        "time": {
            "sum": sum(times), "min": ordered[0], "median": ordered[(len(ordered) - 1) // 2], "max": ordered[-1],
        },
        "busy": sum(launch.busy for launch in row.launches),
        "blocks": sum(launch.blocks for launch in row.launches),
        "times": [[launch.number, time] for launch, time in zip(row.launches, times, strict=True)],
        "drawn": [],
    }  # fmt: skip


def _write_exact(row: _Spanned, launch: _Launch, blocks: Blocks, most_warps: int) -> tuple[Json, int]:
    """Write every block of a launch, and the warps of as many multiprocessors as there is room for; return what says
    where they are, and how many warps were written.
    """
    parts = list(_blocks_of(row, launch))
    block, sm, begin, end, warps = (
        np.concatenate([getattr(part, name) for part in parts]) if parts else np.empty(0, np.int64)
        for name in ("block", "sm", "begin", "end", "warp")
    )
    order = np.lexsort((begin, sm))
    sm, begin, block = sm[order], begin[order], block[order]
    base = int(launch.first.min()) if len(launch.first) else 0
    columns = Columns()
    all_sms = launch.all_sms()
    first = np.zeros(len(all_sms), np.int64)
    first[np.searchsorted(all_sms, launch.sms)] = launch.first - base
    columns.add("sm", all_sms)
    columns.add("first", first)
    columns.add("count", np.searchsorted(sm, all_sms, side="right") - np.searchsorted(sm, all_sms))
    begins = np.searchsorted(sm, launch.sms)
    gaps = np.diff(begin, prepend=0)
    gaps[begins] = 0
    columns.add("gap", gaps)
    columns.add("took", (end[order] - begin))
    columns.add("block", block, differences=True)
    drawn = {
        "launch": launch.number, "kind": "exact", "block": blocks.add(columns), "base": str(base),
        "blocks": launch.blocks, "time": launch.time(shared=row.shared), "busy": launch.busy, "sms": len(launch.sms),
        "of": launch.of,
    }  # fmt: skip
    if row.fields.map.level.value == "block" and row.fields.map.per.value == "launch":
        return drawn, 0
    # The multiprocessors whose warps are written: the first ones by their ids, each with all of its warps.
    of_sm = np.bincount(np.searchsorted(launch.sms, sm), weights=warps[order], minlength=len(launch.sms))
    chosen = launch.sms[np.cumsum(of_sm) <= most_warps]
    if not len(chosen):
        return drawn, 0
    number, written = _write_warps(row, launch, blocks, chosen, base)
    return drawn | {"warps": number, "warp_sms": len(chosen), "warp_count": written}, written


def _write_warps(row: _Spanned, launch: _Launch, blocks: Blocks, chosen: Array, base: int) -> tuple[int, int]:
    """Write the warps of some multiprocessors; return the number of the block of data, and how many they are."""
    parts: list[Spans] = []
    last = int(chosen[-1])
    for _, view in _views(row, np.array([launch.number])):
        for spans in read_spans(view, row.fields):
            # They are the first ones by their ids.
            found = spans.sm <= last
            parts.append(
                Spans(spans.block[found], spans.warp[found], spans.sm[found], spans.begin[found], spans.end[found])
            )
    block, warp, sm, begin, end = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("block", "warp", "sm", "begin", "end")
    )
    order = np.lexsort((warp, begin, sm))
    columns = Columns()
    columns.add("sm", sm[order], differences=True)
    columns.add("block", block[order], differences=True)
    columns.add("warp", warp[order])
    columns.add("begin", begin[order] - base, differences=True)
    columns.add("took", end[order] - begin[order])
    return blocks.add(columns), len(order)


def _write_grid(row: _Spanned, launch: _Launch, blocks: Blocks) -> Json:
    """Write how many blocks were on each multiprocessor in each of many moments; return what says where that is.

    Each number is the mean of its moment. Moments of multiprocessors without a clock in common begin with the first
    block of each.
    """
    count = len(launch.sms)
    columns_of = max(min(GRID_COLUMNS, _MOST_CELLS // max(count, 1)), 64)
    time = max(launch.time(shared=row.shared), 1)
    scale = columns_of / time
    origin = np.full(count, launch.first.min()) if row.shared else launch.first
    # The second differences of the time that all blocks had until each moment's edge: a block adds from its begin on,
    # and takes away from its end on.
    width = columns_of + 3
    bends = np.zeros(count * width)
    for spans in _blocks_of(row, launch):
        at = np.searchsorted(launch.sms, spans.sm)
        for moments, sign in ((spans.begin, 1.0), (spans.end, -1.0)):
            place = (moments - origin[at]) * scale
            edge = np.floor(place).astype(np.int64) + 1
            late = edge - place
            index = at * width + edge
            bends += sign * np.bincount(index, weights=late, minlength=len(bends))[: len(bends)]
            bends += sign * np.bincount(index + 1, weights=1 - late, minlength=len(bends))[: len(bends)]
    until = np.cumsum(np.cumsum(bends.reshape(count, width), axis=1), axis=1)
    mean = np.diff(until, axis=1)[:, :columns_of]
    cells = np.clip(np.rint(mean * _GRID_SCALE), 0, (1 << 16) - 1).astype(np.int64)
    all_sms = launch.all_sms()
    all_cells = np.zeros((len(all_sms), columns_of), np.int64)
    all_cells[np.searchsorted(all_sms, launch.sms)] = cells
    columns = Columns()
    columns.add("sm", all_sms)
    columns.add("cells", all_cells.reshape(-1))
    return {
        "launch": launch.number, "kind": "grid", "block": blocks.add(columns), "base": str(int(launch.first.min())),
        "blocks": launch.blocks, "time": time, "busy": launch.busy, "columns": columns_of, "scale": _GRID_SCALE,
        "sms": len(launch.sms), "of": launch.of,
    }  # fmt: skip
