"""The records of a map with their places, as columns: launch by launch, in order, in memory that does not grow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.abi.levels import Level, Per
from neutrino.errors import TraceError
from neutrino.late_dataclass import dataclass
from neutrino.maps.declaration import Layout, Map, Report
from neutrino.maps.log_reading import slot_slices
from neutrino.tracing.aggregate import MOST_RECORDS, plain_bytes
from neutrino.tracing.site_tables import KEY, key_name, place_of, site_column, sites_by_number
from neutrino.tracing.trace import TraceKernel
from neutrino.tracing.views import MapView

Array = npt.NDArray[Any]
_LOG_BYTES = 256 << 10
"""Bytes of a log that are read at once: records take up to fifty times as much, while they are being read."""
_AXES = {Level.THREAD: ("block", "warp", "lane"), Level.WARP: ("block", "warp"), Level.BLOCK: ("block",)}
_OWNERS = {
    Per.BLOCK: ("block",), Per.WARP: ("block", "warp"), Per.THREAD: ("block", "warp", "lane"), Per.SM: ("sm",),
}  # fmt: skip


@dataclass(frozen=True)
class Rows:
    """Some records of a kernel. columns: by name, 1-D and of one length: the places, then the fields."""

    kernel: TraceKernel
    columns: dict[str, Array]

    def __len__(self) -> int:
        """The number of records."""
        return len(next(iter(self.columns.values())))

    def chosen(self, which: Any) -> Rows:
        """Select some of the records. which: a slice, a mask or indices."""
        return replace(self, columns={name: values[which] for name, values in self.columns.items()})


class RecordedMap:
    """The records of the maps of one name of several kernels.

    types: each column's name and type, as ``Rows`` have them: ``launch`` (its number in the trace), what says whose a
    record is (``block``, ``warp``, ``lane``, ``sm``, and of a slot ``k``, of a log ``order``), then the fields. A place
    is called ``[block]`` where a field has its name. places: how many of them are places. site: the column that has
    numbers of sites, whose places ``TraceKernel.manifest.sites`` has; "" for none. dropped: saves that there
    was no memory or no room for, once ``rows`` has come to its end.

    Of maps that combine values the records are the results: one for each launch, key, bucket, block and so on. In a
    table by site, whose keys are all sites, the key's column is called as the probe's field is.
    """

    def __init__(self, kernels: Sequence[TraceKernel], name: str, launches: range | None = None) -> None:
        """Give access to the records of the maps of one name. kernels: with maps (what probes save to) of this name.
        launches: the numbers of the launches to read; None: all.

        Raises TraceError if the maps of the kernels differ, and for a map that has one result for the whole run.
        """
        self._kernels = kernels
        self._name = name
        self._launches = launches
        self.dropped = 0
        self._known_sites: dict[int, dict[int, tuple[str, str]]] = {}
        entries = [_entry(kernel, name) for kernel in kernels]
        for kernel, entry in zip(kernels, entries, strict=True):
            if entry.per is Per.RUN:
                raise TraceError(f"map {name} has one result for the whole run, and no records")
            if _form(entry) != _form(entries[0]):
                raise TraceError(f"map {name} of {kernel.demangled} differs from that of {kernels[0].demangled}")
        self.map = entries[0]
        fields = _row_type(self.map)
        # A kernel without some of the probes may have sites only.
        self._key = key_name(self.map) if len({key_name(entry) for entry in entries}) == 1 else KEY
        self.site = site_column(self.map) if self._key == key_name(self.map) else ""
        names = [self._column(name) for name in fields.names or ()]
        axes = ("launch", *_axes(self.map))
        titles = [f"[{axis}]" if axis in names else axis for axis in axes]
        self._titles = dict(zip(axes, titles, strict=True))
        self.types: dict[str, np.dtype[Any]] = dict.fromkeys(titles, np.dtype(np.int64))
        self.types |= {self._column(name): fields[name] for name in fields.names or ()}
        self.places = len(axes)

    def rows(self) -> Iterator[Rows]:
        """Yield all records, some tens of thousands at a time: kernel by kernel, by the order of submission, then by
        the places. Raises TraceError for damaged data."""
        self.dropped = 0
        for kernel in self._kernels:
            for indices, views in kernel.numbered_stacks(kernel.written_numbers(self._launches)):
                view = views[self._name]
                if not view.map.kind.keeps_last:
                    self.dropped += view.dropped
                for launch, places, records in parts_of(view, indices):
                    found = {"launch": launch} | places
                    columns = {self._titles[axis]: found[axis] for axis in self._titles}
                    columns |= {self._column(name): records[name] for name in records.dtype.names or ()}
                    yield Rows(kernel, columns)

    def sites_of(self, rows: Rows) -> list[tuple[str, str]]:
        """Return the place and the instruction of each record of a map (what probes save to) that has a ``site``, ""
        where the manifest has none.
        """
        known = self._known_sites.get(id(rows.kernel))
        if known is None:
            sites = sites_by_number(rows.kernel.manifest.sites if rows.kernel.manifest else ())
            known = self._known_sites[id(rows.kernel)] = {number: place_of(site) for number, site in sites.items()}
        return [known.get(number, ("", "")) for number in rows.columns[self.site].tolist()]

    def _column(self, name: str) -> str:
        """The title of the column for a field of a map (what probes save to): that of keys of sites (matched
        instructions) or constants is called as in the probe.
        """
        return self._key if name == KEY and self.map.kind.report is Report.KEYS else name


Part = tuple[Array, dict[str, Array], Array]
"""The launch of each record, its places, and the records, structured."""


def _entry(kernel: TraceKernel, name: str) -> Map:
    """Return a kernel's map of that name. Raises TraceError if its twin (copy with probes) has none."""
    for entry in kernel.manifest.probed_maps if kernel.manifest else ():
        if entry.name == name:
            return entry
    raise TraceError(f"{kernel.demangled} has no map {name}")


