"""Where probes go in a file's kernels: their plans, before anything is written or assembled.

A kernel with a plan may still get no twin: ``ptxas`` may refuse it, or its arithmetic may differ from the original's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from neutrino.abi.reasons import Reason
from neutrino.ahead.plan import EMBEDDED_DEVICE, Plan, SkippedImage, Target, make_plan
from neutrino.assemble.emit import Emit
from neutrino.backend.ptx_linked import LinkedPlan, LinkedTwins
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
    """A kernel of one image: where the probes go, or why it cannot have a twin (instrumented copy).

    container, image: indices, as ``neutrino-extract`` shows them, of the image that the driver picks. arch: what the
    image's code is for. plan: where the probes go; None with a reason and detail why not. source: the PTX and machine
    code that the twin is made from; None for code that the device linker made.
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
    """Return the architecture (``sm_90``) for which the most containers have PTX; of several, the highest.

    A listing for it, if the user names no other, shows the most kernels that can be probed. Without any PTX it is the
    highest architecture of the machine code; without machine code the embedded device's.
    """
    # Those of all images, since none is asked for.
    archs = make_plan(containers, (), DeviceKind.GPU, Emit.SASS).archs
    if not archs:
        return EMBEDDED_DEVICE
    units = [container for container in containers if container.section == RELOCATABLE_SECTION]

    # make_plan sorts architectures by number, so the highest of equals is the last.
    def rank(arch: str) -> tuple[int, int]:
        return sum(_has_ptx(container, units, arch) for container in containers), archs.index(arch)

    return max(archs, key=rank)


def _has_ptx(container: Container, units: Sequence[Container], arch: str) -> bool:
    """Whether there is PTX for the image that the driver picks for arch: that image itself, or PTX for the same arch.

    units: the file's relocatable containers, where the PTX of device-linked code is.
    """
    picked = picked_image(container, arch)
    if picked is None:
        return False
    candidates = list(container.images)
    if is_linked(container, units):
        candidates += [image for unit in units for image in unit.images]
    return any(image.kind is ImageKind.PTX and (image is picked or image.arch == picked.arch) for image in candidates)


def preview(containers: Sequence[Container], arch: str, probes: ProbeSet, selection: Selection) -> Iterator[Preview]:
    """Yield the selected kernels of a file as they run on devices of an architecture (``sm_90``), in the file's order.

    Kernels of containers with equal bytes are yielded once, for the first container. Raises FormatError for damaged
    images.
    """
    plan = make_plan(containers, (arch,), DeviceKind.GPU, Emit.SASS)
    yield from preview_plan(plan, containers, probes, selection)


def preview_plan(
    plan: Plan, containers: Sequence[Container], probes: ProbeSet, selection: Selection
) -> Iterator[Preview]:
    """Yield the selected kernels of a plan's targets and skipped images in the file's order, as ``preview`` does.

    containers: all of the file that the plan is for.
    """
    units = [container for container in containers if container.section == RELOCATABLE_SECTION]
    # In the file's order.
    items: list[Target | SkippedImage] = sorted([*plan.targets, *plan.skipped_images], key=lambda item: item.container)
    for item in items:
        container = containers[item.container]
        if isinstance(item, SkippedImage):
            image = container.images[item.image]
            for name in kernel_names(image):
                if _selects(selection, name):
                    yield Preview(
                        name, item.container, item.image, image.arch, None, reason=item.reason, detail=item.detail
                    )
        elif item.linked:
            yield from _preview_linked(containers, units, item, probes, selection)
        else:
            yield from _preview_module(container, item, probes, selection)


def assemble(kernel: Preview, probes: ProbeSet, max_registers: int | None = None) -> KernelEntry | None:
    """Assemble one kernel's twin (instrumented copy) and compare it with the original; return its entry.

    The entry's manifest has the registers of both. max_registers: a cap of the twin's, None without one.

    The result is None if the kernel cannot have a twin, and for device-linked code, which cannot be assembled kernel by
    kernel. Raises ToolMissingError without ptxas, ToolError, OSError.
    """
    if kernel.plan is None or kernel.source is None:
        return None
    # The toolkit release that made the original, whose ptxas is preferred.
    machine = kernel.source.machine
    release = machine.toolkit if machine else release_of_ptx(kernel.plan.version)
    assembler = find_assembler_for(release, kernel.source.arch)
    # A pattern between slashes is a regular expression.
    only_this = Selection((f"/^{re.escape(kernel.name)}$/",))
    twins = make_twins(kernel.source, probes, selection=only_this, assembler=assembler, max_registers=max_registers)
    return next((entry for entry in twins.kernels if entry.name == kernel.name), None)


def _selects(selection: Selection, name: str) -> bool:
    return selection.selects(name, demangle(name))


def _preview_module(container: Container, target: Target, probes: ProbeSet, selection: Selection) -> Iterator[Preview]:
    """Yield the selected kernels of a target whose PTX is one module in its container, as ``preview`` does."""
    source = find_source(container, target.arch)
    backend = PtxTwins(source, probes, LATEST_PTX)
    names = [name for name in backend.kernels if _selects(selection, name)]
    # A plan has only targets for which the driver picks an image, so it is never None.
    image = source.image or 0
    # If all kernels are refused, for example without PTX, there is nothing to parse.
    plan = PtxPlan(None, dict.fromkeys(names, backend.refusal)) if backend.refusal else backend.plan(names)
    yield from _previews(plan, names, target.container, image, source.arch, source)


def _previews(
    plan: PtxPlan | LinkedPlan, names: Sequence[str], container: int, image: int, arch: str, source: Source | None
) -> Iterator[Preview]:
    """Yield a preview of each kernel of names that the plan knows, in that order.

    plan: where the probes go, or why a kernel cannot be probed; a kernel that it does not know is left out. container,
    image: indices in the file. arch: what the code is for. source: what twins (instrumented kernels) are made from,
    None for device-linked code.
    """
    planned = {kernel.name: kernel for kernel in plan.kernels}
    refused = plan.refused
    for name in names:
        if name in planned:
            yield Preview(name, container, image, arch, planned[name], source=source)
        elif name in refused:
            reason, detail = refused[name]
            yield Preview(name, container, image, arch, None, reason=reason, detail=detail)


def _preview_linked(
    containers: Sequence[Container],
    units: Sequence[Container],
    target: Target,
    probes: ProbeSet,
    selection: Selection,
) -> Iterator[Preview]:
    """Yield the selected kernels of device-linked code, as ``preview`` does. Its PTX is in several translation units.

    units: the file's containers with these units.
    """
    container = containers[target.container]
    source = find_linked_source(container, units, target.arch)
    # A plan has only targets for which the driver picks an image, so it is never None.
    picked = picked_image(container, target.arch)
    image = picked.index if picked else 0
    backend = LinkedTwins(source, probes, LATEST_PTX)
    names = [name for name in backend.kernels if _selects(selection, name)]
    plan = LinkedPlan(None, dict.fromkeys(names, backend.refusal)) if backend.refusal else backend.plan(names)
    # Without a source: these kernels cannot be assembled one by one.
    yield from _previews(plan, names, target.container, image, source.arch, source=None)
