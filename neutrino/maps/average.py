"""``avg``: the mean of what all threads of a launch saved, as a sum and a count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neutrino.abi.records import Field
from neutrino.abi.scalars import ScalarType
from neutrino.ir.memory import Kept, MapStatement
from neutrino.ir.statements import Operator
from neutrino.ir.types import Type
from neutrino.maps.builder import Builder, Lanes, SavedValues
from neutrino.maps.declaration import Map, MapType, Report
from neutrino.maps.float_sums import FLOATS, add_float, added_in_pairs, bring_float

if TYPE_CHECKING:
    from neutrino.maps.declaration import Rows


@dataclass(frozen=True)
class Average(MapType):
    """One record per launch, or none where nothing was saved: how many values there were, and their sum.

    Integers of 64 bits are added up in two halves, so that the mean is right even if the sum does not fit in 64 bits.
    The sum of floating-point numbers is that of ``sum``.
    """

    name = "avg"
    field_hint = "an average takes one field"
    most_fields = 1
    takes_per = True
    counts_first = True
    whole = "a mean over all threads"
    report = Report.MEANS

    def cells(self, fields: Sequence[Field]) -> tuple[Field, ...]:
        """Return the fields of the record in memory: the count, then the sum.

        Of 64-bit integers there are two sums: of the lower 32 bits of the values, and of their upper halves.
        """
        if fields[0].type in FLOATS:
            return Field("count", ScalarType.U64, 0), Field("sum", ScalarType.F64, 8)
        wide = fields[0].type in (ScalarType.U64, ScalarType.S64)
        upper = ScalarType.S64 if fields[0].type.value[0] == "s" else ScalarType.U64
        cells = (("count", ScalarType.U64), *((("lower", ScalarType.U64),) if wide else ()), ("upper", upper))
        return tuple(Field(name, kind, 8 * number) for number, (name, kind) in enumerate(cells))

    def describe(self, entry: Map) -> str:
        """Describe a map of this type for users: ``a mean per launch``."""
        return f"a mean per {entry.per.value}"

    def save(self, entry: Map, saved: SavedValues) -> Sequence[MapStatement]:
        """Return the code (IR statements) by which a probe saves a value to this map: the thread counts it, and adds it
        to a sum.

        entry: the map. saved: what is known of the save. Cell 0 is the count, 1 the sum; 64-bit integers are added as
        two halves, to cells 1 and 2. The thread keeps all of them in registers.
        """
        code = Builder(entry.span)
        value = code.saved(0, entry.fields[0])
        saves = code.saving(saved)
        code.accumulate(0, 1, saves)
        if value.type.is_float:
            add_float(code, 1, value, saves)
        elif value.type.bits < 64:
            code.accumulate(1, code.convert(Type.S64 if value.type.is_signed else Type.U64, value), saves)
        else:
            code.accumulate(1, code.compute(Operator.AND, value, 0xFFFFFFFF), saves)
            # The upper half, with the sign.
            code.accumulate(2, code.compute(Operator.SHR, value, 32), saves)
        return code.statements

    def settle(self, entry: Map, kept: Sequence[Kept], lanes: Lanes) -> Sequence[MapStatement]:
        """Return the code (IR statements) for a thread's end: it adds the thread's sum of floating-point numbers to
        memory.

        Nothing for integers: the target (the compiler of statements for one kind of GPU) writes their sums itself.
        """
        code = Builder(entry.span)
        if entry.fields[0].type in FLOATS:
            bring_float(code, 1, entry.level)
        return code.statements

    @staticmethod
    def read(copies: Rows, row: Mapping[str, Any]) -> Rows:
        """Return one row for each launch that saved something: count, sum (of integers modulo 2 to the 64) and mean.

        copies: the records of launches, with the fields of ``cells``; each launch has several, along the last axis,
        since threads added to different ones. row: the map's object in the manifest (the description of a kernel in a
        trace).
        """
        import numpy as np

        names = copies.dtype.names or ()
        if row["fields"][0]["type"][0] == "f":
            total = np.atleast_1d(added_in_pairs(copies["sum"]))
            count = np.atleast_1d(np.add.reduce(copies["count"], axis=-1, dtype="<u8"))
            is_saved = count != 0
            rows = np.zeros(int(is_saved.sum()), [("count", "<u8"), ("sum", "<f8"), ("mean", "<f8")])
            rows["count"], rows["sum"] = count[is_saved], total[is_saved]
            rows["mean"] = rows["sum"] / rows["count"]
            return rows
        # Arrays even for a single launch.
        totals = [np.atleast_1d(np.add.reduce(copies[name], axis=-1, dtype=copies[name].dtype)) for name in names]
        is_saved = totals[0] != 0
        counts, *halves = (total[is_saved].tolist() for total in totals)
        # In Python's integers, which have no limit. Values of 64 bits have a sum of their lower halves first.
        sums = halves[0] if len(halves) == 1 else [low + (high << 32) for low, high in zip(*halves, strict=True)]
        rows = np.zeros(len(counts), [("count", "<u8"), ("sum", "<u8"), ("mean", "<f8")])
        rows["count"] = counts
        rows["sum"] = [total % (1 << 64) for total in sums]
        rows["mean"] = [total / count for total, count in zip(sums, counts, strict=True)]
        if row["fields"][0]["type"][0] == "s":
            rows = rows.view([("count", "<u8"), ("sum", "<i8"), ("mean", "<f8")])
        return rows
