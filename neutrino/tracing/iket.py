"""IKET's event files: JSON with launches, when their warps ran, and the ranges and marks on them.

The shape is that of ``run-iket --postprocess json`` as users of NVIDIA's CUTLASS DSL 4.6 have published it: tables of
strings and of places, which events point into. What is not known here stays as it is: reading and writing a file
gives the same document. Times are integers; in NVIDIA's files they are nanoseconds. Files that Neutrino writes say in
``timebase`` of each launch what they count.
"""

from __future__ import annotations

import json
import os
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import IO, Any

import numpy as np

from neutrino.errors import TraceError
from neutrino.late_dataclass import dataclass
from neutrino.tracing.files import parse_json, read_file
from neutrino.tracing.timeline import LATEST, LaunchTimeline, Names, timelines
from neutrino.tracing.trace import Trace, TraceKernel

_COLOUR = 0xFFFFFFFF
_UNKNOWN = -1
"""Numbers of clusters of multiprocessors, which no probe tells."""
_PAYLOAD_INTEGER = 5
"""The type of payloads that are integers, as files have it."""
_MOST_INTEGER = 1 << 64
_MOST_WAITING = 16 << 20
"""Characters of ranges, and of marks, that wait in memory; more wait in a file."""
UNCLOSED = " (unclosed)"
Json = dict[str, Any]


@dataclass(frozen=True)
class Location:
    """Where a warp ran. cta: the block's indices. sm: of the multiprocessor, -1 if that is not known. warp: its number
    in the block."""

    cta: tuple[int, int, int]
    sm: int
    warp: int
    more: Json = field(default_factory=dict)


@dataclass(frozen=True)
class Lifetime:
    """When a warp ran. location: index of its place."""

    location: int
    begin: int
    end: int
    more: Json = field(default_factory=dict)


@dataclass(frozen=True)
class Marker:
    """A mark. name: index of the string. location: of the place."""

    location: int
    name: int
    time: int
    more: Json = field(default_factory=dict)


@dataclass(frozen=True)
class Range:
    """A named range of a warp. first, last: indices of the places where it began and ended, which are the same if all
    is well. more: with ``internalEvents``, whose first may have a payload."""

    name: int
    begin: int
    end: int
    first: int
    last: int
    more: Json = field(default_factory=dict)

    @property
    def payload(self) -> int | float | None:
        """The number that the range was given; None without one."""
        events = self.more.get("internalEvents")
        for event in events if isinstance(events, list) else ():
            value = event.get("payloadVal") if isinstance(event, dict) else None
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                return value
        return None


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel. grid, block: in x, y and z. context, number: ids of the context and of the launch."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    context: int
    number: int
    lifetimes: tuple[Lifetime, ...]
    ranges: tuple[Range, ...]
    markers: tuple[Marker, ...]
    more: Json = field(default_factory=dict)

    @property
    def timebase(self) -> str:
        """What its times count: ``ns`` unless the file says otherwise."""
        text = self.more.get("timebase", "ns")
        return text if isinstance(text, str) else "ns"


@dataclass(frozen=True)
class EventFile:
    """A file of events. graphs: launches by graph."""

    strings: tuple[str, ...]
    locations: tuple[Location, ...]
    launches: tuple[Launch, ...]
    graphs: Mapping[str, tuple[Launch, ...]] = field(default_factory=dict)
    more: Json = field(default_factory=dict)

    @property
    def all_launches(self) -> tuple[Launch, ...]:
        """The launches, also those of graphs."""
        return (*self.launches, *(launch for launches in self.graphs.values() for launch in launches))

    @property
    def faults(self) -> list[str]:
        """What makes figures of the file doubtful, a sentence each."""
        backward = crossing = 0
        for launch in self.all_launches:
            backward += sum(one.end < one.begin for one in launch.ranges)
            backward += sum(one.end < one.begin for one in launch.lifetimes)
            crossing += sum(self.locations[one.first] != self.locations[one.last] for one in launch.ranges)
        found = []
        if backward:
            found.append(f"{backward:,} ranges and lifetimes end before they begin: left out of figures")
        if crossing:
            found.append(f"{crossing:,} ranges end on another warp than they began on")
        return found


