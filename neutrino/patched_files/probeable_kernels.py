"""Which kernels of a file can be probed, and why the others cannot, as far as is known without assembling their text.

Twins may still be refused by ``ptxas``, which may also warn of one, and by the comparison of their arithmetic with the
originals'. ``neutrino-patch --dry-run`` does both. Twins of machine code alone are made (``machine_code_coverage.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from neutrino.abi.reasons import Reason
from neutrino.assemble.emit import Emit
from neutrino.backend.registry import target_of_device
from neutrino.device.kind import DeviceKind
from neutrino.device.machine_code import MachineCode
from neutrino.fatbin import Container
from neutrino.patched_files.machine_code_coverage import Progress, with_machine_code
from neutrino.patched_files.patch_plan import make_plan
from neutrino.patched_files.patch_report import KernelReport, group_skipped
from neutrino.patched_files.preview import preview_plan
from neutrino.patched_files.sample import drawn
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.selection import Selection

USUAL_PROBE = "block_sched"
"""A probe at every kernel's entry and ends: kernels that it fits can take most other probes, too."""


@dataclass(frozen=True)
class Coverage:
    """Which kernels of a file can be probed on devices of one architecture.

    arch: as ``sm_90``. kernels: in the file's order; a kernel of several containers has a row for each. of: how many
    there are, of which kernels are a random sample, or all.
    """

    arch: str
    kernels: tuple[KernelReport, ...]
    of: int

    @property
    def probed(self) -> int:
        """Number of kernels that can be probed, as far as is known without assembling."""
        return sum(kernel.probed for kernel in self.kernels)

    @property
    def is_sample(self) -> bool:
        """Whether only some of the kernels were looked at, drawn at random."""
        return len(self.kernels) < self.of

    @property
    def of_machine_code(self) -> int:
        """Number of kernels for which a twin of their machine code was made, or tried."""
        return sum(kernel.is_of_machine_code for kernel in self.kernels)

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
    machine_code: MachineCode = MachineCode.OFF,
    jobs: int = 1,
    sample: int | None = None,
    progress: Progress = lambda _done, _total: None,
) -> Coverage:
    """Find which kernels of a file can be probed on devices of an architecture (``sm_90``).

    containers: all of the file's. probes, selection: what to probe, and in which kernels. vendor: the name that
    identifies the file as a vendor-licensed library, which is never rewritten; None if it is not one. known: a cache to
    pass to several calls for one file, with different architectures but the same probes and selection: they may run the
    same machine code, which is then read once. None for no cache. machine_code: of which machine code twins are made,
    where kernels have no text of their own. jobs: processes that may be started for that. sample: how many kernels,
    drawn at random, are looked at; None for all. progress: called while machine code is tried. Raises FormatError for
    damaged images, and for twins of machine code ToolError and OSError.
    """
    plan = make_plan(containers, (arch,), DeviceKind.GPU, Emit.CODE)
    # What others of a sample are is not known.
    known = known if sample is None else None
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
    found: list[KernelReport] = []
    for kernel in preview_plan(replace(plan, images=tuple(uncached)), containers, probes, selection):
        # Nothing of a skipped image runs on the architecture.
        devices = () if (kernel.container, kernel.image) in skipped else (arch,)
        sites = kernel.plan.site_count if kernel.plan else 0
        row = KernelReport(
            kernel.name, kernel.container, kernel.image, kernel.arch, devices, kernel.reason, kernel.detail, sites
        )
        found.append(row)
    new = range(len(rows), len(rows) + len(found))
    rows += found

    # Repeated containers have the same kernels as the first: indices of rows, each with a container that has it.
    places = [
        (index, container)
        for index, row in enumerate(rows) for container in (row.container, *plan.copies.get(row.container, ()))
    ]  # fmt: skip
    of = len(places)
    if sample is not None:
        places = [places[at] for at in drawn(of, sample)]
    if vendor is None:
        chosen = [index for index in dict.fromkeys(index for index, _ in places) if index in new]
        own = [rows[index] for index in chosen]
        tried = with_machine_code(own, uncached, containers, probes, machine_code, jobs, progress)
        for index, row in zip(chosen, tried, strict=True):
            rows[index] = row
    for index in new:
        if rows[index].container in lists_to_fill:
            lists_to_fill[rows[index].container].append(rows[index])
    shown = [replace(rows[index], container=container) for index, container in places]
    if vendor is not None:
        detail = f"{vendor} is a vendor-licensed library, which is never rewritten"
        shown = [replace(row, reason=Reason.VENDOR, detail=detail, sites=0) for row in shown]
    return Coverage(arch, tuple(sorted(shown, key=lambda row: row.container)), of)
