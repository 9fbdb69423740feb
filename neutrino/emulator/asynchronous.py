"""Asynchronous copies and the mbarriers that they complete (PTX ISA 9.7.9.25, 9.7.13.15).

A copy reads its source when it is issued, and writes its destination as late as it may: when a thread waits for its
group, or looks at an mbarrier. So a wait that is missing shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neutrino.emulator.atomics import Atomics
from neutrino.emulator.datatypes import Array
from neutrino.emulator.memory import POISON, Space
from neutrino.emulator.state import Indices
from neutrino.errors import FaultKind

_BYTE = np.dtype("u1")
_WORD = np.dtype("u4")
_LONG = np.dtype("u8")

# An mbarrier, as it lies in shared memory: arrivals still to come, arrivals of a phase, bytes still to come, a mark
# that marks it as one, and the parity of the phase.
_COUNT_BITS = 20
_COUNT = (1 << _COUNT_BITS) - 1
_BYTES_AT = 2 * _COUNT_BITS
_BYTES_BITS = 21
_BYTES = (1 << _BYTES_BITS) - 1
_BYTES_ZERO = 1 << (_BYTES_BITS - 1)
_MARK = 2 << 61
_MARK_MASK = 3 << 61
_PHASE = 1 << 63


@dataclass
class _Copy:
    # One cp.async of some threads, to land in shared memory. groups: of each thread.
    words: Array
    index: Any
    values: list[Array]
    threads: Indices
    groups: NDArray[np.int64]


@dataclass
class _BulkCopy:
    # One cp.async.bulk of one thread. barrier: where its mbarrier lies, -1 for one that belongs to a group.
    thread: int
    block: int
    destination: Array
    content: Array
    barrier: int
    group: int


@dataclass
class _Arrival:
    # cp.async.mbarrier.arrive: counts once the thread's copies up to that group have landed.
    threads: Indices
    barriers: Indices
    adds: bool


class Asynchronous(Atomics):
    """Copies under way and mbarriers of a batch."""

    def start_asynchronous(self) -> None:
        """Before the first step."""
        self.copies: list[_Copy] = []
        self.bulk_copies: list[_BulkCopy] = []
        self.arrivals: list[_Arrival] = []
        self.committed: Any = None
        self.bulk_committed: dict[int, int] = {}

    def groups_of(self, threads: Indices) -> NDArray[np.int64]:
        """How many groups each of the threads has committed."""
        if self.committed is None:
            self.committed = np.zeros(self.threads, np.int64)
        groups: NDArray[np.int64] = self.committed[threads]
        return groups

    def all_of(self, at: Indices | None, guard: Any) -> Indices:
        """The indices of the threads for which a guard holds."""
        found = self.guarded(at, guard)
        return np.arange(self.threads, dtype=np.int64) if found is None else found

    def of_guarded(self, value: Any, at: Indices | None, guard: Any) -> Any:
        """The elements of an operand for the threads for which a guard holds."""
        size = self.threads if at is None else at.size
        whole = np.broadcast_to(value, (size,))
        return whole if guard is None else whole[np.broadcast_to(guard, (size,))]

    # -- cp.async

    def copy_async(
        self,
        number: int,
        destination: Any,
        destination_offset: Any,
        source: Any,
        source_offset: Any,
        size: int,
        given: Any,
        at: Indices | None,
        guard: Any,
    ) -> None:
        """``cp.async`` of ``size`` bytes, of which ``given`` come from the source and the others are zero."""
        threads = self.all_of(at, guard)
        if not threads.size:
            return
        target = destination if destination_offset is None else destination + destination_offset
        target = self.of_guarded(target, at, guard)
        origin = source if source_offset is None else source + source_offset
        origin = self.of_guarded(origin, at, guard)
        count = size // 4
        if given is None:
            loaded = self.load_some(number, Space.GLOBAL, origin, _WORD, count, threads)
            values = [np.broadcast_to(value, threads.shape) for value in loaded]
        else:
            values = self.load_partly(number, origin, size, self.of_guarded(given, at, guard), threads)
        ((words, index, _),) = self.locate(number, Space.SHARED, target, _WORD, count, threads, writing=True)
        self.copies.append(_Copy(words, index, values, threads, self.groups_of(threads)))

    def load_partly(self, number: int, origin: Any, size: int, given: Any, threads: Indices) -> list[Array]:
        """Words of which only the first bytes are read."""
        content = np.zeros((threads.size, size), _BYTE)
        whole = given >= size
        if whole.any():
            loaded = self.load_some(number, Space.GLOBAL, origin[whole], _WORD, size // 4, threads[whole])
            content[whole] = np.stack([np.broadcast_to(one, threads[whole].shape) for one in loaded], 1).view(_BYTE)
        for place in range(size):
            some = ~whole & (given > place)
            if some.any():
                (byte,) = self.load_some(
                    number, Space.GLOBAL, origin[some] + np.uint64(place), _BYTE, 1, threads[some]
                )
                content[some, place] = byte
        words = content.view(_WORD)
        return [words[:, place] for place in range(size // 4)]

    def commit_group(self, at: Indices | None, guard: Any) -> None:
        """``cp.async.commit_group``"""
        threads = self.all_of(at, guard)
        self.groups_of(threads)
        self.committed[threads] += 1

    def wait_group(self, but: int, at: Indices | None, guard: Any) -> None:
        """``cp.async.wait_group``: all groups land, but the latest ones. but = -1: also what is in no group yet."""
        threads = self.all_of(at, guard)
        waiting = np.zeros(self.threads, np.bool_)
        waiting[threads] = True
        left = []
        for copy in self.copies:
            due = waiting[copy.threads] & (copy.groups < self.groups_of(copy.threads) - but)
            rest = self.land(copy, due)
            if rest is not None:
                left.append(rest)
        self.copies = left

    def land(self, copy: _Copy, due: NDArray[np.bool_]) -> _Copy | None:
        """Write what is due of a copy. What is left of it."""
        if due.all():
            for place, value in enumerate(copy.values):
                copy.words[copy.index + place] = value
            return None
        if due.any():
            for place, value in enumerate(copy.values):
                copy.words[copy.index[due] + place] = value[due]
            keep = ~due
            return _Copy(
                copy.words,
                copy.index[keep],
                [value[keep] for value in copy.values],
                copy.threads[keep],
                copy.groups[keep],
            )
        return copy

    # -- cp.async.bulk

    def copy_bulk(
        self,
        number: int,
        spaces: tuple[int, int],
        destination: Any,
        source: Any,
        size: Any,
        barrier: Any,
        at: Indices | None,
        guard: Any,
    ) -> None:
        """``cp.async.bulk``: destination, source and mbarrier are addresses; the last is None for a bulk group."""
        threads = self.all_of(at, guard)
        targets, origins, sizes = (self.of_guarded(value, at, guard) for value in (destination, source, size))
        barriers = None if barrier is None else self.of_guarded(barrier, at, guard)
        for place, thread in enumerate(threads.tolist()):
            one = threads[place : place + 1]
            bytes_ = int(sizes[place])
            if bytes_ % 16 or int(targets[place]) % 16 or int(origins[place]) % 16:
                detail = f"{bytes_} bytes to {int(targets[place]):#x}, in units of 16"
                self.fault(FaultKind.MISALIGNED, number, detail, thread=thread, address=int(origins[place]))
            if not bytes_:
                continue
            content = self.bytes_at(number, spaces[1], origins[place], bytes_, one, writing=False).copy()
            where = self.bytes_at(number, spaces[0], targets[place], bytes_, one, writing=True)
            index = -1
            if barriers is not None:
                index = int(self.mbarriers(number, Space.SHARED, barriers[place : place + 1], one)[0])
            self.bulk_copies.append(
                _BulkCopy(
                    thread, thread // self.shape.stride, where, content, index, self.bulk_committed.get(thread, 0)
                )
            )

    def bytes_at(
        self, number: int, space: int, address: Any, size: int, at: Indices, *, writing: bool
    ) -> Array:
        """The bytes from an address on, as they lie in memory."""
        first = np.atleast_1d(address)
        ((words, index, _),) = self.locate(number, space, first, _BYTE, size, at, writing=writing, aligned=16)
        start = int(index[0])
        return words[start : start + size]

    def commit_bulk_group(self, at: Indices | None, guard: Any) -> None:
        """``cp.async.bulk.commit_group``"""
        for thread in self.all_of(at, guard).tolist():
            self.bulk_committed[thread] = self.bulk_committed.get(thread, 0) + 1

    def wait_bulk_group(self, but: int, at: Indices | None, guard: Any) -> None:
        """``cp.async.bulk.wait_group``"""
        threads = set(self.all_of(at, guard).tolist())
        left = []
        for copy in self.bulk_copies:
            done = self.bulk_committed.get(copy.thread, 0) - but
            if copy.barrier < 0 and copy.thread in threads and copy.group < done:
                copy.destination[:] = copy.content
            else:
                left.append(copy)
        self.bulk_copies = left

    def finish_asynchronous(self) -> None:
        """After the last step: what was never waited for lands all the same."""
        for copy in self.bulk_copies:
            copy.destination[:] = copy.content
        self.bulk_copies.clear()
        self.copies.clear()
        self.arrivals.clear()

    def settle(self, blocks: Sequence[int]) -> None:
        """Land what completes mbarriers of these blocks of the batch."""
        wanted = set(blocks)
        left = []
        for copy in self.bulk_copies:
            if copy.barrier >= 0 and copy.block in wanted:
                copy.destination[:] = copy.content
                self.change(np.array([copy.barrier]), arrivals=0, bytes_=-copy.content.size)
            else:
                left.append(copy)
        self.bulk_copies = left
        waiting = []
        for arrival in self.arrivals:
            here = np.isin(arrival.threads // self.shape.stride, list(wanted))
            if here.any():
                self.wait_group(-1, arrival.threads[here], None)
                self.change(arrival.barriers[here], arrivals=1, bytes_=0, adds=arrival.adds)
            if not here.all():
                waiting.append(_Arrival(arrival.threads[~here], arrival.barriers[~here], arrival.adds))
        self.arrivals = waiting

    # -- mbarriers

    def mbarriers(self, number: int, space: int, addresses: Any, at: Indices) -> Indices:
        """Where in shared memory, in units of eight bytes, the mbarriers at these addresses lie."""
        ((words, index, _),) = self.locate(
            number, space, np.broadcast_to(addresses, at.shape), _LONG, 1, at, writing=True
        )
        if words is not self.shared_view(_LONG):
            self.fault(FaultKind.OUT_OF_BOUNDS, number, "no mbarrier in shared memory", thread=int(at[0]))
        where: Indices = index
        return where

    def valid_mbarriers(
        self, number: int, space: int, base: Any, offset: Any, at: Indices | None, guard: Any
    ) -> tuple[Indices, Indices]:
        """(threads, mbarriers). DeviceFaultError: one is none, or is invalid."""
        threads = self.all_of(at, guard)
        addresses = self.of_guarded(base if offset is None else base + offset, at, guard)
        index = self.mbarriers(number, space, addresses, threads)
        found = self.shared_view(_LONG)[index]
        bad = (found & np.uint64(_MARK_MASK)) != np.uint64(_MARK)
        if bad.any():
            place = int(np.flatnonzero(bad)[0])
            self.fault(
                FaultKind.TRAP,
                number,
                "no mbarrier has been initialised here",
                thread=int(threads[place]),
                address=int(addresses[place]),
            )
        return threads, index

    def initialise_mbarrier(
        self, number: int, space: int, base: Any, offset: Any, count: Any, at: Indices | None, guard: Any
    ) -> None:
        """``mbarrier.init``"""
        threads = self.all_of(at, guard)
        addresses = self.of_guarded(base if offset is None else base + offset, at, guard)
        if not threads.size:
            return
        index = self.mbarriers(number, space, addresses, threads)
        counts = self.of_guarded(count, at, guard).astype(np.uint64) & np.uint64(_COUNT)
        self.shared_view(_LONG)[index] = (
            counts
            | (counts << np.uint64(_COUNT_BITS))
            | np.uint64(_BYTES_ZERO << _BYTES_AT)
            | np.uint64(_MARK)
        )

    def invalidate_mbarrier(
        self, number: int, space: int, base: Any, offset: Any, at: Indices | None, guard: Any
    ) -> None:
        """``mbarrier.inval``"""
        _, index = self.valid_mbarriers(number, space, base, offset, at, guard)
        self.shared_view(_LONG)[index] = np.uint64(int.from_bytes(bytes([POISON]) * 8, "little"))

    def arrive(
        self,
        number: int,
        space: int,
        base: Any,
        offset: Any,
        count: Any,
        bytes_: Any,
        drop: bool,
        at: Indices | None,
        guard: Any,
    ) -> Any:
        """``mbarrier.arrive``, ``arrive_drop``, ``expect_tx`` (count 0), ``complete_tx`` (negative bytes).

        The state before, without meaning where the guard does not hold.
        """
        size = self.threads if at is None else at.size
        states = np.zeros(size, _LONG)
        threads, index = self.valid_mbarriers(number, space, base, offset, at, guard)
        if not threads.size:
            return states
        words = self.shared_view(_LONG)
        found = words[index]
        arrivals = self.of_guarded(count, at, guard).astype(np.int64)
        moved = self.of_guarded(bytes_, at, guard).astype(np.int64)
        total = np.zeros(words.size, np.int64)
        np.add.at(total, index, arrivals)
        if (total[index] <= (found & np.uint64(_COUNT)).astype(np.int64)).all():
            self.change(index, arrivals=arrivals, bytes_=moved, drop=drop)
            # Each thread gets the count that those before it have left.
            order = np.argsort(index, kind="stable")
            before = np.cumsum(arrivals[order]) - arrivals[order]
            before -= before[np.searchsorted(index[order], index[order])]
            found[order] -= before.astype(_LONG)
        else:
            # A phase ends among these threads: they arrive one by one.
            turns = range(threads.size) if self.random is None else self.random.permutation(threads.size).tolist()
            for place in turns:
                one = slice(place, place + 1)
                found[place] = words[index[place]]
                pending = int(found[place]) & _COUNT
                if arrivals[place] > pending:
                    detail = f"{arrivals[place]} arrivals at an mbarrier that waits for {pending}"
                    self.fault(FaultKind.DEADLOCK, number, detail, thread=int(threads[place]))
                self.change(index[one], arrivals=arrivals[one], bytes_=moved[one], drop=drop)
        chosen = slice(None) if guard is None else np.broadcast_to(guard, (size,))
        states[chosen] = found
        return states

    def change(self, index: Indices, *, arrivals: Any, bytes_: Any, drop: bool = False, adds: bool = False) -> None:
        """Count arrivals and bytes at mbarriers; a phase ends where none are left to come.

        drop: the arrivals are missing from later phases as well. adds: they come on top of those expected.
        """
        words = self.shared_view(_LONG)
        places, which = np.unique(index, return_inverse=True)
        total_arrivals = np.zeros(places.size, np.int64)
        total_bytes = np.zeros(places.size, np.int64)
        np.add.at(total_arrivals, which, arrivals)
        np.add.at(total_bytes, which, bytes_)
        for place, arrived, moved in zip(
            places.tolist(), total_arrivals.tolist(), total_bytes.tolist(), strict=True
        ):
            word = int(words[place])
            pending = word & _COUNT
            expected = word >> _COUNT_BITS & _COUNT
            missing = (word >> _BYTES_AT & _BYTES) - _BYTES_ZERO + moved
            phase = word & _PHASE
            if not adds:
                pending = (pending - arrived) & _COUNT
            if drop:
                expected = (expected - arrived) & _COUNT
            if pending == 0 and missing == 0:
                phase ^= _PHASE
                pending = expected
            words[place] = np.uint64(
                pending
                | expected << _COUNT_BITS
                | ((missing + _BYTES_ZERO) & _BYTES) << _BYTES_AT
                | _MARK
                | phase
            )

    def arrive_after_copies(
        self, number: int, space: int, base: Any, offset: Any, adds: bool, at: Indices | None, guard: Any
    ) -> None:
        """``cp.async.mbarrier.arrive``. adds: without ``.noinc``."""
        threads, index = self.valid_mbarriers(number, space, base, offset, at, guard)
        if threads.size:
            self.arrivals.append(_Arrival(threads, index, adds))

    def test_mbarrier(
        self,
        number: int,
        space: int,
        base: Any,
        offset: Any,
        phase: Any,
        parity: bool,
        at: Indices | None,
        guard: Any,
    ) -> Any:
        """``mbarrier.test_wait`` and ``try_wait``: whether the phase of a state, or of a parity, is over."""
        size = self.threads if at is None else at.size
        over = np.zeros(size, np.bool_)
        threads, index = self.valid_mbarriers(number, space, base, offset, at, guard)
        if not threads.size:
            return over
        if self.bulk_copies or self.arrivals:
            self.settle(np.unique(threads // self.shape.stride).tolist())
        current = (self.shared_view(_LONG)[index] >> np.uint64(63)).astype(np.int64)
        asked = self.of_guarded(phase, at, guard)
        asked = (asked & asked.dtype.type(1) if parity else asked >> np.uint64(63)).astype(np.int64)
        chosen = slice(None) if guard is None else np.broadcast_to(guard, (size,))
        over[chosen] = current != asked
        return over

    def pending_count(self, state: Any) -> Any:
        """``mbarrier.pending_count``"""
        return (state & np.uint64(_COUNT)).astype(np.uint32)
