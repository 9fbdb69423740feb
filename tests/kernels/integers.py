"""Whole numbers: division at every width, products of 128 bits, single bits, saturation."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np

from tests.kernels.model import FIXTURES, Array, Case, Expected, blank, seeded

PATH = FIXTURES / "clang" / "integers.ptx"
_TAGS = frozenset({"integer"})


def cases() -> Iterator[Case]:
    """The kernels of integers.cu."""
    yield from (_divide64(), _divide_narrow(), _bit_tricks(), _multiply_high(), _crc32(), _saturate())


def truncated(a: Array, b: Array) -> tuple[Array, Array]:
    """Quotient towards zero and remainder, of signed numbers."""
    quotient = np.abs(a) // np.abs(b) * (np.sign(a) * np.sign(b))
    return quotient, a - quotient * b


def _mixed(random: np.random.Generator, n: int, bits: int) -> Array:
    # Of all lengths alike, so that quotients are not all 0 or 1.
    return random.integers(0, 1 << bits, n, np.uint64) >> random.integers(0, bits, n).astype(np.uint64)


def _divide64() -> Case:
    n = 1024
    random = seeded("divide64")
    a, b = (_mixed(random, n, 63).astype(np.int64) * random.choice([-1, 1], n) for _ in range(2))
    b[b == 0] = 3
    quotient, rest = truncated(a, b)
    unsigned_a, unsigned_b = a.view(np.uint64), b.view(np.uint64)
    of_unsigned = unsigned_a // unsigned_b ^ unsigned_a % np.uint64(1000003)
    return Case("divide64", PATH, "divide64", (4, 1, 1), (256, 1, 1),
                (a, b, blank(n, np.int64), blank(n, np.int64), blank(n, np.uint64)),
                {2: Expected(quotient), 3: Expected(rest), 4: Expected(of_unsigned)}, tags=_TAGS)  # fmt: skip


def _divide_narrow() -> Case:
    n = 2000
    random = seeded("divide_narrow")
    a = random.integers(-128, 128, n).astype(np.int8)
    b = random.integers(-(1 << 15), 1 << 15, n).astype(np.int16)
    a[a == 0], b[b == 0] = -7, 9
    x, y = a.astype(np.int64), b.astype(np.int64)
    want = np.stack([truncated(x, y)[0], truncated(y, x)[1], (x & 0xFF) // (y & 0xFFFF),
                     truncated(y, np.full(n, 7))[0] - truncated(x, np.full(n, 10))[1]], 1)  # fmt: skip
    return Case("divide_narrow", PATH, "divide_narrow", (16, 1, 1), (125, 1, 1), (a, b, blank((n, 4), np.int32)),
                {2: Expected(want.astype(np.int32))}, tags=_TAGS)  # fmt: skip


def _bits(x: Array) -> Array:
    return x[:, None] >> np.arange(32, dtype=np.uint32) & 1


def _pick_bytes(a: Array, b: Array, selector: Array) -> Array:
    """prmt.b32 in its default mode (PTX ISA 9.7.1.23)."""
    both = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    out = np.zeros(len(a), np.uint64)
    for place in range(4):
        nibble = selector.astype(np.uint64) >> np.uint64(4 * place) & np.uint64(15)
        byte = both >> (nibble & np.uint64(7)) * np.uint64(8) & np.uint64(0xFF)
        signs = (byte >> np.uint64(7)) * np.uint64(0xFF)
        out |= np.where(nibble & np.uint64(8), signs, byte) << np.uint64(8 * place)
    return out.astype(np.uint32)


def _bit_tricks() -> Case:
    n = 2000
    random = seeded("bit_tricks")
    x, y = (_mixed(random, n, 32).astype(np.uint32) for _ in range(2))
    x[:2], y[1:3] = 0, 0
    x_bits, y_bits = _bits(x), _bits(y)
    turn = y & 31
    swapped = x.byteswap()
    eighth = truncated((x << 7).view(np.int32).astype(np.int64), np.full(n, 16))[0]
    want = np.stack([
        x_bits.sum(1),
        np.where(x == 0, 99, x_bits[:, ::-1].argmax(1)),
        (x_bits[:, ::-1].astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(1),
        np.where(y == 0, 77, y_bits.argmax(1)),
        (x << turn | x >> (-y & 31)),
        _pick_bytes(x, y, x ^ 0x7362),
        (x & y) ^ (~x & (x >> 3)) ^ (y << 5 | x >> 27),
        swapped.astype(np.int64) + eighth & 0xFFFFFFFF,
    ], 1).astype(np.uint32)  # fmt: skip
    return Case("bit_tricks", PATH, "bit_tricks", (16, 1, 1), (128, 1, 1),
                (x, y, blank(want.shape, np.uint32), np.int32(n)), {2: Expected(want)}, tags=_TAGS)  # fmt: skip


def _signed(value: int, bits: int) -> int:
    return ((value & (1 << bits) - 1) ^ 1 << bits - 1) - (1 << bits - 1)


def _multiply_high() -> Case:
    a, b = seeded("multiply_high").integers(0, 1 << 64, (2, 1500), np.uint64)
    want = [
        (x * y, x * y >> 64, _signed(x, 64) * _signed(y, 64) >> 64,
         (x & 0xFFFFFFFF) * (y & 0xFFFFFFFF) + _signed(x, 32) * _signed(y >> 32, 32))
        for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]  # fmt: skip
    words = np.array([[value & (1 << 64) - 1 for value in row] for row in want], np.uint64)
    return Case("multiply_high", PATH, "multiply_high", (15, 1, 1), (100, 1, 1), (a, b, blank(words.shape, np.uint64)),
                {2: Expected(words)}, tags=_TAGS)  # fmt: skip


def _crc32() -> Case:
    rows, stride = 256, 40
    random = seeded("crc32")
    data = random.integers(0, 256, (rows, stride)).astype(np.uint8)
    lengths = random.integers(0, stride + 1, rows).astype(np.int32)
    want = [zlib.crc32(row[:length].tobytes()) for row, length in zip(data, lengths, strict=True)]
    return Case("crc32", PATH, "crc32", (2, 1, 1), (128, 1, 1),
                (data, lengths, blank(rows, np.uint32), np.int32(stride)),
                {2: Expected(np.array(want, np.uint32))}, tags=_TAGS | {"divergent"})  # fmt: skip


def _saturate() -> Case:
    n = 4000
    a, b = seeded("saturate").integers(-(1 << 31), 1 << 31, (2, n))
    a[: n // 4] %= 3000
    low, high = -(1 << 31), (1 << 31) - 1
    difference = np.maximum((a & 0xFFFFFFFF) - (b & 0xFFFFFFFF), 0)
    want = np.stack([(a + b).clip(low, high), difference, a.clip(-1000, 1000) + np.abs(b >> 4)], 1)
    return Case("saturate", PATH, "saturate", (32, 1, 1), (125, 1, 1),
                (a.astype(np.int32), b.astype(np.int32), blank((n, 3), np.int32)),
                {2: Expected(want.astype(np.uint32).view(np.int32))}, tags=_TAGS)  # fmt: skip
