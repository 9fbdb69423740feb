"""What probes cost on kernels that hurt: those of ``triton_eleven.py`` in three sizes, and variants of four.

    python3 triton_prices.py --out FILE [--rounds N] [--pause SECONDS] [--kernels NAME …] [--sizes SIZE …]  on a GPU
    TRITON_INTERPRET=1 python3 triton_prices.py --sizes check --rounds 1 --out FILE          on a CPU, to check them

``quarter`` and ``usual`` are the sizes of training and serving; ``large`` takes 200 µs or more and reads more than the
L2 cache holds. Variants: rows that lie transposed, odd lengths, and 32-bit floats. All of them were fixed before
anything was measured. Launches are timed, checked and digested as in ``triton_eleven.py``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
import triton
import triton.language as tl
import triton_eleven as eleven
from triton_eleven import DEVICE, UNTIMED, Prepared

SIZES = ("quarter", "usual", "large", "check")


@triton.jit
def row_softmax(x, y, columns, row_stride, column_stride, tile: tl.constexpr):
    """y = softmax of each row of x, a program a row, whatever the strides of both, in elements."""
    row = tl.program_id(0).to(tl.int64) * row_stride
    column = tl.arange(0, tile)
    inside = column < columns
    place = row + column * column_stride
    values = tl.load(x + place, mask=inside, other=float("-inf")).to(tl.float32)
    shares = tl.exp(values - tl.max(values))
    tl.store(y + place, (shares / tl.sum(shares)).to(y.dtype.element_ty), mask=inside)


@triton.jit
def row_layernorm(x, weight, bias, y, columns, row_stride, column_stride, tile: tl.constexpr):
    """Normalise each row of x, a program a row, whatever the strides of x and y, in elements."""
    row = tl.program_id(0).to(tl.int64) * row_stride
    column = tl.arange(0, tile)
    inside = column < columns
    place = row + column * column_stride
    values = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(values) / columns
    centred = tl.where(inside, values - mean, 0.0)
    scaled = centred / tl.sqrt(tl.sum(centred * centred) / columns + 1e-5)
    result = scaled * tl.load(weight + column, mask=inside) + tl.load(bias + column, mask=inside)
    tl.store(y + place, result.to(y.dtype.element_ty), mask=inside)


@triton.jit
def row_embedding(table, indices, y, width, row_stride, column_stride, tile: tl.constexpr):
    """y = the row of a table for each index, a program a row. The strides are the table's, in elements."""
    row = tl.load(indices + tl.program_id(0)).to(tl.int64) * row_stride
    column = tl.arange(0, tile)
    inside = column < width
    values = tl.load(table + row + column * column_stride, mask=inside)
    tl.store(y + tl.program_id(0).to(tl.int64) * width + column, values, mask=inside)


