"""When the warps of each launch ran, and what they marked on the way: the model that drawings and event files share.

A trace tells this by the fields that records have, whatever the map is called:

====================================  ===============================================================================
fields                                meaning
====================================  ===============================================================================
``begin``, ``end``                    nanoseconds of the GPU, which all multiprocessors share
``start``, ``elapsed``                the multiprocessor's clock and cycles after it
``time``; ``clock`` or ``cycle``      a moment, of the one and the other kind
``sm``, ``smid`` or ``cuid``          the multiprocessor
``site``                              the instruction; 4294967295 is the kernel's entry, 4294967294 its end
``verb``                              0 mark, 1 push, 2 pop, 3 start, 4 end of a range; ``name`` a number or ``site``
``token``, ``payload``                of a range that is started and ended; a number to show
====================================  ===============================================================================

One record of the first two kinds for each warp is when it ran; further ones are ranges. Where there is none, the
moments of a warp's entry and end are; those of other instructions tell neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum, IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.abi.levels import Level, Per
from neutrino.late_dataclass import dataclass
from neutrino.maps.declaration import Layout, Map, Report
from neutrino.tracing.recorded import parts_of
from neutrino.tracing.site_tables import place_of, sites_by_number
from neutrino.tracing.trace import Clock, Trace, TraceKernel
from neutrino.tracing.views import MapView

Array = npt.NDArray[Any]
ENTRY, EXIT = 0xFFFFFFFF, 0xFFFFFFFE
"""Sites that stand for a kernel's entry and end."""
MOST_WARPS = 1 << 18
"""Warps, and about as many events, that are held at once; those of one multiprocessor are held together."""
_READ = 1 << 17
"""Warps that are read at once."""
_MOST_SMS = 1 << 16
"""Numbers of multiprocessors; greater ones are no numbers of any."""
LATEST = 1 << 61
"""Nanoseconds or cycles: later times are none, and are taken for this one, so that sums of two have 64 bits."""
_NEVER = np.iinfo(np.int64).max
SMS = ("sm", "smid", "cuid")
"""Fields that tell the multiprocessor."""
_UNKNOWN_SM = -1


class Unit(Enum):
    """What times of a launch count. NS: nanoseconds of the GPU. CYCLES: of each multiprocessor, which all begin with 0.
    STEPS: of the embedded device's interpreter, an order and no durations."""

    NS = "ns"
    CYCLES = "cycles"
    STEPS = "steps"


class Verb(IntEnum):
    """What a record with a field ``verb`` does."""

    MARK = 0
    PUSH = 1
    POP = 2
    START = 3
    END = 4


@dataclass(frozen=True)
class Lifetimes:
    """When warps ran, int64 ``[warp]``: ``warp`` is block · warps of a block + the warp in it, ``begin`` and ``end``
    are since the launch's begin. sm: -1 where it is not known. is_open: the warp's end is not in the trace."""

    warp: Array
    sm: Array
    begin: Array
    end: Array
    is_open: Array

    def __len__(self) -> int:
        """How many warps they are."""
        return len(self.warp)


@dataclass(frozen=True)
class Ranges:
    """Named ranges of warps, or marks, whose begin is their end. row: the place of the warp in the lifetimes. name:
    number of a name. payload: a number of each, where has_payload. is_open: the range was not ended."""

    row: Array
    begin: Array
    end: Array
    name: Array
    payload: Array
    has_payload: bool
    is_open: Array
    is_mark: bool


@dataclass(frozen=True)
class Piece:
    """The warps of some multiprocessors of a launch, with their ranges and marks."""

    lifetimes: Lifetimes
    ranges: tuple[Ranges, ...]


@dataclass(frozen=True)
class _Times:
    """How a record tells a time. first, last: fields. is_length: the last one is a length. unit: of the numbers."""

    first: str
    last: str
    is_length: bool
    unit: Unit


_INTERVALS = (
    _Times("begin", "end", False, Unit.NS), _Times("start", "elapsed", True, Unit.CYCLES),
    _Times("start", "cycles", True, Unit.CYCLES), _Times("start", "end", False, Unit.CYCLES),
)  # fmt: skip
_MOMENTS = {"time": Unit.NS, "clock": Unit.CYCLES, "cycle": Unit.CYCLES}


