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
    """The low and the high 16 bits of 32-bit words, as `dtype`."""
    return word.astype(U16).view(dtype), (word >> np.uint32(16)).astype(U16).view(dtype)


def join_halves(low: Lanes, high: Lanes) -> Lanes:
    """The 32-bit words whose low and high 16 bits these are."""
    return low.view(U16).astype(U32) | (high.view(U16).astype(U32) << np.uint32(16))


def by_halves(function: Function, dtype: np.dtype[Any]) -> Function:
    """`function` applied to the two 16-bit halves of its arguments, each apart."""

    def apply(*words: Lanes) -> Lanes:
        pairs = [halves(word, dtype) for word in words]
        low, high = (function(*(pair[index] for pair in pairs)) for index in range(2))
        return join_halves(low, high)

    return apply


def _wider(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"{dtype.kind}{2 * dtype.itemsize}")


def _unsigned(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"u{dtype.itemsize}")


def multiply_high(a: Lanes, b: Lanes) -> Lanes:
    """The upper half of the product of two integers of the same type."""
    dtype = a.dtype
    if dtype.itemsize < 8:
        wide = _wider(dtype)
        shift = wide.type(8 * dtype.itemsize)
        return ((a.astype(wide) * b.astype(wide)) >> shift).astype(dtype)
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    x, y = a.astype(np.uint64), b.astype(np.uint64)
    x_low, x_high, y_low, y_high = x & mask, x >> half, y & mask, y >> half
    middle = x_high * y_low + ((x_low * y_low) >> half)
    carry = x_low * y_high + (middle & mask)
    high = x_high * y_high + (middle >> half) + (carry >> half)
    if dtype.kind == "i":
        high = high - np.where(a < 0, y, np.uint64(0)) - np.where(b < 0, x, np.uint64(0))
    return high.astype(dtype)


def _divide(a: Lanes, b: Lanes) -> Lanes:
    """The quotient, cut towards zero; all bits set where the divisor is zero, as the code that ptxas makes gives."""
    dtype = a.dtype
    zero = b == 0
    divisor = np.where(zero, dtype.type(1), b)
    quotient = a // divisor
    if dtype.kind == "i":
        remainder = a - quotient * divisor
        quotient = quotient + ((remainder != 0) & ((a < 0) != (divisor < 0))).astype(dtype)
    return np.where(zero, np.zeros((), dtype) - dtype.type(1), quotient)


def _remainder(a: Lanes, b: Lanes) -> Lanes:
    """What is left of `a`, with its sign; `_divide` says what happens at zero."""
    dtype = a.dtype
    zero = b == 0
    divisor = np.where(zero, dtype.type(1), b)
    rest = np.fmod(a, divisor)
    return np.where(zero, np.zeros((), dtype) - dtype.type(1), rest)


def saturating_sum(a: Lanes, b: Lanes, subtract: bool) -> Lanes:
    """a + b or a - b, held within the type instead of wrapping round."""
    dtype = a.dtype
    limits = np.iinfo(dtype)
    result = a - b if subtract else a + b
    if dtype.kind == "u":
        return (
            np.where(a < b, dtype.type(0), result) if subtract else np.where(result < a, dtype.type(limits.max), result)
        )
    other = ~b if subtract else b
    overflow = ((a ^ result) & (other ^ result)) < 0
    return np.where(overflow, np.where(a < 0, dtype.type(limits.min), dtype.type(limits.max)), result)


def _saturating(subtract: bool) -> Function:
    return lambda a, b: saturating_sum(a, b, subtract)


def _sum(words: Modifiers) -> Operation:
    """add, sub."""
    if words.flag("cc"):
        return _carrying_sum(words, takes=False, gives=True)
    name = words.type((*_PLAIN, *_HALVES))
    saturate = words.flag("sat")
    words.finish()
    if name in _HALVES:
        plain = np.subtract if words.mnemonic == "sub" else np.add
        function = _saturating(words.mnemonic == "sub") if saturate else plain
        return Operation((U32, U32), (U32,), by_halves(function, _HALVES[name]))
    dtype = INTEGERS[name]
    if saturate:
        return Operation((dtype, dtype), (dtype,), _saturating(words.mnemonic == "sub"))
    return from_expression((dtype, dtype), dtype, _SUMS[words.mnemonic])


