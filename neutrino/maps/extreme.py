"""``min`` and ``max``: the least and the greatest of what all threads of a launch saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from neutrino.abi.records import Field
from neutrino.abi.scalars import ScalarType
from neutrino.ir.memory import Kept, MapStatement, OneOf
from neutrino.ir.operands import Register
from neutrino.ir.statements import Operator, Reduction, Relation
from neutrino.ir.types import Type
from neutrino.maps.builder import Builder, Lanes, SavedValues
from neutrino.maps.declaration import Map, MapType

if TYPE_CHECKING:
    from neutrino.maps.declaration import Rows


@dataclass(frozen=True)
class _Extreme(MapType):
    """One record per launch, or none where nothing was saved. NaNs are ignored, as by C's ``fmin`` and ``fmax``.

    A thread keeps the extreme of each field as a key: an unsigned number that is greater for a more extreme value, so
    that combining is always a maximum. In memory 0 means that there is no value, hence integers of up to 32 bits are
    stored as key + 1; those of 64 bits have a mark, a second cell that is 1 if there is a value with key 0; keys of
    floating-point numbers are never 0, which only a NaN would have.

    _greatest: whether the type is ``max``.
    """

    settles = True
    combines_lanes = True
    takes_per = True
    keeps_greatest = True
    _greatest: ClassVar[bool]

    def cells(self, fields: Sequence[Field]) -> tuple[Field, ...]:
        """Return the fields that memory holds, all u64: a key for each field, then a mark for each u64 or s64 field."""
        names = [field.name for field in fields]
        names += [f"{field.name} is 0" for field in fields if _is_wide_integer(field.type)]
        return tuple(Field(name, ScalarType.U64, 8 * number) for number, name in enumerate(names))

    def describe(self, entry: Map) -> str:
        """Return a map in words: ``the greatest of 2 fields per launch``."""
        fields = f"{len(entry.fields)} {'field' if len(entry.fields) == 1 else 'fields'}"
        return f"the {'greatest' if self._greatest else 'least'} of {fields} per {entry.per.value}"

    def save(self, entry: Map, saved: SavedValues) -> Sequence[MapStatement]:
        """Return code that keeps, in a register per field, the greater of the register and the value's key."""
        code = Builder(entry.span)
        saves: Register | None = None
        for number, field in enumerate(entry.fields):
            key, is_valid = self._key(code, code.saved(number, field))
            saves = saves or code.saving(saved)
            code.change(_key_of(code, number, field), Operator.MAX, key, code.both(is_valid, saves))
        if any(map(_needs_flag, entry.fields)):
            code.change(_flag(code, entry), Operator.MAX, 1, saves)
        return code.statements

    def settle(self, entry: Map, kept: Sequence[Kept], lanes: Lanes) -> Sequence[MapStatement]:
        """Return code, for where threads end, that combines the threads' keys and writes the greatest ones to memory.

        All registers are 0 in a thread that saved nothing.
        """
        code = Builder(entry.span)
        # A predicate: whether any of the threads that end together saved anything. Only used for fields that need it.
        has_saved = None
        if any(map(_needs_flag, entry.fields)):
            has_saved = code.compare(Relation.NE, code.together(Reduction.MAX, _flag(code, entry)), 0)
        # The cells of the record are, as in ``cells``, a key for each field, then the marks.
        mark = len(entry.fields)
        for number, field in enumerate(entry.fields):
            key = code.together(Reduction.MAX, _key_of(code, number, field))
            cell: int | OneOf = number
            is_there = has_saved
            if _is_wide_integer(field.type):
                # key + 1 may not fit in 64 bits. A cell is 0 at first, so 0 in it means that there is no value, and a
                # greatest key of 0 is marked in another cell. One statement writes either.
                is_zero = code.compare(Relation.EQ, key, 0)
                cell = OneOf(is_zero, mark, number)
                key = code.select(is_zero, 1, key, Type.U64)
                mark += 1
            else:
                key = key if key.type is Type.U64 else code.convert(Type.U64, key)
                if _needs_flag(field):
                    # key + 1, since 0 in memory means that there is no value.
                    key = code.compute(Operator.ADD, key, 1)
                else:
                    # A key of a floating-point number is never 0, so 0 says that nothing was saved.
                    is_there = code.compare(Relation.NE, key, 0)
            code.update(Operator.MAX, cell, key, code.both(is_there, code.elect(Reduction.MAX)))
        return code.statements

    def _key(self, code: Builder, value: Register) -> tuple[Register, Register | None]:
        """Return a value's key, an unsigned number that is greater for a more extreme value; and a predicate that is
        false for NaN, None for integers, which are all valid."""
        bits = value.type.bits
        unsigned, sign_bit = Type(f"u{bits}"), 1 << (bits - 1)
        key, is_valid = code.as_bits(unsigned, value), None
        if value.type.is_float:
            # The bits of a NaN without its sign are above those of infinity.
            magnitude = code.compute(Operator.AND, key, sign_bit - 1)
            # Infinity has all bits of the exponent and none of the fraction.
            infinity = 0x7F800000 if bits == 32 else 0x7FF0000000000000
            is_valid = code.compare(Relation.LE, magnitude, infinity)
            # To order the bits as unsigned numbers, all bits of negative numbers are inverted, and the sign of others.
            # A signed shift by all bits but one gives all ones for negative numbers, else 0.
            signs = code.compute(Operator.SHR, code.as_bits(Type(f"s{bits}"), value), bits - 1)
            inverted = code.compute(Operator.OR, code.as_bits(unsigned, signs), sign_bit)
            key = code.compute(Operator.XOR, key, inverted)
        elif value.type.is_signed:
            # With the sign bit inverted, two's complement numbers are ordered as unsigned ones.
            key = code.compute(Operator.XOR, key, sign_bit)
        if not self._greatest:
            # Inverted, so that the least value has the greatest key.
            key = code.compute(Operator.XOR, key, (1 << bits) - 1)
        return key, is_valid

    @staticmethod
    def read(copies: Rows, row: Mapping[str, Any]) -> Rows:
        """Return one row for each launch that saved something, of a min or max map. A field of NaNs alone is NaN.

        copies: keys, unsigned numbers that are greater for a more extreme value, 0 if there is no value; the last axis
        is the copy. row: the map's object in the manifest.
        """
        import numpy as np

        letters = {"u": "<u", "s": "<i", "f": "<f"}
        types = {field["name"]: field["type"] for field in row["fields"]}
        formats = [(name, f"{letters[kind[0]]}{int(kind[1:]) // 8}") for name, kind in types.items()]
        rows = np.zeros(copies.shape[:-1], formats)
        any_found = np.zeros(rows.shape, bool)
        for name, kind in types.items():
            # A type is a letter and its bits, as u64. Keys have at least 32 bits. size: in bytes. top: the highest bit.
            size = max(int(kind[1:]) // 8, 4)
            top = 1 << (8 * size - 1)
            key = copies[name].max(axis=-1)
            found = key != 0
            # A 64-bit integer's key may be 0, which a second cell says; other integers are stored as key + 1.
            if kind[0] != "f" and size == 8:
                found = found | (copies[f"{name} is 0"].max(axis=-1) != 0)
            elif kind[0] != "f":
                # found counts as 1, so that 0 (no value) stays 0.
                key = key - found
            # An array even for a single launch, so that it can be viewed as another type.
            key = np.atleast_1d(key.astype(f"<u{size}"))
            # The inverse of the steps from a value to its key, in unsigned numbers of the key's width.
            if row["kind"] == "min":
                key = ~key
            if kind[0] == "f":
                # Keys of numbers that are not negative have the highest bit.
                key = np.where(key >= top, key ^ key.dtype.type(top), ~key)
                value = np.where(found, key.view(f"<f{size}"), np.nan)
            else:
                value = (key ^ key.dtype.type(top)).view(f"<i{size}") if kind[0] == "s" else key
            rows[name] = value.reshape(rows.shape)
            any_found |= found
        # Without the launches that saved nothing.
        return rows[any_found]


@dataclass(frozen=True)
class Minimum(_Extreme):
    """The least."""

    name = "min"
    whole = "the least over all threads"
    _greatest = False


@dataclass(frozen=True)
class Maximum(_Extreme):
    """The greatest."""

    name = "max"
    whole = "the greatest over all threads"
    _greatest = True


def _key_of(code: Builder, number: int, field: Field) -> Kept:
    """Return the register with the key of a field, 32 or 64 bits wide. number: the field's."""
    return code.kept(number, type_=Type.U64 if field.type.size == 8 else Type.U32)


def _flag(code: Builder, entry: Map) -> Kept:
    """Return the register, after those of the fields, that is 1 if the thread saved anything."""
    return code.kept(len(entry.fields), type_=Type.U32)


def _is_wide_integer(scalar: ScalarType) -> bool:
    return scalar in (ScalarType.U64, ScalarType.S64)


def _needs_flag(field: Field) -> bool:
    """Return whether a key of 0 may be a value's, so that a register must say whether there was one.

    Not for floating-point types, of which only NaNs would have that key.
    """
    return not field.type.value.startswith("f")
