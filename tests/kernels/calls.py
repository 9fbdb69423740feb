"""Functions that are really called: structs by value, recursion, tables of functions; arrays in local memory."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from tests.kernels.model import FIXTURES, Case, Expected, blank, seeded

PATH = FIXTURES / "clang" / "calls.ptx"
_TAGS = frozenset({"call"})


def cases() -> Iterator[Case]:
    """The kernels of calls.cu."""
    yield from (_struct_by_value(), _struct_returned(), _recursion(), _mutual_recursion(), _indirect_calls())
    yield _local_array()


def _struct_by_value() -> Case:
    n = 1500
    x = seeded("struct_by_value").standard_normal(n).astype(np.float32)
    a, b, bias = np.float32(0.75), np.float32(-1.25), 5
    polynomial = struct.pack("<ffi4xq", a, b, 0, bias)
    i = np.arange(n)
    r = np.full(n, a)
    for degree in range(3):
        r = np.where(degree < (i & 3), r * x + b, r)
    want = r + (bias - i).astype(np.float32) + (1 + (i & 7)).astype(np.float32)
    return Case("struct_by_value", PATH, "struct_by_value", (6, 1, 1), (256, 1, 1),
                (x, polynomial, blank(n, np.float32), np.int32(n)), {2: Expected(want)}, tags=_TAGS)  # fmt: skip


def _struct_returned() -> Case:
    a, b = seeded("struct_returned").integers(-1000, 1000, (2, 2048)).astype(np.int32)
    offsets = np.array([1, -20, 300, -4000], np.int32)
    want = np.stack([np.minimum(a, b), np.maximum(a, b) + np.tile(offsets, 512)], 1)
    return Case("struct_returned", PATH, "struct_returned", (16, 1, 1), (128, 1, 1),
                (a, b, blank(want.shape, np.int32)), {2: Expected(want)}, constants={"offsets": offsets},
                tags=_TAGS)  # fmt: skip


def _recursion() -> Case:
    n = seeded("recursion").integers(0, 256, 256).astype(np.uint32)
    fibonacci = np.array([0, 1, 1, 2, 3, 5, 8, 13], np.uint32)
    want = fibonacci[n & 7] * 1000 + np.arange(256, dtype=np.uint32)
    return Case("recursion", PATH, "recursion", (2, 1, 1), (128, 1, 1), (n,), {0: Expected(want)}, tags=_TAGS)


def _even_steps(n: int, trail: list[int]) -> int:
    if n <= 0:
        return 1
    trail[n & 3] += n
    return _odd_steps(n - 1, trail) + 2


def _odd_steps(n: int, trail: list[int]) -> int:
    if n <= 0:
        return 3
    trail[n & 3] ^= n
    return _even_steps(n - 3, trail) * 2


def _mutual_recursion() -> Case:
    values = seeded("mutual_recursion").integers(-50, 50, 512).astype(np.int32)
    want = []
    for n in (values & 15).tolist():
        trail = [1, 2, 3, 4]
        value = _even_steps(n, trail)
        want.append(value + sum(10**place * step for place, step in enumerate(trail)))
    return Case("mutual_recursion", PATH, "mutual_recursion", (4, 1, 1), (128, 1, 1),
                (values, blank(512, np.int32)), {1: Expected(np.array(want, np.int32))}, tags=_TAGS)  # fmt: skip


def _indirect_calls() -> Case:
    shift = 2
    values = seeded("indirect_calls").integers(-1000, 1000, 768).astype(np.int32)
    i = np.arange(768, dtype=np.int32)

    def through_table(which: np.ndarray, v: np.ndarray) -> np.ndarray:
        return np.select([which == place for place in range(4)], [v + 1, v * 3, -v, v * v])

    want = through_table(i >> shift & 3, values) + through_table(values & 3, i)
    return Case("indirect_calls", PATH, "indirect_calls", (6, 1, 1), (128, 1, 1), (values, np.int32(shift)),
                {0: Expected(want.astype(np.int32))}, tags=_TAGS | {"indirect"})  # fmt: skip


def _local_array() -> Case:
    count = 20
    values = seeded("local_array").integers(0, 1 << 20, 300).astype(np.int64)
    i = np.arange(300)
    box = np.arange(32) * i[:, None]
    for k in range(count):
        box[i, values * k & 31] += values >> (k & 7)
    total = np.zeros(300, np.int64)
    for k in range(count):
        total = (total * 3 + box[i, k * 5 + values & 31]) & 0xFFFFFFFF
    return Case("local_array", PATH, "local_array", (6, 1, 1), (50, 1, 1),
                (values.astype(np.int32), blank(300, np.int32), np.int32(count)),
                {1: Expected(total.astype(np.uint32).view(np.int32))}, tags=frozenset({"local"}))  # fmt: skip
