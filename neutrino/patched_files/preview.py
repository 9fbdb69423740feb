"""Where probes go in a file's kernels: their plans, before anything is written or assembled.

A kernel with a plan may still get no twin: ``ptxas`` may refuse it, or its arithmetic may differ from the original's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from neutrino.abi.reasons import Reason
from neutrino.assemble.emit import Emit
from neutrino.backend.protocol import Options, PlannedKernel, Shipped
from neutrino.backend.protocol import Plan as ProbePlan
from neutrino.backend.registry import EMBEDDED_DEVICE, is_unit, target_of_device
from neutrino.demangle import demangle
from neutrino.device.kind import DeviceKind
from neutrino.fatbin import Container, kernel_names
from neutrino.maker.patcher import make_twins
from neutrino.patched_files.patch_plan import Plan, PlannedImage, SkippedImage, make_plan
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.selection import Selection
from neutrino.twins.able import check_able
from neutrino.twins.cache_entry import KernelEntry


@dataclass(frozen=True)
class Preview:
    """A kernel of one image: where the probes go, or why it cannot have a twin (instrumented copy).

    container, image: indices, as ``neutrino-extract`` shows them, of the image that the driver picks. arch: what the
    image's code is for. plan: where the probes go; None with a reason and detail why not. shipped: what the twin is
    made from; None without a plan.
    """

    name: str
    container: int
    image: int
    arch: str
    plan: PlannedKernel | None
    reason: Reason = Reason.PROBED
    detail: str = ""
    shipped: Shipped | None = None


def default_architecture(containers: Sequence[Container]) -> str:
    """Return the architecture (``sm_90``) for which the most containers have PTX; of several, the highest.

    A listing for it, if the user names no other, shows the most kernels that can be probed. Without any PTX it is the
    highest architecture of the machine code; without machine code the embedded device's.
    """
    # Those of all images, since none is asked for.
    archs = make_plan(containers, (), DeviceKind.GPU, Emit.CODE).archs
    if not archs:
        return EMBEDDED_DEVICE
    units = [container for container in containers if is_unit(container)]

    # make_plan sorts architectures by number, so the highest of equals is the last.
    def rank(arch: str) -> tuple[int, int]:
        """Return the key by which architectures are compared: how many containers have text for it, then its own order.
        """
        return sum(_has_text(container, units, arch) for container in containers), archs.index(arch)

    return max(archs, key=rank)


def _has_text(container: Container, units: Sequence[Container], arch: str) -> bool:
    """Whether there is text for the image that the driver picks for arch: that image itself, or one for the same arch.

    units: the file's relocatable containers, where the text of device-linked code is.
    """
    target = target_of_device(arch)
    picked = target.picked(container, arch)
    if picked is None:
        return False
    candidates = list(container.images)
    if target.is_linked(container, units):
        candidates += [image for unit in units for image in unit.images]
    return any(target.holds_text(image) and (image is picked or image.arch == picked.arch) for image in candidates)


def preview(containers: Sequence[Container], arch: str, probes: ProbeSet, selection: Selection) -> Iterator[Preview]:
    """Yield the selected kernels of a file as they run on devices of an architecture (``sm_90``), in the file's order.

    Kernels of containers with equal bytes are yielded once, for the first container. Raises FormatError for damaged
    images.
    """
    plan = make_plan(containers, (arch,), DeviceKind.GPU, Emit.CODE)
    yield from preview_plan(plan, containers, probes, selection)


def preview_plan(
    plan: Plan, containers: Sequence[Container], probes: ProbeSet, selection: Selection
) -> Iterator[Preview]:
    """Yield the selected kernels of a plan's targets and skipped images in the file's order, as ``preview`` does.

    containers: all of the file that the plan is for.
    """
    units = [container for container in containers if is_unit(container)]
    # In the file's order.
    items: list[PlannedImage | SkippedImage] = sorted(
        [*plan.images, *plan.skipped_images], key=lambda item: item.container
    )
    for item in items:
        container = containers[item.container]
        if isinstance(item, SkippedImage):
            image = container.images[item.image]
            for name in kernel_names(image):
                if _selects(selection, name):
                    yield Preview(
                        name, item.container, item.image, image.arch, None, reason=item.reason, detail=item.detail
                    )
        else:
            yield from _preview_image(container, units, item, probes, selection)


def assemble(kernel: Preview, probes: ProbeSet, max_registers: int | None = None) -> KernelEntry | None:
    """Assemble one kernel's twin (instrumented copy) and compare it with the original; return its entry.

    The entry's manifest has the registers of both. max_registers: a cap of the twin's, None without one.

    The result is None if the kernel cannot have a twin, and for device-linked code, which cannot be assembled kernel by
    kernel. Raises ToolMissingError without ptxas, ToolError, OSError.
    """
    if kernel.plan is None or kernel.shipped is None:
        return None
    target = target_of_device(kernel.shipped.arch)
    tools = target.tools_for(kernel.plan, kernel.shipped)
    if tools is None:
        return None
    # A pattern between slashes is a regular expression.
    only_this = Selection((f"/^{re.escape(kernel.name)}$/",))
    options = Options(max_registers=max_registers)
    twins = make_twins(target, kernel.shipped, probes, selection=only_this, tools=tools, options=options)
    return next((entry for entry in twins.kernels if entry.name == kernel.name), None)


def _selects(selection: Selection, name: str) -> bool:
    """Return whether the user's options select the kernel with a mangled name."""
    return selection.selects(name, demangle(name))


def _preview_image(
    container: Container, units: Sequence[Container], planned: PlannedImage, probes: ProbeSet, selection: Selection
) -> Iterator[Preview]:
    """Yield the selected kernels of a planned image, as ``preview`` does.

    units: the file's relocatable containers, where the text of device-linked code is.
    """
    target = target_of_device(planned.arch)
    check_able(target, probes)
    shipped = target.find(container, units, planned.arch, DeviceKind.GPU)
    backend = target.planner(shipped, probes)
    names = [name for name in backend.kernels if _selects(selection, name)]
    # If all kernels are refused, for example without text, there is nothing to parse. A kernel that the plan does not
    # know is left out.
    refusal = backend.refusal
    plan: ProbePlan | None = backend.plan(names) if refusal is None else None
    kernels = {kernel.name: kernel for kernel in plan.kernels} if plan is not None else {}
    refused = plan.refused if plan is not None else {name: refusal for name in names if refusal is not None}
    # A plan has only images that the driver picks, so it is never None.
    image = shipped.image or 0
    for name in names:
        if name in kernels:
            yield Preview(name, planned.container, image, shipped.arch, kernels[name], shipped=shipped)
        elif name in refused:
            reason, detail = refused[name]
            yield Preview(name, planned.container, image, shipped.arch, None, reason=reason, detail=detail)