@triton.jit
def rotary(x, cosine, sine, y, length, half, row_stride, column_stride, tile: tl.constexpr):
    """Turn the two halves of each row of x by the angles of the row's place in its sequence, a program a row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, tile)
    inside = column < half
    angle = (row % length) * half + column
    cos = tl.load(cosine + angle, mask=inside)
    sin = tl.load(sine + angle, mask=inside)
    place = row * row_stride + column * column_stride
    other = place + half * column_stride
    left = tl.load(x + place, mask=inside).to(tl.float32)
    right = tl.load(x + other, mask=inside).to(tl.float32)
    tl.store(y + place, (left * cos - right * sin).to(y.dtype.element_ty), mask=inside)
    tl.store(y + other, (right * cos + left * sin).to(y.dtype.element_ty), mask=inside)


def _random(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    """Random numbers of this shape, the same at every call, made on the device: large ones take seconds elsewhere."""
    generator = torch.Generator(device=DEVICE).manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, device=DEVICE).to(dtype)


def _pick(size: str, quarter: int, usual: int, large: int, check: int) -> int:
    """The dimension of a size."""
    return {"quarter": quarter, "usual": usual, "large": large, "check": check}[size]


def _gemm(size: str) -> Prepared:
    """A product of matrices, in tiles of 128 x 128."""
    m, n, k = (_pick(size, 1024, 2048, 8192, 128), _pick(size, 512, 1024, 4096, 128), _pick(size, 512, 1024, 4096, 64))
    a, b = _random(m, k), _random(k, n)
    c = torch.empty(m, n, dtype=torch.float16, device=DEVICE)
    tiles = {"tile_m": 128, "tile_n": 128, "tile_k": 32, "num_warps": 8, "num_stages": 3}
    return Prepared(lambda: eleven.gemm[m // 128, n // 128](a, b, c, m, n, k, **tiles), c, a @ b)


def _streamk_gemm(size: str) -> Prepared:
    """A product of matrices whose steps programs share equally, two at most adding to a tile."""
    m, n, k = (_pick(size, 768, 1536, 6144, 256), _pick(size, 512, 1024, 4096, 256), _pick(size, 512, 1024, 4096, 64))
    a, b = _random(m, k), _random(k, n)
    c = torch.zeros(m, n, dtype=torch.float32, device=DEVICE)
    tiles = {"tile_m": 128, "tile_n": 128, "tile_k": 32, "num_warps": 8, "num_stages": 3}
    steps = (m // 128) * (n // 128) * (k // 32)
    programs = _pick(size, 22, 88, 132, 3)
    share = -(-steps // programs)
    run = lambda: eleven.streamk_gemm[programs,](a, b, c, m, n, k, share, **tiles)  # noqa: E731
    return Prepared(run, c, a.float() @ b.float(), clear=True)


def _conv(size: str) -> Prepared:
    """A convolution of 3 x 3."""
    height, width = _pick(size, 32, 64, 512, 8), _pick(size, 64, 64, 512, 16)
    channels, filters = _pick(size, 128, 128, 128, 32), _pick(size, 64, 128, 128, 64)
    x, w = _random(height * width, channels), _random(9 * channels, filters)
    y = torch.empty(height * width, filters, dtype=torch.float16, device=DEVICE)
    image = x.float().reshape(1, height, width, channels).permute(0, 3, 1, 2)
    weights = w.float().reshape(3, 3, channels, filters).permute(3, 2, 0, 1)
    want = torch.nn.functional.conv2d(image, weights, padding=1)[0].permute(1, 2, 0).reshape(y.shape)
    tiles = {"tile_p": 64, "tile_f": 64, "tile_c": 32, "num_warps": 4, "num_stages": 3}
    grid = (height * width // 64, filters // 64)
    return Prepared(lambda: eleven.conv[grid](x, w, y, height, width, channels, filters, **tiles), y, want)


def _grouped_gemm(size: str) -> Prepared:
    """Products of groups of rows, some empty or of one row."""
    usual = (700, 0, 130, 1200, 64, 333, 512, 1)
    groups = {"quarter": (175, 0, 33, 300, 16, 83, 128, 1), "usual": usual,
              "large": tuple(16 * rows for rows in usual), "check": (70, 0, 130)}[size]  # fmt: skip
    n, k = (64, 64) if size == "check" else (1024, 512)
    a, b = _random(sum(groups), k), _random(len(groups) * k, n)
    c = torch.empty(sum(groups), n, dtype=torch.float16, device=DEVICE)
    want = torch.cat([left.float() @ right.float() for left, right in zip(a.split(groups), b.split(k), strict=True)])
    counts = torch.tensor(groups, dtype=torch.int32, device=DEVICE)
    tiles = {"tile_m": 64, "tile_n": 64, "tile_k": 32, "num_warps": 4, "num_stages": 3}
    grid = (_pick(size, 132, 132, 528, 5),)
    return Prepared(lambda: eleven.grouped_gemm[grid](a, b, c, counts, len(groups), n, k, **tiles), c, want)


def _attention(size: str) -> Prepared:
    """Causal attention."""
    heads, length, width = _pick(size, 16, 16, 64, 2), _pick(size, 512, 1024, 4096, 128), _pick(size, 64, 64, 64, 32)
    q, k, v = (_random(heads, length, width) for _ in range(3))
    out = torch.empty_like(q)
    want = torch.empty(heads, length, width, device=DEVICE)
    for head in range(heads):
        one = (part[head : head + 1].float() for part in (q, k, v))
        want[head] = torch.nn.functional.scaled_dot_product_attention(*one, is_causal=True)[0]
    tiles = {"tile_q": 64, "tile_k": 64, "width": width, "num_warps": 4, "num_stages": 2}
    grid = (length // 64, heads)
    return Prepared(lambda: eleven.attention[grid](q, k, v, out, length, width**-0.5, **tiles), out, want)


def _layernorm(size: str) -> Prepared:
    """As in ``triton_eleven.py``."""
    rows, columns = _pick(size, 1024, 4096, 262144, 5), _pick(size, 1000, 1000, 1000, 100)
    x, weight, bias = _random(rows, columns), _random(columns), _random(columns)
    y = torch.empty_like(x)
    want = torch.nn.functional.layer_norm(x.float(), (columns,), weight.float(), bias.float())
    tile = triton.next_power_of_2(columns)
    return Prepared(lambda: eleven.layernorm[rows,](x, weight, bias, y, columns, tile=tile, num_warps=4), y, want)


def _softmax(size: str) -> Prepared:
    """As in ``triton_eleven.py``."""
    rows, columns = _pick(size, 1024, 4096, 131072, 5), _pick(size, 1000, 1000, 1000, 100)
    x = _random(rows, columns, dtype=torch.float32)
    y = torch.empty_like(x)
    tile = triton.next_power_of_2(columns)
    return Prepared(lambda: eleven.softmax[rows,](x, y, columns, tile=tile, num_warps=4), y, torch.softmax(x, 1))


def _total(size: str) -> Prepared:
    """Sums of rows."""
    rows, columns = _pick(size, 256, 1024, 32768, 3), _pick(size, 8192, 8192, 8192, 4096)
    x = _random(rows, columns, dtype=torch.float32)
    y = torch.empty(rows, dtype=torch.float32, device=DEVICE)
    return Prepared(lambda: eleven.total[rows,](x, y, columns, tile=1024, num_warps=4), y, x.sum(1))


def _pool(size: str) -> Prepared:
    """The greatest of each 2 x 2 pixels."""
    images, height, width = _pick(size, 16, 64, 4096, 2), _pick(size, 256, 256, 256, 16), _pick(size, 256, 256, 256, 16)
    x = _random(images, height, width, dtype=torch.float32)
    y = torch.empty(images, height // 2, width // 2, dtype=torch.float32, device=DEVICE)
    grid = (triton.cdiv(height * width // 4, 512), images)
    want = torch.nn.functional.max_pool2d(x[:, None], 2)[:, 0]
    return Prepared(lambda: eleven.pool[grid](x, y, height, width, tile=512, num_warps=4), y, want)


def _embedding(size: str) -> Prepared:
    """As in ``triton_eleven.py``."""
    rows, count, width = _pick(size, 50000, 50000, 250000, 50), _pick(size, 2048, 8192, 524288, 9), 512
    table, indices = _random(rows, width), _indices(rows, count)
    y = torch.empty(count, width, dtype=torch.float16, device=DEVICE)
    run = lambda: eleven.embedding[count,](table, indices, y, width=width, num_warps=4)  # noqa: E731
    return Prepared(run, y, table[indices])


def _gather(size: str) -> Prepared:
    """Elements at random places of 64 MiB."""
    length, count = _pick(size, 1 << 22, 1 << 24, 1 << 26, 1000), _pick(size, 1 << 19, 1 << 21, 1 << 24, 700)
    x, indices = _random(length, dtype=torch.float32), _indices(length, count)
    y = torch.empty(count, dtype=torch.float32, device=DEVICE)
    grid = (triton.cdiv(count, 1024),)
    return Prepared(lambda: eleven.gather[grid](x, indices, y, count, tile=1024, num_warps=4), y, x[indices])


def _indices(below: int, count: int) -> torch.Tensor:
    """So many random places below a number, the same at every call."""
    return torch.randint(below, (count,), generator=torch.Generator().manual_seed(count)).to(DEVICE)


def _matrix(rows: int, columns: int, variant: str) -> torch.Tensor:
    """A random matrix of a variant: its columns are contiguous, not its rows, where that is ``transposed``."""
    dtype = torch.float32 if variant == "fp32" else torch.float16
    if variant == "transposed":
        return _random(columns, rows, dtype=dtype).t()
    return _random(rows, columns, dtype=dtype)


def _shape(size: str, variant: str, columns: int) -> tuple[int, int]:
    """Rows and columns of a variant: about as many elements in each, and odd numbers where that is ``odd``."""
    rows = _pick(size, 2048, 8192, 131072, 6)
    columns = 64 if size == "check" else columns
    return (rows - 1, columns - 13) if variant == "odd" else (rows, columns)


def _row_softmax(variant: str, size: str) -> Prepared:
    """A variant of softmax."""
    rows, columns = _shape(size, variant, 1024)
    x = _matrix(rows, columns, variant)
    y = torch.empty_like(x)
    tile = triton.next_power_of_2(columns)
    run = lambda: row_softmax[rows,](x, y, columns, *x.stride(), tile=tile, num_warps=4)  # noqa: E731
    return Prepared(run, y, torch.softmax(x.float(), 1))


def _row_layernorm(variant: str, size: str) -> Prepared:
    """A variant of layernorm."""
    rows, columns = _shape(size, variant, 1024)
    x, weight, bias = _matrix(rows, columns, variant), _random(columns), _random(columns)
    y = torch.empty_like(x)
    want = torch.nn.functional.layer_norm(x.float(), (columns,), weight.float(), bias.float())
    tile = triton.next_power_of_2(columns)
    run = lambda: row_layernorm[rows,](x, weight, bias, y, columns, *x.stride(), tile=tile, num_warps=4)  # noqa: E731
    return Prepared(run, y, want)


def _row_embedding(variant: str, size: str) -> Prepared:
    """A variant of the embedding."""
    count, width = _shape(size, variant, 512)
    rows = 50 if size == "check" else 50000
    table, indices = _matrix(rows, width, variant), _indices(rows, count)
    y = torch.empty(count, width, dtype=table.dtype, device=DEVICE)
    tile = triton.next_power_of_2(width)
    run = lambda: row_embedding[count,](table, indices, y, width, *table.stride(), tile=tile, num_warps=4)  # noqa: E731
    return Prepared(run, y, table[indices].contiguous())


def _rotary(variant: str, size: str) -> Prepared:
    """A variant of the rotary embedding: 32 heads of a sequence, 128 elements each."""
    rows, width = _shape(size, variant, 128)
    rows *= 1 if size == "check" else 4
    half, length = width // 2, 3 if size == "check" else 4096
    x = _matrix(rows, 2 * half, variant)
    # On the device: processors round differently in one run or another.
    frequency = 10000 ** (-torch.arange(half, device=DEVICE) / half)
    angles = torch.arange(length, device=DEVICE)[:, None] * frequency[None, :]
    cosine, sine = angles.cos(), angles.sin()
    y = torch.empty_like(x)
    place = torch.arange(rows, device=DEVICE) % length
    left, right, cos, sin = x[:, :half].float(), x[:, half:].float(), cosine[place], sine[place]
    want = torch.cat([left * cos - right * sin, right * cos + left * sin], 1)
    tile = triton.next_power_of_2(half)
    run = lambda: rotary[rows,](x, cosine, sine, y, length, half, *x.stride(), tile=tile, num_warps=2)  # noqa: E731
    return Prepared(run, y, want)


VARIANTS = ("transposed", "odd", "fp32")
_OF_VARIANTS = {"softmax": _row_softmax, "layernorm": _row_layernorm, "embedding": _row_embedding, "rotary": _rotary}
KERNELS: Mapping[str, Callable[[str], Prepared]] = {
    "gemm": _gemm, "streamk_gemm": _streamk_gemm, "conv": _conv, "grouped_gemm": _grouped_gemm,
    "attention": _attention, "layernorm": _layernorm, "softmax": _softmax, "total": _total, "pool": _pool,
    "embedding": _embedding, "gather": _gather,
    **{f"{name}_{variant}": partial(prepare, variant) for name, prepare in _OF_VARIANTS.items()
       for variant in VARIANTS},
}  # fmt: skip
"""By name: what prepares a size of the kernel."""


def _run(name: str, size: str, rounds: int, pause: float) -> dict[str, object]:
    """Launch a kernel UNTIMED + ``rounds`` times, and check it against PyTorch: ms of the rounds, digest of all
    outputs, ns of the monotonic clock before the first launch and after the last. pause: seconds after each launch."""
    prepared = KERNELS[name](size)
    begin = time.monotonic_ns()
    times: list[float] = []
    outputs: set[str] = set()
    for number in range(UNTIMED + rounds):
        prepared.out.fill_(0 if prepared.clear else float("nan"))
        if DEVICE != "cpu":
            torch.cuda.synchronize()
        milliseconds = eleven._timed(prepared.launch)
        if number >= UNTIMED:
            times.append(round(milliseconds, 6))
        outputs.add(_digest(prepared.out))
        time.sleep(pause)
    end = time.monotonic_ns()
    torch.testing.assert_close(prepared.out.float(), prepared.want.float(), atol=0.1, rtol=0.02)
    return {"ms": times, "output": " ".join(sorted(outputs)), "submitted_ns": [begin, end]}


def _digest(out: torch.Tensor) -> str:
    """The digest of a tensor's bits; of one above 4 MiB, of sums of its words by columns of a megaword: any word that
    changes changes them, and copying a gigabyte after each launch would take longer than the launches."""
    words = out.as_strided((out.numel(),), (1,)).view(torch.int16 if out.element_size() == 2 else torch.int32)
    if words.numel() * words.element_size() > 1 << 22:
        rest = words.numel() % (1 << 20)
        whole = words[: words.numel() - rest].view(-1, 1 << 20).long()
        places = torch.arange(1, len(whole) + 1, device=whole.device)[:, None]
        words = torch.cat([whole.sum(0), (whole * places).sum(0), words[words.numel() - rest :].long()])
    return hashlib.sha256(words.cpu().numpy().tobytes()).hexdigest()


def main() -> int:
    """Run the kernels that the command line names, and write the report. Returns the exit status 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each launch")
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=list(KERNELS))
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES[:3]))
    options = parser.parse_args()
    rows = {f"{name} {size}": _run(name, size, options.rounds, options.pause)
            for size in options.sizes for name in options.kernels}  # fmt: skip
    options.out.write_text(json.dumps({"kernels": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
