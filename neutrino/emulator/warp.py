"""Warp-wide operations (PTX ISA 9.7.9.5 and on): shuffles, votes, matches, reductions between the lanes of a warp."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from neutrino.emulator.address_space import POISON
from neutrino.emulator.datatypes import Array
from neutrino.emulator.geometry import WARP
from neutrino.emulator.state import Indices, State

_LANE_BITS = np.uint32(1) << np.arange(WARP, dtype=np.uint32)
_UNDEFINED = int.from_bytes(bytes([POISON]) * 4, "little")


class WarpOperations(State):
    """Warp-wide operations on the threads of a batch.

    ``at`` has the indices of the threads that execute the instruction, None for all; thread ``t`` is lane ``t & 31`` of
    warp ``t >> 5``. Operands and results have one element for each of these threads; an operand may be a scalar.
    ``mask`` is the member mask of each thread, with one bit per lane of its warp. The scheduler has made sure that the
    members execute the instruction together.
    """

    def rows(self, value: Any, at: Indices | None, dtype: Any = None, *, absent: int = 0) -> Array:
        """Return the threads' values as [warp, lane]. A lane that does not execute the instruction has ``absent``.

        value: one element per thread of ``at``, or a scalar. dtype: of the result, None for that of ``value``.
        """
        dtype = dtype or value.dtype
        if at is None:
            per_thread: Array = np.broadcast_to(value, (self.threads,))
            return per_thread.reshape(-1, WARP)
        per_thread = np.full(self.threads, absent, dtype)
        per_thread[at] = value
        return per_thread.reshape(-1, WARP)

    def active(self, at: Indices | None) -> Array:
        """Return which threads execute the instruction, as bool[warp, lane]."""
        if at is None:
            return np.ones((self.threads // WARP, WARP), np.bool_)
        return self.rows(np.True_, at, np.bool_)

    def threads_in(self, rows: Array, at: Indices | None) -> Array:
        """Return the elements of ``rows[warp, lane]`` for the threads that execute the instruction."""
        flat = rows.reshape(-1)
        return flat if at is None else flat[at]

    def in_warps(self, words: Array, at: Indices | None) -> Array:
        """Return for each thread that executes the instruction the word of its warp. words: one per warp."""
        if at is None:
            return np.repeat(words, WARP)
        repeated: Array = words[at >> 5]
        return repeated

    def shuffle(self, mode: str, value: Any, source: Any, control: Any, at: Indices | None) -> tuple[Any, Any]:
        """Execute ``shfl d|p, a, b, c``: return the value ``a`` of another lane, and whether that lane is in range.

        mode: ``up``, ``down``, ``bfly`` or ``idx``. source: ``b``, a lane or a distance. control: ``c``, the bits of
        the lane number that select a segment of the warp, shifted by 8, and the last lane of a segment. A lane out of
        range gets its own value. The formulas and names are those of PTX ISA 9.7.9.6; a lane has five bits (31).
        """
        size = self.threads if at is None else at.size
        lane = (np.arange(size, dtype=np.int64) if at is None else at) & 31
        b = source.astype(np.int64) & 31
        c = control.astype(np.int64)
        segment_mask = (c >> 8) & 31
        clamp = c & 31
        min_lane = lane & segment_mask
        max_lane = min_lane | (clamp & ~segment_mask)
        if mode == "up":
            source_lane = lane - b
            # For this mode, the clamp is the lowest lane.
            in_range = source_lane >= max_lane
        elif mode == "down":
            source_lane = lane + b
            in_range = source_lane <= max_lane
        elif mode == "bfly":
            source_lane = lane ^ b
            in_range = source_lane <= max_lane
        else:  # idx
            source_lane = min_lane | (b & ~segment_mask)
            in_range = source_lane <= max_lane
        source_lane = np.where(in_range, source_lane, lane)
        # The thread that is lane 0 of the same warp: the five bits of the lane cleared.
        first_of_warp = (np.arange(size, dtype=np.int64) if at is None else at) & ~31
        # The value of a lane that does not execute the instruction is undefined.
        values = self.rows(value, at, absent=_UNDEFINED).reshape(-1)
        return values[first_of_warp + source_lane], in_range

    def ballots(self, rows: Array) -> Array:
        """Return one word per warp, whose bit ``l`` is set where ``rows[warp, l]`` is true."""
        # Each lane has a bit of its own, so the sum is their union.
        words: Array = (rows * _LANE_BITS).sum(1, dtype=np.uint32)
        return words

    def vote(self, mode: str, predicate: Any, mask: Any, at: Indices | None) -> tuple[Any]:
        """Execute ``vote`` (PTX ISA 9.7.9.9): compare a predicate among the lanes of the member mask.

        mode: ``ballot`` returns the word of the lanes where it holds; ``all``, ``any`` and ``uni`` (the same in all
        lanes) return a boolean. The result is in a tuple, as generated code expects it.
        """
        active = self.ballots(self.active(at))
        true_lanes = self.ballots(self.rows(predicate, at, np.bool_))
        members = self.in_warps(active, at) & mask
        votes = self.in_warps(true_lanes, at) & mask
        if mode == "ballot":
            return (votes,)
        if mode == "any":
            return (votes != 0,)
        if mode == "all":
            return (votes == members,)
        # uni: no lane, or every lane.
        return ((votes == 0) | (votes == members),)

    def match(self, mode: str, value: Any, mask: Any, at: Indices | None) -> tuple[Any, Any]:
        """Execute ``match`` (PTX ISA 9.7.9.11): return the word of the member lanes that have the same value.

        mode: ``any`` or ``all``. For ``all`` the word is 0 unless all members have the same value, and the second
        result says whether; ``any`` has no second result, so it is of no interest.
        """
        rows = self.rows(value, at)
        is_same = (rows[:, :, None] == rows[:, None, :]) & self.active(at)[:, None, :]  # [warp, lane, other lane]
        words = (is_same * _LANE_BITS).sum(2, dtype=np.uint32)
        equal_lanes = self.threads_in(words, at) & mask
        if mode == "any":
            return equal_lanes, np.True_
        # Each thread compares its own equal lanes with all members.
        members = self.in_warps(self.ballots(self.active(at)), at) & mask
        all_equal = equal_lanes == members
        return np.where(all_equal, members, np.uint32(0)), all_equal

    def reduce(
        self, operation: str, absolute: bool, with_nan: bool, value: Any, mask: Any, at: Indices | None
    ) -> tuple[Any]:
        """Execute ``redux`` (PTX ISA 9.7.9.12): reduce a value over the lanes of the member mask.

        operation: ``add``, ``min``, ``max``, ``and``, ``or`` or ``xor``. absolute: of absolute values. with_nan: of
        floats, a NaN operand makes the result NaN; else NaN operands are ignored. The result is in a tuple, as
        generated code expects it.
        """
        size = self.threads if at is None else at.size
        values = np.broadcast_to(value, (size,))
        if absolute:
            values = np.abs(values)
        threads = np.arange(size, dtype=np.int64) if at is None else at
        masks = np.broadcast_to(mask, (size,)).astype(np.int64)
        # Threads of one warp with the same member mask reduce together. A pair (warp, mask) is one 64-bit number, and
        # ``group`` has for each thread the index of its pair in ``groups``.
        warps = threads >> 5
        groups, group = np.unique((warps << 32) | masks, return_inverse=True)
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
        # Sorted by group, so that each group is one slice for ``reduceat``; then each thread takes its group's result.
        order = np.argsort(group, kind="stable")
        starts = np.searchsorted(group[order], np.arange(groups.size))
        return (function.reduceat(values[order], starts, dtype=values.dtype)[group],)

    def elect(self, mask: Any, at: Indices | None) -> tuple[Any, Any]:
        """Execute ``elect`` (PTX ISA 9.7.9.13): return the elected lane, and whether the thread is that lane.

        The lowest lane of the member mask is elected.
        """
        members = self.in_warps(self.ballots(self.active(at)), at) & mask
        lowest_bit = members & (~members + np.uint32(1))  # x & -x
        # The logarithm of a power of two is its bit number. The maximum avoids log2(0).
        leader = np.log2(np.maximum(lowest_bit, 1).astype(np.float64)).astype(np.uint32)
        lane = (np.arange(self.threads, dtype=np.int64) if at is None else at) & 31
        return leader, leader == lane

    def active_mask(self, guard: Any, at: Indices | None) -> tuple[Any]:
        """Execute ``activemask``: return the word of the lanes that execute it now and whose guard holds, in a tuple.

        guard: a boolean per thread of ``at``, or one for all; None without a guard.
        """
        return (self.in_warps(self.ballots(self.active(self.guarded(at, guard))), at),)

    def matrix(
        self,
        function: Callable[..., Any],
        a: Sequence[Any],
        b: Sequence[Any],
        c: Sequence[Any],
        at: Indices | None,
    ) -> Array:
        """Execute ``mma d, a, b, c``. Returns the 32-bit words of ``d`` as [thread, word].

        a, b, c: the words of the threads' fragments, each word with one element per thread. function: takes and returns
        fragments as [warp, lane, word].
        """
        fragments = []
        for words in (a, b, c):
            rows = [self.rows(word, at) for word in words]
            fragments.append(np.stack(rows, axis=2))
        if at is None:
            result: Array = function(*fragments)
            return result.reshape(self.threads, -1)
        # Only the warps that execute the instruction: the product is the costly part.
        warp_of_thread, lane = at >> 5, at & 31
        warps = np.unique(warp_of_thread)
        products = function(*(fragment[warps] for fragment in fragments))
        per_thread: Array = products[np.searchsorted(warps, warp_of_thread), lane]
        return per_thread
