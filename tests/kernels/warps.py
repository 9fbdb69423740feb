"""What lanes of a warp tell each other, and where each thread is."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.kernels.model import FIXTURES, Array, Case, Expected, blank, seeded

PATH = FIXTURES / "hand" / "warps.ptx"
_TAGS = frozenset({"hand", "warp"})
_LANES = np.arange(32)


def cases() -> Iterator[Case]:
    """The kernels of warps.ptx."""
    yield from (_votes(), _shuffles(), _positions())


def _mask(lanes: Array) -> Array:
    """The lanes of the last axis as bits of one word."""
    return (lanes.astype(np.uint64) << _LANES.astype(np.uint64)).sum(-1).astype(np.uint32)


def _alike(values: Array) -> Array:
    return _mask(values[:, :, None] == values[:, None, :])


def _votes() -> Case:
    warps = 30
    random = seeded("votes")
    v = random.integers(0, 1 << 32, (warps, 32), np.uint32)
    v[3], v[4], v[5] = v[3] | 1, v[4] & ~np.uint32(1), v[5, 0]
    v[6] = v[6, 0] & ~np.uint32(255) | v[6] & 255
    odd = v & 1
    same = (v >> 8 == v[:, :1] >> 8).all(1)
    lower = v[:, :16].sum(1, dtype=np.uint32)
    upper = v[:, 16:].view(np.int32).min(1).view(np.uint32)
    ballot = _mask(odd)
    every, some = odd.all(1), odd.any(1)
    flags = every | some << 1 | (every | ~some) << 2 | same << 3 | 1 << 4
    columns = [
        np.full((warps, 32), 0xFFFFFFFF), ballot[:, None], ~ballot[:, None], _alike(v >> 1 & 3), _alike(odd),
        np.where(same, 0xFFFFFFFF, 0)[:, None], np.bitwise_and.reduce(v, 1)[:, None], v.max(1)[:, None],
        np.where(_LANES < 16, lower[:, None], upper[:, None]), flags[:, None],
    ]  # fmt: skip
    want = np.stack([np.broadcast_to(column, (warps, 32)) for column in columns], 2).astype(np.uint32)
    return Case("votes", PATH, "votes", (10, 1, 1), (96, 1, 1), (v, blank(want.shape, np.uint32)),
                {1: Expected(want)}, tags=_TAGS)  # fmt: skip


def _shuffle(v: Array, kind: str, step: Array | int, control: int) -> tuple[Array, Array]:
    """shfl.sync (PTX ISA 9.7.9.6) of all lanes: values, and whether the source was within the segment."""
    segment, limit = control >> 8 & 31, control & 31
    highest = _LANES & segment | limit & ~segment
    step = np.broadcast_to(np.asarray(step) & 31, v.shape)
    source = {
        "up": _LANES - step, "down": _LANES + step, "bfly": _LANES ^ step,
        "idx": (_LANES & segment) | (step & ~segment & 31),
    }[kind]  # fmt: skip
    inside = source >= highest if kind == "up" else source <= highest
    return np.take_along_axis(v, np.where(inside, source, _LANES), 1), inside


def _shuffles() -> Case:
    warps = 30
    v = seeded("shuffles").integers(0, 1 << 32, (warps, 32), np.uint32)
    at = (v & 31).astype(np.int64)
    moved = [
        _shuffle(v, "idx", at, 31), _shuffle(v, "up", 3, 0), _shuffle(v, "down", 5, 31), _shuffle(v, "bfly", 9, 31),
        _shuffle(v, "idx", at, 0x1807), _shuffle(v, "down", 2, 0x1807),
    ]  # fmt: skip
    inside = sum(np.broadcast_to(said, v.shape).astype(np.uint32) << place for place, (_, said) in enumerate(moved))
    among_odd = np.where(_LANES & 1, v[:, _LANES ^ 2], 77)
    columns = [values for values, _ in moved]
    columns += [_shuffle(v, "up", _LANES, 0)[0], among_odd, inside]
    want = np.stack(columns, 2).astype(np.uint32)
    return Case("shuffles", PATH, "shuffles", (15, 1, 1), (64, 1, 1), (v, blank(want.shape, np.uint32)),
                {1: Expected(want)}, tags=_TAGS)  # fmt: skip


def _positions() -> Case:
    grid, block, shared = (3, 2, 2), (7, 3, 5), 48
    threads = int(np.prod(block))
    lane = np.arange(threads) % 32
    one = np.uint64(1) << lane.astype(np.uint64)
    active = np.where(np.arange(threads) < 96, 0xFFFFFFFF, (1 << threads - 96) - 1)
    columns = [
        lane, one, one - 1, 2 * one - 1, ~(2 * one - 1), ~(one - 1), active,
        np.full(threads, shared * 100 + 32 + grid[2] * 100000),
    ]  # fmt: skip
    of_block = np.stack([column.astype(np.uint64) & 0xFFFFFFFF for column in columns], 1).astype(np.uint32)
    want = np.tile(of_block, (int(np.prod(grid)), 1))
    return Case("positions", PATH, "positions", grid, block, (blank(want.shape, np.uint32),), {0: Expected(want)},
                shared=shared, tags=_TAGS | {"3-D"})  # fmt: skip
