"""Half, bfloat16, single and double precision, and the ways between them and whole numbers."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from tests.kernels.model import FIXTURES, Array, Case, Expected, blank, seeded

PATH = FIXTURES / "clang" / "floats.ptx"


def cases() -> Iterator[Case]:
    """The kernels of floats.cu."""
    yield from (_half_arithmetic(), _half2_arithmetic(), _bf16_scale(), _doubles(), _bodies(), _convert())


def to_bf16(values: Array) -> Array:
    """The words of float32 values rounded to nearest even; no NaN."""
    word = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return (word + 0x7FFF + (word >> 16 & 1) >> 16).astype(np.uint16)


def from_bf16(words: Array) -> Array:
    """The float32 values of bfloat16 words."""
    return (words.astype(np.uint32) << 16).view(np.float32)


def fused(a: Array, b: Array, c: Array) -> Array:
    """a * b + c in double precision, rounded once."""
    terms = zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    return np.array([float(Fraction(x) * Fraction(y) + Fraction(z)) for x, y, z in terms])


def _half_arithmetic() -> Case:
    n = 3000
    a, b = seeded("half_arithmetic").uniform(-20, 20, (2, n)).astype(np.float16)
    b[b == 0] = 1
    tripled = (a.astype(np.float32) * np.float32(3)).astype(np.float16)
    want = np.stack([a * b + a, a / b, np.where(a < b, -a, b), tripled - np.trunc(b)], 1)
    return Case("half_arithmetic", PATH, "half_arithmetic", (25, 1, 1), (128, 1, 1),
                (a, b, blank(want.shape, np.float16), np.int32(n)), {2: Expected(want)},
                tags=frozenset({"f16"}))  # fmt: skip


def _half2_arithmetic() -> Case:
    # Sums of products of such values are exact in double precision, so that they are rounded once.
    a, b = (seeded("half2_arithmetic").uniform(0.25, 4, (2, 3000, 2))).astype(np.float16)
    joined = (a.astype(np.float64) * b + (a - b)).astype(np.float16)
    want = np.stack([a * b + b, joined], 1)
    return Case("half2_arithmetic", PATH, "half2_arithmetic", (25, 1, 1), (120, 1, 1),
                (a, b, blank(want.shape, np.float16)), {2: Expected(want)}, tags=frozenset({"f16"}))  # fmt: skip


def _bf16_scale() -> Case:
    n = 5000
    random = seeded("bf16_scale")
    a = to_bf16(random.standard_normal(n).astype(np.float32))
    b = random.standard_normal(n).astype(np.float32)
    x = from_bf16(a)
    return Case("bf16_scale", PATH, "bf16_scale", (5, 1, 1), (1024, 1, 1),
                (a, b, blank(n, np.uint16), blank(n, np.float32), np.int32(n)),
                {2: Expected(to_bf16(x * b)), 3: Expected(x + b)}, tags=frozenset({"bf16"}))  # fmt: skip


def _doubles() -> Case:
    n = 2000
    x = seeded("doubles").uniform(-3, 3, n)
    r = np.zeros(n)
    for k in range(1, 9):
        r = r * x + 1.0 / k
    root = np.sqrt(np.abs(x))
    out = fused(x, root, r) / (root + 0.5)
    single = out.astype(np.float32) + np.sqrt(root.astype(np.float32))
    return Case("doubles", PATH, "doubles", (16, 1, 1), (128, 1, 1),
                (x, blank(n, np.float64), blank(n, np.float32), np.int32(n)),
                {1: Expected(out), 2: Expected(single)}, tags=frozenset({"f64"}))  # fmt: skip


def _bodies() -> Case:
    n = 192
    places = seeded("bodies").uniform(0.1, 1, (n, 4)).astype(np.float32)
    d = places[None, :, :3].astype(np.float64) - places[:, None, :3]
    weight = places[:, 3] / ((d**2).sum(-1) + 0.01) ** 1.5
    want = np.concatenate([(d * weight[..., None]).sum(1), places[:, 3:]], 1)
    return Case("bodies", PATH, "bodies", (3, 1, 1), (64, 1, 1), (places, blank((n, 4), np.float32), np.int32(n)),
                {1: Expected(want, exact=False, rtol=1e-4, atol=1e-2)}, tags=frozenset({"shared"}))  # fmt: skip


def _convert() -> Case:
    n = 3000
    random = seeded("convert")
    x = (random.standard_normal(n) * 10.0 ** random.integers(-3, 5, n)).astype(np.float32)
    wide = random.integers(-(1 << 63), 1 << 63, n) >> random.integers(0, 63, n)
    whole = np.trunc(x).astype(np.int32)
    want = np.stack([
        whole, np.abs(whole), whole.astype(np.int8) + whole.astype(np.uint16).astype(np.int32),
        np.trunc(x * np.float32(1000)).astype(np.int64) >> 3,
    ], 1).astype(np.int32)  # fmt: skip
    back = np.stack([
        wide.astype(np.float64) + x.astype(np.float16).astype(np.float64),
        wide.view(np.uint64).astype(np.float32).astype(np.float64) + wide.astype(np.int16).astype(np.float64),
    ], 1)  # fmt: skip
    return Case("convert", PATH, "convert", (24, 1, 1), (128, 1, 1),
                (x, wide, blank(want.shape, np.int32), blank(back.shape, np.float64), np.int32(n)),
                {2: Expected(want), 3: Expected(back)}, tags=frozenset({"f16", "f64"}))  # fmt: skip
