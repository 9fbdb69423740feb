"""Threads that wait for each other: numbered barriers, counts, barriers in memory, flags, copies that count bytes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.kernels.model import FIXTURES, Case, Expected, blank, seeded

PATH = FIXTURES / "hand" / "barriers.ptx"
BULK = FIXTURES / "hand" / "bulk.ptx"
_TAGS = frozenset({"hand", "barrier"})


def cases() -> Iterator[Case]:
    """The kernels of barriers.ptx and bulk.ptx."""
    yield from (_producers(), _counting_barriers(), _phases(), _ping_pong(), _bulk_copy())


def _producers() -> Case:
    blocks, rounds = 8, 5
    values = seeded("producers").integers(0, 1 << 32, (blocks, rounds, 64), np.uint32)
    made = values * np.uint32(5) + np.arange(rounds, dtype=np.uint32)[:, None] ^ np.arange(64, dtype=np.uint32)
    return Case("producers", PATH, "producers", (blocks, 1, 1), (128, 1, 1),
                (values, blank(values.shape, np.uint32), np.uint32(rounds)),
                {1: Expected(np.ascontiguousarray(made[:, :, ::-1]))}, tags=_TAGS | {"shared"})  # fmt: skip


def _counting_barriers() -> Case:
    blocks, threads = 24, 100
    values = seeded("counting_barriers").integers(-50, 100, (blocks, threads)).astype(np.int32)
    values[3], values[4] = np.abs(values[3]) + 1, -np.abs(values[4])
    positive = values > 0
    want = positive.sum(1) * 4 + positive.all(1) + 2 * (~positive).any(1)
    return Case("counting_barriers", PATH, "counting_barriers", (blocks, 1, 1), (threads, 1, 1),
                (values, blank(values.shape, np.uint32)),
                {1: Expected(np.repeat(want, threads).reshape(values.shape).astype(np.uint32))},
                tags=_TAGS)  # fmt: skip


def _phases() -> Case:
    rounds = 6
    values = seeded("phases").integers(0, 1 << 32, (10, 128), np.uint32)
    want = values
    for _ in range(rounds):
        want = want * np.uint32(3) + np.roll(want, -37, 1)
    return Case("phases", PATH, "phases", (10, 1, 1), (128, 1, 1), (values, np.uint32(rounds)), {0: Expected(want)},
                tags=_TAGS | {"mbarrier", "shared", "spin"})  # fmt: skip


def _ping_pong() -> Case:
    rounds = 41
    value = 7
    for turn in range(rounds):
        value = (value * 3 + (turn & 1)) & 0xFFFFFFFF
    return Case("ping_pong", PATH, "ping_pong", (1, 1, 1), (64, 1, 1),
                (np.zeros(1, np.uint32), np.array([7], np.uint32), np.uint32(rounds)),
                {0: Expected(np.array([rounds], np.uint32)), 1: Expected(np.array([value], np.uint32))},
                tags=_TAGS | {"spin"})  # fmt: skip


def _bulk_copy() -> Case:
    blocks, tiles = 4, 3
    values = seeded("bulk_copy").integers(0, 1 << 32, (blocks, tiles, 256, 2), np.uint32)
    want = np.empty_like(values)
    want[..., 0] = values[:, :, ::-1, 1]
    want[..., 1] = values[:, :, ::-1, 0] + np.arange(tiles, dtype=np.uint32)[:, None]
    return Case("bulk_copy", BULK, "bulk_copy", (blocks, 1, 1), (256, 1, 1),
                (values, blank(values.shape, np.uint32), np.uint32(tiles)), {1: Expected(want)},
                tags=_TAGS | {"mbarrier", "cp.async.bulk", "shared", "spin"})  # fmt: skip
