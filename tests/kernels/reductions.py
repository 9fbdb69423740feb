"""Many values to one, over threads, warps, blocks and the grid; the first two norms of a network."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.kernels.model import FIXTURES, Array, Case, Expected, blank, seeded

PATH = FIXTURES / "clang" / "reductions.ptx"
HISTOGRAMS = FIXTURES / "clang" / "histograms.ptx"


def cases() -> Iterator[Case]:
    """The kernels of reductions.cu and histograms.cu."""
    yield from (_reduce_shared(), *_reduce_shuffles(), _reduce_redux(), _argmax(), _softmax(), _layernorm())
    yield _dot_double()
    yield from (_histogram_global(), _histogram_shared(), _histogram_private())


def _reduce_shared() -> Case:
    # Float sums in the kernel's own order: each thread over its stride, then halves of the block.
    grid, block, n = 12, 128, 12 * 128 * 6 + 77
    x = seeded("reduce_shared").standard_normal(n).astype(np.float32)
    padded = np.zeros(grid * block * 7, np.float32)
    padded[:n] = x
    sums = np.zeros((grid, block), np.float32)
    for row in padded.reshape(7, grid, block):
        sums = sums + row
    while sums.shape[1] > 1:
        half = sums.shape[1] // 2
        sums = sums[:, :half] + sums[:, half:]
    return Case("reduce_shared", PATH, "reduce_shared", (grid, 1, 1), (block, 1, 1),
                (x, blank(grid, np.float32), np.int32(n)), {1: Expected(sums[:, 0])}, shared=block * 4,
                tags=frozenset({"shared"}))  # fmt: skip


def _reduce_shuffles() -> Iterator[Case]:
    # Whole numbers, whose float sums are exact in any order.
    for name, blocks, threads, n in (("reduce_shuffle", 8, 256, 20000), ("reduce_shuffle_many_blocks", 300, 64, 30000)):
        x = seeded(name).integers(-9, 10, n).astype(np.float32)
        start = np.array([3], np.float32)
        total = start + x.sum(dtype=np.float64).astype(np.float32)
        yield Case(name, PATH, "reduce_shuffle", (blocks, 1, 1), (threads, 1, 1), (x, start, np.int32(n)),
                   {1: Expected(total)}, tags=frozenset({"warp", "atomic"}))  # fmt: skip


def _reduce_redux() -> Case:
    n = 9000
    x = seeded("reduce_redux").integers(-(1 << 31), 1 << 31, n).astype(np.int32)
    start = np.array([5, 2**31 - 1, -(2**31), 0], np.int32)
    total = np.array([5 + int(x.sum(dtype=np.int64))]).astype(np.uint32).view(np.int32)[0]
    want = np.array([total, min(x.min(), 0), max(x.max(), 0), np.bitwise_xor.reduce(x)], np.int32)
    return Case("reduce_redux", PATH, "reduce_redux", (36, 1, 1), (256, 1, 1), (x, start, np.int32(n)),
                {1: Expected(want)}, tags=frozenset({"warp", "atomic"}))  # fmt: skip


def _argmax() -> Case:
    rows, columns = 20, 700
    x = seeded("argmax").integers(0, 200, (rows, columns)).astype(np.float32)
    return Case("argmax", PATH, "argmax", (rows, 1, 1), (128, 1, 1), (x, blank(rows, np.int32), np.int32(columns)),
                {1: Expected(x.argmax(1).astype(np.int32))}, tags=frozenset({"shared"}))  # fmt: skip


def softmax(x: Array) -> Array:
    """Over the last axis, in double precision."""
    e = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _softmax() -> Case:
    rows, columns = 24, 333
    x = seeded("softmax").standard_normal((rows, columns)).astype(np.float32) * 4
    return Case("softmax", PATH, "softmax", (rows, 1, 1), (128, 1, 1),
                (x, blank(x.shape, np.float32), np.int32(columns)),
                {1: Expected(softmax(x), exact=False, rtol=1e-5, atol=1e-9)}, shared=512,
                tags=frozenset({"shared"}))  # fmt: skip


def layernorm(x: Array, gain: Array, bias: Array) -> Array:
    """Over the last axis, in double precision, epsilon 1e-5."""
    x = x.astype(np.float64)
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * gain + bias


def _layernorm() -> Case:
    rows, columns = 30, 300
    random = seeded("layernorm")
    x = random.standard_normal((rows, columns)).astype(np.float32) * 3 + 1
    gain, bias = random.standard_normal((2, columns)).astype(np.float32)
    return Case("layernorm", PATH, "layernorm", (8, 1, 1), (32, 4, 1),
                (x, gain, bias, blank(x.shape, np.float32), np.int32(rows), np.int32(columns)),
                {3: Expected(layernorm(x, gain, bias), exact=False, rtol=2e-5, atol=2e-5)},
                tags=frozenset({"warp"}))  # fmt: skip


def _dot_double() -> Case:
    n = 9000
    x, y = seeded("dot_double").integers(-1000, 1000, (2, n)).astype(np.float64)
    return Case("dot_double", PATH, "dot_double", (6, 1, 1), (256, 1, 1), (x, y, np.zeros(1), np.int32(n)),
                {2: Expected(np.array([x @ y]))}, tags=frozenset({"f64", "shared", "atomic"}))  # fmt: skip


def _bytes(name: str, n: int) -> Array:
    # Uneven on purpose: the same few bins are met by many lanes at once.
    return (seeded(name).standard_normal(n) * 40 + 100).clip(0, 255).astype(np.uint8)


def _histogram_global() -> Case:
    n = 9999
    data = _bytes("histogram_global", n)
    return Case("histogram_global", HISTOGRAMS, "histogram_global", (10, 1, 1), (1000, 1, 1),
                (data, np.zeros(256, np.uint32), np.int32(n)),
                {1: Expected(np.bincount(data, minlength=256).astype(np.uint32))},
                tags=frozenset({"atomic"}))  # fmt: skip


def _histogram_shared() -> Case:
    n = 20000
    data = _bytes("histogram_shared", n)
    return Case("histogram_shared", HISTOGRAMS, "histogram_shared", (8, 1, 1), (256, 1, 1),
                (data, np.zeros(256, np.uint32), np.int32(n)),
                {1: Expected(np.bincount(data, minlength=256).astype(np.uint32))},
                tags=frozenset({"atomic", "shared"}))  # fmt: skip


def _histogram_private() -> Case:
    each = 30
    data = _bytes("histogram_private", 6 * 64 * each)
    return Case("histogram_private", HISTOGRAMS, "histogram_private", (6, 1, 1), (64, 1, 1),
                (data, np.zeros(16, np.uint32), np.int32(each)),
                {1: Expected(np.bincount(data >> 4, minlength=16).astype(np.uint32))},
                tags=frozenset({"atomic", "shared"}))  # fmt: skip
