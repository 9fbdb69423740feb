"""How an H200's tensor cores round the sums of products; the PTX ISA leaves it open. Derived from what one computed.

With f32 accumulators, the products for all k and the accumulator are added as fixed-point numbers: each is truncated 25
binary places below the highest leading place among them, and the sum is truncated again when it is written. The leading
place of a product counts as the sum of its factors' leading places, even if the product itself carries into the next.

m8n8k4 of f16, an instruction of older hardware, is a chain of fused multiply-adds in the order of k, from zero, to
which the accumulator is added last.

Not known are the leading place of subnormal factors in such sums, and when f32 results overflow. Here subnormal factors
have their own leading place, and results overflow to infinity.
"""

from __future__ import annotations

import numpy as np

from neutrino.emulator.arithmetic.operation import Lanes
from neutrino.emulator.arithmetic.rounding import sum_to_odd, to_f32

_PLACES = 25
# Below every leading place of a product that f32 can hold a part of; its power of two and the inverse fit float64.
_LOWEST = -400
# Warps at a time: their products then stay in the processor's cache.
_BLOCK = 16


def _leading_place(value: Lanes) -> Lanes:
    """Return the exponent of each float64 value's highest bit; for zero one far below all others.

    The exponents are int16, as smaller arrays are faster to search for their maximum.
    """
    return np.where(value == 0, _LOWEST, np.frexp(value)[1] - 1).astype(np.int16)


def _truncated_sum(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """Return the sum of a * b over the first axis, plus c, of finite float64 values, as tensor cores add to f32.

    They truncate each product, and c, `_PLACES` binary places below the highest leading place among them, and the sum
    again to f32. A leading place is the exponent of a value's highest bit; that of a product counts as the sum of its
    factors' leading places. Shapes: a [k, ..., m, 1], b [k, ..., 1, n], c and the result [..., m, n].
    """
    highest_place = (_leading_place(a) + _leading_place(b)).max(0)
    # The bound matters only if all summands are zero or too small for f32; it keeps the scale within float64.
    highest_place = np.maximum(np.maximum(highest_place, _leading_place(c)), _LOWEST)
    # Scaled so that the places that stay are the integer part.
    scale = np.ldexp(1.0, _PLACES - highest_place)
    products = a * b
    # In place, as this array is by far the largest.
    products *= scale
    np.trunc(products, out=products)
    total = products.sum(0) + np.trunc(c * scale)
    return to_f32(total / scale, "rz").astype(np.float64)


def cut_sum(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """Return a @ b + c with the truncations of an H200's tensor cores that accumulate in f32 (see `_truncated_sum`).

    All are float64, one product of matrices per warp. Shapes: a [warps, m, k], b [warps, k, n], c and the result
    [warps, m, n].
    """
    plain = a @ b + c
    # The largest f32 is just below 2**128.
    finite = np.isfinite(plain) & (np.abs(plain) < 2.0**128)
    if not finite.all():
        # Results that are infinite or NaN are taken from `plain`; here their operands must not disturb the others.
        a, b, c = (np.where(np.isfinite(value), value, 0.0) for value in (a, b, c))
    # With k first, sums and maxima run over contiguous planes.
    left = np.ascontiguousarray(np.moveaxis(a, -1, 0))[..., None]
    right = np.ascontiguousarray(np.moveaxis(b, -2, 0))[..., None, :]
    parts = [
        _truncated_sum(left[:, start : start + _BLOCK], right[:, start : start + _BLOCK], c[start : start + _BLOCK])
        for start in range(0, len(c), _BLOCK)
    ]
    # There are no parts to concatenate if there are no warps.
    return np.where(finite, np.concatenate(parts), plain) if parts else plain


def chained_sum(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """Return a @ b + c as m8n8k4 of f16 adds: by f32 fused multiply-adds in the order of k, from zero, then c.

    All are float64. Shapes: a [..., m, k], b [..., k, n], c and the result [..., m, n].
    """
    total = np.zeros(c.shape, np.float32)
    for k in range(a.shape[-1]):
        # Products of f16 are exact in float64, and a sum rounded to odd there rounds to float32 as the exact one would.
        total = sum_to_odd(a[..., :, k, None] * b[..., None, k, :], total.astype(np.float64)).astype(np.float32)
    return (total + c).astype(np.float32).astype(np.float64)
