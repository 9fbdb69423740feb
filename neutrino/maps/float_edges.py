"""The edges of scales of floating-point numbers, as numbers of a type, and the buckets between them."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from neutrino.abi.scalars import ScalarType

Number = int | float
Bucket = tuple[float, float]
"""The least and the greatest number of a bucket; of the one of NaNs twice a NaN."""

_LEAST_STEP = 2.0**-1000
"""Steps are greater: their inverses are finite."""
_SAME = Fraction(1, 1 << 30)
"""By so much of a step ``high`` may miss the last edge: steps such as 0.1 are no exact numbers."""


def is_number(value: object) -> bool:
    """Return whether a value of a probe file is an integer or float that f64 can hold, and finite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


@dataclass(frozen=True)
class StepEdges:
    """Those of a linear scale.

    edges: ``low + number * step`` in f64, as the code computes it; the last one is ``high``. step, rest:
    the step, which as it is written may be between two numbers, and what it is more than the nearest one.
    With a rest the product and the sum are rounded each, else both at once.
    """

    edges: tuple[float, ...]
    step: float
    rest: float

    @classmethod
    def between(cls, low: Number, high: Number, step: Number, most: int) -> StepEdges | None:
        """Return the edges of a histogram's linear scale, from low to high in steps; None if it cannot be used.

        That is so where high is no edge, where there are more buckets than ``most``, or where numbers overflow or steps
        are too small for the code that finds buckets.
        """
        if not (step > 0 and high > low and math.isfinite(float(high) - float(low)) and float(step) > _LEAST_STEP):
            return None
        first, width = _as_written(low), _as_written(step)
        # The number of steps that is nearest to the whole width; past: how far that is off, plus half a step.
        count, past = divmod(_as_written(high) - first + width / 2, width)
        if abs(past - width / 2) > _SAME * width or not 0 < count <= most:
            return None
        nearest = float(width)
        rest = float(width - Fraction(nearest))
        exact = (number * Fraction(nearest) for number in range(int(count)))
        if rest:
            # These products are the exact ones, rounded once.
            edges = [float(product + Fraction(number * rest)) + float(low) for number, product in enumerate(exact)]
        else:
            edges = [float(product + Fraction(float(low))) for product in exact]
        return cls((*edges, float(high)), nearest, rest)


def _as_written(number: Number) -> Fraction:
    """Return the decimal number that a float was written as: 0.1 is a tenth."""
    return Fraction(repr(number)) if isinstance(number, float) else Fraction(number)


def divide(edges: Sequence[float], scalar: ScalarType) -> bool:
    """Return whether edges of histogram buckets are ascending and leave at least one number of the type in each bucket.
    """
    numbers = first_numbers(edges, scalar)
    return (
        bool(edges)
        and all(one < other for one, other in pairwise(edges))
        and all(one < other for one, other in pairwise(numbers))
        and math.isfinite(numbers[0])
        and math.isfinite(numbers[-1])
    )


def first_numbers(edges: Sequence[float], scalar: ScalarType) -> list[float]:
    """Return the edges of histogram buckets rounded to a type: the first number of each bucket but the lowest."""
    return list(edges) if scalar is ScalarType.F64 else [_as_single(edge) for edge in edges]


def buckets_between(edges: Sequence[float], scalar: ScalarType) -> list[Bucket]:
    """Return the least and the greatest number of each histogram bucket that edges make; the last bucket is of NaNs."""
    starts = [-math.inf, *first_numbers(edges, scalar)]
    ends = [*(_below(start, scalar) for start in starts[1:]), math.inf]
    return [*zip(starts, ends, strict=True), (math.nan, math.nan)]


def bits_of(number: float, scalar: ScalarType) -> int:
    """Return the bits of a floating-point number in the format f32 or f64, as an integer."""
    code, integer = ("<f", "<I") if scalar is ScalarType.F32 else ("<d", "<Q")
    bits: int = struct.unpack(integer, struct.pack(code, number))[0]
    return bits


def _as_single(number: float) -> float:
    """Return the f32 that is nearest to a number; infinity if it is too large."""
    try:
        nearest: float = struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)
    return nearest


def _below(number: float, scalar: ScalarType) -> float:
    """Return the greatest number of a floating-point type that is less than a given one."""
    if scalar is ScalarType.F64:
        return math.nextafter(number, -math.inf)
    bits = bits_of(number, scalar)
    # Of negative numbers the magnitude grows; before both zeros is the least negative one.
    bits = 0x80000001 if number == 0 else bits - 1 if number > 0 else bits + 1
    before: float = struct.unpack("<f", struct.pack("<I", bits))[0]
    return before
