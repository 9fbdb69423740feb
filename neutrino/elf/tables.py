"""The tables of an ELF file as rows that can be changed: ELF header, program headers, section headers, dynamic section.

``reader`` reads; here is what is written anew. Fields are named as in the gABI, without their prefixes.
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
        """Whether a range of the file lies within the row's."""
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
    """The tables of one file, to be changed and packed again.

    programs, sections, dynamic: rows in file order; dynamic holds [tag, value] with every DT_NULL. names: the section
    name table. dynamic_row, dynamic_offset: the row of PT_DYNAMIC, and where in the file that was. Raises FormatError
    when a table leaves the file, PatchError when one has more rows than are supported.
    """

    def __init__(self, elf: Elf) -> None:
        self.elf = elf
        self.header = bytearray(elf.bytes_at(0, ELF_HEADER_SIZE, "ELF header"))
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
        """The rows of PT_LOAD."""
        return [row for row in self.programs if row.type == PT_LOAD]

    def section(self, name: str) -> SectionHeader | None:
        """The first section of that name."""
        return next((row for row, known in zip(self.sections, self.section_names, strict=True) if known == name), None)

    def add_section(self, name: str, row: SectionHeader) -> None:
        """Append a section; its name is added to the name table."""
        row.name = self._add_name(name)
        self.sections.append(row)
        self.section_names.append(name)

    def rename_section(self, row: SectionHeader, name: str) -> None:
        """Give a section another name."""
        row.name = self._add_name(name)
        self.section_names[self.sections.index(row)] = name

    def dynamic_value(self, tag: int) -> int | None:
        """The value of a dynamic entry; None without one. Of several the last counts, as for the dynamic loader."""
        found = None
        for known, value in self.dynamic:
            if known == DT_NULL:
                break
            if known == tag:
                found = value
        return found

    def set_dynamic(self, tag: int, value: int) -> None:
        """Change the value of every entry of that tag."""
        for entry in self.dynamic:
            if entry[0] == DT_NULL:
                break
            if entry[0] == tag:
                entry[1] = value

    def pack_programs(self) -> bytes:
        """The program header table. Raises FormatError as ``pack_dynamic``."""
        return self._packed(SEGMENT_LAYOUT, map(dataclasses.astuple, self.programs))

    def pack_sections(self) -> bytes:
        """The section header table. Raises FormatError as ``pack_dynamic``."""
        return self._packed(SECTION_LAYOUT, map(dataclasses.astuple, self.sections))

    def pack_dynamic(self) -> bytes:
        """The dynamic section. Raises FormatError for an address that does not fit where it was moved to."""
        return self._packed(DYNAMIC_LAYOUT, self.dynamic)

    def pack_header(self, section_headers: int) -> bytes:
        """The ELF header. section_headers: where the section header table will be, 0 without one."""
        struct.pack_into("<Q", self.header, _E_PHOFF, self.programs_offset)
        struct.pack_into("<H", self.header, _E_PHNUM, len(self.programs))
        struct.pack_into("<Q", self.header, _E_SHOFF, section_headers)
        struct.pack_into("<H", self.header, _E_SHNUM, len(self.sections))
        return bytes(self.header)

    def _packed(self, layout: struct.Struct, rows: Iterable[Sequence[int]]) -> bytes:
        try:
            return b"".join(layout.pack(*row) for row in rows)
        except struct.error as error:
            found = f"moved too far ({error})"
            raise FormatError(self.elf.file, self.programs_offset, "addresses", found, "64 bits") from error

    def _add_name(self, name: str) -> int:
        offset = len(self.names)
        self.names += name.encode("latin-1") + b"\0"
        return offset
