"""Kernels of real libraries and their twins, run by the interpreter with parameters that mean nothing.

    python -m tests.sass_machine.real LIBRARY [--every N] [--most N] [--seconds N] [--probes PROBE…] [--match WORD…]

Each kernel's parameters are numbers that are both addresses and small counts; an address outside of the probes' memory
is folded into a buffer of random bytes, so nothing faults. What a kernel then computes means nothing, but it ends, or
is given up; and its twins must leave the same memory, use no register too early, and record what was executed:
``block_sched`` a record for each warp, within its cycles, ``gmem_bytes`` the bytes, ``dmat`` each access.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from neutrino.emulator.device import Device
from neutrino.errors import MachineCodeError, NeutrinoError
from neutrino.fatbin import ImageKind, read_file
from neutrino.sass.cubin import cubin_kernel_names, read_cubin
from neutrino.sass.twin.cutting import Cutter
from neutrino.tracing.views import Geometry
from tests.oracle.twin_launch import Regions
from tests.sass_machine.executed import judge_records
from tests.sass_machine.launching import DeviceMemory, code_of
from tests.sass_machine.machine import (
    Launch,
    MachineError,
    MemoryFaultError,
    Program,
    UnknownMachineCodeError,
    program_of,
)

PROBES = ("block_sched", "gmem_bytes", "dmat")
_FOLDED = 1 << 20
_STEPS = 4_000
_GRID, _BLOCK = (2, 1, 1), (64, 1, 1)


class FoldedMemory(DeviceMemory):
    """The memory of a device for the probes, and for all other addresses a buffer of random bytes."""

    def __init__(self, device: Device) -> None:
        super().__init__(device.heap)
        heap = device.heap.buffer
        self._heap_size = len(heap)
        self.bytes = np.concatenate([heap, np.random.default_rng(5).integers(0, 256, _FOLDED).astype(np.uint8)])
        # Numbers in which many loops end: few bits.
        self.bytes[self._heap_size :].view(np.uint32)[:] &= np.uint32(0x4000001F)
        self._words, self._halves = self.bytes.view(np.uint32), self.bytes.view(np.uint16)

    def _offsets(self, addresses: NDArray[np.uint64], size: int, what: str) -> NDArray[np.int64]:
        inside = (addresses >= np.uint64(self.base)) & (addresses < np.uint64(self.base + self._heap_size))
        places = (addresses % np.uint64(_FOLDED)).astype(np.int64) // size * size + self._heap_size
        if inside.any():
            places[inside] = super()._offsets(addresses[inside], size, what)
        return places

    def folded(self) -> bytes:
        """What kernels left."""
        return self.bytes[self._heap_size :].tobytes()


def parameters_of(size: int, seed: int) -> bytes:
    """Addresses outside of the device's, whose lower and upper halves are small numbers."""
    chosen = random.Random(seed)
    words = [(chosen.randrange(1, 4) << 32 | chosen.choice((16, 64, 256, 1024, 4096))) for _ in range(-(-size // 8))]
    return b"".join(word.to_bytes(8, "little") for word in words)[:size]


def judge(
    cut: bytes, kernel: str, seed: int, tally: Counter[str], probes: Sequence[str] = PROBES
) -> list[str]:  # fmt: skip
    """What is wrong with a kernel's twins. tally: gets what was run. probes: of the twins."""
    old = read_cubin(cut, kernel).kernels[kernel]
    program = _with_addresses(program_of(cut, kernel))
    parameters = parameters_of(old.parameter_size, seed)

    def run(ready: Program, packed: bytes, device: Device) -> tuple[Launch, FoldedMemory]:
        memory = FoldedMemory(device)
        steps = _STEPS * (1 if ready is program else 20)
        launch = Launch(ready, _GRID, _BLOCK, packed, memory, shared=16384, steps=steps)
        launch.run()
        return launch, memory

    plain, memory = run(program, parameters, Device(memory=1 << 12))
    tally["kernels"] += 1
    tally["instructions"] += plain.executed
    wrong = []
    for probe in probes:
        code = code_of(probe)
        try:
            twin = code.twin_of(cut, kernel, "real")
        except MachineCodeError:
            continue
        device = Device(memory=8 << 20)
        regions = Regions(device, code.maps, Geometry(2, 64, 32, log_units=1 << 12), in_graph=bool(seed & 1))
        ready = _with_addresses(program_of(twin.data, kernel, old))
        packed = parameters.ljust(twin.parameter_offset, b"\0") + regions.block(())
        try:
            launch, after = run(ready, packed, device)
        except (MachineError, MemoryFaultError, UnknownMachineCodeError, NeutrinoError, Exception) as error:  # noqa: BLE001
            wrong.append(f"{probe}: {type(error).__name__}: {error}")
            continue
        tally[probe] += 1
        tally["sites run"] += sum(place in ready.executed_places for place in twin.accesses.values())
        if after.folded() != memory.folded():
            wrong.append(f"{probe}: other memory")
        device.heap.buffer[:] = after.bytes[: len(device.heap.buffer)]
        views = regions.read()
        wrong += [f"{probe}: {one}" for one in judge_records(probe, plain, launch, views)]
    return wrong


def _with_addresses(program: Program) -> Program:
    """A program with addresses of variables, which the driver would fill in."""
    program.banks[4] = b"".join((4 << 32 | 64 * number).to_bytes(8, "little") for number in range(512))
    return program


def kernels(path: Path, every: int, words: list[str]) -> Iterator[tuple[bytes, str]]:
    """Cubins for sm_90 of a library, and a kernel of each, whose name has one of the words."""
    number = 0
    for container in read_file(path):
        for image in container.images:
            if image.kind is not ImageKind.CUBIN or image.arch != "sm_90":
                continue
            number += 1
            if number % every:
                continue
            names = [
                one for one in cubin_kernel_names(image.data, "cubin") if not words or any(w in one for w in words)
            ]
            if names:
                yield bytes(image.data), random.Random(number).choice(names)


def main(arguments: list[str]) -> int:
    """Run kernels of a library; return the exit status: 1 if anything is wrong with a twin."""
    parser = argparse.ArgumentParser()
    parser.add_argument("library", type=Path)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--most", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=500)
    parser.add_argument("--probes", nargs="+", default=PROBES)
    parser.add_argument("--match", nargs="*", default=[])
    given = parser.parse_args(arguments)
    tally: Counter[str] = Counter()
    status, begin = 0, time.monotonic()
    for number, (cubin, name) in enumerate(kernels(given.library, given.every, given.match)):
        if number >= given.most or time.monotonic() - begin > given.seconds:
            break
        try:
            cut = Cutter(cubin, "real").cut(name)
            wrong = judge(cut, name, number, tally, given.probes)
        except (MachineError, MemoryFaultError, UnknownMachineCodeError, MachineCodeError) as error:
            tally[f"not run: {type(error).__name__}"] += 1
            print(f"  not run: {name[:90]}: {str(error)[:160]}", flush=True)
            continue
        except Exception as error:  # noqa: BLE001
            tally[f"plain: {type(error).__name__}"] += 1
            print(f"PLAIN {name}: {error}", flush=True)
            continue
        status |= bool(wrong)
        print(f"{'WRONG' if wrong else 'ok   '} {name[:90]} {'; '.join(wrong)[:400]}", flush=True)
    print(dict(tally))
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
