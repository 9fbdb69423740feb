"""Threads that meet in memory: locks, tickets, every read-modify-write."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.kernels.model import FIXTURES, Case, Expected, blank, seeded

PATH = FIXTURES / "clang" / "atomics.ptx"
UPDATES = FIXTURES / "hand" / "updates.ptx"
_TAGS = frozenset({"atomic"})


def cases() -> Iterator[Case]:
    """The kernels of atomics.cu and updates.ptx."""
    yield from (_lock_by_exchange(), _last_block(), _all_atomics(), _maximum_by_swap(), _updates())


def _lock_by_exchange() -> Case:
    n = 60
    return Case("lock_by_exchange", PATH, "lock_by_exchange", (2, 1, 1), (33, 1, 1),
                (np.zeros(1, np.int32), np.array([7, 0], np.int32), np.int32(n)),
                {1: Expected(np.array([7 + n, n * (n - 1) // 2], np.int32))}, tags=_TAGS | {"spin"})  # fmt: skip


def _last_block() -> Case:
    blocks = 40
    values = seeded("last_block").integers(-1000, 1000, (blocks, 128)).astype(np.int32)
    return Case("last_block", PATH, "last_block", (blocks, 1, 1), (128, 1, 1),
                (values, blank(blocks, np.int32), np.zeros(1, np.uint32), np.zeros(1, np.int32),
                 blank(blocks, np.uint32)),
                {1: Expected(values.sum(1, dtype=np.int32)), 3: Expected(values.sum(dtype=np.int32)[None]),
                 4: Expected(np.arange(blocks, dtype=np.uint32), unordered=True)},
                schedules_agree=False, tags=_TAGS | {"ticket"})  # fmt: skip


def _all_atomics() -> Case:
    v = seeded("all_atomics").integers(0, 1 << 32, 1536, np.uint32)
    # The sixth holds the least so far, so it starts above every value; the last two count within their bounds.
    narrow = np.array([1, 2, 0xFFFFFFFF, 4, 5, 0xFFFFFFFF, 7, 8, 9], np.uint32)
    wide = np.array([1, 2, 3, 4], np.uint64)
    down = 9
    for _ in v:
        down = 500 if down == 0 or down > 500 else down - 1
    big = v.astype(np.uint64)
    narrow_want = [
        (1 + int(big.sum())) & 0xFFFFFFFF, (2 - int(big.sum())) & 0xFFFFFFFF, np.bitwise_and.reduce(v | 0xF0F0),
        4 | np.bitwise_or.reduce(v & 0x11111111), 5 ^ np.bitwise_xor.reduce(v), v.min(), v.max(),
        (8 + len(v)) % 1000, down,
    ]  # fmt: skip
    wide_want = [
        (1 + (int(big.sum()) << 20)) & (1 << 64) - 1, (1 << 64) - int(big.max()), int(big.max()) ** 2,
        4 ^ int(np.bitwise_xor.reduce(big << (big & np.uint64(31)))),
    ]  # fmt: skip
    return Case("all_atomics", PATH, "all_atomics", (6, 1, 1), (256, 1, 1), (v, narrow, wide),
                {1: Expected(np.array(narrow_want, np.uint32)), 2: Expected(np.array(wide_want, np.uint64))},
                tags=_TAGS)  # fmt: skip


def _maximum_by_swap() -> Case:
    v = seeded("maximum_by_swap").exponential(0.6, 768).astype(np.float32)
    above = np.nonzero(v > 1)[0].astype(np.uint32)
    places = blank(768, np.uint32)
    want = places.copy()
    want[: len(above)] = above
    return Case("maximum_by_swap", PATH, "maximum_by_swap", (6, 1, 1), (128, 1, 1),
                (v, np.array([0.5], np.float32).view(np.uint32), np.zeros(1, np.uint32), places),
                {1: Expected(v.max()[None].view(np.uint32)), 2: Expected(np.array([len(above)], np.uint32)),
                 3: Expected(want, unordered=True)}, schedules_agree=False, tags=_TAGS | {"ticket"})  # fmt: skip


def _updates() -> Case:
    blocks, threads = 8, 96
    v = seeded("updates").integers(0, 1 << 32, (blocks, threads), np.uint32)
    big = v.astype(np.uint64)
    words = np.array([5, 2**31 - 1, 1 << 7, 11, 0, 3], np.uint32)
    longs = np.array([17, 23, (1 << 64) - 1, 0, 1 << 63, (1 << 64) - 1], np.uint64)
    halves = np.array([0, 0, 0, 9], np.uint16)
    of_blocks = big.sum(1)
    words_want = [
        v.max(), v.view(np.int32).min().view(np.uint32), np.bitwise_or.reduce(v, None) | 1 << 7,
        11 + blocks * (threads % 7), 1, 4,
    ]  # fmt: skip
    longs_want = [
        17 + int(of_blocks.sum()), 23 ^ int(np.bitwise_xor.reduce(of_blocks)), (1 << 64) - 2,
        np.array(float((v & 63).sum())).view(np.uint64), v.view(np.int32).max(), v.min(),
    ]  # fmt: skip
    counts = np.array([v.size // 2, 2 * (v.size // 2)], np.float16).view(np.uint16)
    sixteenth = np.array([v.size // 16], np.float32).view(np.uint32) >> 16
    halves_want = [*counts, *sixteenth, (v & 0xFFFF).max()]
    return Case("updates", UPDATES, "updates", (blocks, 1, 1), (threads, 1, 1), (v, words, longs, halves),
                {1: Expected(np.array(words_want, np.uint32)), 2: Expected(np.array(longs_want, np.uint64)),
                 3: Expected(np.array(halves_want, np.uint16))},
                tags=_TAGS | {"hand", "shared", "f16", "bf16", "f64"})  # fmt: skip
