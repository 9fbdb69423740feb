"""How an H200's tensor cores round the sums of products, found from what one computed: the PTX ISA leaves it open.

With accumulators of f32 the products of all k and the accumulator are added as fixed-point numbers: what lies more than
25 places below the leading place of the largest of them is cut off, and so is the sum when it is written. A product's
leading place is the sum of its factors', whatever it is when multiplied out.

m8n8k4 of f16, an instruction of older hardware, is a chain of fused multiply-adds in the order of k, from zero, to
which the accumulator is added last.

Not known: where in such sums subnormal factors count from, and when f32 results overflow; here from their own leading
place, and to infinity.
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
    """The exponent of each value's highest bit, int16; far below all others for zero."""
    return np.where(value == 0, _LOWEST, np.frexp(value)[1] - 1).astype(np.int16)


def _cut_sum(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """The sums over k, and c, of finite values: a [k, ..., m, 1], b [k, ..., 1, n], c [..., m, n]."""
    place = (_leading_place(a) + _leading_place(b)).max(0)
    place = np.maximum(np.maximum(place, _leading_place(c)), _LOWEST)
    scale = np.ldexp(1.0, _PLACES - place)
    products = a * b
    products *= scale
    np.trunc(products, out=products)
    total = products.sum(0) + np.trunc(c * scale)
    return to_f32(total / scale, "rz").astype(np.float64)


def cut_sum(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """a @ b + c of float64 [warps, m, k], [warps, k, n], [warps, m, n], as tensor cores add to f32."""
    exact = a @ b + c
    finite = np.isfinite(exact) & (np.abs(exact) < 2.0**128)
    if not finite.all():
        # What infinity and NaN come to is in `exact`.
        a, b, c = (np.where(np.isfinite(value), value, 0.0) for value in (a, b, c))
    # With k first, sums and maxima run over whole planes.
    left = np.ascontiguousarray(np.moveaxis(a, -1, 0))[..., None]
    right = np.ascontiguousarray(np.moveaxis(b, -2, 0))[..., None, :]
    parts = [
        _cut_sum(left[:, at : at + _BLOCK], right[:, at : at + _BLOCK], c[at : at + _BLOCK])
        for at in range(0, len(c), _BLOCK)
    ]
    return np.where(finite, np.concatenate(parts), exact) if parts else exact


def chained_sum(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """a @ b + c of float64 [..., m, k], [..., k, n], [..., m, n], as m8n8k4 adds: in f32."""
    total = np.zeros(c.shape, np.float32)
    for k in range(a.shape[-1]):
        total = sum_to_odd(a[..., :, k, None] * b[..., None, k, :], total.astype(np.float64)).astype(np.float32)
    return (total + c).astype(np.float32).astype(np.float64)
