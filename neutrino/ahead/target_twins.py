"""The task of a worker process: make the twins of one target of the plan, as a cache entry, and report each kernel."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from neutrino.abi.entries import FewerBlocks
from neutrino.abi.reasons import Reason
from neutrino.ahead.plan import SkippedImage, Target, driver_bytes
from neutrino.ahead.report import KernelReport
from neutrino.ahead.workers import Slots
from neutrino.assemble.dump import Dump
from neutrino.assemble.emit import Emit
from neutrino.cache.entry import KernelEntry, write_entry
from neutrino.cache.key import image_key, patcher_identity, run_key
from neutrino.device.kind import DeviceKind
from neutrino.device.linked_source import RELOCATABLE_SECTION, find_linked_source
from neutrino.device.registers import warps_by_registers
from neutrino.device.source import DEBUG_SECTION, find_source, picked_image
from neutrino.errors import ToolMissingError
from neutrino.fatbin import Container, kernel_names, read_file
from neutrino.patch.image import Twins, make_linked_twins, make_twins
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.selection import Selection
from neutrino.toolchain.choice import find_assembler_for, find_linking_tools
from neutrino.toolchain.nvlink import Linker
from neutrino.toolchain.ptxas import Assembler
from neutrino.toolchain.releases import release_of_ptx
from neutrino.version import __version__

NOT_ASSEMBLED = "no ptxas on this machine: neither registers nor arithmetic of the twins were verified"
"""The note of a patched file for the embedded device."""


@dataclass(frozen=True)
class Settings:
    """Settings for all targets of a file.

    selection: of kernels. device: GPUs or the emulator. emit: the form of twins for the driver. retarget: also use PTX
    for another architecture than the machine code's, if it is proven to be the program that runs. save_temps: a folder
    for the output of each stage. unproven: with retarget, also if it is neither proven nor contradicted. max_registers:
    a cap of twins' registers per thread, None without one.
    """

    probes: ProbeSet
    selection: Selection = field(default_factory=Selection)
    device: DeviceKind = DeviceKind.GPU
    emit: Emit = Emit.SASS
    retarget: bool = False
    save_temps: Path | None = None
    unproven: bool = False
    max_registers: int | None = None


@dataclass(frozen=True)
class Task:
    """A target, with the SHA-256 of its image; or an image that gets no twins, whose kernels are only reported."""

    item: Target | SkippedImage
    digest: bytes = b""


@dataclass(frozen=True)
class TaskResult:
    """The result of a task.

    entry: in the format of ``neutrino.cache.entry``; None if the image has no PTX at all. key: the entry's key, 32
    bytes. notes: remarks for the user.
    """

    kernels: tuple[KernelReport, ...]
    entry: bytes | None = None
    key: bytes = b""
    notes: tuple[str, ...] = ()


def make_task_runner(context: tuple[Path, Settings, Slots]) -> Callable[[Task], TaskResult]:
    """Return a function that runs tasks of one file. Raises FormatError, OSError as ``read_file``.

    context: the file, the settings, and the slots that limit how many assemblers run at once.
    """
    path, settings, slots = context
    return functools.partial(_run_task, _TwinMaker(read_file(path), settings, slots))


def _run_task(maker: _TwinMaker, task: Task) -> TaskResult:
    if isinstance(task.item, SkippedImage):
        return maker.report_skipped(task.item)
    return maker.make(task.item, task.digest)


class _TwinMaker:
    """Makes the twins of targets in one file.

    containers: all of the file's. units: those of them with relocatable translation units, where device-linked code has
    its PTX. slots: as in ``make_task_runner``.
    """

    def __init__(self, containers: Sequence[Container], settings: Settings, slots: Slots) -> None:
        """containers: all of the file's, relocatable units included. slots: limit how many assemblers run at once."""
        self._slots = slots
        self._containers = containers
        self._units = [container for container in containers if container.section == RELOCATABLE_SECTION]
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

    def make(self, target: Target, digest: bytes) -> TaskResult:
        """Make the twins (instrumented kernels) of one image for one architecture; return their entry and reports.

        digest: SHA-256 of the image. Raises NeutrinoError, OSError.
        """
        settings = self._settings
        container = self._containers[target.container]
        # Without save_temps it writes nothing.
        dump = Dump(settings.save_temps / f"{target.container}.{target.arch}" if settings.save_temps else None)
        if settings.save_temps:
            dump.write("image.bin", b"".join(driver_bytes(container)))
        make_code = self._make_linked if target.linked else self._make_from_module
        twin_code = make_code(container, target, dump)

        # The plan has only targets for which the driver picks an image.
        picked = picked_image(container, target.arch, settings.device)
        image = picked.index if picked else 0
        reports = tuple(
            _report_kernel(kernel, target, image, twin_code.arch, twin_code.retargeted)
            for kernel in twin_code.twins.kernels
        )
        if not twin_code.has_text:
            # The hook (which launches twins) never looks up an image without PTX, so it needs no entry.
            return TaskResult(reports, notes=twin_code.notes)

        # The key covers everything that the twins depend on: the tools, the form and the settings, the patcher's
        # sources, the architecture. The image itself is represented by its digest.
        identity = ", ".join(tool.identity for tool in (twin_code.assembler, twin_code.linker) if tool) or "none"
        made_with = f"{identity} {settings.emit.value}{_retarget_key(settings)}"
        run = run_key(
            settings.probes.digest, settings.selection.digest, made_with, f"{__version__} {patcher_identity()}",
            settings.device, settings.max_registers,
        )  # fmt: skip
        key = image_key(run, target.arch, digest)
        entry = write_entry(key, settings.probes.maps, twin_code.twins.kernels, twin_code.twins.images)
        return TaskResult(reports, entry, key, twin_code.notes)

    def _make_from_module(self, container: Container, target: Target, dump: Dump) -> _TwinCode:
        """Make twins (instrumented kernels) from the one PTX module of a container. Raises NeutrinoError, OSError."""
        settings = self._settings
        source = find_source(container, target.arch, settings.device, retarget=settings.retarget)

        # Prefer the assembler of the toolkit release that made the original, as machine code or else PTX states it.
        # A version of (0, 0) is unknown.
        release = source.machine.toolkit if source.machine else None
        texts = [image for image in container.images if image.index == source.image and image.version != (0, 0)]
        if release is None and source.machine is None and texts:
            release = release_of_ptx(texts[0].version)
        # Without PTX there is nothing to assemble; make_twins then gives the kernels their reasons.
        assembler: Assembler | None = None
        notes = []
        if source.text is not None:
            try:
                assembler = replace(find_assembler_for(release, source.arch), slots=self._slots)
                notes = _driver_notes(assembler, release, settings)
            except ToolMissingError:
                # The embedded device runs PTX, so its twins need not be assembled.
                if settings.device is DeviceKind.GPU:
                    raise
                notes = [NOT_ASSEMBLED]
        twins = make_twins(
            source, settings.probes, selection=settings.selection, assembler=assembler, device=settings.device,
            emit=settings.emit, unproven=settings.unproven, max_registers=settings.max_registers, dump=dump,
        )  # fmt: skip
        # The PTX may also be in the cubin itself.
        has_text = any(image.kind.value == "ptx" for image in container.images) or source.found == DEBUG_SECTION
        return _TwinCode(twins, source.arch, has_text, assembler, tuple(notes), source.retargeted)

    def _make_linked(self, container: Container, target: Target, dump: Dump) -> _TwinCode:
        """Make twins (instrumented kernels) of device-linked code, from the PTX of its translation units.

        Raises NeutrinoError, OSError.
        """
        settings = self._settings
        source = find_linked_source(container, self._units, target.arch)
        # The toolkit that made the original, None if it is not known.
        release = source.machine.toolkit if source.machine else None
        assembler, linker = find_linking_tools(release, source.arch)
        assembler = replace(assembler, slots=self._slots)
        twins = make_linked_twins(
            source, settings.probes, selection=settings.selection, assembler=assembler, linker=linker,
            max_registers=settings.max_registers, dump=dump,
        )  # fmt: skip
        notes = _driver_notes(assembler, release, settings)
        if settings.emit is not Emit.SASS:
            notes.append("device-linked code: its twins are machine code only, whatever --emit says")
        return _TwinCode(twins, source.arch, has_text=True, assembler=assembler, notes=tuple(notes), linker=linker)


