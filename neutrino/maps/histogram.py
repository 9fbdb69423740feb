"""``histogram``: how many values fell into each bucket, over all threads of a launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from neutrino.abi.records import Field
from neutrino.abi.scalars import ScalarType
from neutrino.ir.memory import Kept, MapStatement
from neutrino.maps.builder import Builder, Lanes, SavedValues
from neutrino.maps.counts import begin_counts, bring_counts, can_count_either, count_at, count_either
from neutrino.maps.declaration import Map, MapTable, MapType, Report
from neutrino.maps.float_scales import FloatEdges, FloatPowers, FloatSteps, powers
from neutrino.maps.float_sums import FLOATS
from neutrino.maps.integer_scales import Edges, Powers, Steps, range_of
from neutrino.maps.scale import LINEAR_KEYS, SCALES, Scale

if TYPE_CHECKING:
    from neutrino.maps.declaration import Rows

_OF_INTEGERS: Mapping[str, type[Scale]] = {scale.name: scale for scale in (Powers, Steps, Edges)}
_OF_FLOATS: Mapping[str, type[Scale]] = {scale.name: scale for scale in (FloatPowers, FloatSteps, FloatEdges)}


@dataclass(frozen=True)
class Histogram(MapType):
    """A count (u64) for each bucket of a scale. Values below or above the scale have buckets of their own."""

    scale: Scale = field(default=Powers())

    name = "histogram"
    keys = ("scale", *LINEAR_KEYS, "edges")
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
        """Return the histogram that a map's table declares; None if its keys are invalid, which is reported by
        ``table``.

        Its scale is named by ``scale``, or given by ``edges`` alone.
        """
        name, edges = table.get("scale"), table.get("edges")
        if name is None and edges is None:
            table.missing("scale", SCALES)
            return None
        misplaced = [key for key in LINEAR_KEYS if name != "linear" and table.get(key) is not None]
        # A table with edges needs no scale. Edges are of that scale alone.
        name = name or "edges"
        if name not in _OF_INTEGERS or (edges is not None) != (name == "edges"):
            table.fault("scale", f"scale is {name!r:.40}", SCALES)
            return None
        if misplaced:
            key, *_ = misplaced
            table.fault(key, f"{key} is of a linear scale", SCALES)
            return None
        # A histogram has one field, whose values it counts.
        scalar = fields[0].type
        scale = (_OF_FLOATS if scalar in FLOATS else _OF_INTEGERS)[name].declared(table, scalar)
        return None if scale is None else cls(scale)

    def options(self) -> dict[str, Any]:
        """Return the keys of the map's table in the probe file that declare the scale, with their values."""
        return self.scale.options()

    def document(self, fields: Sequence[Field]) -> dict[str, Any]:
        """Return the type's members in the manifest: the options, and the least and greatest value of each bucket."""
        return self.scale.document(fields[0].type)

    def cells(self, fields: Sequence[Field]) -> tuple[Field, ...]:
        """Return the fields that memory holds: a count (u64) for each bucket."""
        count = self.scale.bucket_count(fields[0].type)
        return tuple(Field(f"bucket{number}", ScalarType.U64, 8 * number) for number in range(count))

    def describe(self, entry: Map) -> str:
        """Describe a map of this type for users: ``a histogram of 33 buckets per launch``."""
        return f"a histogram of {self.scale.bucket_count(entry.fields[0].type)} buckets per {entry.per.value}"

    def save(self, entry: Map, saved: SavedValues) -> Sequence[MapStatement]:
        """Return the code (IR statements) by which a probe saves a value (operand 0): it adds one to the value's
        bucket.

        The bucket of a constant is known here, so that its count is kept in a register, and so are the buckets of a
        value that is one of two constants; others are counted in memory. So are all floating-point numbers.
        """
        code, value = Builder(entry.span), entry.fields[0]
        constant = saved.constant(0) if self.scale.of_integers else None
        choices = self._choices(saved, value.type) if self.scale.of_integers else []
        if constant is not None:
            code.accumulate(self.scale.number_of(constant, value.type), 1, code.saving(saved))
        elif can_count_either(choices):
            buckets = [self.scale.number_of(choice, value.type) for choice in choices]
            count_either(code, value, choices, buckets, saved)
        else:
            bucket = self.scale.write(code, code.saved(0, value), value.type)
            count_at(code, entry, bucket, self.scale.bucket_count(value.type), saved)
        return code.statements

    def begin(self, entry: Map, kept: Sequence[Kept], lanes: Lanes) -> Sequence[MapStatement]:
        """Return the code (IR statements) for a kernel's start, which sets the registers that counting uses."""
        code = Builder(entry.span)
        begin_counts(code, kept)
        return code.statements

    def settle(self, entry: Map, kept: Sequence[Kept], lanes: Lanes) -> Sequence[MapStatement]:
        """Return the code (IR statements) for a thread's end, which adds to memory what it has counted in registers."""
        code = Builder(entry.span)
        bring_counts(code, kept, lanes)
        return code.statements

    @staticmethod
    def read(copies: Rows, row: Mapping[str, Any]) -> Rows:
        """Return a row for each bucket of each launch: its least and greatest value (low, high), and the count.

        copies: counts, a field for each bucket; the last axis is the copy, of which a launch has several. row: the
        map's object in the manifest.
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

    @staticmethod
    def _choices(saved: SavedValues, scalar: ScalarType) -> list[int]:
        """Return the two values, ascending, of which each saved one is one; [] if they are not known or do not fit the
        type."""
        least, greatest = range_of(scalar)
        return [choice for choice in saved.choices(0) if least <= choice <= greatest]
