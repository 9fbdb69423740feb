"""How the values of records are distributed, for the view of maps: counted in buckets of an eighth of an octave."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.abi.levels import Per
from neutrino.maps.declaration import Map, Report
from neutrino.page.source import Blocks, Json, Source, evenly
from neutrino.tracing.map_records import MapRecords
from neutrino.tracing.summary import FieldSummary, KernelSummary

Array = npt.NDArray[Any]
_MOST_RECORDS = 1 << 24
"""Records of a map that are counted; of more, those of launches that are evenly chosen."""
_MANTISSA = 52 - 3
"""Bits of a 64-bit floating-point number that do not tell its bucket: 3 of its fraction do."""
_MOST_BUCKETS = 96
"""Of a field; where there are more, neighbours are joined."""
_MOST_FIELDS = 16
_SMALL = 4096
"""A range of whole numbers up to which buckets have one width, wherever it is."""
_STEPS = 64
"""Buckets of one width."""


def prepare_distributions(source: Source, blocks: Blocks) -> Json:
    """Count the values of the fields of all maps that keep records; return the counts, by kernel and map.

    Nothing is written into the page beside what is returned.
    """
    found = []
    for kernel in source.summary.kernels:
        manifest = kernel.kernel.manifest
        shown = {entry.name for entry in kernel.maps if entry.records}
        for entry in manifest.probed_maps if manifest else ():
            # A table by key has its keys in the report, a histogram its buckets.
            if entry.kind.report is Report.RECORDS and entry.name in shown:
                found.append(_counted(source, kernel, entry))
    return {"maps": found}


def _counted(source: Source, kernel: KernelSummary, entry: Map) -> Json:
    """Count the values of a map's fields; return the counts."""
    numbers = kernel.kernel.written_numbers(source.launches)
    records = next(summary.records for summary in kernel.maps if summary.name == entry.name)
    if records > _MOST_RECORDS and entry.per is not Per.RUN:
        numbers = numbers[list(evenly(len(numbers), max(len(numbers) * _MOST_RECORDS // records, 1)))]
    names = [field.name for field in entry.fields if field.name != "site"][:_MOST_FIELDS]
    known_fields = next(summary.fields for summary in kernel.maps if summary.name == entry.name)
    linear = {field.name: steps for field in known_fields if (steps := _Steps.of(field))}
    counts: dict[str, dict[int, int]] = {name: {} for name in names}
    seen = 0
    for tiles in MapRecords(kernel.kernel, entry, np.sort(numbers), is_checked=False).tiles():
        for rows in tiles.pieces():
            seen += len(rows)
            for name in names:
                numbers_of = linear[name].buckets if name in linear else _buckets
                keys, amounts = np.unique(numbers_of(rows[name]), return_counts=True)
                known = counts[name]
                for key, amount in zip(keys.tolist(), amounts.tolist(), strict=True):
                    known[key] = known.get(key, 0) + amount
        if seen >= 2 * _MOST_RECORDS:
            break
    types = {field.name: field.type.value for field in entry.fields}
    return {
        "kernel": kernel.kernel.id,
        "map": entry.name,
        "records": records,
        "counted": seen,
        "fields": [
            {
                "name": name,
                "buckets": linear[name].ends(counts[name]) if name in linear
                else _joined(counts[name], types[name][0] != "f"),
            }
            for name in names
        ],
    }  # fmt: skip


def of_widths(buckets: Sequence[tuple[Any, Any]]) -> str:
    """Return what is to be said of the widths of buckets, as ``web/chart.js`` does; "" if they are equal.

    buckets: the least and the greatest value of each, ascending; texts are left out. Those of a histogram's ends may be
    open, or cut at the greatest value.
    """
    seen = [ends for ends in buckets if all(isinstance(end, int | float) and math.isfinite(end) for end in ends)]
    widths = [high - low + (float(low).is_integer() and float(high).is_integer()) for low, high in seen]
    count = len(widths)
    is_cut = count > 1 and widths[-1] < widths[-2] and seen[-1][0] >= 0
    first, past = (1, count - 1) if count > 3 else (0, min(count, 2) - (count == 2 and is_cut))
    inner = widths[first:past]
    if not inner:
        return ""
    if max(inner) < 2 * min(inner):
        is_wide = {
            "first": first == 1 and widths[0] >= 2 * max(inner),
            "last": past < count and widths[-1] >= 2 * max(inner),
        }
        wide = [name for name, found in is_wide.items() if found]
        if len(wide) == 2:
            return "The first and the last bucket are wider than the others."
        return f"The {wide[0]} bucket is wider than the others." if wide else ""
    for at in range(first + 1, past):
        # Towards 0 they may become narrower.
        narrow, wide_one = (widths[at - 1], widths[at]) if seen[at - 1][0] >= 0 else (widths[at], widths[at - 1])
        if (seen[at - 1][0] >= 0 or seen[at][1] <= 0) and wide_one < narrow * 0.999:
            return "Buckets are not equally wide: equal bars may be of different numbers of values each."
    return "Buckets are wider the larger the values are: equal bars are fewer values each the further they are from 0."


@dataclass(frozen=True)
class _Steps:
    """Buckets of one width, for whole numbers in a small range, and such as are close together and far from zero, as
    addresses are.

    least, most: of the numbers. width: of a bucket.
    """

    least: int
    most: int
    width: int

    @classmethod
    def of(cls, field: FieldSummary) -> _Steps | None:
        """Return buckets for a field by the range that it has; None where those by octaves show more."""
        least, most = field.minimum, field.maximum
        if not isinstance(least, int) or not isinstance(most, int) or least < 0:
            return None
        if most - least >= _SMALL and (least < 64 or most >= 4 * least):
            return None
        return cls(least, most, max(-(-(most + 1 - least) // _STEPS), 1))

    def buckets(self, values: Array) -> Array:
        """Return the number of each value's bucket; those beyond the range are in the first or the last one."""
        # Values between are no smaller, also where they were saved since the range was read.
        late = np.maximum(values, self.least).astype(np.uint64) - np.uint64(self.least)
        numbers: Array = np.minimum(late // np.uint64(self.width), _STEPS - 1).astype(np.int64)
        return numbers

    def ends(self, counts: dict[int, int]) -> list[Json]:
        """Return the buckets with their ends from counts by number."""
        last = max(counts, default=-1)
        return [
            {
                "low": self.least + at * self.width,
                "high": min(self.least + (at + 1) * self.width - 1, self.most),
                "count": counts.get(at, 0),
            }
            for at in range(last + 1)
        ]


def _buckets(values: Array) -> Array:
    """Return the number of each value's bucket, which rise with the values: int64. Zero's is 0, NaN's the last."""
    floats = values.astype(np.float64)
    bits = floats.view(np.int64)
    size = (bits & np.int64((1 << 63) - 1)) >> _MANTISSA
    numbers: Array = np.where(bits < 0, -size, size)
    numbers[np.isnan(floats)] = 1 << 16
    return numbers


def _joined(counts: dict[int, int], is_whole: bool) -> list[Json]:
    """Return buckets with their ends from counts by number: neighbours joined where they are too many.

    is_whole: whether the values are whole numbers.
    """
    nans = counts.pop(1 << 16, 0)
    keys = sorted(counts)
    joined = 1
    while keys and len({key // joined for key in keys}) > _MOST_BUCKETS:
        joined *= 2
    groups: dict[int, int] = {}
    for key in keys:
        groups[key // joined] = groups.get(key // joined, 0) + counts[key]
    # Empty ones between others are there, too, unless that makes too many.
    places = range(min(groups), max(groups) + 1) if groups else range(0)
    shown = places if len(places) <= _MOST_BUCKETS else sorted(groups)
    buckets: list[Json] = []
    for group in shown:
        low, high = _ends(group * joined, (group + 1) * joined - 1, is_whole)
        if low <= high:
            buckets.append({"low": low, "high": high, "count": groups.get(group, 0)})
    if nans:
        buckets.append({"low": "nan", "high": "nan", "count": nans})
    return buckets


def _ends(first: int, last: int, is_whole: bool) -> tuple[float, float]:
    """Return the least and the greatest value of the buckets from one to another: whole numbers where values are."""
    low, high = _least(first) if first >= 0 else -_most(-first), _most(last) if last >= 0 else -_least(-last)
    if not is_whole:
        return low, high
    # Beyond these, numbers in a page are no whole ones.
    if not max(abs(low), abs(high)) < 1 << 53:
        return low, high
    return -int(-low // 1), int(high // 1)


def _least(bucket: int) -> float:
    """Return the least value of a bucket of numbers that are not negative."""
    return float(np.int64(bucket << _MANTISSA).view(np.float64))


def _most(bucket: int) -> float:
    """Return the greatest value of such a bucket; that of infinity is infinity."""
    found = float(np.int64(((bucket + 1) << _MANTISSA) - 1).view(np.float64))
    return math.inf if math.isnan(found) else found
