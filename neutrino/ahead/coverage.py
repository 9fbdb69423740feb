"""Which kernels of a file can be probed, and why the others cannot: all that can be told without assembling.

What has the last word is not asked: ``ptxas``, which may refuse a twin or warn of it, and the comparison of the
twin's arithmetic with the original's. ``neutrino-patch --dry-run`` asks them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from neutrino.ahead.relocatable import RELOCATABLE_SECTION, LinkedSource, find_linked_source, program
from neutrino.ahead.report import KernelReport, group_skipped
from neutrino.ahead.sources import Listed, Target, make_plan
from neutrino.device_kind import DeviceKind
from neutrino.errors import PtxError
from neutrino.fatbin import Container, demangle, kernel_names
from neutrino.numerics import FIRST_ARCHITECTURE
from neutrino.patch import Emit, make_twins
from neutrino.probing.layout import Reason
from neutrino.probing.model import ProbeSet
from neutrino.probing.selection import Selection
from neutrino.ptx.program import probe_program
from neutrino.source import Device, find_source, picked_image
from neutrino.toolchain import LATEST_PTX

USUAL_PROBE = "block_sched"
"""A probe at every kernel's entry and ends: what it can go into, most others can that find their instruction."""


@dataclass(frozen=True)
class Coverage:
    """What can be probed of a file on devices of one architecture. kernels: in the file's order, one row per image."""

    arch: str
    kernels: tuple[KernelReport, ...]

    @property
    def probed(self) -> int:
        """How many can, as far as was looked."""
        return sum(kernel.probed for kernel in self.kernels)

    @property
    def reasons(self) -> list[tuple[Reason, str, int]]:
        """Why others cannot, and how many, as ``group_skipped`` tells them apart."""
        return [(group.reason, group.text, len(group.kernels)) for group in group_skipped(self.kernels)]


def architectures(containers: Sequence[Container]) -> tuple[str, ...]:
    """Those that a file's images are for, as ``sm_90``, as far as machine code is understood."""
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
    Raises FormatError for damaged images, ProbeError when a probe asks for what an instruction has not.
    """
    units = [container for container in containers if container.section == RELOCATABLE_SECTION]
    plan = make_plan(containers, (arch,), DeviceKind.GPU, Emit.SASS)
    rows: list[KernelReport] = []
    for target in plan.targets:
        made = list(_of_target(containers, units, target, probes, selection))
        rows += made
        rows += [replace(row, container=copy) for copy in plan.copies.get(target.container, ()) for row in made]
    for listed in plan.listed:
        rows += _of_listed(containers, listed)
    rows = [row for row in rows if row.reason is not Reason.NOT_SELECTED and _selects(selection, row.name)]
    if vendor is not None:
        detail = f"{vendor} is a vendor-licensed library, which is never rewritten"
        rows = [replace(row, reason=Reason.VENDOR, detail=detail, sites=0) for row in rows]
    return Coverage(arch, tuple(sorted(rows, key=lambda row: row.container)))


def _selects(selection: Selection, name: str) -> bool:
    return selection.selects(name, demangle(name))


def _of_listed(containers: Sequence[Container], listed: Listed) -> Iterator[KernelReport]:
    image = containers[listed.container].images[listed.image]
    for name in kernel_names(image):
        yield KernelReport(name, listed.container, listed.image, image.arch, (), listed.reason, listed.detail)


def _of_target(
    containers: Sequence[Container],
    units: Sequence[Container],
    target: Target,
    probes: ProbeSet,
    selection: Selection,
) -> Iterator[KernelReport]:
    container = containers[target.container]
    picked = picked_image(container, target.arch)
    image = picked.index if picked else 0
    if target.linked:
        source = find_linked_source(container, units, target.arch)
        for name, reason, detail, sites in _of_linked(source, probes, selection):
            yield KernelReport(name, target.container, image, source.arch, (target.arch,), reason, detail, sites)
        return
    plain = find_source(container, target.arch)
    # As for the embedded device where there is no assembler: all is done but what needs one.
    twins = make_twins(plain, probes, selection=selection, assembler=None, device=DeviceKind.EMBEDDED)
    for kernel in twins.kernels:
        sites = len(json.loads(kernel.files["manifest.json"])["sites"]) if kernel.reason is Reason.PROBED else 0
        yield KernelReport(
            kernel.name, target.container, image, plain.arch, (target.arch,), kernel.reason, kernel.detail, sites
        )


def _of_linked(
    source: LinkedSource, probes: ProbeSet, selection: Selection
) -> Iterator[tuple[str, Reason, str, int]]:
    """(name, reason, detail, sites) of each kernel of device-linked code."""
    if source.machine is None:
        return
    names = [name for name in source.machine.kernels if _selects(selection, name)]
    device = Device.parse(source.arch)
    if device is None or device.number < FIRST_ARCHITECTURE:
        detail = f"{source.arch}: machine code is understood from sm_{FIRST_ARCHITECTURE} on"
        yield from ((name, Reason.UNSUPPORTED, detail, 0) for name in names)
        return
    refused = source.refused or {}
    units = {name: unit for name, unit in (source.kernels or {}).items() if name in names}
    found = {name: (*refused[name], 0) for name in names if name in refused}
    try:
        twins = probe_program(program(source), probes, kernels=units, version=LATEST_PTX, demangle=demangle)
        found |= {twin.name: (Reason.PROBED, "", len(twin.sites)) for twin in twins.kernels}
        found |= {skip.name: (skip.reason, skip.detail, 0) for skip in twins.skipped}
    except PtxError as error:
        found |= {name: (Reason.UNSUPPORTED, str(error), 0) for name in units}
    for name in names:
        if name in found:
            yield name, *found[name]
