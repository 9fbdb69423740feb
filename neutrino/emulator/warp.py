"""Operations of a warp (PTX ISA 9.7.9.5 and on): what threads tell each other through registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from neutrino.emulator.datatypes import Array
from neutrino.emulator.geometry import WARP
from neutrino.emulator.memory import POISON
from neutrino.emulator.state import Indices, State

_BITS = np.uint32(1) << np.arange(WARP, dtype=np.uint32)
_UNPREDICTABLE = int.from_bytes(bytes([POISON]) * 4, "little")
_LANES = np.arange(WARP, dtype=np.int64)


class WarpOperations(State):
    """``at``: the threads that take part. Results have one element for each of them."""

    def rows(self, value: Any, at: Indices | None, dtype: Any = None, *, absent: int = 0) -> Array:
        """Values of threads as one row of 32 a warp; ``absent`` where a thread does not take part."""
        dtype = dtype or value.dtype
        if at is None:
            every: Array = np.broadcast_to(value, (self.threads,))
            return every.reshape(-1, WARP)
        whole = np.full(self.threads, absent, dtype)
        whole[at] = value
        return whole.reshape(-1, WARP)

    def active(self, at: Indices | None) -> Array:
        """Which threads take part, one row a warp."""
        if at is None:
            return np.ones((self.threads // WARP, WARP), np.bool_)
        return self.rows(np.True_, at, np.bool_)

    def threads_in(self, rows: Array, at: Indices | None) -> Array:
        """One value a thread, from one row a warp."""
        flat = rows.reshape(-1)
        return flat if at is None else flat[at]

    def in_warps(self, words: Array, at: Indices | None) -> Array:
        """One value a thread, from one value a warp."""
        if at is None:
            return np.repeat(words, WARP)
        repeated: Array = words[at >> 5]
        return repeated

    def shuffle(self, mode: str, value: Any, source: Any, control: Any, at: Indices | None) -> tuple[Any, Any]:
        """``shfl`` (PTX ISA 9.7.9.6): the value of another thread, and whether there was one in range."""
        size = self.threads if at is None else at.size
        lane = (np.arange(size, dtype=np.int64) if at is None else at) & 31
        b = source.astype(np.int64) & 31
        c = control.astype(np.int64)
        segment = (c >> 8) & 31
        clamp = c & 31
        low = lane & segment
        high = low | (clamp & ~segment)
        if mode == "up":
            from_lane = lane - b
            good = from_lane >= high
        elif mode == "down":
            from_lane = lane + b
            good = from_lane <= high
        elif mode == "bfly":
            from_lane = lane ^ b
            good = from_lane <= high
        else:
            from_lane = low | (b & ~segment)
            good = from_lane <= high
        from_lane = np.where(good, from_lane, lane)
        first = (np.arange(size, dtype=np.int64) if at is None else at) & ~31
        # What a thread that does not take part holds is unpredictable.
        whole = self.rows(value, at, absent=_UNPREDICTABLE).reshape(-1)
        return whole[first + from_lane], good

    def ballots(self, rows: Array) -> Array:
        """One word a warp of which threads are set."""
        words: Array = (rows * _BITS).sum(1, dtype=np.uint32)
        return words

    def vote(self, mode: str, predicate: Any, mask: Any, at: Indices | None) -> tuple[Any]:
        """``vote`` (PTX ISA 9.7.9.9)."""
        active = self.ballots(self.active(at))
        true = self.ballots(self.rows(predicate, at, np.bool_))
        members = self.in_warps(active, at) & mask
        votes = self.in_warps(true, at) & mask
        if mode == "ballot":
            return (votes,)
        if mode == "any":
            return (votes != 0,)
        if mode == "all":
            return (votes == members,)
        return ((votes == 0) | (votes == members),)

    def match(self, mode: str, value: Any, mask: Any, at: Indices | None) -> tuple[Any, Any]:
        """``match`` (PTX ISA 9.7.9.11)."""
        rows = self.rows(value, at)
        same = (rows[:, :, None] == rows[:, None, :]) & self.active(at)[:, None, :]
        words = (same * _BITS).sum(2, dtype=np.uint32)
        equal = self.threads_in(words, at) & mask
        if mode == "any":
            return equal, np.True_
        members = self.in_warps(self.ballots(self.active(at)), at) & mask
        every = equal == members
        return np.where(every, members, np.uint32(0)), every

    def reduce(
        self, operation: str, absolute: bool, with_nan: bool, value: Any, mask: Any, at: Indices | None
    ) -> tuple[Any]:
        """``redux`` (PTX ISA 9.7.9.12)."""
        size = self.threads if at is None else at.size
        values = np.broadcast_to(value, (size,))
        if absolute:
            values = np.abs(values)
        threads = np.arange(size, dtype=np.int64) if at is None else at
        masks = np.broadcast_to(mask, (size,)).astype(np.int64)
        # Threads of one warp and one member mask reduce together.
        groups, group = np.unique((threads >> 5 << 32) | masks, return_inverse=True)
        function: Any = {
            "add": np.add,
            "min": np.minimum,
            "max": np.maximum,
            "and": np.bitwise_and,
            "or": np.bitwise_or,
            "xor": np.bitwise_xor,
        }[operation]
        if values.dtype.kind == "f" and not with_nan:
            function = {"min": np.fmin, "max": np.fmax}.get(operation, function)
        order = np.argsort(group, kind="stable")
        starts = np.searchsorted(group[order], np.arange(groups.size))
        return (function.reduceat(values[order], starts, dtype=values.dtype)[group],)

    def elect(self, mask: Any, at: Indices | None) -> tuple[Any, Any]:
        """``elect`` (PTX ISA 9.7.9.13): the lowest thread leads."""
        members = self.in_warps(self.ballots(self.active(at)), at) & mask
        lowest = members & (~members + np.uint32(1))
        leader = np.log2(np.maximum(lowest, 1).astype(np.float64)).astype(np.uint32)
        lane = (np.arange(self.threads, dtype=np.int64) if at is None else at) & 31
        return leader, leader == lane

    def active_mask(self, guard: Any, at: Indices | None) -> tuple[Any]:
        """``activemask``: the threads that run this together."""
        return (self.in_warps(self.ballots(self.active(self.guarded(at, guard))), at),)

    def matrix(
        self,
        function: Callable[..., Any],
        a: Sequence[Any],
        b: Sequence[Any],
        c: Sequence[Any],
        at: Indices | None,
    ) -> Array:
        """A matrix operation of whole warps; one row of 32-bit words a thread."""
        fragments = []
        for names in (a, b, c):
            rows = [self.rows(name, at) for name in names]
            fragments.append(np.stack(rows, axis=2))
        if at is None:
            result: Array = function(*fragments)
            return result.reshape(self.threads, -1)
        warps = np.unique(at >> 5)
        done = function(*(fragment[warps] for fragment in fragments))
        rows_of = np.searchsorted(warps, at >> 5)
        chosen: Array = done[rows_of, at & 31]
        return chosen
