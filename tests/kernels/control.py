"""Where threads go different ways: loops of unlike length, returns, switches."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from tests.kernels.model import FIXTURES, Case, Expected, blank, seeded

PATH = FIXTURES / "clang" / "control.ptx"
_WORD = 0xFFFFFFFF


def cases() -> Iterator[Case]:
    """The kernels of control.cu."""
    yield from (_collatz(), _mandelbrot(), _early_returns(), _nested_loops(), _binary_search(), _gcd(), _machine())


def _collatz() -> Case:
    n = 700
    start = seeded("collatz").integers(1, 1 << 20, n).astype(np.uint32)
    start[:3] = (1, 837799, 27)
    steps, peaks = np.zeros(n, np.uint32), np.zeros(n, np.uint64)
    for i, v in enumerate(start.tolist()):
        count, top = 0, v
        while v != 1:
            v = 3 * v + 1 if v & 1 else v >> 1
            top = max(top, v)
            count += 1
            if count == 77:
                break
        kinds = (count ^ 0x100, count + 7, count * 3 // 5, bin(count).count("1") | count << 4)
        steps[i], peaks[i] = kinds[count & 3], top % 1000003
    return Case("collatz", PATH, "collatz", (6, 1, 1), (128, 1, 1),
                (start, blank(n, np.uint32), blank(n, np.uint64), np.int32(n)),
                {1: Expected(steps), 2: Expected(peaks)}, tags=frozenset({"divergent"}))  # fmt: skip


def _mandelbrot() -> Case:
    width, height, limit = 90, 33, 60
    cr = np.arange(width, dtype=np.float32) * np.float32(0.03125) - np.float32(2) + np.zeros((height, 1), np.float32)
    ci = (np.arange(height, dtype=np.float32) * np.float32(0.0625) - np.float32(1))[:, None]
    zr, zi, count = np.zeros_like(cr), np.zeros_like(cr), np.zeros(cr.shape, np.uint16)
    going = np.ones(cr.shape, bool)
    with np.errstate(all="ignore"):
        for _ in range(limit):
            rr, ii = zr * zr, zi * zi
            going &= ~(rr + ii > 4)
            count += going
            zi = np.where(going, np.float32(2) * zr * zi + ci, zi)
            zr = np.where(going, rr - ii + cr, zr)
    return Case("mandelbrot", PATH, "mandelbrot", (6, 9, 1), (16, 4, 1),
                (blank(cr.shape, np.uint16), np.int32(width), np.int32(height), np.int32(limit)),
                {0: Expected(count)}, tags=frozenset({"divergent", "2-D"}))  # fmt: skip


def _early_return(v: int, unwritten: int) -> int:
    if v == 0:
        return unwritten
    first = v
    for a in range(1, 6):
        if v & 7 == a:
            return -a
        for b in range(a, 9, 2):
            if math.fmod(v, a * 8 + b) == 0:
                return a * 100 + b
            if b > v & 15:
                break
            v += b
    return first if v & 1 else first + v


def _early_returns() -> Case:
    n = 5000
    values = seeded("early_returns").integers(-500, 500, n).astype(np.int32)
    out = blank(n + 3, np.int32)
    want = out.copy()
    want[:n] = [_early_return(v, int(out[0])) for v in values.tolist()]
    return Case("early_returns", PATH, "early_returns", (153, 1, 1), (33, 1, 1), (values, out, np.int32(n)),
                {1: Expected(want)}, tags=frozenset({"divergent"}))  # fmt: skip


def _nested_loops() -> Case:
    threads, stride = 192, 16
    random = seeded("nested_loops")
    rows = random.integers(-99, 99, (threads, stride)).astype(np.int32)
    lengths = random.integers(0, stride + 1, threads).astype(np.int32)
    want = rows.copy()
    for row, length in zip(want, lengths, strict=True):
        row[:length].sort()
    return Case("nested_loops", PATH, "nested_loops", (4, 1, 1), (48, 1, 1), (rows, lengths, np.int32(stride)),
                {0: Expected(want)}, tags=frozenset({"divergent"}))  # fmt: skip


def _binary_search() -> Case:
    random = seeded("binary_search")
    table = np.sort(random.integers(0, 5000, 777)).astype(np.int32)
    wanted = random.integers(-10, 5010, 2048).astype(np.int32)
    return Case("binary_search", PATH, "binary_search", (8, 1, 1), (256, 1, 1),
                (table, wanted, blank(2048, np.int32), np.int32(777)),
                {2: Expected(np.searchsorted(table, wanted).astype(np.int32))},
                tags=frozenset({"divergent"}))  # fmt: skip


def _gcd() -> Case:
    n = 2000
    a, b = seeded("gcd").integers(0, 1 << 32, (2, n), np.uint32)
    b[:5] = (0, 1, 2, 0, 7)
    a[3] = 0
    return Case("gcd", PATH, "gcd", (8, 1, 1), (256, 1, 1), (a, b, blank(n, np.uint32), np.int32(n)),
                {2: Expected(np.gcd(a, b))}, tags=frozenset({"divergent"}))  # fmt: skip


def _signed(value: int) -> int:
    return ((value & _WORD) ^ 0x80000000) - 0x80000000


def _run_machine(code: list[int], a: int) -> tuple[int, int]:
    b, at = 7, 0
    while at < len(code):
        order = code[at] & 7
        if order == 0:
            a = _signed(a + b)
        elif order == 1:
            a = _signed(a - b * 3)
        elif order == 2:
            a, b = b, a
        elif order == 3:
            a = _signed(a ^ b << 5)
        elif order == 4 and a < 0:
            at, b = at + 1, _signed(b + 11)
        elif order == 5:
            b = _signed((b >> 1) + 1)
        elif order == 6:
            a = _signed(a * 1664525 + 1013904223)
        elif order == 7:
            if not a & 1:
                break
            b = _signed(b ^ a)
        at += 1
    return a, b


def _machine() -> Case:
    threads, length = 512, 40
    code = seeded("machine").integers(0, 256, (threads, length)).astype(np.uint8)
    want = np.array([_run_machine(row, i) for i, row in enumerate(code.tolist())], np.int32)
    return Case("machine", PATH, "machine", (4, 1, 1), (128, 1, 1),
                (code, blank((threads, 2), np.int32), np.int32(length)), {1: Expected(want)},
                tags=frozenset({"divergent", "switch"}))  # fmt: skip
