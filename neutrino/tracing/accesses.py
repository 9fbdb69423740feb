"""What a launch's accesses to memory are like, from a log that has each of them, as that of the probe ``dmat``.

By instruction: how the addresses of a warp's lanes lie, and how many sectors and lines they touch. Over the launch:
which pages when, how large the working set is, and how far apart a line comes again. ``csrc/accesses.c`` does the two
passes over the records.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import fields
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.abi.levels import Level
from neutrino.errors import NeutrinoError
from neutrino.late_dataclass import dataclass
from neutrino.maps.declaration import Layout, Map
from neutrino.maps.log_reading import read_log, slot_slices
from neutrino.tracing.aggregate import LIBRARY
from neutrino.tracing.log_records import address_of, groups_of, log_library
from neutrino.tracing.views import MapView

Array = npt.NDArray[Any]
KINDS = ("load", "store", "atomic", "reduction", "asynchronous copy")
"""What the field ``kind`` counts from 0."""
LINE = 128
"""Bytes of a line, of which the working set and the distances of reuse are computed."""
INTERVALS = 64
"""Of a launch, of equal length, for each of which there is a working set."""
_WANTED = ("address", "clock", "site", "bytes", "kind")
_PAGE_BITS = 12
_COLUMNS, _TIMES, _WARP_ROWS = 1024, 256, 256
_MEMORY = 64 << 20
"""Bytes that the second pass may take for what it knows of lines."""
_SAMPLE = 1 << 20
"""Lines' accesses that are followed to learn the distances of reuse."""
_LOG_BATCH = 1 << 20
_ACCESS = np.dtype(
    [("address", "<u8"), ("clock", "<u8"), ("slot", "<u4"), ("site", "<u4"), ("bytes", "<u2"), ("kind", "u1"),
     ("lane", "u1"), ("spare", "<u4")]
)  # fmt: skip
_SITE = np.dtype(
    [(name, "<u8") for name in (
        "accesses", "bytes", "executions", "single", "broadcast", "linear", "strided", "irregular", "sectors", "lines",
        "lowest", "highest",
    )] + [("stride", "<i8"), ("other_strides", "<u8"), ("apart_pairs", "<u8"), ("apart", "<f8"),
          ("kinds", "<u8", (len(KINDS),))]
)  # fmt: skip
_FACTS = np.dtype([(name, "<u8") for name in (
    "sites", "site_count", "strange", "first_clocks", "slot_count", "first_clock", "last_clock", "names", "areas",
    "page_count", "area_count", "table_bits", "columns", "column_pages", "column_parts", "times", "column_accesses",
    "page_accesses", "is_shared", "grid", "warp_rows", "warp_grid", "granule_bits", "granule_words", "touched",
    "sample_mask", "sample_count", "sample_room", "sample_clocks", "sample_lines", "pass",
    "is_out_of_memory", "are_sized", "empty",
)])  # fmt: skip
"""Structures of ``accesses.c``."""


class Pattern(Enum):
    """How the addresses of the lanes that execute an instruction together lie."""

    BROADCAST = "broadcast"
    """All lanes have the same address."""
    LINEAR = "linear"
    """Each lane's address is the one after the lane before."""
    STRIDE = "stride"
    """From lane to lane the address grows, or falls, by the same number of bytes, which is not those of an access."""
    GATHER = "gather"
    """Neither, but neighbouring lanes are nearer to each other than by chance."""
    RANDOM = "random"
    """Neighbouring lanes are as far apart as by chance: a third of the instruction's range of addresses."""
    SINGLE = "single lanes"
    """Only one lane executed it."""


_NEAR = 0.25
"""Of the range of addresses. Neighbouring lanes with equally distributed addresses are a third of it apart."""


