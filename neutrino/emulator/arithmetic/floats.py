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
    """Return the addition of float64 values, rounded to odd, so that the caller can round by `mode` to a narrower type.

    A zero sum has the sign that `mode` gives: rounding it again would not correct that.
    """

    def add(a: Lanes, b: Lanes) -> Lanes:
        """Return a + b rounded to odd; a zero sum has the sign that rounding downwards ("rm") gives, if
        `mode` is that.
        """
        total = sum_to_odd(a, b)
        return signed_zero_sum(a, b, total) if mode == "rm" else total

    return add


def _multiply_add_f64(mode: str) -> Function:
    """Return the function a * b + c of float64 values, rounded to odd as by `_add_f64`.

    The values must have at most 24 bits (f32 and narrower), so that the products are exact.
    """
    add = _add_f64(mode)
    return lambda a, b, c: add(a * b, c)


def _arithmetic(operation: str, name: str, mode: str) -> Function:
    """Return the function of `operation` ("add", "sub", "mul", "fma") on registers of the scalar type `name`.

    Its results are rounded once, by `mode` ("rn", "rz", "rm", "rp"; f16 and bf16 only "rn"). Where NumPy's arithmetic
    in some type does that, it is used, as it is faster; all others compute in float64 first.
    """
    if name == "f64":
        doubles: dict[str, Function] = {
            "add": lambda a, b: double.add(a, b, mode),
            # The result may be the NaN operand (see `double.add`), whose sign -b would flip.
            "sub": lambda a, b: double.add(a, np.where(np.isnan(b), b, -b), mode),
            "mul": lambda a, b: double.multiply(a, b, mode),
            "fma": lambda a, b, c: double.multiply_add(a, b, c, mode),
        }
        return doubles[operation]
    if name == "f32" and mode == "rn":
        singles: dict[str, Function] = {
            "add": lambda a, b: canonical(a + b),
            "sub": lambda a, b: canonical(a - b),
            "mul": lambda a, b: canonical(a * b),
            "fma": lambda a, b, c: canonical(product_sum(a, b, c)),
        }
        return singles[operation]
    if name == "f16" and operation == "fma":
        return lambda a, b, c: canonical(product_sum(a, b, c))
    if name == "f16":
        # float32 has more than twice the bits of float16 (24 and 11), so that rounding to it first changes no result.
        ufunc = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[operation]
        return lambda a, b: canonical(ufunc(a, b, dtype=np.float32).astype(np.float16))
    if name == "bf16" and operation != "fma":
        # The same holds for bf16, of 8 bits. (Products that float32's smallest numbers cannot hold exactly are below
        # half of the smallest bf16 number, and so round to zero anyway.)
        ufunc = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[operation]
        return lambda a, b: to_bf16(ufunc(decode(a, name), decode(b, name)))
    exact_in_f64: dict[str, Function] = {
        "add": _add_f64(mode),
        "sub": lambda a, b: _add_f64(mode)(a, -b),
        "mul": np.multiply,
        "fma": _multiply_add_f64(mode),
    }
    exact = exact_in_f64[operation]

    # Round the exact result, or the one rounded to odd, which gives what rounding the exact one would.
    def compute(*operands: Lanes) -> Lanes:
        """Apply `exact`, the function of float64 values, to registers of the type `name`; round its result once, by
        `mode`.
        """
        return to_register(exact(*(decode(operand, name).astype(np.float64) for operand in operands)), name, mode)

    return compute


def saturate(value: Lanes) -> Lanes:
    """Return floating-point values clamped to the range from 0 to 1; NaN becomes 0 (.sat)."""
    zero, one = value.dtype.type(0), value.dtype.type(1)
    return np.where(value > zero, np.minimum(value, one), zero)


def rectify(value: Lanes) -> Lanes:
    """Return floating-point values with negative ones replaced by 0; NaN becomes canonical (.relu)."""
    return canonical(np.where(value <= 0, value.dtype.type(0), value))


