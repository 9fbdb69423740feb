"""Floating-point numbers in tables of keys: as keys, and as values of which least, greatest and sum are kept.

A key is a number's bits, of both zeros +0 and of all NaNs one. The least and the greatest of values are kept as
unsigned numbers in their order, in which NaNs do not count; the sum is an f64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from neutrino.ir.operands import Constant, Register
from neutrino.ir.statements import Operator, Relation
from neutrino.ir.types import Type
from neutrino.maps.builder import Builder

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

_INFINITY = {32: 0x7F800000, 64: 0x7FF0000000000000}
_NAN = {32: 0x7FC00000, 64: 0x7FF8000000000000}


def as_key(code: Builder, value: Register) -> Register:
    """Return a number as a key, a u64."""
    bits = value.type.bits
    pattern, magnitude = _patterns(code, value)
    pattern = code.select(code.compare(Relation.EQ, magnitude, 0), 0, pattern, pattern.type)
    pattern = code.select(_is_nan(code, magnitude), _NAN[bits], pattern, pattern.type)
    return pattern if bits == 64 else code.convert(Type.U64, pattern)


def kept_of(code: Builder, value: Register, keep: Sequence[str]) -> Mapping[str, Register]:
    """Return by name what is kept of a number: its sum as an f64, its place in the order of numbers as a u32 or u64.

    A NaN has the place 0 among which the greatest counts, and the last one where the least does.
    """
    kept: dict[str, Register] = {}
    if "sum" in keep:
        kept["sum"] = value if value.type is Type.F64 else code.convert(Type.F64, value)
    if {"min", "max"} & set(keep):
        bits = value.type.bits
        pattern, magnitude = _patterns(code, value)
        # All bits of negative numbers are inverted, and the sign of others.
        sign = code.compute(Operator.SHR, code.as_bits(Type(f"s{bits}"), value), bits - 1)
        inverted = code.compute(Operator.OR, code.as_bits(pattern.type, sign), 1 << (bits - 1))
        place = code.compute(Operator.XOR, pattern, inverted)
        is_nan = _is_nan(code, magnitude)
        for name, of_nan in (("min", -1), ("max", 0)):
            if name in keep:
                kept[name] = code.select(is_nan, of_nan, place, place.type)
    return kept


def numbers_of_keys(words: Array, kind: str) -> Array:
    """Return the numbers of keys. words: u64. kind: ``f32`` or ``f64``."""
    import numpy as np

    size = int(kind[1:]) // 8
    return np.ascontiguousarray(words.astype(f"<u{size}")).view(f"<f{size}")


def numbers_of_places(words: Array, kind: str) -> Array:
    """Return the numbers with places in the order of numbers; NaN for 0 and for the last place. words, kind: as of
    ``numbers_of_keys``."""
    import numpy as np

    size = int(kind[1:]) // 8
    places = words.astype(f"<u{size}")
    sign = places.dtype.type(1 << (8 * size - 1))
    return np.where(places >= sign, places ^ sign, ~places).view(f"<f{size}")


def _patterns(code: Builder, value: Register) -> tuple[Register, Register]:
    """Return a number's bits, and those without its sign, as unsigned integers."""
    bits = value.type.bits
    pattern = code.as_bits(Type(f"u{bits}"), value)
    return pattern, code.compute(Operator.AND, pattern, (1 << (bits - 1)) - 1)


def _is_nan(code: Builder, magnitude: Register) -> Register:
    return code.compare(Relation.GT, magnitude, Constant(magnitude.type, _INFINITY[magnitude.type.bits]))
