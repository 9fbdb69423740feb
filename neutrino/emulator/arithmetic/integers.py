"""Integer arithmetic (PTX ISA 9.7.1) and its extended-precision forms (9.7.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from neutrino.emulator.arithmetic.operation import (
    BOOL,
    INTEGERS,
    S16,
    S32,
    U16,
    U32,
    Carry,
    Function,
    Lanes,
    Modifiers,
    Operation,
    from_expression,
)

_HALVES = {"u16x2": U16, "s16x2": S16}
_PLAIN = ("u16", "u32", "u64", "s16", "s32", "s64")
_SUMS = {"add": "{0} + {1}", "sub": "{0} - {1}"}


def halves(word: Lanes, dtype: np.dtype[Any]) -> tuple[Lanes, Lanes]:
    """Return the low and the high 16 bits of 32-bit words, as the 16-bit type `dtype`."""
    return word.astype(U16).view(dtype), (word >> np.uint32(16)).astype(U16).view(dtype)


def join_halves(low: Lanes, high: Lanes) -> Lanes:
    """Return the 32-bit words that have these low and high 16 bits."""
    return low.view(U16).astype(U32) | (high.view(U16).astype(U32) << np.uint32(16))


def by_halves(function: Function, dtype: np.dtype[Any]) -> Function:
    """Wrap a function of 16-bit values of type `dtype`, so that it applies to each half of packed 32-bit words."""

    def apply(*words: Lanes) -> Lanes:
        """Apply the function to the low and to the high halves of packed 32-bit words, and pack the two results."""
        pairs = [halves(word, dtype) for word in words]
        low, high = (function(*(pair[index] for pair in pairs)) for index in range(2))
        return join_halves(low, high)

    return apply


def _wider(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the integer type of twice the width and the same signedness."""
    return np.dtype(f"{dtype.kind}{2 * dtype.itemsize}")


