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
# Comparisons are false if an operand is NaN, except those with a u (unordered), which are true.
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


def _comparison(modifiers: Modifiers, name: str) -> tuple[str, bool]:
    """Take the comparison of values of the PTX type `name` from the modifiers.

    Return its NumPy expression, such as "{0} < {1}", and whether subnormal operands count as zero (.ftz). Raise
    ValueError if the modifiers have no comparison that the type has.
    """
    if name in _FLOAT_TYPES:
        return _FLOAT_ORDERS[modifiers.take_required(_FLOAT_ORDERS, "comparison")], modifiers.take_flag("ftz")
    if name in BITS:
        # Untyped words have no order.
        return _ORDERS[modifiers.take_required(("eq", "ne"), "comparison")], False
    orders = _ORDERS if name.startswith("s") else {**_ORDERS, **_UNSIGNED_ORDERS}
    return orders[modifiers.take_required(orders, "comparison")], False


def _comparator(name: str, expression: str, ftz: bool) -> tuple[Operation, bool]:
    """Return the operation that compares two registers of the scalar type `name` by an expression of `_comparison`.

    The second result says whether the expression applies to the registers directly, so that generated code can contain
    it; it does not if they must be decoded (bf16) or flushed (`ftz`: subnormal operands count as zero) first.
    """
    dtype = REGISTERS[name]
    direct = from_expression((dtype, dtype), BOOL, expression)
    if name != "bf16" and not ftz:
        return direct, True
    compare_values = direct.function

    def compare(a: Lanes, b: Lanes) -> Lanes:
        """Compare two registers by their values: as they are, or with subnormal ones as zero (if `ftz`)."""
        x, y = decode(a, name), decode(b, name)
        return compare_values(flush(x, name), flush(y, name)) if ftz else compare_values(x, y)

    return Operation((dtype, dtype), (BOOL,), compare), False


def _set_predicate(modifiers: Modifiers) -> Operation:
    """Build the operation of `setp`: a comparison as a predicate.

    A second destination gets the opposite of the comparison. With .and, .or or .xor, both are combined with a predicate
    operand.
    """
    name = modifiers.take_type((*_INTEGER_TYPES, *_FLOAT_TYPES))
    expression, ftz = _comparison(modifiers, name)
    combine = modifiers.take_any(_COMBINE)
    modifiers.check_all_taken()
    dtype = REGISTERS[name]
    inputs = (dtype, dtype) if combine is None else (dtype, dtype, BOOL)
    if name.endswith("x2"):
        return _set_predicates_of_pairs(name, expression, ftz, combine, modifiers.destinations)
    comparator, is_expression = _comparator(name, expression, ftz)
    # If one expression does it all, generated code can contain it, which saves a function call.
    if is_expression and modifiers.destinations == 1:
        if combine is None:
            return comparator
        return from_expression(inputs, BOOL, f"({expression}) {_COMBINE[combine]} {{2}}")
    compare = comparator.function
    combine_with = _combiner(combine)

    def set_predicates(a: Lanes, b: Lanes, *predicate: Lanes) -> Any:
        """Compare a with b; return the predicate, and its opposite if there is a second destination.

        Both are combined with `predicate`, if the instruction has this operand.
        """
        truth = compare(a, b)
        first = combine_with(truth, *predicate)
        return (first, combine_with(np.logical_not(truth), *predicate)) if modifiers.destinations == 2 else first

    return Operation(inputs, (BOOL,) * modifiers.destinations, set_predicates)


def _combiner(combine: str | None) -> Function:
    """Return the function that combines a comparison's result with a predicate by "and", "or" or "xor".

    For None it takes no predicate and returns the result as it is.
    """
    if combine is None:
        return lambda truth: truth
    return from_expression((BOOL, BOOL), BOOL, f"{{0}} {_COMBINE[combine]} {{1}}").function


