"""The work of a worker process: make the twins of one target of the plan, as an entry, and report each kernel."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from neutrino.abi.reasons import Reason
from neutrino.ahead.report import KernelReport
from neutrino.ahead.sources import Listed, Target, driver_bytes
from neutrino.ahead.workers import Slots
from neutrino.assemble.dump import Dump
from neutrino.assemble.emit import Emit
from neutrino.cache.entry import KernelEntry, write_entry
from neutrino.cache.key import image_key, patcher_identity, run_key
from neutrino.device.kind import DeviceKind
from neutrino.device.linked_source import RELOCATABLE_SECTION, find_linked_source
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


@dataclass(frozen=True)
class Settings:
    """Settings for all targets of a file.

    retarget: also use PTX for another architecture than the machine code's, if it is proven to be the program that
    runs. unproven: with retarget, also if it is neither proven nor contradicted.
    """

    probes: ProbeSet
    selection: Selection = field(default_factory=Selection)
    device: DeviceKind = DeviceKind.GPU
    emit: Emit = Emit.SASS
    retarget: bool = False
    save_temps: Path | None = None
    unproven: bool = False


@dataclass(frozen=True)
class Task:
    """A target, with its image's SHA-256; or an image whose kernels are listed only, without."""

    work: Target | Listed
    digest: bytes = b""


@dataclass(frozen=True)
class Made:
    """The result of a task. entry: None if the program's image has no PTX at all. key: the entry's, 32 bytes."""

    kernels: tuple[KernelReport, ...]
    entry: bytes | None = None
    key: bytes = b""
    notes: tuple[str, ...] = ()


def maker(context: tuple[Path, Settings, Slots]) -> Callable[[Task], Made]:
    """A function that does tasks of one file, an assembler per slot. Raises FormatError, OSError as ``read_file``."""
    path, settings, slots = context
    return functools.partial(_make, _Maker(read_file(path), settings, slots))


def _make(maker: _Maker, task: Task) -> Made:
    return maker.list(task.work) if isinstance(task.work, Listed) else maker.make(task.work, task.digest)


class _Maker:
    def __init__(self, containers: Sequence[Container], settings: Settings, slots: Slots) -> None:
        self._slots = slots
        self._containers = containers
        self._units = [container for container in containers if container.section == RELOCATABLE_SECTION]
        self._settings = settings

    def list(self, listed: Listed) -> Made:
        image = self._containers[listed.container].images[listed.image]
        return Made(
            tuple(
                KernelReport(name, listed.container, listed.image, image.arch, (), listed.reason, listed.detail)
                for name in kernel_names(image)
            )
        )

    def make(self, target: Target, digest: bytes) -> Made:
        """Twins for a target. digest: of its image. Raises NeutrinoError, OSError as ``make_twins``."""
        settings = self._settings
        container = self._containers[target.container]
        dump = Dump(settings.save_temps / f"{target.container}.{target.arch}" if settings.save_temps else None)
        if settings.save_temps:
            dump.write("image.bin", b"".join(driver_bytes(container)))
        making = self._link if target.linked else self._assemble
        done = making(container, target, dump)
        picked = picked_image(container, target.arch, settings.device)
        image = picked.index if picked else 0
        reports = tuple(
            _kernel(kernel, target, image, done.arch, done.retargeted) for kernel in done.twins.kernels
        )
        if not done.has_text:
            return Made(reports, notes=done.notes)
        identity = ", ".join(tool.identity for tool in (done.assembler, done.linker) if tool) or "none"
        made_with = f"{identity} {settings.emit.value}{_retargeting(settings)}"
        run = run_key(
            settings.probes.digest, settings.selection.digest, made_with, f"{__version__} {patcher_identity()}",
            settings.device,
        )  # fmt: skip
        # The image's digest stands for it, which the row has as well.
        key = image_key(run, target.arch, digest)
        entry = write_entry(key, settings.probes.maps, done.twins.kernels, done.twins.images)
        return Made(reports, entry, key, done.notes)

    def _assemble(self, container: Container, target: Target, dump: Dump) -> _Done:
        settings = self._settings
        source = find_source(container, target.arch, settings.device, retarget=settings.retarget)
        release = source.machine.toolkit if source.machine else None
        texts = [image for image in container.images if image.index == source.image and image.version != (0, 0)]
        if release is None and source.machine is None and texts:
            release = release_of_ptx(texts[0].version)
        assembler: Assembler | None = None
        notes = []
        if source.text is not None:
            try:
                assembler = replace(find_assembler_for(release, source.arch), slots=self._slots)
                notes = _newer(assembler, release, settings)
            except ToolMissingError:
                if settings.device is DeviceKind.GPU:
                    raise
                notes = [NOT_ASSEMBLED]
        twins = make_twins(
            source, settings.probes, selection=settings.selection, assembler=assembler, device=settings.device,
            emit=settings.emit, unproven=settings.unproven, dump=dump,
        )  # fmt: skip
        has_text = any(image.kind.value == "ptx" for image in container.images) or source.found == DEBUG_SECTION
        return _Done(twins, source.arch, has_text, assembler, tuple(notes), source.retargeted)

    def _link(self, container: Container, target: Target, dump: Dump) -> _Done:
        settings = self._settings
        source = find_linked_source(container, self._units, target.arch)
        release = source.machine.toolkit if source.machine else None
        assembler, linker = find_linking_tools(release, source.arch)
        assembler = replace(assembler, slots=self._slots)
        twins = make_linked_twins(
            source, settings.probes, selection=settings.selection, assembler=assembler, linker=linker, dump=dump
        )
        notes = _newer(assembler, release, settings)
        if settings.emit is not Emit.SASS:
            notes.append("device-linked code: its twins are machine code only, whatever --emit says")
        return _Done(twins, source.arch, True, assembler, tuple(notes), linker=linker)


@dataclass(frozen=True)
class _Done:
    """Twins, and what they were made with. has_text: the image holds PTX, so that the hook looks for its row."""

    twins: Twins
    arch: str
    has_text: bool
    assembler: Assembler | None
    notes: tuple[str, ...] = ()
    retargeted: str = ""
    linker: Linker | None = None


def _retargeting(settings: Settings) -> str:
    return f" retarget{' unproven' if settings.unproven else ''}" if settings.retarget else ""


def _newer(assembler: Assembler, release: tuple[int, int] | None, settings: Settings) -> list[str]:
    if settings.emit is Emit.PTX or settings.device is DeviceKind.EMBEDDED:
        return []
    if release is not None and assembler.version[:2] <= release:
        return []
    made_by = f"newer than CUDA {release[0]}.{release[1]}, which made the originals" if release else (
        "the oldest here, and what made the originals is not known"
    )  # fmt: skip
    version = f"{assembler.version[0]}.{assembler.version[1]}"
    return [f"{assembler.name} is {made_by}: the twins need a driver of CUDA {version}"]


def _kernel(kernel: KernelEntry, target: Target, image: int, arch: str, retargeted: str) -> KernelReport:
    report = KernelReport(
        kernel.name, target.container, image, arch, target.devices, kernel.reason, kernel.detail,
        retargeted={"target": retargeted} if retargeted else None,
    )  # fmt: skip
    if kernel.reason is not Reason.PROBED:
        return report
    manifest = json.loads(kernel.files["manifest.json"])
    registers = manifest["registers"]
    return KernelReport(
        kernel.name, target.container, image, arch, target.devices, kernel.reason, kernel.detail,
        sites=len(manifest["sites"]),
        registers=(registers["original"], registers["twin"]) if registers else None,
        retargeted=manifest["retargeted"],
    )  # fmt: skip
