"""What a map holds after a launch, as NumPy views of the trace's bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.abi.levels import Level
from neutrino.maps.declaration import Map, Report
from neutrino.maps.regions import LANES, Region, cap_of, copies_of, copy_stride

Array = npt.NDArray[Any]
_AXES = {
    Level.THREAD: ("block", "warp", "k", "lane"),
    Level.WARP: ("block", "warp", "k"),
    Level.BLOCK: ("block", "k"),
}


@dataclass(frozen=True)
class Geometry:
    """Shape of a launch. blocks in the grid, threads in a block; dynamic_cap: records a slot of dynamic maps.

    lanes: of a warp.
    """

    blocks: int
    threads: int
    dynamic_cap: int = 0
    lanes: int = LANES

    @property
    def warps(self) -> int:
        """Warps of one block, a partial one counted."""
        return -(-self.threads // self.lanes)


@dataclass(frozen=True)
class MapView:
    """One map of one launch, or of several launches of one geometry, which then are the first axis.

    records: structured array. Array maps: ``[block][k]`` at block level, ``[block][warp][k]`` at warp level,
    ``[block][warp][k][lane]`` at thread level; k counts to ``cap``. Maps without slots: ``[copy]``, of which ``valid``
    makes rows. counts: saves of each slot, the same axes without k; None where the map has none (cap 1, no slots).
    """

    map: Map
    geometry: Geometry
    records: Array
    counts: Array | None

    @property
    def cap(self) -> int:
        """Records a slot; of a dynamic map those of its launch."""
        return cap_of(self.map, self.geometry.dynamic_cap)

    @property
    def exists(self) -> npt.NDArray[np.bool_]:
        """Which slots of a block have a thread: bool ``[warp][lane]``, ``[warp]``, or one at block level."""
        warps = self.geometry.warps
        if self.map.level is Level.BLOCK:
            return np.ones((), bool)
        if self.map.level is Level.WARP:
            return np.ones(warps, bool)
        lanes = self.geometry.lanes
        return (np.arange(warps * lanes) < self.geometry.threads).reshape(warps, lanes)

    def valid(self) -> Array:
        """The records that were saved, as a 1-D structured array in the order of the axes.

        With a cap of 1 there is no count: every slot of a thread (or warp) that exists is taken as saved,
        and a record of zeros means that nothing was. Of a map without slots: what its type makes of the copies
        (``MapType.read``), of a sum the one record of totals.
        """
        if not self.map.kind.in_slots:
            return self.map.kind.read(self.records, self.map.document()).reshape(-1)
        if self.counts is None and self.exists.all():
            return self.records.reshape(-1)
        return self.records[self._saved()]

    def places(self) -> dict[str, Array]:
        """Where each record of ``valid()`` belongs, of an array map of one launch: axis → numbers.

        The axes are ``block``, ``warp`` but at block level, ``k``, and at thread level ``lane``. ValueError for other
        maps.
        """
        axes = _AXES[self.map.level]
        if not self.map.kind.in_slots or self.records.ndim != len(axes):
            raise ValueError(f"map {self.map.name!r}: places() is for an array map of a single launch")
        return dict(zip(axes, np.nonzero(self._saved()), strict=True))

    def _saved(self) -> npt.NDArray[np.bool_]:
        """Which records of an array map were saved, in the shape of the records."""
        if self.counts is None:
            exists = self.exists
            mask = exists[:, None, :] if self.map.level is Level.THREAD else exists[..., None]
            return np.broadcast_to(mask, self.records.shape)
        saved = np.arange(self.cap) < self.counts[..., None]
        saved = saved & self.exists[..., None]
        return np.moveaxis(saved, -1, -2) if self.map.level is Level.THREAD else saved

    @property
    def dropped(self) -> int:
        """Saves beyond the cap; 0 for maps without counts."""
        if self.counts is None:
            return 0
        over = self.counts[self.counts > self.cap].astype(np.uint64)
        return int(over.sum()) - over.size * self.cap

    @property
    def wanted(self) -> int:
        """Saves of the fullest slot; 0 for maps without counts."""
        return 0 if self.counts is None or not self.counts.size else int(self.counts.max())

    def total(self) -> dict[str, int]:
        """Of a sum map of one launch: field → sum over all threads, in the field's own modular arithmetic."""
        if self.map.kind.report is not Report.TOTALS:
            raise ValueError(f"map {self.map.name!r} is no sum map")
        record = self.valid()
        if record.size != 1:
            raise ValueError(f"map {self.map.name!r}: total() is for a sum map of a single launch")
        return {field.name: int(record[field.name][0]) for field in self.map.fields}

    def of(self, index: int) -> MapView:
        """One launch out of several."""
        counts = None if self.counts is None else self.counts[index]
        return MapView(self.map, self.geometry, self.records[index], counts)


@dataclass(frozen=True)
class Frames:
    """Launches of one geometry in a file, stride bytes apart. offset: of the first one's regions."""

    geometry: Geometry
    offset: int
    stride: int
    launches: int


def view_maps(data: Array, frames: Frames, maps: Iterable[tuple[Map, Region]]) -> dict[str, MapView]:
    """Views of every map, the launch the first axis.

    data: the file as uint8. The caller has checked that all of it lies inside.
    """
    geometry = frames.geometry
    offset = frames.offset
    views = {}
    for entry, region in maps:
        dtype = entry.dtype
        slots: tuple[int, ...] = (geometry.blocks,)
        if entry.level is not Level.BLOCK:
            slots += (geometry.warps,)
        lanes = (geometry.lanes,) if entry.level is Level.THREAD else ()
        start = offset + region.records
        if entry.kind.in_slots:
            shape: tuple[int, ...] = (*slots, cap_of(entry, geometry.dynamic_cap), *lanes)
            inner = _strides(shape, entry.size)
        else:
            shape = (copies_of(entry, geometry.blocks * geometry.warps),)
            inner = (copy_stride(entry.size),)
        records = np.ndarray((frames.launches, *shape), dtype, data, start, (frames.stride, *inner))
        counts = None
        if region.counts is not None:
            shape = (*slots, *lanes)
            inner = (frames.stride, *_strides(shape, 4))
            counts = np.ndarray((frames.launches, *shape), "<u4", data, offset + region.counts, inner)
        views[entry.name] = MapView(entry, geometry, records, counts)
    return views


def _strides(shape: tuple[int, ...], item: int) -> tuple[int, ...]:
    strides = []
    for size in reversed(shape):
        strides.append(item)
        item *= size
    return tuple(reversed(strides))
