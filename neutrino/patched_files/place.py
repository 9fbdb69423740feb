"""Where the ``.neutrino`` section is in a patched file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from neutrino.abi.sections import SECTION_MAGIC
from neutrino.elf.constants import PT_LOAD, SHT_NOBITS
from neutrino.elf.cursor import Cursor
from neutrino.elf.reader import Elf
from neutrino.errors import FormatError
from neutrino.patched_files.section import HEADER, HEADER_FIELDS, NAME, header_offset

_LATEST_VERSION = 0xFFFF
"""Larger numbers are no version of the format: text that happens to begin with the section's magic."""


@dataclass(frozen=True)
class SectionPlace:
    """Place of a ``.neutrino`` section. offset, size: in the file, in bytes. address: its virtual address."""

    offset: int
    size: int
    address: int


def find_section(elf: Elf) -> SectionPlace | None:
    """Find the ``.neutrino`` section by its name, else at the start of a PT_LOAD segment. None when there is none.

    Raises FormatError when the size in the section's header does not fit into its segment, or into the file.
    """
    # Where it may be: (file offset, bytes available there, virtual address). Strip may remove the section headers, but
    # not the segment.
    candidates = [
        (section.offset, section.size, section.address)
        for section in elf.sections
        if section.name == NAME and section.type != SHT_NOBITS
    ]
    candidates += [
        (segment.offset, segment.file_size, segment.address) for segment in elf.segments if segment.type == PT_LOAD
    ]
    for offset, available, address in candidates:
        has_magic = offset < len(elf.data) and elf.data[offset : offset + len(SECTION_MAGIC)] == SECTION_MAGIC
        if has_magic and available >= HEADER.size:
            header = read_header(elf, offset)
            if header["version"] > _LATEST_VERSION:
                # A string constant that begins like the section, with more text in place of the version.
                continue
            end = min(offset + available, len(elf.data))
            if not HEADER.size <= header["size"] <= end - offset:
                expected = f"{HEADER.size} to {end - offset} bytes"
                size_offset = offset + header_offset("size")
                raise FormatError(elf.file, size_offset, "section size", f"{header['size']} bytes", expected)
            return SectionPlace(offset, header["size"], address)
    return None


def read_header(elf: Elf, offset: int) -> dict[str, Any]:
    """Read the header of the ``.neutrino`` section at a file offset: SECTION_HEADER's fields by name.

    Raises FormatError when it lies partly outside the file.
    """
    cursor = Cursor(elf.data, elf.file, base=elf.base)
    cursor.seek(offset, "section")
    return dict(zip(HEADER_FIELDS, cursor.unpack(HEADER, "section header"), strict=True))
