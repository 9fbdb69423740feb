"""``sum``: fields that are added up over all threads of a launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neutrino.abi.records import Field
from neutrino.abi.scalars import ScalarType
from neutrino.ir.memory import AccumulateSaved, Kept, MapStatement
from neutrino.ir.operands import Register
from neutrino.maps.builder import Builder, Lanes, SavedValues
from neutrino.maps.declaration import Map, MapType, Report
from neutrino.maps.float_sums import FLOATS, add_float, added_in_pairs, bring_float, summed_cells

if TYPE_CHECKING:
    from neutrino.maps.declaration import Rows


@dataclass(frozen=True)
class Sum(MapType):
    """One record per launch: each field is summed up over all threads, integers modulo the field's width.

    Floating-point numbers are added up in f64 (``float_sums.py``).
    """

    name = "sum"
    field_types = frozenset({ScalarType.U32, ScalarType.S32, ScalarType.U64, ScalarType.S64, *FLOATS})
    field_hint = "a sum adds u32, s32, u64, s64, f32 or f64"
    adds_constants = True
    takes_per = True
    in_older_dialect = True
    whole = "a sum over all threads"
    report = Report.TOTALS

    def cells(self, fields: Sequence[Field]) -> tuple[Field, ...]:
        """Return the fields of the record in memory: the map's fields, where each f32 is an f64."""
        return summed_cells(fields)

    def describe(self, entry: Map) -> str:
        """Describe a map of this type for users: ``a sum of 8 bytes per launch``, ``a sum of f32 per launch``."""
        floats = [field.type.value for field in entry.fields if field.type in FLOATS]
        what = " and ".join(sorted(set(floats))) if len(floats) == len(entry.fields) else f"{entry.size} bytes"
        return f"a sum of {what} per {entry.per.value}"

    def save(self, entry: Map, saved: SavedValues) -> Sequence[MapStatement]:
        """Return the code (IR statements) by which a probe saves values: it adds them to sums that the thread keeps in
        registers.

        The target (the compiler of statements for one kind of GPU) writes the additions of integers, and may combine
        several.
        """
        code = Builder(entry.span)
        floats = [number for number, field in enumerate(entry.fields) if field.type in FLOATS]
        if len(floats) < len(entry.fields):
            code.add(AccumulateSaved(entry.span))
        saves: Register | None = None
        for number in floats:
            value = code.saved(number, entry.fields[number])
            saves = saves or code.saving(saved)
            add_float(code, number, value, saves)
        return code.statements

    def settle(self, entry: Map, kept: Sequence[Kept], lanes: Lanes) -> Sequence[MapStatement]:
        """Return the code (IR statements) for a thread's end: it adds the thread's sums of floating-point numbers to
        memory.

        Those of integers the target writes itself.
        """
        code = Builder(entry.span)
        for number, field in enumerate(entry.fields):
            if field.type in FLOATS:
                bring_float(code, number, entry.level)
        return code.statements

    @staticmethod
    def read(copies: Rows, row: Mapping[str, Any]) -> Rows:
        """Return one row for each launch: each field summed up over the copies of the record.

        copies: the records; the last axis is the copy, of which a launch has several, since threads added to different
        ones.
        """
        import numpy as np

        sums = np.zeros(copies.shape[:-1], copies.dtype)
        for name in copies.dtype.names or ():
            # In the field's own type, so that sums wrap around as on the device; NumPy would widen narrow ones.
            kind = copies[name].dtype
            is_float = kind.kind == "f"
            sums[name] = added_in_pairs(copies[name]) if is_float else np.add.reduce(copies[name], axis=-1, dtype=kind)
        return sums
