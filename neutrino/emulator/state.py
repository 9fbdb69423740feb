"""The state of one batch of thread blocks while it runs: memory, thread indices, observer and faults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from neutrino.emulator.address_space import POISON, Memory, Space, Window
from neutrino.emulator.geometry import WARP, Dimensions, Shape, block_registers, shape
from neutrino.emulator.kernel import Kernel
from neutrino.emulator.text import Statement
from neutrino.errors import DeviceFaultError, FaultKind

Indices = NDArray[np.int64]
"""Indices of threads: in the batch, unless something else is said."""
CLOCK_START = 1 << 20
"""The step clock of a new device."""
_PRINT_BUFFER_SIZE = 1 << 20  # CUDA C++ Programming Guide, formatted output: the default size of the buffer
# In bytes. A multiple of the largest word (16 bytes), so that a word of one block's shared memory is also a word of the
# array with that of all blocks.
_SHARED_STRIDE_UNIT = 128
EPOCH = 1_700_000_000_000_000_000
"""The value of ``%globaltimer``, in nanoseconds, when the step clock is 0."""


class Observer(Protocol):
    """Is called for every statement and memory access of an observed launch.

    An observer may also have ``registers(statement, threads, before, after)``. It is called after each statement that
    does not end a basic block, with the values that the registers that it names had before and have after it: name →
    one value per thread. With ``is_recorded(statement)`` beside it, it is called for the statements alone for which
    that is true.
    """

    def executed(self, statement: Statement, threads: Indices) -> None:
        """Called before a statement runs. threads: linear indices over the grid, of those for which its guard holds."""

    def accessed(
        self,
        statement: Statement,
        threads: Indices,
        addresses: NDArray[np.uint64],
        size: int,
        spaces: NDArray[np.uint8],
    ) -> None:
        """Called for a memory access of ``size`` bytes per thread. spaces: values of ``Space``; addresses: in that
        space; each one per thread."""


class DeviceState:
    """The state of a device that lasts from launch to launch, besides its memory.

    steps: the step clock, the number of instructions that batches have run. heap: where a kernel's ``malloc``
    allocates. printed: what kernels have printed, the latest MiB of it.
    """

    def __init__(self, heap: Window) -> None:
        """heap: where a kernel's ``malloc`` allocates."""
        self.steps = CLOCK_START
        self.heap = heap
        self.printed = bytearray()

    def print(self, text: bytes) -> None:
        """Append to the printed text. Only the latest MiB is kept."""
        self.printed += text
        del self.printed[:-_PRINT_BUFFER_SIZE]


