"""Launches of kernels and of their twins by the interpreter, in the memory of the embedded device.

So a kernel's PTX and the machine code that ptxas makes of it have the same addresses, and a host's side of twins that
is written once, ``tests.oracle.twin_launch``, serves both.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from neutrino.api import load_probes
from neutrino.backend.sass_probe_code import ProbeCode
from neutrino.emulator.address_space import Window
from neutrino.emulator.device import Device, pack_arguments
from neutrino.emulator.loaded_module import LoadedModule
from neutrino.ptx.instrument.programs import probe_module
from neutrino.ptx.text.module import parse
from neutrino.sass.cubin import read_cubin
from neutrino.sass.twin.cutting import Cutter
from neutrino.sass.twin.probed import ProbedTwin
from neutrino.toolchain.ptxas import Assembler
from neutrino.toolchain.tool_choice import find_assembler
from neutrino.tracing.views import MapView
from tests.kernels.model import Case
from tests.oracle.twin_launch import Launch as HostLaunch
from tests.oracle.twin_launch import LoadedTwin, Regions
from tests.sass_machine.machine import Launch, Program, program_of
from tests.sass_machine.memory import Memory, MemoryFaultError

ARCHITECTURE = "sm_90"


class DeviceMemory(Memory):
    """The memory of an embedded device, with what is allocated there."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self.base = window.base
        self.bytes = window.buffer
        self._words, self._halves = window.buffer.view(np.uint32), window.buffer.view(np.uint16)

    def _offsets(self, addresses: NDArray[np.uint64], size: int, what: str) -> NDArray[np.int64]:
        wrong = ~self._window.valid(addresses, size) | (addresses % np.uint64(size) != 0)
        if wrong.any():
            address = int(addresses[wrong][0])
            raise MemoryFaultError(f"{size} bytes at {address:#x} of {what} memory are not allocated, or not aligned")
        return (addresses - np.uint64(self.base)).astype(np.int64)


@functools.cache
def assembler() -> Assembler:
    """The ptxas of the tests."""
    return find_assembler()


@functools.cache
def cubin_of(path: Path) -> bytes:
    """What ptxas makes of a file."""
    return assembler().assemble(path.read_text(), ARCHITECTURE).cubin


@functools.cache
def code_of(probe: str) -> ProbeCode:
    """A probe's code for machine code."""
    return ProbeCode(load_probes([probe]), ARCHITECTURE, assembler())


@functools.cache
def cut_of(path: Path, kernel: str) -> bytes:
    """A kernel's own cubin. Raises MachineCodeError."""
    return Cutter(cubin_of(path), path.name).cut(kernel)


@functools.cache
def twin_of(path: Path, kernel: str, probe: str) -> ProbedTwin:
    """A kernel's twin in machine code. Raises MachineCodeError."""
    return code_of(probe).twin_of(cut_of(path, kernel), kernel, path.name)


@functools.cache
def plain_program(path: Path, kernel: str) -> Program:
    """A kernel of a file, made ready."""
    return program_of(cubin_of(path), kernel)


@functools.cache
def twin_program(path: Path, kernel: str, probe: str) -> Program:
    """A kernel's twin, made ready. ``ptxas`` has not scheduled what comes after the old code."""
    old = read_cubin(cut_of(path, kernel), kernel).kernels[kernel]
    return program_of(twin_of(path, kernel, probe).data, kernel, old)


