"""Files that hold containers: host libraries, executables and objects, or a container or an image by
itself."""

from __future__ import annotations

import mmap
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

from neutrino.errors import FormatError
from neutrino.fatbin.container import Container, is_fatbin, read_bare, read_fatbins
from neutrino.fatbin.cursor import Cursor
from neutrino.fatbin.elf import EM_AMDGPU, EM_CUDA, PF_W, PT_LOAD, Elf
from neutrino.fatbin.elf import MAGIC as ELF_MAGIC

_SECTIONS = (".nv_fatbin", "__nv_relfatbin")
"""Where nvcc and clang put containers: those for the driver, and those that the device linker has read."""
_WRAPPER = struct.Struct("<IIQ")
_WRAPPER_MAGIC = struct.pack("<I", 0x466243B1)
_WRAPPER_DATA = 8
_WRAPPER_VERSIONS = (1, 2)
"""Of a plain translation unit, and of one that went through the device linker (``fatbinary_section.h``)."""


def read_file(path: str | Path) -> tuple[Container, ...]:
    """Every container of a file, in file order; none when an ELF file holds no device code.

    path: PTX, a cubin, a fatbin, or an ELF64 shared library, executable or object. The file is mapped, not
    read, and must not change while its images are in use. Raises FormatError for what is neither of these,
    OSError as ``open``.
    """
    name = str(path)
    with Path(path).open("rb") as file:
        status = Path(path).stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size == 0:
            raise FormatError(name, 0, "file", "empty or not a regular file", "a file with content")
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    if is_fatbin(data):
        return tuple(read_fatbins(Cursor(data, name), ""))
    if bytes(data[:4]) == ELF_MAGIC:
        elf = Elf(data, name)
        if elf.machine not in (EM_CUDA, EM_AMDGPU):
            return tuple(_in_host(elf))
    return (read_bare(data, name),)


def _in_host(elf: Elf) -> Iterator[Container]:
    index = 0
    named = [section for section in elf.sections if section.name in _SECTIONS]
    for section in sorted(named, key=lambda section: section.offset):
        begin = section.offset
        end = begin + len(elf.contents(section))
        for container in read_fatbins(Cursor(elf.data, elf.file, start=begin, end=end), section.name, index):
            yield container
            index += 1
    if not named:
        for begin, end in _wrapped(elf):
            container = next(read_fatbins(Cursor(elf.data, elf.file, start=begin, end=end), "", index))
            yield container
            index += 1


def _wrapped(elf: Elf) -> list[tuple[int, int]]:
    """Where containers begin that wrappers point to, and where their segments end: for files without section
    headers.

    A wrapper is 24 bytes in a writable segment: magic, version, address of the container, and a filename that
    is not used. What carries the magic but does not lead to a container is no wrapper.
    """
    addends: dict[int, int] | None = None
    places = set()
    for segment in elf.segments:
        end = min(segment.offset + segment.file_size, len(elf.data))
        if segment.type != PT_LOAD or not segment.flags & PF_W:
            continue
        last = end - _WRAPPER.size + len(_WRAPPER_MAGIC)
        for position in _aligned(elf.data, _WRAPPER_MAGIC, segment.offset, last):
            _, version, address = _WRAPPER.unpack_from(elf.data, position)
            if version not in _WRAPPER_VERSIONS:
                continue
            if not address:
                # lld leaves the slot 0 and has the address in the relocation alone.
                addends = dict(elf.relocations()) if addends is None else addends
                address = addends.get(segment.address + position - segment.offset + _WRAPPER_DATA, 0)
            place = elf.file_range(address)
            if place and is_fatbin(elf.data, place[0]):
                places.add(place)
    return sorted(places)


def _aligned(data: memoryview, pattern: bytes, begin: int, end: int) -> Iterator[int]:
    """Offsets of pattern in data[begin:end] that are 8-aligned from begin on."""
    size = 1 << 20
    overlap = len(pattern) - 1
    for start in range(begin, end, size):
        block = bytes(data[start : min(start + size + overlap, end)])
        found = block.find(pattern)
        while found >= 0:
            if (start + found - begin) % 8 == 0:
                yield start + found
            found = block.find(pattern, found + 1)