def _with_carry(words: Modifiers) -> Operation:
    """addc, subc."""
    return _carrying_sum(words, takes=True, gives=words.flag("cc"))


def add_carry(a: Lanes, b: Lanes, carry: Lanes) -> tuple[Lanes, Lanes]:
    """a + b + carry of unsigned words, and whether that was more than they hold."""
    dtype = a.dtype
    partial = a + b
    result = partial + carry.astype(dtype)
    return result, (partial < a) | (result < partial)


def subtract_borrow(a: Lanes, b: Lanes, borrow: Lanes) -> tuple[Lanes, Lanes]:
    """a - b - borrow of unsigned words, and whether that was less than zero."""
    dtype = a.dtype
    partial = a - b
    return partial - borrow.astype(dtype), (a < b) | ((partial == 0) & borrow)


_NO_CARRY = np.bool_(False)


def _carrying_sum(words: Modifiers, *, takes: bool, gives: bool) -> Operation:
    dtype = INTEGERS[words.type(("u32", "s32", "u64", "s64"))]
    words.finish()
    step = add_carry if words.mnemonic.startswith("add") else subtract_borrow
    word = _unsigned(dtype)

    def function(a: Lanes, b: Lanes, carry: Lanes = _NO_CARRY) -> Any:
        result, flag = step(a.view(word), b.view(word), carry)
        return (result.view(dtype), flag) if gives else result.view(dtype)

    return _carried(function, (dtype, dtype), dtype, takes=takes, gives=gives)


def _carried(
    function: Function, inputs: tuple[np.dtype[Any], ...], output: np.dtype[Any], *, takes: bool, gives: bool
) -> Operation:
    return Operation(
        (*inputs, BOOL) if takes else inputs,
        (output, BOOL) if gives else (output,),
        function,
        carry="inout" if takes and gives else "in" if takes else "out" if gives else None,
    )


def _product(words: Modifiers) -> Operation:
    """mul.lo, mul.hi, mul.wide."""
    dtype = INTEGERS[words.type(_PLAIN)]
    part = words.require(("lo", "hi", "wide"), "part of the product")
    words.finish()
    if part == "lo":
        return from_expression((dtype, dtype), dtype, "{0} * {1}")
    if part == "hi":
        return Operation((dtype, dtype), (dtype,), multiply_high)
    if dtype.itemsize == 8:
        raise ValueError(f"{words.opcode}: .wide has no 64-bit form")
    wide = _wider(dtype)
    return from_expression((dtype, dtype), wide, f"np.multiply({{0}}, {{1}}, dtype=np.{wide.name})")


def _product_sum(words: Modifiers) -> Operation:
    """mad.lo, mad.hi, mad.wide, with .sat or .cc."""
    return _multiply_add(words, takes=False)


def _product_sum_with_carry(words: Modifiers) -> Operation:
    """madc."""
    return _multiply_add(words, takes=True)


def _multiply_add(words: Modifiers, *, takes: bool) -> Operation:
    dtype = INTEGERS[words.type(_PLAIN)]
    part = words.require(("lo", "hi", "wide"), "part of the product")
    saturate, gives = words.flag("sat"), words.flag("cc")
    words.finish()
    multiply = np.multiply if part == "lo" else multiply_high
    if takes or gives:
        return _carrying_product(words, dtype, multiply, takes=takes, gives=gives)
    if saturate:
        if part != "hi" or dtype != S32:
            raise ValueError(f"{words.opcode}: .sat is for mad.hi.s32")
        return Operation((S32, S32, S32), (S32,), lambda a, b, c: saturating_sum(multiply_high(a, b), c, False))
    if part == "lo":
        return from_expression((dtype, dtype, dtype), dtype, "{0} * {1} + {2}")
    if part == "hi":
        return Operation((dtype, dtype, dtype), (dtype,), lambda a, b, c: multiply_high(a, b) + c)
    if dtype.itemsize == 8:
        raise ValueError(f"{words.opcode}: .wide has no 64-bit form")
    wide = _wider(dtype)
    return from_expression((dtype, dtype, wide), wide, f"np.multiply({{0}}, {{1}}, dtype=np.{wide.name}) + {{2}}")


