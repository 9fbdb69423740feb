"""Prefix sums and what is built on them: compaction, a radix pass; and a sorting network."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.kernels.model import FIXTURES, Case, Expected, blank, seeded

PATH = FIXTURES / "clang" / "scans.ptx"


def cases() -> Iterator[Case]:
    """The kernels of scans.cu."""
    yield from (_scan_blelloch("scan_blelloch", 8), _scan_blelloch("scan_blelloch_many_blocks", 60))
    yield from (_scan_warp(), _compact(), _radix_step(), _bitonic_sort())


def _scan_blelloch(name: str, blocks: int) -> Case:
    values = seeded(name).integers(-1000, 1000, (blocks, 512)).astype(np.int32)
    inclusive = values.cumsum(1, dtype=np.int32)
    return Case(name, PATH, "scan_blelloch", (blocks, 1, 1), (256, 1, 1),
                (values, blank(values.shape, np.int32), blank(blocks, np.int32)),
                {1: Expected(inclusive - values), 2: Expected(inclusive[:, -1].copy())},
                tags=frozenset({"shared"}))  # fmt: skip


def _scan_warp() -> Case:
    n = 4700
    values = seeded("scan_warp").integers(-(1 << 30), 1 << 30, n).astype(np.int32)
    padded = np.zeros(5120, np.int32)
    padded[:n] = values
    want = padded.reshape(5, 1024).cumsum(1, dtype=np.int32).reshape(-1)[:n]
    return Case("scan_warp", PATH, "scan_warp", (5, 1, 1), (1024, 1, 1),
                (values, blank(n, np.int32), np.int32(n)), {1: Expected(want)},
                tags=frozenset({"warp", "shared"}))  # fmt: skip


def _compact() -> Case:
    values = seeded("compact").integers(-50, 50, (20, 256)).astype(np.int32)
    out = blank(values.shape, np.int32)
    want, counts = out.copy(), np.zeros(20, np.int32)
    for row, wanted, place in zip(values, want, range(20), strict=True):
        kept = row[row > 0]
        wanted[: len(kept)] = kept
        counts[place] = len(kept)
    return Case("compact", PATH, "compact", (20, 1, 1), (256, 1, 1), (values, out, blank(20, np.int32)),
                {1: Expected(want), 2: Expected(counts)}, tags=frozenset({"warp", "shared"}))  # fmt: skip


def _radix_step() -> Case:
    shift = 8
    keys = seeded("radix_step").integers(0, 1 << 32, (8, 256), np.uint32)
    order = np.argsort(keys >> shift & 15, axis=1, kind="stable")
    return Case("radix_step", PATH, "radix_step", (8, 1, 1), (256, 1, 1),
                (keys, blank(keys.shape, np.uint32), np.int32(shift)),
                {1: Expected(np.take_along_axis(keys, order, 1))}, tags=frozenset({"warp", "shared"}))  # fmt: skip


def _bitonic_sort() -> Case:
    keys = seeded("bitonic_sort").integers(-(1 << 31), 1 << 31, (4, 512)).astype(np.int32)
    return Case("bitonic_sort", PATH, "bitonic_sort", (4, 1, 1), (256, 1, 1), (keys,),
                {0: Expected(np.sort(keys, 1))}, tags=frozenset({"shared"}))  # fmt: skip
