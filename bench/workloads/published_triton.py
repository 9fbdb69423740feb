"""Published cases in Triton: a product of matrices whose last wave is nearly empty, and attention, with remedies.

``bench/published.py`` says what for. A product and its remedies are one function each, so that traces tell them apart.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import triton
import triton.language as tl
from published import Prepared

ROWS, COLUMNS, INNER = 2176, 2048, 8192
"""Of the product: 136 tiles of 128 x 256, four more than an H200 has multiprocessors."""
HEADS, LENGTH, WIDTH = 12, 1536, 64
"""Of attention: 144 blocks of 128 queries, twelve more than an H200 has multiprocessors."""
PUBLISHED_HEADS, PUBLISHED_LENGTH = 128, 4096
"""Batch 4 of 32 heads, as published: 4,096 blocks."""


@triton.jit
def _product(a, b, k, n, tile, first, count, tile_m: tl.constexpr, tile_n: tl.constexpr, tile_k: tl.constexpr):
    """Return part of a tile of a b: of ``count`` steps over k, from ``first`` on."""
    inner = first * tile_k + tl.arange(0, tile_k)
    rows = tile // (n // tile_n) * tile_m + tl.arange(0, tile_m)
    columns = tile % (n // tile_n) * tile_n + tl.arange(0, tile_n)
    left = a + rows[:, None] * k + inner[None, :]
    right = b + inner[:, None] * n + columns[None, :]
    total = tl.zeros((tile_m, tile_n), dtype=tl.float32)
    for _ in range(count):
        total = tl.dot(tl.load(left), tl.load(right), total)
        left += tile_k
        right += tile_k * n
    return total


@triton.jit
def _places(c, n, tile, tile_m: tl.constexpr, tile_n: tl.constexpr):
    """Return pointers to a tile of c."""
    rows = tile // (n // tile_n) * tile_m + tl.arange(0, tile_m)
    columns = tile % (n // tile_n) * tile_n + tl.arange(0, tile_n)
    return c + rows[:, None] * n + columns[None, :]


@triton.jit
def gemm_tiles(a, b, c, k, n, tile_m: tl.constexpr, tile_n: tl.constexpr, tile_k: tl.constexpr):
    """c = a b; a program computes a tile."""
    tile = tl.program_id(0)
    total = _product(a, b, k, n, tile, 0, k // tile_k, tile_m, tile_n, tile_k)
    tl.store(_places(c, n, tile, tile_m, tile_n), total)


@triton.jit
def gemm_small_tiles(a, b, c, k, n, tile_m: tl.constexpr, tile_n: tl.constexpr, tile_k: tl.constexpr):
    """The same; its tiles are half as large."""
    tile = tl.program_id(0)
    total = _product(a, b, k, n, tile, 0, k // tile_k, tile_m, tile_n, tile_k)
    tl.store(_places(c, n, tile, tile_m, tile_n), total)


@triton.jit
def gemm_stream_k(a, b, c, k, n, share, all_steps, tile_m: tl.constexpr, tile_n: tl.constexpr, tile_k: tl.constexpr):
    """c += a b; a program does an equal share of the steps over k of all tiles."""
    # No less than a tile has, so at most two programs add to a tile of zeros, in any order with the same bits.
    steps = k // tile_k
    begin = tl.program_id(0) * share
    end = tl.minimum(begin + share, all_steps)
    while begin < end:
        tile = begin // steps
        first = begin % steps
        count = tl.minimum(steps - first, end - begin)
        total = _product(a, b, k, n, tile, first, count, tile_m, tile_n, tile_k)
        tl.atomic_add(_places(c, n, tile, tile_m, tile_n), total, sem="relaxed")
        begin += count


@triton.jit
def _attend(q, k, v, out, length, scale, tile_q: tl.constexpr, tile_k: tl.constexpr, width: tl.constexpr):
    """out = softmax(q k^T * scale) v for a tile of queries of one head, in steps of tile_k keys."""
    head = tl.program_id(1) * length * width
    query = tl.program_id(0) * tile_q + tl.arange(0, tile_q)
    inner = tl.arange(0, width)
    queries = tl.load(q + head + query[:, None] * width + inner[None, :])
    greatest = tl.full((tile_q,), float("-inf"), dtype=tl.float32)
    weights = tl.zeros((tile_q,), dtype=tl.float32)
    total = tl.zeros((tile_q, width), dtype=tl.float32)
    for first in range(0, length, tile_k):
        key = first + tl.arange(0, tile_k)
        keys = tl.load(k + head + key[None, :] * width + inner[:, None])
        scores = tl.dot(queries, keys) * scale
        raised = tl.maximum(greatest, tl.max(scores, 1))
        shares = tl.exp2(scores - raised[:, None])
        fading = tl.exp2(greatest - raised)
        weights = weights * fading + tl.sum(shares, 1)
        values = tl.load(v + head + key[:, None] * width + inner[None, :])
        total = tl.dot(shares.to(tl.float16), values, total * fading[:, None])
        greatest = raised
    tl.store(out + head + query[:, None] * width + inner[None, :], (total / weights[:, None]).to(tl.float16))


@triton.jit
def attention_one(q, k, v, out, length, scale, tile_q: tl.constexpr, tile_k: tl.constexpr, width: tl.constexpr):
    """Attention with one block to a multiprocessor: 8 warps of about 160 registers leave no room for a second one."""
    _attend(q, k, v, out, length, scale, tile_q, tile_k, width)


@triton.jit
def attention_two(q, k, v, out, length, scale, tile_q: tl.constexpr, tile_k: tl.constexpr, width: tl.constexpr):
    """The same with two: half as many keys at a time, and 4 warps."""
    _attend(q, k, v, out, length, scale, tile_q, tile_k, width)


def _random(seed: int, *shape: int) -> torch.Tensor:
    """Return halves of this shape on the device, the same at every call with a seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).half().cuda()


