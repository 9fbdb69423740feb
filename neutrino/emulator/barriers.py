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
from neutrino.emulator.lanes import Lanes, of_indices, of_mask
from neutrino.emulator.program import Register
from neutrino.emulator.source import Unit
from neutrino.emulator.state import Indices, State
from neutrino.errors import FaultKind

_CLUSTER = -1
_NUMBERS = 16


@dataclass
class _Sleeper:
    key: Key
    lanes: Lanes
    number: int
    file: RegisterFile | None = None
    reduction: str = ""
    destination: Register | None = None
    aligned: bool = False


@dataclass
class _Barrier:
    # arrived: the threads that have come, asleep or not. needed: threads a block, 0 for all that live.
    arrived: NDArray[np.bool_]
    needed: NDArray[np.int64]
    votes: NDArray[np.bool_]
    sleepers: dict[tuple[Key, int], _Sleeper] = field(default_factory=dict)


def _part(values: Any, inside: Any) -> Any:
    return values[inside] if values is not None and values.ndim else values


class Barriers(State, ABC):
    """Threads that wait until enough others of their block have come."""

    units: list[Unit]
    live: NDArray[np.bool_]
    live_count: int

    def start_barriers(self) -> None:
        """Before the first step."""
        self.barriers: dict[int, _Barrier] = {}

    @abstractmethod
    def add(self, key: Key, lanes: Lanes) -> None:
        """Let threads go on at a block: the machine's."""

    @property
    def waiting_at_barriers(self) -> bool:
        """Whether any barrier has threads that sleep."""
        return any(barrier.sleepers for barrier in self.barriers.values())

    def sleeping(self) -> list[tuple[int, Lanes]]:
        """(statement, threads) of all that wait."""
        return [(one.number, one.lanes) for barrier in self.barriers.values() for one in barrier.sleepers.values()]

    def barrier(self, number: int) -> _Barrier:
        found = self.barriers.get(number)
        if found is None:
            found = self.barriers[number] = _Barrier(
                np.zeros(self.threads, np.bool_),
                np.zeros(self.shape.blocks, np.int64),
                np.zeros(self.threads, np.bool_),
            )
        return found

    def reach_barrier(self, key: Key, block: Block, lanes: Lanes, operands: Any, file: RegisterFile) -> None:
        """``bar`` or ``barrier``: number, count of threads and predicate as the block gave them."""
        number, count, predicate = operands
        use = self.units[key[1]].barriers[block.index]
        statement = block.instructions[-1].number
        following = (key[0], key[1], block.next)
        if (
            lanes.count == self.live_count
            and not self.barriers
            and not number.ndim
            and count is None
            and predicate is None
        ):
            self.add(following, lanes)
            return
        if not number.ndim:
            groups = [(int(number), lanes, slice(None))]
        else:
            threads = lanes.indices()
            groups = [
                (int(one), of_indices(threads[number == one], self.threads), number == one)
                for one in np.unique(number)
            ]
        for one, some, chosen in groups:
            if one >= _NUMBERS:
                detail = f"barrier {one}, of which there are {_NUMBERS}"
                self.fault(FaultKind.DEADLOCK, statement, detail, thread=int(some.indices()[0]))
            counts = count[chosen] if count is not None and count.ndim else count
            votes = predicate[chosen] if predicate is not None and predicate.ndim else predicate
            for part, inside in self.parts(one, some, counts, statement):
                barrier = self.barrier(one)
                threads = part.indices()
                self.check_arrivals(one, barrier, threads, _part(counts, inside), statement)
                barrier.arrived[threads] = True
                if counts is not None:
                    barrier.needed[threads // self.shape.stride] = _part(counts, inside)
                if votes is not None:
                    barrier.votes[threads] = _part(votes, inside)
                if use.arrive_only:
                    self.add(following, part)
                else:
                    sleeper = _Sleeper(following, part, statement, file, use.reduction, use.destination, use.aligned)
                    self.sleep(barrier, sleeper)
                self.release(one, barrier)

    def parts(self, number: int, lanes: Lanes, counts: Any, statement: int) -> list[tuple[Lanes, Any]]:
        """Threads that come to a barrier, and which of them: one warp of each block at a time where more come than
        it takes."""
        if counts is None:
            return [(lanes, slice(None))]
        threads = lanes.indices()
        wrong = np.broadcast_to((counts == 0) | (counts % WARP != 0), threads.shape)
        if wrong.any():
            place = int(np.flatnonzero(wrong)[0])
            asked = int(np.broadcast_to(counts, threads.shape)[place])
            detail = f"barrier {number} for {asked} threads, which are no whole warps"
            self.fault(FaultKind.DEADLOCK, statement, detail, thread=int(threads[place]))
        known = self.barriers.get(number)
        coming = lanes.mask if known is None else lanes.mask | known.arrived
        warps = coming.reshape(-1, self.shape.warps, WARP).any(2).sum(1) * WARP
        if (warps[threads // self.shape.stride] <= counts).all():
            return [(lanes, slice(None))]
        ranks = threads % self.shape.stride // WARP
        order = np.unique(ranks)
        if self.random is not None:
            order = self.random.permutation(order)
        return [(of_indices(threads[ranks == rank], self.threads), ranks == rank) for rank in order]

    def check_arrivals(self, number: int, barrier: _Barrier, threads: Indices, counts: Any, statement: int) -> None:
        """DeviceFaultError: a thread has come before, or others came for another count of threads."""
        again = barrier.arrived[threads]
        if again.any():
            detail = f"arrives at barrier {number} a second time before it is complete"
            self.fault(FaultKind.DEADLOCK, statement, detail, thread=int(threads[again][0]))
        blocks = threads // self.shape.stride
        needed = barrier.needed[blocks]
        every = self.shape.stride
        # Without a count it is for all threads of the block (PTX ISA 9.7.13.1).
        others = np.where(needed == 0, every, needed)
        came = np.atleast_1d(barrier.arrived.reshape(-1, every).any(1))
        differs = (others != (every if counts is None else counts)) & came[blocks]
        if np.any(differs):
            place = int(np.flatnonzero(differs)[0])
            detail = f"others wait at barrier {number} for another count of threads"
            self.fault(FaultKind.DEADLOCK, statement, detail, thread=int(threads[place]))

    def sleep(self, barrier: _Barrier, sleeper: _Sleeper) -> None:
        """Hold threads at a barrier."""
        known = barrier.sleepers.get((sleeper.key, sleeper.number))
        if known is not None:
            known.lanes = known.lanes.joined(sleeper.lanes)
        else:
            barrier.sleepers[sleeper.key, sleeper.number] = sleeper

    def release_barriers(self) -> None:
        """Let go of all that complete barriers hold."""
        for number, barrier in list(self.barriers.items()):
            self.release(number, barrier)

    def release(self, number: int, barrier: _Barrier) -> None:
        """Let go of the threads of the blocks for which a barrier is complete."""
        stride = self.shape.stride
        arrived = barrier.arrived.reshape(-1, stride)
        absent = self.live.reshape(-1, stride) & ~arrived
        any_arrived = arrived.any(1)
        complete = any_arrived & ~absent.any(1) & (barrier.needed == 0)
        if barrier.needed.any():
            # A warp counts as a whole once all of it has come.
            warps = arrived.reshape(-1, self.shape.warps, WARP)
            lacking = absent.reshape(-1, self.shape.warps, WARP).any(2)
            counted = (warps.any(2) & ~lacking).sum(1) * WARP
            complete |= any_arrived & (barrier.needed > 0) & (counted >= barrier.needed)
        if not complete.any():
            return
        self.finish(barrier, complete)
        if not barrier.sleepers and not barrier.arrived.any():
            del self.barriers[number]

    def finish(self, barrier: _Barrier, complete: NDArray[np.bool_]) -> None:
        every = bool(complete.all())
        freed = np.repeat(complete, self.shape.stride)
        if len(barrier.sleepers) > 1:
            self.check_warps(barrier, freed)
        for sleeper in list(barrier.sleepers.values()):
            going = sleeper.lanes if every else of_mask(sleeper.lanes.mask & freed)
            if not going.count:
                continue
            if going.count == sleeper.lanes.count:
                del barrier.sleepers[sleeper.key, sleeper.number]
            else:
                sleeper.lanes = of_mask(sleeper.lanes.mask & ~freed)
            if sleeper.destination is not None and sleeper.file is not None:
                self.reduce_votes(barrier, sleeper, going)
            self.add(sleeper.key, going)
        barrier.arrived &= ~freed
        barrier.votes &= ~freed
        barrier.needed[complete] = 0

    def check_warps(self, barrier: _Barrier, freed: NDArray[np.bool_]) -> None:
        """DeviceFaultError: lanes of a warp arrived at different instructions where all must run the same one."""
        came: dict[int, NDArray[np.bool_]] = {}
        for sleeper in barrier.sleepers.values():
            if not sleeper.aligned:
                continue
            mask = sleeper.lanes.mask & freed
            warps = mask.reshape(-1, WARP).any(1)
            for number, others in came.items():
                both = np.repeat(warps & others, WARP) & mask
                if number != sleeper.number and both.any():
                    detail = "other lanes of the warp arrived at another instruction, which .aligned forbids"
                    self.fault(FaultKind.DEADLOCK, sleeper.number, detail, thread=int(np.flatnonzero(both)[0]))
            came[sleeper.number] = came.get(sleeper.number, np.False_) | warps

    def reduce_votes(self, barrier: _Barrier, sleeper: _Sleeper, lanes: Lanes) -> None:
        stride = self.shape.stride
        votes = barrier.votes.reshape(-1, stride)
        arrived = barrier.arrived.reshape(-1, stride)
        result: Any
        if sleeper.reduction == "popc":
            result = votes.sum(1).astype(np.uint32)
        elif sleeper.reduction == "and":
            result = ~(arrived & ~votes).any(1)
        else:
            result = votes.any(1)
        values = result[lanes.indices() // stride]
        destination = sleeper.destination
        if destination is not None and sleeper.file is not None:
            sleeper.file.write(destination.index, values.astype(destination.dtype), lanes)

    # -- barrier.cluster, where a cluster is one block

    def cluster_arrive(self, at: Indices | None) -> None:
        """``barrier.cluster.arrive``"""
        barrier = self.barrier(_CLUSTER)
        if at is None:
            barrier.arrived[:] = True
        else:
            barrier.arrived[at] = True

    def cluster_wait(self, following: Key, lanes: Lanes, number: int) -> None:
        """``barrier.cluster.wait``"""
        barrier = self.barrier(_CLUSTER)
        self.sleep(barrier, _Sleeper(following, lanes, number))
        self.release(_CLUSTER, barrier)
