"""The memory of one launch's maps, the probe block that says where it is, and what a trace keeps of both.

For launches that a driver makes, the hook does the same in C (``regions.c``, ``frames.c``, ``runs.c``). This is for
kernels that an interpreter runs.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from neutrino.abi.levels import Per
from neutrino.abi.probe_block import block_size
from neutrino.maps.declaration import Layout, Map
from neutrino.maps.log_reading import LOG_CONTROL, LOG_OWN, LOG_UNIT
from neutrino.maps.regions import copies_in, copies_of, copy_stride, region_layout, run_layout

_HEADER = struct.Struct("<IIIIQ")
_ROW = struct.Struct("<QQ")
_GEOMETRY = struct.Struct("<6I")
_WORD = 8

Extents = tuple[int, int, int]
"""In x, y and z."""


@dataclass(frozen=True)
class LaunchMemory:
    """What a launch needs for its maps. The memory is zero when the launch begins.

    maps: those of the run, as the twin's manifest has them. grid: in blocks. block: in threads. lanes: of a warp.
    log_units: units of memory that each log has, of ``LOG_UNIT`` bytes. log_first: those of each warp's first chunk; 0:
    chunks are taken in turn. log_beyond: those left for more chunks, without which no warp has a first one of its own.
    """

    maps: Sequence[Map]
    grid: Extents
    block: Extents
    lanes: int
    log_units: int = 0
    log_first: int = 0
    log_beyond: int = 0

    @property
    def blocks(self) -> int:
        """How many blocks the grid has."""
        return math.prod(self.grid)

    @property
    def warps_per_block(self) -> int:
        """How many warps a block has; one that is not full counts."""
        return -(-math.prod(self.block) // self.lanes)

    @property
    def size(self) -> int:
        """How many bytes of memory on the device the maps (what probes save to) of this launch take."""
        _, size = region_layout(self.maps, self.blocks, self.warps_per_block, self.lanes, self.log_units)
        return size

    def probe_block(self, address: int, size: int, *, cell: int = 0) -> bytes:
        """Return the probe block of the launch (``nt_regions_describe`` in C).

        address: of the memory on the device; with a cell (its address) what must be added to the cell's value to have
        it. size: of the block in bytes, as the twin takes it: where 24 bytes are left after the maps, these are the
        launch's extents, u32 blocks of the grid in x, y and z, then threads of a block. Raises ValueError for another
        size, such as that of a twin with variables.
        """
        regions, _ = region_layout(self.maps, self.blocks, self.warps_per_block, self.lanes, self.log_units)
        warps = self.blocks * self.warps_per_block
        first = self.log_first if self.log_first * warps + self.log_beyond <= self.log_units else 0
        data = _HEADER.pack(self.warps_per_block, warps, 0, copies_in(warps) - 1, cell)
        for entry, region in zip(self.maps, regions, strict=True):
            counts = 0 if region.counts is None else address + region.counts
            if entry.kind.layout is Layout.CHUNKS and entry.cap:
                counts = self.log_units | first << 32
            data += _ROW.pack(address + region.records, counts)
        if size == len(data) + _GEOMETRY.size:
            data += _GEOMETRY.pack(*self.grid, *self.block)
        if size != len(data):
            expected = block_size(len(self.maps), 0)
            raise ValueError(f"a probe block of {size} bytes, expected {expected} or {expected + _GEOMETRY.size}")
        return data

    def frame(self, memory: bytes) -> tuple[int, bytes]:
        """Return what a trace keeps of the memory after the launch: how many units of each log, and the regions.

        Nothing of maps per run, and of logs as much as was used (``nt_frames_shrink`` in C).
        """
        sizes = self.blocks, self.warps_per_block, self.lanes
        regions, _ = region_layout(self.maps, *sizes, self.log_units)
        units = 0
        for entry, region in zip(self.maps, regions, strict=True):
            if entry.kind.layout is Layout.CHUNKS and entry.cap:
                (wanted,) = struct.unpack_from("<Q", memory, region.records)
                (own,) = struct.unpack_from("<Q", memory, region.records + LOG_OWN)
                units = max(units, 1, wanted + own)
        units = min(units, self.log_units)
        kept, size = region_layout(self.maps, *sizes, units, in_frame=True)
        data = bytearray(size)
        for entry, old, new in zip(self.maps, regions, kept, strict=True):
            records = new.records_size
            if entry.kind.layout is Layout.CHUNKS and entry.cap:
                records = LOG_CONTROL + units * LOG_UNIT
            data[new.records : new.records + records] = memory[old.records : old.records + records]
            if old.counts is not None and new.counts is not None:
                data[new.counts : new.counts + new.counts_size] = memory[old.counts : old.counts + old.counts_size]
        return units, bytes(data)

    def whole_run(self, memory: bytes) -> bytes:
        """Return the results of the maps per run, as if this launch were the only one of the run (``runs.c``); b""
        without such maps."""
        regions, _ = region_layout(self.maps, self.blocks, self.warps_per_block, self.lanes, self.log_units)
        places, size = run_layout(self.maps)
        data = bytearray(size)
        of_run = [region for entry, region in zip(self.maps, regions, strict=True) if entry.per is Per.RUN]
        for (entry, place), region in zip(places, of_run, strict=True):
            stride = copy_stride(entry.size)
            copies = copies_of(entry, self.blocks * self.warps_per_block)
            starts = [region.records + copy * stride for copy in range(copies)]
            combined = b"".join(
                _combined(entry, number)(b"".join(memory[start + at : start + at + _WORD] for start in starts))
                for number, at in enumerate(range(0, entry.size, _WORD))
            )
            data[place.records : place.records + entry.size] = combined
        return bytes(data)


def _combined(entry: Map, word: int) -> Callable[[bytes], bytes]:
    """Return what combines the copies of a word of a map's record, given as bytes, into one. word: its number."""
    # Counts may be before sums of floating-point numbers.
    is_float = entry.sums_floats and word >= entry.kind.counts_first

    def combined(copies: bytes) -> bytes:
        """Return the copies of a word of a map's record combined into one: their maximum or their sum."""
        if is_float:
            numbers = struct.unpack(f"<{len(copies) // _WORD}d", copies)
            # fsum raises where a sum is infinite or no number.
            total = sum(numbers)
            return struct.pack("<d", math.fsum(numbers) if math.isfinite(total) else total)
        words = struct.unpack(f"<{len(copies) // _WORD}Q", copies)
        return struct.pack("<Q", max(words) if entry.kind.keeps_greatest else sum(words) % (1 << 64))

    return combined