def finish(value: Lanes, name: str, transform: Callable[[Lanes], Lanes]) -> Lanes:
    """Apply `transform`, a function of floating-point values, to registers of the type `name`; return such registers.

    Only bf16 registers need a conversion, to float32 and back; the others are NumPy floats already. The function's
    results must be bf16 values, so that the lower half of each float32 is zero.
    """
    if name != "bf16":
        return transform(value)
    return (np.asarray(transform(decode(value, name))).view(np.uint32) >> np.uint32(16)).astype(U16)


@dataclass(frozen=True)
class Rounded:
    """A function of registers of one scalar type, and how its results are rounded.

    function: takes and returns registers; its results are rounded by `mode`. exact: the same function of float64
    values, which returns the results before that rounding (exact, or rounded to odd). It is for .ftz, to find the
    results that were subnormal and rounded up to the smallest normal number; None: the rounded results alone decide
    which are subnormal.
    """

    function: Function
    exact: Function | None = None
    mode: str = "rn"


def with_modifiers(rounded: Rounded, name: str, *, ftz: bool, after: Function | None) -> Function:
    """Return the function `rounded`, of registers of the scalar type `name`, extended by what its modifiers ask for.

    ftz: subnormal operands and results become zero. after: a function of floating-point values that is applied to the
    result (`saturate` for .sat, `rectify` for .relu), None for none.
    """
    function, exact = rounded.function, rounded.exact
    if not ftz and after is None:
        return function

    def flushed(*operands: Lanes) -> Lanes:
        """Apply the function to flushed operands (subnormal numbers as zero), and flush its result.

        name: the scalar type of all. exact: the same function of float64 values, without the final rounding; None if
        the rounded results decide what is subnormal.
        """
        operands = tuple(finish(operand, name, lambda value: flush(value, name)) for operand in operands)
        result = function(*operands)
        # `flush_result` takes f16 and f32 alone; of the bf16 instructions PTX has .ftz only on ex2, which has no
        # `exact`.
        if exact is None or name == "bf16":
            return finish(result, name, lambda value: flush(value, name))
        # Computed only if `flush_result` asks for it, which is rare.
        wide = (operand.astype(np.float64) for operand in operands)
        return flush_result(result, name, lambda: exact(*wide), rounded.mode)

    compute = flushed if ftz else function
    if after is None:
        return compute
    return lambda *operands: finish(compute(*operands), name, after)


def pairwise(function: Function, name: str) -> Function:
    """Wrap a function of scalar registers, so that it applies to each half of registers of the packed type `name`."""

    def apply(*operands: Lanes) -> Lanes:
        """Apply the function to the low and to the high halves of packed registers, and pack the two results."""
        pairs = [halves_of(operand, name) for operand in operands]
        low, high = (np.asarray(function(*(pair[index] for pair in pairs))) for index in range(2))
        return join_values(low, high)

    return apply


def _take_result_modifier(modifiers: Modifiers) -> Function | None:
    """Take .sat or .relu from the modifiers; return the function that it applies to results, None for neither."""
    if modifiers.take_flag("sat"):
        return saturate
    return rectify if modifiers.take_flag("relu") else None


def build(modifiers: Modifiers, name: str, count: int, rounded: Rounded) -> Operation:
    """Build the operation of `count` operands of the type `name`, scalar or packed, from its function of scalars.

    rounded: the function, without the modifiers .ftz, .sat and .relu; these are taken from `modifiers` and applied.
    Raise ValueError if others remain, or for .ftz of f64.
    """
    scalar = _PAIRS.get(name, name)
    ftz, after = modifiers.take_flag("ftz"), _take_result_modifier(modifiers)
    modifiers.check_all_taken()
    if ftz and scalar == "f64":
        raise ValueError(f"{modifiers.opcode}: .ftz is not for f64")
    function = with_modifiers(rounded, scalar, ftz=ftz, after=after)
    dtype = REGISTERS[name]
    return Operation((dtype,) * count, (dtype,), pairwise(function, name) if name in _PAIRS else function)


