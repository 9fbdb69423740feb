"""Triton kernels compiled ahead of time for several architectures: PTX and the cubin of Triton's own ptxas.

Run with a Python that has Triton and no need of a GPU: ``python triton_kernels.py FOLDER``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget

ARCHITECTURES = (80, 90, 100, 120)


@triton.jit
def add(x, y, out, n, block: tl.constexpr):
    i = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(out + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)


@triton.jit
def multiply_add(x, y, out, n, block: tl.constexpr):
    i = tl.program_id(0) * block + tl.arange(0, block)
    a = tl.load(x + i, mask=i < n)
    b = tl.load(y + i, mask=i < n)
    tl.store(out + i, a * b + a - b * 3, mask=i < n)


@triton.jit
def softmax(x, y, out, n, block: tl.constexpr):
    i = tl.arange(0, block)
    row = tl.load(x + tl.program_id(0) * n + i, mask=i < n, other=-float("inf")).to(tl.float32)
    e = tl.exp(row - tl.max(row, 0))
    tl.store(out + tl.program_id(0) * n + i, e / tl.sum(e, 0), mask=i < n)


@triton.jit
def layernorm(x, y, out, n, block: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([block], tl.float32)
    for start in range(0, n, block):
        i = start + tl.arange(0, block)
        total += tl.load(x + row * n + i, mask=i < n, other=0.0).to(tl.float32)
    mean = tl.sum(total, 0) / n
    squares = tl.zeros([block], tl.float32)
    for start in range(0, n, block):
        i = start + tl.arange(0, block)
        d = tl.where(i < n, tl.load(x + row * n + i, mask=i < n, other=0.0).to(tl.float32) - mean, 0.0)
        squares += d * d
    scale = 1 / tl.sqrt(tl.sum(squares, 0) / n + 1e-5)
    for start in range(0, n, block):
        i = start + tl.arange(0, block)
        w = tl.load(y + i, mask=i < n)
        tl.store(out + row * n + i, (tl.load(x + row * n + i, mask=i < n) - mean) * scale * w, mask=i < n)


@triton.jit
def gelu(x, y, out, n, block: tl.constexpr):
    i = tl.program_id(0) * block + tl.arange(0, block)
    v = tl.load(x + i, mask=i < n).to(tl.float32)
    tl.store(out + i, 0.5 * v * (1 + tl.erf(v * 0.70710678)), mask=i < n)


@triton.jit
def silu_and_sigmoid(x, y, out, n, block: tl.constexpr):
    i = tl.program_id(0) * block + tl.arange(0, block)
    v = tl.load(x + i, mask=i < n).to(tl.float32)
    tl.store(out + i, v * tl.sigmoid(v) + tl.cos(v) * tl.log(v), mask=i < n)


@triton.jit
def cumulative_sum(x, y, out, n, block: tl.constexpr):
    i = tl.arange(0, block)
    tl.store(out + i, tl.cumsum(tl.load(x + i, mask=i < n, other=0.0), 0), mask=i < n)


@triton.jit
def atomic_histogram(x, y, out, n, block: tl.constexpr):
    i = tl.program_id(0) * block + tl.arange(0, block)
    tl.atomic_add(out + (i % 32), tl.load(x + i, mask=i < n), mask=i < n)


@triton.jit
def transpose(x, y, out, n, block: tl.constexpr):
    i = tl.arange(0, 64)
    tile = tl.load(x + i[:, None] * n + i[None, :])
    tl.store(out + i[:, None] * n + i[None, :], tl.trans(tile))


@triton.jit
def gather(x, y, out, n, block: tl.constexpr):
    i = tl.program_id(0) * block + tl.arange(0, block)
    at = tl.load(y + i, mask=i < n, other=0).to(tl.int32)
    tl.store(out + i, tl.load(x + at, mask=at < n, other=0), mask=i < n)


@triton.jit
def sort(x, y, out, n, block: tl.constexpr):
    i = tl.arange(0, 128)
    tl.store(out + i, tl.sort(tl.load(x + i)))


@triton.jit
def dropout(x, y, out, n, block: tl.constexpr):
    i = tl.program_id(0) * block + tl.arange(0, block)
    keep = tl.rand(n, i) > 0.5
    tl.store(out + i, tl.where(keep, tl.load(x + i, mask=i < n) * 2, 0.0), mask=i < n)


@triton.jit
def matmul(x, y, out, n, block: tl.constexpr):
    m = tl.program_id(0) * 64 + tl.arange(0, 64)
    c = tl.program_id(1) * 64 + tl.arange(0, 64)
    k = tl.arange(0, 32)
    acc = tl.zeros([64, 64], tl.float32)
    for start in range(0, n, 32):
        a = tl.load(x + m[:, None] * n + (start + k)[None, :])
        b = tl.load(y + (start + k)[:, None] * n + c[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(out + m[:, None] * n + c[None, :], acc)


@triton.jit
def matmul_large(x, y, out, n, block: tl.constexpr):
    m = tl.program_id(0) * 128 + tl.arange(0, 128)
    c = tl.program_id(1) * 128 + tl.arange(0, 128)
    k = tl.arange(0, 64)
    acc = tl.zeros([128, 128], tl.float32)
    for start in range(0, n, 64):
        a = tl.load(x + m[:, None] * n + (start + k)[None, :], mask=m[:, None] < n, other=0.0)
        b = tl.load(y + (start + k)[:, None] * n + c[None, :], mask=c[None, :] < n, other=0.0)
        acc = tl.dot(a, b, acc)
    tl.store(out + m[:, None] * n + c[None, :], acc, mask=(m[:, None] < n) & (c[None, :] < n))


@triton.jit
def attention(x, y, out, n, block: tl.constexpr):
    q_at = tl.program_id(0) * 64 + tl.arange(0, 64)
    d = tl.arange(0, 64)
    q = tl.load(x + q_at[:, None] * 64 + d[None, :])
    top = tl.full([64], -float("inf"), tl.float32)
    norm = tl.zeros([64], tl.float32)
    acc = tl.zeros([64, 64], tl.float32)
    for start in range(0, n, 64):
        k_at = start + tl.arange(0, 64)
        k = tl.load(y + k_at[:, None] * 64 + d[None, :])
        s = tl.dot(q, tl.trans(k)) * 0.125
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.exp(s - new[:, None])
        shrink = tl.exp(top - new)
        norm = norm * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None] + tl.dot(p.to(k.dtype), k)
        top = new
    tl.store(out + q_at[:, None] * 64 + d[None, :], acc / norm[:, None])


ELEMENTWISE = (add, multiply_add, softmax, layernorm, gelu, silu_and_sigmoid, cumulative_sum, transpose, gather, sort)
VARIANTS: tuple[tuple[tuple[Any, ...], tuple[str, ...], dict[str, Any]], ...] = (
    (ELEMENTWISE, ("fp32", "fp16", "bf16"), {}),
    ((add, multiply_add, cumulative_sum, transpose, sort), ("i32", "i64", "i8", "fp64"), {}),
    ((atomic_histogram,), ("fp32", "i32", "fp16"), {}),
    ((dropout,), ("fp32",), {}),
    ((matmul,), ("fp16", "bf16", "fp32", "i8"), {}),
    ((matmul_large,), ("fp16", "bf16"), {"num_warps": 8, "num_stages": 3}),
    ((attention,), ("fp16", "bf16"), {}),
    ((multiply_add, softmax), ("fp32",), {"enable_fp_fusion": False}),
)


def compiled(number: int) -> Iterator[tuple[str, Any]]:
    """Each kernel's name and what Triton made of it for one architecture."""
    target = GPUTarget("cuda", number, 32)
    for kernels, types, options in VARIANTS:
        for kernel in kernels:
            for kind in types:
                out = {"i8": "i32"}.get(kind, kind) if kernel in (matmul, matmul_large) else kind
                source = triton.compiler.ASTSource(
                    fn=kernel,
                    signature={"x": f"*{kind}", "y": f"*{kind}", "out": f"*{out}", "n": "i32", "block": "constexpr"},
                    constexprs={"block": 1024},
                )
                name = f"{kernel.__name__}.{kind}{'.unfused' if 'enable_fp_fusion' in options else ''}"
                try:
                    yield name, triton.compile(source, target=target, options=options)
                except Exception as error:  # noqa: BLE001 - Triton raises what it likes; the kernel is left out by name
                    print(f"{name} for sm_{number}: {type(error).__name__}", file=sys.stderr)


def main(folder: Path) -> None:
    """Write FOLDER/<kernel>.<type>.sm_<n>.{ptx,cubin}."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in ARCHITECTURES:
        for name, made in compiled(number):
            (folder / f"{name}.sm_{number}.ptx").write_text(made.asm["ptx"])
            (folder / f"{name}.sm_{number}.cubin").write_bytes(made.asm["cubin"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