@dataclass(frozen=True)
class _TwinCode:
    """Twins of one image, and the tools that made them.

    arch: what their code is for. has_text: whether the image holds PTX; the hook looks up only such images. assembler:
    None if nothing was assembled. notes: remarks for the user. retargeted: as ``Source.retargeted``. linker: None if
    the image is not device-linked.
    """

    twins: Twins
    arch: str
    has_text: bool
    assembler: Assembler | None
    notes: tuple[str, ...] = ()
    retargeted: str = ""
    linker: Linker | None = None


def _retarget_key(settings: Settings) -> str:
    """Return the retarget settings as a part of cache keys, "" for the default."""
    return f" retarget{' unproven' if settings.unproven else ''}" if settings.retarget else ""


def _driver_notes(assembler: Assembler, release: tuple[int, int] | None, settings: Settings) -> list[str]:
    """Return a note if machine code of twins (instrumented kernels) may need a newer driver than the originals do.

    release: the CUDA toolkit (major, minor) that made the originals; None if it is not known. PTX is compiled by the
    driver itself, so it needs no note.
    """
    if settings.emit is Emit.PTX or settings.device is DeviceKind.EMBEDDED:
        return []
    if release is not None and assembler.version[:2] <= release:
        # A driver that runs the originals is new enough.
        return []
    made_by = f"newer than CUDA {release[0]}.{release[1]}, which made the originals" if release else (
        "the oldest here, and what made the originals is not known"
    )  # fmt: skip
    version = f"{assembler.version[0]}.{assembler.version[1]}"
    return [f"{assembler.name} is {made_by}: the twins need a driver of CUDA {version}"]


def _report_kernel(kernel: KernelEntry, target: Target, image: int, arch: str, retargeted: str) -> KernelReport:
    """Return the report of one kernel, from its entry and the manifest of its twin (instrumented copy).

    target: what the entry was made for. image: index of the image that the driver picks. arch: what its code is for.
    retargeted: ``sm_120 → sm_90`` if the twins are made from PTX for another architecture, else "".
    """
    report = KernelReport(
        kernel.name, target.container, image, arch, target.devices, kernel.reason, kernel.detail,
        retargeted={"target": retargeted} if retargeted else None,
    )  # fmt: skip
    if kernel.reason is not Reason.PROBED:
        # Without a twin there is no manifest, which the rest is from.
        return report
    manifest = json.loads(kernel.files["manifest.json"])
    # None if nothing was assembled.
    registers = manifest["registers"]
    may_fall = registers is not None and kernel.fewer_blocks is not FewerBlocks.NONE
    before, after = (registers[which] if may_fall else 0 for which in ("original", "twin"))
    return replace(
        report,
        sites=len(manifest["sites"]),
        registers=(registers["original"], registers["twin"]) if registers else None,
        retargeted=manifest["retargeted"],
        probes_left_out=tuple(manifest.get("probes_left_out", ())),
        max_registers=manifest.get("max_registers"),
        warps_by_registers=(warps_by_registers(before, arch), warps_by_registers(after, arch)) if may_fall else None,
    )
