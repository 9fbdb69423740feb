"""Kernels in Triton for AMD's GPUs, compiled without one: ``python triton_amd.py FOLDER ARCH ...`` writes
``FOLDER/NAME_ARCH.hsaco``. A kernel that a processor's compiler refuses is named on stderr and left out."""

# Triton compiles these functions, and knows less of Python than a linter: names are as its users write them.
# ruff: noqa: N803

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def axpy(y, x, a, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = at < n
    tl.store(y + at, tl.load(y + at, inside) + a * tl.load(x + at, inside), inside)


@triton.jit
def row_softmax(out, x, stride, n, SIZE: tl.constexpr):
    row = tl.program_id(0) * stride
    at = tl.arange(0, SIZE)
    value = tl.load(x + row + at, at < n, other=float("-inf"))
    power = tl.exp(value - tl.max(value, 0))
    tl.store(out + row + at, power / tl.sum(power, 0), at < n)


@triton.jit
def rms_norm(out, x, weight, n, epsilon, SIZE: tl.constexpr):
    row = tl.program_id(0) * n
    total = tl.zeros([SIZE], tl.float32)
    for begin in range(0, n, SIZE):
        at = begin + tl.arange(0, SIZE)
        value = tl.load(x + row + at, at < n, other=0.0).to(tl.float32)
        total += value * value
    scale = tl.rsqrt(tl.sum(total, 0) / n + epsilon)
    for begin in range(0, n, SIZE):
        at = begin + tl.arange(0, SIZE)
        value = tl.load(x + row + at, at < n, other=0.0).to(tl.float32) * scale
        tl.store(out + row + at, (value * tl.load(weight + at, at < n)).to(tl.float16), at < n)


@triton.jit
def product(c, a, b, M, N, K, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, WHOLE: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, DEPTH)
    total = tl.zeros([ROWS, COLUMNS], tl.int32 if WHOLE else tl.float32)
    for begin in range(0, K, DEPTH):
        left = tl.load(a + row[:, None] * K + (begin + depth)[None, :])
        right = tl.load(b + (begin + depth)[:, None] * N + column[None, :])
        total = tl.dot(left, right, total, out_dtype=tl.int32 if WHOLE else tl.float32)
    tl.store(c + row[:, None] * N + column[None, :], total, (row < M)[:, None])


@triton.jit
def attention(out, q, k, v, scale, n, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    lane = tl.arange(0, WIDTH)
    query = tl.load(q + row[:, None] * WIDTH + lane[None, :])
    most = tl.full([ROWS], float("-inf"), tl.float32)
    below = tl.zeros([ROWS], tl.float32)
    total = tl.zeros([ROWS, WIDTH], tl.float32)
    for begin in range(0, n, COLUMNS):
        column = begin + tl.arange(0, COLUMNS)
        score = tl.dot(query, tl.trans(tl.load(k + column[:, None] * WIDTH + lane[None, :]))) * scale
        score = tl.where(column[None, :] <= row[:, None], score, float("-inf"))
        higher = tl.maximum(most, tl.max(score, 1))
        power = tl.exp(score - higher[:, None])
        shrink = tl.exp(most - higher)
        below = below * shrink + tl.sum(power, 1)
        value = tl.load(v + column[:, None] * WIDTH + lane[None, :])
        total = total * shrink[:, None] + tl.dot(power.to(value.dtype), value)
        most = higher
    tl.store(out + row[:, None] * WIDTH + lane[None, :], (total / below[:, None]).to(tl.float16))


@triton.jit
def sum_all(out, x, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.atomic_add(out, tl.sum(tl.load(x + at, at < n, other=0.0), 0))


@triton.jit
def greatest(out, x, n, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    row = tl.program_id(0)
    tl.store(out + row, tl.argmax(tl.load(x + row * n + at, at < n, other=float("-inf")), 0))


@triton.jit
def running(out, x, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out + at, tl.cumsum(tl.load(x + at), 0))


@triton.jit
def counts(out, x, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    bins = tl.histogram(tl.load(x + at, at < n, other=0), 64)
    tl.atomic_add(out + tl.arange(0, 64), bins)


@triton.jit
def in_order(out, x, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out + at, tl.sort(tl.load(x + at)))


@triton.jit
def picked(out, x, index, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out + at, tl.load(x + tl.load(index + at, at < n, other=0), at < n), at < n)


@triton.jit
def embedding(out, rows, index, WIDTH: tl.constexpr):
    lane = tl.arange(0, WIDTH)
    tl.store(out + tl.program_id(0) * WIDTH + lane, tl.load(rows + tl.load(index + tl.program_id(0)) * WIDTH + lane))


@triton.jit
def locks(out, lock, x, SIZE: tl.constexpr):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    at = tl.arange(0, SIZE)
    tl.store(out + at, tl.load(out + at) + tl.load(x + tl.program_id(0) * SIZE + at))
    tl.atomic_xchg(lock, 0)


@triton.jit
def extremes(out, x, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    value = tl.load(x + at, at < n, other=0)
    tl.atomic_max(out + at % 16, value, at < n)
    tl.atomic_min(out + 16 + at % 16, value, at < n)
    tl.atomic_xor(out + 32 + at % 16, value, at < n)


@triton.jit
def flipped(out, x, M, N, SIZE: tl.constexpr):
    row = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    column = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    tl.store(out + column[:, None] * M + row[None, :], tl.trans(tl.load(x + row[:, None] * N + column[None, :])))


@triton.jit
def spread(out, x, n, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    value = tl.load(x + tl.program_id(0) * n + at, at < n, other=0.0)
    mean = tl.sum(value, 0) / n
    away = tl.where(at < n, value - mean, 0.0)
    tl.store(out + tl.program_id(0), tl.sum(away * away, 0) / n)


@triton.jit
def rotary(x, cosine, sine, HALF: tl.constexpr):
    at = tl.arange(0, HALF)
    begin = x + tl.program_id(0) * 2 * HALF
    a, b = tl.load(begin + at), tl.load(begin + HALF + at)
    c, s = tl.load(cosine + at), tl.load(sine + at)
    tl.store(begin + at, a * c - b * s)
    tl.store(begin + HALF + at, a * s + b * c)


@triton.jit
def dropped(out, x, seed, rate, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    kept = tl.rand(seed, at) > rate
    tl.store(out + at, tl.where(kept, tl.load(x + at, at < n) / (1 - rate), 0.0), at < n)


@triton.jit
def gelu(out, x, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    value = tl.load(x + at, at < n).to(tl.float32)
    tl.store(out + at, (0.5 * value * (1 + tl.erf(value * 0.70710678))).to(tl.bfloat16), at < n)


@triton.jit
def curves(out, x, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    value = tl.load(x + at, at < n, other=1.0)
    tl.store(out + at, tl.sin(value) * tl.cos(value) + tl.log(tl.abs(value)) / tl.sqrt_rn(value), at < n)


@triton.jit
def doubles(out, x, y, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    value = tl.load(x + at, at < n)
    tl.store(out + at, value / tl.load(y + at, at < n) - tl.floor(value) * tl.sqrt(value), at < n)


@triton.jit
def longs(out, x, y, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    a, b = tl.load(x + at, at < n, other=1), tl.load(y + at, at < n, other=1)
    high = tl.umulhi(a.to(tl.uint64), b.to(tl.uint64)).to(tl.int64)
    tl.store(out + at, (a // b) ^ (a % b) ^ high ^ (a << 3), at < n)


@triton.jit
def narrowed(out, scale, x, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    value = tl.load(x + at, at < n, other=0.0)
    most = tl.max(tl.abs(value), 0) / 127
    tl.store(scale + tl.program_id(0), most)
    tl.store(out + at, (value / most).to(tl.int8), at < n)


@triton.jit
def entropy(out, x, label, n, SIZE: tl.constexpr):
    row = x + tl.program_id(0) * n
    at = tl.arange(0, SIZE)
    value = tl.load(row + at, at < n, other=float("-inf")).to(tl.float32)
    most = tl.max(value, 0)
    right = tl.load(row + tl.load(label + tl.program_id(0))).to(tl.float32)
    tl.store(out + tl.program_id(0), tl.log(tl.sum(tl.exp(value - most), 0)) + most - right)


@triton.jit
def branches(out, x, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    steps = tl.load(x + tl.program_id(0))
    total = tl.zeros([SIZE], tl.int32)
    if steps > 10:
        for step in range(steps):
            total += step * at
    else:
        total -= at
    tl.store(out + at, total, at < n)


_F32, _F16, _BF16, _I32, _I64 = "*fp32", "*fp16", "*bf16", "*i32", "*i64"
_FP8 = "fp8"
"""The one of the processor: its type has another bias on gfx942."""
_PRODUCT = {"M": "i32", "N": "i32", "K": "i32"}


def _square(element: str, size: int, depth: int, *, whole: bool = False) -> tuple[Any, dict[str, str], dict[str, Any]]:
    """Return a matrix product: of elements, in blocks of size by size and depth."""
    return (
        product,
        {"c": _I32 if whole else _F32, "a": element, "b": element, **_PRODUCT},
        {"ROWS": size, "COLUMNS": size, "DEPTH": depth, "WHOLE": whole},
    )


KERNELS: dict[str, tuple[Any, dict[str, str], dict[str, Any]]] = {
    "axpy": (axpy, {"y": _F32, "x": _F32, "a": "fp32", "n": "i32"}, {"SIZE": 1024}),
    "row_softmax": (row_softmax, {"out": _F32, "x": _F32, "stride": "i32", "n": "i32"}, {"SIZE": 1024}),
    "rms_norm": (rms_norm, {"out": _F16, "x": _F16, "weight": _F16, "n": "i32", "epsilon": "fp32"}, {"SIZE": 512}),
    "product_f16": _square(_F16, 64, 32),
    "product_bf16": _square(_BF16, 128, 64),
    "product_f32": _square(_F32, 32, 32),
    "product_i8": _square("*i8", 32, 32, whole=True),
    "product_fp8": _square(_FP8, 64, 64),
    "attention": (attention, {"out": _F16, "q": _F16, "k": _F16, "v": _F16, "scale": "fp32", "n": "i32"},
                  {"WIDTH": 64, "ROWS": 64, "COLUMNS": 32}),
    "sum_all": (sum_all, {"out": _F32, "x": _F32, "n": "i32"}, {"SIZE": 1024}),
    "greatest": (greatest, {"out": _I32, "x": _F32, "n": "i32"}, {"SIZE": 512}),
    "running": (running, {"out": _F32, "x": _F32}, {"SIZE": 1024}),
    "counts": (counts, {"out": _I32, "x": _I32, "n": "i32"}, {"SIZE": 256}),
    "in_order": (in_order, {"out": _I32, "x": _I32}, {"SIZE": 256}),
    "picked": (picked, {"out": _F32, "x": _F32, "index": _I64, "n": "i32"}, {"SIZE": 512}),
    "embedding": (embedding, {"out": _F32, "rows": _F32, "index": _I64}, {"WIDTH": 256}),
    "locks": (locks, {"out": _F32, "lock": _I32, "x": _F32}, {"SIZE": 128}),
    "extremes": (extremes, {"out": _I32, "x": _I32, "n": "i32"}, {"SIZE": 256}),
    "flipped": (flipped, {"out": _F16, "x": _F16, "M": "i32", "N": "i32"}, {"SIZE": 64}),
    "spread": (spread, {"out": _F32, "x": _F32, "n": "i32"}, {"SIZE": 2048}),
    "rotary": (rotary, {"x": _F32, "cosine": _F32, "sine": _F32}, {"HALF": 64}),
    "dropped": (dropped, {"out": _F32, "x": _F32, "seed": "i32", "rate": "fp32", "n": "i32"}, {"SIZE": 512}),
    "gelu": (gelu, {"out": _BF16, "x": _BF16, "n": "i32"}, {"SIZE": 512}),
    "curves": (curves, {"out": _F32, "x": _F32, "n": "i32"}, {"SIZE": 256}),
    "doubles": (doubles, {"out": "*fp64", "x": "*fp64", "y": "*fp64", "n": "i32"}, {"SIZE": 256}),
    "longs": (longs, {"out": _I64, "x": _I64, "y": _I64, "n": "i32"}, {"SIZE": 256}),
    "narrowed": (narrowed, {"out": "*i8", "scale": _F32, "x": _F32, "n": "i32"}, {"SIZE": 512}),
    "entropy": (entropy, {"out": _F32, "x": _BF16, "label": _I64, "n": "i32"}, {"SIZE": 1024}),
    "branches": (branches, {"out": _I32, "x": _I32, "n": "i32"}, {"SIZE": 128}),
}  # fmt: skip
"""By name: the function, the types of its parameters, its constants."""


def code_objects(archs: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the code objects of all kernels for the processors, by name."""
    for arch in archs:
        target = GPUTarget("hip", arch, 64 if arch.startswith("gfx9") else 32)
        for name, (function, types, constants) in KERNELS.items():
            fp8 = "*fp8e4b8" if arch == "gfx942" else "*fp8e4nv"
            signature = {key: fp8 if kind == _FP8 else kind for key, kind in types.items()}
            signature |= dict.fromkeys(constants, "constexpr")
            # Pointers are aligned, as those that the runtime's caller gives are.
            aligned = {(at,): [["tt.divisibility", 16]] for at, kind in enumerate(signature.values()) if kind[0] == "*"}
            try:
                compiled = triton.compile(ASTSource(function, signature, constants, aligned), target=target)
            # Whatever its passes raise.
            except Exception as error:  # noqa: BLE001
                print(f"{name} for {arch}: {str(error).strip().splitlines()[-1:]}", file=sys.stderr)
                continue
            yield f"{name}_{arch}", compiled.asm["hsaco"]


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in code_objects(sys.argv[2:]):
        (folder / f"{name}.hsaco").write_bytes(data)
