"""float64 arithmetic rounded once in each direction: by error-free transformations, by integers where those overflow.

Each function gives what IEEE 754 says; where the result is NaN, it is an operand that is NaN, made quiet, else
0xfff8000000000000. Of several such operands an H200 takes b before a, and of three b before c before a; of a quotient,
which is a subroutine, a before b.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from neutrino.emulator.arithmetic.operation import Lanes
from neutrino.emulator.arithmetic.rounding import signed_zero_sum, sum_error, towards_odd

_INVALID = np.uint64(0xFFF8000000000000)
_QUIET = np.uint64(0x0008000000000000)
# Within these magnitudes neither a product's error nor a splitting leaves the range of normal numbers.
_SMALL, _LARGE = 2.0**-900, 2.0**900


def settle_nan(result: Lanes, *operands: Lanes) -> Lanes:
    """`result` with the hardware's NaN in place of the processor's: the first of `operands` that is one, made quiet."""
    nan = np.isnan(result)
    if not nan.any():
        return result
    words = np.broadcast_to(_INVALID, nan.shape)
    for operand in reversed(operands):
        words = np.where(np.isnan(operand), np.asarray(operand).view(np.uint64) | _QUIET, words)
    return np.where(nan, words, np.asarray(result).view(np.uint64)).view(np.float64)


def _split(value: Lanes) -> tuple[Lanes, Lanes]:
    """Two halves of at most 26 bits each that add up to `value` (Dekker, Veltkamp)."""
    scaled = value * 134217729.0
    high = scaled - (scaled - value)
    return high, value - high


def product_error(a: Lanes, b: Lanes, product: Lanes) -> Lanes:
    """What a * b has beyond `product`, its rounded value; exact between _SMALL and _LARGE."""
    a_high, a_low = _split(a)
    b_high, b_low = _split(b)
    return a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)


def _directed(near: Lanes, error: Lanes, mode: str) -> Lanes:
    """The neighbour of `near` that `mode` asks for, where the exact value is near + error."""
    if mode == "rn":
        return near
    if mode == "rz":
        outside = ((error < 0) & (near > 0)) | ((error > 0) & (near < 0))
        return np.where(outside, np.nextafter(near, 0.0), near)
    if mode == "rm":
        return np.where(error < 0, np.nextafter(near, -np.inf), near)
    return np.where(error > 0, np.nextafter(near, np.inf), near)


def round_ratio(numerator: int, denominator: int, mode: str) -> float:
    """The quotient of two integers (the second above zero) rounded to float64, subnormal and overflowing ones too."""
    if numerator == 0:
        return 0.0
    negative, magnitude = numerator < 0, abs(numerator)
    exponent = magnitude.bit_length() - denominator.bit_length()
    if (magnitude << max(-exponent, 0)) < (denominator << max(exponent, 0)):
        exponent -= 1
    quantum = max(exponent, -1022) - 52
    quotient, rest = divmod(magnitude << max(-quantum, 0), denominator << max(quantum, 0))
    twice = 2 * rest - (denominator << max(quantum, 0))
    if mode == "rn":
        away = twice > 0 or (twice == 0 and quotient & 1 == 1)
    else:
        away = rest != 0 and mode == ("rm" if negative else "rp")
    quotient += away
    if quotient.bit_length() + quantum > 1024:
        outwards = mode in ("rn", "rm" if negative else "rp")
        value = float("inf") if outwards else float.fromhex("0x1.fffffffffffffp1023")
    else:
        value = float.fromhex(f"{quotient:#x}p{quantum}")
    return -value if negative else value


def _by_integers(kind: str, result: Lanes, where: Lanes, operands: tuple[Lanes, ...], mode: str) -> Lanes:
    """`result` with the lanes `where` computed from integers; their operands are finite and the results not zero."""
    if not where.any():
        return result
    out = np.array(result, np.float64, ndmin=1)
    lanes = [np.broadcast_to(operand, out.shape) for operand in operands]
    for index in np.flatnonzero(np.broadcast_to(where, out.shape)):
        values = [Fraction(float(lane[index])) for lane in lanes]
        if kind == "fma":
            exact = values[0] * values[1] + values[2]
        elif kind == "add":
            exact = values[0] + values[1]
        else:
            exact = values[0] / values[1]
        if exact != 0:
            out[index] = round_ratio(exact.numerator, exact.denominator, mode)
    return out.reshape(np.shape(result))


def _ordinary(*values: Lanes) -> Lanes:
    """Where all of `values` are neither so small nor so large that an error-free transformation fails."""
    result = np.bool_(True)
    for value in values:
        magnitude = np.abs(value)
        result = result & (magnitude > _SMALL) & (magnitude < _LARGE)
    return result


def _finite(*values: Lanes) -> Lanes:
    result = np.bool_(True)
    for value in values:
        result = result & np.isfinite(value)
    return result


def add(a: Lanes, b: Lanes, mode: str) -> Lanes:
    """a + b."""
    near = a + b
    if mode == "rn":
        return settle_nan(near, b, a)
    result = _directed(near, sum_error(a, b, near), mode)
    if mode == "rm":
        result = signed_zero_sum(a, b, result)
    large = (np.abs(a) > _LARGE) | (np.abs(b) > _LARGE)
    return settle_nan(_by_integers("add", result, large & _finite(a, b), (a, b), mode), b, a)


def multiply(a: Lanes, b: Lanes, mode: str) -> Lanes:
    """a * b."""
    near = a * b
    if mode == "rn":
        return settle_nan(near, b, a)
    result = _directed(near, product_error(a, b, near), mode)
    exact = (a == 0) | (b == 0) | ~_finite(a, b)
    result = np.where(exact, near, result)
    extreme = ~(exact | _ordinary(a, b, near))
    return settle_nan(_by_integers("fma", result, extreme, (a, b, np.float64(0)), mode), b, a)


def _product_sum(a: Lanes, b: Lanes, c: Lanes, product: Lanes, mode: str) -> Lanes:
    """a * b + c where nothing overflows and `product`, the rounded one, is neither zero nor tiny."""
    low = product_error(a, b, product)
    # Boldo and Melquiond's algorithm: the two errors are added to odd, so that the last sum rounds as if exact.
    upper = low + c
    upper_error = sum_error(low, c, upper)
    head = product + upper
    head_error = sum_error(product, upper, head)
    tail_near = head_error + upper_error
    tail = towards_odd(tail_near, sum_error(head_error, upper_error, tail_near))
    result = head + tail
    return result if mode == "rn" else _directed(result, sum_error(head, tail, result), mode)


def multiply_add(a: Lanes, b: Lanes, c: Lanes, mode: str) -> Lanes:
    """a * b + c."""
    product = a * b
    result = _product_sum(a, b, c, product, mode)
    if _all_ordinary(a, b, c, product):
        return signed_zero_sum(-c, c, result) if mode == "rm" else result
    trivial = (a == 0) | (b == 0) | ~_finite(a, b, c)
    result = np.where(trivial, np.where(np.isinf(c) & _finite(a, b), c, product + c), result)
    if mode == "rm":
        # A product's sign counts where it is zero, and there alone `product` is exact.
        zero = np.where((a == 0) | (b == 0), product, np.where(result == 0, -c, product))
        result = np.where(result == 0, signed_zero_sum(zero, c, result), result)
    extreme = ~trivial & ~(_ordinary(a, b, product) & (np.abs(c) < _LARGE))
    return settle_nan(_by_integers("fma", result, extreme, (a, b, c), mode), b, c, a)


def _all_ordinary(a: Lanes, b: Lanes, c: Lanes, product: Lanes) -> bool:
    """Whether in no lane an error-free transformation of a * b + c fails, nor a NaN appears."""
    magnitude = np.abs(product)
    return bool(
        np.size(magnitude) == 0
        or (
            magnitude.min() > _SMALL
            and magnitude.max() < _LARGE
            and all(np.abs(value).max() < _LARGE for value in (a, b, c))
        )
    )


def divide(a: Lanes, b: Lanes, mode: str) -> Lanes:
    """a / b."""
    near = a / b
    if mode == "rn":
        return settle_nan(near, a, b)
    product = near * b
    rest = (a - product) - product_error(near, b, product)
    result = _directed(near, np.where(b < 0, -rest, rest), mode)
    exact = (a == 0) | (b == 0) | ~_finite(a, b)
    result = np.where(exact, near, result)
    extreme = ~(exact | _ordinary(a, b, near, product))
    return settle_nan(_by_integers("div", result, extreme, (a, b), mode), a, b)


def square_root(a: Lanes, mode: str) -> Lanes:
    """The square root of a."""
    near = np.sqrt(a)
    if mode != "rn":
        # Scaled by an even power of two, which changes no bit of the root, so that its square is in range.
        exponent = np.frexp(a)[1] & ~1
        value = np.ldexp(a, -exponent)
        root = np.sqrt(value)
        square = root * root
        rest = (value - square) - product_error(root, root, square)
        directed = np.ldexp(_directed(root, rest, mode), exponent // 2)
        near = np.where((a > 0) & np.isfinite(a), directed, near)
    return settle_nan(near, a)
