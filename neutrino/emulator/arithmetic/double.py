"""float64 arithmetic with one rounding in any direction.

A result that IEEE arithmetic rounds to nearest is corrected by its error, which error-free transformations compute;
where those would overflow or underflow, the result is computed with exact fractions instead.

Results are those of IEEE 754. A NaN result is the first operand that is NaN, made quiet, or 0xfff8000000000000 if none
is. An H200 looks at b before a, and of three operands at b, then c, then a; for a quotient, which is a subroutine, at a
before b.

mode: "rn" to nearest even, "rz" towards zero, "rm" and "rp" towards minus and plus infinity.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from neutrino.emulator.arithmetic.operation import Lanes
from neutrino.emulator.arithmetic.rounding import signed_zero_sum, sum_error, towards_odd

_INVALID = np.uint64(0xFFF8000000000000)
_QUIET = np.uint64(0x0008000000000000)
# Between these magnitudes neither the error of a product nor the halves of `_split` leave the range of normal numbers.
_SMALL, _LARGE = 2.0**-900, 2.0**900


def settle_nan(result: Lanes, *operands: Lanes) -> Lanes:
    """Return float64 `result` with each NaN replaced by the one that the GPU gives.

    That is the first of `operands` that is NaN, made quiet, or 0xfff8000000000000 if none is.
    """
    nan = np.isnan(result)
    if not nan.any():
        return result
    words = np.broadcast_to(_INVALID, nan.shape)
    # From the last to the first, so that the first NaN is the one that stays.
    for operand in reversed(operands):
        words = np.where(np.isnan(operand), np.asarray(operand).view(np.uint64) | _QUIET, words)
    return np.where(nan, words, np.asarray(result).view(np.uint64)).view(np.float64)


def _split(value: Lanes) -> tuple[Lanes, Lanes]:
    """Split float64 values into two parts of at most 26 bits each that add up to them (Dekker, Veltkamp).

    The products of such parts are exact in float64.
    """
    scaled = value * 134217729.0  # 2**27 + 1
    high = scaled - (scaled - value)
    return high, value - high


def product_error(a: Lanes, b: Lanes, product: Lanes) -> Lanes:
    """Return a * b - product, the error of the `product` that float64 arithmetic rounded (Dekker's TwoProduct).

    It is exact if all magnitudes lie between _SMALL and _LARGE.
    """
    a_high, a_low = _split(a)
    b_high, b_low = _split(b)
    return a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)


def _directed(near: Lanes, error: Lanes, mode: str) -> Lanes:
    """Round near + error in the direction `mode`, where `near` is that value rounded to nearest.

    mode: "rn" to nearest even, "rz" towards zero, "rm" and "rp" towards minus and plus infinity. The result is `near`
    or its neighbour on the side of the error. A NaN, with which comparisons are False, stays.
    """
    if mode == "rn":
        return near
    if mode == "rz":
        rounded_away = ((error < 0) & (near > 0)) | ((error > 0) & (near < 0))
        return np.where(rounded_away, np.nextafter(near, 0.0), near)
    if mode == "rm":
        return np.where(error < 0, np.nextafter(near, -np.inf), near)
    return np.where(error > 0, np.nextafter(near, np.inf), near)


def round_ratio(numerator: int, denominator: int, mode: str) -> float:
    """Return numerator / denominator, of which the denominator is positive, rounded once to float64 by `mode`.

    mode: "rn" to nearest even, "rz" towards zero, "rm" and "rp" towards minus and plus infinity. Subnormal results have
    fewer bits; those beyond the largest float64 become that or infinity, as `mode` says.
    """
    if numerator == 0:
        return 0.0
    negative, magnitude = numerator < 0, abs(numerator)

    # The exponent of the quotient's highest bit: 2**exponent <= quotient < 2**(exponent + 1).
    exponent = magnitude.bit_length() - denominator.bit_length()
    if (magnitude << max(-exponent, 0)) < (denominator << max(exponent, 0)):
        exponent -= 1

    # Divide into a multiple of 2**last_place, the last of the 53 bits. Below the smallest normal exponent, -1022, the
    # last place stays where it is.
    last_place = max(exponent, -1022) - 52
    divisor = denominator << max(last_place, 0)
    quotient, remainder = divmod(magnitude << max(-last_place, 0), divisor)

    if mode == "rn":
        # Ties go to the even quotient.
        compared_to_half = 2 * remainder - divisor
        away_from_zero = compared_to_half > 0 or (compared_to_half == 0 and quotient & 1 == 1)
    else:
        away_from_zero = remainder != 0 and mode == ("rm" if negative else "rp")
    quotient += away_from_zero
    # All float64 values are below 2**1024.
    if quotient.bit_length() + last_place > 1024:
        to_infinity = mode in ("rn", "rm" if negative else "rp")
        value = float("inf") if to_infinity else float.fromhex("0x1.fffffffffffffp1023")
    else:
        value = float.fromhex(f"{quotient:#x}p{last_place}")
    return -value if negative else value


def _recompute_exactly(operation: str, result: Lanes, where: Lanes, operands: tuple[Lanes, ...], mode: str) -> Lanes:
    """Return `result` with the lanes that the mask `where` marks computed from exact fractions.

    operation: "add" (of two operands), "fma" (of three) or "div" (of two), rounded once by `mode`. The operands of
    these lanes must be finite.
    A lane whose exact result is zero keeps its `result`, which has the sign of zero.
    """
    if not where.any():
        return result
    # A copy, of at least one dimension, so that it can be assigned to.
    out = np.array(result, np.float64, ndmin=1)
    lanes = [np.broadcast_to(operand, out.shape) for operand in operands]
    for index in np.flatnonzero(np.broadcast_to(where, out.shape)):
        a, b, *addend = (Fraction(float(lane[index])) for lane in lanes)
        if operation == "fma":
            exact = a * b + addend[0]
        elif operation == "add":
            exact = a + b
        else:
            exact = a / b
        if exact != 0:
            out[index] = round_ratio(exact.numerator, exact.denominator, mode)
    return out.reshape(np.shape(result))


def _in_safe_range(*values: Lanes) -> Lanes:
    """Return the mask of lanes where no value is so small or so large that `product_error` is inexact.

    Lanes with NaN are not among them, as comparisons with it are False.
    """
    result = np.bool_(True)
    for value in values:
        magnitude = np.abs(value)
        result = result & (magnitude > _SMALL) & (magnitude < _LARGE)
    return result


def _finite(*values: Lanes) -> Lanes:
    """Return the mask of lanes where all values are finite."""
    result = np.bool_(True)
    for value in values:
        result = result & np.isfinite(value)
    return result


def add(a: Lanes, b: Lanes, mode: str) -> Lanes:
    """Return a + b of float64 values, rounded once by `mode` ("rn", "rz", "rm" or "rp").

    A NaN result is the one that an H200 gives (see `settle_nan`).
    """
    near = a + b
    if mode == "rn":
        # Of two NaN operands an H200 takes b.
        return settle_nan(near, b, a)
    result = _directed(near, sum_error(a, b, near), mode)
    if mode == "rm":
        result = signed_zero_sum(a, b, result)
    # Sums of large numbers may overflow, and `sum_error` is exact only without that.
    large = (np.abs(a) > _LARGE) | (np.abs(b) > _LARGE)
    return settle_nan(_recompute_exactly("add", result, large & _finite(a, b), (a, b), mode), b, a)


def multiply(a: Lanes, b: Lanes, mode: str) -> Lanes:
    """Return a * b of float64 values, rounded once by `mode` ("rn", "rz", "rm" or "rp").

    A NaN result is the one that an H200 gives (see `settle_nan`).
    """
    near = a * b
    if mode == "rn":
        # Of two NaN operands an H200 takes b.
        return settle_nan(near, b, a)
    result = _directed(near, product_error(a, b, near), mode)
    # Products that are zero, infinite or NaN because an operand is.
    needs_no_rounding = (a == 0) | (b == 0) | ~_finite(a, b)
    result = np.where(needs_no_rounding, near, result)
    unsafe = ~(needs_no_rounding | _in_safe_range(a, b, near))
    # As an fma with 0 added: an exact zero, whose sign the 0 could change, does not occur in these lanes.
    return settle_nan(_recompute_exactly("fma", result, unsafe, (a, b, np.float64(0)), mode), b, a)


def _product_sum(a: Lanes, b: Lanes, c: Lanes, product: Lanes, mode: str) -> Lanes:
    """Return a * b + c of float64 values, rounded once by `mode`; `product` is a * b rounded to nearest.

    Correct only if nothing overflows, and `product` is neither zero nor tiny.
    """
    # Boldo and Melquiond's algorithm: product + low is a * b exactly, and head + (head_error + upper_error) is the
    # whole sum. The sum of these two errors is rounded to odd, so that adding it to the head rounds as if exact.
    low = product_error(a, b, product)
    upper = low + c
    upper_error = sum_error(low, c, upper)
    head = product + upper
    head_error = sum_error(product, upper, head)
    tail_near = head_error + upper_error
    tail = towards_odd(tail_near, sum_error(head_error, upper_error, tail_near))
    result = head + tail
    return result if mode == "rn" else _directed(result, sum_error(head, tail, result), mode)


def multiply_add(a: Lanes, b: Lanes, c: Lanes, mode: str) -> Lanes:
    """Return a * b + c (fma) of float64 values, rounded once by `mode` ("rn", "rz", "rm" or "rp").

    A NaN result is the one that an H200 gives (see `settle_nan`).
    """
    product = a * b
    result = _product_sum(a, b, c, product, mode)
    if _all_in_safe_range(a, b, c, product):
        # A zero result is an exact cancellation, a * b == -c.
        return signed_zero_sum(-c, c, result) if mode == "rm" else result

    # Zero factors, infinities and NaN: plain arithmetic is right, except that finite factors whose product overflows
    # must not turn an infinite c into NaN.
    special = (a == 0) | (b == 0) | ~_finite(a, b, c)
    result = np.where(special, np.where(np.isinf(c) & _finite(a, b), c, product + c), result)
    if mode == "rm":
        # The sign of a zero sum depends on that of the product, which is exact if a factor is zero, and -c if the sum
        # cancels.
        exact_product = np.where((a == 0) | (b == 0), product, np.where(result == 0, -c, product))
        result = np.where(result == 0, signed_zero_sum(exact_product, c, result), result)

    unsafe = ~special & ~(_in_safe_range(a, b, product) & (np.abs(c) < _LARGE))
    # Of several NaN operands an H200 takes b, then c, then a.
    return settle_nan(_recompute_exactly("fma", result, unsafe, (a, b, c), mode), b, c, a)


def _all_in_safe_range(a: Lanes, b: Lanes, c: Lanes, product: Lanes) -> bool:
    """Return whether `_product_sum` is correct in all lanes, and none of its operands is NaN.

    It is correct unless something underflows or overflows. Only parts of the product may underflow, as sums of float64
    numbers never do. The last bit of these parts is at most 106 places below the first of the product, whatever the
    factors, so that a lower bound for the product is enough. Against overflow each value needs an upper bound, even if
    another factor is small.
    """
    magnitude = np.abs(product)
    # With a NaN, min and max are NaN, and the comparisons False. An empty array has neither.
    return bool(
        np.size(magnitude) == 0
        or (
            magnitude.min() > _SMALL
            and magnitude.max() < _LARGE
            and all(np.abs(value).max() < _LARGE for value in (a, b, c))
        )
    )


def divide(a: Lanes, b: Lanes, mode: str) -> Lanes:
    """Return a / b of float64 values, rounded once by `mode` ("rn", "rz", "rm" or "rp").

    A NaN result is the one that an H200 gives (see `settle_nan`).
    """
    near = a / b
    if mode == "rn":
        # Of two NaN operands an H200 takes a.
        return settle_nan(near, a, b)
    # Rounding needs only the sign of the quotient's error, which is that of the remainder a - near * b divided by b.
    # The product is near to a, so that their difference is exact.
    product = near * b
    remainder = (a - product) - product_error(near, b, product)
    result = _directed(near, np.where(b < 0, -remainder, remainder), mode)
    # Quotients that are zero, infinite or NaN because of their operands.
    needs_no_rounding = (a == 0) | (b == 0) | ~_finite(a, b)
    result = np.where(needs_no_rounding, near, result)
    unsafe = ~(needs_no_rounding | _in_safe_range(a, b, near, product))
    return settle_nan(_recompute_exactly("div", result, unsafe, (a, b), mode), a, b)


def square_root(a: Lanes, mode: str) -> Lanes:
    """Return the square root of float64 values, rounded once by `mode` ("rn", "rz", "rm" or "rp")."""
    near = np.sqrt(a)
    if mode != "rn":
        # Scale `a` to about 1, so that the root's square is in range. The exponent of the scale is even, so that the
        # root's scale is a power of two, too; clearing the lowest bit rounds the exponent down to an even one.
        exponent = np.frexp(a)[1] & ~1
        value = np.ldexp(a, -exponent)
        root = np.sqrt(value)
        square = root * root
        remainder = (value - square) - product_error(root, root, square)
        directed = np.ldexp(_directed(root, remainder, mode), exponent // 2)
        # The roots of zeros, infinity, NaN and negative numbers need no rounding.
        near = np.where((a > 0) & np.isfinite(a), directed, near)
    return settle_nan(near, a)
