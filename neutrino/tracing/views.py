"""The records of maps (what probes saved) as NumPy views of a trace's bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.abi.levels import Level, Per
from neutrino.errors import NeutrinoError, TraceError
from neutrino.late_dataclass import dataclass
from neutrino.maps.declaration import Layout, Map, Report, has_no_count
from neutrino.maps.log_reading import LOG_CONTROL, chunks, first_slots, slices
from neutrino.maps.owners import row_owners
from neutrino.maps.regions import Region, copies_of, copy_stride, row_stride, rows_of
from neutrino.tracing.aggregate import Tiles, plain_bytes, ranges_of, saves_of
from neutrino.tracing.log_records import records_of_groups

Array = npt.NDArray[Any]
_COUNT = np.dtype("<u4")
"""A slot's count of its saves."""
_BATCH = 4 << 20
"""Bytes of launches whose copies of a record are combined at once."""
_LOG_BATCH = 256 << 10
"""Bytes of a log that are read at once: records take up to fifty times as much, while they are being read."""
_ROWS_BATCH = 1 << 16
"""Rows of a launch that are read at once."""
_AXES = {
    Level.THREAD: ("block", "warp", "k", "lane"),
    Level.WARP: ("block", "warp", "k"),
    Level.BLOCK: ("block", "k"),
}


