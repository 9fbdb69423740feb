"""ELF64, little endian: header, sections, segments, symbols, relocations, dynamic section and notes. Read where they
lie, checked where they are used.

Nothing is read before it is asked for and nothing large is copied, so a library of gigabytes costs what is looked at. A
section with a wrong offset does no harm until its contents are asked for; what is wrong is a FormatError with file,
offset, field, what was found and what was expected. 32-bit and big-endian files are refused by name.
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

_E_PHOFF, _E_SHOFF = 0x20, 0x28
"""Offsets of these fields in the ELF header."""
_OTHERS = {
    b"\x01\x01": ": ELF32, little endian", b"\x01\x02": ": ELF32, big endian", b"\x02\x02": ": ELF64, big endian",
}  # fmt: skip
_SYMBOL_SHIFT = 32
_TYPE_MASK = (1 << _SYMBOL_SHIFT) - 1
"""ELF64_R_SYM and ELF64_R_TYPE."""


class Elf:
    """An ELF file in memory.

    data: the file from its first byte on. file, base: name and offset for error messages. Raises FormatError
    for what is not ELF64 little endian and for header tables that leave the data.
    """

    def __init__(self, data: memoryview, file: str, base: int = 0) -> None:
        self.data = data
        self.file = file
        self.base = base
        cursor = self._cursor()
        (ident, self.type, self.machine, self.version, _, phoff, shoff, self.flags, _, phentsize, phnum,
         shentsize, shnum, shstrndx) = cursor.unpack(HEADER_LAYOUT, "ELF header")  # fmt: skip
        if ident[:4] != MAGIC:
            raise cursor.error("ELF magic", ident[:4].hex(" "), MAGIC.hex(" "), at=0)
        if ident[4:6] != ELFCLASS64_LSB:
            found = ident[4:6].hex(" ") + _OTHERS.get(ident[4:6], "")
            raise cursor.error("EI_CLASS, EI_DATA", found, "02 01: ELF64, little endian", at=4)
        self.os_abi: int = ident[7]
        self.abi_version: int = ident[8]
        rows: list[tuple[int, ...]] = []
        if shoff:
            if shentsize != SECTION_LAYOUT.size:
                raise cursor.error("e_shentsize", str(shentsize), str(SECTION_LAYOUT.size), at=0x3A)
            cursor.seek(shoff, "e_shoff", at=_E_SHOFF)
            first = cursor.unpack(SECTION_LAYOUT, "section header 0")
            # What does not fit the ELF header is in section header 0 (gABI, "Section header index zero").
            shnum = shnum or first[5]
            shstrndx = first[6] if shstrndx == SHN_XINDEX else shstrndx
            phnum = first[7] if phnum == PN_XNUM else phnum
            cursor.seek(shoff, "e_shoff", at=_E_SHOFF)
            rows = list(SECTION_LAYOUT.iter_unpack(cursor.take(shnum * SECTION_LAYOUT.size, "section header table")))
        self._rows = rows
        self._shstrndx: int = shstrndx
        self.program_headers: int = phoff
        """Offset of the program header table, 0 without one."""
        self.section_headers: int = shoff
        """Offset of the section header table, 0 without one."""
        self.segments: tuple[Segment, ...] = ()
        if phnum and phoff:
            if phentsize != SEGMENT_LAYOUT.size:
                raise cursor.error("e_phentsize", str(phentsize), str(SEGMENT_LAYOUT.size), at=0x36)
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
        """All sections, in the order of their table. Raises FormatError when a name lies outside the name
        table."""
        if not self._rows:
            return ()
        if self._shstrndx >= len(self._rows):
            raise self._cursor().error("e_shstrndx", str(self._shstrndx), f"below {len(self._rows)}", at=0x3E)
        row = self._rows[self._shstrndx]
        names = StringTable(self._cursor(), self._range(row[4], row[5], "section name table"), "sh_name")
        return tuple(
            Section(index, names.at(name), type_, flags, address, offset, size, link, info)
            for index, (name, type_, flags, address, offset, size, link, info, _, _) in enumerate(self._rows)
        )

    def section(self, name: str) -> Section | None:
        """The first section of that name."""
        return self._by_name.get(name)

    def contents(self, section: Section) -> memoryview:
        """The section's bytes, not copied; none for SHT_NOBITS. Raises FormatError when they leave the
        file."""
        if section.type == SHT_NOBITS:
            return self.data[:0]
        return self._range(section.offset, section.size, f"section {section.name}")

    def symbols(self, type: int = SHT_SYMTAB, kinds: Collection[int] = range(16)) -> Iterator[Symbol]:
        """The rows of ``.symtab``, none when the file is stripped; or of ``.dynsym``, for SHT_DYNSYM. kinds: the types
        of symbols (``STT_FUNC`` …) to give; the others are stepped over quickly."""
        table = next((section for section in self.sections if section.type == type), None)
        if table is None:
            return
        if table.link >= len(self.sections):
            raise self._cursor().error(f"sh_link of {table.name}", str(table.link), f"below {len(self.sections)}", at=0)
        names = StringTable(self._cursor(), self.contents(self.sections[table.link]), "st_name")
        rows = self.contents(table)
        if len(rows) % SYMBOL_LAYOUT.size:
            expected = f"a multiple of {SYMBOL_LAYOUT.size}"
            raise self._cursor().error(f"size of {table.name}", str(len(rows)), expected, at=0)
        wide_table = self._wide_tables.get(table.index)
        wide = () if wide_table is None else self._words(wide_table)
        for index, (name, info, other, section, value, size) in enumerate(SYMBOL_LAYOUT.iter_unpack(rows)):
            if info & 0xF not in kinds:
                continue
            if section == SHN_XINDEX:
                if index >= len(wide):
                    raise self._cursor().error(f"symbol {index}", "without SHT_SYMTAB_SHNDX row", "one", at=0)
                section = wide[index]
            yield Symbol(index, names.at(name), info & 0xF, other, section, value, size)

    def symbol_row(self, table: Section, index: int) -> SymbolRow:
        """One row of a symbol table, without reading the others. Raises FormatError when it leaves the file."""
        at = table.offset + index * SYMBOL_LAYOUT.size
        row = SymbolRow(*SYMBOL_LAYOUT.unpack(self._range(at, SYMBOL_LAYOUT.size, f"symbol {index}")))
        wide = self._wide_tables.get(table.index) if row.section == SHN_XINDEX else None
        if wide is None:
            return row
        home = self._range(wide.offset + 4 * index, 4, f"section of symbol {index}")
        return row._replace(section=int.from_bytes(home, "little"))

    def dynamic_symbol_row(self, index: int) -> SymbolRow | None:
        """As symbol_row, of the dynamic symbols, which are found through PT_DYNAMIC; None in a file without."""
        place = self.file_range(self.dynamic.get(DT_SYMTAB, 0))
        if place is None:
            return None
        at = place[0] + index * SYMBOL_LAYOUT.size
        return SymbolRow(*SYMBOL_LAYOUT.unpack(self._range(at, SYMBOL_LAYOUT.size, f"dynamic symbol {index}")))

    @functools.cached_property
    def relocation_tables(self) -> dict[int, tuple[Section, ...]]:
        """The tables of relocations by the index of the section that they are for."""
        found: dict[int, tuple[Section, ...]] = {}
        for section in self.sections:
            if section.type in (SHT_REL, SHT_RELA):
                found[section.info] = (*found.get(section.info, ()), section)
        return found

    def relocations(self, table: Section, places: Container[int] | None = None) -> Iterator[Relocation]:
        """The rows of one of relocation_tables. places: those at these offsets alone; others are stepped over quickly.

        A rest that is shorter than a row is none. Raises FormatError when the table leaves the file.
        """
        return _relocations(self.contents(table), has_addend=table.type == SHT_RELA, places=places)

    def dynamic_relocations(self, places: Container[int]) -> Iterator[Relocation]:
        """The relocations of DT_RELA at these virtual addresses. Raises FormatError when the table leaves the file."""
        begin = self.file_range(self.dynamic.get(DT_RELA, 0))
        if begin is not None and DT_RELASZ in self.dynamic:
            size = self.dynamic[DT_RELASZ]
            rows = self._range(begin[0], size - size % RELA_LAYOUT.size, "DT_RELA")
            yield from _relocations(rows, has_addend=True, places=places)

    def notes(self) -> Iterator[Note]:
        """The notes, through the program headers, which a stripped file has; of a file without, through its sections.

        Raises FormatError for a note that leaves its table.
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
        """File offsets (begin, end) of the PT_LOAD's bytes from a virtual address on; None when it is not in
        the file."""
        segment = _last_before(self._by_address, address)
        if segment is None or address - segment.address >= segment.file_size:
            return None
        begin, end = segment.offset + address - segment.address, segment.offset + segment.file_size
        return (begin, end) if end <= len(self.data) else None

    def address(self, offset: int) -> int | None:
        """The virtual address of a place in the file; None when no PT_LOAD has it."""
        segment = _last_before(self._by_offset, offset)
        if segment is None or offset - segment.offset >= segment.file_size:
            return None
        return segment.address + offset - segment.offset

    def section_at(self, offset: int) -> Section | None:
        """The section whose contents have that place in the file; None when none has."""
        section = _last_before(self._by_place, offset)
        return None if section is None or offset - section.offset >= section.size else section

    @functools.cached_property
    def dynamic(self) -> dict[int, int]:
        """The dynamic section by tag (of repeated tags the last), found through PT_DYNAMIC and thus without
        section headers. Raises FormatError when it leaves the file."""
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
        """A range of the file, not copied. Raises FormatError, which names the field, when it leaves the file."""
        return self._range(offset, size, field)

    # Sorted, so that many places are found soon in files of many segments or sections; those do not overlap.

    @functools.cached_property
    def _by_address(self) -> tuple[list[int], list[Segment]]:
        rows = sorted((row for row in self.segments if row.type == PT_LOAD), key=lambda row: row.address)
        return [row.address for row in rows], rows

    @functools.cached_property
    def _by_offset(self) -> tuple[list[int], list[Segment]]:
        rows = [row for row in self.segments if row.type == PT_LOAD and row.file_size]
        rows.sort(key=lambda row: row.offset)
        return [row.offset for row in rows], rows

    @functools.cached_property
    def _by_place(self) -> tuple[list[int], list[Section]]:
        rows = [row for row in self.sections if row.type not in (SHT_NULL, SHT_NOBITS) and row.size]
        rows.sort(key=lambda row: row.offset)
        return [row.offset for row in rows], rows

    @functools.cached_property
    def _by_name(self) -> dict[str, Section]:
        return {section.name: section for section in reversed(self.sections)}

    @functools.cached_property
    def _wide_tables(self) -> dict[int, Section]:
        """By symbol table, that of the sections' indices which do not fit its rows."""
        return {section.link: section for section in reversed(self.sections) if section.type == SHT_SYMTAB_SHNDX}

    def _words(self, section: Section) -> tuple[int, ...]:
        rows = self.contents(section)
        return struct.unpack_from(f"<{len(rows) // 4}I", rows)

    def _cursor(self) -> Cursor:
        return Cursor(self.data, self.file, base=self.base)

    def _range(self, offset: int, size: int, field: str) -> memoryview:
        cursor = self._cursor()
        cursor.seek(offset, f"offset of {field}")
        return cursor.take(size, field)


