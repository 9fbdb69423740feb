"""``min`` and ``max``: the least and the greatest of what all threads of a launch saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from neutrino.abi.records import Field
from neutrino.abi.scalars import ScalarType
from neutrino.maps.declaration import Map, MapType
from neutrino.maps.target import EndWriter, SaveWriter

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

    def save(self, entry: Map, writer: SaveWriter) -> None:
        """Emit code that keeps, in a register per field, the greater of the register and the value's key."""
        for number, field in enumerate(entry.fields):
            key, is_valid = self._emit_key(writer, writer.value(number), field.type)
            writer.raise_kept(number, _key_bits(field.type), key, is_valid)
        if any(map(_needs_flag, entry.fields)):
            # One more register, of 32 bits, is 1 if this thread saved anything.
            flag = len(entry.fields)
            writer.raise_kept(flag, bits=32, value=1)

    def settle(self, entry: Map, writer: EndWriter) -> None:
        """Emit code, for where threads end, that combines the threads' keys and writes the greatest ones to memory.

        ``save`` has kept a key for each field in the register of the field's number, and in the one after these, if a
        field needs it, a flag that is 1 if the thread saved anything. All are 0 in a thread that saved nothing.
        """
        # A predicate: whether any of the threads that end together saved anything. Only used for fields that need it.
        has_saved = ""
        if any(map(_needs_flag, entry.fields)):
            flag = len(entry.fields)
            has_saved = writer.compare("ne", "u32", writer.greatest(flag, bits=32), 0)
        # The cells of the record are, as in ``cells``, a key for each field, then the marks.
        mark = len(entry.fields)
        for number, field in enumerate(entry.fields):
            bits = _key_bits(field.type)
            key = writer.greatest(number, bits)
            if _is_wide_integer(field.type):
                # key + 1 may not fit in 64 bits, so the mark says that there is a value with key 0.
                writer.write_greatest_or_mark(number, mark, key, has_saved)
                mark += 1
                continue
            wide = key if bits == 64 else writer.convert("u64", "u32", key)
            if _needs_flag(field):
                # key + 1, since 0 in memory means that there is no value.
                writer.write_greatest(number, writer.binary("add", "u64", wide, 1), has_saved)
            else:
                # A key of a floating-point number is never 0, so 0 says that nothing was saved.
                writer.write_greatest(number, wide, writer.compare("ne", "u64", wide, 0))

    def _emit_key(self, writer: SaveWriter, value: str, scalar: ScalarType) -> tuple[str, str | None]:
        """Emit code that computes a value's key: an unsigned number that is greater for a more extreme value.

        value: a register. scalar: the field's type. Returns the key's register, and a predicate that is false for NaN;
        None for integers, which are all valid.
        """
        # A type is called by a letter and its bits: f32.
        bits, letter = _key_bits(scalar), scalar.value[0]
        bits_type, sign_bit = f"b{bits}", 1 << (bits - 1)
        is_valid = None
        if letter == "f":
            # The bits of a NaN without its sign are above those of infinity.
            magnitude = writer.binary("and", bits_type, value, sign_bit - 1)
            # Infinity has all bits of the exponent and none of the fraction.
            infinity = 0x7F800000 if bits == 32 else 0x7FF0000000000000
            is_valid = writer.compare("le", f"u{bits}", magnitude, infinity)
            # To order the bits as unsigned numbers, all bits of negative numbers are inverted, and the sign of others.
            # A signed shift by all bits but one gives all ones for negative numbers, else 0.
            inverted = writer.binary("or", bits_type, writer.binary("shr", f"s{bits}", value, bits - 1), sign_bit)
            value = writer.binary("xor", bits_type, value, inverted)
        elif letter == "s":
            # With the sign bit inverted, two's complement numbers are ordered as unsigned ones.
            value = writer.binary("xor", bits_type, value, sign_bit)
        if not self._greatest:
            # Inverted, so that the least value has the greatest key.
            value = writer.binary("xor", bits_type, value, (1 << bits) - 1)
        return value, is_valid

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


def _key_bits(scalar: ScalarType) -> int:
    """Return the width of a type's keys, 32 or 64."""
    return max(32, scalar.size * 8)


def _is_wide_integer(scalar: ScalarType) -> bool:
    return scalar in (ScalarType.U64, ScalarType.S64)


def _needs_flag(field: Field) -> bool:
    """Return whether a key of 0 may be a value's, so that a register must say whether there was one.

    Not for floating-point types, of which only NaNs would have that key.
    """
    return not field.type.value.startswith("f")