def _interval(entry: Map) -> _Times | None:
    """Return how the records of a map tell an interval; None if they do not."""
    names = {field.name for field in entry.fields}
    return next((way for way in _INTERVALS if {way.first, way.last} <= names), None)


def _moment(entry: Map) -> str:
    """Return the field that tells a moment; "" without one, or without a field that says what happened."""
    names = {field.name for field in entry.fields}
    if not names & {"site", "verb"}:
        return ""
    return next((name for name in _MOMENTS if name in names), "")


def is_of_warps(entry: Map) -> bool:
    """Whether a map has one record for each warp."""
    if entry.per is Per.WARP:
        return entry.kind.report is not Report.KEYS
    return entry.kind.layout is Layout.SLOTS and entry.level is Level.WARP and entry.cap == 1


def _has_records(entry: Map) -> bool:
    """Whether a map keeps records of warps or their threads one by one."""
    return entry.kind.layout in (Layout.SLOTS, Layout.CHUNKS) and entry.level is not Level.BLOCK


def _has_site(entry: Map) -> bool:
    """Whether the records of a map say of which instruction they are."""
    return any(field.name == "site" for field in entry.fields)


def _has_entries(kernel: TraceKernel) -> bool:
    """Whether a probe was at a kernel's entry, which has no number as a site (an instruction that a probe matched)."""
    return any(site.get("site") is None for site in (kernel.manifest.sites if kernel.manifest else ()))


@dataclass(frozen=True)
class Sources:
    """Which maps of a kernel tell times. lifetimes: one record for each warp; None: marks of the entry and the end tell
    when it ran, of warps that have one of the entry. intervals, moments: of ranges and of marks. left_out: maps whose
    times are of another clock."""

    lifetimes: Map | None
    intervals: tuple[Map, ...]
    moments: tuple[Map, ...]
    unit: Unit
    left_out: tuple[str, ...] = ()

    @property
    def events(self) -> tuple[Map, ...]:
        """The maps of ranges and marks."""
        return self.intervals + self.moments

    @staticmethod
    def of(kernel: TraceKernel) -> Sources | None:
        """Return what tells times in a kernel's data; None if nothing tells when warps ran."""
        maps = kernel.manifest.probed_maps if kernel.manifest else ()
        lifetimes: dict[Unit, Map] = {}
        for entry in maps:
            way = _interval(entry)
            if way is not None and is_of_warps(entry) and not _has_site(entry):
                lifetimes.setdefault(way.unit, entry)
        others = [entry for entry in maps if _has_records(entry) and entry not in lifetimes.values()]
        ranges = {entry: way.unit for entry in others if (way := _interval(entry)) is not None}
        marks = {entry: _MOMENTS[name] for entry in others if entry not in ranges and (name := _moment(entry))}
        # Events need lifetimes of their own clock.
        wanted = [unit for unit in (*ranges.values(), *marks.values()) if unit in lifetimes]
        order = [*wanted, *(unit for unit in (Unit.NS, Unit.CYCLES) if unit in lifetimes)]
        if not order and _has_entries(kernel):
            order = [unit for entry, unit in marks.items() if _has_site(entry)]
        if not order:
            return None
        unit = order[0]
        kept = [tuple(entry for entry, its in found.items() if its is unit) for found in (ranges, marks)]
        left_out = tuple(entry.name for found in (ranges, marks) for entry, its in found.items() if its is not unit)
        return Sources(lifetimes.get(unit), kept[0], kept[1], unit, left_out)


class Names:
    """Names of ranges and marks by number, in the order in which they were asked for."""

    def __init__(self) -> None:
        """Begin without a name."""
        self.texts: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Return the number of a name."""
        if text not in self._numbers:
            self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return self._numbers[text]


@dataclass(frozen=True)
class Span:
    """When a launch ran by its warps. begin: the least time, nanoseconds of the GPU; 0 for times of multiprocessors.
    duration: until the last warp's end. warps: that have a time. missing: that have none."""

    begin: int
    duration: int
    warps: int
    missing: int


