"""Reads ELF64 files, little endian: header, sections, segments, symbols, relocations, dynamic section and notes.

Tables are read when they are first used, and nothing large is copied, so opening a library of gigabytes is cheap. They
are also checked only then: a section with a wrong offset raises a FormatError when its contents are read. 32-bit and
big-endian files are rejected with a FormatError that says what they are.
"""

from __future__ import annotations

import bisect
import functools
import struct
from collections.abc import Collection, Container, Iterator
from typing import TypeVar

from neutrino.elf.constants import (
    DT_NULL,
    DT_RELA,
    DT_RELASZ,
    DT_SYMTAB,
    ELFCLASS64_LSB,
    MAGIC,
    PN_XNUM,
    PT_DYNAMIC,
    PT_LOAD,
    PT_NOTE,
    SHN_XINDEX,
    SHT_NOBITS,
    SHT_NOTE,
    SHT_NULL,
    SHT_REL,
    SHT_RELA,
    SHT_SYMTAB,
    SHT_SYMTAB_SHNDX,
)
from neutrino.elf.cursor import Cursor
from neutrino.elf.rows import (
    DYNAMIC_LAYOUT,
    HEADER_LAYOUT,
    NOTE_LAYOUT,
    REL_LAYOUT,
    RELA_LAYOUT,
    SECTION_LAYOUT,
    SEGMENT_LAYOUT,
    SYMBOL_LAYOUT,
    Note,
    Relocation,
    Section,
    Segment,
    Symbol,
    SymbolRow,
)
from neutrino.elf.strings import StringTable

_EI_CLASS, _EI_OSABI, _EI_ABIVERSION = 4, 7, 8
_E_PHOFF, _E_SHOFF, _E_PHENTSIZE, _E_SHENTSIZE, _E_SHSTRNDX = 0x20, 0x28, 0x36, 0x3A, 0x3E
"""Offsets of these bytes and fields in the ELF header."""
_UNSUPPORTED = {
    b"\x01\x01": ": ELF32, little endian", b"\x01\x02": ": ELF32, big endian", b"\x02\x02": ": ELF64, big endian",
}  # fmt: skip
_SYMBOL_SHIFT = 32
_TYPE_MASK = (1 << _SYMBOL_SHIFT) - 1
"""How r_info of a relocation is split into symbol and type (ELF64_R_SYM and ELF64_R_TYPE)."""


