"""A kernel of AMD's with each probe: run beside its original in the interpreter, and judged by ``trace_models``."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neutrino.abi.reasons import Reason
from neutrino.backend.gcn_source import CodeObjectSource
from neutrino.backend.gcn_target import GcnTarget
from neutrino.backend.gcn_twin import GcnTwins
from neutrino.backend.gcn_values import GcnKernel, GcnTwin
from neutrino.backend.launch_memory import LaunchMemory
from neutrino.emulator.gcn.errors import GcnError
from neutrino.fatbin.code_object_functions import code_object_functions
from neutrino.gcn.llvm import find_llvm
from neutrino.gcn.snippets.meaning import typed
from neutrino.maps.declaration import Layout
from neutrino.maps.regions import region_layout
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.resources import shipped_probes
from neutrino.tracing.views import Frames, Geometry, MapView, view_maps
from neutrino.twins.able import able_probes
from neutrino.verification import check_probes
from tests.gcn.executed import Ran, run
from tests.gcn.trace_models import MODELS, Launch, Model, facts

_LOG_UNITS = 1 << 18
"""Of memory of each log, enough for all records."""
_SEED, _POISON, _LIMIT = 3, 4, 1_000_000
"""The order of waves, what registers hold that nothing wrote, and how many instructions a wave may execute."""
Extents = tuple[int, int, int]


@dataclass(frozen=True)
class Work:
    """A launch. racing: whether what waves execute depends on the order in which they run, which is then one after the
    other for twins, too."""

    grid: Extents
    block: Extents
    arguments: tuple[Any, ...]
    racing: bool = False


@dataclass(frozen=True)
class Outcome:
    """What became of a kernel with a probe. state: ``equal``, ``facts`` where some fields are bounded and not known,
    ``none`` (no site), ``refused`` or ``wrong``. why: of the last two. sites, records: how many."""

    state: str
    why: str = ""
    sites: int = 0
    records: int = 0


@dataclass(frozen=True)
class Written:
    """A twin. probe: the name of its probe. image: the code object with it."""

    probe: str
    image: bytes
    twin: GcnTwin
    kernel: GcnKernel


@functools.cache
def portable_probes() -> dict[str, ProbeSet]:
    """The shipped probes that load for AMD's GPUs, by name."""
    found = {}
    for name in shipped_probes("hip"):
        checked = check_probes([name], platform="hip")
        if checked.is_valid and checked.probes is not None:
            found[name] = checked.probes
    return found


class Judge:
    """A kernel of a code object, with what its original has executed."""

    def __init__(self, data: bytes, name: str, work: Work) -> None:
        """Run the original. name: of the kernel."""
        functions = code_object_functions(data, name)
        self._source = CodeObjectSource(0, functions.target, data)
        self._name, self._work = name, work
        self._llvm = find_llvm(self._source.processor)
        self.original = run(
            data, name, self._llvm.disassemble, work.grid, work.block, work.arguments, notes=True
        )

    def judge(self, probe: str, probes: ProbeSet) -> Outcome:
        """Write the kernel's twin with a probe, run it and compare. probe: its name, by which its model is found."""
        written = self.write(probe, probes)
        return written if isinstance(written, Outcome) else self.run(written)

    def write(self, probe: str, probes: ProbeSet) -> Written | Outcome:
        """Write the twin; what became of the kernel if it has none."""
        able, left_out = able_probes(GcnTarget(), probes)
        backend = GcnTwins(self._source, typed(able), left_out)
        plan = backend.plan([self._name])
        code = backend.write(plan)
        if code.twins:
            return Written(probe, code.image, code.twins[0], plan.kernels[0])
        ((reason, detail),) = {**plan.refused, **code.refused}.values()
        if reason is not Reason.NO_SITE:
            return Outcome("refused", detail)
        missed = chosen(MODELS.get(probe), self.original)
        return Outcome("wrong", f"no site, but {_first(missed)}") if missed else Outcome("none")

    def run(self, written: Written, disassemble: Any = None) -> Outcome:
        """Run a twin and compare. disassemble: in place of LLVM's."""
        work, twin = self._work, written.twin
        units = _LOG_UNITS if any(entry.kind.layout is Layout.CHUNKS for entry in twin.maps) else 0
        memory = LaunchMemory(twin.maps, work.grid, work.block, twin.lanes, units)

        def block_of(address: int) -> bytes:
            return memory.probe_block(address, twin.block_size)

        try:
            ran = run(
                written.image, twin.twin_name, disassemble or self._llvm.disassemble, work.grid, work.block,
                work.arguments, extra=(memory.size, twin.block_offset, block_of),
                seed=None if work.racing else _SEED, poison=_POISON, checks=True, limit=_LIMIT,
            )  # fmt: skip
            views = views_of(twin, memory, ran.memory)
        except (AssertionError, GcnError) as error:
            return Outcome("wrong", str(error))
        if ran.buffers != self.original.buffers:
            return Outcome("wrong", "other results")
        launch = Launch(
            self.original, self._source.processor, work.grid, memory.warps_per_block, numbers_of(written.kernel),
            ran.ticks, left_out_of(written.kernel, twin),
        )  # fmt: skip
        wrong = faults(written.probe, launch, views, twin)
        if wrong:
            return Outcome("wrong", "; ".join(wrong[:2]))
        model = MODELS.get(written.probe)
        sites = sum(site.number is not None for site in twin.sites)
        records = sum(view.record_count for view in views.values())
        return Outcome("equal" if model is not None and not model.clocks else "facts", "", sites, records)