class LaunchTimeline:
    """The times of one launch, read from the trace as often as they are asked for."""

    def __init__(self, trace: Trace, kernel: TraceKernel, sources: Sources, number: int, names: Names) -> None:
        """Give access to a launch. number: in the trace; its data are there. names: that get those of ranges."""
        self.kernel = kernel
        self.number = number
        self.record = trace.launches[number]
        self.sources = sources
        self.unit = Unit.STEPS if trace.clock is Clock.STEPS else sources.unit
        self._names = names
        ((self._numbers, self._views),) = kernel.numbered_stacks(np.array([number]), is_checked=True)
        view = next(iter(self._views.values()))
        self.warps = view.geometry.warps
        self.lanes = view.geometry.lanes
        self.blocks = view.geometry.blocks
        self._sms: tuple[Array, Array] | None = None
        self._span: Span | None = None
        self._site_names: dict[int, str] = {}

    @property
    def span(self) -> Span:
        """When the launch ran. Reads the times of all of its warps, the first time."""
        if self._span is None:
            self._measure()
        assert self._span is not None
        return self._span

    @property
    def events(self) -> int:
        """How many records the launch has of ranges and marks."""
        return sum(self._views[entry.name].of(0).record_count for entry in self.sources.events)

    def _measure(self) -> None:
        """Find each multiprocessor's number of warps and its first time, and the launch's begin and duration."""
        counts = np.zeros(1, np.int64)
        firsts = np.full(1, np.iinfo(np.int64).max)
        lasts = np.zeros(1, np.int64)
        warps = 0
        for part in self._lifetimes():
            most = int(part.sm.max(initial=-1)) + 2
            if most > len(counts):
                more = most - len(counts)
                counts, lasts = np.append(counts, np.zeros(more, np.int64)), np.append(lasts, np.zeros(more, np.int64))
                firsts = np.append(firsts, np.full(more, np.iinfo(np.int64).max))
            # Sorted by multiprocessor, since NumPy is slow in scattering extremes.
            numbers = part.sm + 1
            # Numbers of 16 bits are sorted in a quarter of the time.
            order = np.argsort(numbers.astype(np.uint16) if most <= 1 << 16 else numbers, kind="stable")
            sms = numbers[order]
            starts = np.flatnonzero(np.append(True, sms[1:] != sms[:-1])) if len(sms) else np.zeros(0, np.int64)
            here = sms[starts]
            counts[here] += np.diff(np.append(starts, len(sms)))
            if len(sms):
                firsts[here] = np.minimum(firsts[here], np.minimum.reduceat(part.begin[order], starts))
                lasts[here] = np.maximum(lasts[here], np.maximum.reduceat(part.end[order], starts))
            warps += len(part)
        used = counts > 0
        begin = int(firsts[used].min()) if used.any() else 0
        if self.sources.unit is Unit.NS:
            firsts = np.full(len(firsts), begin)
        duration = min(int((lasts - firsts)[used].max(initial=0)), LATEST) if used.any() else 0
        self._sms = (counts, firsts)
        is_global = self.sources.unit is Unit.NS
        self._span = Span(begin if is_global else 0, max(duration, 0), warps, self.blocks * self.warps - warps)

    def pieces(self, most: int = MOST_WARPS) -> Iterator[Piece]:
        """Yield all warps with their ranges and marks, the multiprocessors in order, about ``most`` warps at a time."""
        if self._sms is None:
            self._measure()
        assert self._sms is not None
        counts, firsts = self._sms
        duration = self.span.duration
        # As many warps as with their ranges and marks are that many.
        groups = np.cumsum(counts) // max(most * self.span.warps // max(self.span.warps + self.events, 1), 1)
        present = np.unique(groups[counts > 0])
        for group in present.tolist():
            kept: list[Lifetimes] = []
            for part in self._lifetimes():
                mask = slice(None) if len(present) == 1 else groups[part.sm + 1] == group
                kept.append(_chosen(part, mask))
            found = _joined(kept)
            origin = firsts[found.sm + 1]
            begin, end = found.begin - origin, np.minimum(found.end - origin, LATEST)
            ended = np.where(found.is_open, np.maximum(duration, begin), end)
            lifetimes = Lifetimes(found.warp, found.sm, begin, ended, found.is_open)
            yield Piece(lifetimes, tuple(self._events(lifetimes, origin)))

    def _lifetimes(self) -> Iterator[Lifetimes]:
        """Yield when warps ran by their records, some at a time, with the times as they are there."""
        entry = self.sources.lifetimes
        if entry is None:
            yield from self._marked_lifetimes()
            return
        way = _interval(entry)
        assert way is not None
        for warp, records in self._rows(self._views[entry.name].of(0)):
            names = records.dtype.names or ()
            first, last = (times_of(records[name]) for name in (way.first, way.last))
            sm = next((records[name] for name in SMS if name in names), None)
            where = np.full(len(warp), _UNKNOWN_SM) if sm is None else _known_sms(sm.astype(np.int64))
            # A warp that never came to its end saved nothing.
            there = (first != 0) | (last != 0)
            end = first + last if way.is_length else last
            is_open = end < first
            part = Lifetimes(warp, where, first, np.maximum(first, end), is_open)
            yield part if there.all() else _chosen(part, there)

    def _rows(self, view: MapView) -> Iterator[tuple[Array, Array]]:
        """Yield the records of a map with one of each warp, after the warps' numbers. view: of the launch alone."""
        if view.map.kind.layout is not Layout.SLOTS:
            for results, places in view.owned():
                yield places["block"].astype(np.int64) * self.warps + places["warp"], results
            return
        step = max(_READ // self.warps, 1)
        for first in range(0, self.blocks, step):
            records = view.records[first : first + step].reshape(-1)
            yield first * self.warps + np.arange(len(records)), records

    def _marked_lifetimes(self) -> Iterator[Lifetimes]:
        """Yield when warps ran by the marks of their entries and ends, all at once. A warp without an end is open, one
        without an entry is left out.
        """
        begin = np.full(self.blocks * self.warps, _NEVER)
        end = np.zeros(len(begin), np.int64)
        where = np.full(len(begin), _UNKNOWN_SM)
        ended = np.zeros(len(begin), bool)
        for entry in filter(_has_site, self.sources.moments):
            field = _moment(entry)
            for warp, records in self._records(entry):
                time = times_of(records[field])
                is_entry = records["site"] == ENTRY
                np.minimum.at(begin, warp[is_entry], time[is_entry])
                np.maximum.at(end, warp, time)
                names = records.dtype.names or ()
                for name in SMS:
                    if name in names:
                        where[warp] = records[name]
                ended[warp[records["site"] == EXIT]] = True
        there = np.flatnonzero(begin != _NEVER)
        sm = _known_sms(where)
        yield Lifetimes(there, sm[there], begin[there], np.maximum(begin, end)[there], ~ended[there])

    def _records(self, entry: Map) -> Iterator[tuple[Array, Array]]:
        """Yield the records of a map, those of a warp in the order of saving, after the numbers of their warps."""
        for _, places, records in parts_of(self._views[entry.name], self._numbers):
            yield places["block"].astype(np.int64) * self.warps + places["warp"], records

    def _events(self, lifetimes: Lifetimes, origin: Array) -> Iterator[Ranges]:
        """Yield the ranges and marks of some warps. origin: of each warp, the time that the launch begins with."""
        order = np.argsort(lifetimes.warp)
        ordered = lifetimes.warp[order]
        for entry in self.sources.events:
            rows: list[Array] = []
            found: list[Array] = []
            for warp, records in self._records(entry):
                at = np.minimum(np.searchsorted(ordered, warp), max(len(ordered) - 1, 0))
                here = ordered[at] == warp if len(ordered) else np.zeros(len(warp), bool)
                rows.append(order[at[here]])
                found.append(records[here])
            if not any(map(len, rows)):
                continue
            row, records = np.concatenate(rows), np.concatenate(found)
            if entry in self.sources.intervals:
                yield self._intervals(entry, row, records, lifetimes, origin)
            elif "verb" in (records.dtype.names or ()):
                yield from self._verbs(entry, row, records, lifetimes, origin)
            else:
                time = np.maximum(times_of(records[_moment(entry)]) - origin[row], 0)
                # Of entries and ends there are lifetimes.
                kept = (records["site"] != ENTRY) & (records["site"] != EXIT)
                yield self._ranges(entry, row[kept], time[kept], time[kept], records[kept], is_mark=True)

    def _intervals(self, entry: Map, row: Array, records: Array, lifetimes: Lifetimes, origin: Array) -> Ranges:
        """Return the ranges of records that have both times. row: of each one's warp."""
        way = _interval(entry)
        assert way is not None
        first, last = (times_of(records[name]) for name in (way.first, way.last))
        # A time before the launch is a damaged one.
        begin = np.maximum(first - origin[row], 0)
        end = np.minimum(begin + last if way.is_length else last - origin[row], LATEST)
        is_open = end < begin
        ended = np.where(is_open, np.maximum(lifetimes.end[row], begin), end)
        return self._ranges(entry, row, begin, ended, records, is_open=is_open)

    def _verbs(
        self, entry: Map, row: Array, records: Array, lifetimes: Lifetimes, origin: Array
    ) -> Iterator[Ranges]:
        """Yield the ranges and marks of records of which each is a verb. row: of each one's warp."""
        time = np.maximum(times_of(records[_moment(entry)]) - origin[row], 0)
        verb = records["verb"]
        marks = verb == Verb.MARK
        if marks.any():
            yield self._ranges(entry, row[marks], time[marks], time[marks], records[marks], is_mark=True)
        for opens, closes in ((Verb.PUSH, Verb.POP), (Verb.START, Verb.END)):
            some = np.flatnonzero((verb == opens) | (verb == closes))
            if not len(some):
                continue
            is_begin = verb[some] == opens
            keys = row[some]
            if opens is Verb.START:
                token = records["token"][some] if "token" in (records.dtype.names or ()) else np.zeros(len(some))
                _, keys = np.unique(np.stack([keys, token.astype(np.int64)]), axis=1, return_inverse=True)
                keys = keys.reshape(-1)
            first, last = paired(keys, is_begin)
            begun = some[first]
            is_open = last < 0
            end = np.where(is_open, np.maximum(lifetimes.end[row[begun]], time[begun]), time[some[last]])
            yield self._ranges(entry, row[begun], time[begun], end, records[begun], is_open=is_open)

    def _ranges(
        self, entry: Map, row: Array, begin: Array, end: Array, records: Array, *, is_open: Array | None = None,
        is_mark: bool = False,
    ) -> Ranges:  # fmt: skip
        """Return ranges, or marks, with the names that their records have."""
        names = records.dtype.names or ()
        field = next((name for name in ("name", "range", "site") if name in names), "")
        numbers = np.zeros(len(records), np.int64)
        if field:
            known, inverse = np.unique(records[field], return_inverse=True)
            texts = (self._site_name(n) if field == "site" else f"{entry.name} {n}" for n in known.tolist())
            numbers = np.array([self._names.number(text) for text in texts], np.int64)[inverse.reshape(-1)]
        elif len(records):
            numbers[:] = self._names.number(entry.name)
        has_payload = "payload" in names
        payload = records["payload"] if has_payload else np.zeros(len(records), np.int64)
        is_open = np.zeros(len(records), bool) if is_open is None else is_open
        return Ranges(row, begin, end, numbers, payload, has_payload, is_open, is_mark)

    def _site_name(self, number: int) -> str:
        """Return what to call a site (an instruction that a probe matched): its text, and its place in the source."""
        if not self._site_names:
            sites = sites_by_number(self.kernel.manifest.sites if self.kernel.manifest else ())
            for known, site in sites.items():
                place, instruction = place_of(site)
                self._site_names[known] = f"{instruction.rstrip(';')} ({place})" if instruction else place
        return self._site_names.get(number) or f"site {number}"


def times_of(values: Array) -> Array:
    """Return times as int64, from 0 to ``LATEST``: records of a damaged trace hold any numbers."""
    if values.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            values = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=LATEST, neginf=0.0)
        whole: Array = np.clip(values, 0, LATEST).astype(np.int64)
        return whole
    found: Array
    if values.dtype.itemsize < 8:
        found = values.astype(np.int64)
        return found if values.dtype.kind == "u" else np.maximum(found, 0)
    if values.dtype.kind == "i":
        found = np.clip(values, 0, LATEST)
    else:
        # As many passes as need be: this is most of what is done with a large trace.
        found = np.minimum(values, np.uint64(LATEST)).view(np.int64)
    return found


