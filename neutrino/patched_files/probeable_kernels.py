"""Which kernels of a file can be probed, and why the others cannot, as far as is known without assembling.

Twins may still be refused by ``ptxas``, which may also warn of one, and by the comparison of their arithmetic with the
originals'. ``neutrino-patch --dry-run`` does both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from neutrino.abi.reasons import Reason
from neutrino.assemble.emit import Emit
from neutrino.backend.registry import target_of_device
from neutrino.device.kind import DeviceKind
from neutrino.fatbin import Container
from neutrino.patched_files.patch_plan import make_plan
from neutrino.patched_files.patch_report import KernelReport, group_skipped
from neutrino.patched_files.preview import preview_plan
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.selection import Selection

USUAL_PROBE = "block_sched"
"""A probe at every kernel's entry and ends: kernels that it fits can take most other probes, too."""


@dataclass(frozen=True)
class Coverage:
    """Which kernels of a file can be probed on devices of one architecture.

    arch: as ``sm_90``. kernels: in the file's order; a kernel of several containers has a row for each.
    """

    arch: str
    kernels: tuple[KernelReport, ...]

    @property
    def probed(self) -> int:
        """Number of kernels that can be probed, as far as is known without assembling."""
        return sum(kernel.probed for kernel in self.kernels)

    @property
    def reasons(self) -> list[tuple[Reason, str, int]]:
        """Why the others cannot be probed, as (reason, text, number of kernels), grouped by ``group_skipped``."""
        return [(group.reason, group.text, len(group.kernels)) for group in group_skipped(self.kernels)]


def architectures(containers: Sequence[Container]) -> tuple[str, ...]:
    """Return the architectures that a file's images are for, as ``sm_90``, without those that are not supported."""
    return make_plan(containers, (), DeviceKind.GPU, Emit.CODE).archs


Known = dict[tuple[int, int], list[KernelReport]]
"""Reports of the kernels in a file's machine code, by indices of container and image: a cache for ``find_coverage``."""


def find_coverage(
    containers: Sequence[Container],
    arch: str,
    probes: ProbeSet,
    selection: Selection,
    *,
    vendor: str | None = None,
    known: Known | None = None,
) -> Coverage:
    """Find which kernels of a file can be probed on devices of an architecture (``sm_90``).

    containers: all of the file's. probes, selection: what to probe, and in which kernels. vendor: the name that
    identifies the file as a vendor-licensed library, which is never rewritten; None if it is not one. known: a cache to
    pass to several calls for one file, with different architectures but the same probes and selection: they may run the
    same machine code, which is then read once. None for no cache. Raises FormatError for damaged images.
    """
    plan = make_plan(containers, (arch,), DeviceKind.GPU, Emit.CODE)
    skipped = {(image.container, image.image) for image in plan.skipped_images}
    rows: list[KernelReport] = []

    # Take from the cache what it has. It may hold the kernels of machine code that is not device-linked: all
    # architectures that run it have the same PTX for it, and so the same reports but for the architecture.
    # uncached: images that the cache does not have. lists_to_fill: of these, by container, the new lists in the cache.
    uncached = []
    lists_to_fill: dict[int, list[KernelReport]] = {}
    for planned in plan.images:
        target = target_of_device(planned.arch)
        picked = None if known is None or planned.linked else target.picked(containers[planned.container], arch)
        if known is None or picked is None or not target.is_machine_code(picked):
            uncached.append(planned)
            continue
        key = (planned.container, picked.index)
        if key in known:
            rows += [replace(row, devices=(arch,)) for row in known[key]]
        else:
            lists_to_fill[planned.container] = known[key] = []
            uncached.append(planned)

    # Plan the probes of the remaining kernels. Those of skipped images have a reason instead of a plan.
    for kernel in preview_plan(replace(plan, images=tuple(uncached)), containers, probes, selection):
        # Nothing of a skipped image runs on the architecture.
        devices = () if (kernel.container, kernel.image) in skipped else (arch,)
        sites = kernel.plan.site_count if kernel.plan else 0
        row = KernelReport(
            kernel.name, kernel.container, kernel.image, kernel.arch, devices, kernel.reason, kernel.detail, sites
        )
        rows.append(row)
        if kernel.container in lists_to_fill:
            lists_to_fill[kernel.container].append(row)

    # Repeated containers have the same kernels as the first.
    rows = [
        copy
        for row in rows
        for copy in (row, *(replace(row, container=index) for index in plan.copies.get(row.container, ())))
    ]
    if vendor is not None:
        detail = f"{vendor} is a vendor-licensed library, which is never rewritten"
        rows = [replace(row, reason=Reason.VENDOR, detail=detail, sites=0) for row in rows]
    return Coverage(arch, tuple(sorted(rows, key=lambda row: row.container)))
