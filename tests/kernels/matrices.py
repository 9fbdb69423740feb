"""Products of matrices, by hand and by tensor cores, and attention."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.kernels.floats import to_bf16
from tests.kernels.model import FIXTURES, Array, Case, Expected, blank, seeded
from tests.kernels.reductions import softmax

PATH = FIXTURES / "clang" / "matrices.ptx"
_MMA = frozenset({"mma", "cp.async", "shared"})


def cases() -> Iterator[Case]:
    """The kernels of matrices.cu."""
    yield from (_matmul_tiled(), _mma("f16"), _mma("bf16"), _matmul_dp4a())
    yield from (_attention("attention", 0), _attention("attention_causal", 1))


def _matmul_tiled() -> Case:
    # Whole numbers small enough that every partial sum is exact.
    m, n, k = 50, 37, 70
    random = seeded("matmul_tiled")
    a = random.integers(-8, 8, (m, k)).astype(np.float32)
    b = random.integers(-8, 8, (k, n)).astype(np.float32)
    return Case("matmul_tiled", PATH, "matmul_tiled", (3, 4, 1), (16, 16, 1),
                (a, b, blank((m, n), np.float32), np.int32(m), np.int32(n), np.int32(k)), {2: Expected(a @ b)},
                tags=frozenset({"shared", "2-D"}))  # fmt: skip


def _mma(kind: str) -> Case:
    m, n, k = 128, 64, 96
    random = seeded(f"matmul_mma_{kind}")
    a = random.integers(-8, 8, (m, k)).astype(np.float32)
    b = random.integers(-8, 8, (k, n)).astype(np.float32)
    words = [to_bf16(side) if kind == "bf16" else side.astype(np.float16) for side in (a, b)]
    return Case(f"matmul_mma_{kind}", PATH, f"matmul_mma_{kind}", (n // 8, m // 64, 1), (128, 1, 1),
                (*words, blank((m, n), np.float32), np.int32(n), np.int32(k)), {2: Expected(a @ b)},
                tags=_MMA | {kind})  # fmt: skip


def _matmul_dp4a() -> Case:
    m, n, k = 24, 64, 72
    random = seeded("matmul_dp4a")
    a = random.integers(-128, 128, (m, k)).astype(np.int8)
    b = random.integers(-128, 128, (n, k)).astype(np.int8)
    return Case("matmul_dp4a", PATH, "matmul_dp4a", (2, 3, 1), (8, 8, 1),
                (a, b, blank((m, n), np.int32), np.int32(n), np.int32(k // 4)),
                {2: Expected(a.astype(np.int32) @ b.T.astype(np.int32))}, tags=frozenset({"2-D"}))  # fmt: skip


def attention(q: Array, k: Array, v: Array, causal: bool) -> Array:
    """One head, in double precision, scores scaled by the root of its width."""
    scores = q.astype(np.float64) @ k.astype(np.float64).T / np.sqrt(q.shape[1])
    if causal:
        scores[np.triu_indices(len(q), 1)] = -np.inf
    return softmax(scores) @ v


def _attention(name: str, causal: int) -> Case:
    length = 50
    q, k, v = seeded(name).standard_normal((3, length, 64)).astype(np.float32)
    return Case(name, PATH, "attention", (13, 1, 1), (32, 4, 1),
                (q, k, v, blank(q.shape, np.float32), np.int32(length), np.int32(causal)),
                {3: Expected(attention(q, k, v, bool(causal)), exact=False, rtol=1e-4, atol=1e-5)},
                tags=frozenset({"warp"}))  # fmt: skip