def _rounded(modifiers: Modifiers) -> Operation:
    """Build the operation of floating-point `add`, `sub`, `mul`, `fma` or `mad` (the same as `fma`).

    They round once, to nearest even if no rounding is given. From PTX 8.6 on sm_100 there are mixed forms: f32
    arithmetic whose first operands (two of three, one of two) are f16 or bf16.
    """
    operation = "fma" if modifiers.mnemonic == "mad" else modifiers.mnemonic
    name = modifiers.take_type((*_SCALARS, *_PAIRS))
    narrow = modifiers.take_any(("f16", "bf16"))
    if narrow is None and modifiers.peek_last() == "f32" and name in ("f16", "bf16"):
        # The mixed types may come in either order.
        narrow, name = name, modifiers.take_type(("f32",))
    scalar = _PAIRS.get(name, name)
    mode = modifiers.take_any(MODES) or "rn"
    if mode != "rn" and scalar in ("f16", "bf16"):
        raise ValueError(f"{modifiers.opcode}: .{mode} is not for {name}")
    function = _arithmetic(operation, scalar, mode)
    count = 3 if operation == "fma" else 2
    # These have many intermediate arrays; in blocks they stay in the cache.
    if operation == "fma" or mode != "rn":
        function = in_blocks(function)
    if narrow is None:
        # For .ftz: products may round up to the smallest normal number. Sums never do, as subnormal ones are exact.
        exact: dict[str, Function] = {"mul": np.multiply, "fma": _multiply_add_f64(mode)}
        return build(modifiers, name, count, Rounded(function, exact.get(operation), mode))

    # The mixed form: widen the first operands to f32, which is exact.
    after = _take_result_modifier(modifiers)
    modifiers.check_all_taken()
    compute_f32 = with_modifiers(Rounded(function), "f32", ftz=False, after=after)
    narrow_count = 2 if operation == "fma" else 1

    def compute_mixed(*operands: Lanes) -> Lanes:
        """Widen the first `narrow_count` operands, f16 or bf16, to f32, which is exact, and compute in f32."""
        widened = (decode(operand, narrow).astype(np.float32) for operand in operands[:narrow_count])
        return compute_f32(*widened, *operands[narrow_count:])

    return Operation((REGISTERS[narrow],) * narrow_count + (F32,), (F32,), compute_mixed)


def _divide_f32(mode: str) -> Function:
    """Return the division of f32 values, rounded once by `mode`: "rn", "rz", "rm" or "rp"."""
    # A quotient of two 24-bit numbers is never so near to a 24-bit number, nor to the middle of two, that the first
    # rounding to 53 bits would reach it.
    return lambda a, b: canonical(to_f32(np.divide(a, b, dtype=np.float64), mode))


def _quotient(modifiers: Modifiers) -> Operation:
    """Build the operation of floating-point `div`, `rcp` or `sqrt`, approximate or correctly rounded.

    Without a rounding modifier they round to nearest even. A NaN result of f32 is canonical, one of f64 is the NaN
    operand, made quiet.
    """
    # Approximations have no rounding modifier.
    form = modifiers.take_any(("approx", "full")) if modifiers.mnemonic in APPROXIMATE else None
    if form is not None:
        return _approximation(modifiers, form)
    name = modifiers.take_type(("f32", "f64"))
    mode = modifiers.take_any(MODES) or "rn"
    if name == "f64":
        one = np.float64(1)
        functions: dict[str, Function] = {
            "div": lambda a, b: double.divide(a, b, mode),
            "rcp": lambda a: double.divide(one, a, mode),
            "sqrt": lambda a: double.square_root(a, mode),
        }
    else:
        # Rounding to float64 first changes no f32 quotient or root: none lies so near to an f32 value, or to the middle
        # between two, without being equal to it.
        divide, one_f32 = _divide_f32(mode), np.float32(1)
        functions = {
            "div": divide,
            "rcp": lambda a: divide(one_f32, a),
            "sqrt": lambda a: canonical(to_f32(np.sqrt(a, dtype=np.float64), mode)),
        }
    # For .ftz, the f32 results before they are rounded, as float64. Roots are never so small that it needs them.
    exact: dict[str, Function] = {"div": np.divide, "rcp": np.reciprocal}
    rounded = Rounded(functions[modifiers.mnemonic], exact.get(modifiers.mnemonic), mode)
    return build(modifiers, name, 2 if modifiers.mnemonic == "div" else 1, rounded)


