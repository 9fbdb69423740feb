"""The embedded device: memory, modules, launches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neutrino.emulator.address_space import ALIGNMENT, CONST_BASE, HEAP_BASE, Memory, OutOfMemoryError, Space, Window
from neutrino.emulator.launch import Run, Statistics
from neutrino.emulator.loaded_module import Function, LoadedModule, Parameter
from neutrino.emulator.state import DeviceState, Observer
from neutrino.errors import EmulatorError

_CONST_SIZE = 4 << 20
_STEP_LIMIT = 10_000_000

Argument = int | float | bytes | np.generic | NDArray[Any]
Dimensions = tuple[int, int, int]


class Device:
    """An emulated GPU with memory of its own.

    memory: the address space. heap, constants: the windows in it for allocations with global variables, and for
    constant variables. state: what lasts from launch to launch besides memory. random: for a random schedule, else
    None. step_limit: number of basic blocks that a batch of thread blocks may run before the launch fails.
    """

    def __init__(self, *, memory: int = 256 << 20, seed: int | None = None, step_limit: int = _STEP_LIMIT) -> None:
        """memory: bytes of global memory. step_limit: basic blocks that a batch of thread blocks may run before a
        launch fails.

        seed: None for the fixed schedule (the deepest call, then the lowest block goes first); a number for a random
        schedule, the same for the same number.
        """
        self.memory = Memory()
        # Rounded up to the alignment of allocations.
        self.heap = Window(HEAP_BASE, np.zeros(-(-memory // ALIGNMENT) * ALIGNMENT, np.uint8))
        self.constants = Window(CONST_BASE, np.zeros(_CONST_SIZE, np.uint8), constant=True)
        self.memory.add(self.heap)
        self.memory.add(self.constants)
        self.state = DeviceState(self.heap)
        self.step_limit = step_limit
        self.random = np.random.default_rng(seed) if seed is not None else None

    # -- memory

    def place(self, heap: Window, constants: Window, others: Sequence[Window]) -> None:
        """Replace the device's memory by buffers that the caller owns, such as segments shared with another process.

        heap: for allocations and global variables. constants: for constant variables. others: windows in which the
        caller itself marks the valid ranges.
        """
        self.heap = heap
        self.constants = constants
        self.memory = Memory()
        for window in (heap, constants, *others):
            self.memory.add(window)

    def allocate(self, size: int) -> int:
        """Allocate ``size`` bytes of global memory; return their address, a multiple of 256.

        They hold poison, with red zones around them. Raise OutOfMemoryError if there is no room, ValueError for a size
        below 1.
        """
        if size < 1:
            raise ValueError("an allocation has at least one byte")
        return self.heap.allocate(size)

    def free(self, address: int) -> None:
        """Free an allocation. Raise KeyError if there is none at this address."""
        self.heap.free(address)

    def write(self, address: int, data: bytes | NDArray[Any]) -> None:
        """Copy bytes, or the bytes of an array, into memory.

        Raise ValueError if they do not lie inside one allocation.
        """
        content = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else np.ascontiguousarray(data)
        content = content.reshape(-1).view(np.uint8)
        window, start = self._range(address, content.size)
        window.buffer[start : start + content.size] = content

    def read(self, address: int, size: int) -> bytes:
        """Copy ``size`` bytes out of memory. Raise ValueError if they do not lie inside one allocation."""
        window, start = self._range(address, size)
        return window.buffer[start : start + size].tobytes()

    def _range(self, address: int, size: int) -> tuple[Window, int]:
        """Return the window of a range of addresses, and the range's offset in the window's buffer.

        Raise ValueError if the range does not lie inside one allocation.
        """
        window = self.memory.find(address)
        if window is None or not window.holds(address, address + size):
            raise ValueError(f"{size} bytes at {address:#x} are not inside one allocation")
        return window, address - window.base

    def take_printed(self) -> bytes:
        """Return what kernels have printed since the last call, at most the latest MiB."""
        printed = bytes(self.state.printed)
        self.state.printed.clear()
        return printed

    # -- modules and launches

    def load(self, text: str) -> LoadedModule:
        """Load a PTX text and allocate its variables. Raise PtxRefusedError if the device does not run it."""
        return LoadedModule(text, self.heap, self.constants)

    def unload(self, module: LoadedModule) -> None:
        """Free the memory of a module's variables."""
        module.unload()

    def begin(
        self,
        function: Function,
        grid: Dimensions,
        block: Dimensions,
        parameters: bytes,
        *,
        shared: int = 0,
        observer: Observer | None = None,
    ) -> Run:
        """Prepare a launch, and return it for ``Run.advance`` to execute step by step.

        grid: in blocks. block: in threads. parameters: the packed parameter buffer. shared: bytes of dynamic shared
        memory per block. Raise PtxRefusedError if the kernel has a statement that the device does not know, ValueError
        if a dimension or a size is not valid.
        """
        return Run(
            self.memory, self.state, self.random, self.step_limit, function, grid, block, parameters, shared, observer
        )

    def launch(
        self,
        function: Function,
        grid: Dimensions,
        block: Dimensions,
        arguments: bytes | Sequence[Argument],
        *,
        shared: int = 0,
        observer: Observer | None = None,
    ) -> Statistics:
        """Run a kernel to its end. arguments: the packed parameter buffer, or one value per parameter.

        The other parameters are those of ``begin``. Raise DeviceFaultError if a thread faults or no thread can go on;
        PtxRefusedError and ValueError as ``begin`` does.
        """
        parameters = arguments if isinstance(arguments, bytes) else pack_arguments(function.parameters, arguments)
        run = self.begin(function, grid, block, parameters, shared=shared, observer=observer)
        # Several calls if the batches of a large grid need more steps in all; each has the limit for itself.
        while not run.advance(self.step_limit):
            pass
        return run.statistics


def pack_arguments(parameters: Sequence[Parameter], arguments: Sequence[Argument]) -> bytes:
    """Pack arguments, one per parameter, into the parameter buffer of a kernel.

    Raise ValueError if their number or the size of one does not match.
    """
    if len(arguments) != len(parameters):
        raise ValueError(f"{len(arguments)} arguments for {len(parameters)} parameters")
    # Zeros stay between parameters that are aligned.
    size = max((parameter.offset + parameter.size for parameter in parameters), default=0)
    buffer = bytearray(size)
    for parameter, argument in zip(parameters, arguments, strict=True):
        content = _argument_bytes(parameter, argument)
        if len(content) != parameter.size:
            raise ValueError(f"{parameter.name}: {len(content)} bytes for {parameter.size}")
        buffer[parameter.offset : parameter.offset + parameter.size] = content
    return bytes(buffer)


def _argument_bytes(parameter: Parameter, argument: Argument) -> bytes:
    """Return the bytes of an argument. Python numbers get the parameter's size; integers wrap around.

    Raise ValueError for a float if no float type has that size.
    """
    if isinstance(argument, bytes):
        return argument
    if isinstance(argument, np.generic | np.ndarray):
        return argument.tobytes()
    if isinstance(argument, int):
        # The lowest bits, as many as the parameter has.
        return (argument & (1 << 8 * parameter.size) - 1).to_bytes(parameter.size, "little")
    if parameter.size not in (2, 4, 8):
        raise ValueError(f"{parameter.name}: a float for {parameter.size} bytes")
    return np.array(argument, f"f{parameter.size}").tobytes()


__all__ = [
    "Device",
    "EmulatorError",
    "Function",
    "LoadedModule",
    "Observer",
    "OutOfMemoryError",
    "Parameter",
    "Run",
    "Space",
    "Statistics",
    "pack_arguments",
]
