"""Questions to the records of a map: those for which a condition holds, the first ones in an order, and groups of them.

Memory does not grow with the number of records, but with the number of groups, or of the records that are kept.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.errors import NeutrinoError
from neutrino.late_dataclass import dataclass
from neutrino.tracing.expression import Expression, compare
from neutrino.tracing.recorded import Rows
from neutrino.tracing.trace import TraceKernel

Array = npt.NDArray[Any]
MOST_GROUPS = 1 << 17
_MOST_WAITING = 1 << 16
"""Rows of groups that wait to be combined, unless there are more groups."""
_MOST_SHOWN = 1 << 14
"""Kept records that are returned at once."""
_LIMB = 32
"""Bits of the parts that sums of integers consist of, so that none overflows."""


def matching(source: Iterable[Rows], condition: Expression) -> Iterator[Rows]:
    """Yield those records for which a condition holds. Raises ExpressionError as ``Expression.values``."""
    for rows in source:
        holds = condition.holds(rows.columns, len(rows))
        if holds.all():
            yield rows
        elif holds.any():
            yield rows.chosen(holds)


class GroupsError(NeutrinoError):
    """There are more than ``MOST_GROUPS`` groups."""


class FirstRows:
    """The first records of a source, in its order or in that of an expression's values; equal ones stay in order.

    count: how many records the source has in all. NaNs come last.
    """

    def __init__(self, source: Iterable[Rows], most: int, order: Expression | None = None) -> None:
        """Read the source to its end. most: records to keep. Raises ExpressionError as ``Expression.values``."""
        self.count = 0
        self._most = most
        self._kernels: list[TraceKernel] = []
        self._kept: list[_Kept] = []
        self._waiting = 0
        self._last: int | float | None = None
        """The last key that is kept, once as many are kept as asked for."""
        for rows in source:
            self.count += len(rows)
            if order is not None:
                self._keep_best(rows, order.values(rows.columns, len(rows)))
            elif self._waiting < most:
                self._keep(rows.chosen(slice(0, most - self._waiting)), np.empty(0))
            # Never without an order.
            if self._waiting > most + max(_MOST_WAITING, most // 4):
                self._sort()
        if order is not None:
            self._sort()

    def __iter__(self) -> Iterator[Rows]:
        """Yield the records, cut where the kernel changes, some thousands at a time."""
        for part in self._kept:
            changes = np.flatnonzero(np.diff(part.owners)) + 1
            cuts = np.union1d(changes, np.arange(0, len(part.owners), _MOST_SHOWN)).tolist()
            for begin, end in itertools.pairwise([*cuts, len(part.owners)]):
                if begin < end:
                    columns = {name: values[begin:end] for name, values in part.columns.items()}
                    yield Rows(self._kernels[part.owners[begin]], columns)

    def _keep_best(self, rows: Rows, keys: Array) -> None:
        """Keep those of some records that may be among the first, in the order asked for. keys: the values that they
        are ordered by."""
        if self._last is not None:
            # What comes after all that is kept; of equal ones the earlier come first.
            is_nan = isinstance(self._last, float) and math.isnan(self._last)
            before = np.asarray(~np.isnan(keys) if is_nan else compare(operator.lt, keys, self._last))
            if not before.any():
                return
            keys, rows = keys[before], rows.chosen(before)
        if len(rows) > self._most:
            best = np.argsort(keys, kind="stable")[: self._most]
            keys, rows = keys[best], rows.chosen(best)
        self._keep(rows, keys)

    def _keep(self, rows: Rows, keys: Array) -> None:
        """Keep records until the first ones of all are known. keys: the values that they are ordered by."""
        if not self._kernels or self._kernels[-1] is not rows.kernel:
            self._kernels.append(rows.kernel)
        self._kept.append(_Kept(keys, np.full(len(rows), len(self._kernels) - 1), rows.columns))
        self._waiting += len(rows)

    def _sort(self) -> None:
        """Of the records kept so far keep the first ``most`` alone, in their order."""
        if not self._kept:
            return
        keys = joined([part.keys for part in self._kept])
        best = np.argsort(keys, kind="stable")[: self._most]
        owners = np.concatenate([part.owners for part in self._kept])[best]
        columns = {
            name: np.concatenate([part.columns[name] for part in self._kept])[best] for name in self._kept[0].columns
        }
        self._kept, self._waiting = [_Kept(keys[best], owners, columns)], len(best)
        if 0 < self._most == len(best):
            self._last = keys[best[-1:]].tolist()[0]


@dataclass(frozen=True)
class _Kept:
    """Records that are kept. keys: by which they are ordered. owners: the number of each one's kernel."""

    keys: Array
    owners: Array
    columns: dict[str, Array]


def joined(arrays: list[Array]) -> Array:
    """Concatenate arrays of numbers; those of different integer types get a type that holds all without loss."""
    types = {values.dtype for values in arrays}
    if len(types) > 1 and not any(kind.kind == "f" for kind in types):
        arrays = [values.astype(object) for values in arrays]
    return np.concatenate(arrays)


@dataclass
class _Totals:
    """What is known of a field in each group: arrays ``[group]``. sums: of integers their limbs, the lowest first."""

    least: Array
    greatest: Array
    sums: list[Array]

    def reordered(self, order: Array, starts: Array) -> _Totals:
        """Return the totals of groups after some groups were combined.

        order: of the old groups, starts: where new ones begin.
        """
        return _Totals(
            np.minimum.reduceat(self.least[order], starts), np.maximum.reduceat(self.greatest[order], starts),
            _carried([_added(limb[order], starts) for limb in self.sums]),
        )  # fmt: skip

    def total(self) -> list[int | float]:
        """Return the sum of each group; integers exactly, from their limbs."""
        if len(self.sums) == 1:
            floats: list[int | float] = self.sums[0].tolist()
            return floats
        limbs = zip(*(limb.tolist() for limb in self.sums), strict=True)
        return [sum(limb << _LIMB * number for number, limb in enumerate(each)) for each in limbs]


