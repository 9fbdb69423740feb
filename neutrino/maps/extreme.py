"""``min`` and ``max``: the least and the greatest of what all threads of a launch saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neutrino.abi.records import Field
from neutrino.abi.scalars import ScalarType
from neutrino.ir.memory import Kept, MapStatement, OneOf
from neutrino.ir.operands import Register
from neutrino.ir.statements import Operator, Reduction, Relation
from neutrino.ir.types import Type
from neutrino.maps.builder import Builder, Lanes, SavedValues
from neutrino.maps.declaration import Map, MapType
from neutrino.maps.order import INFINITY, magnitude_of, numbers_of_places, pattern_of, place_of

if TYPE_CHECKING:
    from neutrino.maps.declaration import Rows


@dataclass(frozen=True)
class _Extreme(MapType):
    """One record per launch, or none where nothing was saved. NaNs are ignored, as by C's ``fmin`` and ``fmax``.

    A thread keeps the extreme of each field as a key: its place in the order of numbers (``order.py``), of ``min`` with
    all bits inverted, so that combining is always a maximum. In memory 0 means that there is no value, hence integers
    of up to 32 bits are stored as key + 1; those of 64 bits have a mark, a second cell that is 1 if there is a value
    with key 0; keys of floating-point numbers are never 0, which only a NaN would have.
    """

    settles = True
    combines_lanes = True
    takes_per = True
    keeps_greatest = True

    def cells(self, fields: Sequence[Field]) -> tuple[Field, ...]:
        """Return the fields that memory holds, all u64: a key for each field, then a mark for each u64 or s64 field."""
        names = [field.name for field in fields]
        names += [f"{field.name} is 0" for field in fields if _has_mark(field)]
        return tuple(Field(name, ScalarType.U64, 8 * number) for number, name in enumerate(names))

    def describe(self, entry: Map) -> str:
        """Return a map in words: ``the greatest of 2 fields per launch``."""
        fields = "1 field" if len(entry.fields) == 1 else f"{len(entry.fields)} fields"
        return f"the {'least' if self.name == 'min' else 'greatest'} of {fields} per {entry.per.value}"

    def save(self, entry: Map, saved: SavedValues) -> Sequence[MapStatement]:
        """Return code that keeps, in a register per field, the greater of the register and the value's key."""
        code = Builder(entry.span)
        saves: Register | None = None
        for number, field in enumerate(entry.fields):
            value, is_number = code.saved(number, field), None
            pattern = pattern_of(code, value)
            if value.type.is_float:
                is_number = code.compare(Relation.LE, magnitude_of(code, pattern), INFINITY[value.type.bits])
            key = place_of(code, value, pattern)
            if self.name == "min":
                key = code.compute(Operator.XOR, key, -1)
            saves = saves or code.saving(saved)
            code.change(_key_of(code, number, field), Operator.MAX, key, code.both(is_number, saves))
        if any(map(_needs_flag, entry.fields)):
            code.change(_flag(code, entry), Operator.MAX, 1, saves)
        return code.statements

    def settle(self, entry: Map, kept: Sequence[Kept], lanes: Lanes) -> Sequence[MapStatement]:
        """Return code that combines the keys of threads that end together, and writes the greatest ones to memory."""
        # All registers are 0 in a thread that saved nothing.
        code, has_saved = Builder(entry.span), None
        if any(map(_needs_flag, entry.fields)):
            has_saved = code.compare(Relation.NE, code.together(Reduction.MAX, _flag(code, entry)), 0)
        mark = len(entry.fields)
        for number, field in enumerate(entry.fields):
            key = code.together(Reduction.MAX, _key_of(code, number, field))
            cell: int | OneOf = number
            is_there = has_saved
            if _has_mark(field):
                # One statement writes the key or the mark.
                is_zero = code.compare(Relation.EQ, key, 0)
                cell = OneOf(is_zero, mark, number)
                key = code.select(is_zero, 1, key, Type.U64)
                mark += 1
            elif _needs_flag(field):
                key = code.compute(Operator.ADD, code.widened(key), 1)
            else:
                key = code.widened(key)
                is_there = code.compare(Relation.NE, key, 0)
            code.update(Operator.MAX, cell, key, code.both(is_there, code.elect(Reduction.MAX)))
        return code.statements

    @staticmethod
    def read(copies: Rows, row: Mapping[str, Any]) -> Rows:
        """Return one row for each launch that saved something, of a min or max map. A field of NaNs alone is NaN.

        copies: keys, 0 if there is no value; the last axis is the copy. row: the map's object in the manifest.
        """
        import numpy as np

        types = {field["name"]: field["type"] for field in row["fields"]}
        formats = [(name, f"<{kind[0].replace('s', 'i')}{int(kind[1:]) // 8}") for name, kind in types.items()]
        rows = np.zeros(copies.shape[:-1], formats)
        any_found = np.zeros(rows.shape, bool)
        for name, kind in types.items():
            key = np.atleast_1d(copies[name].max(axis=-1))
            found = key != 0
            if kind in ("u64", "s64"):
                found = found | (copies[f"{name} is 0"].max(axis=-1) != 0)
            elif kind[0] != "f":
                # found counts as 1, so that 0 (no value) stays 0.
                key = key - found
            rows[name] = numbers_of_places(~key if row["kind"] == "min" else key, kind).reshape(rows.shape)
            any_found |= found.reshape(rows.shape)
        # Without the launches that saved nothing.
        return rows[any_found]


@dataclass(frozen=True)
class Minimum(_Extreme):
    """The least."""

    name = "min"
    whole = "the least over all threads"


@dataclass(frozen=True)
class Maximum(_Extreme):
    """The greatest."""

    name = "max"
    whole = "the greatest over all threads"


def _key_of(code: Builder, number: int, field: Field) -> Kept:
    return code.kept(number, type_=Type.U64 if field.type.size == 8 else Type.U32)


def _flag(code: Builder, entry: Map) -> Kept:
    # After the keys: 1 if the thread saved anything.
    return code.kept(len(entry.fields), type_=Type.U32)


def _has_mark(field: Field) -> bool:
    # key + 1 may not fit in a cell.
    return field.type in (ScalarType.U64, ScalarType.S64)


def _needs_flag(field: Field) -> bool:
    # A key of 0 may be a value's, so that a register must say whether there was one.
    return not field.type.value.startswith("f")
