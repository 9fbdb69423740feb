"""Where the ``.neutrino`` section is in a patched file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from neutrino.abi.sections import SECTION_MAGIC
from neutrino.ahead.section import HEADER, HEADER_FIELDS, NAME
from neutrino.elf.constants import PT_LOAD, SHT_NOBITS
from neutrino.elf.cursor import Cursor
from neutrino.elf.reader import Elf
from neutrino.errors import FormatError

_LATEST_VERSION = 0xFFFF


@dataclass(frozen=True)
class SectionPlace:
    """Where the section is. offset, size: in the file, bytes. address: virtual, where it is in memory."""

    offset: int
    size: int
    address: int


def find_section(elf: Elf) -> SectionPlace | None:
    """Where the section is: by its name, else as the start of a PT_LOAD. None when there is none.

    Raises FormatError when the section's header is there but the section leaves its segment.
    """
    places = [
        (section.offset, section.size, section.address)
        for section in elf.sections
        if section.name == NAME and section.type != SHT_NOBITS
    ]
    places += [
        (segment.offset, segment.file_size, segment.address) for segment in elf.segments if segment.type == PT_LOAD
    ]
    for offset, room, address in places:
        begins = offset < len(elf.data) and elf.data[offset : offset + len(SECTION_MAGIC)] == SECTION_MAGIC
        if begins and room >= HEADER.size:
            header = read_header(elf, offset)
            if header["version"] > _LATEST_VERSION:
                # A string in somebody's .rodata: text stands where the version would.
                continue
            end = min(offset + room, len(elf.data))
            if not HEADER.size <= header["size"] <= end - offset:
                expected = f"{HEADER.size} to {end - offset} bytes"
                raise FormatError(elf.file, offset + 16, "section size", f"{header['size']} bytes", expected)
            return SectionPlace(offset, header["size"], address)
    return None


def read_header(elf: Elf, offset: int) -> dict[str, Any]:
    """The section's header, which is at that offset, by field. Raises FormatError when it leaves the file."""
    cursor = Cursor(elf.data, elf.file, base=elf.base)
    cursor.seek(offset, "section")
    return dict(zip(HEADER_FIELDS, cursor.unpack(HEADER, "section header"), strict=True))
