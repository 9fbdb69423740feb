"""What ``--check`` finds: whether a patched file's section, twins and original are what they should be."""

from __future__ import annotations

import json
import mmap
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from neutrino.abi.reasons import Reason
from neutrino.ahead.original import is_unchanged, read_original
from neutrino.ahead.place import SectionPlace, find_section
from neutrino.ahead.plan import image_identity
from neutrino.ahead.restore import restore
from neutrino.ahead.section import Section, read_section
from neutrino.ahead.validation import complaints, has_lief, lief_version, new_complaints
from neutrino.cache.entry import Entry, KernelEntry, read_entry
from neutrino.device.kind import DeviceKind
from neutrino.device.source import picked_image
from neutrino.elf.constants import DT_AUXILIARY, DT_STRTAB, MAGIC, PF_X, PT_INTERP, PT_LOAD
from neutrino.elf.reader import Elf
from neutrino.errors import FormatError, PatchError, PtxError
from neutrino.fatbin import Container, ImageKind, read_container, read_file
from neutrino.ptx.text.module import parse
from neutrino.resources import tool_path
from neutrino.sass.cubin import CubinKernel, read_cubin
from neutrino.version import __version__

_PAGE = 4096
_LONGEST_PATH = 4096
_FILES = ("manifest.json", "original.ptx", "probed.ptx")
_KINDS = ("images", "kernels", "twins")

_Parameters = list[tuple[int, int]]


@dataclass
class Check:
    """What was found. faults: none in a valid file. notes: remarks that are not faults of the file.

    names: of the probes. maker: version of Neutrino that wrote the section. counts: of images with a row, kernels with
    a reason, twins. archs: of the devices that the twins are for. embedded: whether these are the embedded device.
    lief: the version of LIEF that has looked at the file, "" where none is installed.
    """

    file: Path
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    names: str = ""
    maker: str = ""
    archs: tuple[str, ...] = ()
    embedded: bool = False
    lief: str = ""
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_KINDS, 0))

    @property
    def is_valid(self) -> bool:
        """Whether there is no fault."""
        return not self.faults

    def add(self, error: FormatError) -> None:
        """Add an error as a fault, without the file's name."""
        self.faults.append(str(error).removeprefix(f"{self.file}: "))

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "file": str(self.file), "sound": self.is_valid, "faults": self.faults, "notes": self.notes,
            "probes": self.names.split(), "archs": list(self.archs), "device": "embedded" if self.embedded else "gpu",
            "maker": self.maker, "lief": self.lief or None, **self.counts,
        }  # fmt: skip


def check_file(path: Path) -> Check:
    """Check a patched file: its section, each entry and twin, the images they are for, the original's bytes, the stub.

    Raises OSError when the file cannot be read; whatever is wrong with its content is a fault.
    """
    check = Check(path)
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            check.faults.append("the file is empty")
            return check
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        try:
            elf = Elf(data, str(path))
            place = find_section(elf)
            if place is None:
                check.faults.append("there is no .neutrino section: the file is not patched")
                return check
            _check_place(elf, place, check)
            section = read_section(data[place.offset : place.offset + place.size], str(path), place.offset)
        except FormatError as error:
            check.add(error)
            return check
        check.names, check.maker = section.names, section.maker
        check.archs = tuple(dict.fromkeys(row.arch for row in section.rows))
        check.embedded = any(row.device is DeviceKind.EMBEDDED for row in section.rows)
        _check_report(section, check)
        _check_stub(elf, path, check)
        _Twins(section, path, check).check()
        _check_original(elf, file.fileno(), size, check)
    _check_with_lief(path, check)
    return check


def _check_place(elf: Elf, place: SectionPlace, check: Check) -> None:
    """The hook finds the section as the first bytes of a segment that is loaded."""
    for segment in elf.segments:
        if segment.type == PT_LOAD and segment.offset == place.offset:
            if segment.file_size < place.size:
                check.faults.append(f"the segment holds {segment.file_size} of the section's {place.size} bytes")
            if segment.address % _PAGE != segment.offset % _PAGE or segment.address % _PAGE:
                check.faults.append(f"the section is not page-aligned in memory: {segment.address:#x}")
            if segment.flags & PF_X:
                check.faults.append("the section is in an executable segment")
            return
    check.faults.append("no segment begins with the section, so it cannot be found in memory")


