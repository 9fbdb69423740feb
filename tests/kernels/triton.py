"""Kernels that Triton compiled."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from tests.kernels import matrices
from tests.kernels.floats import from_bf16, to_bf16
from tests.kernels.model import FIXTURES, Array, Case, Expected, blank, seeded
from tests.kernels.reductions import layernorm, softmax

FOLDER = FIXTURES / "triton"
_LAUNCHES = json.loads((FOLDER / "launch.json").read_text())
_NO_SCRATCH = (np.uint64(0), np.uint64(0))
"""Triton's own parameters at the end: scratch memory, which these kernels do not use."""


def cases() -> Iterator[Case]:
    """The variants of triton/compile.py."""
    yield from (_add("add", np.float32), _add("add_f16_sm_90", np.float16))
    yield from (_softmax("softmax"), _softmax("softmax_sm_90"), _layernorm(), _gelu())
    yield from (_cumulative_sum(), _histogram(), _transpose(), _gather(), _sort(), _argmax(), _random_words())
    yield from (_matmul("matmul_f16"), _matmul("matmul_bf16_sm_90"), _matmul("matmul_tf32"), _matmul_int8())
    yield from (_attention("attention", 64), _attention("attention_bf16_sm_90", 32))


def _case(
    name: str, kernel: str, grid: tuple[int, int], arguments: tuple[Array | np.generic, ...],
    expected: dict[int, Expected],
) -> Case:  # fmt: skip
    launch = _LAUNCHES[name]
    return Case(f"triton_{name}", FOLDER / f"{name}.ptx", kernel, (*grid, 1), (launch["threads"], 1, 1),
                (*arguments, *_NO_SCRATCH), expected, shared=launch["shared"],
                tags=frozenset({"triton"}))  # fmt: skip


def _add(name: str, kind: type) -> Case:
    n = 4900
    x, y = seeded(name).standard_normal((2, n)).astype(kind)
    out = blank(n + 8, kind)
    want = out.copy()
    want[:n] = x + y
    return _case(name, "add", (5, 1), (x, y, out, np.int32(n)), {2: Expected(want)})


def _softmax(name: str) -> Case:
    rows, columns = 12, 443
    x = seeded(name).standard_normal((rows, columns)).astype(np.float32) * 3
    return _case(name, "softmax", (rows, 1), (x, blank(x.shape, np.float32), np.int32(columns)),
                 {1: Expected(softmax(x), exact=False, rtol=1e-5, atol=1e-9)})  # fmt: skip


def _layernorm() -> Case:
    rows, columns = 20, 500
    random = seeded("layernorm_bf16")
    x = to_bf16(random.standard_normal((rows, columns)) * 2 + 1)
    gain, bias = random.standard_normal((2, columns)).astype(np.float32)
    want = layernorm(from_bf16(x), gain, bias)
    return _case("layernorm_bf16", "layernorm", (rows, 1),
                 (x, gain, bias, blank(x.shape, np.float32), np.int32(columns)),
                 {3: Expected(want, exact=False, rtol=2e-5, atol=2e-5)})  # fmt: skip


def _gelu() -> Case:
    # Values whose result is far from the middle between two bfloat16 numbers: an error in the last place of the
    # exponential does not show in the rounded result.
    x = from_bf16(to_bf16(seeded("gelu").standard_normal(16000) * 2))
    exact = x / (1 + np.exp(-1.702 * x.astype(np.float64)))
    near = [to_bf16((exact * scale).astype(np.float32)) for scale in (1 - 1e-4, 1 + 1e-4)]
    kept = np.nonzero(near[0] == near[1])[0][:4000]
    return _case("gelu_sm_90", "gelu", (8, 1), (to_bf16(x[kept]), blank(4000, np.uint16), np.int32(4000)),
                 {1: Expected(near[0][kept])})  # fmt: skip


def _cumulative_sum() -> Case:
    x = seeded("cumulative_sum").integers(-(1 << 31), 1 << 31, (8, 1024)).astype(np.int32)
    return _case("cumulative_sum", "cumulative_sum", (8, 1), (x, blank(x.shape, np.int32), np.int32(x.size)),
                 {1: Expected(x.cumsum(1, dtype=np.int32))})  # fmt: skip


def _histogram() -> Case:
    n = 7000
    x = seeded("triton_histogram").integers(0, 50, n).astype(np.int32)
    return _case("histogram", "histogram", (14, 1), (x, np.zeros(64, np.int32), np.int32(n)),
                 {1: Expected(np.bincount(x, minlength=64).astype(np.int32))})  # fmt: skip