class State:
    """The state of one batch: thread blocks of one launch that run together, one array element per thread.

    ``at`` in its methods has the indices of the threads that execute an instruction, None for all of the batch.

    shape: how the threads are arranged. threads: how many they are, each block padded to whole warps. shared: the
    shared memory of all blocks. local: the local memory of all threads. registers, block_registers: the special
    registers (``%tid.x`` …) by name: those that depend on the shape alone, and those that depend on the blocks' place
    in the grid.
    """

    def __init__(
        self,
        kernel: Kernel,
        addresses: Sequence[np.uint64],
        memory: Memory,
        grid: Dimensions,
        block: Dimensions,
        first: int,
        blocks: int,
        parameters: NDArray[np.uint8],
        dynamic_shared: int,
        device_state: DeviceState,
        observer: Observer | None,
        random: np.random.Generator | None,
    ) -> None:
        """Create the state of a batch of ``blocks`` blocks, the first with the linear index ``first`` in the grid.

        addresses: of the module's variables, by number. grid, block: dimensions of the launch. parameters: the kernel's
        parameter buffer. dynamic_shared: bytes per block. device_state: what lasts from launch to launch. observer: is
        called for what threads do; None for no observer. random: None for the deterministic schedule.
        """
        self.kernel = kernel
        self.addresses = addresses
        self.memory = memory
        self.grid = grid
        self.first = first
        self.shape: Shape = shape(block, blocks)
        self.threads = self.shape.threads
        self.parameters = parameters
        self.device_state = device_state
        self.observer = observer
        self.random = random
        self.dynamic_shared = dynamic_shared

        # One array for all blocks: ``shared_size`` bytes of each, ``shared_stride`` from one block to the next.
        self.shared_size = kernel.shared_size + dynamic_shared
        self.shared_stride = -(-self.shared_size // _SHARED_STRIDE_UNIT) * _SHARED_STRIDE_UNIT
        self.shared = np.full(self.shared_stride * blocks, POISON, np.uint8)
        # Word type → ``shared`` as words of that type, made when first accessed.
        self.shared_views: dict[np.dtype[Any], Any] = {}
        # Where in ``shared`` each thread's block begins, in bytes; a scalar where that is 0 for all threads.
        self.shared_base: Any = (
            np.int64(0) if blocks == 1 or not self.shared_size else self.shape.block_of * self.shared_stride
        )

        # As [plane, thread]: plane p has the bytes 8 p to 8 p + 7 of each thread's local memory. Calls add planes.
        self.local = np.empty((0, self.threads), np.uint64)
        # Those of the shape are computed once, and reused by all batches of the same shape.
        self.registers = self.shape.registers
        self.block_registers = block_registers(block, blocks, grid, first)
        # See ``threads_of``.
        self._linear: Indices | None = None

    # -- special registers

    def special(self, name: str, at: Indices | None) -> Any:
        """Return the value of a special register other than a clock: a scalar, or one element per thread of ``at``."""
        # ``or`` would take a register with the value 0 for a missing one.
        value = self.registers.get(name)
        if value is None:
            value = self.block_registers.get(name)
        if value is None:
            value = self.other_register(name)
        return value if at is None or not value.ndim else value[at]

    def other_register(self, name: str) -> Any:
        """Return a special register that does not depend on the thread: sizes of shared memory, and zero for others."""
        if name == "dynamic_smem_size":
            return np.uint32(self.dynamic_shared)
        if name in ("total_smem_size", "aggr_smem_size"):
            return np.uint32(self.shared_size)
        # The remaining ones that have 64 bits: the performance counters %pm0_64 …, and %current_graph_exec.
        return np.uint64(0) if name.endswith("_64") or name == "current_graph_exec" else np.uint32(0)

    def clock_register(self, name: str, position: int) -> Any:
        """Return the value of a clock register, a scalar: threads that read it together get the same value.

        position: the number of instructions before the reading one in its basic block, since the step clock advances
        only after a block. A nanosecond of ``%globaltimer`` is one instruction.
        """
        steps = self.device_state.steps + position
        if name == "clock64":
            return np.uint64(steps)
        if name == "clock":
            return np.uint32(steps & 0xFFFFFFFF)
        if name == "clock_hi":
            return np.uint32(steps >> 32 & 0xFFFFFFFF)
        nanoseconds = EPOCH + steps
        if name == "globaltimer":
            return np.uint64(nanoseconds)
        # globaltimer_lo or globaltimer_hi: one half.
        return np.uint32((nanoseconds if name == "globaltimer_lo" else nanoseconds >> 32) & 0xFFFFFFFF)

    def function_address(self, name: str) -> Any:
        """Return the address of a function, for indirect calls."""
        return np.uint64(self.kernel.module.function_addresses[name])

    def shared_address(self, place: int, offset: Any) -> Any:
        """Return an address in shared memory: that of a variable, by its number in the module, plus an offset."""
        return np.uint64(self.kernel.shared_offsets[place]) + offset

    # -- observers

    def threads_of(self, at: Indices | None) -> Indices:
        """Return the linear indices of threads over the whole grid, in which blocks have no padding."""
        linear = self._linear
        if linear is None:
            shape = self.shape
            linear = self._linear = (shape.block_of + self.first) * shape.block_threads + shape.in_block
            linear.setflags(write=False)
        return linear if at is None else linear[at]

    def executed(self, number: int, at: Indices | None, guard: Any) -> None:
        """Report to the observer, if any, that a statement is about to run in the threads for which its guard holds.

        number: the statement's, in the module. guard: None, or a boolean per thread of ``at``, or one for all.
        """
        if self.observer is None:
            return
        at = self.guarded(at, guard)
        # None is all threads; an empty array is none, and then there is nothing to report.
        if at is None or at.size:
            self.observer.executed(self.kernel.module.statements[number], self.threads_of(at))

    def valued(self, number: int, at: Indices | None, guard: Any, *values: tuple[tuple[str, Any], ...]) -> None:
        """Report the register values of a statement to an observer that has a method ``registers``.

        number: the statement's, in the module. guard: None, or a boolean per thread of ``at``, or one for all; only the
        threads for which it holds are reported. values: two tuples of (register name, value), before the statement and
        after it; a value is an array with one element per thread of ``at``, or a scalar.
        """
        observe = getattr(self.observer, "registers", None)
        if observe is None:
            return
        is_recorded = getattr(self.observer, "is_recorded", None)
        if is_recorded is not None and not is_recorded(self.kernel.module.statements[number]):
            return
        guarded = self.guarded(at, guard)
        if guarded is not None and not guarded.size:
            return  # the guard holds for no thread
        shape = (self.threads if at is None else at.size,)
        # A scalar guard holds for all threads here: else ``guarded`` would be empty.
        mask = slice(None) if guard is None or not guard.ndim else guard
        before, after = ({name: np.broadcast_to(value, shape)[mask] for name, value in pairs} for pairs in values)
        observe(self.kernel.module.statements[number], self.threads_of(guarded), before, after)

    def guarded(self, at: Indices | None, guard: Any) -> Indices | None:
        """Return the indices of those threads of ``at`` for which a guard holds; None for all threads of the batch.

        guard: None, or one boolean per thread of ``at``, or a scalar for all of them.
        """
        if guard is None:
            return at
        if guard.ndim:
            guarded: Indices = np.flatnonzero(guard) if at is None else at[guard]
            return guarded
        return at if guard else np.empty(0, np.int64)

    def observe(self, number: int, space: Space, addresses: Any, size: int, at: Indices | None) -> None:
        """Report a memory access to the observer, if any.

        number: the statement's, in the module. addresses: in the state space ``space``, one per thread of ``at``, or a
        scalar. size: in bytes, per thread.
        """
        if self.observer is None:
            return
        threads = self.threads_of(at)
        per_thread = np.broadcast_to(np.asarray(addresses, np.uint64), threads.shape)
        spaces = np.full(threads.shape, int(space), np.uint8)
        self.observer.accessed(self.kernel.module.statements[number], threads, per_thread, size, spaces)

    # -- faults

    def fault(
        self,
        kind: FaultKind,
        number: int,
        detail: str,
        *,
        thread: int | None = None,
        address: int | None = None,
    ) -> NoReturn:
        """Raise DeviceFaultError for a statement of the module.

        number: the statement's. detail: for the message, "" for nothing to add. thread: the index, in the batch, of one
        at fault, None where no single thread is. address: the one accessed or called, None where there is none.
        """
        statement = self.kernel.module.statements[number]
        block_index, thread_index = self.position(thread) if thread is not None else (None, None)
        raise DeviceFaultError(
            kind,
            self.kernel.name,
            statement.line,
            statement.text,
            detail,
            block=block_index,
            thread=thread_index,
            address=address,
        )

    def position(self, thread: int) -> tuple[Dimensions, Dimensions]:
        """Return ``blockIdx`` and ``threadIdx``, as (x, y, z), of a thread of the batch."""
        # ``stride``: threads per block, filled up to whole warps.
        block_in_batch, thread_in_block = divmod(thread, self.shape.stride)
        # The linear index in the grid. x varies fastest in linear indices of blocks and of threads, then y.
        block = self.first + block_in_batch
        grid_x, grid_y, _ = self.grid
        block_x, block_y, _ = self.shape.block
        return (
            (block % grid_x, block // grid_x % grid_y, block // (grid_x * grid_y)),
            (thread_in_block % block_x, thread_in_block // block_x % block_y, thread_in_block // (block_x * block_y)),
        )

    def one_of(self, at: Indices | None, place: int = 0) -> int:
        """Return the index in the batch of the thread at ``place`` among those of ``at``: by default the first one."""
        return place if at is None else int(at[place])


__all__ = ["CLOCK_START", "WARP", "DeviceState", "Indices", "Observer", "State"]
