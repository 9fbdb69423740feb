"""``neutrino-patch --check``: verify a patched file's section, its twins (instrumented kernels), and its original."""

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
from neutrino.backend.protocol import Target
from neutrino.backend.registry import target_of_device
from neutrino.device.kind import DeviceKind
from neutrino.elf.constants import (
    DF_1_NODELETE,
    DT_AUXILIARY,
    DT_FLAGS_1,
    DT_STRTAB,
    EM_AMDGPU,
    MAGIC,
    PF_X,
    PT_INTERP,
    PT_LOAD,
)
from neutrino.elf.reader import Elf
from neutrino.errors import FormatError, NeutrinoError, PatchError
from neutrino.fatbin import Container, read_container
from neutrino.patched_files.file_images import read_images
from neutrino.patched_files.original import is_unchanged, read_original
from neutrino.patched_files.patch_plan import image_identity
from neutrino.patched_files.place import SectionPlace, find_section
from neutrino.patched_files.restore import restore
from neutrino.patched_files.section import Section, read_section
from neutrino.patched_files.validation import complaints, has_lief, lief_version, new_complaints
from neutrino.places import scratch_parent
from neutrino.resources import tool_path
from neutrino.twins.cache_entry import Entry, KernelEntry, read_entry
from neutrino.version import __version__

_PAGE = 4096
_LONGEST_PATH = 4096
"""Bytes of a DT_AUXILIARY that are read, at most."""
_MANIFEST = "manifest.json"
"""The file that an entry holds for each kernel with a twin, beside those of its target."""
_KINDS = ("images", "kernels", "twins")
"""What ``Check.counts`` counts."""

_Parameters = list[tuple[int, int]]
"""Offset and size in bytes of each parameter of a kernel."""


@dataclass
class Check:
    """The result of checking a file. faults: sentences, none for a valid file. notes: remarks that are not faults.

    names: of the probes, separated by spaces. maker: version of Neutrino that wrote the section. archs: of the devices
    that the twins are for. embedded: whether these are the embedded device, the emulator. lief: version of LIEF that
    read the file, "" if it is not installed. counts: numbers of images with a row, of kernels, and of twins.
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
        """Note an error as a fault of the checked file, without the file's name."""
        self.faults.append(str(error).removeprefix(f"{self.file}: "))

    def document(self) -> dict[str, Any]:
        """Return the result as the JSON document of ``--check --json``."""
        return {
            "file": str(self.file), "valid": self.is_valid, "faults": self.faults, "notes": self.notes,
            "probes": self.names.split(), "archs": list(self.archs), "device": "embedded" if self.embedded else "gpu",
            "maker": self.maker, "lief": self.lief or None, **self.counts,
        }  # fmt: skip


