"""Regions: the device memory of a launch's maps, a pure function of the maps and the launch's shape.

Region of map m of a launch with W = blocks · warps_per_block warps (``region_layout``)::

    in slots, thread level   records [W][cap][lanes], counts u32 [W][lanes] unless it is an array with cap 1
    in slots, warp level     records [W][cap],        counts u32 [W]        the same
    in slots, block level    records [blocks][cap],   counts u32 [blocks]   the same
    in chunks                control words, then log_units units for chunks unless cap = 0, see ``log.py``
    in copies                records [copies_of(m, W)], each ``copy_stride`` bytes; the reader combines the copies
    the same, per block …    records [1 + rows], each ``row_stride`` bytes, rows: blocks, W, W · lanes or SM_ROWS

The warp index is block · warps_per_block + warp, block the linear index of the block in the grid (x fastest),
warp and lane those of the linear thread index in the block (x fastest). Slots of a warp belong to its lane 0, those of
a block to its thread 0.
Of rows, one for each block, warp, thread or multiprocessor, the first belongs to none: what has no row of its own is
added to it, so that nothing is ever written elsewhere.
C has the same formulas in ``regions.c``, ``read.py`` in ``parse``; what differs between types comes from their classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neutrino.abi.levels import Level, Per
from neutrino.abi.structures import align_up
from neutrino.maps.declaration import NO_LIMIT, Layout, Map, MapType
from neutrino.maps.log_reading import LOG_CONTROL, LOG_UNIT

LANES = 32
"""Lanes of a warp where a file of an earlier version says none: it is of NVIDIA's GPUs."""
REGION_ALIGN = 128
"""Every records and counts section of a region starts at a multiple of this."""
COPIES_LEAST, COPIES_MOST = 8, 128
"""Copies of a record in a launch, powers of two; see ``copies_in``."""
WARPS_PER_COPY = 32
COPY_ALIGN = 128
"""Each copy has cache lines of its own, since atomics on one line wait for each other."""
SM_ROWS = 256
"""Rows of a map per multiprocessor; their numbers (``%smid``) begin at 0, and no GPU has as many."""
ROW_ALIGN = 8
"""Rows of blocks, warps and threads are next to each other: hardly two warps add to one at a time."""
_COUNT_SIZE = 4
"""Bytes of a slot's count, a u32."""


def copies_in(warps: int) -> int:
    """Return how many copies of a record a launch of ``warps`` warps has, unless the map's type has a lower limit.

    More copies mean fewer atomics on the same cache line, and more to read afterwards. C has the same formula,
    ``nt_copies_in``. On an H200 a kernel that moves memory as fast as it can took 1.56 times as long with 32 copies 64
    bytes apart, 1.00 with 128 copies 128 bytes apart.
    """
    copies = COPIES_LEAST
    while copies < COPIES_MOST and copies * WARPS_PER_COPY < warps:
        copies *= 2
    return copies


def copy_stride(record_size: int) -> int:
    """Return the distance in bytes between two of the copies of a map's record that a launch has."""
    return align_up(record_size, COPY_ALIGN)


def most_copies(kind: MapType, record_size: int) -> int:
    """Return how many copies of its record a map may have: a power of two.

    kind: the map's type, whose ``copies_bytes`` limits all copies together. record_size: in bytes.
    """
    copies = COPIES_MOST
    # One copy is allowed even if it alone is above the limit.
    while kind.copies_bytes != NO_LIMIT and copies > 1 and copies * copy_stride(record_size) > kind.copies_bytes:
        copies //= 2
    return copies


def copies_of(entry: Map, warps: int) -> int:
    """Return how many copies of a map's record a launch of ``warps`` warps has."""
    return min(copies_in(warps), most_copies(entry.kind, entry.size))


def rows_of(per: Per, blocks: int, warps_per_block: int, lanes: int) -> int:
    """Return how many rows a launch has of a map that keeps one for each block, warp, thread or multiprocessor
    (``per``).

    blocks: of the grid. lanes: of a warp.
    """
    if per is Per.SM:
        return SM_ROWS
    rows = blocks
    if per is not Per.BLOCK:
        rows *= warps_per_block * (lanes if per is Per.THREAD else 1)
    return rows


def row_stride(entry: Map) -> int:
    """Return the distance in bytes between two rows (results of blocks, warps …) of a map.

    Rows of multiprocessors are further apart, in cache lines of their own, since warps of many blocks add to one.
    """
    return copy_stride(entry.size) if entry.per is Per.SM else align_up(entry.size, ROW_ALIGN)


@dataclass(frozen=True)
class Region:
    """Where one map's data are, in bytes from the start of a launch's regions. counts: None if the map has none."""

    records: int
    records_size: int
    counts: int | None
    counts_size: int


def has_counts(entry: Map) -> bool:
    """Return whether a map whose threads, warps or blocks store records has counts of these."""
    return entry.kind.layout is Layout.SLOTS and (entry.cap != 1 or entry.kind.keeps_last)


def region_layout(
    maps: Sequence[Map], blocks: int, warps_per_block: int, lanes: int, log_units: int = 0,
    *, in_frame: bool = False,
) -> tuple[tuple[Region, ...], int]:
    """Return where each map's data are in a launch's device memory, and the bytes of all (``nt_region_of`` in C).

    blocks: of the grid. warps_per_block: a partial warp counts. lanes: of a warp. log_units: how many units of
    ``LOG_UNIT`` bytes each log (map whose records are in chunks) has. in_frame: as launches are stored in a trace,
    which have nothing of the maps per run.
    """
    offset = 0
    regions = []
    for entry in maps:
        # Slots: one for each block, warp or thread. A partial warp has slots for all lanes.
        slots = blocks
        if entry.level is not Level.BLOCK:
            slots *= warps_per_block * (lanes if entry.level is Level.THREAD else 1)
        if entry.kind.layout is Layout.SLOTS:
            records_size = slots * entry.cap * entry.size
            counts_size = slots * _COUNT_SIZE if has_counts(entry) else 0
        elif entry.kind.layout is Layout.CHUNKS:
            # cap: 1, or 0 of a log that a kernel's twin never saves to.
            records_size, counts_size = LOG_CONTROL + entry.cap * log_units * LOG_UNIT, 0
        elif entry.per is Per.RUN and in_frame:
            records_size = counts_size = 0
        elif entry.per.has_rows:
            rows = 1 + rows_of(entry.per, blocks, warps_per_block, lanes)
            records_size, counts_size = rows * row_stride(entry), 0
        else:
            records_size = copies_of(entry, blocks * warps_per_block) * copy_stride(entry.size)
            counts_size = 0
        # Records, then counts if there are any: without them, the second step leaves the offset as it is.
        records = offset
        offset = align_up(offset + records_size, REGION_ALIGN)
        counts = offset if counts_size else None
        offset = align_up(offset + counts_size, REGION_ALIGN)
        regions.append(Region(records, records_size, counts, counts_size))
    return tuple(regions), offset


def run_layout(maps: Sequence[Map]) -> tuple[tuple[tuple[Map, Region], ...], int]:
    """Return the maps per run of a kernel, each with where its record is in the kernel's result, and the bytes of all.

    A map per run has one result over all launches of the kernel.
    """
    offset = 0
    regions = []
    for entry in maps:
        if entry.per is Per.RUN:
            regions.append((entry, Region(offset, entry.size, None, 0)))
            offset = align_up(offset + entry.size, REGION_ALIGN)
    return tuple(regions), offset
