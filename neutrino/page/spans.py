"""From when to when blocks and warps ran, and where: maps of records whose fields say so by their names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.abi.levels import Level, Per
from neutrino.maps.declaration import Layout, Map
from neutrino.tracing.views import MapView

Array = npt.NDArray[Any]
_BEGIN = ("start", "begin", "began")
_END = ("end", "finish", "finished")
_TOOK = ("elapsed", "cycles", "duration")
_PLACE = ("cuid", "sm", "smid", "cu")
_RECORDS = 1 << 16
"""That are read at once."""


@dataclass(frozen=True)
class SpanFields:
    """A map (what probes save to) with a span of time in each record, and the names of the fields that say so.

    begin, sm: names. end, took: one of them, the other is "". shared: whether all multiprocessors have the same clock,
    in nanoseconds, as "begin" with "end" says; else each has one of its own.
    """

    map: Map
    begin: str
    end: str
    took: str
    sm: str
    shared: bool


@dataclass(frozen=True)
class Spans:
    """Spans of some warps or blocks, columns of one length: block, warp, sm, begin and end as int64.

    Times of 2^63 and more, which no clock has, are cut off there.
    """

    block: Array
    warp: Array
    sm: Array
    begin: Array
    end: Array


def span_fields(entry: Map) -> SpanFields | None:
    """Return which fields of a map (what probes save to) are spans of time on a multiprocessor; None if none are."""
    names = {field.name for field in entry.fields if field.type.value[0] != "f"}

    def first(choices: tuple[str, ...]) -> str:
        """Return the first of some names that is a field's; "" if none is."""
        return next((name for name in choices if name in names), "")

    is_slots = entry.kind.layout is Layout.SLOTS and entry.level is not Level.THREAD
    if not (is_slots or entry.per in (Per.WARP, Per.BLOCK)):
        return None
    begin, end, took, place = first(_BEGIN), first(_END), first(_TOOK), first(_PLACE)
    if not begin or not place or not (end or took):
        return None
    return SpanFields(entry, begin, end, "" if end else took, place, (begin, end) == ("begin", "end"))


def read_spans(view: MapView, fields: SpanFields) -> Iterator[Spans]:
    """Yield the spans of one launch, some whole blocks at a time, in the order of the blocks and their warps.

    view: of one launch. Places of warps that saved nothing are left out.
    """
    for records, places in _pieces(view):
        columns = {name: _signed(records[name]) for name in (fields.begin, fields.end or fields.took, fields.sm)}
        saved = np.zeros(len(records), bool)
        for name in records.dtype.names or ():
            saved |= records[name] != 0
        begin, other = columns[fields.begin][saved], columns[fields.end or fields.took][saved]
        end = np.maximum(other if fields.end else begin + other, begin)
        block = places["block"][saved].astype(np.int64)
        warp = places["warp"][saved].astype(np.int64) if "warp" in places else np.zeros(len(block), np.int64)
        yield Spans(block, warp, columns[fields.sm][saved], begin, end)


def by_block(spans: Spans) -> Spans:
    """Return one span for each block: from the first warp's begin to the last one's end."""
    if not len(spans.block):
        return spans
    firsts = np.flatnonzero(np.diff(spans.block, prepend=spans.block[0] - 1))
    return Spans(
        spans.block[firsts],
        np.add.reduceat(np.ones(len(spans.block), np.int64), firsts),
        spans.sm[firsts],
        np.minimum.reduceat(spans.begin, firsts),
        np.maximum.reduceat(spans.end, firsts),
    )


def _pieces(view: MapView) -> Iterator[tuple[Array, dict[str, Array]]]:
    """Yield the records of a launch with their places, some whole blocks at a time."""
    if view.map.per is not Per.LAUNCH:
        yield from view.owned()
        return
    blocks = view.geometry.blocks
    step = max(_RECORDS // max(int(np.prod(view.records.shape[1:])), 1), 1)
    for first in range(0, blocks, step):
        part = slice(first, min(first + step, blocks))
        piece = replace(
            view,
            geometry=replace(view.geometry, blocks=part.stop - first),
            records=view.records[part],
            counts=None if view.counts is None else view.counts[part],
        )
        places = piece.places()
        places["block"] = places["block"] + first
        yield piece.valid(), places


def _signed(values: Array) -> Array:
    """Return whole numbers as int64; those beyond become the greatest."""
    if values.dtype.kind == "u" and values.dtype.itemsize == 8:
        values = np.minimum(values, np.uint64((1 << 63) - 1))
    return values.astype(np.int64)