def read_iket(path: str | Path) -> EventFile:
    """Read a file of events. Raises TraceError with the place of what is wrong: no file, not JSON, or not events."""
    target = Path(path)
    try:
        document = parse_json(read_file(target, inside=0))
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: not JSON: {error}") from error
    return _Reader(target).file(document)


class _Reader:
    """Typed access to the document. Every method raises TraceError, with the file's name, for an invalid value."""

    def __init__(self, path: Path) -> None:
        """Prepare to read a document. path: its file, for errors."""
        self._path = path
        self._strings = 0
        self._locations = 0

    def file(self, document: Any) -> EventFile:
        """Return the whole file."""
        table = self._object(document, "the document")
        missing = [name for name in ("stringTable", "locationTable", "launches") if name not in table]
        if missing:
            raise TraceError(f"{self._path}: has no {missing[0]}, which files of IKET's events have")
        strings = tuple(self._text(value, f"stringTable[{i}]") for i, value in self._rows(table, "stringTable"))
        locations = tuple(
            self._location(value, f"locationTable[{i}]") for i, value in self._rows(table, "locationTable")
        )
        self._strings, self._locations = len(strings), len(locations)
        launches = self._launches(self._list(table, "launches"), "launches")
        graphs = self._object(table.get("graphLaunches", {}), "graphLaunches")
        return EventFile(
            strings, locations, launches,
            {
                key: self._launches(self._list(graphs, key), f"graphLaunches[{key!r:.40}]") for key in graphs
            },
            _rest(table, "stringTable", "locationTable", "launches", "graphLaunches"),
        )  # fmt: skip

    def _launches(self, rows: list[Any], where: str) -> tuple[Launch, ...]:
        """Return the launches of a list."""
        return tuple(self._launch(row, f"{where}[{number}]") for number, row in enumerate(rows))

    def _launch(self, value: Any, where: str) -> Launch:
        """Return a launch."""
        row = self._object(value, where)
        grid = tuple(self._integer(row.get(f"gridDim{axis}"), f"{where}.gridDim{axis}", 0) for axis in "XYZ")
        block = tuple(self._integer(row.get(f"blockDim{axis}"), f"{where}.blockDim{axis}", 0) for axis in "XYZ")
        known = [f"{name}Dim{axis}" for name in ("grid", "block") for axis in "XYZ"]
        return Launch(
            self._text(row.get("kernelName"), f"{where}.kernelName"),
            (grid[0], grid[1], grid[2]), (block[0], block[1], block[2]),
            self._integer(row.get("contextId", 0), f"{where}.contextId"),
            self._integer(row.get("gridId", 0), f"{where}.gridId"),
            tuple(self._lifetime(one, f"{where}.warpLifetimes[{i}]") for i, one in self._rows(row, "warpLifetimes")),
            tuple(self._range(one, f"{where}.ranges[{i}]") for i, one in self._rows(row, "ranges")),
            tuple(self._marker(one, f"{where}.markers[{i}]") for i, one in self._rows(row, "markers")),
            _rest(row, "kernelName", "contextId", "gridId", "warpLifetimes", "ranges", "markers", *known),
        )  # fmt: skip

    def _rows(self, row: Json, name: str) -> Iterator[tuple[int, Any]]:
        """Yield the entries of a list that may be missing, with their numbers."""
        yield from enumerate(self._list(row, name) if name in row else [])

    def _location(self, value: Any, where: str) -> Location:
        """Return a place."""
        row = self._object(value, where)
        cta = row.get("ctaId")
        # A linear number in some files.
        axes = [cta, 0, 0] if isinstance(cta, int) else cta
        if not isinstance(axes, list) or len(axes) != 3:
            raise self._error(f"{where}.ctaId", cta, "three numbers")
        x, y, z = (self._integer(axis, f"{where}.ctaId", 0) for axis in axes)
        more = _rest(row, "smId", "warpId", "ctaId") | ({"ctaId": cta} if isinstance(cta, int) else {})
        return Location(
            (x, y, z), self._integer(row.get("smId", _UNKNOWN), f"{where}.smId", _UNKNOWN),
            self._integer(row.get("warpId"), f"{where}.warpId", 0), more,
        )  # fmt: skip

    def _lifetime(self, value: Any, where: str) -> Lifetime:
        """Return a lifetime."""
        row = self._object(value, where)
        return Lifetime(
            self._place(row.get("locIdx"), f"{where}.locIdx"), self._time(row, "startTs", where),
            self._time(row, "endTs", where), _rest(row, "locIdx", "startTs", "endTs"),
        )  # fmt: skip

    def _marker(self, value: Any, where: str) -> Marker:
        """Return a mark."""
        row = self._object(value, where)
        place, name = self._place(row.get("locIdx"), f"{where}.locIdx"), row.get("markerNameIdx")
        return Marker(
            place, self._name(name, f"{where}.markerNameIdx"), self._time(row, "timestamp", where),
            _rest(row, "locIdx", "markerNameIdx", "timestamp"),
        )  # fmt: skip

    def _range(self, value: Any, where: str) -> Range:
        """Return a range."""
        row = self._object(value, where)
        places = row.get("warpLocIdxs")
        if not isinstance(places, list) or len(places) != 2:
            raise self._error(f"{where}.warpLocIdxs", places, "two numbers")
        first, last = (self._place(place, f"{where}.warpLocIdxs") for place in places)
        return Range(
            self._name(row.get("rangeNameIdx"), f"{where}.rangeNameIdx"), self._time(row, "startTs", where),
            self._time(row, "endTs", where), first, last, _rest(row, "rangeNameIdx", "startTs", "endTs", "warpLocIdxs"),
        )  # fmt: skip

    def _error(self, where: str, value: Any, expected: str) -> TraceError:
        """Return the error for an invalid value."""
        return TraceError(f"{self._path}: {where} is {value!r:.80}, expected {expected}")

    def _object(self, value: Any, where: str) -> Json:
        """Return a value that must be an object."""
        if not isinstance(value, dict):
            raise self._error(where, value, "an object")
        return value

    def _list(self, table: Json, name: str) -> list[Any]:
        """Return a member that must be a list."""
        value = table.get(name)
        if not isinstance(value, list):
            raise self._error(name, value, "a list")
        return value

    def _text(self, value: Any, where: str) -> str:
        """Return a value that must be a text."""
        if not isinstance(value, str):
            raise self._error(where, value, "a text")
        return value

    def _integer(self, value: Any, where: str, least: int = -_MOST_INTEGER, most: int = _MOST_INTEGER) -> int:
        """Return a value that must be an integer from ``least`` to below ``most``."""
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value < most:
            raise self._error(where, value, "an integer" if most == _MOST_INTEGER else f"a number below {most:,}")
        return value

    def _time(self, row: Json, name: str, where: str) -> int:
        """Return a member that must be a time."""
        return self._integer(row.get(name), f"{where}.{name}")

    def _place(self, value: Any, where: str) -> int:
        """Return the index of a place, which must be in the table."""
        return self._integer(value, where, 0, self._locations)

    def _name(self, value: Any, where: str) -> int:
        """Return the index of a string, which must be in the table."""
        return self._integer(value, where, 0, self._strings)