def stable_order(keys: Array) -> Array:
    """Return the indices that sort numbers, those of equal ones in their order. keys: int64, not negative."""
    bits = max(len(keys) - 1, 1).bit_length()
    if not len(keys) or int(keys.max()) >> (63 - bits):
        return np.argsort(keys, kind="stable")
    # With the index in the same number: NumPy sorts numbers ten times as fast as their indices.
    packed = keys << bits | np.arange(len(keys))
    packed.sort()
    return packed & ((1 << bits) - 1)


def _known_sms(numbers: Array) -> Array:
    """Return numbers of multiprocessors, with _UNKNOWN_SM for what is none of any."""
    if not len(numbers) or (numbers.min() >= _UNKNOWN_SM and numbers.max() < _MOST_SMS):
        return numbers
    found: Array = np.where((numbers >= 0) & (numbers < _MOST_SMS), numbers, _UNKNOWN_SM)
    return found


def paired(keys: Array, is_begin: Array) -> tuple[Array, Array]:
    """Pair begins with the ends that close them, as brackets are, among those with one key; in their order.

    Returns the indices of the begins, ascending, and for each that of its end, -1 without one. An end without a begin
    is left out.
    """
    count = len(keys)
    order = np.argsort(keys, kind="stable")
    key, begins = keys[order], is_begin[order].astype(bool)
    step = np.where(begins, 1, -1)
    level = np.cumsum(step)
    starts = np.flatnonzero(np.append(True, key[1:] != key[:-1])) if count else np.zeros(0, np.int64)
    before = np.append(0, level)[starts] if count else starts
    sizes = np.diff(np.append(starts, count))
    # Ends without begins lower the level for good: it counts from the least one so far.
    groups = np.repeat(np.arange(len(starts)), sizes)
    level = level - np.repeat(before, sizes)
    offset = groups * (2 * count + 2)
    least = np.minimum(np.minimum.accumulate(level - offset) + offset, 0)
    depth = level - least + ~begins
    is_lone = ~begins & (level == least) & (np.append(0, least[:-1]) * (np.append(-1, groups[:-1]) == groups) > least)
    some = np.flatnonzero(~is_lone)
    # Those of one key and depth take turns: a begin, its end, a begin …
    turn = some[np.lexsort((some, depth[some], groups[some]))]
    opens = np.flatnonzero(begins[turn])
    after = np.minimum(opens + 1, max(len(turn) - 1, 0))
    first, last = turn[opens], turn[after]
    is_closed = ~begins[last] & (opens + 1 < len(turn))
    is_closed &= (groups[first] == groups[last]) & (depth[first] == depth[last])
    found, closes = order[first], np.where(is_closed, order[last], -1)
    sorted_by = np.argsort(found)
    return found[sorted_by], closes[sorted_by]


