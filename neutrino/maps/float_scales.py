"""The scales of histograms of floating-point numbers: powers of two, steps of one size, and explicit edges.

All scales have a bucket for what is below and one for what is above, to which the infinities belong, and a last one for
NaNs. Both zeros are one number.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from neutrino.abi.scalars import ScalarType
from neutrino.ir.operands import Constant, Register
from neutrino.ir.statements import Operator, Relation
from neutrino.ir.types import Type
from neutrino.maps.builder import Builder
from neutrino.maps.declaration import MapTable
from neutrino.maps.float_edges import (
    Bucket,
    Number,
    StepEdges,
    bits_of,
    buckets_between,
    divide,
    first_numbers,
    is_number,
)
from neutrino.maps.scale import LINEAR_KEYS, MAX_BUCKETS, MAX_EDGES, SCALES, Scale

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

_FRACTION_BITS = {ScalarType.F32: 23, ScalarType.F64: 52}
"""Bits of a number's fraction, below those of its exponent."""
_FEW_EDGES = 17
"""Of a linear scale: to compare with so many costs less than arithmetic in f64."""


@dataclass(frozen=True)
class FloatPowers(Scale):
    """A bucket for each sign and exponent, as ``powers`` has them."""

    name = "log2"
    of_integers = False

    def buckets(self, scalar: ScalarType) -> Sequence[Bucket]:
        """Return the least and the greatest number of each bucket, ascending: one bucket for each sign and exponent."""
        low, high = powers(scalar.value)
        return list(zip(low.tolist(), high.tolist(), strict=True))

    def bucket_count(self, scalar: ScalarType) -> int:
        """Return how many buckets a histogram with this scale has: for each sign and exponent, and for NaNs."""
        return 2 * _levels(scalar) + 2

    def document(self, scalar: ScalarType) -> dict[str, Any]:
        """Return what the manifest has of the scale: its options. The buckets, which are many, follow from the type."""
        return self.options()

    def write(self, code: Builder, value: Register, scalar: ScalarType) -> Register:
        """Add the statements that find a value's bucket, by its sign and exponent; return the register with its number.
        """
        bits = value.type.bits
        pattern = code.as_bits(Type(f"u{bits}"), value)
        magnitude = code.compute(Operator.AND, pattern, (1 << (bits - 1)) - 1)
        # The exponent is 0 of zero and of subnormal numbers, which are one level further, as all others are.
        level = code.compute(Operator.SHR, magnitude, _FRACTION_BITS[scalar])
        if bits == 64:
            level = code.convert(Type.U32, level)
        is_more = code.compare(Relation.NE, magnitude, 0)
        level = code.compute(Operator.ADD, level, code.select(is_more, 1, 0, Type.U32))
        is_negative = code.compare(Relation.LT, code.as_bits(Type(f"s{bits}"), value), 0)
        level = code.select(is_negative, code.compute(Operator.NEG, code.as_bits(Type.S32, level)), level, Type.U32)
        bucket = code.compute(Operator.ADD, level, _levels(scalar))
        return _unless_nan(code, value, bucket, self.bucket_count(scalar) - 1)


class _Divided(Scale):
    """A scale that edges define."""

    of_integers = False

    @property
    @abstractmethod
    def edges(self) -> Sequence[float]:
        """The numbers at which a bucket ends and the next one begins, ascending."""

    def buckets(self, scalar: ScalarType) -> Sequence[Bucket]:
        """Return the least and the greatest number of each bucket."""
        return buckets_between(self.edges, scalar)

    def bucket_count(self, scalar: ScalarType) -> int:
        """Return how many buckets a histogram with this scale has."""
        # One is below the first edge, one is of NaNs.
        return len(self.edges) + 2

    def document(self, scalar: ScalarType) -> dict[str, Any]:
        """Return the options, and the least and the greatest number of each bucket; infinities and NaN are texts."""
        rows = [[end if math.isfinite(end) else str(end) for end in bucket] for bucket in self.buckets(scalar)]
        return {**self.options(), "buckets": rows}

    def write(self, code: Builder, value: Register, scalar: ScalarType) -> Register:
        """Add the statements that find a value's bucket, by counting the edges that it has reached; return its number.

        The last bucket is that of NaNs.
        """
        first, *others = [_is_at_or_above(code, value, edge) for edge in first_numbers(self.edges, scalar)]
        bucket = code.select(first, 1, 0, Type.U32)
        for is_reached in others:
            bucket = code.compute(Operator.ADD, bucket, code.select(is_reached, 1, 0, Type.U32))
        return _unless_nan(code, value, bucket, len(self.edges) + 1)