def _rest(row: Json, *known: str) -> Json:
    """Return the members of an object that are not known."""
    return {name: value for name, value in row.items() if name not in known}


def document_of(file: EventFile) -> Json:
    """Return the document of a file of events, as ``json.dumps`` takes it."""
    graphs = {key: [launch_document(launch) for launch in launches] for key, launches in file.graphs.items()}
    return {
        "graphLaunches": graphs,
        "launches": [launch_document(launch) for launch in file.launches],
        "locationTable": [location_document(location) for location in file.locations],
        "stringTable": list(file.strings),
        **file.more,
    }


def location_document(location: Location) -> Json:
    """Return the object of a place."""
    return {"ctaId": list(location.cta), "smId": location.sm, "warpId": location.warp, **location.more}


def lifetime_document(lifetime: Lifetime) -> Json:
    """Return the object of a lifetime."""
    return {"locIdx": lifetime.location, "startTs": lifetime.begin, "endTs": lifetime.end, **lifetime.more}


def marker_document(marker: Marker) -> Json:
    """Return the object of a mark."""
    return {
        "locIdx": marker.location, "markerNameIdx": marker.name, "timestamp": marker.time, **marker.more
    }  # fmt: skip


def range_document(one: Range) -> Json:
    """Return the object of a range."""
    return {
        "rangeNameIdx": one.name, "startTs": one.begin, "endTs": one.end, "warpLocIdxs": [one.first, one.last],
        **one.more,
    }  # fmt: skip


