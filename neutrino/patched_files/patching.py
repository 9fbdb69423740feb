"""A whole file: its plan, twins by several processes, the patched copy, the report."""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from neutrino.backend.registry import EMBEDDED_DEVICE, supported_device, target_of_device
from neutrino.device.kind import DeviceKind
from neutrino.errors import PatchError
from neutrino.fatbin import Container
from neutrino.loader.driver import machine_archs
from neutrino.patched_files.attach import Attaching, attaching_to
from neutrino.patched_files.carrier import file_refusal
from neutrino.patched_files.entry_spool import EntrySpool
from neutrino.patched_files.file_images import read_images
from neutrino.patched_files.image_twins import Settings, Task, TaskResult, make_task_runner
from neutrino.patched_files.patch_plan import Plan, PlannedImage, SkippedImage, make_plan
from neutrino.patched_files.patch_report import KernelReport, Report
from neutrino.patched_files.section import TwinsRow, write_section
from neutrino.patched_files.vendor import vendor_library
from neutrino.patched_files.workers import Slots, processors, share
from neutrino.resources import tool_path
from neutrino.targets import trace_text
from neutrino.version import __version__

STUB = Path(__file__).resolve().parent.parent / "loader" / "lib" / "libneutrino_stub.so"
"""What a patched file names in DT_AUXILIARY unless another path is given."""

Progress = Callable[[int, int, str], None]
"""Called with how many images are done, of how many, and the one that was."""


def output_path(source: Path, output: str | None, word: str = "neutrino") -> Path:
    """Return the path for a file that is made from source.

    output: the user's ``-o``: a file, or a folder, where the file keeps its name. With None the file goes beside source
    under a name with word in it: ``libk.so.1`` becomes ``libk.neutrino.so.1``. Raises PatchError if the path is
    source's own, or that of a folder, a device, a pipe or a text; IsADirectoryError if source is a folder.
    """
    # Which may have no name that the output's could be made from: ".", "/".
    if source.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(source))
    if output is None:
        # libk.so.1 is divided into libk, .so and .1.
        stem, infix, extension = source.name.partition(".so")
        if not infix or extension.strip(".0123456789"):
            # Not a shared library's name, such as libk.so or libk.so.1.2.
            stem, infix, extension = source.stem, "", source.suffix
        target = source.with_name(f"{stem}.{word}{infix}{extension}")
    elif output.endswith("/") or Path(output).is_dir():
        target = Path(output) / source.name
    else:
        target = Path(output)
    if target.exists() and source.exists() and target.samefile(source):
        raise PatchError(str(source), "is the input itself; name another output with -o")
    # A device or a pipe would be replaced by the file.
    if target.exists() and not target.is_file():
        raise PatchError(str(target), "is not a regular file; name another output with -o")
    if target.exists() and _is_text(target):
        raise PatchError(str(target), "exists, and is a text: it is not overwritten; name another output with -o")
    return target