@dataclass(frozen=True)
class FloatEdges(_Divided):
    """numbers: the edges, as they were written."""

    numbers: tuple[Number, ...]

    name = "edges"

    @classmethod
    def declared(cls, table: MapTable, scalar: ScalarType) -> Scale | None:
        """Return the scale with the ``edges`` of a map's table; None if they are invalid, which is reported by
        ``table``.

        scalar: the type of the values.
        """
        edges = table.get("edges")
        if not isinstance(edges, list) or not 1 < len(edges) <= MAX_EDGES or not all(map(is_number, edges)):
            table.fault("edges", "edges is no list of numbers", f"write 2 to {MAX_EDGES} of them")
        elif not divide(list(map(float, edges)), scalar):
            hint = "write them ascending, with a number of the type between each two"
            table.fault("edges", f"the edges do not divide what a {scalar.value} can be", hint)
        else:
            return cls(tuple(edges))
        return None

    def options(self) -> dict[str, Any]:
        """Return the keys of the map's table that declare this scale."""
        return {"scale": self.name, "edges": list(self.numbers)}

    @property
    def edges(self) -> Sequence[float]:
        """The numbers at which histogram buckets begin, ascending."""
        return [float(number) for number in self.numbers]


@dataclass(frozen=True)
class FloatSteps(_Divided):
    """Steps of one size, from low to below high, as they were written."""

    low: Number
    high: Number
    step: Number

    name = "linear"

    @classmethod
    def declared(cls, table: MapTable, scalar: ScalarType) -> Scale | None:
        """Return the scale with ``low``, ``high`` and ``step`` of a map's table; None if they are invalid, which is
        reported.

        scalar: the type of the values.
        """
        low, high, step = (table.get(key) for key in LINEAR_KEYS)
        for key, value in zip(LINEAR_KEYS, (low, high, step), strict=True):
            if not is_number(value):
                table.fault(key, f"{key} is no number", SCALES)
                return None
        steps = StepEdges.between(low, high, step, MAX_BUCKETS)
        if steps is not None and divide(steps.edges, scalar):
            return cls(low, high, step)
        hint = f"write low < high, apart by 1 to {MAX_BUCKETS} steps that are not too small for {scalar.value}"
        table.fault("step", f"from {low} to {high} by {step} is no scale of a {scalar.value}", hint)
        return None

    def options(self) -> dict[str, Any]:
        """Return the keys of the map's table that declare this scale."""
        return {"scale": self.name, "low": self.low, "high": self.high, "step": self.step}

    @property
    def edges(self) -> Sequence[float]:
        """The numbers at which histogram buckets begin, ascending."""
        return self._steps.edges

    def write(self, code: Builder, value: Register, scalar: ScalarType) -> Register:
        """Add the statements that find a value's bucket, by dividing by the step; return the register with its number.

        The quotient is at most one bucket off, since buckets are no narrower than the distance of numbers there: two
        edges, computed as those of the scale, say which bucket is right.
        """
        steps = self._steps
        if len(steps.edges) <= _FEW_EDGES:
            return super().write(code, value, scalar)
        wide = value if value.type is Type.F64 else code.convert(Type.F64, value)
        low, *_, high = steps.edges
        offset = code.compute(Operator.ADD, wide, _constant(-low)) if low else wide
        place = code.convert(Type.S32, code.compute(Operator.MUL, offset, _constant(1 / steps.step)))
        after = code.compute(Operator.ADD, place, 1)
        # The first bucket is below the scale.
        is_after = code.compare(Relation.GE, value, _edge(code, after, steps, value.type))
        bucket = code.select(is_after, code.compute(Operator.ADD, after, 1), after, Type.S32)
        is_before = code.compare(Relation.LT, value, _edge(code, place, steps, value.type))
        bucket = code.select(is_before, place, bucket, Type.S32)
        # The last edge is ``high`` itself.
        last = len(steps.edges) - 1
        bucket = code.compute(Operator.MIN, bucket, last)
        first_number, end = first_numbers((low, high), scalar)
        bucket = code.select(_is_at_or_above(code, value, end), last + 1, bucket, Type.S32)
        is_below = code.compare(Relation.LT, value, _constant(first_number, scalar))
        bucket = code.select(is_below, 0, bucket, Type.S32)
        return _unless_nan(code, value, code.as_bits(Type.U32, bucket), last + 2)

    @cached_property
    def _steps(self) -> StepEdges:
        """Return the edges, which ``declared`` has checked. Raises ValueError if there are none after all."""
        steps = StepEdges.between(self.low, self.high, self.step, MAX_BUCKETS)
        if steps is None:
            raise ValueError(f"from {self.low} to {self.high} by {self.step}")
        return steps


