"""The twins of a file's kernels as text, before anything is assembled: which sites probes have, and what stands there.

What has the last word is not asked here: ``ptxas``, and the comparison of a twin's arithmetic with the original's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from neutrino.abi.reasons import Reason
from neutrino.ahead.relocatable import RELOCATABLE_SECTION, find_linked_source, is_linked, program
from neutrino.ahead.sources import EMBEDDED_DEVICE, Listed, Plan, Target, make_plan
from neutrino.assemble.emit import Emit
from neutrino.cache.entry import KernelEntry
from neutrino.device.kind import DeviceKind
from neutrino.device.source import Device, Source, find_source, picked_image
from neutrino.errors import PtxError
from neutrino.fatbin import Container, ImageKind, demangle, kernel_names
from neutrino.fatbin.ptxscan import ptx_entries
from neutrino.patch.image import make_twins
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.selection import Selection
from neutrino.ptx.instrument.module_twins import probe_module
from neutrino.ptx.instrument.program import probe_program
from neutrino.ptx.instrument.twin import SkippedKernel, TwinKernel, TwinModule
from neutrino.ptx.text.module import Module, parse
from neutrino.sass.arithmetic import FIRST_ARCHITECTURE
from neutrino.toolchain.choice import find_assembler_for
from neutrino.toolchain.releases import LATEST_PTX, release_of_ptx


@dataclass(frozen=True)
class Preview:
    """A kernel of one image: its twin's text, or why there is none.

    container, image: indices as ``neutrino-extract`` shows them; of the image that the driver picks. arch: what its
    code is for. lines: of the PTX, from 1, where the kernel and each function with a copy for it begin, by their names.
    source: what the twin was made from; None of code that the device linker put together.
    """

    name: str
    container: int
    image: int
    arch: str
    twin: TwinKernel | None
    reason: Reason = Reason.PROBED
    detail: str = ""
    lines: Mapping[str, int] = field(default_factory=dict)
    source: Source | None = None


def default_architecture(containers: Sequence[Container]) -> str:
    """The architecture of which most of a file's images have PTX, of several the highest.

    For a file without any the highest of its machine code; for one without either the embedded device's.
    """
    archs = make_plan(containers, (), DeviceKind.GPU, Emit.SASS).archs
    units = [container for container in containers if container.section == RELOCATABLE_SECTION]
    ranked = [(sum(_has_text(container, units, arch) for container in containers), place, arch)
              for place, arch in enumerate(archs)]  # fmt: skip
    return max(ranked)[2] if ranked else EMBEDDED_DEVICE


def _has_text(container: Container, units: Sequence[Container], arch: str) -> bool:
    picked = picked_image(container, arch)
    if picked is None:
        return False
    beside = list(container.images)
    if is_linked(container, units):
        beside += [image for unit in units for image in unit.images]
    return any(image.kind is ImageKind.PTX and (image is picked or image.arch == picked.arch) for image in beside)


def preview(
    containers: Sequence[Container], arch: str, probes: ProbeSet, selection: Selection
) -> Iterator[Preview]:
    """The selected kernels of a file as they run on devices of an architecture (``sm_90``), in the file's order.

    Of containers with the same bytes the first stands for all. Raises FormatError for damaged images.
    """
    plan = make_plan(containers, (arch,), DeviceKind.GPU, Emit.SASS)
    yield from preview_plan(plan, containers, probes, selection)


def preview_plan(
    plan: Plan, containers: Sequence[Container], probes: ProbeSet, selection: Selection
) -> Iterator[Preview]:
    """As ``preview``, of what is planned already."""
    units = [container for container in containers if container.section == RELOCATABLE_SECTION]
    works: list[Target | Listed] = sorted([*plan.targets, *plan.listed], key=lambda work: work.container)
    for work in works:
        container = containers[work.container]
        if isinstance(work, Listed):
            image = container.images[work.image]
            for name in kernel_names(image):
                if _selects(selection, name):
                    yield Preview(name, work.container, work.image, image.arch, None, work.reason, work.detail)
        elif work.linked:
            yield from _of_linked(containers, units, work, probes, selection)
        else:
            yield from _of_plain(container, work, probes, selection)


def assemble(kernel: Preview, probes: ProbeSet) -> KernelEntry | None:
    """A kernel's twin assembled and held against its original, with registers in its manifest; None where that is not
    possible for it alone: without a twin, and of device-linked code.

    Raises ToolMissingError without ptxas, ToolError, OSError.
    """
    if kernel.twin is None or kernel.source is None:
        return None
    machine = kernel.source.machine
    release = machine.toolkit if machine else release_of_ptx(kernel.twin.version)
    assembler = find_assembler_for(release, kernel.source.arch)
    alone = Selection((f"/^{re.escape(kernel.name)}$/",))
    twins = make_twins(kernel.source, probes, selection=alone, assembler=assembler)
    return next((entry for entry in twins.kernels if entry.name == kernel.name), None)


def _selects(selection: Selection, name: str) -> bool:
    return selection.selects(name, demangle(name))


def _of_plain(container: Container, target: Target, probes: ProbeSet, selection: Selection) -> Iterator[Preview]:
    source = find_source(container, target.arch)
    if source.machine is not None:
        names = list(source.machine.kernels)
    else:
        names = list(ptx_entries(source.text.encode("latin-1"))) if source.text is not None else []
    names = [name for name in names if _selects(selection, name)]
    image = source.image or 0
    refused = _refused(source)
    if refused is not None:
        for name in names:
            yield Preview(name, target.container, image, source.arch, None, *refused)
        return
    module = parse(source.text or "")
    found = _twins(module, names, probes)
    for name in names:
        made = found.get(name)
        if isinstance(made, TwinKernel):
            lines = _lines_of(made, module)
            yield Preview(name, target.container, image, source.arch, made, lines=lines, source=source)
        elif made is not None:
            yield Preview(name, target.container, image, source.arch, None, made.reason, made.detail)


def _refused(source: Source) -> tuple[Reason, str] | None:
    """Why none of a source's kernels can have a twin."""
    device = Device.parse(source.arch)
    if device is None or device.number < FIRST_ARCHITECTURE:
        return Reason.UNSUPPORTED, f"{source.arch}: machine code is understood from sm_{FIRST_ARCHITECTURE} on"
    if source.text is None or source.reason is not Reason.PROBED:
        return source.reason, source.detail
    return None