@dataclass(frozen=True)
class SiteAccesses:
    """The accesses of one instruction.

    site: its number in the manifest. kind: of ``KINDS``. accesses: of lanes. bytes: of these. executions: of warps, by
    lanes that executed it together. patterns: how many executions by pattern. stride: bytes from lane to lane, the same
    in all strided executions; None if it varies. sectors, lines: of 32 and of 128 bytes, that each execution touched,
    summed. lowest, highest: addresses of the first byte and after the last one.
    """

    site: int
    kind: str
    accesses: int
    bytes: int
    executions: int
    patterns: dict[Pattern, int]
    stride: int | None
    sectors: int
    lines: int
    lowest: int
    highest: int

    @property
    def pattern(self) -> Pattern:
        """The pattern of most executions."""
        return max(self.patterns, key=lambda pattern: self.patterns[pattern])

    @property
    def sectors_least(self) -> int:
        """Sectors of 32 bytes that as many bytes take at least."""
        return -(-self.bytes // 32)


@dataclass(frozen=True)
class Region:
    """Pages that were touched and follow each other. begin, end: addresses, of whole pages of 4 KiB. accesses: to them.
    columns: of the grid, from the first to the one after the last."""

    begin: int
    end: int
    accesses: int
    columns: tuple[int, int]


@dataclass(frozen=True)
class AccessFacts:
    """What is known of a launch's accesses.

    accesses, bytes: of lanes. strange: records of no instruction or kind that there is. sites: by number. page_bytes:
    of a column of the grid. pages: the address of each column's first byte; columns are touched pages alone, and
    addresses between are left out. grid: accesses, u32 ``[kind][time][column]``. warp_grid: accesses, u32
    ``[warp row][column]``, of equal parts of the launch's warps. first_clock, last_clock: of the launch.
    working_set: bytes in lines that each of 64 equal intervals touched; footprint: those touched up to the end of each.
    line: bytes of what these count. reuse: how many line accesses came again after i bits of other lines, scaled;
    reuse_first: those of lines that came for the first time, scaled; reuse_sample: the share of lines followed.
    starts_apart: how far apart, in ticks of the clock, the first accesses of the blocks were that begin together; None
    if that is not known. empty: records of 0 bytes, as of masked copies, which access nothing: in no other figure.
    """

    accesses: int
    bytes: int
    strange: int
    sites: tuple[SiteAccesses, ...]
    page_bytes: int
    pages: Array
    regions: tuple[Region, ...]
    grid: Array
    warp_grid: Array
    first_clock: int
    last_clock: int
    line: int
    working_set: Array
    footprint: Array
    reuse: Array
    reuse_first: int
    reuse_sample: float
    starts_apart: int | None
    empty: int

    def hit_rate(self, size: int) -> float | None:
        """Return the share of line accesses that a fully associative cache of ``size`` bytes with LRU would hit, in the
        order of the clocks; None without accesses. Distances are known by powers of two: those of the size's own power
        count as misses."""
        total = int(self.reuse.sum()) + self.reuse_first
        lines = max(size // LINE, 1)
        # A distance of i bits is less than 2**i, so that it needs so many lines at most.
        return float(self.reuse[: lines.bit_length()].sum()) / total if total else None


def has_accesses(entry: Map) -> bool:
    """Return whether a map (what probes save to) has accesses: a log at thread level with the fields ``address`` and
    ``site``, integers; ``clock``, ``bytes`` and ``kind`` are used where they are."""
    integers = {field.name for field in entry.fields if field.type.value[0] in "bus"}
    is_log = entry.kind.layout is Layout.CHUNKS and entry.level is Level.THREAD
    return is_log and {"address", "site"} <= integers


def read_accesses(view: MapView, sites: int, together: int = 0) -> AccessFacts:
    """Read what the accesses of one launch are like.

    view: of a map that ``has_accesses``, of one launch. sites: how many instructions the manifest has, from number 0
    on. together: blocks that begin together, as the device has multiprocessors; 0 if that is not known. Raises
    ValueError for another map, and NeutrinoError without the library or memory.
    """
    if not has_accesses(view.map) or view.records.ndim != 1:
        raise ValueError(f"map {view.map.name!r}: accesses are read of a log of one launch, with address and site")
    return _Reader(view, sites, together).read()


def _library() -> ctypes.CDLL:
    """Return the library that does the passes. Raises NeutrinoError if it is missing or of another version."""
    library = log_library()
    if library is None:
        raise NeutrinoError(
            f"{LIBRARY}: cannot be loaded, which reads accesses; build it: python -m neutrino.tracing.build"
        )
    return library


@dataclass(frozen=True)
class _Room:
    """What the second pass fills, by the names of ``accesses.c``. page_accesses: of the columns in ``is_shared``, which
    have pages of several runs; of other pages 0."""

    grid: Array
    warp_grid: Array
    column_accesses: Array
    page_accesses: Array
    is_shared: Array
    touched: Array
    sample_clocks: Array
    sample_lines: Array


class _Reader:
    """The two passes over one launch's accesses."""

    def __init__(self, view: MapView, sites: int, together: int) -> None:
        """Prepare for a launch. Parameters: as of ``read_accesses``."""
        self._library = _library()
        self._view, self._together = view, together
        self._slots = view.geometry.blocks * view.geometry.warps
        self._sites = np.zeros(sites, _SITE)
        self._first_clocks = np.full(self._slots, (1 << 64) - 1, "<u8")
        self._facts = np.zeros((), _FACTS)
        self._facts["sites"], self._facts["site_count"] = self._sites.ctypes.data, sites
        self._facts["are_sized"] = "bytes" in (view.map.dtype.names or ())
        self._facts["first_clocks"], self._facts["slot_count"] = self._first_clocks.ctypes.data, self._slots
        self._log, self._groups = groups_of(self._library, view.records)

    def read(self) -> AccessFacts:
        """Do both passes, and return what they found."""
        facts, library = self._facts, self._library
        try:
            if not library.nt_accesses_begin(address_of(facts)):
                raise _no_memory()
            self._pass()
            library.nt_accesses_count(address_of(facts))
            pages = np.empty(int(facts["page_count"]), "<u8")
            if facts["is_out_of_memory"] or not library.nt_accesses_number(address_of(facts), address_of(pages)):
                raise _no_memory()
            room = self._prepare(pages)
            self._pass()
            return self._found(pages, room)
        finally:
            library.nt_accesses_end(address_of(facts))

    def _pass(self) -> None:
        """Go through all records once."""
        if self._groups is not None:
            places = np.zeros(1 + 2 * len(_WANTED), "<u8")
            places[0] = self._view.map.size
            of_records: Any = self._view.map.dtype.fields
            for number, name in enumerate(_WANTED):
                if name in of_records:
                    kind, offset = of_records[name][:2]
                    places[1 + number], places[1 + len(_WANTED) + number] = offset, kind.itemsize
            self._library.nt_accesses_of_groups(
                address_of(self._facts), address_of(places), address_of(self._log), ctypes.c_uint64(len(self._log)),
                address_of(self._groups), ctypes.c_uint64(len(self._groups)),
            )  # fmt: skip
            return
        for accesses in self._decoded():
            self._library.nt_accesses_add(address_of(self._facts), address_of(accesses), ctypes.c_uint64(len(accesses)))

    def _decoded(self) -> Iterator[Array]:
        """Yield the records of a log that is not of groups, those of an execution after one another."""
        entry = self._view.map
        for part in slot_slices(self._view.records, entry.size, _LOG_BATCH):
            rows = read_log(part, {"size": entry.size})
            records = np.ascontiguousarray(rows["record"]).view(entry.dtype)
            accesses = np.zeros(len(rows), _ACCESS)
            for name in _WANTED:
                if name in (records.dtype.names or ()):
                    values = records[name]
                    most = {"kind": len(KINDS), "bytes": 0xFFFF}.get(name)
                    accesses[name] = values if most is None else np.minimum(values, most)
            accesses["slot"], accesses["lane"] = rows["slot"], rows["lane"]
            order = np.lexsort((accesses["lane"], accesses["site"], accesses["clock"], accesses["slot"]))
            yield accesses[order]

    def _prepare(self, pages: Array) -> _Room:
        """Make room for the second pass. pages: that the first one found, ascending."""
        facts = self._facts
        count = max(len(pages), 1)
        together = max((count - 1).bit_length() - _COLUMNS.bit_length() + 1, 0)
        parts = min(max((_COLUMNS // count).bit_length() - 1, 0), _PAGE_BITS - 7)
        columns = ((count - 1 >> together) + 1) << parts
        granule = 7
        while (count << _PAGE_BITS >> granule) * 8 > _MEMORY:
            granule += 1
        words = (count << _PAGE_BITS >> granule) // 64 + 1
        rows = min(_WARP_ROWS, max(self._slots, 1))
        begins, ends = _runs(pages)
        is_shared = np.zeros(columns, "u1")
        is_shared[(begins[1:] >> together)[begins[1:] >> together == ends[:-1] - 1 >> together]] = 1
        room = _Room(
            np.zeros((len(KINDS), _TIMES, columns), "<u4"), np.zeros((rows, columns), "<u4"),
            np.zeros(columns, "<u8"), np.zeros(count, "<u8"), is_shared,
            np.zeros((INTERVALS, words), "<u8"), np.zeros(_SAMPLE, "<u8"), np.zeros(_SAMPLE, "<u8"),
        )  # fmt: skip
        for field in fields(room):
            facts[field.name] = getattr(room, field.name).ctypes.data
        for name, value in (
            ("columns", columns), ("column_pages", together), ("column_parts", parts), ("times", _TIMES),
            ("warp_rows", rows), ("granule_bits", granule), ("granule_words", words), ("sample_room", _SAMPLE),
        ):  # fmt: skip
            facts[name] = value
        return room

    def _found(self, pages: Array, room: _Room) -> AccessFacts:
        """Put together what both passes found."""
        facts = self._facts
        parts, together = int(facts["column_parts"]), int(facts["column_pages"])
        page_bytes = 1 << _PAGE_BITS >> parts
        firsts = (pages[:: 1 << together, None] << _PAGE_BITS) + np.arange(1 << parts, dtype="<u8") * page_bytes
        reuse, first, share = self._reuse(room.sample_clocks, room.sample_lines)
        line = 1 << int(facts["granule_bits"])
        working, begun = np.zeros(INTERVALS, "<u8"), np.zeros(INTERVALS, "<u8")
        self._library.nt_accesses_intervals(address_of(facts), address_of(working), address_of(begun))
        footprint = np.cumsum(begun.astype(np.int64))
        is_any = bool(self._sites["accesses"].any())
        return AccessFacts(
            int(self._sites["accesses"].sum()), int(self._sites["bytes"].sum()), int(facts["strange"]),
            tuple(_site(number, self._sites[number]) for number in np.flatnonzero(self._sites["accesses"]).tolist()),
            page_bytes << together, firsts.reshape(-1), tuple(_regions(pages, room, together, parts)),
            room.grid, room.warp_grid, int(facts["first_clock"]) if is_any else 0, int(facts["last_clock"]), line,
            working.astype(np.int64) * line, footprint * line, reuse, first, share, self._starts_apart(),
            int(facts["empty"]),
        )  # fmt: skip

    def _reuse(self, clocks: Array, lines: Array) -> tuple[Array, int, float]:
        """Return the distances of reuse by their bits, the lines' first accesses, both scaled to all lines, and the
        share of lines that were followed."""
        count = int(self._facts["sample_count"])
        every = int(self._facts["sample_mask"]) + 1
        # Accesses with the same clock are in the order of the log.
        order = np.argsort(clocks[:count], kind="stable")
        names, numbers = np.unique(lines[:count], return_inverse=True)
        followed = np.ascontiguousarray(numbers[order], "<u4")
        distances = np.zeros(65, "<u8")
        first = self._library.nt_accesses_reuse(
            address_of(followed), ctypes.c_uint64(count), ctypes.c_uint64(len(names)), address_of(distances)
        )
        if first < 0:
            raise _no_memory()
        # Between two accesses to a line there are so many times as many others.
        shift = every.bit_length() - 1
        scaled = np.zeros(65, np.int64)
        scaled[0] = distances[0] * every
        scaled[1 + shift :] = distances[1 : 65 - shift] * every
        return scaled, first * every, 1 / every

    def _starts_apart(self) -> int | None:
        """Return how far apart the first accesses of the blocks that begin together were, in ticks; None if unknown."""
        warps = self._view.geometry.warps
        blocks = self._first_clocks.reshape(-1, warps).min(axis=1) if self._slots else self._first_clocks
        begun = blocks[: self._together]
        begun = begun[begun != (1 << 64) - 1]
        return int(begun.max() - begun.min()) if len(begun) > 1 else None


def _no_memory() -> NeutrinoError:
    return NeutrinoError("there is too little memory to read the accesses; record fewer: -D BLOCKS=16, or --launches")


def _site(number: int, found: Any) -> SiteAccesses:
    """Return what the first pass found of one instruction."""
    irregular, pairs = int(found["irregular"]), int(found["apart_pairs"])
    extent = int(found["highest"]) - int(found["lowest"])
    is_random = pairs and float(found["apart"]) / pairs >= _NEAR * extent
    patterns = {
        Pattern.BROADCAST: int(found["broadcast"]), Pattern.LINEAR: int(found["linear"]),
        Pattern.STRIDE: int(found["strided"]), Pattern.RANDOM if is_random else Pattern.GATHER: irregular,
        Pattern.SINGLE: int(found["single"]),
    }  # fmt: skip
    return SiteAccesses(
        number, KINDS[int(np.argmax(found["kinds"]))], int(found["accesses"]), int(found["bytes"]),
        int(found["executions"]), {pattern: count for pattern, count in patterns.items() if count},
        int(found["stride"]) if found["strided"] and not found["other_strides"] else None,
        int(found["sectors"]), int(found["lines"]), int(found["lowest"]), int(found["highest"]),
    )  # fmt: skip


def _runs(pages: Array) -> tuple[Array, Array]:
    """Return where runs of pages that follow each other begin in ``pages``, and where they end."""
    breaks = np.flatnonzero(np.diff(pages) != 1) + 1
    return np.concatenate(([0], breaks)), np.concatenate((breaks, [len(pages)]))


def _regions(pages: Array, room: _Room, together: int, parts: int) -> Iterator[Region]:
    """Yield the runs of pages that follow each other. together, parts: logarithms of the pages that a column has, or of
    the columns that a page has."""
    if not len(pages):
        return
    begins, ends = _runs(pages)
    firsts, lasts = begins >> together << parts, ((ends - 1 >> together) + 1) << parts
    of_columns = np.append(0, np.cumsum(room.column_accesses.astype(np.int64) * (1 - room.is_shared)))
    of_pages = np.append(0, np.cumsum(room.page_accesses.astype(np.int64)))
    accesses = of_columns[lasts] - of_columns[firsts] + of_pages[ends] - of_pages[begins]
    columns = zip(firsts.tolist(), lasts.tolist(), strict=True)
    for begin, end, count, of_run in zip(
        pages[begins].tolist(), pages[ends - 1].tolist(), accesses.tolist(), columns, strict=True
    ):
        yield Region(begin << _PAGE_BITS, end + 1 << _PAGE_BITS, count, of_run)