def _check_report(section: Section, check: Check) -> None:
    try:
        report = json.loads(section.report)
        kernels = report["kernels"]
        names = " ".join(report["probes"])
        twins = sum(kernel["status"] == "probed" for kernel in kernels)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        check.faults.append(f"the report is not what neutrino-patch writes: {error!r}")
        return
    if not twins:
        check.faults.append("the report names no kernel with a twin")
    if names != section.names:
        check.faults.append(f"the header names the probes {section.names!r}, the report {names!r}")
    if not section.probes or not section.reader:
        check.faults.append("probe.toml or read.py is missing")
    # No digest covers these texts.
    for what, text in (("probe.toml", section.probes), ("read.py", section.reader)):
        try:
            if "\0" in text.decode():
                check.faults.append(f"{what} is not text: it holds NUL")
        except UnicodeDecodeError as error:
            check.faults.append(f"{what} is not text: {error}")
    if section.maker == __version__ and section.reader != tool_path("read.py").read_bytes():
        check.notes.append("its read.py differs from the one of this Neutrino, which has the same version")


def _check_stub(elf: Elf, path: Path, check: Check) -> None:
    if any(segment.type == PT_INTERP for segment in elf.segments):
        return
    try:
        tags = elf.dynamic
        strings = elf.file_range(tags.get(DT_STRTAB, 0))
        name = b""
        if strings and DT_AUXILIARY in tags:
            begin = strings[0] + tags[DT_AUXILIARY]
            name = bytes(elf.data[begin : min(begin + _LONGEST_PATH, strings[1])]).partition(b"\0")[0]
    except FormatError as error:
        check.add(error)
        return
    if not name:
        check.faults.append("DT_AUXILIARY names no stub: nothing is recorded without the neutrino command")
        return
    if note := stub_note(os.fsdecode(name), path.resolve().parent):
        check.notes.append(note)


