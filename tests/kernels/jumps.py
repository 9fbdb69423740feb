"""Ways through a kernel that compilers seldom write, and a file that no compiler would write."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from tests.kernels.model import FIXTURES, Case, Expected, blank, seeded

JUMPS = FIXTURES / "hand" / "jumps.ptx"
FORMATTING = FIXTURES / "hand" / "formatting.ptx"
_TAGS = frozenset({"hand"})
_WORD = 0xFFFFFFFF


def cases() -> Iterator[Case]:
    """The kernels of jumps.ptx and formatting.ptx."""
    yield from (_switch_table(), _exits(), _by_value(), _function_table(), _nothing(), _formatting())


def _switched(v: int, steps: int) -> int:
    r = 1
    for _ in range(steps):
        kind = v % 6
        if kind == 0:
            r += 10
        if kind in (1, 3):
            r ^= v
        if kind in (1, 2, 3):
            r *= 3
        if kind == 5:
            r >>= 1
        if kind in (4, 5):
            r -= 7
        r &= _WORD
        v = v * 1664525 + 1013904223 & _WORD
    return r


def _switch_table() -> Case:
    steps = 12
    values = seeded("switch_table").integers(0, 1 << 32, 512, np.uint32)
    want = np.array([_switched(v, steps) for v in values.tolist()], np.uint32)
    return Case("switch_table", JUMPS, "switch_table", (4, 1, 1), (128, 1, 1),
                (values, blank(512, np.uint32), np.uint32(steps)), {1: Expected(want)},
                tags=_TAGS | {"switch", "divergent"})  # fmt: skip


def _exits() -> Case:
    blocks, threads = 12, 160
    values = seeded("exits").integers(-300, 1000, (blocks, threads)).astype(np.int32)
    values[:, 5:15] = 0
    fifth, negative, above = values & 7 == 5, values < 0, values > 900
    stay = ~(fifth | negative | above)
    totals = np.where(stay, values, 0).sum(1, dtype=np.int32)[:, None]
    out = blank(values.shape, np.int32)
    want = np.select([values == 0, fifth, negative, above], [out, 1, 2, 4], totals).astype(np.int32)
    return Case("exits", JUMPS, "exits", (blocks, 1, 1), (threads, 1, 1), (values, out), {1: Expected(want)},
                tags=_TAGS | {"call", "shared", "divergent"})  # fmt: skip


def _by_value() -> Case:
    values = seeded("by_value").integers(-(1 << 31), 1 << 31, (200, 8)).astype(np.int32)
    want = np.stack([values.min(1), values.max(1)], 1)
    return Case("by_value", JUMPS, "by_value", (4, 1, 1), (50, 1, 1), (values, blank(want.shape, np.int32)),
                {1: Expected(want)}, tags=_TAGS | {"call"})  # fmt: skip


def _through_table(v: int) -> int:
    for turn in range(4):
        kind = (v + turn & _WORD) % 3
        v = (2 * v & _WORD, v + 100 & _WORD, sum(map(int, str(v))))[kind]
    return v


def _function_table() -> Case:
    values = seeded("function_table").integers(0, 1 << 32, 512, np.uint32)
    want = np.array([_through_table(v) for v in values.tolist()], np.uint32)
    return Case("function_table", JUMPS, "function_table", (4, 1, 1), (128, 1, 1), (values,), {0: Expected(want)},
                tags=_TAGS | {"call", "indirect", "local", "divergent"})  # fmt: skip


def _nothing() -> Case:
    return Case("nothing", JUMPS, "nothing", (30, 1, 1), (96, 1, 1), (), {}, tags=_TAGS)


def _formatting() -> Case:
    values = seeded("formatting").integers(0, 1 << 22, (6, 128), np.uint32)
    first, last, small = 123456, -77, -5
    scaled = (((values + 100) * 3).astype(np.float32) * np.float32(1.5)).astype(np.uint32)
    exchanged = (scaled + np.arange(6, dtype=np.uint32)[:, None])[:, np.arange(128) ^ 1] + 3 + 8
    # Of the product of scales and the sum -17.5 the nearest even number is -18; 111 is the letter o.
    added = np.full(values.shape, last + small + first + 0x10 + 0b101 - 18 + 111, np.uint32)
    want = np.stack([exchanged, added], 2).astype(np.uint32)
    return Case("formatting", FORMATTING, "formatting", (6, 1, 1), (128, 1, 1),
                (values, blank(want.shape, np.uint32), struct.pack("<qi", first, last), np.int8(small)),
                {1: Expected(want)}, shared=512, tags=_TAGS | {"shared"})  # fmt: skip
