"""Floating-point numbers in tables of keys: as keys, and as values of which least, greatest and sum are kept.

A key is a number's bits, of both zeros +0 and of all NaNs one. The least and the greatest of values are kept as their
places in the order of numbers (``order.py``), in which NaNs do not count; the sum is an f64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from neutrino.ir.operands import Register
from neutrino.ir.statements import Relation
from neutrino.ir.types import Type
from neutrino.maps.builder import Builder
from neutrino.maps.order import INFINITY, magnitude_of, pattern_of, place_of

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

_NAN = {32: 0x7FC00000, 64: 0x7FF8000000000000}


def as_key(code: Builder, value: Register) -> Register:
    """Append the code that turns a floating-point number into a key of a table, its bits as a u64; return its register.

    Both zeros have one key, and all NaNs have one.
    """
    bits = value.type.bits
    pattern = pattern_of(code, value)
    magnitude = magnitude_of(code, pattern)
    pattern = code.select(code.compare(Relation.EQ, magnitude, 0), 0, pattern, pattern.type)
    pattern = code.select(_is_nan(code, magnitude), _NAN[bits], pattern, pattern.type)
    return pattern if bits == 64 else code.convert(Type.U64, pattern)


def kept_of(code: Builder, value: Register, keep: Sequence[str]) -> Mapping[str, Register]:
    """Append the code that prepares a floating-point number for a table's sum, minimum and maximum; return each by
    name.

    keep: which of "sum", "min" and "max" the table keeps. Sums are of f64. The others get the number's place in the
    order of numbers (u32 or u64), which unsigned comparison orders; a NaN gets the place that never wins.
    """
    kept: dict[str, Register] = {}
    if "sum" in keep:
        kept["sum"] = value if value.type is Type.F64 else code.convert(Type.F64, value)
    if {"min", "max"} & set(keep):
        pattern = pattern_of(code, value)
        magnitude = magnitude_of(code, pattern)
        place = place_of(code, value, pattern)
        is_nan = _is_nan(code, magnitude)
        for name, of_nan in (("min", -1), ("max", 0)):
            if name in keep:
                kept[name] = code.select(is_nan, of_nan, place, place.type)
    return kept


def numbers_of_keys(words: Array, kind: str) -> Array:
    """Return the floating-point numbers whose bits are the keys of a table. words: u64. kind: ``f32`` or ``f64``."""
    import numpy as np

    size = int(kind[1:]) // 8
    return np.ascontiguousarray(words.astype(f"<u{size}")).view(f"<f{size}")


def _is_nan(code: Builder, magnitude: Register) -> Register:
    """Append the test whether a floating-point number is a NaN; return the predicate. magnitude: its bits without the
    sign."""
    return code.compare(Relation.GT, magnitude, INFINITY[magnitude.type.bits])
