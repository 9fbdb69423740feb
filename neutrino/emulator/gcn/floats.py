"""Floating point as the hardware computes it, exactly, where NumPy's own operations do not."""

from __future__ import annotations

import ctypes
import ctypes.util
from typing import Any

import numpy as np

_LIBM = ctypes.CDLL(ctypes.util.find_library("m") or "libm.so.6")
_LIBM.fma.restype = ctypes.c_double
_LIBM.fma.argtypes = (ctypes.c_double, ctypes.c_double, ctypes.c_double)


def fma32(a: Any, b: Any, c: Any) -> Any:
    """Return a · b + c of f32, rounded once, to nearest."""
    return odd_sum(a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)).astype(np.float32)


def fma16(a: Any, b: Any, c: Any) -> Any:
    """Return a · b + c of f16, rounded once, to nearest."""
    return odd_sum(a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)).astype(np.float16)


def mix_to_16(a: Any, b: Any, c: Any) -> Any:
    """Return a · b + c of f32, rounded to f32 and then to f16."""
    return fma32(a, b, c).astype(np.float16)


def odd_sum(product: Any, addend: Any) -> Any:
    """Return a sum of doubles rounded to odd: a later rounding to fewer bits is then that of the exact sum."""
    total = product + addend
    virtual = total - product
    error = (product - (total - virtual)) + (addend - virtual)
    total = np.atleast_1d(total)
    error = np.broadcast_to(error, total.shape)
    raw = total.view(np.int64)
    inexact = (error != 0) & np.isfinite(total) & np.isfinite(error) & (raw & 1 == 0)
    if inexact.any():
        # The double next to it in the direction of the error has an odd last bit.
        step = np.where((error > 0) == (total > 0), 1, -1)
        total = np.where(inexact, raw + step, raw).view(np.float64)
    return total


def fma64(a: Any, b: Any, c: Any) -> Any:
    """Return a · b + c of f64, rounded once."""
    a, b, c = np.broadcast_arrays(np.atleast_1d(a), b, c)
    fused = _LIBM.fma
    return np.array([fused(x, y, z) for x, y, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)], np.float64)


def minimum(a: Any, b: Any) -> Any:
    """Return the lesser number: a number if one of them is none, and -0 before +0."""
    result = np.fmin(a, b)
    zero = (a == 0) & (b == 0)
    return np.where(zero, np.where(np.signbit(a), a, b), result) if np.any(zero) else result


def maximum(a: Any, b: Any) -> Any:
    """Return the greater number: as ``minimum``."""
    result = np.fmax(a, b)
    zero = (a == 0) & (b == 0)
    return np.where(zero, np.where(np.signbit(a), b, a), result) if np.any(zero) else result


def median(a: Any, b: Any, c: Any) -> Any:
    """Return the middle one of three numbers."""
    if np.dtype(a.dtype).kind == "f":
        return maximum(minimum(a, b), minimum(maximum(a, b), c))
    return np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))


def to_integer(value: Any, kind: Any) -> Any:
    """Return floats as integers: cut, the nearest one for those out of range, 0 for NaN."""
    limits = np.iinfo(kind)
    wide = np.trunc(value.astype(np.float64))
    wide = np.where(np.isnan(wide), 0.0, wide)
    return np.clip(wide, float(limits.min), float(limits.max)).astype(np.int64).astype(kind)


def bf16_to_f32(value: Any) -> Any:
    """Return bf16, as u16, as f32."""
    return (np.asarray(value).astype(np.uint32) << np.uint32(16)).view(np.float32)


def f32_to_bf16(value: Any) -> Any:
    """Return f32 as bf16 in u16, rounded to nearest, even."""
    raw = np.atleast_1d(value).astype(np.float32).view(np.uint32)
    rounded = (raw + (np.uint32(0x7FFF) + (raw >> np.uint32(16) & np.uint32(1)))) >> np.uint32(16)
    return np.where(np.isnan(value), raw >> np.uint32(16) | np.uint32(0x40), rounded).astype(np.uint16)


def f32_to_f16_toward_zero(value: Any) -> Any:
    """Return f32 as f16, cut."""
    value = np.atleast_1d(value)
    near = value.astype(np.float16)
    back = near.astype(np.float32)
    too_far = (np.abs(back) > np.abs(value)) & np.isfinite(value)
    return np.where(too_far, (near.view(np.uint16) - np.uint16(1)).view(np.float16), near)


def f8_to_f32(raw: Any, kind: str) -> Any:
    """Return 8-bit floats as f32. kind: ``fp8`` or ``bf8``, with ``_fnuz`` for the format of gfx942."""
    return _F8[kind][np.asarray(raw).astype(np.uint8)]


def f32_to_f8(value: Any, kind: str) -> Any:
    """Return f32 as 8-bit floats, to nearest, even; the greatest number for those out of range."""
    table = _F8[kind]
    numbers = np.where(np.isfinite(table[:128]), table[:128], np.float32(np.inf)).astype(np.float64)
    order = np.argsort(numbers, kind="stable")
    order = order[np.isfinite(numbers[order])]
    levels = numbers[order]
    magnitude = np.abs(np.atleast_1d(value).astype(np.float64))
    above = np.clip(np.searchsorted(levels, magnitude), 0, levels.size - 1)
    below = np.maximum(above - 1, 0)
    to_above, to_below = levels[above] - magnitude, magnitude - levels[below]
    is_above = (to_above < to_below) | ((to_above == to_below) & (order[above] % 2 == 0))
    code = order[np.where(is_above, above, below)].astype(np.uint8)
    code = np.where(magnitude >= levels[-1], order[-1], code).astype(np.uint8)
    code = code | np.where(np.signbit(value) & ((code != 0) | ("fnuz" not in kind)), 0x80, 0).astype(np.uint8)
    invalid = 0x80 if "fnuz" in kind else 0x7F
    return np.where(np.isnan(value), np.uint8(invalid), code)


