"""Histograms of floating-point numbers: their buckets, and the code that finds a value's.

All scales have a bucket for what is below and one for what is above, to which the infinities belong, and a last one for
NaNs. Both zeros are one number.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from neutrino.abi.scalars import ScalarType
from neutrino.ir.operands import Constant, Register
from neutrino.ir.statements import Operator, Relation
from neutrino.ir.types import Type
from neutrino.maps.builder import Builder

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

Number = int | float
Bucket = tuple[float, float]
"""The least and the greatest number of a bucket; of the one of NaNs twice a NaN."""

_FRACTION_BITS = {ScalarType.F32: 23, ScalarType.F64: 52}
"""Bits of a number's fraction, below those of its exponent."""
_LEAST_STEP = 2.0**-1000
"""Steps are greater: their inverses are finite."""
_SAME = Fraction(1, 1 << 30)
"""By so much of a step ``high`` may miss the last edge: steps such as 0.1 are no exact numbers."""


def is_number(value: object) -> bool:
    """Return whether a value is a finite number that f64 has."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


@dataclass(frozen=True)
class Steps:
    """A linear scale. edges: ``low + number * step`` in f64, as the code computes it; the last one is ``high``.

    step, rest: the step, which as it is written may be between two numbers, and what it is more than the nearest one.
    With a rest the product and the sum are rounded each, else both at once.
    """

    edges: tuple[float, ...]
    step: float
    rest: float

    @classmethod
    def between(cls, low: Number, high: Number, step: Number, most: int) -> Steps | None:
        """Return the scale; None if high is no edge, or there are more buckets than ``most``, or the code cannot
        compute with these."""
        if not (step > 0 and high > low and math.isfinite(float(high) - float(low)) and float(step) > _LEAST_STEP):
            return None
        first, width = _as_written(low), _as_written(step)
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
    """Return whether there are edges, ascending, and numbers of a type between each two and on both sides."""
    numbers = first_numbers(edges, scalar)
    return (
        bool(edges)
        and all(one < other for one, other in pairwise(edges))
        and all(one < other for one, other in pairwise(numbers))
        and math.isfinite(numbers[0])
        and math.isfinite(numbers[-1])
    )


def first_numbers(edges: Sequence[float], scalar: ScalarType) -> list[float]:
    """Return the edges as numbers of a type, each the nearest one."""
    return list(edges) if scalar is ScalarType.F64 else [_as_single(edge) for edge in edges]


def buckets_between(edges: Sequence[float], scalar: ScalarType) -> list[Bucket]:
    """Return the buckets that edges divide the numbers of a type into, and the one of NaNs."""
    starts = [-math.inf, *first_numbers(edges, scalar)]
    ends = [*(_below(start, scalar) for start in starts[1:]), math.inf]
    return [*zip(starts, ends, strict=True), (math.nan, math.nan)]


def power_count(scalar: ScalarType) -> int:
    """Return how many buckets the scale of powers of two has."""
    return 2 * _levels(scalar) + 2


def powers(kind: str) -> tuple[Array, Array]:
    """Return the least and the greatest numbers of the buckets of the scale of powers of two, ascending.

    Each is of the numbers with one sign and exponent; further ones are of 0, of the subnormal numbers of each sign, of
    each infinity and of NaNs. kind: ``f32`` or ``f64``.
    """
    import numpy as np

    dtype = np.dtype("<f4" if kind == "f32" else "<f8")
    known, infinity = np.finfo(dtype), dtype.type(np.inf)
    exact = np.ldexp(dtype.type(1), np.arange(known.minexp, known.maxexp)).astype(dtype)
    tiny = np.nextafter(dtype.type(0), infinity)
    low = np.concatenate([[tiny], exact, [infinity]]).astype(dtype)
    high = np.append(np.nextafter(low[1:], dtype.type(0)), infinity)
    zero, nan = np.zeros(1, dtype), np.full(1, np.nan, dtype)
    return np.concatenate([-high[::-1], zero, low, nan]), np.concatenate([-low[::-1], zero, high, nan])


@dataclass(frozen=True)
class BucketCode:
    """Writes the code that computes the number of a value's bucket, a u32. value: an f32 or f64."""

    code: Builder
    value: Register

    def of_powers(self) -> Register:
        """The bucket by powers of two."""
        code, bits, scalar = self.code, self.value.type.bits, self._scalar
        pattern = code.as_bits(Type(f"u{bits}"), self.value)
        magnitude = code.compute(Operator.AND, pattern, (1 << (bits - 1)) - 1)
        # The exponent is 0 of zero and of subnormal numbers, which are one level further, as all others are.
        level = code.compute(Operator.SHR, magnitude, _FRACTION_BITS[scalar])
        if bits == 64:
            level = code.convert(Type.U32, level)
        is_more = code.compare(Relation.NE, magnitude, 0)
        level = code.compute(Operator.ADD, level, code.select(is_more, 1, 0, Type.U32))
        is_negative = code.compare(Relation.LT, code.as_bits(Type(f"s{bits}"), self.value), 0)
        middle = _levels(scalar)
        level = code.select(is_negative, code.compute(Operator.NEG, code.as_bits(Type.S32, level)), level, Type.U32)
        return self._unless_nan(code.compute(Operator.ADD, level, middle), power_count(scalar) - 1)

    def between(self, edges: Sequence[float]) -> Register:
        """The bucket between edges: as many as are not above the value."""
        code = self.code
        first, *others = [self._is_at_or_above(number) for number in first_numbers(edges, self._scalar)]
        bucket = code.select(first, 1, 0, Type.U32)
        for is_reached in others:
            bucket = code.compute(Operator.ADD, bucket, code.select(is_reached, 1, 0, Type.U32))
        return self._unless_nan(bucket, len(edges) + 1)

    def of_steps(self, steps: Steps) -> Register:
        """The bucket on a linear scale.

        The quotient is at most one bucket off, since buckets are no narrower than the distance of numbers there: two
        edges, computed as those of the scale, say which bucket is right.
        """
        code = self.code
        wide = self._widened()
        low, *_, high = steps.edges
        offset = code.compute(Operator.ADD, wide, _constant(-low)) if low else wide
        place = code.convert(Type.S32, code.compute(Operator.MUL, offset, _constant(1 / steps.step)))
        after = code.compute(Operator.ADD, place, 1)
        # The first bucket is below the scale.
        is_after = code.compare(Relation.GE, self.value, self._edge(after, low, steps))
        bucket = code.select(is_after, code.compute(Operator.ADD, after, 1), after, Type.S32)
        is_before = code.compare(Relation.LT, self.value, self._edge(place, low, steps))
        bucket = code.select(is_before, place, bucket, Type.S32)
        # The last edge is ``high`` itself.
        last = len(steps.edges) - 1
        bucket = code.compute(Operator.MIN, bucket, last)
        first_number, end = first_numbers((low, high), self._scalar)
        bucket = code.select(self._is_at_or_above(end), last + 1, bucket, Type.S32)
        is_below = code.compare(Relation.LT, self.value, _constant(first_number, self._scalar))
        bucket = code.select(is_below, 0, bucket, Type.S32)
        return self._unless_nan(code.as_bits(Type.U32, bucket), last + 2)

    @property
    def _scalar(self) -> ScalarType:
        return ScalarType(self.value.type.value)

    def _widened(self) -> Register:
        return self.value if self.value.type is Type.F64 else self.code.convert(Type.F64, self.value)

    def _edge(self, number: Register, low: float, steps: Steps) -> Register:
        """The edge with a number, as a number of the value's type."""
        code, wide, step = self.code, self.code.convert(Type.F64, number), _constant(steps.step)
        if steps.rest:
            edge = code.compute(Operator.FMA, wide, step, code.compute(Operator.MUL, wide, _constant(steps.rest)))
            edge = code.compute(Operator.ADD, edge, _constant(low)) if low else edge
        else:
            edge = code.compute(Operator.FMA, wide, step, _constant(low))
        return edge if self.value.type is Type.F64 else code.convert(Type.F32, edge)

    def _is_at_or_above(self, number: float) -> Register:
        return self.code.compare(Relation.GE, self.value, _constant(number, self._scalar))

    def _unless_nan(self, bucket: Register, last: int) -> Register:
        # No other number differs from itself.
        is_nan = self.code.compare(Relation.NE, self.value, self.value)
        return self.code.select(is_nan, last, bucket, Type.U32)