def prepare(options: argparse.Namespace) -> dict[str, Prepared]:
    """Return the kernels of a case by name."""
    if options.case == "gemm":
        return _gemm()
    shape = (PUBLISHED_HEADS, PUBLISHED_LENGTH) if options.case == "attention_published" else (HEADS, LENGTH)
    return _attention(*shape)


def _gemm() -> dict[str, Prepared]:
    """Return the product by tiles, by tiles of half the size, and with the steps of all tiles shared equally."""
    m, n, k = ROWS, COLUMNS, INNER
    a, b = _random(1, m, k), _random(2, k, n)
    c = torch.empty(m, n, dtype=torch.float32, device="cuda")
    want = a.float() @ b.float()
    large = {"tile_m": 128, "tile_n": 256, "tile_k": 64, "num_warps": 8, "num_stages": 3}
    small = large | {"tile_n": 128}
    programs = torch.cuda.get_device_properties(0).multi_processor_count
    all_steps = (m // 128) * (n // 256) * (k // 64)
    share = max(-(-all_steps // programs), k // 64)

    def stream_k() -> None:
        """Set the sum to zero, and launch as many programs as there are multiprocessors."""
        c.zero_()
        gemm_stream_k[programs,](a, b, c, k, n, share, all_steps, **large)

    runs: dict[str, tuple[Callable[[], object], int]] = {
        "gemm_tiles": (lambda: gemm_tiles[m // 128 * (n // 256),](a, b, c, k, n, **large), m // 128 * (n // 256)),
        "gemm_small_tiles": (
            lambda: gemm_small_tiles[m // 128 * (n // 128),](a, b, c, k, n, **small), m // 128 * (n // 128)
        ),
        "gemm_stream_k": (stream_k, programs),
    }  # fmt: skip
    return {name: Prepared(launch, c, want, 0.05, {"grid": grid}) for name, (launch, grid) in runs.items()}


def _attention(heads: int, length: int) -> dict[str, Prepared]:
    """Return attention with one block to a multiprocessor, and with two."""
    q, k, v = (_random(seed, heads, length, WIDTH) for seed in (3, 4, 5))
    out = torch.empty_like(q)
    want = torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float())
    grid = (length // 128, heads)
    # The kernels' exponentials are of 2.
    scale = WIDTH**-0.5 * 1.44269504
    one = {"tile_q": 128, "tile_k": 128, "width": WIDTH, "num_warps": 8, "num_stages": 2}
    two = one | {"tile_k": 64, "num_warps": 4}
    runs: dict[str, Callable[[], object]] = {
        "attention_one": lambda: attention_one[grid](q, k, v, out, length, scale, **one),
        "attention_two": lambda: attention_two[grid](q, k, v, out, length, scale, **two),
    }
    return {name: Prepared(launch, out, want, 0.001, {"grid": grid[0] * grid[1]}) for name, launch in runs.items()}
