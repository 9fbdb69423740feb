"""A whole file: its plan, twins by several processes, the patched copy, the report."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from neutrino.ahead.attach import Attaching, begun
from neutrino.ahead.carrier import why_not_file
from neutrino.ahead.making import Made, Settings, Task, maker
from neutrino.ahead.report import KernelReport, Report
from neutrino.ahead.section import TwinsRow, write_section
from neutrino.ahead.sources import EMBEDDED_DEVICE, Listed, Plan, Target, make_plan
from neutrino.ahead.vendor import vendor_library
from neutrino.ahead.workers import Slots, share
from neutrino.device.kind import DeviceKind
from neutrino.device.source import Device
from neutrino.errors import PatchError
from neutrino.fatbin import Container, read_file
from neutrino.loader.driver import machine_archs
from neutrino.probing.writing import trace_text
from neutrino.ptx.snippets.lowering import lower
from neutrino.resources import tool_path
from neutrino.sass.arithmetic import FIRST_ARCHITECTURE
from neutrino.version import __version__

STUB = Path(__file__).resolve().parent.parent / "loader" / "lib" / "libneutrino_stub.so"
"""What a patched file names in DT_AUXILIARY unless another path is given."""

Progress = Callable[[int, int, str], None]
"""Called with how many images are done, of how many, and the one that was."""


def output_path(source: Path, output: str | None, word: str = "neutrino") -> Path:
    """Where a new file goes. output: as the user gave it, a file or a folder; None: beside source.

    ``libk.so.1`` becomes ``libk.neutrino.so.1``, by word; in a folder the name stays. Raises PatchError for source
    itself.
    """
    if output is None:
        stem, dot, extension = source.name.partition(".so")
        if not dot or extension.strip(".0123456789"):
            stem, dot, extension = source.stem, "", source.suffix
        target = source.with_name(f"{stem}.{word}{dot}{extension}")
    elif output.endswith("/") or Path(output).is_dir():
        target = Path(output) / source.name
    else:
        target = Path(output)
    if target.exists() and source.exists() and target.samefile(source):
        raise PatchError(str(source), "is the input itself; name another output with -o")
    return target


def patch_file(
    source: Path,
    target: Path | None,
    settings: Settings,
    *,
    names: Sequence[str],
    archs: Sequence[str] = (),
    jobs: int | None = None,
    stub: str = str(STUB),
    progress: Progress | None = None,
) -> Report:
    """Write target: source with twins of its kernels, when at least one can be made.

    target: None makes the twins and writes nothing. names: of the probes, as given. archs: devices as ``sm_90``; none:
    the machine's own, or where it has none, every one that the file's images are for. jobs: processes, by default one
    for each CPU. stub: for DT_AUXILIARY.

    The report's output is None when nothing was written. Raises PatchError for a file that cannot carry twins,
    FormatError for a damaged one, ProbeError, ToolError when a tool is missing or failed, OSError.
    """
    refusal = _refusal(source)
    if refusal.startswith(_VENDOR):
        return Report(source, None, tuple(names), tuple(archs), (), refused=refusal)
    if refusal:
        raise PatchError(str(source), refusal)
    containers = read_file(source)
    plan = make_plan(containers, archs or _machine_archs(settings.device), settings.device, settings.emit)
    folder = target.parent if target is not None else None
    with contextlib.ExitStack() as stack:
        spool = stack.enter_context(tempfile.TemporaryFile(dir=folder, prefix=".neutrino-"))
        attaching = stack.enter_context(begun(source, target)) if target is not None and plan.targets else None
        work = _Work(source, settings, plan, containers, spool if target is not None else None)
        work.run(jobs or os.cpu_count() or 1, progress, attaching)
        report = work.report(tuple(names))
        if attaching is None or not report.probed:
            return report
        # Without the names of files: they are not the copy's own, and patched again it is what patching once gives.
        inside = {name: value for name, value in report.document().items() if name not in ("input", "output")}
        spool.flush()
        section = write_section(
            work.rows(),
            work.entries(spool),
            names=" ".join(names),
            maker=__version__,
            probes=trace_text(lower(settings.probes)).encode(),
            reader=tool_path("read.py").read_bytes(),
            report=json.dumps(inside).encode(),
        )
        done = attaching.finish(section, stub)
        return replace(report, output=target, notes=(*report.notes, *done.remarks))


def _machine_archs(device: DeviceKind) -> tuple[str, ...]:
    """Of the devices in this machine that twins are understood for; none without any."""
    if device is DeviceKind.EMBEDDED:
        return (EMBEDDED_DEVICE,)
    found = (Device.parse(arch) for arch in machine_archs())
    return tuple(f"sm_{arch.number}" for arch in found if arch and arch.number >= FIRST_ARCHITECTURE)


_VENDOR = "vendor: "


def _refusal(source: Path) -> str:
    with source.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) if size else None
    vendor = vendor_library(source, data)
    if vendor is not None:
        return f"{_VENDOR}{vendor} is a vendor-licensed library, never rewritten"
    return why_not_file(source) or ""


class _Work:
    """The targets of a file while they are made, in whatever order, and what is to be written of them in theirs."""

    def __init__(
        self, source: Path, settings: Settings, plan: Plan, containers: Sequence[Container], spool: BinaryIO | None
    ) -> None:
        self._source = source
        self._settings = settings
        self._plan = plan
        self._containers = containers
        self._spool = spool
        self._works: tuple[Target | Listed, ...] = (*plan.targets, *plan.listed)
        self._made: dict[int, Made] = {}
        self._places: dict[int, tuple[int, int]] = {}

    def run(self, jobs: int, progress: Progress | None, attaching: Attaching | None) -> None:
        """Make them all, biggest first. attaching: started once the processes have begun, which lack its file."""
        sizes = [self._containers[work.container].size for work in self._works]
        order = sorted(range(len(sizes)), key=lambda number: -sizes[number])
        tasks = [self._task(number) for number in order]
        with contextlib.closing(Slots(jobs)) as slots:
            context = self._source, self._settings, slots
            if attaching is None:
                made = share(maker, context, tasks, jobs)
            else:
                made = share(maker, context, tasks, jobs, attaching.start, (attaching.descriptor,))
            self._keep(made, order, progress)

    def _keep(self, results: Iterator[tuple[int, Made]], order: Sequence[int], progress: Progress | None) -> None:
        for done, (index, made) in enumerate(results, 1):
            number = order[index]
            if made.entry is not None and self._spool is not None:
                self._places[number] = self._spool.tell(), len(made.entry)
                self._spool.write(made.entry)
            # The entry is on disk now, or not needed.
            self._made[number] = replace(made, entry=b"" if made.entry is not None else None)
            if progress is not None:
                work = self._works[number]
                place = f"container {work.container}" + (f" for {work.arch}" if isinstance(work, Target) else "")
                progress(done, len(order), place)

    def _task(self, number: int) -> Task:
        work = self._works[number]
        if isinstance(work, Target):
            return Task(work, self._plan.identities[work.container][0])
        return Task(work)

    def _written(self) -> list[int]:
        """Targets with an entry, in the plan's order."""
        return [
            number
            for number in range(len(self._plan.targets))
            if number in self._made and self._made[number].entry is not None
        ]

    def rows(self) -> list[TwinsRow]:
        """The section's rows; a row's entry counts along the entries."""
        rows = []
        for entry, number in enumerate(self._written()):
            target = self._plan.targets[number]
            digest, size = self._plan.identities[target.container]
            rows += [
                TwinsRow(digest, size, self._made[number].key, device, self._settings.device, entry)
                for device in target.devices
            ]
        return rows

    def entries(self, spool: BinaryIO) -> list[memoryview]:
        """The entries where they lie on disk, in the plan's order."""
        if not self._places:
            return []
        view = memoryview(mmap.mmap(spool.fileno(), 0, access=mmap.ACCESS_READ))
        places = [self._places[number] for number in self._written()]
        return [view[offset : offset + size] for offset, size in places]

    def report(self, names: tuple[str, ...]) -> Report:
        """All kernels, in the order of containers and of the architectures that were asked for."""
        kernels: list[tuple[int, int, KernelReport]] = []
        notes = dict.fromkeys(self._plan.notes)
        for number, work in enumerate(self._works):
            made = self._made[number]
            notes |= dict.fromkeys(made.notes)
            kernels += [(work.container, number, kernel) for kernel in made.kernels]
            for copy in self._plan.copies.get(work.container, ()):
                kernels += [(copy, number, replace(kernel, container=copy)) for kernel in made.kernels]
        kernels.sort(key=lambda item: item[:2])
        return Report(
            self._source, None, names, self._plan.archs, tuple(kernel for _, _, kernel in kernels), tuple(notes)
        )
