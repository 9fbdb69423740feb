"""Floating-point arithmetic that is rounded exactly (PTX ISA 9.7.3, 9.7.4, 9.7.5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from neutrino.emulator.arithmetic import double
from neutrino.emulator.arithmetic.approximate import BUILDERS as APPROXIMATE
from neutrino.emulator.arithmetic.formats import (
    canonical,
    decode,
    flush,
    flush_result,
    halves_of,
    join_values,
    to_bf16,
    to_register,
)
from neutrino.emulator.arithmetic.operation import (
    BOOL,
    F32,
    F64,
    REGISTERS,
    U16,
    Function,
    Lanes,
    Modifiers,
    Operation,
    from_expression,
    in_blocks,
)
from neutrino.emulator.arithmetic.rounding import (
    MODES,
    product_sum,
    signed_zero_sum,
    sum_to_odd,
    to_f32,
)

_SCALARS = ("f16", "bf16", "f32", "f64")
_HALVES = ("f16x2", "bf16x2")
_PAIRS = {"f16x2": "f16", "bf16x2": "bf16", "f32x2": "f32"}


def _add_f64(mode: str) -> Function:
    def add(a: Lanes, b: Lanes) -> Lanes:
        total = sum_to_odd(a, b)
        return signed_zero_sum(a, b, total) if mode == "rm" else total

    return add


def _multiply_add_f64(mode: str) -> Function:
    """a * b + c of values of at most 24 bits, rounded to odd: their products are exact in float64."""
    add = _add_f64(mode)
    return lambda a, b, c: add(a * b, c)


def _arithmetic(kind: str, name: str, mode: str) -> Function:
    """`kind` (add, sub, mul, fma) of registers of the scalar type `name`, rounded by `mode`."""
    if name == "f64":
        wide: dict[str, Function] = {
            "add": lambda a, b: double.add(a, b, mode),
            "sub": lambda a, b: double.add(a, np.where(np.isnan(b), b, -b), mode),
            "mul": lambda a, b: double.multiply(a, b, mode),
            "fma": lambda a, b, c: double.multiply_add(a, b, c, mode),
        }
        return wide[kind]
    if name == "f32" and mode == "rn":
        single: dict[str, Function] = {
            "add": lambda a, b: canonical(a + b),
            "sub": lambda a, b: canonical(a - b),
            "mul": lambda a, b: canonical(a * b),
            "fma": lambda a, b, c: canonical(product_sum(a, b, c)),
        }
        return single[kind]
    if name == "f16" and kind == "fma":
        return lambda a, b, c: canonical(product_sum(a, b, c))
    if name == "f16":
        # float32 has more than twice float16's bits, so that one rounding there and one back are as one.
        plain = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[kind]
        return lambda a, b: canonical(plain(a, b, dtype=np.float32).astype(np.float16))
    if name == "bf16" and kind != "fma":
        # The same holds of bf16; what products lose below float32's smallest number decides no rounding.
        plain = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[kind]
        return lambda a, b: to_bf16(plain(decode(a, name), decode(b, name)))
    formulas: dict[str, Function] = {
        "add": _add_f64(mode),
        "sub": lambda a, b: _add_f64(mode)(a, -b),
        "mul": np.multiply,
        "fma": _multiply_add_f64(mode),
    }
    exact = formulas[kind]

    def function(*operands: Lanes) -> Lanes:
        return to_register(exact(*(decode(operand, name).astype(np.float64) for operand in operands)), name, mode)

    return function


def saturate(value: Lanes) -> Lanes:
    """float values held between 0 and 1; NaN gives 0 (.sat)."""
    zero, one = value.dtype.type(0), value.dtype.type(1)
    return np.where(value > zero, np.minimum(value, one), zero)


def rectify(value: Lanes) -> Lanes:
    """float values, zero for negative ones; NaN stays, in its canonical form (.relu)."""
    return canonical(np.where(value <= 0, value.dtype.type(0), value))


def finish(value: Lanes, name: str, after: Callable[[Lanes], Lanes]) -> Lanes:
    """`after` applied to the values of registers of the type `name`, back in such registers."""
    if name != "bf16":
        return after(value)
    return (np.asarray(after(decode(value, name))).view(np.uint32) >> np.uint32(16)).astype(U16)


@dataclass(frozen=True)
class Rounded:
    """A function of registers of one scalar type.

    exact: where its results can round up to the smallest normal number, the function of float64 values that gives them
    before they are rounded by `mode`.
    """

    function: Function
    exact: Function | None = None
    mode: str = "rn"


def dressed(rounded: Rounded, name: str, *, ftz: bool, after: Function | None) -> Function:
    """The function for registers of the scalar type `name`, subnormal numbers as zero, `after` applied at the end."""
    function, exact = rounded.function, rounded.exact
    if not ftz and after is None:
        return function

    def flushed(*operands: Lanes) -> Lanes:
        operands = tuple(finish(operand, name, lambda value: flush(value, name)) for operand in operands)
        result = function(*operands)
        if exact is None or name == "bf16":
            return finish(result, name, lambda value: flush(value, name))
        wide = (operand.astype(np.float64) for operand in operands)
        return flush_result(result, name, lambda: exact(*wide), rounded.mode)

    inner = flushed if ftz else function
    if after is None:
        return inner
    return lambda *operands: finish(inner(*operands), name, after)


def pairwise(function: Function, name: str) -> Function:
    """`function` of the two values in registers of the packed type `name`, each apart."""

    def apply(*operands: Lanes) -> Lanes:
        pairs = [halves_of(operand, name) for operand in operands]
        low, high = (np.asarray(function(*(pair[index] for pair in pairs))) for index in range(2))
        return join_values(low, high)

    return apply


def _take_after(modifiers: Modifiers) -> Function | None:
    if modifiers.take_flag("sat"):
        return saturate
    return rectify if modifiers.take_flag("relu") else None


def build(modifiers: Modifiers, name: str, count: int, rounded: Rounded) -> Operation:
    """The operation of `count` operands of the type `name`, from its function of scalars and the modifiers left."""
    scalar = _PAIRS.get(name, name)
    ftz, after = modifiers.take_flag("ftz"), _take_after(modifiers)
    modifiers.check_all_taken()
    if ftz and scalar == "f64":
        raise ValueError(f"{modifiers.opcode}: .ftz is not for f64")
    function = dressed(rounded, scalar, ftz=ftz, after=after)
    dtype = REGISTERS[name]
    return Operation((dtype,) * count, (dtype,), pairwise(function, name) if name in _PAIRS else function)


def _rounded(modifiers: Modifiers) -> Operation:
    """add, sub, mul, fma, mad."""
    kind = "fma" if modifiers.mnemonic == "mad" else modifiers.mnemonic
    name = modifiers.take_type((*_SCALARS, *_PAIRS))
    # From PTX 8.6 on sm_100: f32 arithmetic with the first operands in half precision.
    narrow = modifiers.take_any(("f16", "bf16"))
    if narrow is None and modifiers.peek_last() == "f32" and name in ("f16", "bf16"):
        narrow, name = name, modifiers.take_type(("f32",))
    mode = modifiers.take_any(MODES) or "rn"
    if mode != "rn" and _PAIRS.get(name, name) in ("f16", "bf16"):
        raise ValueError(f"{modifiers.opcode}: .{mode} is not for {name}")
    function = _arithmetic(kind, _PAIRS.get(name, name), mode)
    count = 3 if kind == "fma" else 2
    if kind == "fma" or mode != "rn":
        function = in_blocks(function)
    if narrow is None:
        exact: dict[str, Function] = {"mul": np.multiply, "fma": _multiply_add_f64(mode)}
        return build(modifiers, name, count, Rounded(function, exact.get(kind), mode))
    after = _take_after(modifiers)
    modifiers.check_all_taken()
    wide = dressed(Rounded(function), "f32", ftz=False, after=after)
    first = 2 if kind == "fma" else 1

    def mixed(*operands: Lanes) -> Lanes:
        narrowed = (decode(operand, narrow).astype(np.float32) for operand in operands[:first])
        return wide(*narrowed, *operands[first:])

    return Operation((REGISTERS[narrow],) * first + (F32,), (F32,), mixed)


def _divide_f32(mode: str) -> Function:
    # A quotient or root of two 24-bit numbers is never so near to a 24-bit number, nor to the middle of two, that the
    # first rounding to 53 bits would reach it.
    return lambda a, b: canonical(to_f32(np.divide(a, b, dtype=np.float64), mode))


def _quotient(modifiers: Modifiers) -> Operation:
    """div, rcp, sqrt with a rounding mode; div without one is IEEE's to nearest."""
    if modifiers.mnemonic in APPROXIMATE and (operation := _approximation(modifiers)):
        return operation
    name = modifiers.take_type(("f32", "f64"))
    mode = modifiers.take_any(MODES) or "rn"
    if name == "f64":
        one = np.float64(1)
        functions: dict[str, Function] = {
            "div": lambda a, b: double.divide(a, b, mode),
            "rcp": lambda a: double.settle_nan(double.divide(one, a, mode), a),
            "sqrt": lambda a: double.square_root(a, mode),
        }
    else:
        divide, unit = _divide_f32(mode), np.float32(1)
        functions = {
            "div": divide,
            "rcp": lambda a: divide(unit, a),
            "sqrt": lambda a: canonical(to_f32(np.sqrt(a, dtype=np.float64), mode)),
        }
    exact: dict[str, Function] = {"div": np.divide, "rcp": np.reciprocal}
    rounded = Rounded(functions[modifiers.mnemonic], exact.get(modifiers.mnemonic), mode)
    return build(modifiers, name, 2 if modifiers.mnemonic == "div" else 1, rounded)


