"""All records of one map of a kernel, as often as they are needed, in constant memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.abi.levels import Per
from neutrino.maps.declaration import Layout, Map
from neutrino.tracing.aggregate import Ranges, Tiles, medians_of
from neutrino.tracing.sampling import Sample, medians_near
from neutrino.tracing.trace import TraceKernel
from neutrino.tracing.views import MapView

Array = npt.NDArray[Any]
_KEPT = 48 << 20
"""Bytes of records that are kept instead of being read again, where reading them is more than looking at memory."""
_OF_TILES = 1024
"""Bytes that Python needs for tiles besides their records."""


class MapRecords:
    """The records of a map over all launches of a kernel whose data are in the trace.

    launches: how many there are; of a map per run, those that are in its result. dropped, dropped_sum: as in
    ``MapSummary``, of maps without slots, once ``views`` or ``tiles`` has come to its end.
    """

    def __init__(self, kernel: TraceKernel, entry: Map, written: Array, *, is_checked: bool) -> None:
        """Give access to a map's records of a kernel. written: the launches with data, ascending. is_checked: all were
        read before."""
        self._kernel = kernel
        self._entry = entry
        self._written = written
        self._is_checked = is_checked
        self._kept: list[Tiles] | None = None
        self._sample: Sample | None = None
        self._whole = kernel.whole_run if entry.per is Per.RUN else None
        self.launches = len(written)
        if self._whole is not None:
            self.launches = self._whole.launches if entry.name in self._whole.maps else 0
        self.dropped = 0
        self.dropped_sum: int | float = 0

    def views(self) -> Iterator[MapView]:
        """Yield the map's data (a map is what probes save to), a few launches at a time, and count anew what was
        dropped.

        Raises TraceError for damaged data.
        """
        self.dropped = self.dropped_sum = 0
        for view in self._views():
            if self._entry.kind.layout is Layout.SLOTS:
                yield view
                continue
            for part in view.batches() if self._entry.kind.layout is Layout.COPIES else (view,):
                self.dropped += part.dropped
                self.dropped_sum += part.dropped_sum
                yield part

    def _views(self) -> Iterator[MapView]:
        """Yield views of the map's data of as many launches as lie together in the file; of a map (what probes save to)
        per run the one result.
        """
        if self._whole is not None:
            if self._entry.name in self._whole.maps:
                yield self._whole.maps[self._entry.name]
            return
        for stack in self._kernel.stacks(self._written, is_checked=self._is_checked):
            yield stack[self._entry.name]
        self._is_checked = True

    def tiles(self) -> Iterator[Tiles]:
        """Yield all records of the map (what probes save to) over its launches, in any order and some at a time; of
        maps that have results in place of records, the rows of each launch's result.

        Records that must be taken apart are kept for the next call if they are few. Raises TraceError for damaged data.
        """
        if self._kept is not None:
            yield from self._kept
            return
        if self._entry.kind.layout is Layout.SLOTS:
            for view in self.views():
                yield view.tiles()
            return
        kept: list[Tiles] | None = []
        sample = Sample() if self._sample is None else None
        size = 0
        for view in self.views():
            for tiles in view.pieces():
                size += tiles.records.nbytes + _OF_TILES
                if size > _KEPT:
                    kept = None
                if kept is not None:
                    kept.append(tiles)
                if sample is not None:
                    sample.add(tiles)
                yield tiles
        self._kept, self._sample = kept, sample or self._sample

    def medians(self, types: dict[str, str], ranges: Ranges) -> dict[str, int | float]:
        """Return the median of each field of the map's records. types: NumPy's, ``<u4``.

        ranges: of the fields, by a pass over all ``tiles``, which must come first.
        """
        found: dict[str, int | float] = {}
        # Records that must be taken apart again are read as rarely as possible.
        if self._sample is not None and self._kept is None:
            found = medians_near(self.tiles(), self._sample, types, ranges)
        return found | medians_of(self.tiles, {name: kind for name, kind in types.items() if name not in found}, ranges)

    def rows(self) -> Iterator[Array]:
        """Yield the same records as ``tiles``, as 1-D structured arrays: all at once if they are few.

        For maps without slots (a place per thread, warp or block).
        """
        if self._kept:
            yield np.concatenate([tiles.records.reshape(-1) for tiles in self._kept])
            return
        for tiles in self.tiles():
            yield tiles.records.reshape(-1)