def _carrying_product(
    words: Modifiers, dtype: np.dtype[Any], multiply: Function, *, takes: bool, gives: bool
) -> Operation:
    if dtype.itemsize < 4:
        raise ValueError(f"{words.opcode}: the carry flag is for 32 and 64 bits")
    word = _unsigned(dtype)

    def function(a: Lanes, b: Lanes, c: Lanes, carry: Lanes = _NO_CARRY) -> Any:
        result, flag = add_carry(multiply(a, b).view(word), c.view(word), carry)
        return (result.view(dtype), flag) if gives else result.view(dtype)

    return _carried(function, (dtype, dtype, dtype), dtype, takes=takes, gives=gives)


def _product24(words: Modifiers) -> Operation:
    """mul24, mad24: the low 24 bits multiplied; of the 48-bit product .hi is bits 16 to 47 and .lo bits 0 to 31."""
    name = words.type(("u32", "s32"))
    high = words.require(("lo", "hi"), "part of the product") == "hi"
    saturate = words.flag("sat")
    words.finish()
    dtype = INTEGERS[name]
    wide = _wider(dtype)
    eight, part = dtype.type(8), wide.type(16 if high else 0)

    def multiply(a: Lanes, b: Lanes) -> Lanes:
        x, y = ((value << eight) >> eight for value in (a, b))
        return ((x.astype(wide) * y.astype(wide)) >> part).astype(dtype)

    if words.mnemonic == "mul24":
        return Operation((dtype, dtype), (dtype,), multiply)
    if saturate:
        return Operation((dtype,) * 3, (dtype,), lambda a, b, c: saturating_sum(multiply(a, b), c, False))
    return Operation((dtype,) * 3, (dtype,), lambda a, b, c: multiply(a, b) + c)


def _quotient(words: Modifiers) -> Operation:
    """div, rem."""
    dtype = INTEGERS[words.type(_PLAIN)]
    words.finish()
    return Operation((dtype, dtype), (dtype,), _divide if words.mnemonic == "div" else _remainder)


def _sum_of_differences(words: Modifiers) -> Operation:
    """sad."""
    dtype = INTEGERS[words.type(_PLAIN)]
    words.finish()
    return Operation((dtype,) * 3, (dtype,), lambda a, b, c: c + np.where(a < b, b - a, a - b))


def _sign(words: Modifiers) -> Operation:
    """abs, neg."""
    dtype = INTEGERS[words.type(("s16", "s32", "s64"))]
    words.finish()
    return from_expression((dtype,), dtype, "np.abs({0})" if words.mnemonic == "abs" else "-{0}")


def _extremum(words: Modifiers) -> Operation:
    """min, max."""
    name = words.type((*_PLAIN, *_HALVES))
    relu = words.flag("relu")
    words.finish()
    if relu and name not in ("s32", "s16x2"):
        raise ValueError(f"{words.opcode}: .relu is for s32 and s16x2")
    choose = "np.minimum({0}, {1})" if words.mnemonic == "min" else "np.maximum({0}, {1})"
    dtype = _HALVES.get(name) or INTEGERS[name]
    operation = from_expression((dtype, dtype), dtype, f"np.maximum({choose}, np.{dtype.name}(0))" if relu else choose)
    if name in _HALVES:
        return Operation((U32, U32), (U32,), by_halves(operation.function, dtype))
    return operation


def _fields(word: Lanes, width: int, signed: bool) -> list[Lanes]:
    """The fields of `width` bits of 32-bit words, the lowest first, as signed 64-bit integers."""
    dtype = np.dtype(f"{'i' if signed else 'u'}{width // 8}")
    unsigned = _unsigned(dtype)
    return [
        (word.view(U32) >> np.uint32(shift)).astype(unsigned).view(dtype).astype(np.int64)
        for shift in range(0, 32, width)
    ]


def _dot_product(words: Modifiers) -> Operation:
    """dp4a, dp2a."""
    b_type, a_type = words.type(("u32", "s32")), words.type(("u32", "s32"))
    width, first = 8, 0
    if words.mnemonic == "dp2a":
        width, first = 16, 2 if words.require(("lo", "hi"), "half of b") == "hi" else 0
    words.finish()
    result = U32 if a_type == b_type == "u32" else S32

    def function(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
        left, right = _fields(a, width, a_type == "s32"), _fields(b, 8, b_type == "s32")[first:]
        total = c.astype(np.int64)
        for x, y in zip(left, right, strict=False):
            total = total + x * y
        return total.astype(U32).view(result)

    return Operation((INTEGERS[a_type], INTEGERS[b_type], result), (result,), function)


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
