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
"""Where compilers put them."""
_WRAPPER = struct.Struct("<IIQ")
_VERSIONS = {
    # Of a plain translation unit, and of one that went through the device linker (``fatbinary_section.h``).
    struct.pack("<I", 0x466243B1): (1, 2),
    # AMD's (``.hipFatBinSegment``).
    struct.pack("<I", 0x48495046): (1,),
}
"""Versions that there are of the wrappers with a magic."""
_DATA = 8


def writable(areas: list[Area], found: Iterable[Container], base: int) -> Iterator[Area]:
    """The writable areas, less the containers there."""
    places = sorted((container.offset - base, container.size) for container in found)
    for area in areas:
        if area.writable:
            begin = area.begin
            for place, size in places[bisect_left(places, (area.begin, 0)) : bisect_left(places, (area.end, 0))]:
                yield Area(begin, place, area.section, True)
                begin = place + size
            yield Area(begin, area.end, area.section, True)


def find_wrappers(elf: Elf, areas: Iterator[Area]) -> Iterator[tuple[int, tuple[int, int]]]:
    """Versions of wrappers and the file offsets (begin, end) of the containers that they point to, in file order.

    A wrapper is 24 bytes of writable data: magic, version, address of the container, and a pointer that only the
    runtime uses. What carries the magic but does not lead to a container is no wrapper.
    """
    versions = {}
    for area in areas:
        for magic, known in _VERSIONS.items():
            for position in occurrences(elf.data, area.begin, area.end, magic):
                if (position - area.begin) % 8 == 0 and position + _WRAPPER.size <= area.end:
                    _, version, _ = _WRAPPER.unpack_from(elf.data, position)
                    if version in known:
                        versions[position + _DATA] = version
    if not versions:
        return
    # Here, because most files have no wrapper, and a listing of these is to start soon.
    from neutrino.fatbin.pointers import pointees

    for slot, place in sorted(pointees(elf, versions).items()):
        if is_fatbin(elf.data, place[0]) or is_bundle(elf.data, place[0]):
            yield versions[slot], place