def _set_predicates_of_pairs(
    name: str, expression: str, ftz: bool, combine: str | None, destinations: int
) -> Operation:
    """Build the operation of `setp` on registers with two packed values; name: f16x2 or bf16x2.

    The first predicate is that of the low values, the second, if there is one, that of the high values. The other
    parameters are what `_set_predicate` took from the modifiers: the comparison (NumPy expression, and .ftz), the
    logical operation with a predicate operand or None, and the number of predicates to write.
    """
    comparator, _ = _comparator(name.removesuffix("x2"), expression, ftz)
    compare = comparator.function
    combine_with = _combiner(combine)

    def set_predicates(a: Lanes, b: Lanes, *predicate: Lanes) -> Any:
        """Compare both halves of packed registers; return one predicate per destination, that of the low values first.

        Each is combined with `predicate`, if the instruction has this operand.
        """
        results = tuple(
            combine_with(compare(x, y), *predicate) for x, y in zip(halves_of(a, name), halves_of(b, name), strict=True)
        )
        return results if destinations == 2 else results[0]

    inputs = (U32, U32) if combine is None else (U32, U32, BOOL)
    return Operation(inputs, (BOOL,) * destinations, set_predicates)


# The value that `set` writes for true, by result type: all bits set for integers, 1.0 for floats.
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


def _set(modifiers: Modifiers) -> Operation:
    """Build the operation of `set`: a comparison as an integer with all bits set or a float 1.0, else zero.

    With .and, .or or .xor the comparison is combined with a predicate operand. Packed values are compared pair by pair,
    each giving one half of the result.
    """
    # take_type takes the last type that is left: first that of the operands, then that of the result before it.
    name = modifiers.take_type((*_INTEGER_TYPES, *_FLOAT_TYPES))
    result_name = modifiers.take_type(_TRUTHS)
    expression, ftz = _comparison(modifiers, name)
    combine = modifiers.take_any(_COMBINE)
    modifiers.check_all_taken()
    combine_with = _combiner(combine)
    truth = _TRUTHS[result_name]
    result_type = REGISTERS[result_name]
    inputs = (REGISTERS[name],) * 2 + ((BOOL,) if combine else ())
    comparator, _ = _comparator(name.removesuffix("x2"), expression, ftz)
    compare = comparator.function

    if name.endswith("x2"):
        # A packed float result has 1.0 or 0 per half. An integer result has 16 set bits for each true comparison.
        half_truth = truth if result_name.endswith("x2") else np.uint16(0xFFFF)

        def set_pair(a: Lanes, b: Lanes, *predicate: Lanes) -> Lanes:
            """Compare both halves of packed registers; each half of the result is `half_truth` or zero.

            The comparisons are combined with `predicate`, if the instruction has this operand.
            """
            low, high = (
                np.where(combine_with(compare(x, y), *predicate), half_truth, np.uint16(0))
                for x, y in zip(halves_of(a, name), halves_of(b, name), strict=True)
            )
            return join_halves(low, high).view(result_type)

        return Operation(inputs, (result_type,), set_pair)

    zero = truth.dtype.type(0)
    return Operation(
        inputs,
        (result_type,),
        lambda a, b, *predicate: np.where(combine_with(compare(a, b), *predicate), truth, zero),
    )


def _select(modifiers: Modifiers) -> Operation:
    """Build the operation of `selp`: a if the predicate c is true, else b."""
    name = modifiers.take_type((*_INTEGER_TYPES, "f16", "f32", "f64", *PACKED))
    dtype = {**BITS, **INTEGERS, **FLOATS, **PACKED}[name]
    modifiers.check_all_taken()
    return from_expression((dtype, dtype, BOOL), dtype, "np.where({2}, {0}, {1})")


def _select_by_sign(modifiers: Modifiers) -> Operation:
    """Build the operation of `slct`: a where c is at least zero, b where c is negative or NaN."""
    c_name = modifiers.take_type(("s32", "f32"))
    dtype = REGISTERS[modifiers.take_type((*_INTEGER_TYPES, "f32", "f64"))]
    ftz = modifiers.take_flag("ftz")
    modifiers.check_all_taken()
    if ftz and c_name == "f32":
        # A negative subnormal c becomes -0, which is at least zero.
        return Operation((dtype, dtype, FLOATS["f32"]), (dtype,), lambda a, b, c: np.where(flush(c, "f32") >= 0, a, b))
    return from_expression((dtype, dtype, REGISTERS[c_name]), dtype, "np.where({2} >= 0, {0}, {1})")


BUILDERS: Mapping[str, Callable[[Modifiers], Operation]] = {
    "set": _set,
    "setp": _set_predicate,
    "selp": _select,
    "slct": _select_by_sign,
}