def _twins(module: Module, names: Sequence[str], probes: ProbeSet) -> dict[str, TwinKernel | SkippedKernel]:
    here = {entry.name for entry in module.entries}
    found: dict[str, TwinKernel | SkippedKernel] = {
        name: SkippedKernel(name, Reason.NO_PTX, "the PTX lacks this kernel") for name in names if name not in here
    }
    try:
        wanted = [name for name in names if name in here]
        twins = probe_module(module, probes, names=wanted, version=LATEST_PTX, demangle=demangle)
    except PtxError as error:
        return found | {name: SkippedKernel(name, Reason.UNSUPPORTED, str(error)) for name in names if name in here}
    return found | _by_name(twins)


def _by_name(twins: TwinModule) -> dict[str, TwinKernel | SkippedKernel]:
    return {twin.name: twin for twin in twins.kernels} | {skip.name: skip for skip in twins.skipped}


def _lines_of(twin: TwinKernel, module: Module, others: Sequence[Module] = ()) -> dict[str, int]:
    """Where the kernel and the functions with copies begin. others: the linked modules, which copies may be of."""
    places = [(module, twin.name, twin.statement), *((module, copy.name, copy.statement) for copy in twin.copies)]
    for number, copies in twin.copies_elsewhere.items():
        places += [(others[number], copy.name, copy.statement) for copy in copies]
    return {name: home.line(statement.start) for home, name, statement in places}


def _of_linked(
    containers: Sequence[Container],
    units: Sequence[Container],
    target: Target,
    probes: ProbeSet,
    selection: Selection,
) -> Iterator[Preview]:
    """Of device-linked code, whose kernels are in PTX of several units."""
    container = containers[target.container]
    source = find_linked_source(container, units, target.arch)
    if source.machine is None:
        return
    picked = picked_image(container, target.arch)
    image = picked.index if picked else 0
    names = [name for name in source.machine.kernels if _selects(selection, name)]
    found: dict[str, TwinKernel | SkippedKernel] = {
        name: SkippedKernel(name, *reason) for name, reason in (source.refused or {}).items()
    }
    lines: dict[str, dict[str, int]] = {}
    device = Device.parse(source.arch)
    chosen = {name: unit for name, unit in (source.kernels or {}).items() if name in names}
    if device is None or device.number < FIRST_ARCHITECTURE:
        detail = f"{source.arch}: machine code is understood from sm_{FIRST_ARCHITECTURE} on"
        found |= {name: SkippedKernel(name, Reason.UNSUPPORTED, detail) for name in names}
    elif chosen:
        try:
            linked = probe_program(program(source), probes, kernels=chosen, version=LATEST_PTX, demangle=demangle)
            modules = [twins.module for twins in linked.modules]
            for twins in linked.modules:
                lines |= {twin.name: _lines_of(twin, twins.module, modules) for twin in twins.kernels}
            found |= {twin.name: twin for twin in linked.kernels} | {skip.name: skip for skip in linked.skipped}
        except PtxError as error:
            found |= {name: SkippedKernel(name, Reason.UNSUPPORTED, str(error)) for name in chosen}
    for name in names:
        made = found.get(name)
        if isinstance(made, TwinKernel):
            yield Preview(name, target.container, image, source.arch, made, lines=lines[name])
        elif made is not None:
            yield Preview(name, target.container, image, source.arch, None, made.reason, made.detail)