def launch_head(launch: Launch) -> Json:
    """Return the object of a launch without its events."""
    grid = {f"gridDim{axis}": size for axis, size in zip("XYZ", launch.grid, strict=True)}
    block = {f"blockDim{axis}": size for axis, size in zip("XYZ", launch.block, strict=True)}
    ids = {"contextId": launch.context, "gridId": launch.number}
    return {"kernelName": launch.kernel, **grid, **block, **ids, **launch.more}


def launch_document(launch: Launch) -> Json:
    """Return the object of a launch."""
    return launch_head(launch) | {
        "markers": [marker_document(marker) for marker in launch.markers],
        "ranges": [range_document(one) for one in launch.ranges],
        "warpLifetimes": [lifetime_document(lifetime) for lifetime in launch.lifetimes],
    }


@dataclass
class Exported:
    """What a file of events has that was written from a trace. missing: warps without times, of the launches that are
    in the file. left_out: maps whose times are of another clock than the warps'.
    """

    launches: int = 0
    lifetimes: int = 0
    ranges: int = 0
    markers: int = 0
    missing: int = 0
    timebases: set[str] = field(default_factory=set)
    left_out: set[str] = field(default_factory=set)


def write_iket(
    trace: Trace, path: str | Path, kernels: Sequence[TraceKernel] | None = None, launches: range | None = None
) -> Exported:
    """Write the launches of a trace that tell when their warps ran, as a file of IKET's events. Returns what is in it.

    Nanoseconds are the GPU's own. Cycles and steps begin with the time at which the host submitted the launch; the
    launch says in ``timebase`` which it has. Raises OSError if the file cannot be written, and TraceError for damaged
    data.
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with part.open("w") as file, tempfile.TemporaryFile("w+", dir=target.parent or None) as places:
            written = _Writer(trace, file, places).write(list(trace.kernels if kernels is None else kernels), launches)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return written


class _Writer:
    """Writes the events of a trace piece by piece: the places, which are written last, wait in a file of their own."""

    def __init__(self, trace: Trace, file: IO[str], places: IO[str]) -> None:
        """Prepare to write. places: an empty file."""
        self._trace, self._file, self._places_file = trace, file, places
        self._names = Names()
        self._strings = Names()
        self._places = 0
        self._written = Exported()

    def write(self, kernels: Sequence[TraceKernel], launches: range | None) -> Exported:
        """Write the whole file."""
        put = self._file.write
        put('{"launches": [')
        self._launches(kernels, launches, lambda graph: graph == 0)
        put('],\n"graphLaunches": {')
        graphs = sorted({int(record) for record in np.unique(self._trace.launches["graph"])} - {0})
        is_first = True
        for graph in graphs:
            numbers = [number for number in self._numbers(kernels, launches) if self._graph(number) == graph]
            if numbers:
                put(f"{'' if is_first else ', '}{json.dumps(str(graph))}: [")
                self._launches(kernels, launches, lambda its, graph=graph: its == graph)
                put("]")
                is_first = False
        put('},\n"locationTable": [')
        self._places_file.seek(0)
        while text := self._places_file.read(1 << 20):
            put(text)
        put(f'],\n"stringTable": {json.dumps(self._strings.texts)},\n"producer": "Neutrino"}}\n')
        return self._written

    def _numbers(self, kernels: Sequence[TraceKernel], launches: range | None) -> Iterator[int]:
        """Yield the launches with data."""
        for kernel in kernels:
            yield from kernel.written_numbers(launches).tolist()

    def _graph(self, number: int) -> int:
        """Return the graph that a launch is of; 0 for none."""
        return int(self._trace.launches["graph"][number])

    def _launches(self, kernels: Sequence[TraceKernel], launches: range | None, wanted: Any) -> None:
        """Write the launches of some graphs. wanted: whether one of a graph is."""
        is_first = True
        for launch in timelines(self._trace, kernels, self._names, launches):
            if wanted(int(launch.record["graph"])) and launch.span.warps:
                self._file.write("\n" if is_first else ",\n")
                self._launch(launch)
                is_first = False

    def _launch(self, launch: LaunchTimeline) -> None:
        """Write one launch."""
        record, span = launch.record, launch.span
        x, y, z = (int(size) for size in record["grid"])
        a, b, c = (int(size) for size in record["block"])
        more: Json = {"timebase": launch.unit.value, "warpsWithoutTimes": span.missing}
        head = Launch(
            launch.kernel.name, (x, y, z), (a, b, c), int(record["context"]), launch.number, (), (), (), more
        )
        put = self._file.write
        put(json.dumps(launch_head(head))[:-1] + ', "warpLifetimes": [')
        begin = min(span.begin or int(record["submit_ns"]), LATEST)
        # The lists follow each other, so ranges and marks wait.
        waiting = [tempfile.SpooledTemporaryFile(_MOST_WAITING, "w+") for _ in range(2)]  # noqa: SIM115
        is_first = True
        for piece in launch.pieces():
            part = piece.lifetimes
            base = self._places
            block, warp = np.divmod(part.warp, launch.warps)
            axes = [(block % x).tolist(), (block // x % y).tolist(), (block // (x * y)).tolist()]
            rows = zip(*axes, part.sm.tolist(), warp.tolist(), strict=True)
            texts = [
                f'{{"ctaId": [{i}, {j}, {k}], "gpcId": -1, "smId": {sm}, "tpcId": -1, "warpId": {number}}}'
                for i, j, k, sm, number in rows
            ]
            self._places_file.write((",\n" if base and texts else "") + ",\n".join(texts))
            self._places += len(texts)
            lives = zip((begin + part.begin).tolist(), (begin + part.end).tolist(), strict=True)
            texts = [json.dumps(lifetime_document(Lifetime(base + i, *times))) for i, times in enumerate(lives)]
            put(("" if is_first or not texts else ", ") + ", ".join(texts))
            is_first = is_first and not texts
            self._written.lifetimes += len(texts)
            for ranges in piece.ranges:
                named = zip(ranges.name.tolist(), ranges.is_open.tolist(), strict=True)
                columns = (ranges.row + base, begin + ranges.begin, begin + ranges.end, ranges.payload)
                found = zip(
                    [self._name(name, is_open) for name, is_open in named],
                    *(column.tolist() for column in columns), strict=True,
                )  # fmt: skip
                for name, place, first, last, payload in found:
                    value = _payload(payload) if ranges.has_payload else {}
                    if ranges.is_mark:
                        more = {"color": _COLOUR, **value}
                        self._wait(waiting[1], marker_document(Marker(place, name, first, more)))
                        self._written.markers += 1
                        continue
                    more = {
                        "internalEvents": [
                            {"eventId": 2 * name, "timestamp": first, **value},
                            {"eventId": 2 * name + 1, "timestamp": last},
                        ],
                        "rangeId": zlib.crc32(self._strings.texts[name].encode("utf-8", "backslashreplace")),
                        "rangeType": 2, "rangeScope": 0, "rangeColor": _COLOUR,
                    }  # fmt: skip
                    self._wait(waiting[0], range_document(Range(name, first, last, place, place, more)))
                    self._written.ranges += 1
        for title, rows_file in zip(("ranges", "markers"), waiting, strict=True):
            put(f'], "{title}": [')
            rows_file.seek(0)
            while text := rows_file.read(1 << 20):
                put(text)
            rows_file.close()
        put("]}")
        self._written.launches += 1
        self._written.missing += span.missing
        self._written.timebases.add(launch.unit.value)
        self._written.left_out.update(launch.sources.left_out)

    @staticmethod
    def _wait(file: IO[str], document: Json) -> None:
        """Write an entry of a list into a file."""
        file.write((", " if file.tell() else "") + json.dumps(document))

    def _name(self, number: int, is_open: bool) -> int:
        """Return the index of a range's name in the table of strings."""
        return self._strings.number(self._names.texts[number] + (UNCLOSED if is_open else ""))


def _payload(value: int | float) -> Json:
    """Return the members of an event that hold a payload."""
    if isinstance(value, int):
        return {"payloadType": _PAYLOAD_INTEGER, "payloadVal": value}
    return {"payloadVal": value if np.isfinite(value) else str(value)}
