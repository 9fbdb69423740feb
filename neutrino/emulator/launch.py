"""One launch: its blocks in batches, as many at a time as lets every block make progress that could be resident."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from neutrino.emulator.geometry import MULTIPROCESSORS, WARP, Dimensions
from neutrino.emulator.machine import Batch
from neutrino.emulator.memory import Memory
from neutrino.emulator.module import Function
from neutrino.emulator.state import DeviceState, Observer
from neutrino.errors import FaultKind

_BATCH_THREADS = 1 << 14
_SLICE = 4096
_LONG = 1 << 15
# CUDA C++ Programming Guide, technical specifications, compute capability 9.0.
_BLOCKS_A_MULTIPROCESSOR = 32
_THREADS_A_MULTIPROCESSOR = 2048
_SHARED_A_MULTIPROCESSOR = 228 << 10
_RESERVED_SHARED = 1 << 10
_MOST_THREADS = 1024
_MOST_SHARED = 227 << 10
_LIMITS = ((1 << 31) - 1, 65535, 65535)
_BLOCK_LIMITS = (1024, 1024, 64)


@dataclass
class Statistics:
    """thread_instructions: instructions times the threads that reached them. steps: basic blocks that were run."""

    thread_instructions: int = 0
    steps: int = 0


class Run:
    """A launch under way. step_limit: basic blocks that a batch may run. random: None for the fixed schedule."""

    def __init__(
        self,
        memory: Memory,
        state: DeviceState,
        random: np.random.Generator | None,
        step_limit: int,
        function: Function,
        grid: Dimensions,
        block: Dimensions,
        parameters: bytes,
        shared: int,
        observer: Observer | None,
    ) -> None:
        kernel = function.kernel
        kernel.units(observed=observer is not None)
        _check(function, grid, block, parameters, shared)
        self.statistics = Statistics()
        self._memory = memory
        self._state = state
        self._random = random
        self._step_limit = step_limit
        self._kernel = kernel
        self._addresses = function.module.addresses
        self._grid = grid
        self._block = block
        # Wide loads may look beyond the last parameter.
        self._parameters = np.zeros(-(-len(parameters) // 16) * 16 + 16, np.uint8)
        self._parameters[: len(parameters)] = np.frombuffer(parameters, np.uint8)
        self._shared = shared
        self._observer = observer
        self._blocks = grid[0] * grid[1] * grid[2]
        stride = -(-block[0] * block[1] * block[2] // WARP) * WARP
        self._at_once = max(1, min(_BATCH_THREADS // stride, self._blocks))
        self._next = 0
        self._active: list[Batch] = []
        self._turn = 0
        each = kernel.shared_size + shared + _RESERVED_SHARED
        self._resident = MULTIPROCESSORS * max(
            1,
            min(_BLOCKS_A_MULTIPROCESSOR, _THREADS_A_MULTIPROCESSOR // stride, _SHARED_A_MULTIPROCESSOR // each),
        )

    def advance(self, steps: int) -> bool:
        """Run up to so many basic blocks. True: the launch has finished. DeviceFaultError: see ``Device.launch``."""
        while True:
            if not self._active and not self._start():
                return True
            if steps <= 0:
                return False
            self._turn %= len(self._active)
            batch = self._active[self._turn]
            before = batch.steps, batch.instructions
            finished = batch.advance(min(steps, _SLICE))
            steps -= max(batch.steps - before[0], 1)
            self.statistics.steps += batch.steps - before[0]
            self.statistics.thread_instructions += batch.instructions - before[1]
            if finished:
                self._active.pop(self._turn)
            elif batch.steps > self._step_limit:
                self._give_up(batch)
            elif batch.waited or batch.steps > _LONG:
                # It may wait for blocks that have not begun, also with plain loads.
                self._start()
                self._turn += 1

    def _start(self) -> bool:
        if self._next >= self._blocks:
            return False
        running = sum(batch.shape.blocks for batch in self._active)
        count = min(self._at_once, self._blocks - self._next)
        if self._active and running + count > self._resident:
            return False
        self._active.append(
            Batch(
                self._kernel,
                self._addresses,
                self._memory,
                self._grid,
                self._block,
                self._next,
                count,
                self._parameters,
                self._shared,
                self._state,
                self._observer,
                self._random,
            )
        )
        self._next += count
        return True

    def _give_up(self, batch: Batch) -> None:
        key, lanes = next(iter(batch.pending.items()))
        instruction = batch.units[key[1]].graph.blocks[key[2]].instructions[0]
        detail = f"{batch.steps} basic blocks, {batch.live_count} threads have not ended"
        batch.fault(FaultKind.STEP_LIMIT, instruction.number, detail, thread=int(lanes.indices()[0]))


def _check(function: Function, grid: Dimensions, block: Dimensions, parameters: bytes, shared: int) -> None:
    for name, size, limits in (("grid", grid, _LIMITS), ("block", block, _BLOCK_LIMITS)):
        if len(size) != 3 or any(not 1 <= one <= limit for one, limit in zip(size, limits, strict=True)):
            raise ValueError(f"{name} {size}: each must lie between 1 and {limits}")
    threads = block[0] * block[1] * block[2]
    if threads > _MOST_THREADS:
        raise ValueError(f"{threads} threads a block")
    if len(parameters) != function.parameter_size:
        raise ValueError(f"{len(parameters)} bytes of parameters for {function.parameter_size}")
    if shared < 0 or function.shared_size + shared > _MOST_SHARED:
        raise ValueError(f"{function.shared_size} + {shared} bytes of shared memory")
    required = function.directives.get("reqntid", ())
    if required and (*required, 1, 1)[:3] != block:
        raise ValueError(f"the kernel requires blocks of {required}")
    most = function.directives.get("maxntid", ())
    if most and threads > int(np.prod(most)):
        raise ValueError(f"the kernel is made for blocks of at most {int(np.prod(most))} threads")
    cluster = function.directives.get("reqnctapercluster", ())
    if any(size != 1 for size in cluster):
        raise function.refused("clusters of more than one block")
