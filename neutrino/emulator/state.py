"""The state of one batch of blocks while it runs, and how its faults are reported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from neutrino.emulator.geometry import WARP, Dimensions, Shape, block_registers, shape
from neutrino.emulator.kernel import Kernel
from neutrino.emulator.memory import POISON, Memory, Space, Window
from neutrino.emulator.text import Statement
from neutrino.errors import DeviceFaultError, FaultKind

Indices = NDArray[np.int64]
CLOCK_START = 1 << 20
_PRINTED = 1 << 20  # CUDA C++ Programming Guide, formatted output: the default size of the buffer
EPOCH = 1_700_000_000_000_000_000


class Observer(Protocol):
    """Gets everything that an observed launch does.

    One with a ``registers(statement, threads, before, after)`` is also called, after each statement that does not end
    a basic block, what the registers that it names held before and hold after it: name → one value a thread.
    """

    def executed(self, statement: Statement, threads: Indices) -> None:
        """The threads (linear over the whole grid) are about to run a statement; its guard holds for them."""

    def accessed(
        self,
        statement: Statement,
        threads: Indices,
        addresses: NDArray[np.uint64],
        size: int,
        spaces: NDArray[np.uint8],
    ) -> None:
        """The threads access ``size`` bytes each. spaces: of ``Space``; addresses: in that space."""


class DeviceState:
    """What launches leave besides memory.

    steps: the step clock, instructions that batches have run so far. heap: where ``malloc`` of a kernel allocates.
    printed: by kernels, the latest MiB of it.
    """

    def __init__(self, heap: Window) -> None:
        self.steps = CLOCK_START
        self.heap = heap
        self.printed = bytearray()

    def print(self, text: bytes) -> None:
        """Add to what kernels have printed."""
        self.printed += text
        del self.printed[:-_PRINTED]


class State:
    """The memory and the identity of the threads of one batch."""

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
        self.shared_size = kernel.shared_size + dynamic_shared
        self.shared_stride = -(-self.shared_size // 128) * 128
        self.shared = np.full(self.shared_stride * blocks, POISON, np.uint8)
        self.shared_views: dict[np.dtype[Any], Any] = {}
        self.shared_base: Any = (
            np.int64(0) if blocks == 1 or not self.shared_size else self.shape.block_of * self.shared_stride
        )
        self.local = np.empty((0, self.threads), np.uint64)
        self.registers = self.shape.registers
        self.block_registers = block_registers(block, blocks, grid, first)

    # -- special registers

    def special(self, name: str, at: Indices | None) -> Any:
        """A special register other than a clock."""
        value = self.registers.get(name)
        if value is None:
            value = self.block_registers.get(name)
        if value is None:
            value = self.sizes(name)
        return value if at is None or not value.ndim else value[at]

    def sizes(self, name: str) -> Any:
        if name == "dynamic_smem_size":
            return np.uint32(self.dynamic_shared)
        if name in ("total_smem_size", "aggr_smem_size"):
            return np.uint32(self.shared_size)
        return np.uint64(0) if name.endswith("_64") or name == "current_graph_exec" else np.uint32(0)

    def clock_register(self, name: str, position: int) -> Any:
        """A clock at the instruction of that position in its block. The same in all threads that read it together."""
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
        return np.uint32((nanoseconds if name == "globaltimer_lo" else nanoseconds >> 32) & 0xFFFFFFFF)

    def function_address(self, name: str) -> Any:
        """The address of a function, for indirect calls."""
        return np.uint64(self.kernel.module.function_addresses[name])

    def shared_address(self, place: int, offset: Any) -> Any:
        """The address in shared memory of a variable, by its number in the module."""
        return np.uint64(self.kernel.shared_offsets[place]) + offset

    # -- observers

    def threads_of(self, at: Indices | None) -> Indices:
        """Linear indices over the whole grid."""
        shape = self.shape
        linear = (shape.block_of + self.first) * shape.block_threads + shape.in_block
        return linear if at is None else linear[at]

    def executed(self, number: int, at: Indices | None, guard: Any) -> None:
        """Tell the observer that a statement is about to run."""
        if self.observer is None:
            return
        at = self.guarded(at, guard)
        if at is None or at.size:
            self.observer.executed(self.kernel.module.statements[number], self.threads_of(at))

    def valued(self, number: int, at: Indices | None, guard: Any, *values: tuple[tuple[str, Any], ...]) -> None:
        """Tell an observer that wants them what the registers of a statement held before it and hold after it."""
        observe = getattr(self.observer, "registers", None)
        if observe is None:
            return
        inside = self.guarded(at, guard)
        if inside is not None and not inside.size:
            return
        lanes = (self.threads if at is None else at.size,)
        # A guard without lanes of its own holds for all.
        kept = slice(None) if guard is None or not guard.ndim else guard
        before, after = ({name: np.broadcast_to(value, lanes)[kept] for name, value in one} for one in values)
        observe(self.kernel.module.statements[number], self.threads_of(inside), before, after)

    def guarded(self, at: Indices | None, guard: Any) -> Indices | None:
        """The threads for which a guard holds."""
        if guard is None:
            return at
        if guard.ndim:
            inside: Indices = np.flatnonzero(guard) if at is None else at[guard]
            return inside
        return at if guard else np.empty(0, np.int64)

    def observe(self, number: int, space: Space, addresses: Any, size: int, at: Indices | None) -> None:
        """Tell the observer of an access."""
        if self.observer is None:
            return
        threads = self.threads_of(at)
        everywhere = np.broadcast_to(np.asarray(addresses, np.uint64), threads.shape)
        spaces = np.full(threads.shape, int(space), np.uint8)
        self.observer.accessed(self.kernel.module.statements[number], threads, everywhere, size, spaces)

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
        """Raise DeviceFaultError. thread: its index in the batch."""
        statement = self.kernel.module.statements[number]
        where = self.position(thread) if thread is not None else (None, None)
        raise DeviceFaultError(
            kind,
            self.kernel.name,
            statement.line,
            statement.text,
            detail,
            block=where[0],
            thread=where[1],
            address=address,
        )

    def position(self, thread: int) -> tuple[Dimensions, Dimensions]:
        """(block, thread) indices of a thread of the batch."""
        block, inside = divmod(thread, self.shape.stride)
        block += self.first
        x, y, _ = self.grid
        bx, by, _ = self.shape.block
        return (
            (block % x, block // x % y, block // (x * y)),
            (inside % bx, inside // bx % by, inside // (bx * by)),
        )

    def one_of(self, at: Indices | None, place: int = 0) -> int:
        """The thread at a place among those that run."""
        return place if at is None else int(at[place])


__all__ = ["CLOCK_START", "WARP", "DeviceState", "Indices", "Observer", "State"]
