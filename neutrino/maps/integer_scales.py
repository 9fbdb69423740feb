"""The scales of histograms of integers: powers of two, steps of one size, and explicit edges."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neutrino.abi.scalars import ScalarType
from neutrino.ir.operands import Register
from neutrino.ir.statements import Operator, Relation
from neutrino.ir.types import Type
from neutrino.maps.builder import Builder
from neutrino.maps.declaration import MapTable
from neutrino.maps.scale import LINEAR_KEYS, MAX_BUCKETS, MAX_EDGES, SCALES, Scale


class IntegerScale(Scale):
    """A scale that the first values of its buckets define."""

    of_integers = True

    @abstractmethod
    def starts(self, scalar: ScalarType) -> Sequence[int]:
        """Return the first value of each histogram bucket but the lowest, ascending; some may be outside of the type's
        range."""

    def buckets(self, scalar: ScalarType) -> Sequence[tuple[int, int]]:
        """Return the least and the greatest value of each histogram bucket, ascending."""
        least, greatest = range_of(scalar)
        # The lowest bucket begins at the least value, whatever the scale has there.
        starts = [start for start in self.starts(scalar) if least < start <= greatest]
        return list(zip([least, *starts], [*(start - 1 for start in starts), greatest], strict=True))

    def document(self, scalar: ScalarType) -> dict[str, Any]:
        """Return what the manifest has of the scale: its options, and the least and the greatest value of each bucket.
        """
        return {**self.options(), "buckets": [list(bucket) for bucket in self.buckets(scalar)]}

    def number_of(self, value: int, scalar: ScalarType) -> int:
        """Return the number of the histogram bucket of a value that is known when code is written.

        value: any integer; its lower bits are those of a number of the type, as in a register.
        """
        least, greatest = range_of(scalar)
        value = (value - least) % (greatest - least + 1) + least
        # The last bucket that begins at or below the value.
        return bisect_right([low for low, _ in self.buckets(scalar)], value) - 1


@dataclass(frozen=True)
class Powers(IntegerScale):
    """Powers of two, after 0 and the negative numbers."""

    name = "log2"

    def starts(self, scalar: ScalarType) -> Sequence[int]:
        """Return the first value of each histogram bucket but the lowest: 0 and the powers of two."""
        return [0, *(1 << power for power in range(scalar.size * 8))]

    def write(self, code: Builder, value: Register, scalar: ScalarType) -> Register:
        """Add the statements that find a value's bucket, by its highest bit; return the register with its number."""
        # Of 0 the highest bit is -1, and 0 has the first bucket. Of signed types it has the second, since all negative
        # numbers have the first.
        is_signed = value.type.is_signed
        pattern = code.as_bits(Type(f"u{value.type.bits}"), value)
        bucket = code.compute(Operator.ADD, code.compute(Operator.HIGHEST, pattern, type_=Type.U32), 1 + is_signed)
        if not is_signed:
            return bucket
        return code.select(code.compare(Relation.LT, value, 0), 0, bucket, Type.U32)


@dataclass(frozen=True)
class Edges(IntegerScale):
    """edges: ascending, the first value of each bucket but the lowest."""

    edges: tuple[int, ...]

    name = "edges"

    @classmethod
    def declared(cls, table: MapTable, scalar: ScalarType) -> Scale | None:
        """Return the scale with the ``edges`` of a map's table; None if they are invalid, which is reported by
        ``table``.

        scalar: the type of the values.
        """
        least, greatest = range_of(scalar)
        edges = table.get("edges")
        if not isinstance(edges, list) or not 1 < len(edges) <= MAX_EDGES or not all(map(_is_integer, edges)):
            table.fault("edges", "edges is no list of integers", f"write 2 to {MAX_EDGES} of them")
        # Ascending, each once. An edge at the least value would have no value below it.
        elif sorted(set(edges)) != edges or not least < edges[0] or edges[-1] > greatest:
            hint = f"write them ascending, from {least + 1} to {greatest}"
            table.fault("edges", f"the edges do not divide what a {scalar.value} can be", hint)
        else:
            return cls(tuple(edges))
        return None

    def options(self) -> dict[str, Any]:
        """Return the keys of the map's table in the probe file that declare this scale, with their values."""
        return {"scale": self.name, "edges": list(self.edges)}

    def starts(self, scalar: ScalarType) -> Sequence[int]:
        """Return the first value of each histogram bucket but the lowest: the declared edges."""
        return self.edges

    def write(self, code: Builder, value: Register, scalar: ScalarType) -> Register:
        """Add the statements that find a value's bucket, by counting the edges that it has reached; return its number.
        """
        first, *others = self.edges
        bucket = code.select(code.compare(Relation.GE, value, first), 1, 0, Type.U32)
        for edge in others:
            is_reached = code.select(code.compare(Relation.GE, value, edge), 1, 0, Type.U32)
            bucket = code.compute(Operator.ADD, bucket, is_reached)
        return bucket


