"""The task of a worker process: make the twins of one image of the plan, as a cache entry, and report each kernel."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from neutrino.abi.entries import FewerBlocks
from neutrino.abi.reasons import Reason
from neutrino.assemble.dump import Dump
from neutrino.assemble.emit import Emit
from neutrino.backend.protocol import Options, Shipped, Target, Tools
from neutrino.backend.registry import is_unit, target_of_device
from neutrino.device.kind import DeviceKind
from neutrino.device.machine_code import MachineCode
from neutrino.elf.cursor import release
from neutrino.fatbin import Container, kernel_names
from neutrino.maker.keys import image_key, patcher_identity, run_key
from neutrino.maker.patcher import Twins, make_twins
from neutrino.patched_files.entry_spool import EntrySpool, Range
from neutrino.patched_files.file_images import read_images
from neutrino.patched_files.patch_plan import PlannedImage, SkippedImage, driver_bytes
from neutrino.patched_files.patch_report import KernelReport
from neutrino.patched_files.workers import Slots
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.selection import Selection
from neutrino.twins.cache_entry import KernelEntry, write_entry_file
from neutrino.version import __version__


@dataclass(frozen=True)
class Settings:
    """Settings for all images of a file.

    selection: of kernels. device: GPUs or the emulator. emit: the form of twins for the driver. retarget: also use text
    for another architecture than the machine code's, if it is proven to be the program that runs. save_temps: a folder
    for the output of each stage. unproven: with retarget, also if it is neither proven nor contradicted. max_registers:
    a cap of twins' registers per thread, None without one. machine_code: of which machine code twins are made, where
    kernels have no text of their own.
    """

    probes: ProbeSet
    selection: Selection = field(default_factory=Selection)
    device: DeviceKind = DeviceKind.GPU
    emit: Emit = Emit.CODE
    retarget: bool = False
    save_temps: Path | None = None
    unproven: bool = False
    max_registers: int | None = None
    machine_code: MachineCode = MachineCode.OFF


WITHOUT_TEXT = frozenset({Reason.NO_PTX, Reason.VARIANT})
"""Why a kernel has no twin of a text of its own."""


@dataclass(frozen=True)
class Task:
    """An image that gets twins, with its SHA-256; or one that gets none, whose kernels are only reported."""

    item: PlannedImage | SkippedImage
    digest: bytes = b""


@dataclass(frozen=True)
class TaskResult:
    """The result of a task.

    entry: where in the ``EntrySpool`` it is, in the format of ``twins/cache_entry.py``; None if the hook does not look
    for twins of the image. key: the entry's key, 32 bytes. notes: remarks for the user.
    """

    kernels: tuple[KernelReport, ...]
    entry: Range | None = None
    key: bytes = b""
    notes: tuple[str, ...] = ()


def make_task_runner(context: tuple[Path, Settings, Slots, EntrySpool]) -> Callable[[Task], TaskResult]:
    """Return a function that runs tasks of one file. Raises FormatError, OSError as ``read_images``.

    context: the file, the settings, the slots that limit how many assemblers run at once, and what collects entries.
    """
    path, settings, slots, spool = context
    return functools.partial(_run_task, _TwinMaker(read_images(path), settings, slots, spool))


def _run_task(maker: _TwinMaker, task: Task) -> TaskResult:
    """Do one task of a worker: make an image's twins, or report an image that is skipped."""
    if isinstance(task.item, SkippedImage):
        return maker.report_skipped(task.item)
    return maker.make(task.item, task.digest)