class Elf:
    """An ELF file in memory. Other tables than those of section and program headers are read when they are used.

    data, file, base: as for ``__init__``; all offsets count from the first byte of data. type, machine, version, flags:
    e_type and so on. os_abi, abi_version: EI_OSABI and EI_ABIVERSION. segments: the program headers.
    """

    def __init__(self, data: memoryview, file: str, base: int = 0) -> None:
        """Read the ELF header, and the tables of section headers and program headers.

        data: the file from its first byte on. file, base: name of the file and offset of the data in it, for error
        messages. Raises FormatError for what is not ELF64 little endian, and for tables that leave the data.
        """
        self.data = data
        self.file = file
        self.base = base
        cursor = self._cursor()
        (ident, self.type, self.machine, self.version, _, phoff, shoff, self.flags, _, phentsize, phnum,
         shentsize, shnum, shstrndx) = cursor.unpack(HEADER_LAYOUT, "ELF header")  # fmt: skip
        if ident[:4] != MAGIC:
            raise cursor.error("ELF magic", ident[:4].hex(" "), MAGIC.hex(" "), at=0)
        if ident[4:6] != ELFCLASS64_LSB:
            found = ident[4:6].hex(" ") + _UNSUPPORTED.get(ident[4:6], "")
            raise cursor.error("EI_CLASS, EI_DATA", found, "02 01: ELF64, little endian", at=_EI_CLASS)
        self.os_abi: int = ident[_EI_OSABI]
        self.abi_version: int = ident[_EI_ABIVERSION]

        # Section headers. Their names are looked up when ``sections`` is used.
        rows: list[tuple[int, ...]] = []
        if shoff:
            if shentsize != SECTION_LAYOUT.size:
                raise cursor.error("e_shentsize", str(shentsize), str(SECTION_LAYOUT.size), at=_E_SHENTSIZE)
            cursor.seek(shoff, "e_shoff", at=_E_SHOFF)
            # Counts that do not fit the ELF header are in section header 0 (gABI, "Section header index zero").
            _, _, _, _, _, sh_size, sh_link, sh_info, _, _ = cursor.unpack(SECTION_LAYOUT, "section header 0")
            shnum = shnum or sh_size
            shstrndx = sh_link if shstrndx == SHN_XINDEX else shstrndx
            phnum = sh_info if phnum == PN_XNUM else phnum
            cursor.seek(shoff, "e_shoff", at=_E_SHOFF)
            rows = list(SECTION_LAYOUT.iter_unpack(cursor.take(shnum * SECTION_LAYOUT.size, "section header table")))
        self._section_rows = rows
        self._names: dict[int, StringTable] = {}
        self._shstrndx: int = shstrndx
        self.program_headers: int = phoff
        """Offset of the program header table, 0 without one."""
        self.section_headers: int = shoff
        """Offset of the section header table, 0 without one."""

        self.segments: tuple[Segment, ...] = ()
        if phnum and phoff:
            if phentsize != SEGMENT_LAYOUT.size:
                raise cursor.error("e_phentsize", str(phentsize), str(SEGMENT_LAYOUT.size), at=_E_PHENTSIZE)
            cursor.seek(phoff, "e_phoff", at=_E_PHOFF)
            table = cursor.take(phnum * SEGMENT_LAYOUT.size, "program header table")
            self.segments = tuple(
                Segment(kind, flags, offset, address, file_size, memory_size, alignment)
                for kind, flags, offset, address, _, file_size, memory_size, alignment in SEGMENT_LAYOUT.iter_unpack(
                    table
                )
            )

    @functools.cached_property
    def sections(self) -> tuple[Section, ...]:
        """All sections, in the order of the section header table. Raises FormatError when a name lies outside the name
        table."""
        if not self._section_rows:
            return ()
        if self._shstrndx >= len(self._section_rows):
            found, expected = str(self._shstrndx), f"below {len(self._section_rows)}"
            raise self._cursor().error("e_shstrndx", found, expected, at=_E_SHSTRNDX)
        _, _, _, _, names_offset, names_size, *_ = self._section_rows[self._shstrndx]
        names = StringTable(self._cursor(), self._range(names_offset, names_size, "section name table"), "sh_name")
        return tuple(
            Section(index, names.at(name), type_, flags, address, offset, size, link, info)
            for index, (name, type_, flags, address, offset, size, link, info, _, _) in enumerate(self._section_rows)
        )

    def section(self, name: str) -> Section | None:
        """Return the first section of that name, None if there is none."""
        return self._by_name.get(name)

    def contents(self, section: Section) -> memoryview:
        """Return the section's bytes, not copied; none for SHT_NOBITS. Raises FormatError when they leave the file."""
        if section.type == SHT_NOBITS:
            return self.data[:0]
        return self._range(section.offset, section.size, f"section {section.name}")

    def symbols(self, type: int = SHT_SYMTAB, kinds: Collection[int] = range(16)) -> Iterator[Symbol]:
        """Yield the symbols of ``.symtab``, or of ``.dynsym`` for SHT_DYNSYM; none when the file has no such table.

        type: of the section, SHT_SYMTAB or SHT_DYNSYM. kinds: the symbol types (``STT_FUNC`` …) to yield, by default
        all; others are skipped quickly. Raises FormatError for a damaged table.
        """
        table = next((section for section in self.sections if section.type == type), None)
        if table is None:
            return
        if table.link >= len(self.sections):
            raise self._cursor().error(f"sh_link of {table.name}", str(table.link), f"below {len(self.sections)}", at=0)
        names = self._names.get(table.link)
        if names is None:
            names = StringTable(self._cursor(), self.contents(self.sections[table.link]), "st_name")
            self._names[table.link] = names
        rows = self.contents(table)
        if len(rows) % SYMBOL_LAYOUT.size:
            expected = f"a multiple of {SYMBOL_LAYOUT.size}"
            raise self._cursor().error(f"size of {table.name}", str(len(rows)), expected, at=0)
        extended_table = self._extended_index_tables.get(table.index)
        extended_indices = () if extended_table is None else self._words(extended_table)
        for index, (name, info, other, section, value, size) in enumerate(SYMBOL_LAYOUT.iter_unpack(rows)):
            # The low 4 bits of st_info are the symbol's type, so there are 16 types.
            if info & 0xF not in kinds:
                continue
            # A section index of more than 16 bits is in the SHT_SYMTAB_SHNDX table.
            if section == SHN_XINDEX:
                if index >= len(extended_indices):
                    raise self._cursor().error(f"symbol {index}", "without SHT_SYMTAB_SHNDX row", "one", at=0)
                section = extended_indices[index]
            yield Symbol(index, names.at(name), info & 0xF, other, section, value, size)

    def symbol_row(self, table: Section, index: int) -> SymbolRow:
        """Return the row of that index of a symbol table, without reading the others: for callers that need few.

        Raises FormatError when it leaves the file.
        """
        offset = table.offset + index * SYMBOL_LAYOUT.size
        row = SymbolRow(*SYMBOL_LAYOUT.unpack(self._range(offset, SYMBOL_LAYOUT.size, f"symbol {index}")))
        extended_table = self._extended_index_tables.get(table.index) if row.section == SHN_XINDEX else None
        if extended_table is None:
            return row
        # The section index does not fit 16 bits, so it is in the SHT_SYMTAB_SHNDX table, which has a 32-bit word for
        # each symbol.
        section = self._range(extended_table.offset + 4 * index, 4, f"section of symbol {index}")
        return row._replace(section=int.from_bytes(section, "little"))

    def dynamic_symbol_row(self, index: int) -> SymbolRow | None:
        """Return the row of that index of the dynamic symbol table (DT_SYMTAB); None in a file without that table.

        Raises FormatError when it leaves the file.
        """
        table = self.file_range(self.dynamic.get(DT_SYMTAB, 0))
        if table is None:
            return None
        table_offset, _ = table
        offset = table_offset + index * SYMBOL_LAYOUT.size
        return SymbolRow(*SYMBOL_LAYOUT.unpack(self._range(offset, SYMBOL_LAYOUT.size, f"dynamic symbol {index}")))

    @functools.cached_property
    def relocation_tables(self) -> dict[int, tuple[Section, ...]]:
        """The relocation sections (SHT_REL, SHT_RELA), by the index of the section that they apply to."""
        tables: dict[int, tuple[Section, ...]] = {}
        for section in self.sections:
            if section.type in (SHT_REL, SHT_RELA):
                tables[section.info] = (*tables.get(section.info, ()), section)
        return tables

    def relocations(self, table: Section, offsets: Container[int] | None = None) -> Iterator[Relocation]:
        """Yield the relocations of one of relocation_tables.

        offsets: only those at these offsets of the section; others are skipped quickly. None: all. An incomplete last
        row is ignored. Raises FormatError when the table leaves the file.
        """
        return _relocations(self.contents(table), has_addend=table.type == SHT_RELA, offsets=offsets)

    def dynamic_relocations(self, addresses: Container[int]) -> Iterator[Relocation]:
        """Yield the relocations of DT_RELA at these virtual addresses; none in a file without that table.

        Raises FormatError when the table leaves the file.
        """
        table = self.file_range(self.dynamic.get(DT_RELA, 0))
        if table is not None and DT_RELASZ in self.dynamic:
            offset, _ = table
            size = self.dynamic[DT_RELASZ]
            rows = self._range(offset, size - size % RELA_LAYOUT.size, "DT_RELA")
            yield from _relocations(rows, has_addend=True, offsets=addresses)

    def notes(self) -> Iterator[Note]:
        """Yield the notes of the PT_NOTE segments; in a file without program headers, of the SHT_NOTE sections.

        Raises FormatError for a note that leaves its segment or section.
        """
        for segment in self.segments:
            if segment.type == PT_NOTE:
                content = self._range(segment.offset, segment.file_size, "PT_NOTE")
                yield from read_notes(Cursor(content, self.file, base=self.base + segment.offset))
        if not self.segments:
            for section in self.sections:
                if section.type == SHT_NOTE:
                    content = self.contents(section)
                    yield from read_notes(Cursor(content, self.file, base=self.base + section.offset))

    def file_range(self, address: int) -> tuple[int, int] | None:
        """Return the file offset of a virtual address, and the file offset at which the bytes of its segment end.

        None when no PT_LOAD has its bytes, or the segment leaves the file.
        """
        segment = _last_before(self._loads_by_address, address)
        if segment is None or address - segment.address >= segment.file_size:
            return None
        begin, end = segment.offset + address - segment.address, segment.offset + segment.file_size
        return (begin, end) if end <= len(self.data) else None

    def address(self, offset: int) -> int | None:
        """Return the virtual address of a file offset; None when no PT_LOAD covers it."""
        segment = _last_before(self._loads_by_offset, offset)
        if segment is None or offset - segment.offset >= segment.file_size:
            return None
        return segment.address + offset - segment.offset

    def section_at(self, offset: int) -> Section | None:
        """Return the section whose contents cover a file offset; None when there is none."""
        section = _last_before(self._sections_by_offset, offset)
        return None if section is None or offset - section.offset >= section.size else section

    @functools.cached_property
    def dynamic(self) -> dict[int, int]:
        """The values of the dynamic section by tag; of a repeated tag the last.

        It is found through PT_DYNAMIC, because section headers may be missing. Raises FormatError when it leaves the
        file.
        """
        tags: dict[int, int] = {}
        for segment in self.segments:
            if segment.type == PT_DYNAMIC:
                size = segment.file_size - segment.file_size % DYNAMIC_LAYOUT.size
                for tag, value in DYNAMIC_LAYOUT.iter_unpack(self._range(segment.offset, size, "PT_DYNAMIC")):
                    if tag == DT_NULL:
                        break
                    tags[tag] = value
        return tags

    def bytes_at(self, offset: int, size: int, field: str) -> memoryview:
        """Return a range of the file, not copied. Raises FormatError, naming the field, when it leaves the file."""
        return self._range(offset, size, field)

    # Sorted, with the keys apart, for binary search: files may have many segments and sections, which do not overlap.

    @functools.cached_property
    def _loads_by_address(self) -> tuple[list[int], list[Segment]]:
        """The PT_LOAD segments sorted by virtual address, and these addresses."""
        loads = sorted((segment for segment in self.segments if segment.type == PT_LOAD), key=lambda row: row.address)
        return [segment.address for segment in loads], loads

    @functools.cached_property
    def _loads_by_offset(self) -> tuple[list[int], list[Segment]]:
        """The PT_LOAD segments with bytes in the file, sorted by file offset, and these offsets."""
        loads = [segment for segment in self.segments if segment.type == PT_LOAD and segment.file_size]
        loads.sort(key=lambda segment: segment.offset)
        return [segment.offset for segment in loads], loads

    @functools.cached_property
    def _sections_by_offset(self) -> tuple[list[int], list[Section]]:
        """The sections with bytes in the file, sorted by file offset, and these offsets."""
        sections = [section for section in self.sections if section.type not in (SHT_NULL, SHT_NOBITS) and section.size]
        sections.sort(key=lambda section: section.offset)
        return [section.offset for section in sections], sections

    @functools.cached_property
    def _by_name(self) -> dict[str, Section]:
        """The sections of the ELF file by name; of several with one name the first."""
        # Reversed, so that the first section of a name wins.
        return {section.name: section for section in reversed(self.sections)}

    @functools.cached_property
    def _extended_index_tables(self) -> dict[int, Section]:
        """The SHT_SYMTAB_SHNDX sections by the index of their symbol table: section indices of more than 16 bits."""
        return {section.link: section for section in reversed(self.sections) if section.type == SHT_SYMTAB_SHNDX}

    def _words(self, section: Section) -> tuple[int, ...]:
        """Return a section's contents as 32-bit words; an incomplete last word is ignored."""
        rows = self.contents(section)
        return struct.unpack_from(f"<{len(rows) // 4}I", rows)

    def _cursor(self) -> Cursor:
        """A bounds-checked reader of the whole file."""
        return Cursor(self.data, self.file, base=self.base)

    def _range(self, offset: int, size: int, field: str) -> memoryview:
        """Return a range of the file, not copied. Raises FormatError, naming the field, when it leaves the file."""
        cursor = self._cursor()
        cursor.seek(offset, f"offset of {field}")
        return cursor.take(size, field)