def _approximation(modifiers: Modifiers) -> Operation | None:
    form = modifiers.take_any(("approx", "full"))
    return None if form is None else _built_approximation(modifiers, form)


def _built_approximation(modifiers: Modifiers, form: str) -> Operation:
    name = modifiers.take_type((*_SCALARS, *_PAIRS))
    function, count = APPROXIMATE[modifiers.mnemonic](modifiers, _PAIRS.get(name, name), form)
    return build(modifiers, name, count, Rounded(function))


def _approximate(modifiers: Modifiers) -> Operation:
    """rsqrt, sin, cos, lg2, ex2, tanh."""
    return _built_approximation(modifiers, modifiers.take_required(("approx",), "form"))


def _choose(kind: str, name: str, propagate: bool) -> Function:
    """The smaller or larger of registers of the scalar type `name`; minus zero is below zero."""
    least = kind == "min"
    pick, combine = (np.fmin, np.bitwise_or) if least else (np.fmax, np.bitwise_and)
    dtype = REGISTERS[name]
    word = np.dtype(f"u{dtype.itemsize}")

    def choose(a: Lanes, b: Lanes) -> Lanes:
        if name == "bf16":
            x, y = decode(a, name), decode(b, name)
            return (np.asarray(choose_values(x, y, np.dtype(np.uint32))).view(np.uint32) >> np.uint32(16)).astype(U16)
        return choose_values(a, b, word)

    def choose_values(a: Lanes, b: Lanes, word: np.dtype[Any]) -> Lanes:
        result = pick(a, b)
        if propagate:
            result = np.where(np.isnan(a) | np.isnan(b), result.dtype.type(np.nan), result)
        zero = (a == 0) & (b == 0)
        if zero.any():
            bits = combine(np.asarray(a).view(word), np.asarray(b).view(word))
            result = np.where(zero, bits, np.asarray(result).view(word)).view(result.dtype)
        return double.settle_nan(result, b, a) if result.dtype == F64 else canonical(result)

    return choose


