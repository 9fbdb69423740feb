"""Runs kernels of AMD's code objects in the interpreter of ``emulator/gcn``, launched as ROCm's runtime does."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.backend.kernel_runs import CannotRunError, KernelResult, KernelRun, Use
from neutrino.emulator.gcn.compiler import PRIVATE_APERTURE, SHARED_APERTURE
from neutrino.emulator.gcn.errors import GcnError, GcnFaultError, UnknownInstructionError
from neutrino.emulator.gcn.launch import launch
from neutrino.emulator.gcn.memory import BASE, Memory
from neutrino.emulator.gcn.object_file import LoadedKernel, LoadedObject
from neutrino.emulator.gcn.wave import Wave
from neutrino.gcn.llvm import find_llvm

Array = npt.NDArray[Any]

_POINTER = 8
_SPARE = 8 << 20
"""Bytes of memory besides buffers, maps and code: for arguments and red zones."""
_MOST = 1 << 60
"""Instructions of a wave: whoever runs it limits its time."""
_CHECKED_EVERY = 256
"""Instructions after which the time is looked at."""
_KINDS = {"load": Use.LOAD, "scalar load": Use.LOAD, "store": Use.STORE, "atomic": Use.UPDATE}


class _LateError(Exception):
    """The time for a run is over."""


def run_kernel(run: KernelRun) -> KernelResult:
    """Run a kernel of a code object. Faults of the kernel are in the result.

    Raises CannotRunError for what the interpreter does not know, named; ToolMissingError without AMD's LLVM.
    """
    size = sum(map(len, run.buffers)) + 512 * len(run.buffers) + 2 * len(run.image) + _SPARE
    memory = Memory(size + (run.probed.memory.size if run.probed else 0))
    # Buffers come first, so that their addresses are the same with and without probes.
    addresses = tuple(memory.put(data) for data in run.buffers)
    maps = 0
    if run.probed is not None:
        maps = memory.put(bytes(max(run.probed.memory.size, _POINTER)))
    try:
        loaded = LoadedObject(run.image, memory, find_llvm(run.arch.partition(":")[0]).disassemble)
    except GcnError as error:
        raise CannotRunError(f"the interpreter cannot load this code object: {error}") from error
    kernel = loaded.kernels.get(run.kernel)
    if kernel is None:
        raise CannotRunError(f"{run.kernel}: the code object has no such kernel")
    before = {name: memory.read(*place) for name, place in loaded.variables.items()}
    watch = _Watch(addresses, [len(data) for data in run.buffers], loaded, kernel, run.seconds)
    fault, kind, missed = "", "", None
    try:
        launch(
            loaded.program(kernel.descriptor.lanes), kernel.descriptor, kernel.entry, memory, run.grid, run.block,
            _packed(run, kernel, addresses, maps), base=loaded.base, dynamic_lds=run.shared, seed=run.order,
            checks=True, observer=watch.observe, limit=_MOST,
        )  # fmt: skip
    except UnknownInstructionError as error:
        raise CannotRunError(f"{run.kernel}: {error}") from error
    except GcnFaultError as error:
        fault, kind, missed = str(error), error.kind, watch.missed(error)
    except _LateError:
        fault, kind = watch.place(), "limit"
    except GcnError as error:
        raise CannotRunError(f"{run.kernel}: {error}") from error
    return KernelResult(
        addresses,
        tuple(memory.read(address, len(data)) for address, data in zip(addresses, run.buffers, strict=True)),
        {name: (before[name], memory.read(*place)) for name, place in loaded.variables.items()},
        memory.read(maps, run.probed.memory.size) if run.probed is not None else b"",
        watch.uses(),
        fault,
        kind,
        missed,
    )


def _packed(run: KernelRun, kernel: LoadedKernel, addresses: tuple[int, ...], maps: int) -> bytes:
    """Return the arguments as the kernel reads them, with those that ROCm's runtime adds.

    addresses: of the buffers. maps: address of the maps' memory.
    """
    packed = bytearray(kernel.descriptor.kernarg)
    places = [argument.offset for argument in kernel.arguments if not argument.kind.startswith("hidden_")]
    # A twin has the probe block after them.
    for place, value in zip(places, run.arguments, strict=run.probed is None):
        packed[place : place + len(value)] = value
    for (argument, at), number in run.pointers.items():
        begin = places[argument] + at
        packed[begin : begin + _POINTER] = addresses[number].to_bytes(_POINTER, "little")
    for offset, value in kernel.hidden(run.grid, run.block).items():
        packed[offset : offset + len(value)] = value
    # Others are 0: addresses of what there is none of here, such as a queue, a heap and the buffer of printf.
    own = {
        "hidden_dynamic_lds_size": run.shared, "hidden_shared_base": SHARED_APERTURE >> 32,
        "hidden_private_base": PRIVATE_APERTURE >> 32,
    }  # fmt: skip
    for row in kernel.arguments:
        if row.kind in own:
            packed[row.offset : row.offset + row.size] = own[row.kind].to_bytes(row.size, "little")
    if run.probed is not None:
        block = run.probed.memory.probe_block(maps, run.probed.block_size)
        packed[run.probed.block : run.probed.block + len(block)] = block
    return bytes(packed)


class _Watch:
    """Notes which instructions access which buffers, and ends a run whose time is over."""

    def __init__(
        self, addresses: tuple[int, ...], sizes: list[int], loaded: LoadedObject, kernel: LoadedKernel,
        seconds: float | None,
    ) -> None:
        """addresses, sizes: of the buffers, in ascending order. seconds: from now, None for any time."""
        self._begins = np.array(addresses, np.int64) - BASE
        self._ends = self._begins + np.array(sizes, np.int64)
        self._instructions = loaded.program(kernel.descriptor.lanes).instructions
        self._found: defaultdict[int, set[tuple[int, Use]]] = defaultdict(set)
        self._end = None if seconds is None else time.monotonic() + seconds
        self._left = _CHECKED_EVERY
        self._place = 0
        self._watcher: Callable[..., None] | None = self._watch if addresses else None

    def observe(self, wave: Wave, place: int) -> None:
        """Note the instruction that a wave is about to execute."""
        wave.watcher = self._watcher
        self._place = place
        if self._end is not None:
            self._left -= 1
            if not self._left:
                self._left = _CHECKED_EVERY
                if time.monotonic() > self._end:
                    raise _LateError

    def _watch(self, wave: Wave, what: str, lanes: Any, memory: Array, places: Array, size: int) -> None:
        """Note an access, if it is to a buffer."""
        if memory is not wave.memory.bytes or not np.size(places):
            return
        numbers = np.searchsorted(self._begins, places, "right") - 1
        for number in np.unique(numbers).tolist():
            if number >= 0 and bool((places[numbers == number] < self._ends[number]).any()):
                self._found[number].add((self._instructions[self._place].address, _KINDS[what]))

    def uses(self) -> dict[int, frozenset[tuple[int, Use]]]:
        """Return what was noted, by the number of the buffer."""
        return {number: frozenset(found) for number, found in self._found.items()}

    def place(self) -> str:
        """Return where the last wave was: the address in the code, and the instruction."""
        row = self._instructions[self._place]
        return f"{row.address:#x}: {row.text}"

    @staticmethod
    def missed(error: GcnFaultError) -> int | None:
        """Return the address of an access to memory that lies in no buffer, None for another fault."""
        _, found, rest = str(error).partition(" bytes at 0x")
        digits = rest.split(" ", 1)[0] if found else ""
        return int(digits, 16) if error.kind == "memory" and digits else None