def _is_text(path: Path) -> bool:
    """Whether a file is not empty and begins as a text does, which no patched file is."""
    with path.open("rb") as file:
        head = file.read(4096)
    return bool(head) and b"\0" not in head and not head.startswith(b"\x7fELF")


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
    """Write target: a copy of source that carries twins (instrumented copies) of its kernels.

    target: None makes and verifies the twins, but writes nothing. names: of the probes, as the user gave them. archs:
    architectures of devices, as ``sm_90``; if empty, those of this machine's GPUs, or without GPUs all that the file's
    images are for. jobs: processes, by default one per processor. stub: the library that loads the hook, which target
    names in DT_AUXILIARY so that the dynamic loader loads it, too. progress: called after each image.

    Return what became of each kernel. The report's output is None if nothing was written: without target, for a
    vendor-licensed library, or if no kernel can have a twin. Raises PatchError for a file that cannot carry twins,
    FormatError for a damaged one, ProbeError, ToolError when a tool is missing or failed, OSError.
    """
    refusal = _refusal(source)
    if refusal.startswith(_VENDOR):
        return Report(source, output=None, probes=tuple(names), archs=tuple(archs), kernels=(), refused=refusal)
    if refusal:
        raise PatchError(str(source), refusal)
    containers = read_images(source)
    plan = make_plan(containers, archs or _machine_archs(settings.device), settings.device, settings.emit)
    # For the spool: beside target; None is the usual temporary folder.
    folder = target.parent if target is not None else None
    with contextlib.ExitStack() as stack:
        # Entries are kept on disk, so that memory holds those of a few images only.
        spool = stack.enter_context(contextlib.closing(EntrySpool(folder)))
        attaching = stack.enter_context(attaching_to(source, target)) if target is not None and plan.images else None
        builder = _SectionBuilder(source, settings, plan, containers, spool)
        builder.run(jobs or processors(), progress, attaching)
        report = builder.report(tuple(names))
        if attaching is None or not report.probed:
            # Leaving the block without finish writes nothing.
            return report

        # The report in the file leaves out file names: the copy may be renamed, and patching it again must give the
        # same bytes as patching the original.
        stored_report = {name: value for name, value in report.document().items() if name not in ("input", "output")}
        section = write_section(
            builder.rows(),
            builder.entries(),
            names=" ".join(names),
            maker=__version__,
            probes=trace_text(target_of_device(plan.images[0].arch).lowered(settings.probes)).encode(),
            reader=tool_path("read.py").read_bytes(),
            report=json.dumps(stored_report).encode(),
        )
        attachment = attaching.finish(section, stub)
        return replace(report, output=target, notes=(*report.notes, *attachment.remarks))


def _machine_archs(device: DeviceKind) -> tuple[str, ...]:
    """Return the architectures (``sm_90``) of this machine's GPUs, as far as they are supported, or of the emulator.

    Empty if there is no supported GPU.
    """
    if device is DeviceKind.EMBEDDED:
        return (EMBEDDED_DEVICE,)
    devices = map(supported_device, machine_archs())
    return tuple(device for device in devices if device is not None)


_VENDOR = "vendor: "
"""The start of the refusal of a vendor-licensed library, which is reported instead of raised."""


def _refusal(source: Path) -> str:
    """Return why a file must not or cannot be patched, "" if it can. Raises OSError, FormatError.

    The reason begins with ``_VENDOR`` for a vendor-licensed library, which must not be patched.
    """
    # An empty file cannot be mapped; file_refusal then says what is wrong with it.
    with source.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) if size else None
    vendor = vendor_library(source, data)
    if vendor is not None:
        return f"{_VENDOR}{vendor} is a vendor-licensed library, never rewritten"
    return file_refusal(source) or ""