@dataclass(frozen=True)
class GroupedField:
    """A field's least and greatest value, sum (of integers exact) and mean in each group, ``[group]``.

    A NaN among the values is the least, the greatest, the sum and the mean.
    """

    minimum: list[int | float]
    mean: list[float]
    maximum: list[int | float]
    total: list[int | float]


@dataclass
class Groups:
    """Records grouped by a number, and what is known of their fields.

    names: of the fields. keys, counts: of each group its number and its records, after ``finish``.
    """

    names: tuple[str, ...]
    keys: Array = field(default_factory=lambda: np.empty(0, np.int64))
    counts: Array = field(default_factory=lambda: np.empty(0, np.int64))
    _totals: dict[str, _Totals] = field(default_factory=dict)
    _parts: list[tuple[Array, Array, dict[str, _Totals]]] = field(default_factory=list)

    @np.errstate(all="ignore")
    def add(self, keys: Array, columns: Mapping[str, Array]) -> None:
        """Add records of a trace to their groups.

        keys: the number of the group of each. columns: of the fields in ``names``, a value for each record. Raises
        GroupsError for more than ``MOST_GROUPS`` groups.
        """
        if not len(keys):
            return
        order, starts = _grouped(keys)
        found = {name: _first_totals(columns[name][order], starts) for name in self.names}
        self._parts.append((keys[order[starts]], np.diff(np.append(starts, len(keys))), found))
        waiting = sum(len(part[0]) for part in self._parts[1:])
        if waiting > max(_MOST_WAITING, len(self._parts[0][0])):
            self.finish()

    @np.errstate(all="ignore")
    def finish(self) -> None:
        """Combine what was added so far. Raises GroupsError for more than ``MOST_GROUPS`` groups."""
        if not self._parts:
            return
        keys = joined([part[0] for part in self._parts])
        counts = np.concatenate([part[1] for part in self._parts])
        order, starts = _grouped(keys)
        if len(starts) > MOST_GROUPS:
            raise GroupsError(f"more than {MOST_GROUPS:,} groups")
        self.keys, self.counts = keys[order[starts]], _added(counts[order], starts)
        for name in self.names:
            totals = [part[2][name] for part in self._parts]
            together = _Totals(
                np.concatenate([part.least for part in totals]), np.concatenate([part.greatest for part in totals]),
                [np.concatenate(limbs) for limbs in zip(*(part.sums for part in totals), strict=True)],
            )  # fmt: skip
            self._totals[name] = together.reordered(order, starts)
        self._parts = [(self.keys, self.counts, dict(self._totals))]

    def of(self, name: str) -> GroupedField:
        """Return the least, mean, greatest value and sum of a field in each group. To be called after ``finish``."""
        if name not in self._totals:
            return GroupedField([], [], [], [])
        known = self._totals[name]
        totals = known.total()
        means = [_mean(total, count) for total, count in zip(totals, self.counts.tolist(), strict=True)]
        return GroupedField(known.least.tolist(), means, known.greatest.tolist(), totals)


def group(source: Iterable[Rows], key: Callable[[Rows], Array], names: tuple[str, ...]) -> Groups:
    """Group records by a key and add up their fields.

    key: gives the key of each record. names: of the fields. Raises GroupsError for more than ``MOST_GROUPS`` groups.
    """
    groups = Groups(names)
    for rows in source:
        groups.add(key(rows), rows.columns)
    groups.finish()
    return groups


def _mean(total: int | float, count: int) -> float:
    """The mean of values from their sum and count; NaN without any."""
    # A sum of integers may be beyond any float only if there are more of them than a trace can hold.
    return total / count if count else math.nan


def _grouped(keys: Array) -> tuple[Array, Array]:
    """Sort keys into groups: return an order in which equal keys are together, and where each begins in it. All NaNs
    are one."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    differs = np.asarray(ordered[1:] != ordered[:-1], bool)
    if ordered.dtype.kind == "f":
        differs &= ~(np.isnan(ordered[1:]) & np.isnan(ordered[:-1]))
    return order, np.append(0, np.flatnonzero(differs) + 1)


def _first_totals(values: Array, starts: Array) -> _Totals:
    """Return the totals of groups of records. values: in the groups' order. starts: where each group begins."""
    least, greatest = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
    if values.dtype.kind == "f":
        return _Totals(least, greatest, [_added(values.astype(np.float64), starts)])
    wide = values.astype(np.int64 if values.dtype.kind == "i" else np.uint64)
    # The upper half has the sign, as >> of signed numbers keeps it; the lower half counts as unsigned.
    halves = [(wide & 0xFFFFFFFF).astype(np.int64), (wide >> _LIMB).astype(np.int64)]
    return _Totals(least, greatest, _carried([_added(half, starts) for half in halves]))


def _carried(limbs: list[Array]) -> list[Array]:
    """Normalize sums in limbs (digits of _LIMB bits, the lowest first): pass carries on, so that none overflows.

    Three limbs of integers; of fractions the one as it is.
    """
    if limbs[0].dtype.kind == "f":
        return limbs
    low, high, *rest = limbs
    high = high + (low >> _LIMB)
    top = (rest[0] if rest else 0) + (high >> _LIMB)
    return [low & 0xFFFFFFFF, high & 0xFFFFFFFF, top]


def _added(values: Array, starts: Array) -> Array:
    """Return the sum of values of each group. starts: where each group begins in the values."""
    result: Array = np.add.reduceat(values, starts)
    return result