def _unsigned(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the unsigned type of the same size."""
    return np.dtype(f"u{dtype.itemsize}")


def multiply_high(a: Lanes, b: Lanes) -> Lanes:
    """Return the upper half of the product of two integers of the same type.

    64-bit products are computed from 32-bit halves, as NumPy has no wider type.
    """
    dtype = a.dtype
    if dtype.itemsize < 8:
        wide = _wider(dtype)
        shift = wide.type(8 * dtype.itemsize)
        return ((a.astype(wide) * b.astype(wide)) >> shift).astype(dtype)
    # x * y is x_high * y_high * 2**64 + (x_high * y_low + x_low * y_high) * 2**32 + x_low * y_low. Added in this order,
    # no partial sum exceeds 64 bits.
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    x, y = a.astype(np.uint64), b.astype(np.uint64)
    x_low, x_high, y_low, y_high = x & mask, x >> half, y & mask, y >> half
    middle = x_high * y_low + ((x_low * y_low) >> half)
    carry = x_low * y_high + (middle & mask)
    high = x_high * y_high + (middle >> half) + (carry >> half)
    if dtype.kind == "i":
        # As an unsigned word a negative factor is larger by 2**64, which adds the other factor to the upper half.
        high = high - np.where(a < 0, y, np.uint64(0)) - np.where(b < 0, x, np.uint64(0))
    return high.astype(dtype)


def _divide(a: Lanes, b: Lanes) -> Lanes:
    """Return the integer quotient, truncated towards zero.

    A division by zero gives a word with all bits set, as the code that ptxas generates does.
    """
    dtype = a.dtype
    by_zero = b == 0
    # NumPy must not divide by zero; these lanes are replaced below.
    divisor = np.where(by_zero, dtype.type(1), b)
    quotient = a // divisor
    if dtype.kind == "i":
        # NumPy rounds down: one more where the quotient is negative and not exact.
        remainder = a - quotient * divisor
        quotient = quotient + ((remainder != 0) & ((a < 0) != (divisor < 0))).astype(dtype)
    # 0 - 1 has all bits set, in unsigned types as well.
    return np.where(by_zero, np.zeros((), dtype) - dtype.type(1), quotient)


def _remainder(a: Lanes, b: Lanes) -> Lanes:
    """Return the remainder of a truncated integer division, with the sign of `a`; all bits set if `b` is zero."""
    dtype = a.dtype
    by_zero = b == 0
    # NumPy must not divide by zero; these lanes are replaced below.
    divisor = np.where(by_zero, dtype.type(1), b)
    remainder = np.fmod(a, divisor)
    # 0 - 1 has all bits set, in unsigned types as well.
    return np.where(by_zero, np.zeros((), dtype) - dtype.type(1), remainder)


def saturating_sum(a: Lanes, b: Lanes, subtract: bool) -> Lanes:
    """Return a + b, or a - b if `subtract`, of integers of the same type, clamped to its range (.sat).

    NumPy's integers wrap around, so that overflow is detected from the wrapped result.
    """
    dtype = a.dtype
    limits = np.iinfo(dtype)
    result = a - b if subtract else a + b
    if dtype.kind == "u":
        if subtract:
            return np.where(a < b, dtype.type(0), result)
        # A sum that wrapped around is less than each addend.
        return np.where(result < a, dtype.type(limits.max), result)
    # A sum overflows if both addends have the sign that it lacks; a - b is a + ~b + 1. It then lies beyond the limit on
    # the side of a.
    addend = ~b if subtract else b
    overflow = ((a ^ result) & (addend ^ result)) < 0
    return np.where(overflow, np.where(a < 0, dtype.type(limits.min), dtype.type(limits.max)), result)


def _saturating(subtract: bool) -> Function:
    """Return the function a + b, or a - b if `subtract`, of integers, clamped to the range of their type."""
    return lambda a, b: saturating_sum(a, b, subtract)


def _sum(modifiers: Modifiers) -> Operation:
    """Build the operation of integer `add` or `sub`, which wraps around without a modifier.

    .sat: the result is clamped to the type's range. .cc: the carry flag is written. Packed 16-bit types (u16x2, s16x2)
    are added half by half.
    """
    if modifiers.take_flag("cc"):
        return _carrying_sum(modifiers, reads_carry=False, writes_carry=True)
    name = modifiers.take_type((*_PLAIN, *_HALVES))
    saturate = modifiers.take_flag("sat")
    modifiers.check_all_taken()
    if name in _HALVES:
        plain = np.subtract if modifiers.mnemonic == "sub" else np.add
        function = _saturating(modifiers.mnemonic == "sub") if saturate else plain
        return Operation((U32, U32), (U32,), by_halves(function, _HALVES[name]))
    dtype = INTEGERS[name]
    if saturate:
        return Operation((dtype, dtype), (dtype,), _saturating(modifiers.mnemonic == "sub"))
    return from_expression((dtype, dtype), dtype, _SUMS[modifiers.mnemonic])


def _with_carry(modifiers: Modifiers) -> Operation:
    """Build the operation of `addc` or `subc`, which read the carry flag."""
    return _carrying_sum(modifiers, reads_carry=True, writes_carry=modifiers.take_flag("cc"))


def add_carry(a: Lanes, b: Lanes, carry: Lanes) -> tuple[Lanes, Lanes]:
    """Return a + b + carry of unsigned words, wrapped around, and the carry out of that sum as a boolean.

    carry: a boolean.
    """
    dtype = a.dtype
    # Each of the two additions may wrap around; if it does, the sum is less than either addend.
    partial = a + b
    result = partial + carry.astype(dtype)
    return result, (partial < a) | (result < partial)


def subtract_carry(a: Lanes, b: Lanes, carry: Lanes) -> tuple[Lanes, Lanes]:
    """Return a - b - (1 - carry) of unsigned words, wrapped around, and the carry out of that difference as a boolean.

    carry: a boolean. The carry is the opposite of a borrow, as on a GPU, which adds the complement of b: it is clear if
    the exact difference is negative.
    """
    return add_carry(a, ~b, carry)


_NO_CARRY = np.bool_(False)
_NO_BORROW = np.bool_(True)


def _carrying_sum(modifiers: Modifiers, *, reads_carry: bool, writes_carry: bool) -> Operation:
    """Build the operation of a sum or difference with the carry flag as an input, an output, or both.

    Programs chain these to add integers of more than 64 bits, word by word. After subtractions the flag is 1 without a
    borrow (`subtract_carry`), which shows where additions read it.
    reads_carry: for `addc` and `subc`. writes_carry: for the modifier .cc, which the caller has taken already.
    """
    dtype = INTEGERS[modifiers.take_type(("u32", "s32", "u64", "s64"))]
    modifiers.check_all_taken()
    adds = modifiers.mnemonic.startswith("add")
    compute, no_carry = (add_carry, _NO_CARRY) if adds else (subtract_carry, _NO_BORROW)
    # The carry is that of unsigned words, also for signed types.
    word = _unsigned(dtype)

    # Instructions that do not read the flag leave `carry` out.
    def add_or_subtract(a: Lanes, b: Lanes, carry: Lanes = no_carry) -> Any:
        """Return the sum or difference of two integers with the carry and, if the instruction writes it,
        the carry out.
        """
        result, carry_out = compute(a.view(word), b.view(word), carry)
        return (result.view(dtype), carry_out) if writes_carry else result.view(dtype)

    inputs = (dtype, dtype)
    return _operation_with_carry(add_or_subtract, inputs, dtype, reads_carry=reads_carry, writes_carry=writes_carry)


def _operation_with_carry(
    function: Function,
    inputs: tuple[np.dtype[Any], ...],
    output: np.dtype[Any],
    *,
    reads_carry: bool,
    writes_carry: bool,
) -> Operation:
    """Return the operation of a function whose last input, last output, or both are the carry flag, a boolean.

    inputs, output: the types of the other arguments and of the other result.
    """
    carry: Carry | None = "out" if writes_carry else None
    if reads_carry:
        carry = "inout" if writes_carry else "in"
    return Operation(
        (*inputs, BOOL) if reads_carry else inputs,
        (output, BOOL) if writes_carry else (output,),
        function,
        carry=carry,
    )


def _product(modifiers: Modifiers) -> Operation:
    """Build the operation of integer `mul`: the lower half (.lo), the upper half (.hi) or all (.wide) of the product.

    The whole product has twice the operands' width. Raise ValueError for a 64-bit .wide.
    """
    dtype = INTEGERS[modifiers.take_type(_PLAIN)]
    part = modifiers.take_required(("lo", "hi", "wide"), "part of the product")
    modifiers.check_all_taken()
    if part == "lo":
        return from_expression((dtype, dtype), dtype, "{0} * {1}")
    if part == "hi":
        return Operation((dtype, dtype), (dtype,), multiply_high)
    if dtype.itemsize == 8:
        raise ValueError(f"{modifiers.opcode}: .wide has no 64-bit form")
    wide = _wider(dtype)
    return from_expression((dtype, dtype), wide, f"np.multiply({{0}}, {{1}}, dtype=np.{wide.name})")


def _product_sum(modifiers: Modifiers) -> Operation:
    """Build the operation of `mad`."""
    return _multiply_add(modifiers, reads_carry=False)


def _product_sum_with_carry(modifiers: Modifiers) -> Operation:
    """Build the operation of `madc`, which adds the carry flag."""
    return _multiply_add(modifiers, reads_carry=True)


def _multiply_add(modifiers: Modifiers, *, reads_carry: bool) -> Operation:
    """Build the operation of `mad` or `madc`: the lower (.lo), upper (.hi) or whole (.wide) product of a and b, plus c.

    With .cc it also writes the carry flag. Raise ValueError for .sat, except on mad.hi.s32, for a 64-bit .wide, and for
    .wide with the carry flag.
    """
    dtype = INTEGERS[modifiers.take_type(_PLAIN)]
    part = modifiers.take_required(("lo", "hi", "wide"), "part of the product")
    saturate, writes_carry = modifiers.take_flag("sat"), modifiers.take_flag("cc")
    modifiers.check_all_taken()
    if reads_carry or writes_carry:
        if part == "wide":
            raise ValueError(f"{modifiers.opcode}: .wide has no form with the carry flag")
        multiply = np.multiply if part == "lo" else multiply_high
        return _carrying_multiply_add(modifiers, dtype, multiply, reads_carry=reads_carry, writes_carry=writes_carry)
    if saturate:
        if part != "hi" or dtype != S32:
            raise ValueError(f"{modifiers.opcode}: .sat is for mad.hi.s32")
        return Operation(
            (S32, S32, S32), (S32,), lambda a, b, c: saturating_sum(multiply_high(a, b), c, subtract=False)
        )
    if part == "lo":
        return from_expression((dtype, dtype, dtype), dtype, "{0} * {1} + {2}")
    if part == "hi":
        return Operation((dtype, dtype, dtype), (dtype,), lambda a, b, c: multiply_high(a, b) + c)
    if dtype.itemsize == 8:
        raise ValueError(f"{modifiers.opcode}: .wide has no 64-bit form")
    wide = _wider(dtype)
    return from_expression((dtype, dtype, wide), wide, f"np.multiply({{0}}, {{1}}, dtype=np.{wide.name}) + {{2}}")


def _carrying_multiply_add(
    modifiers: Modifiers, dtype: np.dtype[Any], multiply: Function, *, reads_carry: bool, writes_carry: bool
) -> Operation:
    """Build the operation multiply(a, b) + c with the carry flag as an input, an output, or both (`mad.cc`, `madc`).

    multiply: returns the lower or the upper half of the product of two integers of type `dtype`. modifiers: only for
    messages. Raise ValueError for 16-bit types.
    """
    if dtype.itemsize < 4:
        raise ValueError(f"{modifiers.opcode}: the carry flag is for 32 and 64 bits")
    # The carry is that of unsigned words, also for signed types.
    word = _unsigned(dtype)

    def multiply_add(a: Lanes, b: Lanes, c: Lanes, carry: Lanes = _NO_CARRY) -> Any:
        """Return the product (or its upper half) plus c plus the carry, and with .cc the carry out of this sum.

        Instructions that do not read the flag leave `carry` out.
        """
        result, carry_out = add_carry(multiply(a, b).view(word), c.view(word), carry)
        return (result.view(dtype), carry_out) if writes_carry else result.view(dtype)

    inputs = (dtype, dtype, dtype)
    return _operation_with_carry(multiply_add, inputs, dtype, reads_carry=reads_carry, writes_carry=writes_carry)


def _product24(modifiers: Modifiers) -> Operation:
    """Build the operation of `mul24` or `mad24`: the product of the low 24 bits of a and b, plus c for `mad24`.

    Of the 48-bit product .hi takes bits 16 to 47 and .lo bits 0 to 31.
    """
    name = modifiers.take_type(("u32", "s32"))
    high = modifiers.take_required(("lo", "hi"), "part of the product") == "hi"
    saturate = modifiers.take_flag("sat")
    modifiers.check_all_taken()
    dtype = INTEGERS[name]
    wide = _wider(dtype)
    unused_bits, part_shift = dtype.type(8), wide.type(16 if high else 0)

    def multiply(a: Lanes, b: Lanes) -> Lanes:
        """Return 32 bits of the product of the low 24 bits of a and b, which are extended by their sign or by zeros."""
        # Shifting up and down again extends the low 24 bits by their sign, or by zeros.
        x, y = ((value << unused_bits) >> unused_bits for value in (a, b))
        return ((x.astype(wide) * y.astype(wide)) >> part_shift).astype(dtype)

    if modifiers.mnemonic == "mul24":
        return Operation((dtype, dtype), (dtype,), multiply)
    if saturate:
        return Operation((dtype,) * 3, (dtype,), lambda a, b, c: saturating_sum(multiply(a, b), c, subtract=False))
    return Operation((dtype,) * 3, (dtype,), lambda a, b, c: multiply(a, b) + c)


def _quotient(modifiers: Modifiers) -> Operation:
    """Build the operation of integer `div` or `rem`: the quotient, truncated towards zero, or its remainder."""
    dtype = INTEGERS[modifiers.take_type(_PLAIN)]
    modifiers.check_all_taken()
    return Operation((dtype, dtype), (dtype,), _divide if modifiers.mnemonic == "div" else _remainder)


def _sum_of_differences(modifiers: Modifiers) -> Operation:
    """Build the operation of `sad` (sum of absolute differences): c plus the absolute difference of a and b."""
    dtype = INTEGERS[modifiers.take_type(_PLAIN)]
    modifiers.check_all_taken()
    return Operation((dtype,) * 3, (dtype,), lambda a, b, c: c + np.where(a < b, b - a, a - b))


def _sign(modifiers: Modifiers) -> Operation:
    """Build the operation of integer `abs` or `neg`."""
    dtype = INTEGERS[modifiers.take_type(("s16", "s32", "s64"))]
    modifiers.check_all_taken()
    return from_expression((dtype,), dtype, "np.abs({0})" if modifiers.mnemonic == "abs" else "-{0}")


def _extremum(modifiers: Modifiers) -> Operation:
    """Build the operation of integer `min` or `max`; with .relu, negative results become 0.

    Packed 16-bit types (u16x2, s16x2) are compared half by half. Raise ValueError for .relu with a type that does not
    have it.
    """
    name = modifiers.take_type((*_PLAIN, *_HALVES))
    relu = modifiers.take_flag("relu")
    modifiers.check_all_taken()
    if relu and name not in ("s32", "s16x2"):
        raise ValueError(f"{modifiers.opcode}: .relu is for s32 and s16x2")
    expression = "np.minimum({0}, {1})" if modifiers.mnemonic == "min" else "np.maximum({0}, {1})"
    dtype = _HALVES[name] if name in _HALVES else INTEGERS[name]
    if relu:
        expression = f"np.maximum({expression}, np.{dtype.name}(0))"
    operation = from_expression((dtype, dtype), dtype, expression)
    if name in _HALVES:
        return Operation((U32, U32), (U32,), by_halves(operation.function, dtype))
    return operation


def _fields(word: Lanes, width: int, signed: bool) -> list[Lanes]:
    """Split 32-bit words into fields of `width` bits; return their values, the lowest field first, as int64.

    signed: the fields are in two's complement.
    """
    dtype = np.dtype(f"{'i' if signed else 'u'}{width // 8}")
    unsigned = _unsigned(dtype)
    return [
        (word.view(U32) >> np.uint32(shift)).astype(unsigned).view(dtype).astype(np.int64)
        for shift in range(0, 32, width)
    ]


def _dot_product(modifiers: Modifiers) -> Operation:
    """Build the operation of `dp4a` or `dp2a`: the dot product of packed fields of a and b, plus c.

    `dp4a` multiplies four bytes by four bytes, `dp2a` the two 16-bit halves of a by the lower (.lo) or upper (.hi) two
    bytes of b.
    """
    # The types come last, a's before b's.
    b_type, a_type = modifiers.take_type(("u32", "s32")), modifiers.take_type(("u32", "s32"))
    a_field_bits, first_b_byte = 8, 0
    if modifiers.mnemonic == "dp2a":
        a_field_bits = 16
        first_b_byte = 2 if modifiers.take_required(("lo", "hi"), "half of b") == "hi" else 0
    modifiers.check_all_taken()
    result_type = U32 if a_type == b_type == "u32" else S32

    def multiply_add(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
        """Return the dot product of the packed fields of a and b, plus c, wrapped to 32 bits.

        The fields of a have `a_field_bits` bits; those of b are bytes, from `first_b_byte` upwards.
        """
        a_fields = _fields(a, a_field_bits, a_type == "s32")
        b_fields = _fields(b, 8, b_type == "s32")[first_b_byte:]
        total = c.astype(np.int64)
        # dp2a.lo leaves the upper two bytes of b over.
        for x, y in zip(a_fields, b_fields, strict=False):
            total = total + x * y
        return total.astype(U32).view(result_type)

    return Operation((INTEGERS[a_type], INTEGERS[b_type], result_type), (result_type,), multiply_add)


BUILDERS: Mapping[str, Callable[[Modifiers], Operation]] = {
    "add": _sum,
    "sub": _sum,
    "addc": _with_carry,
    "subc": _with_carry,
    "mul": _product,
    "mad": _product_sum,
    "madc": _product_sum_with_carry,
    "mul24": _product24,
    "mad24": _product24,
    "div": _quotient,
    "rem": _quotient,
    "sad": _sum_of_differences,
    "abs": _sign,
    "neg": _sign,
    "min": _extremum,
    "max": _extremum,
    "dp4a": _dot_product,
    "dp2a": _dot_product,
}
