"""The scheduler of one batch of thread blocks: which threads run next, where they diverge, wait, reconverge and end.

The threads that can run are kept as disjoint sets, by place: (- call depth, function, basic block). The deepest call
and then the lowest block runs first, so that threads reconverge without post-dominators. In turns for places that have
waited for long, warps run apart, but lanes of a warp do so only where they probably wait for each other: which lanes
run together does not depend on how many instructions a probe has added. With a random generator, some warps of a random
set run instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from neutrino.emulator.asynchronous import Asynchronous
from neutrino.emulator.barriers import Barriers
from neutrino.emulator.blocks import Block, Ending, Key, constant_mask, is_for_all
from neutrino.emulator.calls import Calls, RegisterFile
from neutrino.emulator.geometry import WARP
from neutrino.emulator.matrices import Matrices
from neutrino.emulator.source import Unit
from neutrino.emulator.state import Indices
from neutrino.emulator.thread_sets import Lanes, of_indices, of_mask
from neutrino.errors import FaultKind

# Steps until other warps get a turn. A basic block with an instruction that threads poll memory with counts as many
# steps, since its threads probably wait for the others.
_PATIENCE = 1 << 13
_POLLING_COST = 128
# The length of that turn, in steps. Afterwards the lowest key goes first again.
_FAIR_STEPS = 32
# How often lanes run one block that polls memory, or another one, until they probably wait for lanes of their own warp
# that wait further down; and how often from then on, where that happened. The first numbers are high, since lanes of a
# loop with many turns must meet those that have left it, also where each turn counts in memory. So every loop with a
# lock costs them once.
_LANE_PATIENCE = {True: 1 << 11, False: 1 << 17}
_CONTENDED_PATIENCE = {True: 1 << 4, False: 1 << 11}
# The probability that a warp of the chosen set runs, under a random schedule.
_RANDOM_SHARE = 0.4


class Batch(Asynchronous, Matrices, Calls, Barriers):
    """One batch of thread blocks. Call ``advance`` until it returns True.

    A key is a place in the code, (- call depth, function, basic block). Lanes is a set of threads of the batch. A
    thread is live until it ends. It is then pending (it can run), stalled (it waits for other threads of its warp), or
    asleep at a barrier.
    """

    def __init__(self, *arguments: Any) -> None:
        """The arguments are those of ``State``: kernel, memory, grid, blocks of the batch, parameters, …"""
        super().__init__(*arguments)
        shape = self.shape
        # The generated code of each function, by its number; observed launches have code of their own.
        self.units: list[Unit] = self.kernel.units(observed=self.observer is not None)
        # The threads that have not ended. Those that only pad a block to whole warps never live.
        self.live: NDArray[np.bool_] = np.ones(self.threads, np.bool_) if shape.whole else shape.real.copy()
        self.live_count = shape.block_threads * shape.blocks
        # The threads that can run, by place, and the step at which each place got its first thread. All threads begin
        # in the kernel itself (function 0, not called by any), at its first basic block.
        start: Key = (0, 0, 0)
        self.pending: dict[Key, Lanes] = {start: Lanes(self.live.copy(), self.live_count)}
        self.since: dict[Key, int] = {start: 0}
        # The threads that wait at an instruction of a whole warp for other threads of their warps.
        self.stalled: dict[Key, Lanes] = {}
        # The threads whose bar.warp.sync is complete: they need not wait there again.
        self.passed: NDArray[np.bool_] = np.zeros(self.threads, np.bool_)
        # Of this batch so far: basic blocks (or chains) run, and instructions, summed over threads.
        self.steps = 0
        self.instructions = 0
        # Whether the latest ``advance`` ran a block that polls memory: the launch then gives other batches a turn.
        self.waited = False
        # Steps until the places that have waited longest get a turn, and steps that are left of such a turn.
        self._patience = _PATIENCE
        self._fair = 0
        # How often places have run since a higher one did: the highest first. Steps that are left of a turn of lanes
        # that wait for others of their warp; and the places that have kept such lanes waiting.
        self._turns: list[tuple[Key, int]] = []
        self._lane_fair = 0
        self._contended: set[Key] = set()
        # ``live_count`` when stalled threads were last resumed since none was pending; 0 before the first time.
        self._woken = 0
        # By (call depth, function).
        self.files: dict[tuple[int, int], RegisterFile] = {}
        self.start_calls()
        self.start_barriers()
        self.start_asynchronous()

    def add(self, key: Key, lanes: Lanes) -> None:
        """Let threads continue at a place (call depth, function, block); they join those that can run there already."""
        pending = self.pending.get(key)
        if pending is None:
            self.pending[key] = lanes
            self.since[key] = self.steps
        else:
            self.pending[key] = pending.joined(lanes)

    def file(self, depth: int, function: int) -> RegisterFile:
        """Return the register file of a function at a call depth, new when no thread has been there yet."""
        file = self.files.get((depth, function))
        if file is None:
            program = self.units[function].graph.program
            file = self.files[depth, function] = RegisterFile(program.registers, self.threads, depth, self.bases)
        return file

    def advance(self, steps: int) -> bool:
        """Run up to ``steps`` steps (basic blocks). Returns True once every thread of the batch has ended.

        Raises DeviceFaultError for a fault of a thread and for a deadlock.
        """
        end = self.steps + steps
        self.waited = False
        # PTX arithmetic wraps around and divides by zero without an error; NumPy would warn.
        with np.errstate(all="ignore"):
            while self.steps < end:
                if not self.pending and not self.wake():
                    return True
                self.step()
        # The last step may have ended the last threads.
        return not self.pending and not self.wake()

    def step(self) -> None:
        """Run one basic block, or a chain of blocks, for one set of threads, and let them continue after it."""
        self.steps += 1
        key, lanes = self.choose()
        minus_depth, function_index, block_index = key
        unit = self.units[function_index]
        block = unit.graph.blocks[block_index]
        file = self.file(-minus_depth, function_index)
        # A block that begins with an instruction of the whole warp runs only for threads whose partners have arrived.
        if block.warp:
            ready = self.ready_members(key, block, unit, file, lanes)
            if ready is None:
                return
            lanes = ready
        # A chain is several blocks as one Python function. Between them are warp-wide instructions, at which no thread
        # of a whole warp needs to wait.
        chain = unit.chains.get(block.index)
        if chain is not None and self.whole_warps(lanes):
            function, last = chain
            count = unit.chain_counts[block.index]
            block = unit.graph.blocks[last]
        else:
            function = unit.pieces[block.index]
            count = block.count
        result = function(self, file, lanes.at)
        # A block of hidden instructions alone counts none; the step clock advances all the same.
        self.device_state.steps += count or 1
        self.instructions += count * lanes.count
        # For ``choose``.
        self._patience -= 1
        if block.waits:
            self._patience -= _POLLING_COST
            self.waited = True
        self.leave(key, block, lanes, result, file)

    def leave(self, key: Key, block: Block, lanes: Lanes, result: Any, file: RegisterFile) -> None:
        """Let threads continue after the end of a basic block, which says how: branch, call, barrier …

        key: the place of ``block``; the threads are those of ``lanes``, and ``file`` has their registers.
        result: what the block's generated function returned, which depends on its ending. For a branch it is the
        condition: None for an unconditional one, a scalar for the same in all threads, else one element per thread.
        """
        minus_depth, function, _ = key
        ending = block.ending
        if ending is Ending.NEXT:
            self.add((minus_depth, function, block.next), lanes)
        elif ending is Ending.BRANCH:
            taken = (minus_depth, function, block.taken[0])
            if result is None:
                self.add(taken, lanes)
            elif not result.ndim:
                self.add(taken if result else (minus_depth, function, block.next), lanes)
            else:
                # The set is split only where threads really diverge.
                taken_count = int(np.count_nonzero(result))
                if taken_count == lanes.count:
                    self.add(taken, lanes)
                elif taken_count == 0:
                    self.add((minus_depth, function, block.next), lanes)
                else:
                    branching, falling_through = lanes.split(result, taken_count)
                    self.add(taken, branching)
                    self.add((minus_depth, function, block.next), falling_through)
        elif ending is Ending.EXIT or (ending is Ending.RETURN and minus_depth == 0):
            # A kernel that returns has no caller: its threads end.
            self.end(lanes)
        elif ending is Ending.RETURN:
            self.return_from(-minus_depth, function, lanes)
        elif ending is Ending.CALL:
            self.call(key, block, lanes, result, file)
        elif ending is Ending.TABLE:
            self.indexed_branch(key, block, lanes, result)
        elif ending is Ending.BARRIER:
            self.reach_barrier(key, block, lanes, result, file)
        elif ending is Ending.CLUSTER_WAIT:
            self.cluster_wait((minus_depth, function, block.next), lanes, block.instructions[-1].number)
        else:  # Ending.TRAP
            self.fault(FaultKind.TRAP, block.instructions[-1].number, "", thread=int(lanes.indices()[0]))

    def indexed_branch(self, key: Key, block: Block, lanes: Lanes, index: Any) -> None:
        """Execute ``brx.idx``, which ends ``block``: each thread continues at the label that its index selects.

        index: unsigned, one per thread of ``lanes``, or a scalar. Raises DeviceFaultError for one beyond the list of
        labels, whose blocks are ``block.taken``.
        """
        minus_depth, function, _ = key
        if not index.ndim:
            index = np.broadcast_to(index, (lanes.count,))
        threads = lanes.indices()
        for value in np.unique(index):
            selected = threads[index == value]
            if value >= len(block.taken):
                detail = f"index {int(value)} in a table of {len(block.taken)} labels"
                self.fault(FaultKind.BAD_CALL, block.instructions[-1].number, detail, thread=int(selected[0]))
            self.add((minus_depth, function, block.taken[int(value)]), of_indices(selected, self.threads))

    def end(self, lanes: Lanes) -> None:
        """End threads. Barriers and warps that waited for them may be complete without them."""
        self.live_count -= lanes.count
        if lanes.at is None or not self.live_count:
            self.live[:] = False  # all: no need for an index
        else:
            self.live[lanes.at] = False
        if self.live_count and self.waiting_at_barriers:
            self.release_barriers()
        self.resume_stalled()

    # -- which threads run next

    def choose(self) -> tuple[Key, Lanes]:
        """Return the place whose threads run next, and which of them do; these are no longer pending.

        Under a random schedule it is any. Else it is the lowest key (the deepest call, then the lowest block), except
        that now and then the places that have waited longest get a turn: those of warps that have no lanes further up,
        or, where lanes probably wait for others of their warp, any.
        """
        pending = self.pending
        if self.random is not None:
            keys = list(pending)
            key = keys[int(self.random.integers(len(keys)))] if len(keys) > 1 else keys[0]
            return key, self.random_part(key, pending.pop(key))
        if len(pending) == 1:
            self._turns.clear()
            return pending.popitem()
        if self._lane_fair:
            self._lane_fair -= 1
            # The place that has waited longest.
            key = min(pending, key=self.since.__getitem__)
            return key, pending.pop(key)
        if self._patience <= 0:
            # Threads that poll memory must not keep those from running that write it.
            self._patience = _PATIENCE
            self._fair = _FAIR_STEPS
        if self._fair:
            self._fair -= 1
            return self.foremost_part()
        key = min(pending)
        self.count_turn(key)
        return key, pending.pop(key)

    def count_turn(self, key: Key) -> None:
        """The lowest place runs while others wait. Once it has done so too often, all of these get a turn."""
        turns = self._turns
        # Nobody is left at the places below.
        while turns and turns[-1][0] < key:
            turns.pop()
        count = turns.pop()[1] + 1 if turns and turns[-1][0] == key else 1
        turns.append((key, count))
        polls = self.units[key[1]].graph.blocks[key[2]].waits
        if count >= (_CONTENDED_PATIENCE if key in self._contended else _LANE_PATIENCE)[polls]:
            self._contended.add(key)
            self._lane_fair = _FAIR_STEPS
            turns.clear()

    def foremost_part(self) -> tuple[Key, Lanes]:
        """Return the place that has waited longest, of those at which some warp has its lowest lanes, and the threads
        of these warps there. They run as they would without the other warps. The others stay pending."""
        pending = self.pending
        above = np.zeros(self.threads // WARP, np.bool_)
        parts: dict[Key, NDArray[np.bool_]] = {}
        for key in sorted(pending):
            warps = pending[key].mask.reshape(-1, WARP).any(1)
            foremost = warps & ~above
            if foremost.any():
                parts[key] = foremost
                above |= warps
        key = min(parts, key=self.since.__getitem__)
        lanes = pending.pop(key)
        inside = np.repeat(parts[key], WARP)
        part = of_mask(lanes.mask & inside)
        if part.count == lanes.count:
            return key, lanes
        # Added as they were: they have waited since then.
        pending[key] = of_mask(lanes.mask & ~inside)
        return key, part

    def random_part(self, key: Key, lanes: Lanes) -> Lanes:
        """Return the threads of ``lanes`` in some random warps, at least one. The others stay pending at ``key``."""
        random = self.random
        if random is None:  # the schedule is not random
            return lanes
        chosen_warps = random.random(self.threads // WARP) < _RANDOM_SHARE
        mask = lanes.mask & np.repeat(chosen_warps, WARP)
        part = of_mask(mask)
        if not part.count:
            # One warp runs alone: with few warps that happens often, and shows a missing synchronization between them.
            warps = np.flatnonzero(lanes.mask.reshape(-1, WARP).any(1))
            chosen_warps[warps[random.integers(warps.size)]] = True
            mask = lanes.mask & np.repeat(chosen_warps, WARP)
            part = of_mask(mask)
        if part.count == lanes.count:
            return lanes
        self.add(key, of_mask(lanes.mask & ~mask))
        return part

    # -- warps

    def whole_warps(self, lanes: Lanes) -> bool:
        """Whether ``lanes`` has whole warps only: for each warp, either all of its live threads or none of them.

        The threads of a whole warp have nobody to wait for at a warp-wide instruction.
        """
        # All live threads of the batch: the usual case, which needs no look at the warps.
        if lanes.count == self.live_count:
            return True
        rows = lanes.mask.reshape(-1, WARP)  # [warp, lane]
        has_some = rows.any(1)
        lacks_some = (self.live.reshape(-1, WARP) & ~rows).any(1)
        return not bool((has_some & lacks_some).any())

    def ready_members(self, key: Key, block: Block, unit: Unit, file: RegisterFile, lanes: Lanes) -> Lanes | None:
        """Return the threads that can execute the warp-wide instruction (``shfl.sync`` …) that begins a block.

        A thread can once every live thread of its member mask (one bit per lane of its warp) is at the block too. The
        other threads are stalled there. Returns None if all are.

        key: the place of ``block``, a block of the function ``unit``. file: its registers, one of which may have the
        masks. lanes: the threads that have just come to the block.
        """
        # Those that came earlier may be the partners of those that came now.
        stalled = self.stalled.pop(key, None)
        if stalled is not None:
            lanes = lanes.joined(stalled)

        # The member masks: one word for all threads, or one word per thread where the mask is in a register.
        constant = constant_mask(block)
        is_full = is_for_all(block)
        if is_full and lanes.count == self.live_count:
            return lanes
        if is_full:
            members = np.uint32(0xFFFFFFFF)
        elif constant is not None:
            members = np.uint32(constant)
        else:
            members = unit.masks[block.index](self, file, lanes.at)
        # A full mask has every thread's own bit.
        if not is_full:
            self.check_members(block, lanes, members)

        # Which threads have arrived, and which of the others some thread waits for. A warp is 32 threads: thread >> 5.
        arrived = lanes.mask
        is_barrier = block.instructions[0].name == "bar"
        if is_barrier:
            # A thread at any other bar.warp.sync has arrived as well (PTX ISA 9.7.13.2).
            others = {other: waiting for other, waiting in self.stalled.items() if self.at_warp_barrier(other)}
            for waiting in others.values():
                arrived = arrived | waiting.mask
        missing = self.ballots((self.live & ~arrived).reshape(-1, WARP))
        threads = lanes.indices()
        ready = (missing[threads >> 5] & members) == 0
        if is_barrier:
            # A barrier that was complete earlier stays so, although its other threads have gone on since.
            ready |= self.passed[threads]
            self.passed[threads] = False
            if others and ready.any():
                self.release_other_barriers(others, threads[ready], np.broadcast_to(members, threads.shape)[ready])

        ready_count = int(np.count_nonzero(ready))
        if ready_count == lanes.count:
            return lanes
        if ready_count == 0:
            self.stalled[key] = lanes
            return None
        self.stalled[key] = of_indices(threads[~ready], self.threads)
        return of_indices(threads[ready], self.threads)

    def check_members(self, block: Block, lanes: Lanes, members: Any) -> None:
        """Raise DeviceFaultError for a thread whose own bit is not set in its member mask.

        members: the masks of the block's first instruction, one word per thread of ``lanes``, or a scalar.
        """
        threads = lanes.indices()
        lane = (threads & 31).astype(np.uint32)
        outside = (members >> lane & np.uint32(1)) == 0
        if outside.any():
            place = int(np.flatnonzero(outside)[0])
            mask = int(np.broadcast_to(members, threads.shape)[place])
            detail = f"the member mask {mask:#010x} is without the thread itself"
            self.fault(FaultKind.DEADLOCK, block.instructions[0].number, detail, thread=int(threads[place]))

    def at_warp_barrier(self, key: Key) -> bool:
        """Whether the threads that are stalled at a place wait at a ``bar.warp.sync``."""
        return self.units[key[1]].graph.blocks[key[2]].instructions[0].name == "bar"

    def release_other_barriers(self, stalled: dict[Key, Lanes], threads: Indices, members: NDArray[np.uint32]) -> None:
        """Let the partners of ``threads``, whose ``bar.warp.sync`` is complete, pass the one that they are at.

        stalled: the threads at other ``bar.warp.sync`` instructions, by place. members: the member mask of each of
        ``threads``; its lanes, in the thread's warp, are the partners.
        """
        # One word per warp: the lanes that a complete barrier waited for.
        masks = np.zeros(self.threads // WARP, np.uint32)
        np.bitwise_or.at(masks, threads >> 5, members)
        for key, lanes in stalled.items():
            waiting = lanes.indices()
            # A thread is released if its bit is set in the word of its warp, waiting >> 5.
            released = (masks[waiting >> 5] >> (waiting & 31).astype(np.uint32) & np.uint32(1)) != 0
            if released.any():
                # All become pending; those that are not marked in ``passed`` stall again when they run.
                self.passed[waiting[released]] = True
                del self.stalled[key]
                self.add(key, lanes)

    def wake(self) -> bool:
        """Called when no thread is pending: find waiting threads that can continue after all.

        Returns False if every thread has ended, else True. Raises DeviceFaultError if no thread can continue.
        """
        if not self.live_count:
            # Asynchronous copies that no thread has waited for are carried out all the same.
            self.finish_asynchronous()
            return False
        self.release_barriers()
        if not self.pending and self.stalled and self._woken != self.live_count:
            # Threads that the stalled ones wait for may have ended since the last attempt. If none has, another
            # attempt would stall them again, without end.
            self._woken = self.live_count
            self.resume_stalled()
        if not self.pending:
            self.report_deadlock()
        return True

    def resume_stalled(self) -> None:
        """Make all stalled threads pending: when they run, they check again whether their warps are complete."""
        # Taken out first: a thread is either pending or stalled.
        stalled, self.stalled = self.stalled, {}
        for key, lanes in stalled.items():
            self.add(key, lanes)

    def report_deadlock(self) -> None:
        """Raise DeviceFaultError at the statement where most of the waiting threads wait: none can continue."""
        # (number of a statement, the threads that wait there), for warp-wide instructions and for barriers.
        places: list[tuple[int, Lanes]] = [
            (self.units[key[1]].graph.blocks[key[2]].instructions[0].number, lanes)
            for key, lanes in self.stalled.items()
        ]
        places += self.sleeping()
        number, lanes = max(places, key=lambda place: place[1].count)
        detail = f"{lanes.count} threads wait here"
        if len(places) > 1:
            detail += f", {sum(waiting.count for _, waiting in places) - lanes.count} elsewhere"
        self.fault(FaultKind.DEADLOCK, number, detail, thread=int(lanes.indices()[0]))
