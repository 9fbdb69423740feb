"""Comparison and selection (PTX ISA 9.7.6, 9.7.7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from neutrino.emulator.arithmetic.formats import decode, flush, halves_of
from neutrino.emulator.arithmetic.integers import join_halves
from neutrino.emulator.arithmetic.operation import (
    BITS,
    BOOL,
    FLOATS,
    INTEGERS,
    PACKED,
    REGISTERS,
    U32,
    Function,
    Lanes,
    Modifiers,
    Operation,
    from_expression,
)

_ORDERS = {
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
}
_UNSIGNED_ORDERS = {"lo": _ORDERS["lt"], "ls": _ORDERS["le"], "hi": _ORDERS["gt"], "hs": _ORDERS["ge"]}
# Each comparison is false where an operand is NaN, but those with a u, which are true.
_FLOAT_ORDERS = {
    **_ORDERS,
    "ne": "({0} < {1}) | ({0} > {1})",
    "equ": "~(({0} < {1}) | ({0} > {1}))",
    "neu": "{0} != {1}",
    "ltu": "~({0} >= {1})",
    "leu": "~({0} > {1})",
    "gtu": "~({0} <= {1})",
    "geu": "~({0} < {1})",
    "num": "({0} == {0}) & ({1} == {1})",
    "nan": "({0} != {0}) | ({1} != {1})",
}
_COMBINE = {"and": "&", "or": "|", "xor": "^"}
_FLOAT_TYPES = ("f16", "bf16", "f32", "f64", "f16x2", "bf16x2")
_INTEGER_TYPES = ("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64")


def _comparison(words: Modifiers, name: str) -> tuple[str, bool]:
    """The expression of the comparison among the modifiers, and whether subnormal operands count as zero."""
    if name in _FLOAT_TYPES:
        return _FLOAT_ORDERS[words.require(_FLOAT_ORDERS, "comparison")], words.flag("ftz")
    if name in BITS:
        return _ORDERS[words.require(("eq", "ne"), "comparison")], False
    orders = _ORDERS if name.startswith("s") else {**_ORDERS, **_UNSIGNED_ORDERS}
    return orders[words.require(orders, "comparison")], False


def _comparator(name: str, expression: str, ftz: bool) -> tuple[Operation, bool]:
    """The comparison of two scalars of the PTX type `name`, and whether its expression reads registers as they are."""
    dtype = REGISTERS[name]
    plain = from_expression((dtype, dtype), BOOL, expression)
    if name != "bf16" and not ftz:
        return plain, True
    compare = plain.function

    def function(a: Lanes, b: Lanes) -> Lanes:
        x, y = decode(a, name), decode(b, name)
        return compare(flush(x, name), flush(y, name)) if ftz else compare(x, y)

    return Operation((dtype, dtype), (BOOL,), function), False


def _set_predicate(words: Modifiers) -> Operation:
    """setp: with a second destination also of the opposite comparison; with a BoolOp both combined with a predicate."""
    name = words.type((*_INTEGER_TYPES, *_FLOAT_TYPES))
    expression, ftz = _comparison(words, name)
    combine = words.choose(_COMBINE)
    words.finish()
    dtype = REGISTERS[name]
    inputs = (dtype, dtype) if combine is None else (dtype, dtype, BOOL)
    if name.endswith("x2"):
        return _set_two(name, expression, ftz, combine, words.destinations)
    comparator, plain = _comparator(name, expression, ftz)
    if plain and words.destinations == 1:
        if combine is None:
            return comparator
        return from_expression(inputs, BOOL, f"({expression}) {_COMBINE[combine]} {{2}}")
    compare = comparator.function
    join = _joined(combine)

    def function(a: Lanes, b: Lanes, *predicate: Lanes) -> Any:
        truth = compare(a, b)
        first = join(truth, *predicate)
        return (first, join(np.logical_not(truth), *predicate)) if words.destinations == 2 else first

    return Operation(inputs, (BOOL,) * words.destinations, function)


def _joined(combine: str | None) -> Function:
    if combine is None:
        return lambda truth: truth
    return from_expression((BOOL, BOOL), BOOL, f"{{0}} {_COMBINE[combine]} {{1}}").function


def _set_two(name: str, expression: str, ftz: bool, combine: str | None, destinations: int) -> Operation:
    """setp of two packed values: the first predicate for the low one, the second for the high one."""
    compare = _comparator(name.removesuffix("x2"), expression, ftz)[0].function
    join = _joined(combine)

    def function(a: Lanes, b: Lanes, *predicate: Lanes) -> Any:
        results = tuple(
            join(compare(x, y), *predicate) for x, y in zip(halves_of(a, name), halves_of(b, name), strict=True)
        )
        return results if destinations == 2 else results[0]

    inputs = (U32, U32) if combine is None else (U32, U32, BOOL)
    return Operation(inputs, (BOOL,) * destinations, function)


# What `set` writes for true: all bits, or one.
_TRUTHS: Mapping[str, Any] = {
    "u16": np.uint16(0xFFFF),
    "s16": np.int16(-1),
    "u32": np.uint32(0xFFFFFFFF),
    "s32": np.int32(-1),
    "f32": np.float32(1),
    "f16": np.float16(1),
    "bf16": np.uint16(0x3F80),
    "f16x2": np.uint16(0x3C00),
    "bf16x2": np.uint16(0x3F80),
}


def _set(words: Modifiers) -> Operation:
    """set."""
    name = words.type((*_INTEGER_TYPES, *_FLOAT_TYPES))
    result = words.type(_TRUTHS)
    expression, ftz = _comparison(words, name)
    combine = words.choose(_COMBINE)
    words.finish()
    join = _joined(combine)
    truth = _TRUTHS[result]
    inputs = (REGISTERS[name],) * 2 + ((BOOL,) if combine else ())
    if name.endswith("x2"):
        compare = _comparator(name.removesuffix("x2"), expression, ftz)[0].function
        half = truth if result.endswith("x2") else np.uint16(0xFFFF)

        def function(a: Lanes, b: Lanes, *predicate: Lanes) -> Lanes:
            low, high = (
                np.where(join(compare(x, y), *predicate), half, np.uint16(0))
                for x, y in zip(halves_of(a, name), halves_of(b, name), strict=True)
            )
            return join_halves(low, high).view(REGISTERS[result])

        return Operation(inputs, (REGISTERS[result],), function)
    compare = _comparator(name, expression, ftz)[0].function
    zero = truth.dtype.type(0)
    return Operation(
        inputs, (REGISTERS[result],), lambda a, b, *predicate: np.where(join(compare(a, b), *predicate), truth, zero)
    )


def _select(words: Modifiers) -> Operation:
    """selp."""
    dtype = {**BITS, **INTEGERS, **FLOATS, **PACKED}[words.type((*_INTEGER_TYPES, "f16", "f32", "f64", *PACKED))]
    words.finish()
    return from_expression((dtype, dtype, BOOL), dtype, "np.where({2}, {0}, {1})")


def _select_by_sign(words: Modifiers) -> Operation:
    """slct: a where c is at least zero, b where it is less or NaN."""
    by = words.type(("s32", "f32"))
    dtype = REGISTERS[words.type((*_INTEGER_TYPES, "f32", "f64"))]
    ftz = words.flag("ftz")
    words.finish()
    if ftz and by == "f32":
        return Operation((dtype, dtype, FLOATS["f32"]), (dtype,), lambda a, b, c: np.where(flush(c, "f32") >= 0, a, b))
    return from_expression((dtype, dtype, REGISTERS[by]), dtype, "np.where({2} >= 0, {0}, {1})")


BUILDERS: Mapping[str, Callable[[Modifiers], Operation]] = {
    "set": _set,
    "setp": _set_predicate,
    "selp": _select,
    "slct": _select_by_sign,
}