def _form(entry: Map) -> tuple[Any, ...]:
    """Return what must be equal for the maps (what probes save to) of two kernels to be read as one."""
    return entry.kind.name, entry.level, entry.per, _row_type(entry)


def _axes(entry: Map) -> tuple[str, ...]:
    """Return the columns that say whose each record of a map (what probes save to) is: block, warp, lane, and which of
    the owner's, ``k`` or ``order``.

    None for maps with one result per launch.
    """
    if entry.per.has_rows:
        return _OWNERS[entry.per]
    if entry.kind.layout is Layout.CHUNKS:
        return (*_AXES[entry.level], "order")
    if entry.kind.layout is not Layout.SLOTS:
        return ()
    *others, last = (*_AXES[entry.level], "k")
    # As MapView.places: the lane is the last one.
    return (*others[:2], last, *others[2:])


def _row_type(entry: Map) -> np.dtype[Any]:
    """Return NumPy's type of a row: of a record, or of a result as the map's type reads it from its data."""
    if entry.kind.layout is not Layout.COPIES:
        return entry.dtype
    return entry.kind.read(np.zeros((1, 1), entry.dtype), entry.document()).dtype


def parts_of(view: MapView, numbers: Array) -> Iterator[Part]:
    """Yield the records of launches of one geometry, each with its place. numbers: of the launches, the view's first
    axis."""
    if view.map.kind.layout is Layout.SLOTS:
        yield from _of_slots(view, numbers)
        return
    if view.map.kind.layout is Layout.COPIES and not view.map.per.has_rows:
        yield from _of_copies(view, numbers)
        return
    for index, number in enumerate(numbers.tolist()):
        launch = view.of(index)
        for places, records in _of_log(launch) if view.map.kind.layout is Layout.CHUNKS else _of_owners(launch):
            yield np.full(len(records), number), places, records


