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
    """One record a launch, or none where nothing was saved. NaNs are left out, as C's ``fmin`` and ``fmax`` do.

    A thread keeps each field's extreme as a key: an unsigned number that is the greater the more extreme a value is. In
    memory 0 means that there is none: keys of up to 32 bits are there plus one; those of u64 and s64 have a cell beside
    them that says that 0 is a key; those of floating-point numbers are never 0, which would be a NaN's.
    """

    settles = True
    combines_lanes = True
    _greatest: ClassVar[bool]

    def cells(self, fields: Sequence[Field]) -> tuple[Field, ...]:
        """A key for each field, then a mark for each of u64 and s64."""
        names = [field.name for field in fields]
        names += [f"{field.name} is 0" for field in fields if _is_wide_integer(field.type)]
        return tuple(Field(name, ScalarType.U64, 8 * number) for number, name in enumerate(names))

    def words(self, entry: Map) -> str:
        """``the greatest of 2 fields per launch``."""
        fields = f"{len(entry.fields)} {'field' if len(entry.fields) == 1 else 'fields'}"
        return f"the {'greatest' if self._greatest else 'least'} of {fields} per launch"

    def save(self, entry: Map, writer: SaveWriter) -> None:
        """The greater of what is kept and a value's key."""
        for number, field in enumerate(entry.fields):
            key, when = self._key(writer, writer.value(number), field.type)
            writer.raise_kept(number, _bits(field.type), key, when)
        if any(map(_needs_flag, entry.fields)):
            writer.raise_kept(len(entry.fields), 32, 1)

    def settle(self, entry: Map, writer: EndWriter) -> None:
        """What the threads kept, combined; a thread that saved nothing has kept 0."""
        flag = ""
        if any(map(_needs_flag, entry.fields)):
            flag = writer.compare("ne", "u32", writer.greatest(len(entry.fields), 32), 0)
        mark = len(entry.fields)
        for number, field in enumerate(entry.fields):
            bits = _bits(field.type)
            key = writer.greatest(number, bits)
            if _is_wide_integer(field.type):
                writer.write_greatest_or_mark(number, mark, key, flag)
                mark += 1
                continue
            wide = key if bits == 64 else writer.convert("u64", "u32", key)
            if _needs_flag(field):
                writer.write_greatest(number, writer.binary("add", "u64", wide, 1), flag)
            else:
                writer.write_greatest(number, wide, writer.compare("ne", "u64", wide, 0))

    def _key(self, writer: SaveWriter, value: str, scalar: ScalarType) -> tuple[str, str | None]:
        """A value's key, and a predicate for the threads whose value counts; None for all."""
        bits, letter = _bits(scalar), scalar.value[0]
        kind, top = f"b{bits}", 1 << (bits - 1)
        counts = None
        if letter == "f":
            magnitude = writer.binary("and", kind, value, top - 1)
            infinity = 0x7F800000 if bits == 32 else 0x7FF0000000000000
            counts = writer.compare("le", f"u{bits}", magnitude, infinity)
            # Of negative numbers all bits are turned around, of others the sign.
            turned = writer.binary("or", kind, writer.binary("shr", f"s{bits}", value, bits - 1), top)
            value = writer.binary("xor", kind, value, turned)
        elif letter == "s":
            value = writer.binary("xor", kind, value, top)
        if not self._greatest:
            value = writer.binary("xor", kind, value, (1 << bits) - 1)
        return value, counts

    @staticmethod
    def read(copies: Rows, row: Mapping[str, Any]) -> Rows:
        """One row per launch that saved something. A floating-point field that got NaNs alone is one."""
        import numpy as np

        letters = {"u": "<u", "s": "<i", "f": "<f"}
        types = {field["name"]: field["type"] for field in row["fields"]}
        formats = [(name, f"{letters[kind[0]]}{int(kind[1:]) // 8}") for name, kind in types.items()]
        rows = np.zeros(copies.shape[:-1], formats)
        any_found = np.zeros(rows.shape, bool)
        for name, kind in types.items():
            size = max(int(kind[1:]) // 8, 4)
            top = 1 << (8 * size - 1)
            key = copies[name].max(axis=-1)
            found = key != 0
            if kind[0] != "f" and size == 8:
                found = found | (copies[f"{name} is 0"].max(axis=-1) != 0)
            elif kind[0] != "f":
                key = key - found
            key = np.atleast_1d(key.astype(f"<u{size}"))
            if row["kind"] == "min":
                key = ~key
            if kind[0] == "f":
                key = np.where(key >= top, key ^ key.dtype.type(top), ~key)
                value = np.where(found, key.view(f"<f{size}"), np.nan)
            else:
                value = (key ^ key.dtype.type(top)).view(f"<i{size}") if kind[0] == "s" else key
            rows[name] = value.reshape(rows.shape)
            any_found |= found
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


def _bits(scalar: ScalarType) -> int:
    """Of a type's keys."""
    return max(32, scalar.size * 8)


def _is_wide_integer(scalar: ScalarType) -> bool:
    return scalar in (ScalarType.U64, ScalarType.S64)


def _needs_flag(field: Field) -> bool:
    """Whether keys of 0 leave it open if there was a value: a register says so."""
    return field.type.value[0] != "f"