def powers(kind: str) -> tuple[Array, Array]:
    """Return the least numbers, and the greatest ones, of the buckets of the scale of powers of two, ascending.

    There is a bucket of the numbers of each sign and exponent; further ones are of 0, of the subnormal numbers of each
    sign, of each infinity and of NaNs. kind: ``f32`` or ``f64``.
    """
    import numpy as np

    dtype = np.dtype("<f4" if kind == "f32" else "<f8")
    known, infinity = np.finfo(dtype), dtype.type(np.inf)
    exact = np.ldexp(dtype.type(1), np.arange(known.minexp, known.maxexp)).astype(dtype)
    # Below the least power of two are the subnormal numbers.
    tiny = np.nextafter(dtype.type(0), infinity)
    low = np.concatenate([[tiny], exact, [infinity]]).astype(dtype)
    high = np.append(np.nextafter(low[1:], dtype.type(0)), infinity)
    zero, nan = np.zeros(1, dtype), np.full(1, np.nan, dtype)
    return np.concatenate([-high[::-1], zero, low, nan]), np.concatenate([-low[::-1], zero, high, nan])


def _edge(code: Builder, number: Register, steps: StepEdges, type_: Type) -> Register:
    """Add the statements that compute an edge as ``StepEdges`` does, bit for bit; return it. type_: of the result.

    number: of the edge, an s32 from 0 at ``low``.
    """
    wide, step, low = code.convert(Type.F64, number), _constant(steps.step), steps.edges[0]
    if steps.rest:
        edge = code.compute(Operator.FMA, wide, step, code.compute(Operator.MUL, wide, _constant(steps.rest)))
        edge = code.compute(Operator.ADD, edge, _constant(low)) if low else edge
    else:
        edge = code.compute(Operator.FMA, wide, step, _constant(low))
    return edge if type_ is Type.F64 else code.convert(Type.F32, edge)


def _is_at_or_above(code: Builder, value: Register, number: float) -> Register:
    """Return a predicate that says whether a value is at least a number; it is false for NaNs."""
    return code.compare(Relation.GE, value, _constant(number, ScalarType(value.type.value)))


def _unless_nan(code: Builder, value: Register, bucket: Register, last: int) -> Register:
    """Return the register with the bucket, or for a NaN, which alone differs from itself, the last one."""
    # No other number differs from itself.
    return code.select(code.compare(Relation.NE, value, value), last, bucket, Type.U32)


def _levels(scalar: ScalarType) -> int:
    """Return how many buckets there are of numbers of one sign: one of subnormal ones, one of each exponent of others,
    one of infinity."""
    exponents = (1 << (scalar.size * 8 - 1 - _FRACTION_BITS[scalar])) - 2
    return exponents + 2


def _constant(number: float, scalar: ScalarType = ScalarType.F64) -> Constant:
    """Return a number as a constant operand of a floating-point type."""
    return Constant(Type(scalar.value), bits_of(number, scalar))