@dataclass
class Host:
    """A case's arguments and variables on a device. module: its PTX, loaded there."""

    case: Case
    device: Device = field(default_factory=lambda: Device(memory=32 << 20))

    def __post_init__(self) -> None:
        case = self.case
        self.module: LoadedModule = self.device.load(case.path.read_text())
        self.variables = {name: place for name, place in self.module.variables.items() if place[1]}
        self._kept = {name: self.device.read(*place) for name, place in self.variables.items()}
        self.addresses = {
            place: self.device.allocate(argument.nbytes)
            for place, argument in enumerate(case.arguments) if isinstance(argument, np.ndarray)
        }  # fmt: skip

    def parameters(self) -> bytes:
        """Arguments and variables as in the beginning; the packed parameters."""
        for name, place in self.variables.items():
            self.device.write(place[0], self._kept[name])
        for name, values in self.case.constants.items():
            self.device.write(self.module.variables[name][0], values)
        for place, address in self.addresses.items():
            self.device.write(address, np.asarray(self.case.arguments[place]))
        values = [self.addresses.get(place, argument) for place, argument in enumerate(self.case.arguments)]
        return pack_arguments(self.module.functions[self.case.kernel].parameters, values)

    def results(self) -> dict[int, NDArray]:
        """The arrays as they are."""
        found = {}
        for place, address in self.addresses.items():
            like = np.asarray(self.case.arguments[place])
            found[place] = np.frombuffer(self.device.read(address, like.nbytes), like.dtype).reshape(like.shape)
        return found

    def run_ptx(self) -> dict[int, NDArray]:
        """Run the PTX on the embedded device."""
        case = self.case
        function = self.module.functions[case.kernel]
        self.device.launch(function, case.grid, case.block, self.parameters(), shared=case.shared)
        return self.results()

    def run_machine_code(
        self, program: Program, parameters: bytes | None = None, *, seed: int | None = None, judged: bool = True
    ) -> Launch:
        """Run machine code in the same memory."""
        case = self.case
        packed = self.parameters() if parameters is None else parameters
        memory = DeviceMemory(self.device.heap)
        launch = Launch(
            program, case.grid, case.block, packed, memory, shared=case.shared, seed=seed, judged=judged
        )  # fmt: skip
        self.launched = launch.run()
        return launch

    def _host(self) -> HostLaunch:
        case = self.case
        return HostLaunch(case.grid, case.block, self.parameters(), case.shared)

    def run_twin(
        self, probe: str, *, seed: int | None = None, program: Program | None = None, judged: bool = True,
        in_graph: bool = False,
    ) -> dict[str, MapView]:  # fmt: skip
        """Run the twin in machine code; what its maps hold. program: in place of the twin's. in_graph: as in a graph,
        where its code also adds what a cell says to the maps' addresses."""
        case = self.case
        twin, code = twin_of(case.path, case.kernel, probe), code_of(probe)
        host = self._host()
        regions = Regions(self.device, code.maps, host.geometry, in_graph=in_graph)
        try:
            packed = host.parameters.ljust(twin.parameter_offset, b"\0") + regions.block(())
            self.run_machine_code(
                program or twin_program(case.path, case.kernel, probe), packed, seed=seed, judged=judged
            )
            return regions.read()
        finally:
            regions.free()

    def run_twin_of_ptx(self, probe: str) -> dict[str, MapView]:
        """Run the twin in PTX on the embedded device; what its maps hold."""
        twins = probe_module(parse(self.case.path.read_text()), load_probes([probe]), names=[self.case.kernel])
        if not twins.kernels:
            raise ValueError(f"no twin in PTX: {twins.skipped[0].detail}")
        loaded = LoadedTwin(twins.kernels[0], self.device.load(twins.render()), self.module.variables)
        return loaded.launch(self.device, self._host(), in_graph=False)


TIMES = frozenset({"clock", "start", "elapsed", "cuid", "site"})
"""Fields that differ from machine to machine, or count what another code has."""


def records_of(views: Mapping[str, MapView], without: frozenset[str] = TIMES) -> dict[str, list[tuple]]:
    """What maps hold, in an order that does not depend on who was first, without some fields."""
    found = {}
    for name, view in views.items():
        valid = view.valid()
        kept = [one for one in valid.dtype.names or () if one not in without]
        rows: Sequence[tuple] = [tuple(row) for row in valid[kept].tolist()] if kept else [()] * len(valid)
        found[name] = sorted(rows)
    return found