def _levels(scalar: ScalarType) -> int:
    """Return how many buckets there are of numbers of one sign: one of subnormal ones, one of each exponent of others,
    one of infinity."""
    exponents = (1 << (scalar.size * 8 - 1 - _FRACTION_BITS[scalar])) - 2
    return exponents + 2


def _constant(number: float, scalar: ScalarType = ScalarType.F64) -> Constant:
    return Constant(Type(scalar.value), _bits(number, scalar))


def _bits(number: float, scalar: ScalarType) -> int:
    code, integer = ("<f", "<I") if scalar is ScalarType.F32 else ("<d", "<Q")
    bits: int = struct.unpack(integer, struct.pack(code, number))[0]
    return bits


def _as_single(number: float) -> float:
    """Return the nearest number of f32."""
    try:
        nearest: float = struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)
    return nearest


def _below(number: float, scalar: ScalarType) -> float:
    """Return the number of a type before another one."""
    if scalar is ScalarType.F64:
        return math.nextafter(number, -math.inf)
    bits = _bits(number, scalar)
    # Of negative numbers the magnitude grows; before both zeros is the least negative one.
    bits = 0x80000001 if number == 0 else bits - 1 if number > 0 else bits + 1
    before: float = struct.unpack("<f", struct.pack("<I", bits))[0]
    return before
