"""Rows for parametrised tests in which any two values of two parameters meet, in place of all combinations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any


def pairs(*values: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Combinations of a value for each parameter: each two values of two parameters are together in one of them.

    The same ones in every process, about as many as the two longest parameters have combinations.
    """
    axes: Sequence[Sequence[Any]] = [list(one) for one in values]
    if len(axes) == 1:
        return [(value,) for value in axes[0]]
    rows = list(product(*(range(len(axis)) for axis in axes)))
    open_pairs = {pair for row in rows for pair in _of(row)}
    chosen = []
    while open_pairs:
        best = max(rows, key=lambda row: (len(open_pairs.intersection(_of(row))), -_spread(row)))
        open_pairs.difference_update(_of(best))
        chosen.append(best)
    return [tuple(axis[number] for axis, number in zip(axes, row, strict=True)) for row in sorted(chosen)]


def _of(row: Sequence[int]) -> set[tuple[tuple[int, int], ...]]:
    """The pairs of a row: places and values."""
    return set(combinations(enumerate(row), 2))


def _spread(row: Sequence[int]) -> int:
    """A number by which rows that are equally good differ, so that no first value of a parameter is preferred."""
    return sum((place + 3) * value * 7919 for place, value in enumerate(row)) % 101