def numbers_of(kernel: GcnKernel) -> dict[int, int]:
    """The numbers of a kernel's sites, by the address of the instruction."""
    addresses = [one.function.address + offset for one in kernel.functions for offset in one.at]
    return {address: number for number, address in enumerate(addresses)}


def left_out_of(kernel: GcnKernel, twin: GcnTwin) -> frozenset[int]:
    """The addresses of instructions that a twin has a reason not to probe."""
    lines = {row.line for row in twin.left_out}
    return frozenset(
        one.function.address + offset for one in kernel.functions if lines
        for offset, line in one.text().places.items() if line in lines
    )  # fmt: skip


def faults(probe: str, launch: Launch, views: Mapping[str, MapView], twin: GcnTwin) -> list[str]:
    """What is wrong with what a twin has recorded. probe: the name of its probe."""
    model = MODELS.get(probe)
    wrong = list(facts(launch, views, twin.maps))
    if model is not None:
        wrong += _other_sites(model, launch)
        wrong += model.judge(launch, views)
    return wrong


def chosen(model: Model | None, original: Ran) -> dict[int, str]:
    """The executed instructions at which a probe should be, by address."""
    if model is None or model.matches is None:
        return {}
    return {
        event.instruction.address: event.instruction.text for _, event in original.events()
        if model.matches(event, original)
    }  # fmt: skip


def _other_sites(model: Model, launch: Launch) -> list[str]:
    """Where a probe is and should not be, or the other way round, of what was executed."""
    if model.matches is None:
        return []
    mine = chosen(model, launch.ran)
    executed = {event.instruction.address: event.instruction.text for _, event in launch.ran.events()}
    missed = {at: text for at, text in mine.items() if at not in launch.numbers}
    added = {at: executed[at] for at in launch.numbers if at in executed and at not in mine}
    return [f"no site at {_first(missed)}"] * bool(missed) + [f"a site at {_first(added)}"] * bool(added)


def _first(texts: Mapping[int, str]) -> str:
    return ", ".join(list(dict.fromkeys(texts.values()))[:2])


def views_of(twin: GcnTwin, launch: LaunchMemory, memory: bytes) -> Mapping[str, MapView]:
    """The maps of a launch."""
    units, frame = launch.frame(memory)
    geometry = Geometry(launch.blocks, int(np.prod(launch.block)), twin.lanes, units)
    regions, size = region_layout(
        twin.maps, launch.blocks, launch.warps_per_block, twin.lanes, units, in_frame=True
    )  # fmt: skip
    data = np.frombuffer(frame, np.uint8)
    views = view_maps(data, Frames(geometry, 0, size, 1), zip(twin.maps, regions, strict=True))
    return {name: view.of(0) for name, view in views.items()}


def kernel_names(data: bytes) -> Sequence[str]:
    """The kernels of a code object."""
    return [function.name for function in code_object_functions(data, "").functions if function.is_kernel]
