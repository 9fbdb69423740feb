"""``min`` and ``max``: the least and the greatest of what all threads of a launch saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neutrino.abi.levels import Level
from neutrino.abi.records import Field
from neutrino.abi.scalars import ScalarType
from neutrino.ir.memory import Kept, MapStatement, OneOf
from neutrino.ir.operands import Register
from neutrino.ir.statements import Operator, Reduction, Relation
from neutrino.ir.types import Type
from neutrino.maps.builder import Builder, Lanes, SavedValues
from neutrino.maps.declaration import Map, MapType
from neutrino.maps.order import numbers_of_places, pattern_of, place_of

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
        """Return the fields of the record in memory, all u64: a key for each field, then a mark for each 64-bit
        integer.

        A key is a number's place in the order of numbers; the mark is 1 if there is a value whose key is 0.
        """
        names = [field.name for field in fields]
        names += [f"{field.name} is 0" for field in fields if _has_mark(field)]
        return tuple(Field(name, ScalarType.U64, 8 * number) for number, name in enumerate(names))

    def describe(self, entry: Map) -> str:
        """Describe a map of this type for users: ``the greatest of 2 fields per launch``."""
        fields = "1 field" if len(entry.fields) == 1 else f"{len(entry.fields)} fields"
        return f"the {'least' if self.name == 'min' else 'greatest'} of {fields} per {entry.per.value}"

    def save(self, entry: Map, saved: SavedValues) -> Sequence[MapStatement]:
        """Return the code (IR statements) by which a probe saves values: a register per field keeps the greatest key so
        far.

        A key is a number's place in the order of numbers, inverted for ``min``, so that the greatest is always kept.
        """
        code = Builder(entry.span)
        saves: Register | None = None
        for number, field in enumerate(entry.fields):
            value, is_number = code.saved(number, field), None
            if value.type.is_float:
                is_number = code.compare(Relation.EQ, value, value)
            key = place_of(code, value, pattern_of(code, value), inverted=self.name == "min")
            saves = saves or code.saving(saved)
            kept, counts = _key_of(code, number, field), code.both(is_number, saves)
            if kept.type.bits == 64:
                # A maximum of 64 bits would be a comparison and a choice, and its predicate one more.
                code.change(kept, Operator.MOVE, key, code.both(code.compare(Relation.GT, key, kept), counts))
            else:
                code.change(kept, Operator.MAX, key, counts)
        if any(map(_needs_flag, entry.fields)):
            code.change(_flag(code, entry), Operator.MAX, 1, saves)
        return code.statements

    def settle(self, entry: Map, kept: Sequence[Kept], lanes: Lanes) -> Sequence[MapStatement]:
        """Return the statements for a thread's end: threads that end together combine their keys, and one writes the
        greatest.

        Of a warp or a block few lanes have saved, nearly always one: each of these writes its own.
        """
        # All registers are 0 in a thread that saved nothing.
        code, has_saved, writes = Builder(entry.span), None, None
        is_shared = entry.level is Level.THREAD
        if any(map(_needs_flag, entry.fields)):
            flag: Register = _flag(code, entry)
            has_saved = code.compare(Relation.NE, code.together(Reduction.MAX, flag) if is_shared else flag, 0)
        # First what lanes do together, last the updates, so that those under one predicate are one branch.
        keys: list[Register] = [_key_of(code, number, field) for number, field in enumerate(entry.fields)]
        if is_shared:
            keys = [code.together(Reduction.MAX, key) for key in keys]
            writes = code.elect(Reduction.MAX)
        saves, mark = code.both(has_saved, writes), len(entry.fields)
        updates: list[tuple[int | OneOf, Register, Register | None]] = []
        for number, (field, key) in enumerate(zip(entry.fields, keys, strict=True)):
            cell: int | OneOf = number
            is_there = saves
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
                is_there = code.both(code.compare(Relation.NE, key, 0), writes)
            updates.append((cell, key, is_there))
        for cell, key, is_there in updates:
            code.update(Operator.MAX, cell, key, is_there)
        return code.statements

    @staticmethod
    def read(copies: Rows, row: Mapping[str, Any]) -> Rows:
        """Return one row for each launch that saved something: the least or the greatest of each field; NaN if all were
        NaN.

        copies: keys of fields, 0 if there is no value; the last axis is the copy, of which a launch has several. row:
        the map's object in the manifest.
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
    """Return the register that keeps the greatest key of a field so far. number: of the field."""
    return code.kept(number, type_=Type.U64 if field.type.size == 8 else Type.U32)


def _flag(code: Builder, entry: Map) -> Kept:
    """Return the register that is 1 once the thread has saved anything, one after those of the fields' keys."""
    # After the keys: 1 if the thread saved anything.
    return code.kept(len(entry.fields), type_=Type.U32)


def _has_mark(field: Field) -> bool:
    """Return whether a field needs a second word in memory that says whether there is a value: its key has 64 bits."""
    # key + 1 may not fit in a cell.
    return field.type in (ScalarType.U64, ScalarType.S64)


def _needs_flag(field: Field) -> bool:
    """Return whether a register must say that a field has a value: an integer's key may be 0, as if there was none."""
    # A key of 0 may be a value's, so that a register must say whether there was one.
    return not field.type.value.startswith("f")