def timelines(trace: Trace, kernels: Sequence[TraceKernel], names: Names, launches: range | None = None) -> (
    Iterator[LaunchTimeline]
):  # fmt: skip
    """Yield the launches of kernels that tell when their warps ran, in the order of submission."""
    sources = {kernel.id: found for kernel in kernels if (found := Sources.of(kernel)) is not None}
    by_id = {kernel.id: kernel for kernel in kernels}
    numbers = [by_id[identity].written_numbers(launches) for identity in sources]
    if not numbers:
        return
    chosen = np.concatenate(numbers)
    for number in chosen[np.argsort(trace.launches["submit_ns"][chosen], kind="stable")].tolist():
        kernel = by_id[int(trace.launches["kernel"][number])]
        yield LaunchTimeline(trace, kernel, sources[kernel.id], number, names)


def _chosen(part: Lifetimes, which: Any) -> Lifetimes:
    """Return some of the warps. which: a slice or a mask."""
    return Lifetimes(part.warp[which], part.sm[which], part.begin[which], part.end[which], part.is_open[which])


def _joined(parts: Sequence[Lifetimes]) -> Lifetimes:
    """Return the warps of all parts together."""
    empty = np.zeros(0, np.int64)
    return Lifetimes(
        np.concatenate([empty, *(part.warp for part in parts)]),
        np.concatenate([empty, *(part.sm for part in parts)]),
        np.concatenate([empty, *(part.begin for part in parts)]),
        np.concatenate([empty, *(part.end for part in parts)]),
        np.concatenate([np.zeros(0, bool), *(part.is_open for part in parts)]),
    )
