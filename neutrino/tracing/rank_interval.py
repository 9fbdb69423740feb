"""How much one set of measurements is above another: an interval that assumes no form of their noise.

The ratio is the middle one of all ratios of a value of the one set to one of the other (Hodges and Lehmann), and the
interval's ends are the ratios that the distribution of Mann and Whitney's U gives. If both sets have the same noise,
and values that do not depend on each other, the interval misses the true ratio with at most the asked probability.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
MOST_SAMPLES = 25
"""Values of a set: more are put together, in their order, in as many groups of equal size, each with its median.
So values that resemble those next to them, as of a GPU that slowly gets warm, do not count as many."""


@dataclass(frozen=True)
class Interval:
    """How many times as large the second set is: the estimate, and from low to high with the asked certainty."""

    ratio: float
    low: float
    high: float

    def exceeds(self, margin: float | Fraction) -> bool:
        """Whether all of the interval is further from 1 than the margin, such as 0.02."""
        least, most = ends_of(margin)
        return self.low > most or self.high < least


@lru_cache(maxsize=64)
def ends_of(margin: float | Fraction) -> tuple[float, float]:
    """Return the ratios that are as far from 1 as the margin, below and above it.

    Each is the number next to the true one, as is a ratio of two counts: 102 / 100 is what this returns of 0.02, and
    not more.
    """
    exact = Fraction(str(margin))
    return float(1 - exact), float(1 + exact)


def grouped(values: Array) -> Array:
    """Return at most ``MOST_SAMPLES`` values: medians of groups that follow each other, if there are more."""
    if len(values) <= MOST_SAMPLES:
        return values
    return np.array([np.median(part) for part in np.array_split(values, MOST_SAMPLES)])


@lru_cache(maxsize=1024)
def _ways(first: int, second: int) -> tuple[int, ...]:
    """Return in how many orders of so many values U is 0, 1, 2 …: each value of the second set that is before one of
    the first counts."""
    # Generating function: the product of (1 - q^(second + i)) / (1 - q^i).
    ways = [1] + [0] * (first * second)
    for i in range(1, first + 1):
        for at in range(first * second, second + i - 1, -1):
            ways[at] -= ways[at - second - i]
        for at in range(i, first * second + 1):
            ways[at] += ways[at - i]
    return tuple(ways)


def rank_of_end(first: int, second: int, doubt: float) -> int:
    """Return which of the ordered ratios, from 1, is the lower end of an interval; 0 if there are too few values.

    first, second: values of each set, of which no more than ``MOST_SAMPLES`` count. doubt: the probability that the
    interval misses the ratio, such as 0.01.
    """
    first, second = min(first, MOST_SAMPLES), min(second, MOST_SAMPLES)
    total = math.comb(first + second, first)
    below = 0
    for u, count in enumerate(_ways(first, second)):
        below += count
        if below * 2 > doubt * total:
            return u
    return 0


def values_needed(doubt: float) -> int:
    """Return how many values each set must have for an interval."""
    count = 1
    while not rank_of_end(count, count, doubt):
        count += 1
    return count


def interval_of(first: Array, second: Array, doubt: float) -> Interval | None:
    """Return how many times as large the second set is; None if there are too few values for an interval.

    first, second: values in the order in which they were measured. If some are 0 or less, their differences are
    compared in place of their ratios: as shares of the greater one of the two means.
    """
    one, other = grouped(first), grouped(second)
    rank = rank_of_end(len(one), len(other), doubt)
    if not rank:
        return None
    if min(one.min(), other.min()) > 0:
        ratios = np.sort((other[None, :] / one[:, None]).reshape(-1))
    else:
        scale = max(np.abs(one).mean(), np.abs(other).mean()) or 1.0
        ratios = np.sort((scale + (other[None, :] - one[:, None]).reshape(-1)) / scale)
    return Interval(float(np.median(ratios)), float(ratios[rank - 1]), float(ratios[-rank]))
