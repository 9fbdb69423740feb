"""Which kernels of a file can be probed, and why the others cannot, as far as is known without assembling.

Twins may still be refused by ``ptxas``, which may also warn of one, and by the comparison of their arithmetic with the
originals'. ``neutrino-patch --dry-run`` does both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from neutrino.abi.reasons import Reason
from neutrino.ahead.preview import preview_plan
from neutrino.ahead.report import KernelReport, group_skipped
from neutrino.ahead.sources import make_plan
from neutrino.assemble.emit import Emit
from neutrino.device.kind import DeviceKind
from neutrino.fatbin import Container
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


def find_coverage(
    containers: Sequence[Container],
    arch: str,
    probes: ProbeSet,
    selection: Selection,
    *,
    vendor: str | None = None,
) -> Coverage:
    """What can be probed of a file on devices of an architecture (``sm_90``).

    vendor: the name by which the file is a vendor-licensed library, which is never rewritten; None if it is none.
    Raises FormatError for damaged images.
    """
    plan = make_plan(containers, (arch,), DeviceKind.GPU, Emit.SASS)
    listed = {(work.container, work.image) for work in plan.listed}
    rows = []
    for kernel in preview_plan(plan, containers, probes, selection):
        devices = () if (kernel.container, kernel.image) in listed else (arch,)
        sites = kernel.plan.site_count if kernel.plan else 0
        row = KernelReport(
            kernel.name, kernel.container, kernel.image, kernel.arch, devices, kernel.reason, kernel.detail, sites
        )
        rows += [row, *(replace(row, container=copy) for copy in plan.copies.get(kernel.container, ()))]
    if vendor is not None:
        detail = f"{vendor} is a vendor-licensed library, which is never rewritten"
        rows = [replace(row, reason=Reason.VENDOR, detail=detail, sites=0) for row in rows]
    return Coverage(arch, tuple(sorted(rows, key=lambda row: row.container)))
