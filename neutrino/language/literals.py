"""Literal numbers of a probe file: their arithmetic while the file is read, and their bits in each type."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from neutrino.ir.operands import Constant
from neutrino.ir.statements import Operator
from neutrino.ir.types import Type

Number = int | float
"""A number that has no type yet: it takes the type of its context."""

_CONSTANT_OPERATIONS: Mapping[Operator, Callable[[Any, Any], Any]] = {
    Operator.ADD: operator.add, Operator.SUB: operator.sub, Operator.MUL: operator.mul, Operator.DIV: operator.floordiv,
    Operator.REM: operator.mod, Operator.AND: operator.and_, Operator.OR: operator.or_, Operator.XOR: operator.xor,
    Operator.SHL: operator.lshift, Operator.SHR: operator.rshift,
}  # fmt: skip
"""How two literal numbers are combined while the file is read."""
_LITERAL_SHIFT_LIMIT, _MAX_LITERAL_BITS = 64, 128
"""Limits that keep a chain of shifts and products of literals in a probe file from growing without bound."""
_BF16_DIGITS = 8
"""Significant bits of a bf16."""
_BF16_LEAST_EXPONENT = -133
"""The smallest bf16 above 0, a subnormal number, is 2 to this power."""


def fold(operation: Operator, left: Number, right: Number) -> Number:
    """Return ``left OP right`` by Python's rules.

    Raises ValueError, with the reason, for a division by zero, an operation that the numbers do not have, and large
    results.
    """
    if operation in {Operator.SHL, Operator.SHR} and not 0 <= right < _LITERAL_SHIFT_LIMIT:
        raise ValueError(f" shifts by {right}")
    try:
        result: Number = _CONSTANT_OPERATIONS[operation](left, right)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise ValueError(f": {error}") from None
    if isinstance(result, int) and result.bit_length() > _MAX_LITERAL_BITS:
        raise ValueError(f" is beyond {_MAX_LITERAL_BITS} bits")
    return result


def constant(type_: Type, number: Number) -> Constant | None:
    """Return a number as a constant of a type, rounded to nearest if that is a floating-point type.

    None for a number out of the type's range. Unsigned integers also take -1, as all bits set.
    """
    if type_.is_float:
        # struct rounds to nearest, but has no format for bf16, the upper half of an f32: such a value is rounded
        # before, and an f32 holds the result exactly.
        float_format, bits_format = {Type.F64: ("<d", "<Q"), Type.F16: ("<e", "<H")}.get(type_, ("<f", "<I"))
        try:
            value = float(number) if type_ is not Type.BF16 else _nearest_bf16(float(number))
            (bits,) = struct.unpack(bits_format, struct.pack(float_format, value))
        except OverflowError:
            return None
        return Constant(type_, bits >> 16 if type_ is Type.BF16 else bits)
    least = -(1 << (type_.bits - 1)) if type_.is_signed else -1
    greatest = (1 << (type_.bits - 1 if type_.is_signed else type_.bits)) - 1
    if not isinstance(number, int) or not least <= number <= greatest:
        return None
    # Negative numbers as two's complement.
    return Constant(type_, number % (1 << type_.bits))


def bounds(type_: Type) -> tuple[int, int]:
    """Return the least and the greatest number that an integer type holds."""
    low = -(1 << (type_.bits - 1)) if type_.is_signed else 0
    return low, low + (1 << type_.bits) - 1


def fits(type_: Type, values: Iterable[int]) -> bool:
    """Return whether an integer type holds all of these values."""
    low, high = bounds(type_)
    return all(low <= value <= high for value in values)


def _nearest_bf16(number: float) -> float:
    """Round a number to the 8 significant bits of a bf16, ties to even. Infinities and NaN are returned as they are.

    The result may be 2^128 or more, which no f32 can hold: the caller refuses it. Raises OverflowError for one that no
    f64 can hold either.
    """
    if not math.isfinite(number):
        return number
    # number is fraction * 2^exponent with a fraction from 1/2 to below 1. unit: what the last significant bit of the
    # result counts; subnormal numbers have fewer bits. It is a power of two, so the division is exact; round() rounds
    # ties to even, and copysign keeps the sign of a zero.
    _, exponent = math.frexp(number)
    unit = math.ldexp(1.0, max(exponent - _BF16_DIGITS, _BF16_LEAST_EXPONENT))
    rounded = math.copysign(round(number / unit) * unit, number)
    if math.isinf(rounded):
        raise OverflowError
    return rounded