def check_file(path: Path) -> Check:
    """Check a patched file: its section, each entry and twin (instrumented kernel), the images that they are for, the
    bytes of the original, and the stub (the library that loads the hook).

    Raises OSError when the file cannot be read. Everything that is wrong with its content is a fault in the result.
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
            # Of a patched image nothing is loaded that was not before, and no loader reads its dynamic section.
            is_image = elf.machine == EM_AMDGPU
            if not is_image:
                _check_place(elf, place, check)
            section = read_section(data[place.offset : place.offset + place.size], str(path), place.offset)
        except FormatError as error:
            check.add(error)
            return check
        # The section can be read: check what is in it. From here on one fault does not hide the others.
        check.names, check.maker = section.names, section.maker
        check.archs = tuple(dict.fromkeys(row.arch for row in section.rows))
        check.embedded = any(row.device is DeviceKind.EMBEDDED for row in section.rows)
        _check_report(section, check)
        if not is_image:
            _check_stub(elf, path, check)
        _TwinCheck(section, path, check).run()
        _check_original(elf, file.fileno(), size, check)
    _check_with_lief(path, check)
    return check


def _check_place(elf: Elf, place: SectionPlace, check: Check) -> None:
    """Check that a loaded segment begins with the section.

    That is how the hook (the library that launches the instrumented kernels) finds the section in memory.
    """
    for segment in elf.segments:
        if segment.type == PT_LOAD and segment.offset == place.offset:
            if segment.file_size < place.size:
                check.faults.append(f"the segment holds {segment.file_size} of the section's {place.size} bytes")
            if segment.address % _PAGE or segment.offset % _PAGE:
                check.faults.append(f"the section is not page-aligned in memory: {segment.address:#x}")
            # The section holds data only, so patching never makes its segment executable.
            if segment.flags & PF_X:
                check.faults.append("the section is in an executable segment")
            return
    check.faults.append("no segment begins with the section, so it cannot be found in memory")


def _check_report(section: Section, check: Check) -> None:
    """Check the report (the JSON of ``neutrino-patch``), the probes and the reader script that the section holds.

    These are for the user and for the trace directories of the program; no twin (instrumented kernel) depends on them.
    """
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
    # No digest covers these texts, so damage shows only if they are no text any more.
    for what, text in (("probe.toml", section.probes), ("read.py", section.reader)):
        try:
            if "\0" in text.decode():
                check.faults.append(f"{what} is not text: it holds NUL")
        except UnicodeDecodeError as error:
            check.faults.append(f"{what} is not text: {error}")
    # Only a note: another build of the same version may have another read.py.
    if section.maker == __version__ and section.reader != tool_path("read.py").read_bytes():
        check.notes.append("its read.py differs from the one of this Neutrino, which has the same version")


def _check_stub(elf: Elf, path: Path, check: Check) -> None:
    """Check that a library names a stub in DT_AUXILIARY, that the stub can be loaded, and the library not unloaded.

    path: of the library.

    The stub is the library that loads the hook, so that kernels are recorded without the neutrino command.
    """
    if any(segment.type == PT_INTERP for segment in elf.segments):
        # A program names no stub: glibc crashes on a DT_AUXILIARY of the program itself.
        return
    try:
        strings = elf.file_range(elf.dynamic.get(DT_STRTAB, 0))
        name = b""
        if strings and DT_AUXILIARY in elf.dynamic:
            strings_begin, strings_end = strings
            begin = strings_begin + elf.dynamic[DT_AUXILIARY]
            name = bytes(elf.data[begin : min(begin + _LONGEST_PATH, strings_end)]).partition(b"\0")[0]
    except FormatError as error:
        check.add(error)
        return
    if not name:
        check.faults.append("DT_AUXILIARY names no stub: nothing is recorded without the neutrino command")
        return
    if not elf.dynamic.get(DT_FLAGS_1, 0) & DF_1_NODELETE:
        check.faults.append("DT_FLAGS_1 lacks NODELETE: a program that opens it by dlmopen ends when it closes it")
    # Only a note: the file is valid, and the stub may well be there on the machine that will load it.
    note = stub_note(os.fsdecode(name), path.resolve().parent)
    if note:
        check.notes.append(note)


def stub_note(stub: str, folder: Path) -> str:
    """Return a note about a stub (the library that loads the hook) that cannot be loaded, "" for one that can.

    stub: the path in DT_AUXILIARY. folder: where the file with that entry is, for ``$ORIGIN``.
    """
    if "/" not in stub:
        # A bare name, which the dynamic loader searches for in folders that depend on the program.
        return ""
    stub_path = Path(stub.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", str(folder)))
    if not stub_path.is_file():
        return f"the stub is not on this machine: {stub}; without it only the neutrino command records"
    with stub_path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            return f"the stub is not a library: {stub}; only the neutrino command records"
    return ""


def _check_original(elf: Elf, descriptor: int, size: int, check: Check) -> None:
    """Check that the original can be restored. descriptor, size: of the patched file.

    A damaged record of the original is a fault. But another tool may change a patched file, and its twins
    (instrumented kernels) still work, so that is only a note.
    """
    try:
        original = read_original(elf)
    except FormatError as error:
        check.add(error)
        return
    if original is not None and not is_unchanged(descriptor, size, original):
        check.notes.append("another tool changed the file after it was patched: --restore cannot restore the original")


def _check_with_lief(path: Path, check: Check) -> None:
    """Let LIEF, a second ELF reader, read the file. What it reports of the original, too, is only a note."""
    if not has_lief():
        # It is an optional dependency; check.lief stays "".
        return
    check.lief = lief_version()
    reported = complaints(path)
    if not reported:
        return
    try:
        with tempfile.TemporaryDirectory(prefix="neutrino-", dir=scratch_parent()) as folder:
            original = Path(folder) / "original"
            restore(path, original)
            of_original = complaints(original)
    except PatchError:
        # Another tool changed the file after it was patched, so it may be the cause of the complaints.
        check.notes += [f"LIEF: {complaint}" for complaint in reported]
        return
    new = new_complaints(reported, of_original)
    check.faults += [f"LIEF: {complaint}" for complaint in new]
    check.notes += [f"LIEF, also of the original: {complaint}" for complaint in reported if complaint not in new]


class _TwinCheck:
    """Compares the section's rows and entries with each other, and with the file's images that they are for.

    A row names an image and an architecture, and by its index the entry with their twins (instrumented kernels), in
    the format of the cache. section: of the patched file path. check: gets the faults and the counts.
    """

    def __init__(self, section: Section, path: Path, check: Check) -> None:
        """Prepare to compare the section of a patched file with the file's images that its instrumented kernels are
        for. check: gets the faults and counts."""
        self._section = section
        self._path = path
        self._check = check

    def run(self) -> None:
        """Check all rows, entries and twins (kernels with probes) of the patched file; note the faults."""
        try:
            containers = read_images(self._path)
        except FormatError as error:
            self._check.add(error)
            return
        # A row names its image by the digest and size of the bytes that the driver gets.
        by_identity = {image_identity(container): container for container in containers if container.images}
        counts = self._check.counts
        counts["images"] = len({row.image_digest for row in self._section.rows})
        for number, row in enumerate(self._section.rows):
            if (row.image_digest, row.image_size) not in by_identity:
                self._fault(f"row {number} ({row.arch}): no image of the file has its digest")

        # Several rows may have one entry, which is checked with the first of them: it is the row of the architecture
        # that the twins were made for.
        # Reversed, because of equal keys the last one stays.
        first_rows = {row.entry: row for row in reversed(self._section.rows)}
        for index, first_row in sorted(first_rows.items()):
            name = f"entry {index}"
            try:
                entry = read_entry(bytes(self._section.entries[index]), name)
            except FormatError as error:
                self._fault(str(error))
                continue
            for row in self._section.rows:
                if row.entry == index and row.key != entry.key:
                    self._fault(f"{name}: its key is not that of its row for {row.arch}")
            counts["kernels"] += len(entry.kernels)
            counts["twins"] += sum(kernel.reason is Reason.PROBED for kernel in entry.kernels)
            self._check_twins(target_of_device(first_row.arch), entry, name)
            # Without its image there is already a fault, from above.
            container = by_identity.get((first_row.image_digest, first_row.image_size))
            if container is not None:
                self._check_originals(entry, name, container, first_row.arch, first_row.device)

    def _fault(self, text: str) -> None:
        """Note a fault of the checked file."""
        self._check.faults.append(text)

    def _check_twins(self, target: Target, entry: Entry, name: str) -> None:
        """Check that the entry's images hold its twins, with the original's parameters and the probe block.

        The hook, which launches twins, passes the parameters at the offsets that the entry states. name: of the entry,
        for faults.
        """
        # For each image, its kernels in each of its forms: machine code, text, or both.
        forms_by_image: list[list[dict[str, _Parameters]]] = []
        for index, image in enumerate(entry.images):
            try:
                forms_by_image.append(list(_kernel_forms(target, image, f"{name}, image {index}")))
            except NeutrinoError as error:
                # The twins cannot be looked up by image, so the others are not checked.
                self._fault(f"{name}, image {index}: {error}")
                return

        for kernel in _probed_kernels(entry):
            of_code = b'"made_of"' in kernel.files.get(_MANIFEST, b"")
            wanted = target.code_files if of_code else target.files
            missing = [file for file in (_MANIFEST, *wanted) if file not in kernel.files]
            if missing:
                self._fault(f"{name}: {kernel.name} has no {', '.join(missing)}")
            # The twin's last parameter is the probe block.
            expected = [*kernel.parameters, (kernel.block_offset, kernel.block_size)]
            # A twin may be in a second image, under a register cap; 0 means that it is not.
            for index in (kernel.image, kernel.capped) if kernel.capped else (kernel.image,):
                for parameters in forms_by_image[index]:
                    if parameters.get(kernel.twin) != expected:
                        self._fault(
                            f"{name}, image {index}: {kernel.twin} has parameters (offset, size) "
                            f"{parameters.get(kernel.twin, 'none: it is not there')}, expected {expected}"
                        )

    def _check_originals(self, entry: Entry, name: str, container: Container, arch: str, device: DeviceKind) -> None:
        """Check that the entry states the parameters that its kernels have in the file's own image.

        The hook, which launches twins, copies the program's arguments by these offsets and sizes. name: of the entry,
        for faults. container: the image. arch, device: what the entry was made for.
        """
        target = target_of_device(arch)
        picked = target.picked(container, arch, device)
        if picked is None:
            # Then no device of this architecture can run the program's kernels, and the row is of no use.
            self._fault(f"{name}: its image has nothing that the driver picks for {arch}")
            return
        try:
            originals = target.parameters(picked, f"container {container.index}, image {picked.index}")
        except NeutrinoError as error:
            self._fault(str(error))
            return
        for kernel in _probed_kernels(entry):
            if originals.get(kernel.name) != list(kernel.parameters):
                self._fault(
                    f"{name}: {kernel.name} has parameters (offset, size) "
                    f"{originals.get(kernel.name, 'none: it is not there')} in the file's image for {arch}, "
                    f"{list(kernel.parameters)} in the entry"
                )


def _probed_kernels(entry: Entry) -> Iterator[KernelEntry]:
    """Yield the kernels of a cache entry that have a twin (copy with probes)."""
    return (kernel for kernel in entry.kernels if kernel.reason is Reason.PROBED)


def _kernel_forms(target: Target, image: bytes, name: str) -> Iterator[dict[str, _Parameters]]:
    """Yield the parameters of an image's kernels, once for its machine code and once for its text, if it has them.

    name: of the image, for errors. Raises FormatError, and NeutrinoError for a text that cannot be read.
    """
    for part in read_container(image, name).images:
        if target.takes(part):
            yield target.parameters(part, name)
