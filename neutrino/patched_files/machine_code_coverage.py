"""Which kernels without text of their own get twins of their machine code: found by making them, in several processes.

Whether one can be made depends on each instruction of a kernel, so that nothing short of writing and checking it tells.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from neutrino.abi.reasons import Reason
from neutrino.backend.protocol import Options, Shipped, Tools
from neutrino.backend.registry import is_unit, target_of_device
from neutrino.device.kind import DeviceKind
from neutrino.device.machine_code import MachineCode
from neutrino.errors import ToolMissingError
from neutrino.fatbin import Container
from neutrino.maker.patcher import make_twins
from neutrino.patched_files.image_twins import WITHOUT_TEXT
from neutrino.patched_files.patch_plan import PlannedImage
from neutrino.patched_files.patch_report import KernelReport
from neutrino.patched_files.workers import share
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.selection import Selection
from neutrino.twins.cache_entry import KernelEntry

Progress = Callable[[int, int], None]
"""Called with how many kernels' machine code was tried, and of how many."""

_AT_ONCE = 32
"""Kernels of an image that a process takes at once."""
_FEW = 64
"""Kernels for which further processes would not save time."""


@dataclass(frozen=True)
class _Settings:
    """What all tasks have in common. containers: all of the file's."""

    containers: Sequence[Container]
    probes: ProbeSet
    machine_code: MachineCode
    tools: Tools | None


@dataclass(frozen=True)
class _Task:
    """Kernels of one image, by their mangled names."""

    planned: PlannedImage
    names: tuple[str, ...]


@dataclass(frozen=True)
class _Outcome:
    """What came of one kernel's twin. sites: how many it has."""

    reason: Reason
    detail: str
    sites: int = 0


def with_machine_code(
    rows: Sequence[KernelReport],
    images: Sequence[PlannedImage],
    containers: Sequence[Container],
    probes: ProbeSet,
    machine_code: MachineCode,
    jobs: int,
    progress: Progress = lambda _done, _total: None,
) -> list[KernelReport]:
    """Return reports of kernels, of which those without text say what becomes of their machine code.

    rows: of the images, as far as their texts go. containers: all of the file's. jobs: processes that may be started.
    progress: called from time to time. Raises FormatError for damaged images, ToolError, OSError.
    """
    without = [row for row in rows if row.reason in WITHOUT_TEXT and row.devices]
    if not without or not machine_code.is_on:
        return list(rows)
    units = [container for container in containers if is_unit(container)]
    tasks: list[_Task] = []
    by_container: dict[int, list[str]] = {}
    for row in without:
        by_container.setdefault(row.container, []).append(row.name)
    for planned in images:
        names = by_container.get(planned.container, [])
        if names and _takes(containers, units, planned, machine_code):
            tasks += [_Task(planned, tuple(names[at : at + _AT_ONCE])) for at in range(0, len(names), _AT_ONCE)]
    if not tasks:
        return list(rows)
    # All are for one device, or of one target at least.
    target = target_of_device(tasks[0].planned.arch)
    made: dict[tuple[int, str], _Outcome] = {}
    try:
        tools = target.run_tools(None)
    except ToolMissingError as error:
        missing = _Outcome(Reason.ASSEMBLER, f"twins of machine code need an assembler: {error}")
        made = {(task.planned.container, name): missing for task in tasks for name in task.names}
    else:
        for arch in dict.fromkeys(task.planned.arch for task in tasks):
            # Before other processes are forked, so that none of them has to.
            target.prepare_code(probes, arch, tools)
        few = sum(len(task.names) for task in tasks) <= _FEW or threading.active_count() > 1
        settings = _Settings(containers, probes, machine_code, tools)
        total, done = sum(len(task.names) for task in tasks), 0
        progress(done, total)
        for number, outcomes in share(_make_runner, settings, tasks, 1 if few else jobs):
            done += len(tasks[number].names)
            progress(done, total)
            made |= {(tasks[number].planned.container, name): outcome for name, outcome in outcomes.items()}
    return [_reported(row, made.get((row.container, row.name))) for row in rows]


def _takes(
    containers: Sequence[Container], units: Sequence[Container], planned: PlannedImage, machine_code: MachineCode
) -> bool:
    """Return whether twins (copies with probes) are made of an image's machine code, by ``neutrino-patch``'s rule."""
    target = target_of_device(planned.arch)
    shipped = target.find(containers[planned.container], units, planned.arch, DeviceKind.GPU)
    return target.alone(shipped) is not None and machine_code.takes(shipped.arch)


def _make_runner(settings: _Settings) -> Callable[[_Task], dict[str, _Outcome]]:
    """Return a function that makes the twins (copies with probes) of a task; it keeps the image that it read last."""
    units = [container for container in settings.containers if is_unit(container)]
    last: dict[tuple[int, str], Shipped] = {}

    def run(task: _Task) -> dict[str, _Outcome]:
        """Make the twins (copies with probes) of a task's kernels; return what came of each, by its name."""
        planned, target = task.planned, target_of_device(task.planned.arch)
        key = planned.container, planned.arch
        if key not in last:
            last.clear()
            last[key] = target.find(settings.containers[planned.container], units, planned.arch, DeviceKind.GPU)
        outcomes: dict[str, _Outcome] = {}
        for name in task.names:
            options = Options(kernel=name, machine_code=settings.machine_code)
            twins = make_twins(
                target, last[key], settings.probes, selection=Selection(), tools=settings.tools, options=options
            )
            outcomes |= {entry.name: _outcome(entry) for entry in twins.kernels}
        return outcomes

    return run


def _outcome(entry: KernelEntry) -> _Outcome:
    """Return what is to be said of a kernel, without its twin (copy with probes)."""
    if entry.reason is not Reason.PROBED:
        return _Outcome(entry.reason, entry.detail)
    return _Outcome(entry.reason, entry.detail, len(json.loads(entry.files["manifest.json"])["sites"]))


def _reported(row: KernelReport, outcome: _Outcome | None) -> KernelReport:
    """Return the report of a kernel whose machine code was tried; as it was if it was not."""
    if outcome is None:
        return row
    return replace(row, reason=outcome.reason, detail=outcome.detail, sites=outcome.sites, is_of_machine_code=True)
