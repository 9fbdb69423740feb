"""Barriers of a thread block (PTX ISA 9.7.13.1) and of a cluster that is one block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neutrino.emulator.blocks import Block, Key
from neutrino.emulator.calls import RegisterFile
from neutrino.emulator.geometry import WARP
from neutrino.emulator.resolved_operands import Register
from neutrino.emulator.source import Unit
from neutrino.emulator.state import Indices, State
from neutrino.emulator.thread_sets import Lanes, of_indices, of_mask
from neutrino.errors import FaultKind

# The key of the cluster's barrier among those of the block, which PTX numbers from 0 to 15.
_CLUSTER = -1
_BARRIER_COUNT = 16


@dataclass
class _Waiter:
    """Threads that wait at a barrier because of the same instruction.

    key: where they go on. statement: the index of the instruction in the module. file, reduction, destination: for
    barrier.red, the registers, the kind of reduction and the register for its result. aligned: all threads of a warp
    must execute the same instruction.
    """

    key: Key
    lanes: Lanes
    statement: int
    file: RegisterFile | None = None
    reduction: str = ""
    destination: Register | None = None
    aligned: bool = False


@dataclass
class _Barrier:
    """One barrier number, in all blocks of the batch.

    arrived: mask of the threads that have arrived, waiting or not. needed: for each block, the number of threads that
    complete the barrier, 0 for all live threads. votes: the predicates of barrier.red, per thread.
    waiters: by where the threads go on and by statement.
    """

    arrived: NDArray[np.bool_]
    needed: NDArray[np.int64]
    votes: NDArray[np.bool_]
    waiters: dict[tuple[Key, int], _Waiter] = field(default_factory=dict)


def _select(values: Any, selection: Any) -> Any:
    """Return the selected elements of an operand, which is an array, a scalar for all threads, or None."""
    return values[selection] if values is not None and values.ndim else values


class Barriers(State, ABC):
    """Threads that wait until enough threads of their block have arrived.

    The batch sets units (the generated code of each function), live (mask of the threads that have not ended) and
    live_count (their number). A block's threads are `shape.stride` adjacent ones, filled up to whole warps.
    """

    units: list[Unit]
    live: NDArray[np.bool_]
    live_count: int

    def start_barriers(self) -> None:
        """Set up an empty table of barriers; called before the first step of the batch."""
        # By number: those at which threads have arrived.
        self.barriers: dict[int, _Barrier] = {}

    @abstractmethod
    def add(self, key: Key, lanes: Lanes) -> None:
        """Let threads go on at a place of the program (key: negative call depth, function, basic block).

        The batch implements it.
        """

    @property
    def waiting_at_barriers(self) -> bool:
        """Whether any thread waits at a barrier."""
        return any(barrier.waiters for barrier in self.barriers.values())

    def sleeping(self) -> list[tuple[int, Lanes]]:
        """Return the threads that wait at barriers, as pairs of the statement's index and the threads.

        A report of a deadlock names them.
        """
        return [
            (waiter.statement, waiter.lanes)
            for barrier in self.barriers.values()
            for waiter in barrier.waiters.values()
        ]

    def barrier(self, number: int) -> _Barrier:
        """Return the barrier of that number; a new one if no thread has arrived at it."""
        barrier = self.barriers.get(number)
        if barrier is None:
            barrier = self.barriers[number] = _Barrier(
                arrived=np.zeros(self.threads, np.bool_),
                needed=np.zeros(self.shape.blocks, np.int64),
                votes=np.zeros(self.threads, np.bool_),
            )
        return barrier

    def reach_barrier(self, key: Key, block: Block, lanes: Lanes, operands: Any, file: RegisterFile) -> None:
        """Let threads arrive at the ``bar`` or ``barrier`` instruction that ends the basic block `block`.

        key: (negative call depth, function, block) of the threads. operands: barrier number, thread count and
        predicate; each is an array with one element per thread or a scalar, and the last two may be None. file: the
        registers of the threads. Raise DeviceFaultError if an operand is not valid, or if threads arrive that the
        barrier does not expect.
        """
        number, count, predicate = operands
        negative_depth, function, _ = key
        # The form of the instruction, recorded when its code was generated.
        use = self.units[function].barriers[block.index]
        statement = block.instructions[-1].number
        following = (negative_depth, function, block.next)
        if (
            lanes.count == self.live_count
            and not self.barriers
            and not number.ndim
            and count is None
            and predicate is None
        ):
            # All live threads arrive together, and none waits elsewhere: the barrier is complete at once. This is the
            # usual case, and a fast way through it.
            self.add(following, lanes)
            return

        # Group the threads by barrier number: (number, threads, selection of their operands).
        if not number.ndim:
            groups = [(int(number), lanes, slice(None))]
        else:
            threads = lanes.indices()
            groups = [
                (int(unique), of_indices(threads[number == unique], self.threads), number == unique)
                for unique in np.unique(number)
            ]

        for barrier_number, group, group_selection in groups:
            # A register may have any number.
            if barrier_number >= _BARRIER_COUNT:
                detail = f"barrier {barrier_number}, of which there are {_BARRIER_COUNT}"
                self.fault(FaultKind.DEADLOCK, statement, detail, thread=int(group.indices()[0]))
            counts = _select(count, group_selection)
            votes = _select(predicate, group_selection)
            for arriving, selection in self.split_arrivals(barrier_number, group, counts, statement):
                barrier = self.barrier(barrier_number)
                threads = arriving.indices()
                self.check_arrivals(barrier_number, barrier, threads, _select(counts, selection), statement)
                barrier.arrived[threads] = True
                if counts is not None:
                    barrier.needed[threads // self.shape.stride] = _select(counts, selection)
                if votes is not None:
                    barrier.votes[threads] = _select(votes, selection)
                if use.arrive_only:
                    # barrier.arrive does not wait.
                    self.add(following, arriving)
                else:
                    self.wait_at_barrier(
                        barrier,
                        _Waiter(following, arriving, statement, file, use.reduction, use.destination, use.aligned),
                    )
                # Before the next part arrives, which may belong to the next use of the barrier.
                self.release(barrier_number, barrier)

    def split_arrivals(self, number: int, lanes: Lanes, counts: Any, statement: int) -> list[tuple[Lanes, Any]]:
        """Split threads that reach a barrier together into parts that arrive one after the other.

        counts: the thread count that each thread gives, as an array or one for all; None: the whole block. Return pairs
        of threads and their selection from `lanes`. This is one part with all threads, unless more warps of a block
        arrive than the count admits; then each part has one warp of each block. Raise DeviceFaultError if a count is no
        positive multiple of the warp size. statement: the instruction's index in the module, for fault reports.
        """
        if counts is None:
            return [(lanes, slice(None))]
        threads = lanes.indices()
        invalid = np.broadcast_to((counts == 0) | (counts % WARP != 0), threads.shape)
        if invalid.any():
            position = int(np.flatnonzero(invalid)[0])
            count = int(np.broadcast_to(counts, threads.shape)[position])
            detail = f"barrier {number} for {count} threads, which are no whole warps"
            self.fault(FaultKind.DEADLOCK, statement, detail, thread=int(threads[position]))

        # Threads that will have arrived in each block, in whole warps.
        barrier = self.barriers.get(number)
        arriving = lanes.mask if barrier is None else lanes.mask | barrier.arrived
        arriving_counts = arriving.reshape(-1, self.shape.warps, WARP).any(2).sum(1) * WARP
        if (arriving_counts[threads // self.shape.stride] <= counts).all():
            return [(lanes, slice(None))]

        # The order of warps is not defined: a random schedule takes any.
        warp_in_block = threads % self.shape.stride // WARP
        order = np.unique(warp_in_block)
        if self.random is not None:
            order = self.random.permutation(order)
        return [(of_indices(threads[warp_in_block == warp], self.threads), warp_in_block == warp) for warp in order]

    def check_arrivals(self, number: int, barrier: _Barrier, threads: Indices, counts: Any, statement: int) -> None:
        """Check that `threads` may arrive at a barrier with the thread counts that they give (None: whole block).

        Raise DeviceFaultError if a thread has already arrived, or if other threads of its block arrived with another
        count. statement: the instruction's index in the module, for fault reports.
        """
        repeated = barrier.arrived[threads]
        if repeated.any():
            detail = f"arrives at barrier {number} a second time before it is complete"
            self.fault(FaultKind.DEADLOCK, statement, detail, thread=int(threads[repeated][0]))
        blocks = threads // self.shape.stride
        needed = barrier.needed[blocks]
        block_size = self.shape.stride
        # Without a count the barrier is for all threads of the block (PTX ISA 9.7.13.1).
        earlier_counts = np.where(needed == 0, block_size, needed)
        # Where no thread has arrived, there is no earlier count.
        block_has_arrivals = np.atleast_1d(barrier.arrived.reshape(-1, block_size).any(1))
        differs = (earlier_counts != (block_size if counts is None else counts)) & block_has_arrivals[blocks]
        if np.any(differs):
            position = int(np.flatnonzero(differs)[0])
            detail = f"others wait at barrier {number} for another count of threads"
            self.fault(FaultKind.DEADLOCK, statement, detail, thread=int(threads[position]))

    def wait_at_barrier(self, barrier: _Barrier, waiter: _Waiter) -> None:
        """Add waiting threads to a barrier, together with those that already wait at the same instruction."""
        existing = barrier.waiters.get((waiter.key, waiter.statement))
        if existing is not None:
            existing.lanes = existing.lanes.joined(waiter.lanes)
        else:
            barrier.waiters[waiter.key, waiter.statement] = waiter

    def release_barriers(self) -> None:
        """Release the threads that wait at complete barriers; called after threads have ended.

        A barrier for all live threads may be complete without those.
        """
        # A copy, as `release` removes barriers.
        for number, barrier in list(self.barriers.items()):
            self.release(number, barrier)

    def release(self, number: int, barrier: _Barrier) -> None:
        """Release the threads of those blocks for which a barrier is complete.

        It is complete once all live threads of the block have arrived, or as many as the instruction's thread count.
        """
        stride = self.shape.stride
        arrived = barrier.arrived.reshape(-1, stride)
        missing = self.live.reshape(-1, stride) & ~arrived
        any_arrived = arrived.any(1)
        complete = any_arrived & ~missing.any(1) & (barrier.needed == 0)
        if barrier.needed.any():
            # A warp counts, with all 32 threads, once all its live threads have arrived.
            warps = arrived.reshape(-1, self.shape.warps, WARP)
            incomplete_warps = missing.reshape(-1, self.shape.warps, WARP).any(2)
            counted = (warps.any(2) & ~incomplete_warps).sum(1) * WARP
            complete |= any_arrived & (barrier.needed > 0) & (counted >= barrier.needed)
        if not complete.any():
            return
        self.release_blocks(barrier, complete)
        # An empty table lets `reach_barrier` take its fast way.
        if not barrier.waiters and not barrier.arrived.any():
            del self.barriers[number]

    def release_blocks(self, barrier: _Barrier, complete: NDArray[np.bool_]) -> None:
        """Release the waiting threads of the blocks that the mask `complete` marks, and reset the barrier for them."""
        all_blocks = bool(complete.all())
        # Mask of the threads of these blocks.
        released = np.repeat(complete, self.shape.stride)
        # Only threads that wait at different instructions can violate .aligned.
        if len(barrier.waiters) > 1:
            self.check_warps(barrier, released)
        # A copy, as waiters without remaining threads are removed.
        for waiter in list(barrier.waiters.values()):
            leaving = waiter.lanes if all_blocks else of_mask(waiter.lanes.mask & released)
            if not leaving.count:
                continue
            if leaving.count == waiter.lanes.count:
                del barrier.waiters[waiter.key, waiter.statement]
            else:
                waiter.lanes = of_mask(waiter.lanes.mask & ~released)
            if waiter.destination is not None and waiter.file is not None:
                self.reduce_votes(barrier, waiter, leaving)
            self.add(waiter.key, leaving)
        # For the next use of the barrier; the votes were needed until here.
        barrier.arrived &= ~released
        barrier.votes &= ~released
        barrier.needed[complete] = 0

    def check_warps(self, barrier: _Barrier, released: NDArray[np.bool_]) -> None:
        """Raise DeviceFaultError if threads of one warp arrived at different instructions that are ``.aligned``.

        released: mask of the threads that are about to leave the barrier; only they are checked.
        """
        warps_by_statement: dict[int, NDArray[np.bool_]] = {}
        for waiter in barrier.waiters.values():
            if not waiter.aligned:
                continue
            mask = waiter.lanes.mask & released
            warps = mask.reshape(-1, WARP).any(1)
            for statement, other_warps in warps_by_statement.items():
                conflicting = np.repeat(warps & other_warps, WARP) & mask
                if statement != waiter.statement and conflicting.any():
                    detail = "other lanes of the warp arrived at another instruction, which .aligned forbids"
                    thread = int(np.flatnonzero(conflicting)[0])
                    self.fault(FaultKind.DEADLOCK, waiter.statement, detail, thread=thread)
            # Threads of one instruction may wait in several entries: union their warps.
            warps_by_statement[waiter.statement] = warps_by_statement.get(waiter.statement, np.False_) | warps

    def reduce_votes(self, barrier: _Barrier, waiter: _Waiter, lanes: Lanes) -> None:
        """Write the result of ``barrier.red`` to the destination of `waiter` in the threads of `lanes`.

        The result of each block is the reduction ("popc", "and", "or") of the votes of all its threads that arrived.
        """
        stride = self.shape.stride
        votes = barrier.votes.reshape(-1, stride)
        arrived = barrier.arrived.reshape(-1, stride)
        block_results: Any
        if waiter.reduction == "popc":
            block_results = votes.sum(1).astype(np.uint32)
        elif waiter.reduction == "and":
            # No thread that arrived voted no. (The votes of the others are false as well.)
            block_results = ~(arrived & ~votes).any(1)
        else:
            block_results = votes.any(1)
        values = block_results[lanes.indices() // stride]
        # Both are set here; the condition is for the type checker.
        destination = waiter.destination
        if destination is not None and waiter.file is not None:
            waiter.file.write(destination.index, values.astype(destination.dtype), lanes)

    # -- barrier.cluster, where a cluster is one block

    def cluster_arrive(self, active: Indices | None) -> None:
        """Execute ``barrier.cluster.arrive``: mark the active threads (None: all) as arrived.

        active: their indices in the batch. Nobody is released here, as `cluster_wait` does that.
        """
        barrier = self.barrier(_CLUSTER)
        if active is None:
            barrier.arrived[:] = True
        else:
            barrier.arrived[active] = True

    def cluster_wait(self, following: Key, lanes: Lanes, statement: int) -> None:
        """Execute ``barrier.cluster.wait``: let threads wait, to go on at `following` once all have arrived.

        statement: the index of the instruction in the module.
        """
        barrier = self.barrier(_CLUSTER)
        self.wait_at_barrier(barrier, _Waiter(following, lanes, statement))
        self.release(_CLUSTER, barrier)
