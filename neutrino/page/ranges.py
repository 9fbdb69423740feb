"""What warps did between their begin and end, for the view inside warps: ranges, marks, and roles of warps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.page.columns import Columns
from neutrino.page.source import Blocks, Json, Source
from neutrino.tracing.roles import roles_of
from neutrino.tracing.summary import KernelSummary
from neutrino.tracing.timeline import LaunchTimeline, Names, Piece, Ranges, Sources

Array = npt.NDArray[Any]
_MOST_EVENTS = 1 << 18
"""Ranges and marks that a page has, of all launches together."""
_MOST_RECORDS = 1 << 20
"""Of a map in a launch, so that little memory is taken."""
_MOST_OF_LAUNCH = 1 << 16
_WARPS_AT_ONCE = 1 << 12
_MOST_NAMES = 4096


def prepare_ranges(source: Source, blocks: Blocks) -> Json:
    """Write the ranges and marks of one launch of each kernel that has some into a page; return what says where they
    are. The launch is the first one with data, and its multiprocessors are the first ones by their ids.
    """
    found = []
    room = _MOST_EVENTS
    for kernel in source.summary.kernels:
        sources = _small(Sources.of(kernel.kernel), kernel)
        numbers = kernel.kernel.written_numbers(source.launches)
        if sources is None or not (sources.intervals or sources.moments) or not len(numbers) or not room:
            continue
        document, events = _launch(source, kernel, sources, int(numbers[0]), min(room, _MOST_OF_LAUNCH), blocks)
        room -= events
        if events:
            found.append(document)
    return {"kernels": found}


def _small(sources: Sources | None, kernel: KernelSummary) -> Sources | None:
    """Return what tells ranges and marks without maps that have too many records of a launch to be read at once."""
    if sources is None:
        return None
    few = {entry.name for entry in kernel.maps if entry.records <= _MOST_RECORDS * max(kernel.written, 1)}
    intervals, moments = (
        tuple(entry for entry in maps if entry.name in few) for maps in (sources.intervals, sources.moments)
    )
    large = [entry.name for entry in (*sources.intervals, *sources.moments) if entry.name not in few]
    if sources.lifetimes is None and large:
        # Marks tell when warps ran, of which none may be missing.
        return None
    return replace(sources, intervals=intervals, moments=moments, left_out=(*sources.left_out, *large))


def _launch(
    source: Source, kernel: KernelSummary, sources: Sources, number: int, most: int, blocks: Blocks
) -> tuple[Json, int]:
    """Write the ranges and marks of a launch; return what says where they are, and how many were written."""
    names = Names()
    # The numbers of frames are checked by reading one.
    for _ in kernel.kernel.stacks(np.array([number])):
        pass
    timeline = LaunchTimeline(source.summary.trace, kernel.kernel, sources, number, names)
    pieces: list[Piece] = []
    events = warps = 0
    for piece in timeline.pieces(_WARPS_AT_ONCE):
        pieces.append(piece)
        events += sum(len(ranges.row) for ranges in piece.ranges)
        warps += len(piece.lifetimes)
        if events >= most:
            break
    roles = roles_of(kernel.kernel, source.launches)
    document = {
        "kernel": kernel.kernel.id, "launch": number, "unit": timeline.unit.value, "warps_of_block": timeline.warps,
        "warps": timeline.span.warps, "warps_here": warps, "time": timeline.span.duration, "events": events,
        "names": names.texts[:_MOST_NAMES], "left_out": list(sources.left_out), "roles": roles.names,
        "role_sentences": roles.sentences(),
    }  # fmt: skip
    if events:
        document["block"] = blocks.add(_columns(pieces))
    return document, events


def _columns(pieces: list[Piece]) -> Columns:
    """Return the columns of warps, by multiprocessor and number, and of their ranges, by warp and begin."""
    sm = np.concatenate([piece.lifetimes.sm for piece in pieces])
    warp = np.concatenate([piece.lifetimes.warp for piece in pieces])
    begin = np.concatenate([piece.lifetimes.begin for piece in pieces])
    end = np.concatenate([piece.lifetimes.end for piece in pieces])
    order = np.lexsort((warp, sm))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    columns = Columns()
    # Unknown ones are -1.
    columns.add("sm", sm[order] + 1, differences=True)
    columns.add("warp", warp[order], differences=True)
    columns.add("begin", np.maximum(begin[order], 0))
    columns.add("took", np.maximum(end[order] - begin[order], 0))
    rows: list[Array] = []
    parts: list[Ranges] = []
    offset = 0
    for piece in pieces:
        for ranges in piece.ranges:
            rows.append(place[ranges.row + offset])
            parts.append(ranges)
        offset += len(piece.lifetimes)
    row = np.concatenate(rows)
    first = np.maximum(np.concatenate([ranges.begin for ranges in parts]), 0)
    last = np.concatenate([ranges.end for ranges in parts])
    name = np.concatenate([ranges.name for ranges in parts])
    mark = np.concatenate([np.full(len(ranges.row), ranges.is_mark) for ranges in parts])
    # Of ranges that begin together the longer ones first, so that the others are drawn on them.
    sorted_ = np.lexsort((-last, first, row))
    columns.add("row", row[sorted_], differences=True)
    columns.add("from", first[sorted_], differences=True)
    columns.add("length", np.maximum(last - first, 0)[sorted_])
    columns.add("name", np.minimum(name[sorted_], _MOST_NAMES))
    columns.add("mark", mark[sorted_].astype(np.int64))
    return columns
