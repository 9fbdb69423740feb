"""A random sample of a file's kernels, and what it says of all of them."""

from __future__ import annotations

import math
import random

SEED = 1
"""Of the draw: the same file and number give the same kernels."""
CONFIDENCE = 0.95
_Z = 1.959964
"""The quantile of the normal distribution for CONFIDENCE, two-sided."""


def drawn(population: int, size: int) -> list[int]:
    """Return the numbers of the drawn ones of a population, ascending; all if there are no more than size."""
    if size >= population:
        return list(range(population))
    return sorted(random.Random(SEED).sample(range(population), size))


def interval(found: int, size: int) -> tuple[float, float]:
    """Return the least and greatest share of a population, 0 to 1, that fit a sample of which found have a property.

    By Wilson's score (Journal of the American Statistical Association 22, 1927), which holds for shares near 0 and 1,
    too; that nothing is drawn twice makes it a little wider than need be. 0 to 1 for no sample.
    """
    if not size:
        return 0.0, 1.0
    share, square = found / size, _Z * _Z
    middle = (share + square / (2 * size)) / (1 + square / size)
    half = _Z / (1 + square / size) * math.sqrt(share * (1 - share) / size + square / (4 * size * size))
    # Else rounding would leave out what the sample itself says.
    low = 0.0 if found == 0 else max(0.0, middle - half)
    return low, 1.0 if found == size else min(1.0, middle + half)
