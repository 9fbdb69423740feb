"""Eleven kernels in Triton, as training and serving have them, timed by events, for ``triton_prices.py`` and others.

    python3 triton_eleven.py --out FILE [--rounds N] [--pause SECONDS] [--kernels NAME …]     on a GPU
    TRITON_INTERPRET=1 python3 triton_eleven.py --small --rounds 1 --out FILE                 on a CPU, to check them

Shapes, types, tiles and warps are those of ``KERNELS``; nothing is tuned at run time. Each kernel is launched twice
before the launches that count, and checked against PyTorch once. The output of every launch is digested; a report has
all digests that occurred.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import triton
import triton.language as tl

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
UNTIMED = 2
_BUSY = 2_000_000
"""Cycles, about a millisecond: longer than submitting a launch takes, with probes or without."""


@triton.jit
def gemm(a, b, c, m, n, k, tile_m: tl.constexpr, tile_n: tl.constexpr, tile_k: tl.constexpr):
    """c = a b, of m x k and k x n elements. A program computes a tile of c, tile_m x tile_n, in steps of tile_k."""
    rows = tl.program_id(0) * tile_m + tl.arange(0, tile_m)
    columns = tl.program_id(1) * tile_n + tl.arange(0, tile_n)
    inner = tl.arange(0, tile_k)
    left = a + rows[:, None] * k + inner[None, :]
    right = b + inner[:, None] * n + columns[None, :]
    total = tl.zeros((tile_m, tile_n), dtype=tl.float32)
    for _ in range(0, k, tile_k):
        total = tl.dot(tl.load(left), tl.load(right), total)
        left += tile_k
        right += tile_k * n
    tl.store(c + rows[:, None] * n + columns[None, :], total.to(tl.float16))


@triton.jit
def streamk_gemm(a, b, c, m, n, k, share, tile_m: tl.constexpr, tile_n: tl.constexpr, tile_k: tl.constexpr):
    """c += a b, where each program does an equal share of all tiles' steps over k. share: in such steps."""
    # Each program does an equal share of all steps over k, wherever tiles begin. A share is no less than a tile has, so
    # at most two programs add to a tile of zeros, and the order in which they do changes no bit.
    steps = k // tile_k
    begin = tl.program_id(0) * share
    end = tl.minimum(begin + share, (m // tile_m) * (n // tile_n) * steps)
    inner = tl.arange(0, tile_k)
    while begin < end:
        tile = begin // steps
        first = begin % steps
        count = tl.minimum(steps - first, end - begin)
        rows = tile // (n // tile_n) * tile_m + tl.arange(0, tile_m)
        columns = tile % (n // tile_n) * tile_n + tl.arange(0, tile_n)
        left = a + rows[:, None] * k + (first * tile_k + inner)[None, :]
        right = b + (first * tile_k + inner)[:, None] * n + columns[None, :]
        total = tl.zeros((tile_m, tile_n), dtype=tl.float32)
        for _ in range(count):
            total = tl.dot(tl.load(left), tl.load(right), total)
            left += tile_k
            right += tile_k * n
        tl.atomic_add(c + rows[:, None] * n + columns[None, :], total)
        begin += count


@triton.jit
def conv(x, w, y, height, width, channels: tl.constexpr, filters: tl.constexpr, tile_p: tl.constexpr,
         tile_f: tl.constexpr, tile_c: tl.constexpr):  # fmt: skip
    """Convolution, 3 x 3 and padded, as a product of matrices: x is [pixel][channel], w [3][3][channel][filter]."""
    # 3 x 3, padded, as a product of matrices: x is [pixel][channel], w [3][3][channel][filter], y [pixel][filter].
    pixel = tl.program_id(0) * tile_p + tl.arange(0, tile_p)
    filter_ = tl.program_id(1) * tile_f + tl.arange(0, tile_f)
    row, column = pixel // width, pixel % width
    total = tl.zeros((tile_p, tile_f), dtype=tl.float32)
    for tap in range(9):
        from_row, from_column = row + tap // 3 - 1, column + tap % 3 - 1
        inside = (from_row >= 0) & (from_row < height) & (from_column >= 0) & (from_column < width)
        source = (from_row * width + from_column) * channels
        for first in range(0, channels, tile_c):
            channel = first + tl.arange(0, tile_c)
            values = tl.load(x + source[:, None] + channel[None, :], mask=inside[:, None], other=0.0)
            weights = tl.load(w + (tap * channels + channel[:, None]) * filters + filter_[None, :])
            total = tl.dot(values, weights, total)
    tl.store(y + pixel[:, None] * filters + filter_[None, :], total.to(tl.float16))


@triton.jit
def grouped_gemm(a, b, c, sizes, groups, n: tl.constexpr, k: tl.constexpr, tile_m: tl.constexpr, tile_n: tl.constexpr,
                 tile_k: tl.constexpr):  # fmt: skip
    """Products of groups of rows of a, each with a matrix of its own in b. sizes: rows of each group."""
    # Rows of a in groups of the given sizes, each with a matrix of its own in b. Programs take tiles in turns.
    tile = tl.program_id(0)
    done = 0
    base = 0
    for group in range(groups):
        size = tl.load(sizes + group)
        tiles = tl.cdiv(size, tile_m) * (n // tile_n)
        while (tile >= done) & (tile < done + tiles):
            local = tile - done
            row = local // (n // tile_n) * tile_m + tl.arange(0, tile_m)
            column = local % (n // tile_n) * tile_n + tl.arange(0, tile_n)
            inside = row < size
            total = tl.zeros((tile_m, tile_n), dtype=tl.float32)
            for first in range(0, k, tile_k):
                inner = first + tl.arange(0, tile_k)
                left = tl.load(a + (base + row[:, None]) * k + inner[None, :], mask=inside[:, None], other=0.0)
                right = tl.load(b + (group * k + inner[:, None]) * n + column[None, :])
                total = tl.dot(left, right, total)
            tl.store(c + (base + row[:, None]) * n + column[None, :], total.to(tl.float16), mask=inside[:, None])
            tile += tl.num_programs(0)
        done += tiles
        base += size


@triton.jit
def attention(q, k, v, out, length, scale, tile_q: tl.constexpr, tile_k: tl.constexpr, width: tl.constexpr):
    """Causal attention, softmax(q k^T * scale) v; one head of one sequence a program on axis 1."""
    # Causal; one head of one sequence a program on axis 1.
    head = tl.program_id(1) * length * width
    query = tl.program_id(0) * tile_q + tl.arange(0, tile_q)
    inner = tl.arange(0, width)
    queries = tl.load(q + head + query[:, None] * width + inner[None, :])
    greatest = tl.full((tile_q,), float("-inf"), dtype=tl.float32)
    weights = tl.zeros((tile_q,), dtype=tl.float32)
    total = tl.zeros((tile_q, width), dtype=tl.float32)
    for first in range(0, (tl.program_id(0) + 1) * tile_q, tile_k):
        key = first + tl.arange(0, tile_k)
        keys = tl.load(k + head + key[None, :] * width + inner[:, None])
        scores = tl.dot(queries, keys) * scale
        scores = tl.where(query[:, None] >= key[None, :], scores, float("-inf"))
        raised = tl.maximum(greatest, tl.max(scores, 1))
        shares = tl.exp(scores - raised[:, None])
        fading = tl.exp(greatest - raised)
        weights = weights * fading + tl.sum(shares, 1)
        values = tl.load(v + head + key[:, None] * width + inner[None, :])
        total = tl.dot(shares.to(tl.float16), values, total * fading[:, None])
        greatest = raised
    tl.store(out + head + query[:, None] * width + inner[None, :], (total / weights[:, None]).to(tl.float16))


@triton.jit
def layernorm(x, weight, bias, y, columns, tile: tl.constexpr):
    """Normalise a row (a program each) of ``columns`` elements, then scale and shift it."""
    row = tl.program_id(0)
    column = tl.arange(0, tile)
    inside = column < columns
    values = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(values) / columns
    centred = tl.where(inside, values - mean, 0.0)
    variance = tl.sum(centred * centred) / columns
    scaled = centred / tl.sqrt(variance + 1e-5)
    result = scaled * tl.load(weight + column, mask=inside) + tl.load(bias + column, mask=inside)
    tl.store(y + row * columns + column, result.to(tl.float16), mask=inside)


@triton.jit
def softmax(x, y, columns, tile: tl.constexpr):
    """y = softmax of each row of x, of ``columns`` elements; a program a row, in a tile of no fewer elements."""
    row = tl.program_id(0)
    column = tl.arange(0, tile)
    inside = column < columns
    values = tl.load(x + row * columns + column, mask=inside, other=float("-inf"))
    shares = tl.exp(values - tl.max(values))
    tl.store(y + row * columns + column, shares / tl.sum(shares), mask=inside)


@triton.jit
def total(x, y, columns, tile: tl.constexpr):
    """y = the sum of each row of x, of ``columns`` elements; a program a row, tile by tile."""
    row = tl.program_id(0)
    column = tl.arange(0, tile)
    sums = tl.zeros((tile,), dtype=tl.float32)
    for first in range(0, columns, tile):
        sums += tl.load(x + row * columns + first + column)
    tl.store(y + row, tl.sum(sums))


@triton.jit
def pool(x, y, height, width, tile: tl.constexpr):
    """y = the greatest of each 2 x 2 pixels of x, [image][height][width]; a program computes ``tile`` of them."""
    # The greatest of each 2 x 2, of [image][row][column].
    out_width = width // 2
    place = tl.program_id(0) * tile + tl.arange(0, tile)
    row, column = place // out_width, place % out_width
    source = tl.program_id(1) * height * width + 2 * row * width + 2 * column
    inside = row < height // 2
    upper = tl.maximum(tl.load(x + source, mask=inside), tl.load(x + source + 1, mask=inside))
    lower = tl.maximum(tl.load(x + source + width, mask=inside), tl.load(x + source + width + 1, mask=inside))
    tl.store(y + tl.program_id(1) * (height // 2) * out_width + place, tl.maximum(upper, lower), mask=inside)


@triton.jit
def embedding(table, indices, y, width: tl.constexpr):
    """y = the row of a table, ``width`` elements, for each index; a program a row."""
    row = tl.load(indices + tl.program_id(0))
    column = tl.arange(0, width)
    tl.store(y + tl.program_id(0) * width + column, tl.load(table + row * width + column))


@triton.jit
def gather(x, indices, y, count, tile: tl.constexpr):
    """y = the element of x at each of ``count`` indices; a program computes ``tile`` of them."""
    place = tl.program_id(0) * tile + tl.arange(0, tile)
    inside = place < count
    tl.store(y + place, tl.load(x + tl.load(indices + place, mask=inside), mask=inside), mask=inside)


@dataclass(frozen=True)
class Prepared:
    """A kernel with its inputs. out: what it writes. want: what PyTorch computes. clear: out has to be 0 at first."""

    launch: Callable[[], object]
    out: torch.Tensor
    want: torch.Tensor
    clear: bool = False


def _random(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    """Random numbers of this shape on the device, the same at every call."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype).to(DEVICE)


def _gemm(small: bool) -> Prepared:
    """The kernel ``gemm`` with its inputs. small: shapes for Triton's interpreter."""
    m, n, k = (128, 128, 64) if small else (2048, 1024, 1024)
    a, b = _random(m, k), _random(k, n)
    c = torch.empty(m, n, dtype=torch.float16, device=DEVICE)
    tiles = {"tile_m": 128, "tile_n": 128, "tile_k": 32, "num_warps": 8, "num_stages": 3}
    return Prepared(lambda: gemm[m // 128, n // 128](a, b, c, m, n, k, **tiles), c, a @ b)


def _streamk_gemm(small: bool) -> Prepared:
    """The kernel ``streamk_gemm`` with its inputs. small: shapes for Triton's interpreter."""
    m, n, k = (256, 256, 64) if small else (1536, 1024, 1024)
    a, b = _random(m, k), _random(k, n)
    c = torch.zeros(m, n, dtype=torch.float32, device=DEVICE)
    tiles = {"tile_m": 128, "tile_n": 128, "tile_k": 32, "num_warps": 8, "num_stages": 3}
    steps = (m // 128) * (n // 128) * (k // 32)
    programs = 3 if small else 88
    share = -(-steps // programs)
    assert share >= k // 32
    run = lambda: streamk_gemm[programs,](a, b, c, m, n, k, share, **tiles)  # noqa: E731
    return Prepared(run, c, (a.float() @ b.float()), clear=True)


def _conv(small: bool) -> Prepared:
    """The kernel ``conv`` with its inputs. small: shapes for Triton's interpreter."""
    height, width, channels, filters = (8, 16, 32, 64) if small else (64, 64, 128, 128)
    x, w = _random(height * width, channels), _random(9 * channels, filters)
    y = torch.empty(height * width, filters, dtype=torch.float16, device=DEVICE)
    image = x.float().reshape(1, height, width, channels).permute(0, 3, 1, 2)
    weights = w.float().reshape(3, 3, channels, filters).permute(3, 2, 0, 1)
    want = torch.nn.functional.conv2d(image, weights, padding=1)[0].permute(1, 2, 0).reshape(y.shape)
    tiles = {"tile_p": 64, "tile_f": 64, "tile_c": 32, "num_warps": 4, "num_stages": 3}
    grid = (height * width // 64, filters // 64)
    return Prepared(lambda: conv[grid](x, w, y, height, width, channels, filters, **tiles), y, want)


def _grouped_gemm(small: bool) -> Prepared:
    """The kernel ``grouped_gemm`` with its inputs. small: shapes for Triton's interpreter."""
    sizes, n, k = ((70, 0, 130), 64, 64) if small else ((700, 0, 130, 1200, 64, 333, 512, 1), 1024, 512)
    a, b = _random(sum(sizes), k), _random(len(sizes) * k, n)
    c = torch.empty(sum(sizes), n, dtype=torch.float16, device=DEVICE)
    parts = zip(a.split(sizes), b.split(k), strict=True)
    want = torch.cat([left.float() @ right.float() for left, right in parts])
    counts = torch.tensor(sizes, dtype=torch.int32, device=DEVICE)
    tiles = {"tile_m": 64, "tile_n": 64, "tile_k": 32, "num_warps": 4, "num_stages": 3}
    grid = (5 if small else 132,)
    return Prepared(lambda: grouped_gemm[grid](a, b, c, counts, len(sizes), n, k, **tiles), c, want)


def _attention(small: bool) -> Prepared:
    """The kernel ``attention`` with its inputs. small: shapes for Triton's interpreter."""
    heads, length, width = (2, 128, 32) if small else (16, 1024, 64)
    q, k, v = (_random(heads, length, width) for _ in range(3))
    out = torch.empty_like(q)
    want = torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=True)
    tiles = {"tile_q": 64, "tile_k": 64, "width": width, "num_warps": 4, "num_stages": 2}
    grid = (length // 64, heads)
    return Prepared(lambda: attention[grid](q, k, v, out, length, width**-0.5, **tiles), out, want)


def _layernorm(small: bool) -> Prepared:
    """The kernel ``layernorm`` with its inputs. small: shapes for Triton's interpreter."""
    rows, columns = (5, 100) if small else (4096, 1000)
    x, weight, bias = _random(rows, columns), _random(columns), _random(columns)
    y = torch.empty_like(x)
    want = torch.nn.functional.layer_norm(x.float(), (columns,), weight.float(), bias.float())
    tile = triton.next_power_of_2(columns)
    return Prepared(lambda: layernorm[rows,](x, weight, bias, y, columns, tile=tile, num_warps=4), y, want)


def _softmax(small: bool) -> Prepared:
    """The kernel ``softmax`` with its inputs. small: shapes for Triton's interpreter."""
    rows, columns = (5, 100) if small else (4096, 1000)
    x = _random(rows, columns, dtype=torch.float32)
    y = torch.empty_like(x)
    tile = triton.next_power_of_2(columns)
    return Prepared(lambda: softmax[rows,](x, y, columns, tile=tile, num_warps=4), y, torch.softmax(x, 1))


def _sum(small: bool) -> Prepared:
    """The kernel ``total`` with its inputs. small: shapes for Triton's interpreter."""
    rows, columns = (3, 4096) if small else (1024, 8192)
    x = _random(rows, columns, dtype=torch.float32)
    y = torch.empty(rows, dtype=torch.float32, device=DEVICE)
    return Prepared(lambda: total[rows,](x, y, columns, tile=1024, num_warps=4), y, x.sum(1))


def _pool(small: bool) -> Prepared:
    """The kernel ``pool`` with its inputs. small: shapes for Triton's interpreter."""
    images, height, width = (2, 16, 16) if small else (64, 256, 256)
    x = _random(images, height, width, dtype=torch.float32)
    y = torch.empty(images, height // 2, width // 2, dtype=torch.float32, device=DEVICE)
    grid = (triton.cdiv(height * width // 4, 512), images)
    want = torch.nn.functional.max_pool2d(x[:, None], 2)[:, 0]
    return Prepared(lambda: pool[grid](x, y, height, width, tile=512, num_warps=4), y, want)


def _embedding(small: bool) -> Prepared:
    """The kernel ``embedding`` with its inputs. small: shapes for Triton's interpreter."""
    rows, count, width = (50, 9, 64) if small else (50000, 8192, 512)
    table = _random(rows, width)
    indices = torch.randint(rows, (count,), generator=torch.Generator().manual_seed(3)).to(DEVICE)
    y = torch.empty(count, width, dtype=torch.float16, device=DEVICE)
    return Prepared(lambda: embedding[count,](table, indices, y, width=width, num_warps=4), y, table[indices])


def _gather(small: bool) -> Prepared:
    """The kernel ``gather`` with its inputs. small: shapes for Triton's interpreter."""
    size, count = (1000, 700) if small else (1 << 24, 1 << 21)
    x = _random(size, dtype=torch.float32)
    indices = torch.randint(size, (count,), generator=torch.Generator().manual_seed(4)).to(DEVICE)
    y = torch.empty(count, dtype=torch.float32, device=DEVICE)
    grid = (triton.cdiv(count, 1024),)
    return Prepared(lambda: gather[grid](x, indices, y, count, tile=1024, num_warps=4), y, x[indices])


KERNELS: dict[str, Callable[[bool], Prepared]] = {
    "gemm": _gemm, "streamk_gemm": _streamk_gemm, "conv": _conv, "grouped_gemm": _grouped_gemm,
    "attention": _attention, "layernorm": _layernorm, "softmax": _softmax, "total": _sum, "pool": _pool,
    "embedding": _embedding, "gather": _gather,
}  # fmt: skip
"""By the kernel's name in the program, and in traces."""


def _timed(launch: Callable[[], object]) -> float:
    """Milliseconds that a launch takes, by events on a GPU, by the clock in the interpreter."""
    if DEVICE == "cpu":
        begin = time.perf_counter()
        launch()
        return 1e3 * (time.perf_counter() - begin)
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    # The GPU is busy until everything is submitted; otherwise the events would time the submission.
    torch.cuda._sleep(_BUSY)
    before.record()
    launch()
    after.record()
    torch.cuda.synchronize()
    return float(before.elapsed_time(after))


def _run(name: str, rounds: int, pause: float, *, small: bool) -> dict[str, object]:
    """Launch a kernel UNTIMED + ``rounds`` times, and check it against PyTorch: ms of the rounds, digests of all
    outputs. pause: seconds after each launch.
    """
    prepared = KERNELS[name](small)
    times: list[float] = []
    outputs: set[str] = set()
    for number in range(UNTIMED + rounds):
        prepared.out.fill_(0 if prepared.clear else float("nan"))
        if DEVICE != "cpu":
            torch.cuda.synchronize()
        milliseconds = _timed(prepared.launch)
        if number >= UNTIMED:
            times.append(round(milliseconds, 6))
        data = prepared.out.cpu().contiguous().view(torch.uint8).numpy().tobytes()
        outputs.add(hashlib.sha256(data).hexdigest())
        time.sleep(pause)
    torch.testing.assert_close(prepared.out.float(), prepared.want.float(), atol=0.1, rtol=0.02)
    return {"ms": times, "output": " ".join(sorted(outputs))}


def main() -> int:
    """Run the kernels that the command line names, and write the report. Returns the exit status 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each launch")
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=list(KERNELS))
    parser.add_argument("--small", action="store_true", help="small shapes, for the interpreter")
    options = parser.parse_args()
    rows = {name: _run(name, options.rounds, options.pause, small=options.small) for name in options.kernels}
    options.out.write_text(json.dumps({"kernels": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