def _approximation(modifiers: Modifiers, form: str) -> Operation:
    """Build the operation of an instruction that the PTX ISA lets be inexact, such as `sin.approx.f32`.

    form: the modifier that says so, "approx" or "full", which the caller has taken already.
    """
    name = modifiers.take_type((*_SCALARS, *_PAIRS))
    function, count = APPROXIMATE[modifiers.mnemonic](modifiers, _PAIRS.get(name, name), form)
    return build(modifiers, name, count, Rounded(function))


def _approximate(modifiers: Modifiers) -> Operation:
    """Build the operation of `rsqrt`, `sin`, `cos`, `lg2`, `ex2` or `tanh`, which have the form .approx alone."""
    return _approximation(modifiers, modifiers.take_required(("approx",), "form"))


def _choose(mnemonic: str, name: str, propagate: bool) -> Function:
    """Return the function of `mnemonic`, "min" or "max", on two registers of the scalar type `name`.

    Minus zero is below zero. If one operand is NaN the result is the other one, or NaN if `propagate` (.NaN).
    """
    pick = np.fmin if mnemonic == "min" else np.fmax
    # Of two zeros, min must return a negative one if there is one, max a positive one: combine their sign bits.
    combine_zeros = np.bitwise_or if mnemonic == "min" else np.bitwise_and
    register_word = np.dtype(f"u{REGISTERS[name].itemsize}")

    def choose(a: Lanes, b: Lanes) -> Lanes:
        """Return the smaller (min) or larger (max) of two registers of the type `name`."""
        if name == "bf16":
            # Compare the values as float32, whose upper half is the bf16 word.
            chosen = choose_values(decode(a, name), decode(b, name), np.dtype(np.uint32))
            return (np.asarray(chosen).view(np.uint32) >> np.uint32(16)).astype(U16)
        return choose_values(a, b, register_word)

    def choose_values(a: Lanes, b: Lanes, word: np.dtype[Any]) -> Lanes:
        """Return the smaller (min) or larger (max) of two floats. word: the unsigned type of their size."""
        # NumPy's fmin and fmax return the number if one of the two is NaN.
        result = pick(a, b)
        if propagate:
            result = np.where(np.isnan(a) | np.isnan(b), result.dtype.type(np.nan), result)
        # Zeros compare as equal whatever their signs, and so are chosen by their bits.
        both_zero = (a == 0) & (b == 0)
        if both_zero.any():
            zeros = combine_zeros(np.asarray(a).view(word), np.asarray(b).view(word))
            result = np.where(both_zero, zeros, np.asarray(result).view(word)).view(result.dtype)
        # A NaN of f64 is that of an operand, where the hardware looks at b first.
        return double.settle_nan(result, b, a) if result.dtype == F64 else canonical(result)

    return choose


