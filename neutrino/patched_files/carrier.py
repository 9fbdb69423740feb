"""Which files can carry a ``.neutrino`` section, and why others cannot."""

from __future__ import annotations

import mmap
import stat
from pathlib import Path

from neutrino.elf.constants import (
    DF_1_PIE,
    DT_FLAGS_1,
    DT_STRSZ,
    DT_STRTAB,
    EM_AMDGPU,
    EM_CUDA,
    ET_CORE,
    ET_REL,
    MAGIC,
    PT_DYNAMIC,
    PT_INTERP,
    PT_NULL,
    SHT_NOBITS,
)
from neutrino.elf.reader import Elf
from neutrino.errors import FormatError

_ELFCLASS32, _ELFDATA2MSB = b"\x01", b"\x02"
_ARCHIVES = (b"!<arch>\n", b"!<thin>\n")
_ANDROID = {0x6000000F: "DT_ANDROID_REL", 0x60000011: "DT_ANDROID_RELA", 0x6FFFE000: "DT_ANDROID_RELR"}
"""Packed relocations (bionic's ``elf.h``): glibc does not apply them."""
_LINKED = "patch the shared library or program that it is linked into"
_BLOCK = 1 << 20
"""Bytes that are searched for data at once."""
_SECTION_HEADER_SIZE = 64
"""Of a 64-bit ELF file, in bytes."""


def refusal(elf: Elf) -> str | None:
    """Return why an ELF file cannot carry a ``.neutrino`` section, and what to do instead; None if it can.

    The text continues a sentence that begins with the file's name. The dynamic loader must be able to load the stub
    (the library that loads the hook) together with the file, by its name in the dynamic section. Raises FormatError
    when a table lies outside the file.
    """
    if elf.machine == EM_CUDA:
        return "is an image for a GPU, not a library or program; " + _LINKED
    if elf.type == ET_REL:
        return "is an object file; " + _LINKED
    if elf.machine == EM_AMDGPU and any(segment.type == PT_DYNAMIC for segment in elf.segments):
        # Programs load code objects from files of their own, too. Their driver takes what their segments say.
        return None
    if elf.type == ET_CORE:
        return "is a core dump"
    dynamic = next((segment for segment in elf.segments if segment.type == PT_DYNAMIC), None)
    if dynamic is None:
        return "is statically linked, so it cannot load the stub; link it dynamically"
    section = elf.section(".dynamic")
    # objcopy --only-keep-debug keeps the tables and drops the content.
    if dynamic.file_size == 0 or (section is not None and section.type == SHT_NOBITS):
        return "holds debugging information only; patch the file that it was taken from"
    # A static-pie program has a dynamic section, but no dynamic loader.
    if elf.dynamic.get(DT_FLAGS_1, 0) & DF_1_PIE and not any(row.type == PT_INTERP for row in elf.segments):
        return "is statically linked (static-pie), so it cannot load the stub; link it dynamically"
    for tag, name in _ANDROID.items():
        if tag in elf.dynamic:
            return f"has Android's packed relocations ({name}), which glibc does not load; link without them"
    # The stub's name is put into a copy of the string table.
    if not {DT_STRTAB, DT_STRSZ} <= elf.dynamic.keys():
        return "has a dynamic section without DT_STRTAB and DT_STRSZ"
    if extra := _trailing_bytes(elf):
        return (
            f"has {extra} bytes of other data after its own (a self-extracting program?), "
            "which would no longer be at the end of the file; patch the libraries in it"
        )
    return None


def file_refusal(path: Path) -> str | None:
    """Return why a file of any kind cannot carry a ``.neutrino`` section, as ``refusal`` does; None if it can.

    Raises OSError as ``open``, FormatError for a damaged ELF file.
    """
    with path.open("rb") as file:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return "is not a regular file"
        head = file.read(8)
        if head in _ARCHIVES:
            return "is an archive; " + _LINKED
        if head[:4] != MAGIC:
            return "is not an ELF file; " + _LINKED
        # e_ident[EI_CLASS] and e_ident[EI_DATA]. Other invalid values are left to Elf, which raises.
        elf_class, byte_order = head[4:5], head[5:6]
        if elf_class == _ELFCLASS32:
            return "is a 32-bit ELF file; twins are for 64-bit hosts"
        if byte_order == _ELFDATA2MSB:
            return "is a big-endian ELF file; twins are for little-endian hosts"
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data, memoryview(data) as view:
            # An error's traceback would keep views of the mapping alive, which then could not be closed.
            try:
                return refusal(Elf(view, str(path)))
            except FormatError as error:
                raise error.with_traceback(None) from None


def _trailing_bytes(elf: Elf) -> int:
    """Return how many bytes follow everything that the ELF file's tables refer to; 0 if all of them are zero.

    A self-extracting program looks for such data at the end of its file, where patching appends the section. Also 0
    for a file without section headers: what follows its segments (mostly symbols) may be its own.
    """
    if not elf.section_headers:
        return 0
    ends = [elf.section_headers + _SECTION_HEADER_SIZE * len(elf.sections)]
    ends += [segment.offset + segment.file_size for segment in elf.segments if segment.type != PT_NULL]
    ends += [section.offset + section.size for section in elf.sections if section.type != SHT_NOBITS]
    end = min(max(ends), len(elf.data))
    # In blocks, so that the first one that is not zero ends the search, and little of the file is in memory.
    for begin in range(end, len(elf.data), _BLOCK):
        if bytes(elf.data[begin : begin + _BLOCK]).strip(b"\0"):
            return len(elf.data) - end
    return 0