class _TwinMaker:
    """Makes the twins of images in one file.

    containers: all of the file's. units: those of them with relocatable translation units, where device-linked code has
    its text. slots: as in ``make_task_runner``.
    """

    def __init__(
        self, containers: Sequence[Container], settings: Settings, slots: Slots, spool: EntrySpool
    ) -> None:
        """Set up a maker of twins (kernels with probes) for a file. containers: all of it. slots: limit assemblers at
        once. spool: collects the entries."""
        self._slots = slots
        self._spool = spool
        self._containers = containers
        self._units = [container for container in containers if is_unit(container)]
        self._settings = settings

    def report_skipped(self, skipped: SkippedImage) -> TaskResult:
        """Report the kernels of an image that gets no twins (instrumented kernels). Only their names are read."""
        image = self._containers[skipped.container].images[skipped.image]
        return TaskResult(
            tuple(
                KernelReport(name, skipped.container, skipped.image, image.arch, (), skipped.reason, skipped.detail)
                for name in kernel_names(image)
            )
        )

    def make(self, planned: PlannedImage, digest: bytes) -> TaskResult:
        """Make the twins (instrumented kernels) of one image for one architecture; return their entry and reports.

        digest: SHA-256 of the image. Raises NeutrinoError, OSError.
        """
        settings = self._settings
        container = self._containers[planned.container]
        # What was read of the file before takes memory until it is said that it need not.
        for image in container.images[:1]:
            release(image.payload)
        # Without save_temps it writes nothing.
        dump = Dump(settings.save_temps / f"{planned.container}.{planned.arch}" if settings.save_temps else None)
        if settings.save_temps:
            dump.write("image.bin", b"".join(driver_bytes(container)))
        options = Options(settings.device, settings.emit, settings.unproven, settings.max_registers, dump=dump)
        target = target_of_device(planned.arch)
        # An image of a compressed bundle is decoded with all of it.
        is_large = any(image.within is not None for image in container.images)
        with self._spool.turn if is_large else contextlib.nullcontext():
            shipped = target.find(container, self._units, planned.arch, settings.device, retarget=settings.retarget)
        tools, notes = target.tools(container, shipped, options)
        if tools is not None:
            tools = tools.limited(self._slots)
        twins = make_twins(
            target, shipped, settings.probes, selection=settings.selection, tools=tools, options=options
        )
        is_code = target.alone(shipped) is not None and settings.machine_code.takes(shipped.arch)
        code = settings.machine_code if is_code else MachineCode.OFF
        if code.is_on and any(kernel.reason in WITHOUT_TEXT for kernel in twins.kernels):
            tools = target.run_tools(None)
            tools = tools.limited(self._slots) if tools is not None else None
            twins = self._of_machine_code(target, shipped, twins, tools, replace(options, machine_code=code))

        reports = tuple(_report_kernel(target, kernel, planned, shipped) for kernel in twins.kernels)
        if not target.is_looked_up(container, shipped) and all(row.reason is not Reason.PROBED for row in reports):
            # So it needs no entry.
            return TaskResult(reports, notes=notes)

        # The key covers everything that the twins depend on: the tools, the form and the settings, the patcher's
        # sources, the architecture. The image itself is represented by its digest.
        made_with = f"{tools.identity if tools else 'none'} {target.forms[settings.emit]}{_retarget_key(settings)}"
        run = run_key(
            settings.probes.digest, settings.selection.digest, made_with, f"{__version__} {patcher_identity()}",
            settings.device, settings.max_registers, code,
        )  # fmt: skip
        key = image_key(run, planned.arch, digest)
        entry = self._spool.append(
            lambda file: write_entry_file(file, key, settings.probes.maps, twins.kernels, twins.images)
        )
        return TaskResult(reports, entry, key, notes)

    def _of_machine_code(
        self, target: Target, shipped: Shipped, twins: Twins, tools: Tools | None, options: Options
    ) -> Twins:
        """Return twins (instrumented kernels) with those that can be made of machine code, each in an image of its own.

        twins: of the image, without these. Raises NeutrinoError, OSError.
        """
        kernels, images = [], list(twins.images)
        for number, kernel in enumerate(twins.kernels):
            if kernel.reason not in WITHOUT_TEXT:
                kernels.append(kernel)
                continue
            made = make_twins(
                target, shipped, self._settings.probes, selection=self._settings.selection, tools=tools,
                options=replace(options, kernel=kernel.name, dump=options.dump.part(f"kernel-{number}")),
            )  # fmt: skip
            kernels += [replace(one, image=len(images) + one.image) for one in made.kernels]
            images += made.images
        return Twins(tuple(kernels), tuple(images))


def _retarget_key(settings: Settings) -> str:
    """Return the retarget settings as a part of cache keys, "" for the default."""
    return f" retarget{' unproven' if settings.unproven else ''}" if settings.retarget else ""


def _report_kernel(target: Target, kernel: KernelEntry, planned: PlannedImage, shipped: Shipped) -> KernelReport:
    """Return the report of one kernel, from its entry and the manifest of its twin (instrumented copy).

    target: whose kernel it is. planned: what the entry was made for. shipped: what the twins were made from.
    """
    # The plan has only images that the driver picks.
    report = KernelReport(
        kernel.name, planned.container, shipped.image or 0, shipped.arch, planned.devices, kernel.reason, kernel.detail,
        retargeted={"target": shipped.retargeted} if shipped.retargeted else None,
    )  # fmt: skip
    if kernel.reason is not Reason.PROBED:
        # Without a twin there is no manifest, which the rest is from.
        return report
    manifest = json.loads(kernel.files["manifest.json"])
    # None if nothing was assembled.
    registers = manifest["registers"]
    may_fall = registers is not None and kernel.fewer_blocks is not FewerBlocks.NONE
    warps = (0, 0)
    if may_fall:
        warps = (
            target.warps_by_registers(registers["original"], shipped.arch),
            target.warps_by_registers(registers["twin"], shipped.arch),
        )
    return replace(
        report,
        sites=len(manifest["sites"]),
        registers=(registers["original"], registers["twin"]) if registers else None,
        retargeted=manifest["retargeted"],
        probes_left_out=tuple(manifest.get("probes_left_out", ())),
        max_registers=manifest.get("max_registers"),
        # Where the registers leave room for as many as before, nothing is to be said.
        warps_by_registers=warps if warps[1] < warps[0] else None,
    )