@dataclass(frozen=True)
class Steps(IntegerScale):
    """Steps of one size, from low to below high, and a bucket on either side."""

    low: int
    high: int
    step: int

    name = "linear"

    @classmethod
    def declared(cls, table: MapTable, scalar: ScalarType) -> Scale | None:
        """Return the scale with ``low``, ``high`` and ``step`` of a map's table; None if they are invalid, which is
        reported.

        scalar: the type of the values.
        """
        least, greatest = range_of(scalar)
        low, high, step = (table.get(key) for key in LINEAR_KEYS)
        for key, value in zip(LINEAR_KEYS, (low, high, step), strict=True):
            if not _is_integer(value):
                table.fault(key, f"{key} is no integer", SCALES)
                return None
        # high itself is above the last bucket of the scale, so it may be above what the type can be.
        if not least <= low < high <= greatest + 1 or step < 1 or (high - low) % step:
            hint = f"write {least} <= low < high <= {greatest + 1}, apart by a multiple of step"
            table.fault("step", f"from {low} to {high} by {step} is no scale of a {scalar.value}", hint)
        elif (high - low) // step > MAX_BUCKETS:
            table.fault("step", f"{(high - low) // step} buckets", f"a histogram has up to {MAX_BUCKETS}")
        elif high - low > 1 << 32 and step & (step - 1):
            # By other steps than powers of two, kernels divide 32-bit numbers only (_quotient).
            hint = "write a power of two"
            table.fault("step", f"step is {step}, and high - low more than 2^32", hint)
        else:
            return cls(low, high, step)
        return None

    def options(self) -> dict[str, Any]:
        """Return the keys of the map's table in the probe file that declare this scale, with their values."""
        return {"scale": self.name, "low": self.low, "high": self.high, "step": self.step}

    def starts(self, scalar: ScalarType) -> Sequence[int]:
        """Return the first value of each histogram bucket but the lowest: low to high, by step; some may not fit the
        type."""
        return range(self.low, self.high + 1, self.step)

    def write(self, code: Builder, value: Register, scalar: ScalarType) -> Register:
        """Add the statements that find a value's bucket, by dividing by the step; return the register with its number.
        """
        least, greatest = range_of(scalar)
        # The first bucket has the values below low, if the type has any.
        has_bucket_below = self.low > least
        first = int(has_bucket_below)
        count = (self.high - self.low) // self.step

        # (value - low) / step. The bucket of values below low, which wrap around, and from high on is replaced below.
        offset = code.as_bits(Type(f"u{value.type.bits}"), value)
        if self.low:
            offset = code.compute(Operator.SUB, offset, self.low)
        bucket = self._quotient(code, offset)
        if has_bucket_below:
            bucket = code.compute(Operator.ADD, bucket, first)
        # The last bucket has the values from high on, if the type has any.
        if self.high <= greatest:
            bucket = code.select(code.compare(Relation.GE, value, self.high), count + first, bucket, Type.U32)
        if has_bucket_below:
            bucket = code.select(code.compare(Relation.LT, value, self.low), 0, bucket, Type.U32)
        return bucket

    def _quotient(self, code: Builder, value: Register) -> Register:
        """Append the code that divides an unsigned value of 32 or 64 bits by the step; return the quotient, a u32.

        The result is only right for values below high - low; for larger ones, which the caller replaces, it is any
        number.
        """
        is_wide = value.type is Type.U64
        if not self.step & (self.step - 1):
            shifted = code.compute(Operator.SHR, value, self.step.bit_length() - 1) if self.step > 1 else value
            return code.convert(Type.U32, shifted) if is_wide else shifted

        # Division by multiplication with a constant: high - low is at most 2^32 here, so that 32 bits of the value are
        # enough. Granlund and Montgomery, "Division by Invariant Integers using Multiplication", 1994, theorem 4.2.
        word = code.convert(Type.U32, value) if is_wide else value
        # The upper half of a product divides by 2^32, the shift by the rest of the power.
        for shift in range(32):
            power = 1 << (32 + shift)
            multiplier = power // self.step + 1
            if multiplier < 1 << 32 and (multiplier * self.step - power) * (self.high - self.low) <= power:
                product = code.compute(Operator.MUL_HIGH, word, multiplier)
                return code.compute(Operator.SHR, product, shift) if shift else product
        # No multiplier of 32 bits is exact for all values. One of 64 bits is: with the power 2^64 the condition above
        # holds for every step, which is at most 2^32.
        wide = code.compute(Operator.MUL_HIGH, code.convert(Type.U64, word), (1 << 64) // self.step + 1)
        return code.convert(Type.U32, wide)


def range_of(scalar: ScalarType) -> tuple[int, int]:
    """Return the least and the greatest value of an integer type."""
    bits = scalar.size * 8
    # An integer type is called u64 or s64.
    is_signed = scalar.value.startswith("s")
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if is_signed else (0, (1 << bits) - 1)


def _is_integer(value: object) -> bool:
    """Return whether a value of a probe file is an integer; bool, which Python counts among them, is not."""
    return isinstance(value, int) and not isinstance(value, bool)
