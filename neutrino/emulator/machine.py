"""One batch of blocks, run: which threads go next, where they part, wait, meet, call and end.

What is left to run is a set of disjoint (call depth, function, block) → threads. The deepest and then lowest goes
first, so that threads meet again without a notion of post-dominators. With a random generator, a random part of the
warps of a random entry goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neutrino.emulator.asynchronous import Asynchronous
from neutrino.emulator.barriers import Barriers
from neutrino.emulator.blocks import Block, Ending, Key, constant_mask, is_for_all
from neutrino.emulator.calls import Calls, RegisterFile
from neutrino.emulator.geometry import WARP
from neutrino.emulator.lanes import Lanes, of_indices, of_mask
from neutrino.emulator.matrices import Matrices
from neutrino.emulator.source import Unit
from neutrino.emulator.state import Indices
from neutrino.errors import FaultKind

# Steps until the others get a turn; a block of instructions that threads wait with takes many at once.
_PATIENCE = 1 << 13
_WAIT_COSTS = 128
_FAIR_STEPS = 32
_RANDOM_SHARE = 0.4


class Batch(Asynchronous, Matrices, Calls, Barriers):
    """``advance`` until it says that the batch has finished."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        shape = self.shape
        self.units: list[Unit] = self.kernel.units(observed=self.observer is not None)
        self.live: NDArray[np.bool_] = np.ones(self.threads, np.bool_) if shape.whole else shape.real.copy()
        self.live_count = shape.block_threads * shape.blocks
        self.pending: dict[Key, Lanes] = {(0, 0, 0): Lanes(self.live.copy(), self.live_count)}
        self.since: dict[Key, int] = {(0, 0, 0): 0}
        self.stalled: dict[Key, Lanes] = {}
        # Threads that may pass the bar.warp.sync that they stand at.
        self.passed: NDArray[np.bool_] = np.zeros(self.threads, np.bool_)
        self.steps = 0
        self.instructions = 0
        self.waited = False
        self._patience = _PATIENCE
        self._fair = 0
        self._woken = 0
        self.files: dict[tuple[int, int], RegisterFile] = {}
        self.start_calls()
        self.start_barriers()
        self.start_asynchronous()

    def add(self, key: Key, lanes: Lanes) -> None:
        """These threads go on there."""
        known = self.pending.get(key)
        if known is None:
            self.pending[key] = lanes
            self.since[key] = self.steps
        else:
            self.pending[key] = known.joined(lanes)

    def file(self, depth: int, function: int) -> RegisterFile:
        """The registers of the threads that are in a function at a depth of calls."""
        found = self.files.get((depth, function))
        if found is None:
            program = self.units[function].graph.program
            found = self.files[depth, function] = RegisterFile(program.registers, self.threads, depth, self.bases)
        return found

    def advance(self, steps: int) -> bool:
        """Run up to so many blocks. True: every thread has ended. DeviceFaultError: one did what it must not."""
        end = self.steps + steps
        self.waited = False
        with np.errstate(all="ignore"):
            while self.steps < end:
                if not self.pending and not self.wake():
                    return True
                self.step()
        return not self.pending and not self.wake()

    def step(self) -> None:
        """Run one block, or a chain of blocks, for one set of threads."""
        self.steps += 1
        key = self.choose()
        lanes = self.pending.pop(key)
        if self.random is not None:
            lanes = self.random_part(key, lanes)
        unit = self.units[key[1]]
        block = unit.graph.blocks[key[2]]
        file = self.file(-key[0], key[1])
        if block.warp:
            together = self.together(key, block, unit, file, lanes)
            if together is None:
                return
            lanes = together
        chain = unit.chains.get(block.index)
        if chain is not None and self.whole_warps(lanes):
            function, last = chain
            count = unit.chain_counts[block.index]
            block = unit.graph.blocks[last]
        else:
            function = unit.pieces[block.index]
            count = block.count
        at = lanes.at
        result = function(self, file, at)
        self.device_state.steps += count or 1
        self.instructions += count * lanes.count
        self._patience -= 1
        if block.waits:
            self._patience -= _WAIT_COSTS
            self.waited = True
        self.leave(key, block, lanes, result, file)

    def leave(self, key: Key, block: Block, lanes: Lanes, result: Any, file: RegisterFile) -> None:
        """Send the threads on from the end of a block."""
        depth, function, _ = key
        ending = block.ending
        if ending is Ending.NEXT:
            self.add((depth, function, block.next), lanes)
        elif ending is Ending.BRANCH:
            taken = (depth, function, block.taken[0])
            if result is None:
                self.add(taken, lanes)
            elif not result.ndim:
                self.add(taken if result else (depth, function, block.next), lanes)
            else:
                true = int(np.count_nonzero(result))
                if true == lanes.count:
                    self.add(taken, lanes)
                elif true == 0:
                    self.add((depth, function, block.next), lanes)
                else:
                    first, second = lanes.split(result, true)
                    self.add(taken, first)
                    self.add((depth, function, block.next), second)
        elif ending is Ending.EXIT or (ending is Ending.RETURN and depth == 0):
            self.end(lanes)
        elif ending is Ending.RETURN:
            self.return_from(-depth, function, lanes)
        elif ending is Ending.CALL:
            self.call(key, block, lanes, result, file)
        elif ending is Ending.TABLE:
            self.table(key, block, lanes, result)
        elif ending is Ending.BARRIER:
            self.reach_barrier(key, block, lanes, result, file)
        elif ending is Ending.CLUSTER_WAIT:
            self.cluster_wait((depth, function, block.next), lanes, block.instructions[-1].number)
        else:
            self.fault(
                FaultKind.TRAP, block.instructions[-1].number, "", thread=int(lanes.indices()[0])
            )

    def table(self, key: Key, block: Block, lanes: Lanes, index: Any) -> None:
        """``brx.idx``: each thread to the label that its index names."""
        depth, function, _ = key
        if not index.ndim:
            index = np.broadcast_to(index, (lanes.count,))
        threads = lanes.indices()
        for value in np.unique(index):
            chosen = threads[index == value]
            if value >= len(block.taken):
                detail = f"index {int(value)} in a table of {len(block.taken)} labels"
                self.fault(FaultKind.BAD_CALL, block.instructions[-1].number, detail, thread=int(chosen[0]))
            self.add((depth, function, block.taken[int(value)]), of_indices(chosen, self.threads))

    def end(self, lanes: Lanes) -> None:
        """These threads have ended."""
        self.live_count -= lanes.count
        if lanes.at is None or not self.live_count:
            self.live[:] = False
        else:
            self.live[lanes.at] = False
        if self.live_count and self.waiting_at_barriers:
            self.release_barriers()
        self.resume_stalled()

    # -- which goes next

    def choose(self) -> Key:
        pending = self.pending
        if len(pending) == 1:
            return next(iter(pending))
        if self.random is not None:
            keys = list(pending)
            return keys[int(self.random.integers(len(keys)))]
        if self._patience <= 0:
            # Threads that wait for what others do must not keep these from doing it.
            self._patience = _PATIENCE
            self._fair = _FAIR_STEPS
        if self._fair:
            self._fair -= 1
            return min(pending, key=self.since.__getitem__)
        return min(pending)

    def random_part(self, key: Key, lanes: Lanes) -> Lanes:
        random = self.random
        if random is None:
            return lanes
        warps = random.random(self.threads // WARP) < _RANDOM_SHARE
        mask = lanes.mask & np.repeat(warps, WARP)
        part = of_mask(mask)
        if not part.count:
            # One of them goes alone: the fewer warps there are, the more often that shows what they owe each other.
            some = np.flatnonzero(lanes.mask.reshape(-1, WARP).any(1))
            warps[some[random.integers(some.size)]] = True
            mask = lanes.mask & np.repeat(warps, WARP)
            part = of_mask(mask)
        if part.count == lanes.count:
            return lanes
        self.add(key, of_mask(lanes.mask & ~mask))
        return part

    # -- warps

    def whole_warps(self, lanes: Lanes) -> bool:
        """Whether no living thread of these warps is missing."""
        if lanes.count == self.live_count:
            return True
        rows = lanes.mask.reshape(-1, WARP)
        missing = (self.live.reshape(-1, WARP) & ~rows).any(1)
        return not bool((missing & rows.any(1)).any())

    def together(self, key: Key, block: Block, unit: Unit, file: RegisterFile, lanes: Lanes) -> Lanes | None:
        """Those of the threads whose whole member mask is here; the others are held until it is."""
        held = self.stalled.pop(key, None)
        if held is not None:
            lanes = lanes.joined(held)
        mask = constant_mask(block)
        everyone = is_for_all(block)
        if everyone and lanes.count == self.live_count:
            return lanes
        wanted = np.uint32(0xFFFFFFFF) if everyone else np.uint32(mask or 0)
        if mask is None:
            wanted = unit.masks[block.index](self, file, lanes.at)
        if not everyone:
            self.check_members(block, lanes, wanted)
        here = lanes.mask
        is_barrier = block.instructions[0].name == "bar"
        if is_barrier:
            # Any bar.warp.sync will do, not this one only (PTX ISA 9.7.13.2).
            others = {other: some for other, some in self.stalled.items() if self.at_warp_barrier(other)}
            for some in others.values():
                here = here | some.mask
        missing = self.ballots((self.live & ~here).reshape(-1, WARP))
        at = lanes.indices()
        ready = (missing[at >> 5] & wanted) == 0
        if is_barrier:
            ready |= self.passed[at]
            self.passed[at] = False
            if others and ready.any():
                self.pass_others(others, at[ready], np.broadcast_to(wanted, at.shape)[ready])
        count = int(np.count_nonzero(ready))
        if count == lanes.count:
            return lanes
        if count == 0:
            self.stalled[key] = lanes
            return None
        going, self.stalled[key] = of_indices(at[ready], self.threads), of_indices(at[~ready], self.threads)
        return going

    def check_members(self, block: Block, lanes: Lanes, wanted: Any) -> None:
        """DeviceFaultError: a thread's member mask is without the thread itself."""
        threads = lanes.indices()
        outside = (wanted >> (threads & 31).astype(np.uint32) & np.uint32(1)) == 0
        if outside.any():
            place = int(np.flatnonzero(outside)[0])
            mask = int(np.broadcast_to(wanted, threads.shape)[place])
            detail = f"the member mask {mask:#010x} is without the thread itself"
            self.fault(FaultKind.DEADLOCK, block.instructions[0].number, detail, thread=int(threads[place]))

    def at_warp_barrier(self, key: Key) -> bool:
        """Whether threads stand at a ``bar.warp.sync`` there."""
        return self.units[key[1]].graph.blocks[key[2]].instructions[0].name == "bar"

    def pass_others(self, others: dict[Key, Lanes], at: Indices, members: NDArray[np.uint32]) -> None:
        """The barriers of these threads are complete: so are those of their members that stand at another one."""
        masks = np.zeros(self.threads // WARP, np.uint32)
        np.bitwise_or.at(masks, at >> 5, members)
        for key, lanes in others.items():
            threads = lanes.indices()
            free = (masks[threads >> 5] >> (threads & 31).astype(np.uint32) & np.uint32(1)) != 0
            if free.any():
                self.passed[threads[free]] = True
                del self.stalled[key]
                self.add(key, lanes)

    def wake(self) -> bool:
        """With nothing left to run: find threads that can go on after all. False: all have ended."""
        if not self.live_count:
            self.finish_asynchronous()
            return False
        self.release_barriers()
        if not self.pending and self.stalled and self._woken != self.live_count:
            # Threads that they waited for may have ended since.
            self._woken = self.live_count
            self.resume_stalled()
        if not self.pending:
            self.report_deadlock()
        return True

    def resume_stalled(self) -> None:
        """Let threads that wait for others of their warps look again."""
        stalled, self.stalled = self.stalled, {}
        for key, lanes in stalled.items():
            self.add(key, lanes)

    def report_deadlock(self) -> None:
        """No thread can go on: say where they wait."""
        places: list[tuple[int, Lanes]] = [
            (self.units[key[1]].graph.blocks[key[2]].instructions[0].number, lanes)
            for key, lanes in self.stalled.items()
        ]
        places += self.sleeping()
        number, lanes = max(places, key=lambda place: place[1].count)
        detail = f"{lanes.count} threads wait here" + (
            f", {sum(other.count for _, other in places) - lanes.count} elsewhere" if len(places) > 1 else ""
        )
        self.fault(FaultKind.DEADLOCK, number, detail, thread=int(lanes.indices()[0]))

    def fault_in(self, key: Key, kind: FaultKind, threads: Sequence[int] | Indices, detail: str) -> None:
        """A fault at the last instruction of a block."""
        number = self.units[key[1]].graph.blocks[key[2]].instructions[-1].number
        self.fault(kind, number, detail, thread=int(threads[0]))