def _extremum(modifiers: Modifiers) -> Operation:
    """Build the operation of floating-point `min` or `max` of two or three operands.

    .xorsign.abs (two operands): of the magnitudes, with the product of the signs. .abs (three operands): of the
    magnitudes. .NaN: a NaN operand makes the result NaN. Raise ValueError for other combinations.
    """
    name = modifiers.take_type((*_SCALARS, *_HALVES))
    scalar = _PAIRS.get(name, name)
    propagate = modifiers.take_flag("NaN")
    xorsign = modifiers.take_flag("xorsign")
    if xorsign and not modifiers.take_flag("abs"):
        raise ValueError(f"{modifiers.opcode}: .xorsign goes with .abs")
    choose = _choose(modifiers.mnemonic, scalar, propagate)
    # The .abs of .xorsign.abs has been taken already.
    absolute = False if xorsign else modifiers.take_flag("abs")
    # The opcode leaves the number of operands open; 0 stands for the usual two.
    count = modifiers.sources or 2
    function = choose
    if count == 3:
        _, clear_sign, _ = _sign_functions(scalar)

        def function(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
            """Return the smallest or largest of three registers, of their magnitudes if `absolute` (.abs)."""
            if absolute:
                a, b, c = clear_sign(a), clear_sign(b), clear_sign(c)
            return choose(choose(a, b), c)

    elif absolute:
        raise ValueError(f"{modifiers.opcode}: .abs alone goes with three operands")
    if xorsign:
        function = _with_xored_sign(choose, scalar)
    return build(modifiers, name, count, Rounded(function))


def _sign_functions(name: str) -> tuple[Function, Function, Function]:
    """Return three functions of registers of the scalar type `name`.

    The first returns the sign bit as a word, the second the register with the sign bit cleared, the third sets the bits
    of a word, its first argument, in a register, its second.
    """
    dtype = REGISTERS[name]
    word = np.dtype(f"u{dtype.itemsize}")
    sign = word.type(1 << (8 * dtype.itemsize - 1))
    return (
        lambda value: value.view(word) & sign,
        lambda value: (value.view(word) & ~sign).view(dtype),
        lambda bits, value: (np.asarray(value).view(word) | bits).view(dtype),
    )


def _with_xored_sign(choose: Function, name: str) -> Function:
    """Wrap min or max for .xorsign.abs: choose by magnitude, and give the result the exclusive or of both signs.

    name: the scalar type of the registers.
    """
    sign_of, clear_sign, set_bits = _sign_functions(name)

    def choose_magnitude(a: Lanes, b: Lanes) -> Lanes:
        """Return the smaller or larger magnitude of two registers, negative if exactly one of the two is."""
        result = choose(clear_sign(a), clear_sign(b))
        # A NaN gets no sign.
        return np.where(_is_nan(result, name), result, set_bits(sign_of(a) ^ sign_of(b), result))

    return choose_magnitude


def _is_nan(value: Lanes, name: str) -> Lanes:
    """Return the mask of registers, of the scalar type `name`, that hold a NaN."""
    return np.isnan(decode(value, name))


def _sign(modifiers: Modifiers) -> Operation:
    """Build the operation of floating-point `abs`, `neg` or `copysign`.

    `abs` and `neg` have packed forms and .ftz, and give the NaN that the hardware writes; `copysign` changes only the
    sign bit.
    """
    mnemonic = modifiers.mnemonic
    name = modifiers.take_type(("f32", "f64") if mnemonic == "copysign" else (*_SCALARS, *_HALVES))
    scalar = _PAIRS.get(name, name)
    sign_of, clear_sign, set_bits = _sign_functions(scalar)
    if mnemonic == "copysign":
        modifiers.check_all_taken()
        dtype = REGISTERS[name]
        # The value of b with the sign of a.
        return Operation((dtype, dtype), (dtype,), lambda a, b: set_bits(sign_of(a), clear_sign(b)))
    change_sign = clear_sign if mnemonic == "abs" else _negate(scalar)
    # The hardware executes them as an addition of zero, so that a NaN result is that of an addition: canonical, but for
    # f64 the operand with its sign. Constants that ptxas folds differ: there NaN of f32, f64 and f16x2 keeps its
    # payload, and its sign is cleared or changed.
    if name == "f64":
        return build(modifiers, name, 1, Rounded(lambda value: double.settle_nan(change_sign(value), value)))
    return build(modifiers, name, 1, Rounded(lambda value: _with_canonical_nan(change_sign(value), scalar)))


def _with_canonical_nan(value: Lanes, name: str) -> Lanes:
    """Return registers of the scalar type f16, bf16 or f32 with every NaN replaced by the one the hardware writes."""
    if name != "bf16":
        return canonical(value)
    # bf16 registers are words, of which NumPy does not know which are NaN.
    nan = _is_nan(value, name)
    return np.where(nan, np.uint16(0x7FFF), value) if nan.any() else value


def _negate(name: str) -> Function:
    """Return a function of registers of the scalar type `name` that flips the sign bit."""
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
    """Build the operation of `testp`: a predicate of whether a value belongs to a class of numbers."""
    dtype = REGISTERS[modifiers.take_type(("f32", "f64"))]
    test = modifiers.take_required(_TESTS, "test")
    modifiers.check_all_taken()
    return from_expression((dtype,), BOOL, _TESTS[test])


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
