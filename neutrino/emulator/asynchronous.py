"""Asynchronous copies and the mbarriers that they complete (PTX ISA 9.7.9.25, 9.7.13.15).

A copy reads its source when it is issued, and writes its destination as late as possible: when a thread waits for its
group, or looks at an mbarrier. So a missing wait shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neutrino.emulator.address_space import POISON, Space
from neutrino.emulator.atomics import Atomics
from neutrino.emulator.datatypes import Array
from neutrino.emulator.state import Indices
from neutrino.errors import FaultKind

_BYTE = np.dtype("u1")
_WORD = np.dtype("u4")
_LONG = np.dtype("u8")

# An mbarrier as a 64-bit word in shared memory, from the lowest bit: pending arrivals, expected arrivals of each phase,
# tx-count (bytes still to come, stored with a bias as it may be negative), a mark of initialised mbarriers, and the
# parity of the phase.
_COUNT_BITS = 20
_COUNT_MASK = (1 << _COUNT_BITS) - 1
_TX_SHIFT = 2 * _COUNT_BITS
_TX_BITS = 21
_TX_MASK = (1 << _TX_BITS) - 1
_TX_BIAS = 1 << (_TX_BITS - 1)
_MARK = 2 << 61
_MARK_MASK = 3 << 61
_PHASE = 1 << 63


@dataclass
class _Copy:
    """One issued cp.async of some threads, not yet written to shared memory.

    words, index: the destination, `words[index]` for the first word of each thread. values: the words to write, one
    array per word. threads: their indices in the batch. groups: for each thread, the number of the cp.async group that
    the copy belongs to.
    """

    words: Array
    index: Any
    values: list[Array]
    threads: Indices
    groups: NDArray[np.int64]


@dataclass
class _BulkCopy:
    """One issued cp.async.bulk of one thread, not yet written.

    thread, block: their indices in the batch. destination: a view of the bytes to write. content: the bytes, as they
    were when the copy was issued. barrier: the index of its mbarrier in shared memory, viewed as 64-bit words; -1 if it
    completes by bulk group. group: the number of that group, among those of the thread.
    """

    thread: int
    block: int
    destination: Array
    content: Array
    barrier: int
    group: int


@dataclass
class _Arrival:
    """A cp.async.mbarrier.arrive of some threads: it counts once their earlier cp.async copies are complete.

    threads: their indices in the batch. barriers: the index of each one's mbarrier in shared memory, viewed as 64-bit
    words. adds: the arrival also raises the pending count first (without .noinc).
    """

    threads: Indices
    barriers: Indices
    adds: bool


class Asynchronous(Atomics):
    """The asynchronous copies that are under way and the mbarriers of a batch.

    Copies read their source when they are issued, and write as late as possible, so that a missing wait shows.

    In all methods, `statement` is the index of the PTX statement in its module (for fault reports), `space` the state
    space of the mbarrier's address (a value of `Space`), `active` holds the indices of the active threads within the
    batch (None: all), and `guard` is the statement's predicate (None: no guard). Operands are arrays with one element
    per active thread, or scalars if they are the same in all of them. `shape.stride` is the number of threads per
    block, so that thread // stride is the index of the thread's block in the batch.
    """

    def start_asynchronous(self) -> None:
        """Set up empty queues; called before the first step of the batch."""
        self.copies: list[_Copy] = []
        self.bulk_copies: list[_BulkCopy] = []
        self.arrivals: list[_Arrival] = []
        # Number of committed cp.async groups per thread; allocated on first use, as few kernels have them.
        self.committed: Any = None
        # Number of committed bulk groups, by the thread's index in the batch.
        self.bulk_committed: dict[int, int] = {}

    def groups_of(self, threads: Indices) -> NDArray[np.int64]:
        """Return how many cp.async groups each thread has committed.

        Groups are numbered from 0, so that this is the number of the group that its next copies belong to.
        """
        if self.committed is None:
            self.committed = np.zeros(self.threads, np.int64)
        groups: NDArray[np.int64] = self.committed[threads]
        return groups

    def guarded_threads(self, active: Indices | None, guard: Any) -> Indices:
        """Return the indices of the active threads whose guard is true, also if these are all threads of the batch.

        active: the indices of the active threads in the batch, None: all.
        """
        threads = self.guarded(active, guard)
        return np.arange(self.threads, dtype=np.int64) if threads is None else threads

    def guarded_values(self, value: Any, active: Indices | None, guard: Any) -> Any:
        """Return the elements of an operand for the active threads whose guard is true, as an array.

        active: the indices of the active threads in the batch, None: all.
        """
        size = self.threads if active is None else active.size
        values = np.broadcast_to(value, (size,))
        return values if guard is None else values[np.broadcast_to(guard, (size,))]

    # -- cp.async

    def copy_async(
        self,
        statement: int,
        destination: Any,
        destination_offset: Any,
        source: Any,
        source_offset: Any,
        size: int,
        source_size: Any,
        active: Indices | None,
        guard: Any,
    ) -> None:
        """Issue ``cp.async`` of `size` bytes per thread, from global to shared memory.

        Addresses are the sums of destination or source and their offsets (None: 0). Only the first `source_size` bytes
        are read (None: all of them); the others are zero. statement: its index, for fault reports. active: the indices
        of the active threads in the batch, None: all. guard: their predicate.
        """
        threads = self.guarded_threads(active, guard)
        if not threads.size:
            return
        targets = destination if destination_offset is None else destination + destination_offset
        targets = self.guarded_values(targets, active, guard)
        sources = source if source_offset is None else source + source_offset
        sources = self.guarded_values(sources, active, guard)
        # In 32-bit words, as sizes are multiples of 4.
        count = size // 4
        if source_size is None:
            loaded = self.load_some(statement, Space.GLOBAL, sources, _WORD, count, threads)
            values = [np.broadcast_to(value, threads.shape) for value in loaded]
        else:
            source_sizes = self.guarded_values(source_size, active, guard)
            values = self.load_zero_filled(statement, sources, size, source_sizes, threads)
        # Shared memory is one piece, of which all threads have a part.
        ((words, index, _),) = self.locate(statement, Space.SHARED, targets, _WORD, count, threads, writing=True)
        self.copies.append(_Copy(words, index, values, threads, self.groups_of(threads)))

    def load_zero_filled(
        self, statement: int, sources: Any, size: int, source_sizes: Any, threads: Indices
    ) -> list[Array]:
        """Load `size` bytes per thread from global memory, of which only the first `source_sizes` are read, the others
        being zero.

        sources: the threads' addresses. threads: their indices in the batch. statement: the instruction's index in the
        module, for fault reports. Return one array of 32-bit words, with an element per thread, for each word of the
        copy.
        """
        # One row per thread.
        content = np.zeros((threads.size, size), _BYTE)
        full = source_sizes >= size
        if full.any():
            loaded = self.load_some(statement, Space.GLOBAL, sources[full], _WORD, size // 4, threads[full])
            words = [np.broadcast_to(word, threads[full].shape) for word in loaded]
            content[full] = np.stack(words, 1).view(_BYTE)
        # The others byte by byte, as no byte beyond their size may be touched.
        for position in range(size):
            partial = ~full & (source_sizes > position)
            if partial.any():
                (byte,) = self.load_some(
                    statement, Space.GLOBAL, sources[partial] + np.uint64(position), _BYTE, 1, threads[partial]
                )
                content[partial, position] = byte
        columns = content.view(_WORD)
        return [columns[:, position] for position in range(size // 4)]

    def commit_group(self, active: Indices | None, guard: Any) -> None:
        """Execute ``cp.async.commit_group``: close the current group of each thread; later copies get a new one.

        active: the indices of the active threads in the batch, None: all. guard: their predicate; None: no guard.
        """
        threads = self.guarded_threads(active, guard)
        # Allocates the counters if this is their first use.
        self.groups_of(threads)
        self.committed[threads] += 1

    def wait_group(self, max_pending: int, active: Indices | None, guard: Any) -> None:
        """Execute ``cp.async.wait_group``: complete all but the latest `max_pending` committed groups of each thread.

        -1 also completes the copies that are in no committed group yet (``cp.async.wait_all``). active: the indices of
        the active threads, None: all. guard: their predicate.
        """
        threads = self.guarded_threads(active, guard)
        waiting = np.zeros(self.threads, np.bool_)
        waiting[threads] = True
        remaining = []
        for copy in self.copies:
            # The current, uncommitted group has the number of committed ones; with -1 it is due as well.
            due = waiting[copy.threads] & (copy.groups < self.groups_of(copy.threads) - max_pending)
            incomplete = self.complete_copy(copy, due)
            if incomplete is not None:
                remaining.append(incomplete)
        self.copies = remaining

    def complete_copy(self, copy: _Copy, due: NDArray[np.bool_]) -> _Copy | None:
        """Write the data of a copy to shared memory for those of its threads that the mask `due` marks.

        Return the copy that is left to be made, for the other threads; None if there are none.
        """
        if due.all():
            # The words of a thread follow each other.
            for position, value in enumerate(copy.values):
                copy.words[copy.index + position] = value
            return None
        if due.any():
            # Split the copy: write one part of its threads, keep the other.
            for position, value in enumerate(copy.values):
                copy.words[copy.index[due] + position] = value[due]
            pending = ~due
            return _Copy(
                copy.words,
                copy.index[pending],
                [value[pending] for value in copy.values],
                copy.threads[pending],
                copy.groups[pending],
            )
        return copy

    # -- cp.async.bulk

    def copy_bulk(
        self,
        statement: int,
        spaces: tuple[int, int],
        destination: Any,
        source: Any,
        size: Any,
        barrier: Any,
        active: Indices | None,
        guard: Any,
    ) -> None:
        """Issue ``cp.async.bulk`` of `size` bytes for each thread.

        spaces: the state spaces of destination and source. barrier: the address of the mbarrier to complete, None for a
        copy of a bulk group. active: the indices of the active threads, None: all. guard: their predicate. Raise
        DeviceFaultError if an address or a size is no multiple of 16 bytes. statement: the instruction's index in the
        module, for fault reports.
        """
        destination_space, source_space = spaces
        threads = self.guarded_threads(active, guard)
        targets, sources, sizes = (self.guarded_values(value, active, guard) for value in (destination, source, size))
        barriers = None if barrier is None else self.guarded_values(barrier, active, guard)
        for position, thread in enumerate(threads.tolist()):
            single = threads[position : position + 1]
            byte_count = int(sizes[position])
            if byte_count % 16 or int(targets[position]) % 16 or int(sources[position]) % 16:
                detail = f"{byte_count} bytes to {int(targets[position]):#x}, in units of 16"
                self.fault(FaultKind.MISALIGNED, statement, detail, thread=thread, address=int(sources[position]))
            if not byte_count:
                continue
            content = self.bytes_at(
                statement, source_space, sources[position], byte_count, single, writing=False
            ).copy()
            target = self.bytes_at(statement, destination_space, targets[position], byte_count, single, writing=True)
            # -1: the copy belongs to a bulk group.
            barrier_index = -1
            if barriers is not None:
                address = barriers[position : position + 1]
                barrier_index = int(self.locate_mbarriers(statement, Space.SHARED, address, single)[0])
            block = thread // self.shape.stride
            group = self.bulk_committed.get(thread, 0)
            self.bulk_copies.append(_BulkCopy(thread, block, target, content, barrier_index, group))

    def bytes_at(self, statement: int, space: int, address: Any, size: int, active: Indices, *, writing: bool) -> Array:
        """Return a view of the `size` bytes at an address. Raise DeviceFaultError if it is no multiple of 16.

        active: the thread that copies, as an array of one index. writing: the bytes will be written. statement: the
        instruction's index in the module, for fault reports. space: the state space of the addresses, a ``Space``
        (global, shared …).
        """
        addresses = np.atleast_1d(address)
        ((words, index, _),) = self.locate(
            statement, space, addresses, _BYTE, size, active, writing=writing, aligned=16
        )
        start = int(index[0])
        return words[start : start + size]

    def commit_bulk_group(self, active: Indices | None, guard: Any) -> None:
        """Execute ``cp.async.bulk.commit_group``: close the current bulk group of each thread.

        active: the indices of the active threads in the batch, None: all. guard: their predicate; None: no guard.
        """
        for thread in self.guarded_threads(active, guard).tolist():
            self.bulk_committed[thread] = self.bulk_committed.get(thread, 0) + 1

    def wait_bulk_group(self, max_pending: int, active: Indices | None, guard: Any) -> None:
        """Execute ``cp.async.bulk.wait_group``: complete all but each thread's latest `max_pending` bulk groups.

        active: the indices of the active threads in the batch, None: all. guard: their predicate; None: no guard.
        """
        threads = set(self.guarded_threads(active, guard).tolist())
        remaining = []
        for copy in self.bulk_copies:
            first_pending_group = self.bulk_committed.get(copy.thread, 0) - max_pending
            # A copy with an mbarrier (an index of at least 0) is in no group.
            if copy.barrier < 0 and copy.thread in threads and copy.group < first_pending_group:
                copy.destination[:] = copy.content
            else:
                remaining.append(copy)
        self.bulk_copies = remaining

    def finish_asynchronous(self) -> None:
        """Complete the bulk copies that no thread waited for; called after the last step of the batch.

        They may write global memory, which outlasts the batch; cp.async writes only shared memory, which does not.
        """
        for copy in self.bulk_copies:
            copy.destination[:] = copy.content
        self.bulk_copies.clear()
        self.copies.clear()
        self.arrivals.clear()

    def complete_mbarrier_copies(self, blocks: Sequence[int]) -> None:
        """Complete the copies and the deferred arrivals that mbarriers of these blocks of the batch count.

        Called when a thread of these blocks looks at an mbarrier: copies are completed as late as possible. blocks:
        their indices in the batch.
        """
        selected_blocks = set(blocks)

        remaining_copies = []
        for copy in self.bulk_copies:
            if copy.barrier >= 0 and copy.block in selected_blocks:
                copy.destination[:] = copy.content
                self.update_mbarriers(np.array([copy.barrier]), arrivals=0, tx_bytes=-copy.content.size)
            else:
                remaining_copies.append(copy)
        self.bulk_copies = remaining_copies

        remaining_arrivals = []
        for arrival in self.arrivals:
            due = np.isin(arrival.threads // self.shape.stride, list(selected_blocks))
            if due.any():
                # An arrival counts after the earlier copies of its thread, so these must be complete.
                self.wait_group(-1, arrival.threads[due], guard=None)
                self.update_mbarriers(arrival.barriers[due], arrivals=1, tx_bytes=0, adds=arrival.adds)
            if not due.all():
                remaining_arrivals.append(_Arrival(arrival.threads[~due], arrival.barriers[~due], arrival.adds))
        self.arrivals = remaining_arrivals

    # -- mbarriers

    def locate_mbarriers(self, statement: int, space: int, addresses: Any, active: Indices) -> Indices:
        """Return the indices of the mbarriers at these addresses in shared memory, viewed as 64-bit words.

        Raise DeviceFaultError if an address is not in shared memory. statement: the instruction's index in the module,
        for fault reports. space: the state space of the addresses, a ``Space`` (global, shared …). active: the threads'
        indices in the batch.
        """
        ((words, index, _),) = self.locate(
            statement, space, np.broadcast_to(addresses, active.shape), _LONG, 1, active, writing=True
        )
        # Generic addresses may also lie in other memory.
        if words is not self.shared_view(_LONG):
            self.fault(FaultKind.OUT_OF_BOUNDS, statement, "no mbarrier in shared memory", thread=int(active[0]))
        indices: Indices = index
        return indices

    def valid_mbarriers(
        self, statement: int, space: int, base: Any, offset: Any, active: Indices | None, guard: Any
    ) -> tuple[Indices, Indices]:
        """Return the threads whose guard is true, and the index of the mbarrier of each in shared memory.

        The mbarriers are at base + offset (None: 0); an index counts 64-bit words. statement: its index, for fault
        reports. active: the indices of the active threads, None: all. Raise DeviceFaultError if one of these words is
        no initialised mbarrier. space: the state space of the addresses, a ``Space`` (global, shared …).
        """
        threads = self.guarded_threads(active, guard)
        addresses = self.guarded_values(base if offset is None else base + offset, active, guard)
        index = self.locate_mbarriers(statement, space, addresses, threads)
        words = self.shared_view(_LONG)[index]
        # These two bits mark initialised mbarriers; the poison of fresh memory has others.
        invalid = (words & np.uint64(_MARK_MASK)) != np.uint64(_MARK)
        if invalid.any():
            position = int(np.flatnonzero(invalid)[0])
            self.fault(
                FaultKind.TRAP,
                statement,
                "no mbarrier has been initialised here",
                thread=int(threads[position]),
                address=int(addresses[position]),
            )
        return threads, index

    def initialise_mbarrier(
        self, statement: int, space: int, base: Any, offset: Any, count: Any, active: Indices | None, guard: Any
    ) -> None:
        """Execute ``mbarrier.init``: write an mbarrier that expects `count` arrivals in each phase.

        It is at base + offset (None: 0) of each active thread whose guard is true. statement: the instruction's index
        in the module, for fault reports. space: the state space of the addresses, a ``Space`` (global, shared …).
        active: the indices of the active threads in the batch, None: all.
        """
        threads = self.guarded_threads(active, guard)
        addresses = self.guarded_values(base if offset is None else base + offset, active, guard)
        if not threads.size:
            return
        index = self.locate_mbarriers(statement, space, addresses, threads)
        counts = self.guarded_values(count, active, guard).astype(np.uint64) & np.uint64(_COUNT_MASK)
        # Pending and expected arrivals, no pending bytes, the mark of an initialised mbarrier, and phase 0.
        self.shared_view(_LONG)[index] = (
            counts | (counts << np.uint64(_COUNT_BITS)) | np.uint64(_TX_BIAS << _TX_SHIFT) | np.uint64(_MARK)
        )

    def invalidate_mbarrier(
        self, statement: int, space: int, base: Any, offset: Any, active: Indices | None, guard: Any
    ) -> None:
        """Execute ``mbarrier.inval``: overwrite the mbarriers with poison, which no operation takes for an mbarrier.

        statement: the instruction's index in the module, for fault reports. space: the state space of the addresses, a
        ``Space`` (global, shared …). active: the indices of the active threads in the batch, None: all. guard: their
        predicate; None: no guard.
        """
        _, index = self.valid_mbarriers(statement, space, base, offset, active, guard)
        self.shared_view(_LONG)[index] = np.uint64(int.from_bytes(bytes([POISON]) * 8, "little"))

    def arrive(
        self,
        statement: int,
        space: int,
        base: Any,
        offset: Any,
        count: Any,
        tx_bytes: Any,
        drop: bool,
        active: Indices | None,
        guard: Any,
    ) -> Any:
        """Execute the ``mbarrier`` operations that count arrivals or bytes at an mbarrier.

        These are ``arrive``, ``arrive_drop`` (drop), ``expect_tx`` (count 0) and ``complete_tx`` (count 0, negative
        bytes). The mbarrier is at base + offset (None: 0); count and tx_bytes are what each thread adds. Return the
        state word of the mbarrier before the operation, one per active thread, meaningless if the guard is false. Raise
        DeviceFaultError for more arrivals than are pending. statement: the instruction's index in the module, for fault
        reports. space: the state space of the addresses, a ``Space`` (global, shared …). active: the indices of the
        active threads in the batch, None: all.
        """
        size = self.threads if active is None else active.size
        states = np.zeros(size, _LONG)
        threads, index = self.valid_mbarriers(statement, space, base, offset, active, guard)
        if not threads.size:
            return states
        words = self.shared_view(_LONG)
        old_words = words[index]
        arrivals = self.guarded_values(count, active, guard).astype(np.int64)
        tx_changes = self.guarded_values(tx_bytes, active, guard).astype(np.int64)
        total_arrivals = np.zeros(words.size, np.int64)
        np.add.at(total_arrivals, index, arrivals)
        # No more arrivals at any mbarrier than are pending: all can count at once.
        if (total_arrivals[index] <= (old_words & np.uint64(_COUNT_MASK)).astype(np.int64)).all():
            self.update_mbarriers(index, arrivals=arrivals, tx_bytes=tx_changes, drop=drop)
            # The state of each thread has the pending count that the threads before it, at the same mbarrier, leave:
            # subtract their arrivals, which are a running sum within each mbarrier. (It is the difference of a running
            # sum over all threads, sorted by mbarrier, to its value at the mbarrier's first thread.)
            order = np.argsort(index, kind="stable")
            earlier_arrivals = np.cumsum(arrivals[order]) - arrivals[order]
            earlier_arrivals -= earlier_arrivals[np.searchsorted(index[order], index[order])]
            old_words[order] -= earlier_arrivals.astype(_LONG)
        else:
            # A phase ends between the arrivals of these threads: they arrive one by one.
            turns = range(threads.size) if self.random is None else self.random.permutation(threads.size).tolist()
            for position in turns:
                single = slice(position, position + 1)
                old_words[position] = words[index[position]]
                pending = int(old_words[position]) & _COUNT_MASK
                if arrivals[position] > pending:
                    detail = f"{arrivals[position]} arrivals at an mbarrier that waits for {pending}"
                    self.fault(FaultKind.DEADLOCK, statement, detail, thread=int(threads[position]))
                self.update_mbarriers(index[single], arrivals=arrivals[single], tx_bytes=tx_changes[single], drop=drop)
        selected = slice(None) if guard is None else np.broadcast_to(guard, (size,))
        states[selected] = old_words
        return states

    def update_mbarriers(
        self, index: Indices, *, arrivals: Any, tx_bytes: Any, drop: bool = False, adds: bool = False
    ) -> None:
        """Count arrivals and bytes at mbarriers, and flip the phase of those with none of either pending.

        index: the mbarrier of each thread in shared memory, viewed as 64-bit words; it may repeat. arrivals, tx_bytes:
        one per thread, or one for all; bytes that are expected are positive, bytes that were copied negative.
        drop: lower the arrivals that later phases expect, too. adds: the arrivals first raise the pending count, so
        that it stays as it is (cp.async.mbarrier.arrive without .noinc).
        """
        words = self.shared_view(_LONG)
        barriers, inverse = np.unique(index, return_inverse=True)
        total_arrivals = np.zeros(barriers.size, np.int64)
        total_bytes = np.zeros(barriers.size, np.int64)
        np.add.at(total_arrivals, inverse, arrivals)
        np.add.at(total_bytes, inverse, tx_bytes)
        for barrier, arrived, tx_change in zip(
            barriers.tolist(), total_arrivals.tolist(), total_bytes.tolist(), strict=True
        ):
            # Take the fields of the mbarrier apart (see _COUNT_BITS), change them, and join them again.
            word = int(words[barrier])
            pending = word & _COUNT_MASK
            expected = word >> _COUNT_BITS & _COUNT_MASK
            tx_count = (word >> _TX_SHIFT & _TX_MASK) - _TX_BIAS + tx_change
            phase = word & _PHASE
            if not adds:
                pending = (pending - arrived) & _COUNT_MASK
            if drop:
                expected = (expected - arrived) & _COUNT_MASK
            if pending == 0 and tx_count == 0:
                phase ^= _PHASE
                pending = expected
            words[barrier] = np.uint64(
                pending | expected << _COUNT_BITS | ((tx_count + _TX_BIAS) & _TX_MASK) << _TX_SHIFT | _MARK | phase
            )

    def arrive_after_copies(
        self, statement: int, space: int, base: Any, offset: Any, adds: bool, active: Indices | None, guard: Any
    ) -> None:
        """Execute ``cp.async.mbarrier.arrive``: arrive once the threads' earlier copies are complete.

        The mbarrier is at base + offset (None: 0). adds: the arrival first raises the pending count (without
        ``.noinc``). statement: the instruction's index in the module, for fault reports. space: the state space of the
        addresses, a ``Space`` (global, shared …). active: the indices of the active threads in the batch, None: all.
        guard: their predicate; None: no guard.
        """
        threads, index = self.valid_mbarriers(statement, space, base, offset, active, guard)
        # They count when a thread next looks at the mbarrier.
        if threads.size:
            self.arrivals.append(_Arrival(threads, index, adds))

    def test_mbarrier(
        self,
        statement: int,
        space: int,
        base: Any,
        offset: Any,
        phase: Any,
        parity: bool,
        active: Indices | None,
        guard: Any,
    ) -> Any:
        """Execute ``mbarrier.test_wait`` or ``try_wait``: return whether a phase is complete, per active thread.

        The mbarrier is at base + offset (None: 0). phase: if `parity`, the parity of the phase in its lowest bit; else
        a state word that ``mbarrier.arrive`` returned. The result is False where the guard is. active: the indices of
        the active threads, None: all. statement: the instruction's index in the module, for fault reports. space: the
        state space of the addresses, a ``Space`` (global, shared …).
        """
        size = self.threads if active is None else active.size
        complete = np.zeros(size, np.bool_)
        threads, index = self.valid_mbarriers(statement, space, base, offset, active, guard)
        if not threads.size:
            return complete
        # Looking at an mbarrier completes what it counts, in the blocks of these threads.
        if self.bulk_copies or self.arrivals:
            self.complete_mbarrier_copies(np.unique(threads // self.shape.stride).tolist())
        # Bit 63 of a state word is the parity of the phase: the phase that is asked for is complete once it differs.
        current = (self.shared_view(_LONG)[index] >> np.uint64(63)).astype(np.int64)
        asked = self.guarded_values(phase, active, guard)
        asked = (asked & asked.dtype.type(1) if parity else asked >> np.uint64(63)).astype(np.int64)
        selected = slice(None) if guard is None else np.broadcast_to(guard, (size,))
        complete[selected] = current != asked
        return complete

    def pending_count(self, state: Any) -> Any:
        """Execute ``mbarrier.pending_count``: return the pending arrivals in a state word."""
        return (state & np.uint64(_COUNT_MASK)).astype(np.uint32)
