"""When something was in a launch: clocks of records as the time since the launch's first one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.abi.levels import Per
from neutrino.late_dataclass import dataclass
from neutrino.maps.declaration import Layout, Map, Report
from neutrino.tracing.aggregate import MOST_RECORDS, Tiles, medians_of, ranges_of
from neutrino.tracing.saved_values import Field, Meaning
from neutrino.tracing.trace import TraceKernel
from neutrino.tracing.views import MapView

Array = npt.NDArray[Any]
_MOST_LOGGED = 64 << 20
"""Bytes of logs that are read again for this."""
_MOST_APART = 4096
"""Launches that are read one by one, as those of logs and of maps with counts are."""
_WORD = np.dtype("<u8")


@dataclass(frozen=True)
class SinceFirst:
    """The range of a field that says when something was, since the first time of any field like it in the launch.

    minimum, median, maximum: in the clock's own unit; median: the lower of the two middle values. zeros: how many
    records have a 0, which is no time: nothing was read.
    """

    minimum: int
    median: int
    maximum: int
    zeros: int


def times_since_first(
    kernel: TraceKernel, meanings: Mapping[Field, Meaning], launches: range | None = None
) -> dict[Field, SinceFirst]:
    """Return the times of a kernel's maps since each launch's first. meanings: what fields hold. launches: the numbers
    of those to read; None: all.

    What has no time is left out, and all if that would take long: logs of more than 64 MiB, or more than 4,096 launches
    that are not read together. Raises TraceError for damaged data.
    """
    manifest = kernel.manifest
    fields: dict[Meaning, list[Field]] = {}
    is_apart, logged = False, False
    for entry in manifest.probed_maps if manifest else ():
        own = [field.name for field in entry.fields if _is_shown(entry) and field.type.value == "u64"]
        for name in own:
            meaning = meanings.get((entry.name, name))
            if meaning is not None and meaning.is_time:
                fields.setdefault(meaning, []).append((entry.name, name))
                logged |= entry.kind.layout is Layout.CHUNKS
                is_apart |= entry.kind.layout is not Layout.SLOTS or entry.cap > 1
    numbers = kernel.written_numbers(launches)
    if not fields or (is_apart and len(numbers) > _MOST_APART):
        return {}
    if logged and int(kernel.records_of(numbers)["data_size"].sum()) > _MOST_LOGGED:
        return {}
    found: dict[Field, SinceFirst] = {}
    for alike in fields.values():
        firsts = [_firsts(views, alike) for views in kernel.stacks(numbers)]
        for field in alike:
            times = _Times(kernel, numbers, field, firsts)
            if (range_ := times.range()) is not None:
                found[field] = range_
    return found


def first_times(views: Mapping[str, MapView], meanings: Mapping[Field, Meaning]) -> dict[Field, int]:
    """Return for each field of a launch that says when something was the first time of any field like it, in the
    clock's own unit. views: of one launch. meanings: what fields hold.
    """
    fields: dict[Meaning, list[Field]] = {}
    for (name, field), meaning in meanings.items():
        view = views.get(name)
        if view is not None and meaning.is_time and _is_shown(view.map) and (field, "u64") in _types(view.map):
            fields.setdefault(meaning, []).append((name, field))
    found: dict[Field, int] = {}
    for alike in fields.values():
        values = [
            int(rows[field][rows[field] != 0].min())
            for name, field in alike
            for tiles in views[name].pieces() for rows in tiles.pieces() if rows[field].any()
        ]  # fmt: skip
        if values:
            found |= dict.fromkeys(alike, min(values))
    return found


def _is_shown(entry: Map) -> bool:
    """Whether a map's records, or results of launches, are numbers as they were saved."""
    return entry.kind.report is Report.RECORDS and entry.per is not Per.RUN


def _types(entry: Map) -> list[Field]:
    """The fields of a map with their types."""
    return [(field.name, field.type.value) for field in entry.fields]


def _firsts(views: Mapping[str, MapView], fields: Sequence[Field]) -> Array:
    """Return the first time of each launch in a stack, u64; of one without any the greatest number. fields: those with
    such times."""
    firsts: Array | None = None
    for name, field in fields:
        for launches, values in _values(views[name], field):
            if firsts is None:
                firsts = np.full(_launches(views[name]), np.iinfo(_WORD).max, _WORD)
            if values.size:
                # 0 is no time, and one less than that the greatest number.
                least = (values - np.uint64(1)).min(axis=1)
                firsts[launches] = np.minimum(firsts[launches], least)
    if firsts is None:
        return np.zeros(0, _WORD)
    firsts[firsts != np.iinfo(_WORD).max] += np.uint64(1)
    return firsts


class _Times:
    """The times of one field, launch after launch, as often as they are needed."""

    def __init__(self, kernel: TraceKernel, numbers: Array, field: Field, firsts: Sequence[Array]) -> None:
        """Prepare to read. numbers: of the launches. firsts: of each stack."""
        self._kernel, self._numbers, self._firsts = kernel, numbers, firsts
        self._map, self._field = field
        self._zeros = 0

    def _tiles(self) -> Iterator[Tiles]:
        self._zeros = 0
        rows = np.dtype([(self._field, _WORD)])
        for views, firsts in zip(self._kernel.stacks(self._numbers, is_checked=True), self._firsts, strict=True):
            for launches, values in _values(views[self._map], self._field):
                times = (values - firsts[launches, None])[values != 0]
                self._zeros += values.size - times.size
                if times.size:
                    yield Tiles.of(times.view(rows))

    def range(self) -> SinceFirst | None:
        """Read the range of the times; None without any."""
        ranges = ranges_of(self._tiles(), (self._field,))
        zeros = self._zeros
        known = ranges.fields[self._field]
        if not known.count:
            return None
        source: Callable[[], Iterator[Tiles]] = self._tiles
        median = medians_of(source, {self._field: _WORD.str}, ranges)[self._field]
        return SinceFirst(int(known.minimum), int(median), int(known.maximum), zeros)


def _launches(view: MapView) -> int:
    """How many launches a stack's view has."""
    return len(view.records)


def _values(view: MapView, field: str) -> Iterator[tuple[slice, Array]]:
    """Yield the values of a field that were saved, u64 ``[launch][value]``, some at a time, after the launches that
    they are of: all values of several launches, or some of one."""
    tiles = view.tiles() if view.map.kind.layout is Layout.SLOTS else None
    launches = _launches(view)
    if tiles is not None and tiles.is_whole:
        per_launch = max(int(np.prod(tiles.records.shape[1:])), 1)
        step = MOST_RECORDS // per_launch
        if step:
            for first in range(0, launches, step):
                part = slice(first, min(first + step, launches))
                yield part, tiles.records[part][field].reshape(part.stop - first, -1)
            return
    for launch in range(launches):
        for piece in view.of(launch).pieces():
            for rows in piece.pieces():
                yield slice(launch, launch + 1), rows[field].reshape(1, -1)
