"""The tables of an ELF file in a form that can be changed and written: ELF header, program headers, section headers,
dynamic section.

``reader`` only reads. Fields are named as in the gABI, without their prefixes.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from neutrino.elf.constants import DT_NULL, PT_DYNAMIC, PT_LOAD, SHN_XINDEX
from neutrino.elf.reader import Elf
from neutrino.elf.rows import DYNAMIC_LAYOUT, SECTION_LAYOUT, SEGMENT_LAYOUT
from neutrino.errors import FormatError, PatchError

ELF_HEADER_SIZE = 64
_E_PHOFF, _E_SHOFF, _E_PHNUM, _E_SHNUM, _E_SHSTRNDX = 0x20, 0x28, 0x38, 0x3C, 0x3E
_LONGEST_TABLE = 0xFF00
"""Rows from which the counts do not fit in the ELF header (SHN_LORESERVE)."""


@dataclass
class ProgramHeader:
    """A row of the program header table."""

    type: int
    flags: int
    offset: int
    address: int
    physical: int
    file_size: int
    memory_size: int
    alignment: int

    def covers(self, offset: int, size: int) -> bool:
        """Whether this segment of the ELF file contains a range of the file's bytes."""
        return self.offset <= offset and offset + size <= self.offset + self.file_size


@dataclass
class SectionHeader:
    """A row of the section header table. name: offset in the section name table."""

    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


class Tables:
    """The tables of one file, which can be changed and serialized again.

    header: the ELF header. programs, sections, dynamic: program headers, section headers and dynamic entries in file
    order; the latter are [tag, value], with every DT_NULL. programs_offset: file offset of the program header table.
    section_names: of each of ``sections``. names: content of the section name table, names_index: its index in
    ``sections``. dynamic_row: the program header of PT_DYNAMIC. dynamic_offset: its original file offset.
    """

    def __init__(self, elf: Elf) -> None:
        """Read the tables of an ELF file that has a dynamic section.

        Raises FormatError when a table leaves the file, PatchError when one has more rows than are supported.
        """
        self.elf = elf
        self.header = bytearray(elf.bytes_at(0, ELF_HEADER_SIZE, "ELF header"))
        # One more section is added by ``add_section``.
        if max(len(elf.segments), len(elf.sections) + 1) >= _LONGEST_TABLE:
            raise PatchError(elf.file, f"has {_LONGEST_TABLE} or more program or section headers")

        size = SEGMENT_LAYOUT.size * len(elf.segments)
        self.programs_offset = elf.program_headers
        rows = elf.bytes_at(self.programs_offset, size, "program header table")
        self.programs = [ProgramHeader(*row) for row in SEGMENT_LAYOUT.iter_unpack(rows)]

        size = SECTION_LAYOUT.size * len(elf.sections)
        rows = elf.bytes_at(elf.section_headers, size, "section header table")
        self.sections = [SectionHeader(*row) for row in SECTION_LAYOUT.iter_unpack(rows)]
        self.section_names = [section.name for section in elf.sections]
        self.names = bytearray()
        (self.names_index,) = struct.unpack_from("<H", self.header, _E_SHSTRNDX)
        if self.sections:
            # An index that does not fit the ELF header is in section header 0.
            if self.names_index == SHN_XINDEX:
                self.names_index = self.sections[0].link
            row = self.sections[self.names_index]
            self.names += elf.bytes_at(row.offset, row.size, "section name table")

        self.dynamic_row = next(row for row in self.programs if row.type == PT_DYNAMIC)
        self.dynamic_offset = self.dynamic_row.offset
        size = self.dynamic_row.file_size // DYNAMIC_LAYOUT.size * DYNAMIC_LAYOUT.size
        rows = elf.bytes_at(self.dynamic_offset, size, "PT_DYNAMIC")
        self.dynamic = [list(entry) for entry in DYNAMIC_LAYOUT.iter_unpack(rows)]

    @property
    def loads(self) -> list[ProgramHeader]:
        """The program headers of the segments that are loaded (PT_LOAD)."""
        return [row for row in self.programs if row.type == PT_LOAD]

    def section(self, name: str) -> SectionHeader | None:
        """Return the first section of that name, None if there is none."""
        named = zip(self.section_names, self.sections, strict=True)
        return next((row for row_name, row in named if row_name == name), None)

    def add_section(self, name: str, row: SectionHeader) -> None:
        """Append a section header, and its name to the section name table."""
        row.name = self._add_name(name)
        self.sections.append(row)
        self.section_names.append(name)

    def rename_section(self, row: SectionHeader, name: str) -> None:
        """Rename a section. The new name is appended to the section name table; the old one stays there."""
        row.name = self._add_name(name)
        self.section_names[self.sections.index(row)] = name

    def dynamic_value(self, tag: int) -> int | None:
        """Return the value of a dynamic entry, None if there is none.

        Of several entries with that tag the last counts, as for the dynamic loader.
        """
        last_value = None
        for entry_tag, value in self.dynamic:
            # The first DT_NULL ends the section; what follows it is unused.
            if entry_tag == DT_NULL:
                break
            if entry_tag == tag:
                last_value = value
        return last_value

    def set_dynamic(self, tag: int, value: int) -> None:
        """Change the value of every dynamic entry with that tag."""
        for entry in self.dynamic:
            entry_tag, _ = entry
            # The first DT_NULL ends the section; what follows it is unused.
            if entry_tag == DT_NULL:
                break
            if entry_tag == tag:
                entry[1] = value

    def pack_programs(self) -> bytes:
        """Serialize the program header table. Raises FormatError as ``pack_dynamic``."""
        return self._packed(SEGMENT_LAYOUT, map(dataclasses.astuple, self.programs))

    def pack_sections(self) -> bytes:
        """Serialize the section header table. Raises FormatError as ``pack_dynamic``."""
        return self._packed(SECTION_LAYOUT, map(dataclasses.astuple, self.sections))

    def pack_dynamic(self) -> bytes:
        """Serialize the dynamic section. Raises FormatError for an address that was moved beyond 64 bits."""
        return self._packed(DYNAMIC_LAYOUT, self.dynamic)

    def pack_header(self, section_headers: int) -> bytes:
        """Serialize the ELF header, with the current offsets and lengths of the tables; its other fields are unchanged.

        section_headers: file offset that the section header table will have, 0 without one.
        """
        struct.pack_into("<Q", self.header, _E_PHOFF, self.programs_offset)
        struct.pack_into("<H", self.header, _E_PHNUM, len(self.programs))
        struct.pack_into("<Q", self.header, _E_SHOFF, section_headers)
        struct.pack_into("<H", self.header, _E_SHNUM, len(self.sections))
        return bytes(self.header)

    def _packed(self, layout: struct.Struct, rows: Iterable[Sequence[int]]) -> bytes:
        """Serialize rows by their layout. Raises FormatError for a value that does not fit its field."""
        try:
            return b"".join(layout.pack(*row) for row in rows)
        except struct.error as error:
            found = f"moved too far ({error})"
            raise FormatError(self.elf.file, self.programs_offset, "addresses", found, "64 bits") from error

    def _add_name(self, name: str) -> int:
        """Append a name to the section name table, and return its offset there."""
        offset = len(self.names)
        self.names += name.encode("latin-1") + b"\0"
        return offset