def stub_note(stub: str, folder: Path) -> str:
    """A note about a stub that cannot be loaded; "" for one that can. folder: the one of the file that names it.

    A bare name is looked up by the dynamic loader when the file is loaded, so it is not checked.
    """
    if "/" not in stub:
        return ""
    place = Path(stub.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", str(folder)))
    if not place.is_file():
        return f"the stub is not on this machine: {stub}; without it only the neutrino command records"
    with place.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            return f"the stub is not a library: {stub}; only the neutrino command records"
    return ""


def _check_original(elf: Elf, descriptor: int, size: int, check: Check) -> None:
    try:
        original = read_original(elf)
    except FormatError as error:
        check.add(error)
        return
    if original is not None and not is_unchanged(descriptor, size, original):
        check.notes.append("another tool changed the file after it was patched: --restore cannot restore the original")


def _check_with_lief(path: Path, check: Check) -> None:
    """What LIEF, a second ELF reader, reports of the file, without what it reports of the original."""
    if not has_lief():
        return
    check.lief = lief_version()
    found = complaints(path)
    if not found:
        return
    try:
        with tempfile.TemporaryDirectory(prefix="neutrino-") as folder:
            original = Path(folder) / "original"
            restore(path, original)
            known = complaints(original)
    except PatchError:
        # Another tool changed the file, so its faults may not be ours.
        check.notes += [f"LIEF: {complaint}" for complaint in found]
        return
    new = new_complaints(found, known)
    check.faults += [f"LIEF: {complaint}" for complaint in new]
    check.notes += [f"LIEF, also of the original: {complaint}" for complaint in found if complaint not in new]


class _Twins:
    """The rows, the entries that they lead to, and the file's own images that they are for."""

    def __init__(self, section: Section, path: Path, check: Check) -> None:
        self._section = section
        self._path = path
        self._check = check

    def check(self) -> None:
        """Add every fault of rows, entries and twins."""
        try:
            containers = read_file(self._path)
        except FormatError as error:
            self._check.add(error)
            return
        images = {image_identity(container): container for container in containers if container.images}
        counts = self._check.counts
        counts["images"] = len({row.image_digest for row in self._section.rows})
        rows = {row.entry: row for row in reversed(self._section.rows)}
        for number, row in enumerate(self._section.rows):
            if (row.image_digest, row.image_size) not in images:
                self._fault(f"row {number} ({row.arch}): no image of the file has its digest")
        for number, row in sorted(rows.items()):
            name = f"entry {number}"
            try:
                entry = read_entry(bytes(self._section.entries[number]), name)
            except FormatError as error:
                self._fault(str(error))
                continue
            for other in self._section.rows:
                if other.entry == number and other.key != entry.key:
                    self._fault(f"{name}: its key is not that of its row for {other.arch}")
            counts["kernels"] += len(entry.kernels)
            counts["twins"] += sum(kernel.reason is Reason.PROBED for kernel in entry.kernels)
            container = images.get((row.image_digest, row.image_size))
            self._check_entry(entry, name)
            if container is not None:
                self._check_originals(entry, name, container, row.arch, row.device)

    def _fault(self, text: str) -> None:
        self._check.faults.append(text)

    def _check_entry(self, entry: Entry, name: str) -> None:
        probed = [kernel for kernel in entry.kernels if kernel.reason is Reason.PROBED]
        forms: list[list[dict[str, _Parameters]]] = []
        for index, image in enumerate(entry.images):
            try:
                forms.append(list(_kernels_of(image, f"{name}, image {index}")))
            except (FormatError, PtxError) as error:
                self._fault(f"{name}, image {index}: {error}")
                return
        for kernel in probed:
            missing = [file for file in _FILES if file not in kernel.files]
            if missing:
                self._fault(f"{name}: {kernel.name} has no {', '.join(missing)}")
            expected = [*kernel.parameters, (kernel.block_offset, kernel.block_size)]
            for index in (kernel.image, kernel.capped) if kernel.capped else (kernel.image,):
                for found in forms[index]:
                    if found.get(kernel.twin) != expected:
                        self._fault(
                            f"{name}, image {index}: {kernel.twin} has parameters (offset, size) "
                            f"{found.get(kernel.twin, 'none: it is not there')}, expected {expected}"
                        )

    def _check_originals(self, entry: Entry, name: str, container: Container, arch: str, device: DeviceKind) -> None:
        picked = picked_image(container, arch, device)
        if picked is None:
            self._fault(f"{name}: its image has nothing that the driver picks for {arch}")
            return
        try:
            originals = _parameters(picked.kind, picked.data, f"container {container.index}, image {picked.index}")
        except (FormatError, PtxError) as error:
            self._fault(str(error))
            return
        for kernel in _probed(entry):
            if originals.get(kernel.name) != list(kernel.parameters):
                self._fault(
                    f"{name}: {kernel.name} has parameters (offset, size) "
                    f"{originals.get(kernel.name, 'none: it is not there')} in the file's image for {arch}, "
                    f"{list(kernel.parameters)} in the entry"
                )


def _probed(entry: Entry) -> Iterator[KernelEntry]:
    return (kernel for kernel in entry.kernels if kernel.reason is Reason.PROBED)


def _kernels_of(image: bytes, name: str) -> Iterator[dict[str, _Parameters]]:
    """Parameters of the kernels, once for each form that the twins are in."""
    for part in read_container(image, name).images:
        if part.kind in (ImageKind.CUBIN, ImageKind.PTX):
            yield _parameters(part.kind, part.data, name)


def _parameters(kind: ImageKind, data: bytes, name: str) -> dict[str, _Parameters]:
    if kind is ImageKind.CUBIN:
        return {kernel.name: _places(kernel) for kernel in read_cubin(data, name).kernels.values()}
    module = parse(data.decode("latin-1"))
    return {
        entry.name: [(parameter.offset, parameter.size) for parameter in module.parameter_layout(entry)[0]]
        for entry in module.entries
    }


def _places(kernel: CubinKernel) -> _Parameters:
    return [(offset, size) for _, offset, size in kernel.parameters]