def _of_slots(view: MapView, numbers: Array) -> Iterator[Part]:
    """Yield the records that slots have, box by box of the axes launch, block, warp, k, lane."""
    tiles = view.tiles()
    plain, counts, cap = plain_bytes(tiles.records), tiles.counts, view.cap
    _, _, warps, _, lanes = plain.shape
    exists = (np.arange(warps * lanes) < tiles.threads).reshape(warps, 1, lanes)
    for box in _boxes(plain.shape, MOST_RECORDS):
        *slots, k_of, lane_of = box
        part = plain[box]
        k = np.arange(cap)[k_of, None]
        mask = np.broadcast_to(exists[box[2], :, lane_of], part.shape)
        if counts is not None:
            without_k = (*slots, lane_of)
            saved = counts[without_k][..., None, :]
            mask = mask & (k < saved)
            if view.map.kind.keeps_last:
                # The oldest record is where the next save would go.
                oldest = np.where(saved > cap, saved % cap, 0)
                all_k = (*slots, slice(None), lane_of)
                part = np.take_along_axis(plain[all_k], (oldest + k) % cap, axis=3)
        launch, *places = (index + side.start for index, side in zip(np.nonzero(mask), box, strict=True))
        if len(launch):
            columns = dict(zip(("block", "warp", "k", "lane"), places, strict=True))
            yield numbers[launch], columns, part[mask].view(view.map.dtype)


def _boxes(shape: tuple[int, ...], most: int) -> Iterator[tuple[slice, ...]]:
    """Yield boxes of an array's axes, of about ``most`` items at most, that together are the array in its order."""
    if not all(shape):
        return
    items = 1
    axis = len(shape)
    # The innermost axes that fit as a whole.
    while axis and items * shape[axis - 1] <= most:
        axis -= 1
        items *= shape[axis]
    whole = tuple(slice(0, extent) for extent in shape[axis:])
    if not axis:
        yield whole
        return
    step = max(most // items, 1)
    for outer in np.ndindex(*shape[: axis - 1]):
        for first in range(0, shape[axis - 1], step):
            sides = (*(slice(index, index + 1) for index in outer), slice(first, min(first + step, shape[axis - 1])))
            yield (*sides, *whole)


def _of_log(view: MapView) -> Iterator[tuple[dict[str, Array], Array]]:
    """Yield the records of a log in one launch, each with its place: block, warp, lane and order."""
    document = view.map.document()
    for part in slot_slices(view.records, view.map.size, _LOG_BYTES):
        read = view.map.kind.read(part, document)
        slot, warps = read["slot"].astype(np.int64), view.geometry.warps
        is_block = view.map.level is Level.BLOCK
        places = {"block": slot if is_block else slot // warps, "warp": slot % warps}
        places |= {name: read[name].astype(np.int64) for name in ("lane", "order")}
        for first in range(0, len(read), MOST_RECORDS):
            some = slice(first, first + MOST_RECORDS)
            records = np.ascontiguousarray(read["record"][some]).view(view.map.dtype)
            yield {name: column[some] for name, column in places.items()}, records


def _of_owners(view: MapView) -> Iterator[tuple[dict[str, Array], Array]]:
    """Yield the results of a map (what probes save to) per block, warp, thread or multiprocessor of one launch, with
    whose each is.
    """
    for results, places in view.owned():
        yield {name: column.astype(np.int64) for name, column in places.items()}, results


def _of_copies(view: MapView, numbers: Array) -> Iterator[Part]:
    """Yield the results that a map (what probes save to) has of each launch. numbers: of the launches."""
    first = 0
    for batch in view.batches():
        count = len(batch.records)
        some = numbers[first : first + count]
        first += count
        rows = batch.valid()
        report = view.map.kind.report
        # A launch has as many buckets as every other, and at most one result of other maps without keys.
        each = len(rows) // count
        if report is not Report.KEYS and len(rows) == each * count and (each <= 1 or report is Report.BUCKETS):
            if each:
                yield np.repeat(some, each), {}, rows
            continue
        for index, number in enumerate(some.tolist()):
            rows = batch.of(index).valid()
            yield np.full(len(rows), number), {}, rows
