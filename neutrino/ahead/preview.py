"""Where probes go in a file's kernels: their plans, before anything is written or assembled.

What has the last word is not asked here: ``ptxas``, and the comparison of a twin's arithmetic with the original's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from neutrino.abi.reasons import Reason
from neutrino.ahead.plan import EMBEDDED_DEVICE, Plan, SkippedImage, Target, make_plan
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
from neutrino.ptx.instrument.plan import KernelPlan
from neutrino.toolchain.choice import find_assembler_for
from neutrino.toolchain.releases import LATEST_PTX, release_of_ptx


@dataclass(frozen=True)
class Preview:
    """A kernel of one image: where the probes go, or why there is no twin.

    container, image: indices as ``neutrino-extract`` shows them; of the image that the driver picks. arch: what its
    code is for. source: what the twin is made from; None of code that the device linker put together.
    """

    name: str
    container: int
    image: int
    arch: str
    plan: KernelPlan | None
    reason: Reason = Reason.PROBED
    detail: str = ""
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
    works: list[Target | SkippedImage] = sorted([*plan.targets, *plan.skipped_images], key=lambda work: work.container)
    for work in works:
        container = containers[work.container]
        if isinstance(work, SkippedImage):
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
    if kernel.plan is None or kernel.source is None:
        return None
    machine = kernel.source.machine
    release = machine.toolkit if machine else release_of_ptx(kernel.plan.version)
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
    yield from _previews(plan, names, target.container, image, source.arch, source)


def _previews(
    plan: PtxPlan | LinkedPlan, names: Sequence[str], container: int, image: int, arch: str, source: Source | None
) -> Iterator[Preview]:
    """The planned kernels in the order of their names. The rest as of ``Preview``."""
    planned = {kernel.name: kernel for kernel in plan.kernels}
    refused = plan.refused
    for name in names:
        if name in planned:
            yield Preview(name, container, image, arch, planned[name], source=source)
        elif name in refused:
            yield Preview(name, container, image, arch, None, *refused[name])


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
    yield from _previews(plan, names, target.container, image, source.arch, None)
