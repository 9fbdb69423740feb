"""The twins of a file's kernels as text, before anything is assembled: which sites probes have, and what stands there.

What has the last word is not asked here: ``ptxas``, and the comparison of a twin's arithmetic with the original's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from neutrino.abi.reasons import Reason
from neutrino.ahead.sources import EMBEDDED_DEVICE, Listed, Plan, Target, make_plan
from neutrino.assemble.emit import Emit
from neutrino.backend.linked_twin import LinkedPlan, LinkedTwins
from neutrino.backend.ptx_twin import PtxPlan, PtxTwins
from neutrino.cache.entry import KernelEntry
from neutrino.demangle import demangle
from neutrino.device.kind import DeviceKind
from neutrino.device.linked_source import RELOCATABLE_SECTION, find_linked_source, is_linked
from neutrino.device.source import Source, find_source, picked_image
from neutrino.fatbin import Container, ImageKind, kernel_names
from neutrino.patch.image import make_twins
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.selection import Selection
from neutrino.ptx.instrument.twin import TwinKernel
from neutrino.ptx.text.module import Module
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
    backend = PtxTwins(source, probes, LATEST_PTX)
    names = [name for name in backend.kernels if _selects(selection, name)]
    image = source.image or 0
    plan = PtxPlan(None, dict.fromkeys(names, backend.refusal)) if backend.refusal else backend.plan(names)
    twins = {twin.name: twin for twin in plan.twins}
    refused = plan.refused
    for name in names:
        if plan.module is not None and name in twins:
            lines = _lines_of(twins[name], plan.module.module)
            yield Preview(name, target.container, image, source.arch, twins[name], lines=lines, source=source)
        elif name in refused:
            yield Preview(name, target.container, image, source.arch, None, *refused[name])


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
    picked = picked_image(container, target.arch)
    image = picked.index if picked else 0
    backend = LinkedTwins(source, probes, LATEST_PTX)
    names = [name for name in backend.kernels if _selects(selection, name)]
    plan = LinkedPlan(None, dict.fromkeys(names, backend.refusal)) if backend.refusal else backend.plan(names)
    homes = plan.program.modules if plan.program is not None else ()
    modules = [home.module for home in homes]
    twins = {twin.name: (twin, home.module) for home in homes for twin in home.kernels}
    refused = plan.refused
    for name in names:
        if name in twins:
            twin, module = twins[name]
            lines = _lines_of(twin, module, modules)
            yield Preview(name, target.container, image, source.arch, twin, lines=lines)
        elif name in refused:
            yield Preview(name, target.container, image, source.arch, None, *refused[name])