def _extremum(modifiers: Modifiers) -> Operation:
    """min, max, of two or three."""
    name = modifiers.take_type((*_SCALARS, *_HALVES))
    scalar = _PAIRS.get(name, name)
    propagate = modifiers.take_flag("NaN")
    by_magnitude = modifiers.take_flag("xorsign")
    if by_magnitude and not modifiers.take_flag("abs"):
        raise ValueError(f"{modifiers.opcode}: .xorsign goes with .abs")
    choose = _choose(modifiers.mnemonic, scalar, propagate)
    absolute = False if by_magnitude else modifiers.take_flag("abs")
    count = modifiers.sources or 2
    function = choose
    if count == 3:
        clear = _sign_bits(scalar)[1]

        def function(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
            if absolute:
                a, b, c = clear(a), clear(b), clear(c)
            return choose(choose(a, b), c)

    elif absolute:
        raise ValueError(f"{modifiers.opcode}: .abs alone goes with three operands")
    if by_magnitude:
        function = _with_xored_sign(choose, scalar)
    return build(modifiers, name, count, Rounded(function))


def _sign_bits(name: str) -> tuple[Function, Function, Function]:
    """Functions of registers of the scalar type `name`: the sign bit alone, all but it, and one that joins both."""
    dtype = REGISTERS[name]
    word = np.dtype(f"u{dtype.itemsize}")
    sign = word.type(1 << (8 * dtype.itemsize - 1))
    return (
        lambda value: value.view(word) & sign,
        lambda value: (value.view(word) & ~sign).view(dtype),
        lambda bits, value: (np.asarray(value).view(word) | bits).view(dtype),
    )


def _with_xored_sign(choose: Function, name: str) -> Function:
    sign, clear, join = _sign_bits(name)

    def function(a: Lanes, b: Lanes) -> Lanes:
        result = choose(clear(a), clear(b))
        return np.where(_is_nan(result, name), result, join(sign(a) ^ sign(b), result))

    return function


def _is_nan(value: Lanes, name: str) -> Lanes:
    return np.isnan(decode(value, name))


def _sign(modifiers: Modifiers) -> Operation:
    """abs, neg, copysign."""
    kind = modifiers.mnemonic
    name = modifiers.take_type(("f32", "f64") if kind == "copysign" else (*_SCALARS, *_HALVES))
    scalar = _PAIRS.get(name, name)
    sign, clear, join = _sign_bits(scalar)
    if kind == "copysign":
        modifiers.check_all_taken()
        dtype = REGISTERS[name]
        return Operation((dtype, dtype), (dtype,), lambda a, b: join(sign(a), clear(b)))
    plain = clear if kind == "abs" else _negate(scalar)
    # The hardware adds a zero, so that NaN comes out as of an addition: of f64 with the sign that it had. What ptxas
    # makes of constants differs: there NaN of f32, f64 and f16x2 keeps its payload, and its sign is cleared or changed.
    if name == "f64":
        return build(modifiers, name, 1, Rounded(lambda value: double.settle_nan(plain(value), value)))
    return build(modifiers, name, 1, Rounded(lambda value: _with_canonical_nan(plain(value), scalar)))


def _with_canonical_nan(value: Lanes, name: str) -> Lanes:
    if name != "bf16":
        return canonical(value)
    nan = _is_nan(value, name)
    return np.where(nan, np.uint16(0x7FFF), value) if nan.any() else value


def _negate(name: str) -> Function:
    dtype = REGISTERS[name]
    word = np.dtype(f"u{dtype.itemsize}")
    sign = word.type(1 << (8 * dtype.itemsize - 1))
    return lambda value: (value.view(word) ^ sign).view(dtype)


# PTX ISA 9.7.3, testp. Zero is a normal number to an H200; to ptxas, where it folds constants, it is none.
_TESTS = {
    "finite": "np.isfinite({0})",
    "infinite": "np.isinf({0})",
    "number": "~np.isnan({0})",
    "notanumber": "np.isnan({0})",
    "normal": "np.isfinite({0}) & (({0} == 0) | (np.abs({0}) >= np.finfo({0}.dtype).tiny))",
    "subnormal": "({0} != 0) & (np.abs({0}) < np.finfo({0}.dtype).tiny)",
}


def _test(modifiers: Modifiers) -> Operation:
    """testp."""
    dtype = REGISTERS[modifiers.take_type(("f32", "f64"))]
    kind = modifiers.take_required(_TESTS, "test")
    modifiers.check_all_taken()
    return from_expression((dtype,), BOOL, _TESTS[kind])


BUILDERS: Mapping[str, Callable[[Modifiers], Operation]] = {
    "add": _rounded,
    "sub": _rounded,
    "mul": _rounded,
    "fma": _rounded,
    "mad": _rounded,
    "div": _quotient,
    "rcp": _quotient,
    "sqrt": _quotient,
    "rsqrt": _approximate,
    "sin": _approximate,
    "cos": _approximate,
    "lg2": _approximate,
    "ex2": _approximate,
    "tanh": _approximate,
    "min": _extremum,
    "max": _extremum,
    "abs": _sign,
    "neg": _sign,
    "copysign": _sign,
    "testp": _test,
}
