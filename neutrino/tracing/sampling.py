"""Exact medians in one more pass over records, by a sample of them: for records that are costly to read."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import field
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.late_dataclass import dataclass
from neutrino.lazy import lazy
from neutrino.tracing.aggregate import Ranges, Tiles

Array = npt.NDArray[Any]
SAMPLE = 1 << 19
"""Records of a sample, at least, if there are more."""
_SAMPLE_BYTES = 16 << 20
"""Of a sample, at most, of larger records."""
MOST_NEAR = 1 << 22
"""Values near the medians that are collected, of all fields; of those that have more, it is not found."""
_MOST_PARTS = 64
_DEVIATIONS = 5
"""By how many standard deviations the rank of the median in a sample may differ from the middle."""


@dataclass
class Sample:
    """A random sample of records, which tiles add to.

    share: how many of all records there are for one of it. parts: structured 1-D arrays, size records in all.
    """

    share: int = 1
    parts: list[Array] = field(default_factory=list)
    size: int = 0

    @lazy
    def _random(self) -> np.random.Generator:
        # NumPy imports what this needs when it is first asked for, which takes as long as reading a small trace.
        return np.random.default_rng(0)

    def add(self, tiles: Tiles) -> None:
        """Add records to the sample, some of them chosen at random. tiles: without counts."""
        rows = tiles.records.reshape(-1)
        chosen = self._some(rows, self.share)
        self.parts.append(chosen)
        self.size += len(chosen)
        if len(self.parts) > _MOST_PARTS:
            self.parts = [np.concatenate(self.parts)]
        most = min(2 * SAMPLE, _SAMPLE_BYTES // rows.dtype.itemsize)
        while self.size > max(most, 1):
            self.share *= 2
            self.parts = [self._some(np.concatenate(self.parts), 2)]
            self.size = len(self.parts[0])

    def _some(self, rows: Array, share: int) -> Array:
        """Return about one of ``share`` records, chosen at random."""
        if share == 1:
            return rows
        # Not every n-th one: records repeat with the lanes of a warp.
        return rows[self._random.random(len(rows)) * share < 1]


@dataclass
class _Near:
    """The search for one median. low, high: values which it is not below and not above, by the sample.

    most: values to collect. below, at_low, at_high: how many values are less than low, equal to it, and to high.
    between: the other ones, collected of them.
    """

    low: Any
    high: Any
    most: int
    below: int = 0
    at_low: int = 0
    at_high: int = 0
    between: list[Array] = field(default_factory=list)
    collected: int = 0

    def add(self, values: Array) -> None:
        """Count values below, at and above the two bounds around a median, and collect those between.

        values: of all records, part by part.
        """
        self.below += int(np.count_nonzero(values < self.low))
        self.at_low += int(np.count_nonzero(values == self.low))
        if self.low == self.high:
            return
        self.at_high += int(np.count_nonzero(values == self.high))
        chosen = values[(values > self.low) & (values < self.high)]
        self.collected += len(chosen)
        if self.collected <= self.most:
            self.between.append(chosen)
        else:
            self.between.clear()

    def value(self, rank: int) -> int | float | None:
        """Return the value of a rank, from 0, among all that were added; None if it is not near the bounds, or too many
        are.
        """
        place = rank - self.below
        if place < 0 or self.collected > self.most:
            return None
        if place < self.at_low:
            return _number(self.low)
        place -= self.at_low
        if place < self.collected:
            return _number(np.partition(np.concatenate(self.between), place)[place])
        return _number(self.high) if place - self.collected < self.at_high else None


def medians_near(
    source: Iterable[Tiles], sample: Sample, types: dict[str, str], ranges: Ranges
) -> dict[str, int | float]:
    """Return the medians of fields, in one pass over all records, but for those that are not where the sample says.

    source: tiles without counts. types, ranges: as for ``medians_of``.
    """
    searches = {}
    rows: Array = np.concatenate(sample.parts) if sample.parts else np.empty(0)
    for name in types if len(rows) else ():
        known = ranges.fields[name]
        if math.isnan(known.minimum):
            continue
        values, middle = np.sort(rows[name]), (len(rows) - 1) // 2
        apart = int(_DEVIATIONS * math.sqrt(len(rows)) / 2) + 1
        low, high = values[max(middle - apart, 0)], values[min(middle + apart, len(rows) - 1)]
        searches[name] = _Near(low, high, MOST_NEAR // len(types))
    for tiles in source if searches else ():
        piece = tiles.records.reshape(-1)
        for name, search in searches.items():
            search.add(np.ascontiguousarray(piece[name]))
    found = {name: search.value((ranges.fields[name].count - 1) // 2) for name, search in searches.items()}
    return {name: value for name, value in found.items() if value is not None}


def _number(value: Any) -> int | float:
    """Convert a NumPy scalar to a Python number."""
    number: int | float = value.item()
    return number