def _transpose() -> Case:
    x = seeded("transpose_i8").integers(-128, 128, (96, 96)).astype(np.int8)
    return _case("transpose_i8", "transpose", (3, 3), (x, blank(x.shape, np.int8), np.int32(96)),
                 {1: Expected(np.ascontiguousarray(x.T))})  # fmt: skip


def _gather() -> Case:
    n = 5000
    random = seeded("gather")
    x = random.integers(-(1 << 63), 1 << 63, n)
    places = random.integers(-500, n + 500, n).astype(np.int32)
    inside = (places >= 0) & (places < n)
    want = np.where(inside, x[np.where(inside, places, 0)], -1)
    return _case("gather_i64_sm_90", "gather", (10, 1), (x, places, blank(n, np.int64), np.int32(n)),
                 {2: Expected(want)})  # fmt: skip


def _sort() -> Case:
    x = seeded("triton_sort").standard_normal((12, 128)).astype(np.float32)
    return _case("sort", "sort", (12, 1), (x, blank(x.shape, np.float32), np.int32(x.size)),
                 {1: Expected(np.sort(x, 1))})  # fmt: skip


def _argmax() -> Case:
    rows, columns = 30, 400
    x = seeded("triton_argmax").integers(0, 100, (rows, columns)).astype(np.float32)
    return _case("argmax", "argmax", (rows, 1), (x, blank(rows, np.int32), np.int32(columns)),
                 {1: Expected(x.argmax(1).astype(np.int32))})  # fmt: skip


def philox(seed: int, counter: Array) -> Array:
    """The first word of Philox-4x32-10 (Salmon et al., SC11) of a counter below 2**32."""
    c = [counter.astype(np.uint64), *(np.zeros(len(counter), np.uint64) for _ in range(3))]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    word, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(10):
        even, odd = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [odd >> half ^ c[1] ^ np.uint64(key[0]), odd & word, even >> half ^ c[3] ^ np.uint64(key[1]), even & word]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c[0].astype(np.uint32)


def _random_words() -> Case:
    n, seed = 2000, 20261121
    return _case("random_words", "random_words", (4, 1), (blank(n, np.uint32), np.int32(seed), np.int32(n)),
                 {0: Expected(philox(seed, np.arange(n)))})  # fmt: skip


def _matmul(name: str) -> Case:
    # Whole numbers: exact in every one of the formats, and so are all partial sums.
    m, n, k = 64, 96, 96
    random = seeded(name)
    a = random.integers(-8, 8, (m, k)).astype(np.float32)
    b = random.integers(-8, 8, (k, n)).astype(np.float32)
    narrow = {"matmul_f16": lambda side: side.astype(np.float16), "matmul_bf16_sm_90": to_bf16}.get(name, np.copy)
    return _case(name, "matmul", (m // 32, n // 32),
                 (narrow(a), narrow(b), blank((m, n), np.float32), np.int32(n), np.int32(k)),
                 {2: Expected(a @ b)})  # fmt: skip


def _matmul_int8() -> Case:
    m, n, k = 64, 64, 128
    random = seeded("matmul_int8")
    a, b = (random.integers(-128, 128, shape).astype(np.int8) for shape in ((m, k), (k, n)))
    return _case("matmul_int8", "matmul_int8", (m // 32, n // 32),
                 (a, b, blank((m, n), np.int32), np.int32(n), np.int32(k)),
                 {2: Expected(a.astype(np.int32) @ b.astype(np.int32))})  # fmt: skip


def _attention(name: str, block: int) -> Case:
    # The weights are rounded to the inputs' format before the second product, which sets the tolerance.
    length = 128
    q, k, v = seeded(name).standard_normal((3, length, 32)).astype(np.float32)
    if "bf16" in name:
        words = [to_bf16(side) for side in (q, k, v)]
        q, k, v = (from_bf16(side) for side in words)
        tolerance = 1e-2
    else:
        words = [side.astype(np.float16) for side in (q, k, v)]
        q, k, v = (side.astype(np.float32) for side in words)
        tolerance = 1e-3
    want = matrices.attention(q, k, v, causal=False)
    return _case(name, "attention", (length // block, 1), (*words, blank(q.shape, np.float32), np.int32(length)),
                 {3: Expected(want, exact=False, rtol=tolerance, atol=tolerance)})  # fmt: skip
