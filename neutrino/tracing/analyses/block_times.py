"""When the blocks of launches ran, and on which multiprocessor: of ``block_sched`` or ``warp_timeline``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.abi.levels import Level, Per
from neutrino.maps.declaration import Layout
from neutrino.tracing.analyses.evidence import Evidence
from neutrino.tracing.views import MapView

Array = npt.NDArray[Any]
MOST_BLOCKS = 1 << 22
"""Blocks of a launch, at most: what is kept of each takes 24 bytes."""
_BATCH = 1 << 18
"""Records that are read at once."""
_TIMELINE_FIELDS = 4
"""Of the map of ``warp_timeline``."""


@dataclass(frozen=True)
class BlockTimes:
    """The blocks of one launch, int64 ``[block]``: multiprocessor, begin and end since the launch's first begin.

    is_global: whether times are of one clock in nanoseconds; else each multiprocessor has its own, in cycles, so that
    only durations on one of them can be compared.
    """

    sm: Array
    begin: Array
    end: Array
    is_global: bool

    def by_multiprocessor(self) -> Iterator[tuple[Array, Array]]:
        """Yield for each multiprocessor with blocks the begins and the ends of these, each ascending."""
        order = np.argsort(self.sm, kind="stable")
        cuts = np.flatnonzero(np.diff(self.sm[order])) + 1
        for part in np.split(order, cuts):
            yield np.sort(self.begin[part]), np.sort(self.end[part])


def places(begins: Array, ends: Array) -> int:
    """Return how many blocks a multiprocessor ran at once at most: its places for them. begins, ends: ascending."""
    running = np.arange(1, len(begins) + 1) - np.searchsorted(ends, begins, "right")
    return int(running.max()) if len(running) else 0


def gaps(begins: Array, ends: Array) -> int:
    """Return for how long places of a multiprocessor were empty between the end of a block and the begin of the next,
    all together. begins, ends: ascending.

    The place that was left first is taken first. What is before a place's first block and after its last one does not
    count.
    """
    first = places(begins, ends)
    return int((begins[first:] - ends[: len(ends) - first]).sum())


def sources(evidence: Evidence) -> str:
    """Return the name of the map that has the times of blocks; "" without one."""
    return next((name for name in ("BlockSched", "WarpTimes") if has_times(evidence, name)), "")


def has_times(evidence: Evidence, name: str) -> bool:
    """Whether a kernel has the map of one of the probes, and not one of the same name that holds something else."""
    if name == "BlockSched":
        entry = evidence.entry(name, ("start", "elapsed", "cuid"))
        # One record for each warp.
        return entry is not None and entry.level is Level.WARP and entry.kind.layout is Layout.SLOTS and entry.cap == 1
    entry = evidence.entry(name, ("begin", "end", "sm"))
    return entry is not None and entry.per is Per.WARP and len(entry.fields) == _TIMELINE_FIELDS


def block_times(evidence: Evidence, name: str) -> Iterator[BlockTimes]:
    """Yield the blocks' times of some launches, from the map of that name; launches without any are left out, and those
    of more than MOST_BLOCKS blocks.
    """
    for view in evidence.views(name):
        if view.geometry.blocks > MOST_BLOCKS:
            continue
        found = _of_sched(view) if name == "BlockSched" else _of_timeline(view)
        if found is not None and len(found.sm):
            yield found


def _of_sched(view: MapView) -> BlockTimes | None:
    """Return the blocks' times from a record for each warp: start and elapsed in cycles, and the multiprocessor."""
    records = view.records.reshape(view.geometry.blocks, -1)
    step = max(_BATCH // records.shape[1], 1)
    parts = [_of_warps(records[first : first + step]) for first in range(0, len(records), step)]
    sm, begin, end = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    if not len(sm):
        return None
    # Clocks count since the device was started: differences are small.
    first = begin.min()
    return BlockTimes(sm, (begin - first).astype(np.int64), (end - first).astype(np.int64), is_global=False)


def _of_warps(records: Array) -> tuple[Array, Array, Array]:
    """Return the multiprocessor, begin and end of blocks by their clocks, without those of which no warp has ended.

    records: ``[block][warp]``.
    """
    start, elapsed = records["start"], records["elapsed"]
    # A warp that has not reached the kernel's end has a record of zeros.
    ran = elapsed > 0
    has_any = ran.any(axis=1)
    begins = np.where(ran, start, np.iinfo(np.uint64).max).min(axis=1)
    ends = np.where(ran, start + elapsed, 0).max(axis=1)
    first = np.argmax(ran, axis=1)
    sm = records["cuid"][np.arange(len(records)), first].astype(np.int64)
    return sm[has_any], begins[has_any], ends[has_any]


def _of_timeline(view: MapView) -> BlockTimes | None:
    """Return the blocks' times from a result for each warp: begin and end in nanoseconds, and the multiprocessor."""
    parts = []
    # Whole blocks, some at a time.
    for results, owners in view.owned():
        if not len(results):
            continue
        order, starts = by_block(owners["block"])
        found = results[order]
        parts.append((
            found["sm"][starts].astype(np.int64),
            np.minimum.reduceat(found["begin"], starts),
            np.maximum.reduceat(found["end"], starts),
        ))  # fmt: skip
    if not parts:
        return None
    sm, begin, end = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    first = begin.min()
    return BlockTimes(sm, (begin - first).astype(np.int64), (end - first).astype(np.int64), is_global=True)


def by_block(blocks: Array) -> tuple[Array, Array]:
    """Return the order in which results of warps are by block, and where in it each block begins."""
    order = np.argsort(blocks, kind="stable")
    return order, np.flatnonzero(np.r_[True, np.diff(blocks[order]) != 0])