_Row = TypeVar("_Row")


def _last_before(rows: tuple[list[int], list[_Row]], position: int) -> _Row | None:
    """Return the last row whose key is not above ``position``, None if there is none.

    rows: the sorted keys, and the rows that they belong to. If the rows are ranges that begin at their keys and do not
    overlap, no other row can contain the position; the caller must check that this one does.
    """
    keys, values = rows
    index = bisect.bisect_right(keys, position)
    return values[index - 1] if index else None


def read_notes(cursor: Cursor, alignment: int = 4) -> Iterator[Note]:
    """Yield the notes between the cursor and its end.

    alignment: to which each note's owner and content are padded, in bytes, counted from the beginning of the cursor's
    data. Raises FormatError for a note that is cut off.
    """
    while cursor.remaining:
        owner_size, size, kind = cursor.unpack(NOTE_LAYOUT, "note header")
        owner = bytes(cursor.take(owner_size, "owner of a note"))
        cursor.take(min(-cursor.position % alignment, cursor.remaining), "padding of a note")
        begin = cursor.position
        content = cursor.take(size, "note")
        cursor.take(min(-cursor.position % alignment, cursor.remaining), "padding of a note")
        yield Note(owner, kind, content, cursor.base + begin)


def _relocations(rows: memoryview, *, has_addend: bool, offsets: Container[int] | None) -> Iterator[Relocation]:
    """Yield the rows of a relocation table, SHT_RELA if has_addend, else SHT_REL.

    offsets: only rows with these r_offset; None: all. An incomplete last row is ignored.
    """
    layout = RELA_LAYOUT if has_addend else REL_LAYOUT
    complete = layout.iter_unpack(rows[: len(rows) // layout.size * layout.size])
    # Rows are tuples of r_offset, r_info and r_addend. They are filtered first, unnamed, because this is a hot path:
    # libraries have millions of relocations, of which callers need a few.
    for row in complete if offsets is None else (row for row in complete if row[0] in offsets):
        info = row[1]
        yield Relocation(row[0], info >> _SYMBOL_SHIFT, info & _TYPE_MASK, row[2] if has_addend else 0)
