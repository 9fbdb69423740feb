"""Rounding in one step: exact results as float64, rounded from there to narrower formats.

A sum or product of narrow numbers may not fit float64's 53 bits, but rounded to odd (cut off, and the last bit set if
anything was lost) it still rounds to any format of at most 51 bits as the exact value would, in every direction
(Boldo and Melquiond, Emulation of FMA and correctly rounded sums, IEEE TC 57, 2008).
"""

from __future__ import annotations

import numpy as np

from neutrino.emulator.arithmetic.operation import Function, Lanes

# PTX ISA 9.7.3, rounding modifiers: to nearest even, towards zero, towards minus and plus infinity.
MODES = ("rn", "rz", "rm", "rp")

_TO_INTEGER: dict[str, Function] = {"rn": np.rint, "rz": np.trunc, "rm": np.floor, "rp": np.ceil}


def to_integer(value: Lanes, mode: str) -> Lanes:
    """Round float64 values to integral ones, still float64.

    mode: "rn" to nearest even, "rz" towards zero, "rm" and "rp" towards minus and plus infinity, or "rna" to nearest,
    ties away from zero (f32 values only).
    """
    if mode == "rna":
        # Only f32 values are rounded so (cvt.rna.tf32): adding 0.5 to their 24 bits is exact in float64.
        return np.copysign(np.floor(np.abs(value) + 0.5), value)
    return _TO_INTEGER[mode](value)


def sum_error(a: Lanes, b: Lanes, total: Lanes) -> Lanes:
    """Return the error a + b - total of the rounded sum `total`; exact if nothing overflows (Knuth's TwoSum)."""
    b_part = total - a
    return (a - (total - b_part)) + (b - b_part)


def towards_odd(value: Lanes, error: Lanes) -> Lanes:
    """Return value + error rounded to odd, where `value` is that sum rounded to nearest; both are float64.

    Of the two float64 numbers next to an inexact sum, rounding to odd picks the one whose last bit is set. Rounded
    again, to a format of at most 51 bits, the result is that of rounding the exact sum once, in any direction.
    """
    bits = np.asarray(value).view(np.int64)
    # The other neighbour lies away from zero if value and error have the same sign. The words of neighbouring floats
    # differ by one, and the larger word is further from zero, whatever the sign.
    step = np.where((error > 0) == (value > 0), np.int64(1), np.int64(-1))
    move = (error != 0) & ((bits & 1) == 0) & np.isfinite(value)
    return np.where(move, bits + step, bits).view(np.float64)


def sum_to_odd(a: Lanes, b: Lanes) -> Lanes:
    """Return a + b of float64 values, rounded to odd, so that it can be rounded again to a narrower format.

    See `towards_odd`: the second rounding then gives what the exact sum would.
    """
    total = a + b
    return towards_odd(total, sum_error(a, b, total))


def signed_zero_sum(a: Lanes, b: Lanes, total: Lanes) -> Lanes:
    """Return `total`, the sum of a and b, with zeros as rounding towards minus infinity gives them (IEEE 754, 6.3).

    In that direction a zero sum is -0 unless both operands are +0. NumPy, which rounds to nearest, gives +0 also for
    operands that cancel. All values are float64.
    """
    return np.where((total == 0) & (np.signbit(a) | np.signbit(b)), -np.float64(0), total)


def to_f32(value: Lanes, mode: str) -> Lanes:
    """Round float64 values, exact or rounded to odd, to float32.

    mode: "rn" to nearest even, "rz" towards zero, "rm" and "rp" towards minus and plus infinity.
    """
    near = value.astype(np.float32)
    if mode == "rn":
        return near
    # Go back by one step where the rounding to nearest went in the wrong direction. NaN stays: comparisons with it are
    # False.
    widened = near.astype(np.float64)
    if mode == "rz":
        return np.where(np.abs(widened) > np.abs(value), np.nextafter(near, np.float32(0)), near)
    if mode == "rm":
        return np.where(widened > value, np.nextafter(near, np.float32(-np.inf)), near)
    return np.where(widened < value, np.nextafter(near, np.float32(np.inf)), near)


def to_f32_odd(value: Lanes) -> Lanes:
    """Round float64 values, exact or rounded to odd, to odd in float32: truncate, and set the last bit if inexact.

    The result can be rounded again to a format of at most 22 bits, as if the exact value were rounded once.
    """
    truncated = to_f32(value, "rz")
    return (np.asarray(truncated).view(np.uint32) | (truncated.astype(np.float64) != value)).view(np.float32)


# The bits of a float64 below the last one that a tie of the narrower type can have.
_BELOW_TIE = {np.dtype(np.float32): (1 << 28) - 1, np.dtype(np.float16): (1 << 41) - 1}


def product_sum(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """Return a * b + c (fma) of values that are all float32 or all float16, rounded once to nearest even."""
    dtype = a.dtype
    # The product is exact in float64; the sum is rounded to float64 and then to the type.
    product = np.multiply(a, b, dtype=np.float64)
    total = np.asarray(product + c)
    result = total.astype(dtype)
    # The second rounding can only be wrong if the first one ended on a tie of the narrower type, whose lower bits are
    # all zero. Those few results are computed again, by rounding to odd first. (A zero total is exact.)
    possible_tie = (total.view(np.int64) & _BELOW_TIE[dtype]) == 0
    if possible_tie.any():
        positions = np.flatnonzero(possible_tie & (total != 0))
        if positions.size:
            products, addends = (np.broadcast_to(x, total.shape).reshape(-1)[positions] for x in (product, c))
            exact = sum_to_odd(products, addends.astype(np.float64)).astype(dtype)
            if total.ndim == 0:
                # All operands are scalars, and so is the result, which cannot be assigned to.
                return exact[0]
            result[positions] = exact
    return result
