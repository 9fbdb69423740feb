"""Wrappers: the structures by which host code finds its containers (``__fatBinC_Wrapper_t`` and AMD's of the same
form)."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from neutrino.elf.reader import Elf
from neutrino.fatbin.areas import Area, occurrences
from neutrino.fatbin.container import Container, is_bundle, is_fatbin

SECTIONS = (".nvFatBinSegment", ".hipFatBinSegment")
"""The sections into which compilers put wrappers."""
_WRAPPER = struct.Struct("<IIQ")
_ALIGNMENT = 8
_VERSIONS = {
    # Of a plain translation unit, and of one that went through the device linker (``fatbinary_section.h``).
    struct.pack("<I", 0x466243B1): (1, 2),
    # AMD's (``.hipFatBinSegment``).
    struct.pack("<I", 0x48495046): (1,),
}
"""The valid versions of wrappers, by magic number."""
_DATA = 8
"""Offset of the container's address in a wrapper."""


def writable_areas_outside(areas: list[Area], containers: Iterable[Container], base: int) -> Iterator[Area]:
    """Yield the parts of a file in which wrappers may lie: those of the writable areas that are outside the containers.

    areas: with offsets in the ELF file's data. containers: their offsets count from the beginning of the file, in which
    these data begin at ``base`` (above 0 in an archive). Only in a damaged file do containers overlap or leave their
    area; a part may then end before it begins, which means that it is empty.
    """
    extents = sorted((container.offset - base, container.size) for container in containers)
    for area in areas:
        # Wrappers hold addresses, which the loader may have to relocate: so they are in writable data.
        if not area.writable:
            continue
        begin = area.begin
        # The containers that begin in this area.
        first, last = bisect_left(extents, (area.begin, 0)), bisect_left(extents, (area.end, 0))
        for offset, size in extents[first:last]:
            yield Area(begin, offset, area.section, writable=True)
            begin = offset + size
            # Wrappers are aligned in the area, and find_wrappers counts from the beginning of the part.
            begin += -(begin - area.begin) % _ALIGNMENT
        yield Area(begin, area.end, area.section, writable=True)


def find_wrappers(elf: Elf, areas: Iterator[Area]) -> Iterator[tuple[int, tuple[int, int]]]:
    """Find the wrappers (structures by which host code finds its containers) in areas of writable data.

    Yields, in file order, the wrapper's version, and the offsets in the ELF file's data at which its container begins
    and at which the container must have ended. A wrapper is 24 bytes: magic, version, address of the container, and a
    pointer that only the runtime uses. It is 8-aligned, counted from the beginning of its area. Data with the magic
    that do not lead to a container are not a wrapper.
    """
    # The version of each wrapper by the offset, in the data, of its pointer to the container: the slot.
    version_by_slot = {}
    for area in areas:
        for magic, versions in _VERSIONS.items():
            for position in occurrences(elf.data, area.begin, area.end, magic):
                if (position - area.begin) % _ALIGNMENT == 0 and position + _WRAPPER.size <= area.end:
                    _, version, _ = _WRAPPER.unpack_from(elf.data, position)
                    if version in versions:
                        version_by_slot[position + _DATA] = version
    if not version_by_slot:
        return
    # Imported here because most files have no wrappers, and listing those should start quickly.
    from neutrino.fatbin.pointers import pointees

    for slot, (begin, end) in sorted(pointees(elf, version_by_slot).items()):
        if is_fatbin(elf.data, begin) or is_bundle(elf.data, begin):
            yield version_by_slot[slot], (begin, end)