def _f8_table(exponent_bits: int, fnuz: bool) -> Any:
    """Return the f32 values of all 256 codes of an 8-bit float format. exponent_bits: 4 or 5. fnuz: a format without
    infinities and negative zero, with 0x80 as NaN."""
    fraction_bits = 7 - exponent_bits
    bias = (1 << exponent_bits - 1) - (0 if fnuz else 1)
    values = np.zeros(256, np.float32)
    for code in range(256):
        exponent, fraction = code >> fraction_bits & (1 << exponent_bits) - 1, code & (1 << fraction_bits) - 1
        if fnuz and code == 0x80:
            values[code] = np.nan
            continue
        if not fnuz and exponent_bits == 5 and exponent == 31:
            value = np.nan if fraction else np.inf
        elif not fnuz and exponent_bits == 4 and code & 0x7F == 0x7F:
            value = np.nan
        elif exponent:
            value = (1 + fraction / (1 << fraction_bits)) * 2.0 ** (exponent - bias)
        else:
            value = fraction / (1 << fraction_bits) * 2.0 ** (1 - bias)
        values[code] = -value if code & 0x80 else value
    return values


_F8 = {
    "fp8": _f8_table(4, False), "bf8": _f8_table(5, False), "fp8_fnuz": _f8_table(4, True),
    "bf8_fnuz": _f8_table(5, True),
}  # fmt: skip


def _exponent(x: Any) -> Any:
    """Return the field of a number's exponent."""
    raw = x.view(f"u{x.dtype.itemsize}").astype(np.int64)
    fraction, field = {2: (10, 31), 4: (23, 255), 8: (52, 2047)}[x.dtype.itemsize]
    return raw >> fraction & field


def divide_scale(a: Any, denominator: Any, numerator: Any) -> tuple[Any, Any]:
    """Return what V_DIV_SCALE gives for ``a``, which is the denominator or the numerator, and whether V_DIV_FMAS must
    scale the quotient back.

    Numbers that would leave the range of normal ones on the way are scaled by a power of 2 (AMD's ISA documents,
    "V_DIV_SCALE_F32").
    """
    dtype = a.dtype
    scale = dtype.type(2.0 ** (64 if dtype == np.float32 else 128))
    a, denominator, numerator = (np.array(x) for x in np.broadcast_arrays(np.atleast_1d(a), denominator, numerator))

    tiny = np.finfo(dtype).tiny
    is_denormal = (np.abs(denominator) < tiny) & (denominator != 0)
    reciprocal = 1 / denominator
    quotient = numerator / denominator
    reciprocal_denormal = (np.abs(reciprocal) < tiny) & (reciprocal != 0)
    quotient_denormal = (np.abs(quotient) < tiny) & (quotient != 0)
    of_denominator = a == denominator
    limit = 96 if dtype == np.float32 else 768
    small = 23 if dtype == np.float32 else 53
    far = _exponent(numerator) - _exponent(denominator) >= limit
    undefined = (numerator == 0) | (denominator == 0)
    result = a.copy()
    back = np.zeros(a.shape, bool)
    open_ = ~undefined

    def case(condition: Any, value: Any, flag: Any) -> None:
        """Take a result, and a flag for V_DIV_FMAS, where a condition holds and none before did."""
        nonlocal open_, result, back
        now = open_ & condition
        result = np.where(now, value, result)
        back = np.where(now, flag, back)
        open_ = open_ & ~condition

    result = np.where(undefined, dtype.type(np.nan), result)
    case(far, np.where(of_denominator, a * scale, a), True)
    case(is_denormal, a * scale, False)
    # The documents have the denominator multiplied here, too, which is beyond the greatest number.
    case(reciprocal_denormal & quotient_denormal, np.where(of_denominator, a / scale, a), True)
    case(reciprocal_denormal, a / scale, False)
    case(quotient_denormal, np.where(a == numerator, a * scale, a), True)
    case(_exponent(numerator) <= small, a * scale, False)
    return result, back


def divide_fixup(quotient: Any, denominator: Any, numerator: Any) -> Any:
    """Return a quotient with the special cases of a division put right (V_DIV_FIXUP)."""
    sign = np.signbit(denominator) ^ np.signbit(numerator)
    dtype = quotient.dtype
    # Too great: the steps before have subtracted infinities. The documents do not say how hardware knows.
    size = np.where(np.isnan(quotient), dtype.type(np.inf), np.abs(quotient))
    # Too small even for a denormal number, which the steps before need not have seen.
    vanishes = _exponent(numerator) - _exponent(denominator) < {2: -30, 4: -150, 8: -1075}[dtype.itemsize]
    size = np.where(vanishes, dtype.type(0), size)
    signed = np.where(sign, -size, size)
    infinity, zero = dtype.type(np.inf), dtype.type(0)
    result = np.where(
        (denominator == 0) | np.isinf(numerator), np.where(sign, -infinity, infinity),
        np.where(np.isinf(denominator) | (numerator == 0), np.where(sign, -zero, zero), signed),
    )  # fmt: skip
    invalid = (
        np.isnan(denominator) | np.isnan(numerator) | ((denominator == 0) & (numerator == 0))
        | (np.isinf(denominator) & np.isinf(numerator))
    )  # fmt: skip
    quiet = np.where(np.isnan(numerator), numerator, np.where(np.isnan(denominator), denominator, dtype.type(np.nan)))
    return np.where(invalid, quiet, result).astype(dtype)
