"""``histogram``: how many values fell into each bucket, over all threads of a launch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neutrino.abi.records import Field
from neutrino.abi.scalars import ScalarType
from neutrino.maps.declaration import Map, MapTable, MapType, Report
from neutrino.maps.target import SaveWriter

if TYPE_CHECKING:
    from neutrino.maps.declaration import Rows

MOST_BUCKETS = 4096
"""Of the linear scale."""
MOST_EDGES = 64
"""Of explicit ones: each is compared with at every save."""
_SCALES = 'scale = "log2", or scale = "linear" with low, high and step, or edges = [10, 100, 1000]'


@dataclass(frozen=True)
class Histogram(MapType):
    """A count for each bucket, u64. What lies below or above all buckets has buckets of its own.

    scale: ``log2``, ``linear`` or ``edges``. low, high, step: of the linear scale, high left out. edges: ascending,
    where a bucket begins and the one before it ends.
    """

    scale: str = "log2"
    low: int = 0
    high: int = 0
    step: int = 0
    edges: tuple[int, ...] = ()

    name = "histogram"
    keys = ("scale", "low", "high", "step", "edges")
    copies_bytes = 1 << 17
    field_types = frozenset(scalar for scalar in ScalarType if scalar.value[0] in "us")
    field_hint = "a histogram takes one field, of an integer type"
    most_fields = 1
    stores_at_sites = True
    combines_lanes = True
    whole = "a histogram over all threads"
    report = Report.BUCKETS

    @classmethod
    def declared(cls, table: MapTable, fields: Sequence[Field]) -> MapType | None:
        """Raises nothing: what is wrong is noted."""
        scale, edges = table.get("scale"), table.get("edges")
        least, most = _extent(fields[0].type)
        others = ("low", "high", "step")
        if scale is None and edges is None:
            table.missing("scale", _SCALES)
            return None
        unused = [key for key in others if scale != "linear" and table.get(key) is not None]
        scale = scale or "edges"
        if scale not in ("log2", "linear", "edges") or (edges is not None) != (scale == "edges"):
            table.fault("scale", f"scale is {scale!r:.40}", _SCALES)
        elif unused:
            table.fault(unused[0], f"{unused[0]} is of a linear scale", _SCALES)
        elif edges is not None:
            if not isinstance(edges, list) or not 1 < len(edges) <= MOST_EDGES or not all(map(_is_integer, edges)):
                table.fault("edges", "edges is no list of integers", f"write 2 to {MOST_EDGES} of them")
            elif sorted(set(edges)) != edges or not least < edges[0] or edges[-1] > most:
                hint = f"write them ascending, from {least + 1} to {most}"
                table.fault("edges", f"the edges do not divide what a {fields[0].type.value} can be", hint)
            else:
                return cls("edges", edges=tuple(edges))
        elif scale == "log2":
            return cls("log2")
        else:
            low, high, step = (table.get(key) for key in others)
            for key, value in zip(others, (low, high, step), strict=True):
                if not _is_integer(value):
                    table.fault(key, f"{key} is no integer", _SCALES)
                    return None
            if not least <= low < high <= most + 1 or step < 1 or (high - low) % step:
                hint = f"write {least} <= low < high <= {most + 1}, apart by a multiple of step"
                table.fault("step", f"from {low} to {high} by {step} is no scale of a {fields[0].type.value}", hint)
            elif (high - low) // step > MOST_BUCKETS:
                table.fault("step", f"{(high - low) // step} buckets", f"a histogram has up to {MOST_BUCKETS}")
            elif high - low > 1 << 32 and step & (step - 1):
                hint = "write a power of two"
                table.fault("step", f"step is {step}, and high - low more than 2^32", hint)
            else:
                return cls("linear", low, high, step)
        return None

    def options(self) -> dict[str, Any]:
        """As the table has them."""
        if self.scale == "edges":
            return {"scale": "edges", "edges": list(self.edges)}
        if self.scale == "linear":
            return {"scale": "linear", "low": self.low, "high": self.high, "step": self.step}
        return {"scale": self.scale}

    def document(self, fields: Sequence[Field]) -> dict[str, Any]:
        """The options, and of each bucket the least and the greatest value that falls into it."""
        return {**self.options(), "buckets": [list(bucket) for bucket in self.buckets(fields[0].type)]}

    def buckets(self, scalar: ScalarType) -> list[tuple[int, int]]:
        """The least and the greatest value of each bucket, ascending: together all that the type can hold."""
        least, most = _extent(scalar)
        starts = [start for start in self._starts(scalar) if least < start <= most]
        return list(zip([least, *starts], [*(start - 1 for start in starts), most], strict=True))

    def cells(self, fields: Sequence[Field]) -> tuple[Field, ...]:
        """A count for each bucket."""
        buckets = self.buckets(fields[0].type)
        return tuple(Field(f"bucket{number}", ScalarType.U64, 8 * number) for number in range(len(buckets)))

    def words(self, entry: Map) -> str:
        """``a histogram of 33 buckets per launch``."""
        return f"a histogram of {len(self.buckets(entry.fields[0].type))} buckets per launch"

    def save(self, entry: Map, writer: SaveWriter) -> None:
        """One more in the bucket of a value: in a register where the bucket is known, else in memory."""
        scalar = entry.fields[0].type
        known = writer.constant(0)
        if known is None:
            writer.add_at(self._bucket(writer, writer.value(0), scalar))
            return
        bits = scalar.size * 8
        known %= 1 << bits
        if scalar.value[0] == "s" and known >> (bits - 1):
            known -= 1 << bits
        writer.add_to(bisect_right([low for low, _ in self.buckets(scalar)], known) - 1)

    @staticmethod
    def read(copies: Rows, row: Mapping[str, Any]) -> Rows:
        """A row per bucket of each launch: low and high, both inside it, and count."""
        import numpy as np

        counts = [np.add.reduce(copies[name], axis=-1, dtype="<u8") for name in copies.dtype.names or ()]
        buckets = row["buckets"]
        edge = "<i8" if buckets[0][0] < 0 else "<u8"
        rows = np.zeros((*copies.shape[:-1], len(counts)), [("low", edge), ("high", edge), ("count", "<u8")])
        for number, name in enumerate(("low", "high")):
            rows[name] = np.array([bucket[number] for bucket in buckets], edge)
        rows["count"] = np.stack(counts, axis=-1)
        return rows

    def _starts(self, scalar: ScalarType) -> Sequence[int]:
        """Where buckets begin but for the first one, as far as the type goes."""
        if self.scale == "edges":
            return self.edges
        if self.scale == "linear":
            return range(self.low, self.high + 1, self.step)
        return [0, *(1 << power for power in range(scalar.size * 8))]

    def _bucket(self, writer: SaveWriter, value: str, scalar: ScalarType) -> str:
        """The number of a value's bucket, u32."""
        bits = max(32, scalar.size * 8)
        signed = scalar.value[0] == "s"
        kind = f"{'s' if signed else 'u'}{bits}"
        if self.scale == "log2":
            # 0 has the bucket before that of 1; of signed types all that is negative has the first one.
            number = writer.binary("add", "u32", writer.highest_bit(f"u{bits}", value), 2 if signed else 1)
            if not signed:
                return number
            return writer.select(32, writer.compare("lt", kind, value, 0), 0, number)
        if self.scale == "edges":
            number = writer.select(32, writer.compare("ge", kind, value, self.edges[0]), 1, 0)
            for edge in self.edges[1:]:
                above = writer.select(32, writer.compare("ge", kind, value, edge), 1, 0)
                number = writer.binary("add", "u32", number, above)
            return number
        return self._linear(writer, value, kind, scalar)

    def _linear(self, writer: SaveWriter, value: str, kind: str, scalar: ScalarType) -> str:
        least, most = _extent(scalar)
        bits, first = int(kind[1:]), int(self.low > least)
        count = (self.high - self.low) // self.step
        # From low on; what is below it wraps around to large numbers.
        above = writer.binary("sub", f"u{bits}", value, self.low % (1 << bits)) if self.low else value
        number = self._quotient(writer, above, bits)
        if first:
            number = writer.binary("add", "u32", number, 1)
        if self.high <= most:
            number = writer.select(32, writer.compare("ge", kind, value, self.high), count + first, number)
        if first:
            number = writer.select(32, writer.compare("lt", kind, value, self.low), 0, number)
        return number

    def _quotient(self, writer: SaveWriter, value: str, bits: int) -> str:
        """A number below high - low by step, as u32; of others nothing is known."""
        if not self.step & (self.step - 1):
            shifted = writer.binary("shr", f"u{bits}", value, self.step.bit_length() - 1) if self.step > 1 else value
            return writer.convert("u32", "u64", shifted) if bits == 64 else shifted
        small = writer.convert("u32", "u64", value) if bits == 64 else value
        # Granlund and Montgomery, "Division by Invariant Integers using Multiplication", 1994, theorem 4.2.
        for shift in range(32):
            whole = 1 << (32 + shift)
            factor = whole // self.step + 1
            if factor < 1 << 32 and (factor * self.step - whole) * (self.high - self.low) <= whole:
                high = writer.binary("mul.hi", "u32", small, factor)
                return writer.binary("shr", "u32", high, shift) if shift else high
        wide = writer.binary("mul.hi", "u64", writer.convert("u64", "u32", small), (1 << 64) // self.step + 1)
        return writer.convert("u32", "u64", wide)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _extent(scalar: ScalarType) -> tuple[int, int]:
    """The least and the greatest number of an integer type."""
    bits = scalar.size * 8
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if scalar.value[0] == "s" else (0, (1 << bits) - 1)