class _SectionBuilder:
    """Makes the twins of all images of a plan in worker processes; then gives the section's contents in plan order.

    An image gets one entry, in the format of ``twins/cache_entry.py``, with its twins (instrumented kernels). items:
    the plan's images, then the skipped ones. spool: collects the entries. results: by the item's index.
    """

    def __init__(
        self, source: Path, settings: Settings, plan: Plan, containers: Sequence[Container], spool: EntrySpool
    ) -> None:
        """Prepare to make all twins (instrumented kernels) of a plan, none yet. source: the file to patch; containers:
        its GPU code. spool: collects the results (cache entries)."""
        self._source = source
        self._settings = settings
        self._plan = plan
        self._containers = containers
        self._spool = spool
        # Those with twins come first, so that an index in plan.images is also one in _items.
        self._items: tuple[PlannedImage | SkippedImage, ...] = (*plan.images, *plan.skipped_images)
        # By the item's index.
        self._results: dict[int, TaskResult] = {}

    def run(self, jobs: int, progress: Progress | None, attaching: Attaching | None) -> None:
        """Process all items, those of the largest containers first, so that no long one is left to the end.

        jobs: number of processes. attaching: its threads are started after the processes, since a process with threads
        should not fork; None if no file is written.
        """
        # The items' indices in the order in which they are processed.
        sizes = [self._containers[item.container].size for item in self._items]
        order = sorted(range(len(sizes)), key=lambda index: -sizes[index])
        tasks = [self._task(index) for index in order]
        with contextlib.closing(Slots(jobs)) as slots:
            context = self._source, self._settings, slots, self._spool
            if attaching is None:
                results = share(make_task_runner, context, tasks, jobs)
            else:
                # A worker may outlive this process, and must not keep the lock that shows that the file is written.
                results = share(make_task_runner, context, tasks, jobs, attaching.start, (attaching.descriptor,))
            self._collect(results, order, progress)

    def _collect(
        self, results: Iterator[tuple[int, TaskResult]], order: Sequence[int], progress: Progress | None
    ) -> None:
        """Store each result as it arrives.

        results: (position in order, result). order: indices of the items, as they are processed. progress: called after
        each.
        """
        for done, (position, result) in enumerate(results, 1):
            index = order[position]
            self._results[index] = result
            if progress is not None:
                item = self._items[index]
                label = f"container {item.container}" + (f" for {item.arch}" if isinstance(item, PlannedImage) else "")
                progress(done, len(order), label)

    def _task(self, index: int) -> Task:
        """Return the task for a worker process that makes the twins (kernels with probes) of an item of the plan."""
        item = self._items[index]
        if isinstance(item, PlannedImage):
            # For the key of the entry.
            digest, _ = self._plan.identities[item.container]
            return Task(item, digest)
        return Task(item)

    def _images_with_entry(self) -> list[int]:
        """Return the indices of the images that have an entry, in the plan's order.

        One without any text has none, since the hook (which launches twins) does not look it up.
        """
        return [
            index
            for index in range(len(self._plan.images))
            if index in self._results and self._results[index].entry is not None
        ]

    def rows(self) -> list[TwinsRow]:
        """Return the section's rows, one per entry and device. A row's entry is an index into ``entries``."""
        rows = []
        for entry_index, index in enumerate(self._images_with_entry()):
            planned = self._plan.images[index]
            digest, size = self._plan.identities[planned.container]
            rows += [
                TwinsRow(
                    image_digest=digest,
                    image_size=size,
                    key=self._results[index].key,
                    arch=arch,
                    device=self._settings.device,
                    entry=entry_index,
                )
                for arch in planned.devices
            ]
        return rows

    def entries(self) -> list[memoryview]:
        """Return the entries in the plan's order, as views of the memory-mapped spool."""
        entries = [self._results[index].entry for index in self._images_with_entry()]
        return self._spool.entries([entry for entry in entries if entry is not None])

    def report(self, names: tuple[str, ...]) -> Report:
        """Return the report of all kernels, ordered by container and then as the architectures were given.

        names: of the probes. Kernels of a container that has copies in the file are reported for each copy, too.
        """
        # (container, item's index, report). Items of one container are in the order of the architectures.
        kernels: list[tuple[int, int, KernelReport]] = []
        # A dict for distinct notes in order: many images have the same.
        notes = dict.fromkeys(self._plan.notes)
        for index, item in enumerate(self._items):
            result = self._results[index]
            notes |= dict.fromkeys(result.notes)
            kernels += [(item.container, index, kernel) for kernel in result.kernels]
            for copy in self._plan.copies.get(item.container, ()):
                kernels += [(copy, index, replace(kernel, container=copy)) for kernel in result.kernels]
        # The sort is stable, so kernels of one item keep their order.
        kernels.sort(key=lambda row: row[:2])
        return Report(
            self._source,
            output=None,
            probes=names,
            archs=self._plan.archs,
            kernels=tuple(kernel for _, _, kernel in kernels),
            notes=tuple(notes),
        )
