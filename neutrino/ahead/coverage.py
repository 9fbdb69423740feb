"""Which kernels of a file can be probed, and why the others cannot, as far as is known without assembling.

Twins may still be refused by ``ptxas``, which may also warn of one, and by the comparison of their arithmetic with the
originals'. ``neutrino-patch --dry-run`` does both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from neutrino.abi.reasons import Reason
from neutrino.ahead.plan import make_plan
from neutrino.ahead.preview import preview_plan
from neutrino.ahead.report import KernelReport, group_skipped
from neutrino.assemble.emit import Emit
from neutrino.device.kind import DeviceKind
from neutrino.device.source import picked_image
from neutrino.fatbin import Container, ImageKind
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.selection import Selection

USUAL_PROBE = "block_sched"
"""A probe at every kernel's entry and ends: kernels that it fits can take most other probes, too."""


@dataclass(frozen=True)
class Coverage:
    """What can be probed of a file on devices of one architecture. kernels: in the file's order, one row per image."""

    arch: str
    kernels: tuple[KernelReport, ...]

    @property
    def probed(self) -> int:
        """How many can be probed, as far as is known without assembling."""
        return sum(kernel.probed for kernel in self.kernels)

    @property
    def reasons(self) -> list[tuple[Reason, str, int]]:
        """Why others cannot, and how many, grouped by ``group_skipped``."""
        return [(group.reason, group.text, len(group.kernels)) for group in group_skipped(self.kernels)]


def architectures(containers: Sequence[Container]) -> tuple[str, ...]:
    """Those that a file's images are for, as ``sm_90``, without those whose machine code is not supported."""
    return make_plan(containers, (), DeviceKind.GPU, Emit.SASS).archs


Known = dict[tuple[int, int], list[KernelReport]]
"""What was found of a file's machine code, by container and image."""


def find_coverage(
    containers: Sequence[Container],
    arch: str,
    probes: ProbeSet,
    selection: Selection,
    *,
    vendor: str | None = None,
    known: Known | None = None,
) -> Coverage:
    """What can be probed of a file on devices of an architecture (``sm_90``).

    vendor: the name by which the file is a vendor-licensed library, which is never rewritten; None if it is none.
    known: of a file that is looked at for several architectures the same for all: devices of several may run the same
    machine code, which is looked at once. Raises FormatError for damaged images.
    """
    plan = make_plan(containers, (arch,), DeviceKind.GPU, Emit.SASS)
    listed = {(work.container, work.image) for work in plan.skipped_images}
    found: list[KernelReport] = []
    fresh = []
    # By container, where what is found of it is kept.
    kept: dict[int, list[KernelReport]] = {}
    for target in plan.targets:
        picked = None if known is None or target.linked else picked_image(containers[target.container], arch)
        if known is None or picked is None or picked.kind is not ImageKind.CUBIN:
            fresh.append(target)
        elif (place := (target.container, picked.index)) in known:
            found += [replace(row, devices=(arch,)) for row in known[place]]
        else:
            kept[target.container] = known[place] = []
            fresh.append(target)
    for kernel in preview_plan(replace(plan, targets=tuple(fresh)), containers, probes, selection):
        devices = () if (kernel.container, kernel.image) in listed else (arch,)
        sites = kernel.plan.site_count if kernel.plan else 0
        row = KernelReport(
            kernel.name, kernel.container, kernel.image, kernel.arch, devices, kernel.reason, kernel.detail, sites
        )
        found.append(row)
        if kernel.container in kept:
            kept[kernel.container].append(row)
    rows = []
    for row in found:
        rows += [row, *(replace(row, container=copy) for copy in plan.copies.get(row.container, ()))]
    if vendor is not None:
        detail = f"{vendor} is a vendor-licensed library, which is never rewritten"
        rows = [replace(row, reason=Reason.VENDOR, detail=detail, sites=0) for row in rows]
    return Coverage(arch, tuple(sorted(rows, key=lambda row: row.container)))