@dataclass(frozen=True)
class Geometry:
    """Shape of a launch. blocks: of the grid. threads: of a block. lanes: of a warp.

    log_units: units of memory, that the trace has of this launch, of each log that the kernel saves to.
    """

    blocks: int
    threads: int
    lanes: int
    log_units: int = 0

    @property
    def warps(self) -> int:
        """How many warps a block has; one that is not full counts."""
        return -(-self.threads // self.lanes)


@dataclass(frozen=True, repr=False)
class MapView:
    """The records of one map, of one launch or of several launches of one geometry, which then are the first axis.

    records: structured array. Of an array map, which has a slot for each thread, warp or block:
    ``[block][warp][k][lane]`` at thread level, ``[block][warp][k]`` at warp level, ``[block][k]`` at block level; k is
    the index in the slot, below ``cap``, of a ring map the number of the save modulo ``cap``. Of a log: ``[byte]``, its
    region as uint8, which ``valid`` takes apart. Of other maps: ``[copy]``, partial results that ``valid`` combines.
    Of maps per block, warp, thread or multiprocessor: ``[row]``, of which ``valid`` and ``places`` say whose it is.
    counts: saves of each slot, the same axes without k; None where slots hold one record, and for maps without slots.
    """

    map: Map
    geometry: Geometry
    records: Array
    counts: Array | None

    def __repr__(self) -> str:
        """The view in short: the map's name, and the shape and the fields of its records."""
        shape = " x ".join(map(str, self.records.shape)) or "1"
        return f"<map {self.map.name}: {shape} records of {', '.join(self.map.dtype.names or ())}>"

    def __getitem__(self, name: str) -> Array:
        """Return a field of the records that were saved: ``valid()[name]``. Raises TraceError for another name."""
        names = self.map.dtype.names or ()
        if name not in names:
            raise TraceError(f"map {self.map.name} has no field {name!r}; it has {', '.join(names)}")
        return self.valid()[name]

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError, which says how fields are read: there is nothing of that name."""
        # Not while a copy is made, which has no attributes yet.
        declared = self.__dict__.get("map") if not name.startswith("_") else None
        if declared is None:
            raise AttributeError(name)
        names = ", ".join(declared.dtype.names or ())
        raise AttributeError(
            f"a view of a map has no attribute {name!r}; the records are valid(), with the fields {names}, and "
            "to_pandas(); one field is view[NAME]"
        )

    def to_pandas(self) -> Any:
        """Return the saved records as a pandas DataFrame: a column per field, in the order of ``valid``; and columns of
        whose they are, where ``places`` says that.

        Raises NeutrinoError without pandas.
        """
        return data_frame(self._columns())

    def _columns(self) -> dict[str, Array]:
        """What ``to_pandas`` has: columns by name."""
        records = self.valid()
        columns: dict[str, Array] = {}
        # Only of one launch, and not of all types.
        with suppress(ValueError):
            places = self.places()
            if all(len(column) == len(records) for column in places.values()):
                columns.update(places)
        for name in records.dtype.names or ():
            values = records[name].reshape(len(records), -1)
            parts = [name] if values.shape[1] == 1 else [f"{name}{part}" for part in range(values.shape[1])]
            columns.update({part: values[:, number] for number, part in enumerate(parts)})
        return columns

    @property
    def cap(self) -> int:
        """How many records a slot (the place of one thread, warp or block) of the map can hold."""
        return self.map.cap

    @property
    def exists(self) -> npt.NDArray[np.bool_]:
        """Which slots of a block belong to a thread, warp or block that exists: the last warp may be partial.

        bool ``[warp][lane]`` at thread level, ``[warp]`` at warp level, a scalar at block level.
        """
        warps = self.geometry.warps
        # Every block exists, and every warp has at least one thread.
        if self.map.level is Level.BLOCK:
            return np.ones((), bool)
        if self.map.level is Level.WARP:
            return np.ones(warps, bool)
        # Threads of a block are numbered warp by warp.
        lanes = self.geometry.lanes
        return (np.arange(warps * lanes) < self.geometry.threads).reshape(warps, lanes)

    def valid(self) -> Array:
        """Return the records that were saved, as a 1-D structured array in the order of the axes.

        Those of a slot are in the order in which they were saved.

        An array with a cap of 1 has no count: every slot of a thread, warp or block that exists is returned, and a
        record of zeros (``all_zero``) may be of one that nothing was saved to. For a map without slots, the rows of
        its result (``MapType.read``): for a sum one of totals, for a minimum, maximum or average one or none, for a
        histogram one per bucket, for a map with keys one per key. Of several launches, each has its own records or
        rows, one launch after the other; they are not combined. Of a log, its records by slot, lane and the order in
        which the lane saved them.

        The array may be a view of ``records``.
        """
        if self.map.kind.layout is Layout.CHUNKS:
            return np.ascontiguousarray(self._logged["record"]).view(self.map.dtype)
        if self.map.per.has_rows:
            results, _ = self._owned
            return results
        if self.map.kind.layout is not Layout.SLOTS:
            # read takes the map as the manifest has it.
            return self.map.kind.read(self.records, self.map.document()).reshape(-1)
        # All records; no copy for those of a single launch.
        records = self._in_order()
        if self.counts is None and self.exists.all():
            return records.reshape(-1).view(self.map.dtype)
        return records[self._saved()].view(self.map.dtype)

    def _in_order(self) -> Array:
        """Return the records with those of each slot (the place of one thread, warp or block) in the order in which
        they were saved: of a ring map, which keeps the last ones, a copy.

        They are plain bytes, without fields, which NumPy copies much faster.
        """
        records = plain_bytes(self.records)
        if not self.map.kind.keeps_last or self.counts is None:
            return records
        # The axis k is the last one, or the one before the lanes. The oldest record is where the next save would go.
        axis = -2 if self.map.level is Level.THREAD else -1
        oldest = np.where(self.counts > self.cap, self.counts % self.cap, 0)
        k = np.arange(self.cap).reshape((-1, 1) if axis == -2 else (-1,))
        return np.take_along_axis(records, (np.expand_dims(oldest, axis) + k) % self.cap, axis)

    def tiles(self) -> Tiles:
        """Return where the records of an array or ring map (which keep the first or the last ones of each thread, warp
        or block) are, for C code to go through; nothing is copied, and those of an owner may be in any order.
        """
        level, geometry = self.map.level, self.geometry
        launches = self.records.shape[0] if self.records.ndim > len(_AXES[level]) else 1
        tiles = 1 if level is Level.BLOCK else geometry.warps
        lanes = geometry.lanes if level is Level.THREAD else 1
        threads = geometry.threads if level is Level.THREAD else tiles
        shape = (launches, geometry.blocks, tiles)
        counts = None if self.counts is None else self.counts.reshape(*shape, lanes)
        return Tiles(self.records.reshape(*shape, self.cap, lanes), counts, threads)

    def pieces(self) -> Iterator[Tiles]:
        """Yield all records that ``valid`` returns, in any order and some at a time, so that little memory is taken."""
        if self.map.kind.layout is Layout.SLOTS:
            yield self.tiles()
        elif self.map.kind.layout is Layout.CHUNKS:
            document = self.map.document()
            for region in self.records.reshape(-1, self.records.shape[-1]):
                found = records_of_groups(region, self.map.dtype)
                if found is not None:
                    yield from map(Tiles.of, found)
                    continue
                for part in slices(region, self.map.size, _LOG_BATCH):
                    records = self.map.kind.read(part, document)["record"]
                    yield Tiles.of(np.ascontiguousarray(records).view(self.map.dtype))
        elif self.map.per.has_rows:
            for results, _ in self.owned():
                yield Tiles.of(results)
        else:
            for view in self.batches():
                yield Tiles.of(view.valid())

    def batches(self) -> Iterator[MapView]:
        """Yield views of a few launches each, for a map (what probes save to) of which each launch has several partial
        results to be combined. A view of one launch yields itself.
        """
        if self.records.ndim == 1:
            yield self
            return
        copies = self.records.shape[1]
        step = max(_BATCH // max(copies * self.records.strides[1], 1), 1)
        for first in range(0, len(self.records), step):
            yield replace(self, records=self.records[first : first + step])

    def places(self) -> dict[str, Array]:
        """Return the indices of each record of ``valid()``: axis → 1-D array. For an array or ring map or a log, of one
        launch.

        The axes are ``block``, ``warp`` (not at block level), ``k``, and ``lane`` (at thread level only); k is 0
        for the oldest record of a slot. A log has ``order`` in place of k, after the lane. Raises ValueError for other
        maps and for several launches.
        """
        axes = _AXES[self.map.level]
        if self.map.per.has_rows and self.records.ndim == 1:
            _, places = self._owned
            return dict(places)
        if self.map.kind.layout is Layout.CHUNKS and self.records.ndim == 1:
            return self._log_places()
        # The records of several launches have one axis more.
        if self.map.kind.layout is not Layout.SLOTS or self.records.ndim != len(axes):
            raise ValueError(f"map {self.map.name!r}: places() is for an array or ring map or a log of one launch")
        return dict(zip(axes, np.nonzero(self._saved()), strict=True))

    def owned(self) -> Iterator[tuple[Array, dict[str, Array]]]:
        """Yield what ``valid`` and ``places`` return of a map per block, warp, thread or multiprocessor.

        That is the results, and whose each of them is, by axis; some blocks of a launch at a time. Of histograms each
        bucket is a row.
        """
        document, geometry = self.map.document(), self.geometry
        # Rows of a block; those of multiprocessors are few, and their first one is a result.
        each = {Per.BLOCK: 1, Per.WARP: geometry.warps, Per.THREAD: geometry.warps * geometry.lanes}.get(self.map.per)
        most = min(_ROWS_BATCH, _BATCH // self.map.size)
        for launch in self.records.reshape(-1, self.records.shape[-1]):
            rows = len(launch) - 1
            step = rows if each is None else max(most // each, 1) * each
            for first in range(0, max(rows, 1), max(step, 1)):
                # The row before those of the blocks belongs to none of them.
                part = launch[first : first + step + 1]
                owners = row_owners(
                    part, self.map.per.value, geometry.warps, geometry.lanes, geometry.threads,
                    self.map.kind.report is Report.TOTALS,
                )  # fmt: skip
                # Each result is of one row, which is like a launch with a single copy.
                found = self.map.kind.read(part[owners.pop("row")][:, None], document)
                times = found.size // len(found) if len(found) else 1
                if "block" in owners and each:
                    owners["block"] = owners["block"] + first // each
                yield found.reshape(-1), {name: np.repeat(column, times) for name, column in owners.items()}

    @cached_property
    def _owned(self) -> tuple[Array, dict[str, Array]]:
        """All that ``owned`` yields, together: the results, and by axis whose each of them is."""
        results, axes = zip(*self.owned(), strict=True)
        return np.concatenate(results), {name: np.concatenate([own[name] for own in axes]) for name in axes[0]}

    @cached_property
    def _logged(self) -> Array:
        """The records of a log, as ``Log.read`` returns them, of one launch after the other."""
        document = self.map.document()
        regions = self.records.reshape(-1, self.records.shape[-1])
        return np.concatenate([self.map.kind.read(region, document) for region in regions])

    def _log_places(self) -> dict[str, Array]:
        """Return the columns that say where each record of a log (a map that keeps records in chunks of memory) is
        from, of one launch: block, warp, lane as far as its level has them, and the order of saving.
        """
        rows, level = self._logged, self.map.level
        if level is Level.BLOCK:
            places = {"block": rows["slot"]}
        else:
            places = {"block": rows["slot"] // self.geometry.warps, "warp": rows["slot"] % self.geometry.warps}
        if level is Level.THREAD:
            places["lane"] = rows["lane"]
        return {name: column.astype(np.int64) for name, column in (places | {"order": rows["order"]}).items()}

    def _saved(self) -> npt.NDArray[np.bool_]:
        """Return which places of an array map hold a saved record, as a bool array in the shape of the records.

        A slot has room for ``cap`` records for each thread, warp or block, and may hold fewer.
        """
        if self.counts is None:
            # Slots hold one record, which counts as saved if its thread, warp or block exists.
            exists = self.exists
            # The axis k comes before the lanes.
            mask = exists[:, None, :] if self.map.level is Level.THREAD else exists[..., None]
            return np.broadcast_to(mask, self.records.shape)
        # The first records of each slot, as many as it counted. The axis k, here the last, comes before the lanes.
        saved = np.arange(self.cap) < self.counts[..., None]
        saved = saved & self.exists[..., None]
        return np.moveaxis(saved, -1, -2) if self.map.level is Level.THREAD else saved

    @property
    def record_count(self) -> int:
        """How many records ``valid`` returns; of slots and logs without reading them."""
        if self.map.kind.layout is Layout.SLOTS:
            return ranges_of([self.tiles()], ()).records
        if self.map.kind.layout is not Layout.CHUNKS:
            return len(self.valid())
        size = self.map.size
        parts = (part for region in self.records.reshape(-1, self.records.shape[-1])
                 for part in slices(region, size, _LOG_BATCH))  # fmt: skip
        return sum(int(chunks(part, size)[:, 3].sum()) for part in parts)

    def record_counts(self) -> Array:
        """How many records of the map (what probes save to) each of several launches has, int64 ``[launch]``;
        ``record_count`` is their sum.
        """
        views: Iterable[int] = range(len(self.records))
        if self.map.kind.layout is Layout.CHUNKS:
            # Most launches of a probe with a filter have nothing, and a control of zeros.
            views = np.flatnonzero(self.records[:, :LOG_CONTROL].any(axis=1)).tolist()
        counts = np.zeros(len(self.records), np.int64)
        for at in views:
            counts[at] = self.of(at).record_count
        return counts

    def first(self, most: int) -> MapView:
        """Return a view that has the first ``most`` records at least, in the order of ``valid``; of a log, which is
        read as a whole, not many more. For one launch.
        """
        if self.map.kind.layout is Layout.SLOTS:
            blocks = 1
            while blocks < self.geometry.blocks:
                counts = None if self.counts is None else self.counts[:blocks]
                view = MapView(self.map, replace(self.geometry, blocks=blocks), self.records[:blocks], counts)
                if view.record_count >= most:
                    return view
                blocks *= 4
        if self.map.kind.layout is not Layout.CHUNKS:
            return self
        return replace(self, records=first_slots(self.records, self.map.size, most))

    @property
    def dropped(self) -> int:
        """How many saves are not in the data: those beyond the cap; of a ring map those that later ones replaced, of a
        log those for which there was no memory, of a map with keys those whose keys found no place. 0 for other maps.
        """
        if self.map.kind.layout is Layout.CHUNKS:
            regions = self.records.reshape(-1, self.records.shape[-1])
            return int(np.ascontiguousarray(regions[:, 8:16]).view("<u8").sum())
        if self.map.kind.layout is Layout.COPIES:
            saves, _ = self.map.kind.lost(self.records, self.map.document())
            return saves
        return 0 if self.counts is None else saves_of(self.tiles())[1]

    @property
    def all_zero(self) -> int:
        """Of an array with a cap of 1, which has no count of saves, the records that are all zeros: saved so, or of
        slots that nothing was saved to. 0 for other maps.
        """
        if not has_no_count(self.map.kind, self.map.cap):
            return 0
        records = np.ascontiguousarray(self.valid())
        size = records.dtype.itemsize
        width = next(width for width in (8, 4, 2, 1) if size % width == 0)
        words = records.view(f"<u{width}").reshape(len(records), size // width)
        return len(records) - int(np.count_nonzero(words.any(axis=1)))

    @property
    def dropped_sum(self) -> int | float:
        """Of a map with keys that keeps sums, the sum of the values whose keys found no place; 0 for others."""
        if self.map.kind.layout is not Layout.COPIES:
            return 0
        _, total = self.map.kind.lost(self.records, self.map.document())
        return total

    @property
    def wanted(self) -> int:
        """How often the thread, warp or block that saved most did so, which is the cap that would have kept all; 0 for
        maps without counts.
        """
        return 0 if self.counts is None or not self.counts.size else int(self.counts.max())

    def total(self) -> dict[str, int]:
        """Return for each field of a sum map its sum over all threads, modulo the field's width. For one launch.

        Raises ValueError for other maps and for several launches.
        """
        if self.map.kind.report is not Report.TOTALS:
            raise ValueError(f"map {self.map.name!r} is no sum map")
        # One row for each launch.
        record = self.valid()
        if self.map.per.has_rows and self.records.ndim == 1:
            names = record.dtype.names or ()
            return {name: int(np.add.reduce(record[name], dtype=record[name].dtype)) for name in names}
        if record.size != 1:
            raise ValueError(f"map {self.map.name!r}: total() is for a sum map of a single launch")
        return {field.name: int(record[field.name][0]) for field in self.map.fields}

    def of(self, index: int) -> MapView:
        """Return the view of one of several launches. index: of the launch, in this view."""
        counts = None if self.counts is None else self.counts[index]
        return MapView(self.map, self.geometry, self.records[index], counts)


@dataclass(frozen=True)
class Frames:
    """Where the map data of launches of one geometry are in a file: the first at offset, then stride bytes apart."""

    geometry: Geometry
    offset: int
    stride: int
    launches: int


def data_frame(columns: Mapping[str, Any]) -> Any:
    """Return a pandas DataFrame of columns by name. Raises NeutrinoError without pandas."""
    try:
        import pandas
    except ImportError:
        raise NeutrinoError("pandas is not installed: pip install pandas") from None
    return pandas.DataFrame(dict(columns))


class MapViews(dict[str, "MapView"]):
    """Views of maps by name. One that is not there raises TraceError, with the names of those that are."""

    def __init__(self, views: Mapping[str, MapView], not_probed: Mapping[str, str] | None = None) -> None:
        """Collect views of maps (what probes save to) by name. not_probed: why maps have no figures, by name."""
        super().__init__(views)
        self._not_probed = not_probed or {}

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError, which says how a map is found: there is nothing of that name."""
        raise AttributeError(f"maps have no attribute {name!r}; a view is maps[NAME], and there are {', '.join(self)}")

    def __missing__(self, name: str) -> MapView:
        """Raise TraceError, which names the maps that there are: the one asked for is not among them."""
        if name in self._not_probed:
            raise TraceError(f"map {name!r} was not probed in this kernel: {self._not_probed[name]}")
        if not self:
            raise TraceError(f"no map {name!r}: no launch was probed whose data are here")
        raise TraceError(f"no map {name!r}; there are {', '.join(self)}")


def view_maps(data: Array, frames: Frames, maps: Iterable[tuple[Map, Region]]) -> dict[str, MapView]:
    """Return a view of every map's data, by name, with the launch as the first axis. Nothing is copied.

    data: the file's bytes, uint8. maps: each with its region, in bytes from a launch's first. The caller has checked
    that all of it lies within the data.
    """
    geometry = frames.geometry
    offset = frames.offset
    views = {}
    for entry, region in maps:
        dtype: np.dtype[Any] = entry.dtype
        # The axes of one launch: block and warp, then k of records, then the lane.
        slots: tuple[int, ...] = (geometry.blocks,)
        if entry.level is not Level.BLOCK:
            slots += (geometry.warps,)
        lanes = (geometry.lanes,) if entry.level is Level.THREAD else ()
        start = offset + region.records
        if entry.kind.layout is Layout.SLOTS:
            shape: tuple[int, ...] = (*slots, entry.cap, *lanes)
            strides = _strides(shape, entry.size)
        elif entry.kind.layout is Layout.CHUNKS:
            dtype = np.dtype(np.uint8)
            shape, strides = (region.records_size,), (1,)
        elif entry.per.has_rows:
            shape = (1 + rows_of(entry.per, geometry.blocks, geometry.warps, geometry.lanes),)
            strides = (row_stride(entry),)
        else:
            shape = (copies_of(entry, geometry.blocks * geometry.warps),)
            strides = (copy_stride(entry.size),)
        records = np.ndarray((frames.launches, *shape), dtype, data, start, (frames.stride, *strides))
        counts = None
        if region.counts is not None:
            shape = (*slots, *lanes)
            strides = (frames.stride, *_strides(shape, _COUNT.itemsize))
            counts = np.ndarray((frames.launches, *shape), _COUNT, data, offset + region.counts, strides)
        views[entry.name] = MapView(entry, geometry, records, counts)
    return views


def _strides(shape: tuple[int, ...], item_size: int) -> tuple[int, ...]:
    """Return the strides, in bytes, of a dense row-major array of items of ``item_size`` bytes."""
    strides = []
    stride = item_size
    for size in reversed(shape):
        strides.append(stride)
        stride *= size
    return tuple(reversed(strides))
