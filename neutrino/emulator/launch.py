"""One launch: its blocks run in batches, several in turns if they may wait for one another.

As many blocks are under way at a time as could be resident on the multiprocessors of the GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from neutrino.emulator.address_space import Memory
from neutrino.emulator.geometry import MULTIPROCESSORS, WARP, Dimensions
from neutrino.emulator.loaded_module import Function
from neutrino.emulator.scheduler import Batch
from neutrino.emulator.state import DeviceState, Observer
from neutrino.errors import FaultKind

_BATCH_THREADS = 1 << 14
# The basic blocks that a batch runs before the next one gets a turn, and after which other batches may start.
_SLICE = 4096
_LONG_RUN = 1 << 15
# CUDA C++ Programming Guide, technical specifications, compute capability 9.0.
_BLOCKS_PER_MULTIPROCESSOR = 32
_THREADS_PER_MULTIPROCESSOR = 2048
_SHARED_PER_MULTIPROCESSOR = 228 << 10
_RESERVED_SHARED_PER_BLOCK = 1 << 10
_MAX_THREADS_PER_BLOCK = 1024
_MAX_SHARED_PER_BLOCK = 227 << 10
_GRID_LIMITS = ((1 << 31) - 1, 65535, 65535)
_BLOCK_LIMITS = (1024, 1024, 64)


@dataclass
class Statistics:
    """What a launch has executed.

    thread_instructions: the sum, over executed instructions, of the threads that reached them. steps: basic blocks.
    """

    thread_instructions: int = 0
    steps: int = 0


class Run:
    """A launch under way.

    memory, state: those of the device. random: None for the fixed schedule. step_limit: the number of basic blocks that
    a batch may run. function: the kernel. grid: in blocks. block: in threads. parameters: the packed parameter buffer.
    shared: bytes of dynamic shared memory per block. observer: is called for what threads do; None for no observer.

    Raise PtxRefusedError for a kernel that the device cannot run, ValueError for dimensions or sizes that are not
    valid.
    """

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
        """Check the launch, and work out how many blocks run per batch and at a time; no block runs yet."""
        kernel = function.kernel
        # Generate the code now, as this is what refuses statements that the device does not know.
        kernel.units(observed=observer is not None)
        _check_launch(function, grid, block, parameters, shared)
        self.statistics = Statistics()
        self._memory = memory
        self._state = state
        self._random = random
        self._step_limit = step_limit
        self._kernel = kernel
        # Of the module's variables, by their number.
        self._addresses = function.module.addresses
        self._grid = grid
        self._block = block
        # Padded to whole words of 16 bytes, and by one more, as wide loads may reach beyond the last parameter.
        self._parameters = np.zeros(-(-len(parameters) // 16) * 16 + 16, np.uint8)
        self._parameters[: len(parameters)] = np.frombuffer(parameters, np.uint8)
        self._shared = shared
        self._observer = observer
        self._block_count = grid[0] * grid[1] * grid[2]
        # Threads per block, in whole warps.
        stride = -(-block[0] * block[1] * block[2] // WARP) * WARP
        self._blocks_per_batch = max(1, min(_BATCH_THREADS // stride, self._block_count))
        # The linear index in the grid of the first block that has not begun.
        self._next_block = 0
        # The batches that have begun and not finished.
        self._batches: list[Batch] = []
        # The index of the batch that runs next.
        self._turn = 0
        shared_per_block = kernel.shared_size + shared + _RESERVED_SHARED_PER_BLOCK
        # As on the GPU, threads and shared memory limit the blocks per multiprocessor, of which one always fits.
        self._max_resident_blocks = MULTIPROCESSORS * max(
            1,
            min(
                _BLOCKS_PER_MULTIPROCESSOR,
                _THREADS_PER_MULTIPROCESSOR // stride,
                _SHARED_PER_MULTIPROCESSOR // shared_per_block,
            ),
        )

    def advance(self, steps: int) -> bool:
        """Run up to `steps` basic blocks of the batches, in turns; return True once the launch has finished.

        Raise DeviceFaultError if a thread faults, no thread can go on, or a batch exceeds the step limit.
        """
        while True:
            if not self._batches and not self._start_batch():
                return True
            if steps <= 0:
                return False
            # Back to the first batch after the last one.
            self._turn %= len(self._batches)
            batch = self._batches[self._turn]
            steps_before, instructions_before = batch.steps, batch.instructions
            # In slices: after each one it is checked whether the batch waits for others.
            finished = batch.advance(min(steps, _SLICE))
            # At least one, so that the loop ends if the batch had nothing to run.
            steps -= max(batch.steps - steps_before, 1)
            self.statistics.steps += batch.steps - steps_before
            self.statistics.thread_instructions += batch.instructions - instructions_before
            if finished:
                # The next batch takes its place, and so the turn.
                self._batches.pop(self._turn)
            elif batch.steps > self._step_limit:
                self._fault_at_step_limit(batch)
            elif batch.waited or batch.steps > _LONG_RUN:
                # It polls memory, or runs for long, which may be a loop with plain loads: perhaps it waits for blocks
                # that have not begun. Start more of them and go on with the next batch. Any other batch keeps its turn.
                self._start_batch()
                self._turn += 1

    def _start_batch(self) -> bool:
        """Start a batch with the next blocks of the grid.

        Return False if none are left, or if they and the blocks under way could not be resident together.
        """
        if self._next_block >= self._block_count:
            return False
        running = sum(batch.shape.blocks for batch in self._batches)
        count = min(self._blocks_per_batch, self._block_count - self._next_block)
        # A batch alone always starts, so that the launch goes on.
        if self._batches and running + count > self._max_resident_blocks:
            return False
        self._batches.append(
            Batch(
                self._kernel,
                self._addresses,
                self._memory,
                self._grid,
                self._block,
                self._next_block,
                count,
                self._parameters,
                self._shared,
                self._state,
                self._observer,
                self._random,
            )
        )
        self._next_block += count
        return True

    def _fault_at_step_limit(self, batch: Batch) -> None:
        """Raise DeviceFaultError for a batch beyond its step limit, at the position of some runnable threads."""
        # A batch that has not finished has threads that can run; it would have reported a deadlock else.
        (_, function, block), lanes = next(iter(batch.pending.items()))
        instruction = batch.units[function].graph.blocks[block].instructions[0]
        detail = f"{batch.steps} basic blocks, {batch.live_count} threads have not ended"
        batch.fault(FaultKind.STEP_LIMIT, instruction.number, detail, thread=int(lanes.indices()[0]))


def _check_launch(function: Function, grid: Dimensions, block: Dimensions, parameters: bytes, shared: int) -> None:
    """Check a launch against the limits of the hardware and the directives of the kernel.

    shared: bytes of dynamic shared memory per block. Raise ValueError if something is out of range, PtxRefusedError if
    the kernel requires clusters.
    """
    for name, dimensions, limits in (("grid", grid, _GRID_LIMITS), ("block", block, _BLOCK_LIMITS)):
        # Dimensions come from callers, whose types nothing checks.
        if len(dimensions) != 3 or any(not 1 <= size <= limit for size, limit in zip(dimensions, limits, strict=True)):
            raise ValueError(f"{name} {dimensions}: each must lie between 1 and {limits}")
    threads = block[0] * block[1] * block[2]
    if threads > _MAX_THREADS_PER_BLOCK:
        raise ValueError(f"{threads} threads a block")
    if len(parameters) != function.parameter_size:
        raise ValueError(f"{len(parameters)} bytes of parameters for {function.parameter_size}")
    if shared < 0 or function.shared_size + shared > _MAX_SHARED_PER_BLOCK:
        raise ValueError(f"{function.shared_size} + {shared} bytes of shared memory")
    # A kernel without such a directive has no such limit.
    required = function.directives.get("reqntid", ())
    # Dimensions that the directive leaves out are 1.
    if required and (*required, 1, 1)[:3] != block:
        raise ValueError(f"the kernel requires blocks of {required}")
    maximum = function.directives.get("maxntid", ())
    if maximum and threads > int(np.prod(maximum)):
        raise ValueError(f"the kernel is made for blocks of at most {int(np.prod(maximum))} threads")
    cluster = function.directives.get("reqnctapercluster", ())
    if any(size != 1 for size in cluster):
        raise function.refused("clusters of more than one block")
