"""One kernel under several schedules: its original's results, what the tracer saw, and what its twins did."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.emulator.device import Device, Function
from neutrino.emulator.geometry import WARP
from neutrino.emulator.tracer import TracedStatement, Tracer
from neutrino.errors import DeviceFaultError, PtxRefusedError
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.ptx.instrument.programs import probe_module
from neutrino.ptx.instrument.twin import TwinKernel, TwinModule
from neutrino.ptx.text.module import parse
from neutrino.tracing.views import Geometry, MapView
from neutrino.twins.values import SkippedKernel
from tests.oracle.probes import Probe, probe_set
from tests.oracle.simulation import Simulation, matches, simulate
from tests.oracle.twin_launch import Launch, LoadedTwin, Shape, is_in_graph

FIXED = None
"""The fixed schedule, as a seed."""
SCHEDULES = (FIXED, 1, 2)
_MEMORY = 96 << 20
_LOG_UNITS = 1 << 15
"""More than any kernel needs, unless a bench is given another number."""
"""Few records a slot, so that some are dropped."""
_STEPS = 200_000
"""Many times what any kernel of the oracle needs, so that one that hangs is soon given up."""


@dataclass(frozen=True)
class Kernel:
    """A kernel to judge with. arguments: arrays go by pointer, bytes are structures.

    stable: what each thread does is the same under every schedule; where not, records are compared with a trace of
    the twin's own run. ordered: results are the same under every schedule; where not, the same words in any order.
    """

    name: str
    text: str
    entry: str
    grid: Shape
    block: Shape
    arguments: tuple[Any, ...]
    shared: int = 0
    constants: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    stable: bool = True
    ordered: bool = True

    @property
    def geometry(self) -> Geometry:
        return Geometry(prod(self.grid), prod(self.block), WARP)


@dataclass(frozen=True)
class Problem:
    """What the oracle has against a twin. kind: what noticed it."""

    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


class _Place:
    """A device with the original loaded and its arguments in memory."""

    def __init__(self, kernel: Kernel, seed: int | None, log_units: int, log_first: int) -> None:
        self.kernel = kernel
        self._log_first = log_first
        self._log_units = log_units
        self.device = Device(memory=_MEMORY, seed=seed, step_limit=_STEPS)
        self.module = self.device.load(kernel.text)
        for name, values in kernel.constants.items():
            self.device.write(self.module.variables[name][0], np.ascontiguousarray(values))
        self._variables = {
            (address, size): self.device.read(address, size) for address, size in self.module.variables.values() if size
        }
        self._buffers = [
            (self.device.allocate(max(value.nbytes, 1)), np.ascontiguousarray(value))
            for value in kernel.arguments
            if isinstance(value, np.ndarray)
        ]

    @property
    def function(self) -> Function:
        return self.module.functions[self.kernel.entry]

    def launch(self) -> Launch:
        """Arguments and variables as at the beginning, and the launch that reads them."""
        for (address, _), content in self._variables.items():
            self.device.write(address, content)
        for address, values in self._buffers:
            self.device.write(address, values)
        kernel = self.kernel
        return Launch(
            kernel.grid, kernel.block, self._parameters(), kernel.shared, self._log_units, self._log_first
        )

    def _parameters(self) -> bytes:
        packed = bytearray(self.function.parameter_size)
        addresses = iter(address for address, _ in self._buffers)
        for parameter, value in zip(self.function.parameters, self.kernel.arguments, strict=True):
            if isinstance(value, np.ndarray):
                content = struct.pack("<Q", next(addresses))
            else:
                content = bytes(value) if isinstance(value, bytes) else value.tobytes()
            packed[parameter.offset : parameter.offset + len(content)] = content
        return bytes(packed)

    def results(self) -> tuple[bytes, ...]:
        """All that the program can see: its arrays, its variables."""
        arrays = [self.device.read(address, values.nbytes) for address, values in self._buffers]
        return (*arrays, *(self.device.read(address, size) for address, size in self._variables))


class Bench:
    """A kernel with its devices. wanted: tracepoints whose executions are kept for the simulation.

    log_units: memory of each log in a launch; log_first: what of it is each warp's own.
    """

    def __init__(
        self,
        kernel: Kernel,
        probes: Iterable[Probe],
        schedules: Sequence[int | None] = SCHEDULES,
        log_units: int = _LOG_UNITS,
        log_first: int = 0,
    ) -> None:
        self.kernel = kernel
        self._log_first = log_first
        self._log_units = log_units
        self.schedules = tuple(schedules)
        self._places: dict[int | None, _Place] = {}
        self._simulations: dict[str, Simulation] = {}
        self._positions = frozenset[str]().union(*(probe.positions for probe in probes))
        self._registers = any(probe.registers for probe in probes)

    def place(self, seed: int | None) -> _Place:
        if seed not in self._places:
            self._places[seed] = _Place(self.kernel, seed, self._log_units, self._log_first)
        return self._places[seed]

    @cached_property
    def tracer(self) -> Tracer:
        """What the original did under the fixed schedule."""
        return self._trace(FIXED)[0]

    def _trace(self, seed: int | None) -> tuple[Tracer, tuple[bytes, ...]]:
        place = self.place(seed)
        launch = place.launch()
        tracer = Tracer(self._is_wanted, registers=self._registers)
        place.device.launch(
            place.function, launch.grid, launch.block, launch.parameters, shared=launch.shared, observer=tracer
        )
        return tracer, place.results()

    def _is_wanted(self, statement: TracedStatement) -> bool:
        return any(matches(position, statement.opcode) for position in self._positions if position != "kernel")

    @cached_property
    def _results(self) -> dict[int | None, tuple[bytes, ...]]:
        return {}

    def results(self, seed: int | None) -> tuple[bytes, ...]:
        """The original's results under a schedule, unobserved."""
        if seed not in self._results:
            place = self.place(seed)
            launch = place.launch()
            place.device.launch(place.function, launch.grid, launch.block, launch.parameters, shared=launch.shared)
            self._results[seed] = place.results()
        return self._results[seed]

    def simulation(self, probe: Probe) -> Simulation:
        """What a probe must have recorded."""
        if probe.name not in self._simulations:
            self._simulations[probe.name] = simulate(probe.sides, self.tracer.executions, self.kernel.geometry)
        return self._simulations[probe.name]

    def twins(self, probe: Probe) -> TwinModule:
        return make_twins(self.kernel, probe_set(probe))

    def judge(
        self, probe: Probe, twins: TwinModule, text: str | None = None, schedules: Sequence[int | None] | None = None
    ) -> list[Problem]:
        """Run a twin under every schedule, or those. text: in place of the twins' own."""
        (twin,) = twins.kernels
        problems: list[Problem] = []
        for seed in self.schedules if schedules is None else schedules:
            problems += self.judge_run(probe, twin, text or twins.render(), seed)
        return problems

    def judge_run(self, probe: Probe, twin: TwinKernel, text: str, seed: int | None) -> list[Problem]:
        """What is wrong with one run of a twin."""
        own = None if self.kernel.stable else Tracer(_is_own(self._is_wanted), registers=probe.registers)
        try:
            views, results = self.run(probe, twin, text, seed, own)
        except DeviceFaultError as error:
            return [Problem("fault", str(error))]
        except (PtxRefusedError, ValueError) as error:
            return [Problem("refused", str(error))]
        problems = [
            Problem("results", f"array or variable {number} differs under schedule {seed}")
            for number, (one, other) in enumerate(zip(results, self.results(FIXED), strict=True))
            if self.comparable(one) != self.comparable(other)
        ]
        if own is None:
            simulation = self.simulation(probe)
        else:
            simulation = simulate(probe.sides, own.executions, self.kernel.geometry)
        return problems + [Problem("records", str(difference)) for difference in probe.judge(views, simulation)]

    def comparable(self, content: bytes) -> bytes:
        return (
            content
            if self.kernel.ordered
            else np.sort(np.frombuffer(content, np.uint8 if len(content) % 4 else np.uint32)).tobytes()
        )

    def run(
        self, probe: Probe, twin: TwinKernel, text: str, seed: int | None, observer: Tracer | None = None
    ) -> tuple[dict[str, MapView], tuple[bytes, ...]]:
        """One launch of a twin, under every other schedule as in a graph: its maps, and the program's results."""
        place = self.place(seed)
        loaded = LoadedTwin(twin, place.device.load(text), place.module.variables)
        in_graph = is_in_graph(twin) ^ bool(seed and seed % 2)
        views = loaded.launch(place.device, place.launch(), observer, in_graph=in_graph)
        return views, place.results()


def _is_own(wanted: Callable[[TracedStatement], bool]) -> Callable[[TracedStatement], bool]:
    """The program's own statements in a twin's text: inserted ones name a register or label of the rewriter's."""
    return lambda statement: "neutrino" not in statement.text and wanted(statement)


def make_twins(kernel: Kernel, probes: ProbeSet) -> TwinModule:
    """The twin of one kernel, or the reason why it has none."""
    return probe_module(parse(kernel.text), probes, names=[kernel.entry])


def skip_of(twins: TwinModule) -> SkippedKernel | None:
    """Why the one kernel got no twin; None if it has one."""
    return twins.skipped[0] if twins.skipped else None