_Row = TypeVar("_Row")


def _last_before(rows: tuple[list[int], list[_Row]], place: int) -> _Row | None:
    index = bisect.bisect_right(rows[0], place)
    return rows[1][index - 1] if index else None


def read_notes(cursor: Cursor, alignment: int = 4) -> Iterator[Note]:
    """The notes under the cursor, up to its end. alignment: of contents and notes, counted from where the cursor's data
    begin, in bytes. Raises FormatError for one that is cut off."""
    while cursor.remaining:
        owner_size, size, kind = cursor.unpack(NOTE_LAYOUT, "note header")
        owner = bytes(cursor.take(owner_size, "owner of a note"))
        cursor.take(min(-cursor.position % alignment, cursor.remaining), "padding of a note")
        begin = cursor.position
        content = cursor.take(size, "note")
        cursor.take(min(-cursor.position % alignment, cursor.remaining), "padding of a note")
        yield Note(owner, kind, content, cursor.base + begin)


def _relocations(rows: memoryview, *, has_addend: bool, places: Container[int] | None) -> Iterator[Relocation]:
    layout = RELA_LAYOUT if has_addend else REL_LAYOUT
    whole = layout.iter_unpack(rows[: len(rows) // layout.size * layout.size])
    # Libraries have millions of them, of which a few are wanted.
    for row in whole if places is None else (row for row in whole if row[0] in places):
        info = row[1]
        yield Relocation(row[0], info >> _SYMBOL_SHIFT, info & _TYPE_MASK, row[2] if has_addend else 0)
