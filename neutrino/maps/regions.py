"""Regions: the device memory of a launch's maps.

Region of map m of a launch with W = blocks · warps_per_block warps (``region_layout``)::

    array, thread level   records [W][cap][32],   counts u32 [W][32]   unless cap = 1
    array, warp level     records [W][cap],       counts u32 [W]       unless cap = 1
    array, block level    records [blocks][cap],  counts u32 [blocks]  unless cap = 1
    sum                   records [sum_copies(W)], each ``sum_stride`` bytes; the reader adds the copies

The warp index is block · warps_per_block + warp, block the linear index of the block in the grid (x fastest),
warp and lane those of the linear thread index in the block (x fastest). Slots of a warp belong to its lane 0, those of
a block to its thread 0. A dynamic cap is one number for all such maps of a launch; these have counts whatever it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neutrino.abi.levels import Level
from neutrino.abi.structures import align_up
from neutrino.maps.declaration import DYNAMIC_CAP, Map, MapKind

LANES = 32
REGION_ALIGN = 128
"""Every records and counts section of a region starts at a multiple of this."""
SUM_COPIES_LEAST, SUM_COPIES_MOST = 8, 128
"""Copies of a sum's record in a launch, powers of two; see ``sum_copies``."""
SUM_WARPS_PER_COPY = 32
SUM_ALIGN = 128
"""Each copy has lines of the cache to itself: atomics on one line wait for each other."""
DYNAMIC_FIRST = 64
"""Dynamic cap of a kernel's first launches."""
DYNAMIC_STEP = 8
"""Later ones are multiples of it."""
DYNAMIC_MOST = 1 << 20


def sum_copies(warps: int) -> int:
    """Copies of a sum's record in a launch of so many warps (``sum_copies`` in C).

    Multiprocessors share a copy, so that small launches leave little to read. On an H200 a kernel that moves memory as
    fast as it can took 1.56 times as long with 32 copies 64 bytes apart, 1.00 with 128 copies 128 bytes apart.
    """
    copies = SUM_COPIES_LEAST
    while copies < SUM_COPIES_MOST and copies * SUM_WARPS_PER_COPY < warps:
        copies *= 2
    return copies


def sum_stride(record_size: int) -> int:
    """Bytes from one copy of a sum map's record to the next."""
    return align_up(record_size, SUM_ALIGN)


@dataclass(frozen=True)
class Region:
    """Where one map's data lie in a launch's regions, in bytes from their start. counts: None without."""

    records: int
    records_size: int
    counts: int | None
    counts_size: int


def has_counts(entry: Map) -> bool:
    """Whether the slots of a map count their saves."""
    return entry.kind is MapKind.ARRAY and entry.cap != 1


def cap_of(entry: Map, dynamic_cap: int) -> int:
    """Records a slot of a map in a launch with that dynamic cap."""
    return dynamic_cap if entry.cap == DYNAMIC_CAP else entry.cap


def region_layout(
    maps: Sequence[Map], blocks: int, warps_per_block: int, dynamic_cap: int = 0
) -> tuple[tuple[Region, ...], int]:
    """Regions of a launch, and the bytes of all (``nt_region_of`` in C). dynamic_cap: 0 where no map has one."""
    offset = 0
    regions = []
    for entry in maps:
        slots = blocks
        if entry.level is not Level.BLOCK:
            slots *= warps_per_block * (LANES if entry.level is Level.THREAD else 1)
        if entry.kind is MapKind.SUM:
            records_size = sum_copies(blocks * warps_per_block) * sum_stride(entry.size)
            counts_size = 0
        else:
            records_size = slots * cap_of(entry, dynamic_cap) * entry.size
            counts_size = slots * 4 if has_counts(entry) else 0
        records = offset
        offset = align_up(offset + records_size, REGION_ALIGN)
        counts = offset if counts_size else None
        offset = align_up(offset + counts_size, REGION_ALIGN)
        regions.append(Region(records, records_size, counts, counts_size))
    return tuple(regions), offset
