"""``histogram``: how many values fell into each bucket, over all threads of a launch."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neutrino.abi.records import Field
from neutrino.abi.scalars import ScalarType
from neutrino.ir.memory import Kept, MapStatement
from neutrino.ir.operands import Register
from neutrino.ir.statements import Operator, Relation
from neutrino.ir.types import Type
from neutrino.maps.builder import Builder, Lanes, SavedValues
from neutrino.maps.counts import begin_counts, bring_counts, count_at
from neutrino.maps.declaration import Map, MapTable, MapType, Report
from neutrino.maps.float_scales import (
    BucketCode,
    Number,
    Steps,
    buckets_between,
    divide,
    is_number,
    power_count,
    powers,
)
from neutrino.maps.float_sums import FLOATS

if TYPE_CHECKING:
    from neutrino.maps.declaration import Rows

MAX_BUCKETS = 4096
"""Buckets of a linear scale."""
MAX_EDGES = 64
"""Explicit edges: each save compares its value with all of them."""
_FEW_EDGES = 17
"""Of a linear scale of floating-point numbers: to compare with so many costs less than arithmetic in f64."""
_MOST_DIFFERENCE = 1 << 16
"""Of two values that are added up, so that a sum of them does not exceed 64 bits, however often a thread saves."""
_LINEAR_KEYS = ("low", "high", "step")
_SCALES = 'scale = "log2", or scale = "linear" with low, high and step, or edges = [10, 100, 1000]'


@dataclass(frozen=True)
class Histogram(MapType):
    """A count (u64) for each bucket of values. Values below or above the scale have buckets of their own.

    scale: ``log2``, ``linear`` or ``edges``. low, high, step: of the linear scale, from low to below high. edges: of
    the scale ``edges``, ascending: the first value of each bucket but the lowest.
    """

    scale: str = "log2"
    low: int = 0
    high: int = 0
    step: int = 0
    edges: tuple[int, ...] = ()

    name = "histogram"
    keys = ("scale", "low", "high", "step", "edges")
    copies_bytes = 1 << 17
    field_hint = "a histogram takes one field"
    most_fields = 1
    takes_per = True
    stores_at_sites = True
    combines_lanes = True
    whole = "a histogram over all threads"
    report = Report.BUCKETS

    @classmethod
    def declared(cls, table: MapTable, fields: Sequence[Field]) -> MapType | None:
        """Return the histogram that a map's table declares; None if its keys are invalid, which is reported there."""
        scale, edges = table.get("scale"), table.get("edges")
        # A histogram has one field, whose values it counts.
        value_type = fields[0].type
        kind = FloatHistogram if value_type in FLOATS else cls
        if scale is None and edges is None:
            table.missing("scale", _SCALES)
            return None
        misplaced = [key for key in _LINEAR_KEYS if scale != "linear" and table.get(key) is not None]
        # A table with edges needs no scale. Edges are of that scale alone.
        scale = scale or "edges"
        if scale not in ("log2", "linear", "edges") or (edges is not None) != (scale == "edges"):
            table.fault("scale", f"scale is {scale!r:.40}", _SCALES)
        elif misplaced:
            key, *_ = misplaced
            table.fault(key, f"{key} is of a linear scale", _SCALES)
        elif scale == "edges":
            return kind._declared_edges(table, edges, value_type)
        elif scale == "linear":
            return kind._declared_linear(table, value_type)
        else:
            return kind("log2")
        return None

    @classmethod
    def _declared_edges(cls, table: MapTable, edges: Any, scalar: ScalarType) -> Histogram | None:
        """Return the histogram with a table's edges; None if they are invalid, which is reported.

        scalar: the field's type, in whose range they must be.
        """
        least, greatest = _range_of(scalar)
        if not isinstance(edges, list) or not 1 < len(edges) <= MAX_EDGES or not all(map(_is_integer, edges)):
            table.fault("edges", "edges is no list of integers", f"write 2 to {MAX_EDGES} of them")
        # Ascending, each once. An edge at the least value would have no value below it.
        elif sorted(set(edges)) != edges or not least < edges[0] or edges[-1] > greatest:
            hint = f"write them ascending, from {least + 1} to {greatest}"
            table.fault("edges", f"the edges do not divide what a {scalar.value} can be", hint)
        else:
            return cls("edges", edges=tuple(edges))
        return None

    @classmethod
    def _declared_linear(cls, table: MapTable, scalar: ScalarType) -> Histogram | None:
        """Return the histogram with a table's low, high and step; None if they are invalid, which is reported.

        scalar: the field's type, in whose range they must be.
        """
        least, greatest = _range_of(scalar)
        low, high, step = (table.get(key) for key in _LINEAR_KEYS)
        for key, value in zip(_LINEAR_KEYS, (low, high, step), strict=True):
            if not _is_integer(value):
                table.fault(key, f"{key} is no integer", _SCALES)
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
            return cls("linear", low, high, step)
        return None

    def options(self) -> dict[str, Any]:
        """Return the keys of the map's table that declare this scale."""
        if self.scale == "edges":
            return {"scale": "edges", "edges": list(self.edges)}
        if self.scale == "linear":
            return {"scale": "linear", "low": self.low, "high": self.high, "step": self.step}
        return {"scale": self.scale}

    def document(self, fields: Sequence[Field]) -> dict[str, Any]:
        """Return the type's members in the manifest: the options, and the least and greatest value of each bucket."""
        return {**self.options(), "buckets": [list(bucket) for bucket in self.buckets(fields[0].type)]}

    def bucket_count(self, scalar: ScalarType) -> int:
        """Return how many buckets there are."""
        return len(self.buckets(scalar))

    def buckets(self, scalar: ScalarType) -> list[tuple[int, int]]:
        """Return the least and greatest value of each bucket, ascending. Together they are all values of the type."""
        least, greatest = _range_of(scalar)
        # The lowest bucket begins at the least value, whatever the scale has there.
        starts = [start for start in self._starts(scalar) if least < start <= greatest]
        return list(zip([least, *starts], [*(start - 1 for start in starts), greatest], strict=True))

    def cells(self, fields: Sequence[Field]) -> tuple[Field, ...]:
        """Return the fields that memory holds: a count (u64) for each bucket."""
        count = self.bucket_count(fields[0].type)
        return tuple(Field(f"bucket{number}", ScalarType.U64, 8 * number) for number in range(count))

    def describe(self, entry: Map) -> str:
        """Return a map in words: ``a histogram of 33 buckets per launch``."""
        return f"a histogram of {self.bucket_count(entry.fields[0].type)} buckets per {entry.per.value}"

    def save(self, entry: Map, saved: SavedValues) -> Sequence[MapStatement]:
        """Return the code of one SAVE, which counts its value (operand 0) in the value's bucket.

        The bucket of a constant is known here, so that its count is kept in a register, and so are those of two values
        of which it has one; others are counted in memory.
        """
        code, scalar = Builder(entry.span), entry.fields[0].type
        constant = saved.constant(0)
        if constant is not None:
            code.accumulate(self._bucket(constant, scalar), 1, code.saving(saved))
            return code.statements
        least, greatest = _range_of(scalar)
        choices = [choice for choice in saved.choices(0) if least <= choice <= greatest]
        buckets = [self._bucket(choice, scalar) for choice in choices]
        if len(choices) < 2 or choices[1] - choices[0] > _MOST_DIFFERENCE:
            bucket = self._bucket_of(code, code.saved(0, entry.fields[0]), scalar)
            count_at(code, entry, bucket, len(self.buckets(scalar)), saved)
        elif buckets[0] == buckets[1]:
            code.accumulate(buckets[0], 1, code.saving(saved))
        else:
            # All are counted in the first bucket. A register adds up the value less the first one; that divided by the
            # difference of both is the second one's count. So it takes no comparison, and hardly more than an addition.
            low, high = choices
            value, saves = code.saved(0, entry.fields[0]), code.saving(saved)
            code.accumulate(buckets[0], 1, saves)
            wide = value if value.type.bits == 64 else code.convert(Type.U64, value)
            above = code.kept(high - low, *buckets, type_=Type.U64)
            code.change(above, Operator.ADD, wide, saves)
            if low:
                code.change(above, Operator.SUB, low, saves)
        return code.statements

    def begin(self, entry: Map, kept: Sequence[Kept], lanes: Lanes) -> Sequence[MapStatement]:
        """Return the code where a kernel begins."""
        code = Builder(entry.span)
        begin_counts(code, kept)
        return code.statements

    def settle(self, entry: Map, kept: Sequence[Kept], lanes: Lanes) -> Sequence[MapStatement]:
        """Return the addition of what the thread has counted in registers."""
        code = Builder(entry.span)
        differences = [register for register in kept if len(register.key) > 1]
        for above in differences:
            difference, first, second = above.key
            is_power_of_two = not difference & (difference - 1)
            divisor = difference.bit_length() - 1 if is_power_of_two else difference
            count = code.compute(Operator.SHR if is_power_of_two else Operator.DIV, above, divisor, type_=Type.U64)
            code.accumulate(second, count)
            code.accumulate(first, count, operator=Operator.SUB)
        bring_counts(code, [register for register in kept if register not in differences], lanes)
        return code.statements

    @staticmethod
    def read(copies: Rows, row: Mapping[str, Any]) -> Rows:
        """Return a row for each bucket of each launch: low and high, both in the bucket, and count.

        copies: counts, a field for each bucket; the last axis is the copy. row: the map's object in the manifest.
        """
        import numpy as np

        counts = [np.add.reduce(copies[name], axis=-1, dtype="<u8") for name in copies.dtype.names or ()]
        kind = row["fields"][0]["type"]
        if kind[0] != "f":
            # Of unsigned types the least value is 0. edge: the type of low and high.
            edge = "<i8" if row["buckets"][0][0] < 0 else "<u8"
            low, high = (np.array([bucket[number] for bucket in row["buckets"]], edge) for number in (0, 1))
        elif row["scale"] == "log2":
            low, high = powers(kind)
        else:
            # Infinities and NaN are texts.
            edge = "<f4" if kind == "f32" else "<f8"
            low, high = (np.array([float(bucket[number]) for bucket in row["buckets"]], edge) for number in (0, 1))
        rows = np.zeros(
            (*copies.shape[:-1], len(counts)), [("low", low.dtype), ("high", low.dtype), ("count", "<u8")]
        )
        rows["low"], rows["high"] = low, high
        rows["count"] = np.stack(counts, axis=-1)
        return rows

    def _starts(self, scalar: ScalarType) -> Sequence[int]:
        """Return the first value of each bucket but the lowest, ascending; some may be outside of the type's range."""
        if self.scale == "edges":
            return self.edges
        if self.scale == "linear":
            return range(self.low, self.high + 1, self.step)
        # Powers of two, after 0 and the negative numbers.
        return [0, *(1 << power for power in range(scalar.size * 8))]

    def _bucket(self, value: int, scalar: ScalarType) -> int:
        """Return the index of a value's bucket. value: any integer, of which the field of type scalar has the lower
        bits."""
        bits = scalar.size * 8
        value %= 1 << bits
        if _is_signed(scalar) and value >> (bits - 1):
            value -= 1 << bits
        # The last bucket that begins at or below the value.
        return bisect_right([low for low, _ in self.buckets(scalar)], value) - 1

    def _bucket_of(self, code: Builder, value: Register, scalar: ScalarType) -> Register:
        """Return the index of a value's bucket, a u32. value: of 32 or 64 bits. scalar: the field's type."""
        if self.scale == "log2":
            # Of 0 the highest bit is -1, and 0 has the first bucket. Of signed types it has the second, since all
            # negative numbers have the first.
            is_signed = value.type.is_signed
            highest = code.compute(
                Operator.HIGHEST, code.as_bits(Type(f"u{value.type.bits}"), value), type_=Type.U32
            )
            bucket = code.compute(Operator.ADD, highest, 2 if is_signed else 1)
            if not is_signed:
                return bucket
            return code.select(code.compare(Relation.LT, value, 0), 0, bucket, Type.U32)
        if self.scale == "edges":
            # The index is the number of edges that are not above the value.
            first, *others = self.edges
            bucket = code.select(code.compare(Relation.GE, value, first), 1, 0, Type.U32)
            for edge in others:
                is_reached = code.select(code.compare(Relation.GE, value, edge), 1, 0, Type.U32)
                bucket = code.compute(Operator.ADD, bucket, is_reached)
            return bucket
        return self._on_linear_scale(code, value, scalar)

    def _on_linear_scale(self, code: Builder, value: Register, scalar: ScalarType) -> Register:
        """As ``_bucket_of``, on the linear scale."""
        least, greatest = _range_of(scalar)
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
        """Return an unsigned value of 32 or 64 bits divided by step, a u32.

        The result is only right for values below high - low; for larger ones it is any number.
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


@dataclass(frozen=True)
class FloatHistogram(Histogram):
    """A histogram of floating-point numbers, whose scale is of such numbers, too (``float_scales.py``).

    numbers: of a linear scale low, high and step, else the edges, as they were written.
    """

    numbers: tuple[Number, ...] = ()

    @classmethod
    def _declared_edges(cls, table: MapTable, edges: Any, scalar: ScalarType) -> Histogram | None:
        if not isinstance(edges, list) or not 1 < len(edges) <= MAX_EDGES or not all(map(is_number, edges)):
            table.fault("edges", "edges is no list of numbers", f"write 2 to {MAX_EDGES} of them")
        elif not divide(list(map(float, edges)), scalar):
            hint = "write them ascending, with a number of the type between each two"
            table.fault("edges", f"the edges do not divide what a {scalar.value} can be", hint)
        else:
            return cls("edges", numbers=tuple(edges))
        return None

    @classmethod
    def _declared_linear(cls, table: MapTable, scalar: ScalarType) -> Histogram | None:
        low, high, step = (table.get(key) for key in _LINEAR_KEYS)
        for key, value in zip(_LINEAR_KEYS, (low, high, step), strict=True):
            if not is_number(value):
                table.fault(key, f"{key} is no number", _SCALES)
                return None
        steps = Steps.between(low, high, step, MAX_BUCKETS)
        if steps is not None and divide(steps.edges, scalar):
            return cls("linear", numbers=(low, high, step))
        hint = f"write low < high, apart by 1 to {MAX_BUCKETS} steps that are not too small for {scalar.value}"
        table.fault("step", f"from {low} to {high} by {step} is no scale of a {scalar.value}", hint)
        return None

    def options(self) -> dict[str, Any]:
        """Return the keys of the map's table that declare this scale."""
        if self.scale == "edges":
            return {"scale": "edges", "edges": list(self.numbers)}
        if self.scale == "linear":
            return {"scale": "linear", **dict(zip(_LINEAR_KEYS, self.numbers, strict=True))}
        return {"scale": self.scale}

    def document(self, fields: Sequence[Field]) -> dict[str, Any]:
        """Return the options and the least and greatest value of each bucket, infinities and NaN as texts.

        Without the buckets of powers of two, which are many and follow from the field's type.
        """
        if self.scale == "log2":
            return self.options()
        buckets = buckets_between(self._edges(), fields[0].type)
        rows = [[end if math.isfinite(end) else str(end) for end in bucket] for bucket in buckets]
        return {**self.options(), "buckets": rows}

    def bucket_count(self, scalar: ScalarType) -> int:
        """Return how many buckets there are."""
        # One is below the first edge, one is of NaNs.
        return power_count(scalar) if self.scale == "log2" else len(self._edges()) + 2

    def save(self, entry: Map, saved: SavedValues) -> Sequence[MapStatement]:
        """Return the code of one SAVE, which counts its value (operand 0) in the value's bucket, in memory."""
        code = Builder(entry.span)
        buckets = BucketCode(code, code.saved(0, entry.fields[0]))
        if self.scale == "log2":
            bucket = buckets.of_powers()
        elif self.scale == "edges" or len(self._edges()) <= _FEW_EDGES:
            bucket = buckets.between(self._edges())
        else:
            bucket = buckets.of_steps(self._steps())
        count_at(code, entry, bucket, self.bucket_count(entry.fields[0].type), saved)
        return code.statements

    def _edges(self) -> Sequence[float]:
        return self._steps().edges if self.scale == "linear" else [float(number) for number in self.numbers]

    def _steps(self) -> Steps:
        low, high, step = self.numbers
        steps = Steps.between(low, high, step, MAX_BUCKETS)
        if steps is None:
            raise ValueError(f"from {low} to {high} by {step}")
        return steps


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _range_of(scalar: ScalarType) -> tuple[int, int]:
    """Return the least and the greatest value of an integer type."""
    bits = scalar.size * 8
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if _is_signed(scalar) else (0, (1 << bits) - 1)


def _is_signed(scalar: ScalarType) -> bool:
    # An integer type is called u64 or s64.
    return scalar.value.startswith("s")
