"""Numbers of any type as unsigned ones in the same order, their places, so that only unsigned numbers are compared.

A NaN has the place 0 or the last one, by its sign. Of zeros the negative one is before the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neutrino.ir.operands import Register
from neutrino.ir.statements import Operator
from neutrino.ir.types import Type
from neutrino.maps.builder import Builder

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

INFINITY = {32: 0x7F800000, 64: 0x7FF0000000000000}
"""By the width of a type its bits: all of the exponent and none of the fraction. Those of NaNs are above, but for the
sign."""


def pattern_of(code: Builder, value: Register) -> Register:
    """Append a bit cast; return a register with the bits of a number, of 32 or 64 bits, as an unsigned integer."""
    return code.as_bits(Type(f"u{value.type.bits}"), value)


def magnitude_of(code: Builder, pattern: Register) -> Register:
    """Append the code that clears a floating-point number's sign; return its other bits. pattern: its bits, from
    ``pattern_of``."""
    return code.compute(Operator.AND, pattern, (1 << (pattern.type.bits - 1)) - 1)


def place_of(code: Builder, value: Register, pattern: Register, *, inverted: bool = False) -> Register:
    """Append the code that computes a number's place in the order of numbers: an unsigned integer of its width that
    orders alike.

    pattern: the bits of the number, as ``pattern_of`` returns them. inverted: with all bits of the place inverted.
    """
    bits = value.type.bits
    sign_bit = 1 << (bits - 1)
    if value.type.is_float:
        # All bits of negative numbers are inverted, and the sign of others. A signed shift by all bits but one gives
        # all ones for negative numbers, else 0.
        signs = code.compute(Operator.SHR, code.as_bits(Type(f"s{bits}"), value), bits - 1)
        changed = code.compute(Operator.OR, code.as_bits(pattern.type, signs), sign_bit)
        if inverted:
            changed = code.compute(Operator.XOR, changed, -1)
        return code.compute(Operator.XOR, pattern, changed)
    # With the sign bit inverted, two's complement numbers are ordered as unsigned ones.
    changes = (sign_bit if value.type.is_signed else 0) ^ ((1 << bits) - 1 if inverted else 0)
    return code.compute(Operator.XOR, pattern, changes) if changes else pattern


def numbers_of_places(words: Array, kind: str) -> Array:
    """Return the numbers whose places (their positions in the order of numbers, unsigned) are given.

    words: the places. kind: the numbers' type, such as ``s16``; integers come back with 32 bits at least.
    """
    import numpy as np

    size = max(int(kind[1:]) // 8, 4)
    places = words.astype(f"<u{size}")
    sign = places.dtype.type(1 << (8 * size - 1))
    if kind[0] == "f":
        return np.where(places >= sign, places ^ sign, ~places).view(f"<f{size}")
    return (places ^ sign).view(f"<i{size}") if kind[0] == "s" else places
