"""ELF64, little endian: header, sections, segments, symbols. Read where they lie, checked where they are
used.

Only what this package needs, and tolerant of what it does not: a section with a wrong offset does no harm
until its contents are asked for. Constants are those of the System V gABI.
"""

from __future__ import annotations

import bisect
import functools
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TypeVar

from neutrino.elf.cursor import Cursor

MAGIC = b"\x7fELF"
EM_CUDA = 190
EM_AMDGPU = 224
ET_REL = 1
PT_LOAD = 1
PT_DYNAMIC = 2
PF_W = 2
SHT_NULL = 0
SHT_PROGBITS = 1
SHT_SYMTAB = 2
SHT_RELA = 4
SHT_REL = 9
SHT_NOBITS = 8
SHT_DYNSYM = 11
SHT_SYMTAB_SHNDX = 18
SHF_WRITE = 0x1
SHF_ALLOC = 0x2
SHF_EXECINSTR = 0x4
SHN_XINDEX = 0xFFFF
STT_FUNC = 2
DT_NULL = 0
DT_SYMTAB = 6
DT_RELA = 7
DT_RELASZ = 8

_ELFCLASS64_LSB = b"\x02\x01"
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
SYMBOL = struct.Struct("<IBBHQQ")
_DYNAMIC = struct.Struct("<QQ")
_PN_XNUM = 0xFFFF
_MAX_NAMES = 16
"""How many times a string table's size all names together may take, names that share an offset counted once."""
_MAX_NAME_TABLE = 1 << 28
"""Bytes of a string table, which is copied: of real ones the largest take a tenth of it."""
_E_PHOFF, _E_SHOFF = 0x20, 0x28
"""Offsets of these fields in the ELF header."""


@dataclass(frozen=True)
class Section:
    """A row of the section header table; fields as in the gABI (``sh_type`` …)."""

    index: int
    name: str
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int


@dataclass(frozen=True)
class Segment:
    """A row of the program header table; fields as in the gABI (``p_type`` …)."""

    type: int
    flags: int
    offset: int
    address: int
    file_size: int
    memory_size: int
    alignment: int


@dataclass(frozen=True)
class Symbol:
    """A row of ``.symtab``. section: index, with SHN_XINDEX resolved."""

    index: int
    name: str
    type: int
    other: int
    section: int
    value: int
    size: int


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
         shentsize, shnum, shstrndx) = cursor.unpack(_HEADER, "ELF header")  # fmt: skip
        if ident[:4] != MAGIC:
            raise cursor.error("ELF magic", ident[:4].hex(" "), MAGIC.hex(" "), at=0)
        if ident[4:6] != _ELFCLASS64_LSB:
            raise cursor.error("EI_CLASS, EI_DATA", ident[4:6].hex(" "), "02 01: ELF64, little endian", at=4)
        self.os_abi: int = ident[7]
        self.abi_version: int = ident[8]
        rows: list[tuple[int, ...]] = []
        if shoff:
            if shentsize != _SECTION.size:
                raise cursor.error("e_shentsize", str(shentsize), str(_SECTION.size), at=0x3A)
            cursor.seek(shoff, "e_shoff", at=_E_SHOFF)
            first = cursor.unpack(_SECTION, "section header 0")
            # What does not fit the ELF header is in section header 0 (gABI, "Section header index zero").
            shnum = shnum or first[5]
            shstrndx = first[6] if shstrndx == SHN_XINDEX else shstrndx
            phnum = first[7] if phnum == _PN_XNUM else phnum
            cursor.seek(shoff, "e_shoff", at=_E_SHOFF)
            rows = list(_SECTION.iter_unpack(cursor.take(shnum * _SECTION.size, "section header table")))
        self._rows = rows
        self._shstrndx: int = shstrndx
        self.program_headers: int = phoff
        """Offset of the program header table, 0 without one."""
        self.section_headers: int = shoff
        """Offset of the section header table, 0 without one."""
        self.segments: tuple[Segment, ...] = ()
        if phnum and phoff:
            if phentsize != _SEGMENT.size:
                raise cursor.error("e_phentsize", str(phentsize), str(_SEGMENT.size), at=0x36)
            cursor.seek(phoff, "e_phoff", at=_E_PHOFF)
            table = cursor.take(phnum * _SEGMENT.size, "program header table")
            self.segments = tuple(
                Segment(type_, flags, offset, address, file_size, memory_size, alignment)
                for type_, flags, offset, address, _, file_size, memory_size, alignment in _SEGMENT.iter_unpack(table)
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
        names = _Names(self._cursor(), self._range(row[4], row[5], "section name table"), "sh_name")
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
        names = _Names(self._cursor(), self.contents(self.sections[table.link]), "st_name")
        rows = self.contents(table)
        if len(rows) % SYMBOL.size:
            raise self._cursor().error(f"size of {table.name}", str(len(rows)), f"a multiple of {SYMBOL.size}", at=0)
        wide = self._wide_indices(table.index)
        for index, (name, info, other, section, value, size) in enumerate(SYMBOL.iter_unpack(rows)):
            if info & 0xF not in kinds:
                continue
            if section == SHN_XINDEX:
                if index >= len(wide):
                    raise self._cursor().error(f"symbol {index}", "without SHT_SYMTAB_SHNDX row", "one", at=0)
                section = wide[index]
            yield Symbol(index, names.at(name), info & 0xF, other, section, value, size)

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
                size = segment.file_size - segment.file_size % _DYNAMIC.size
                for tag, value in _DYNAMIC.iter_unpack(self._range(segment.offset, size, "PT_DYNAMIC")):
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

    def _wide_indices(self, symbol_table: int) -> tuple[int, ...]:
        for section in self.sections:
            if section.type == SHT_SYMTAB_SHNDX and section.link == symbol_table:
                rows = self.contents(section)
                return struct.unpack_from(f"<{len(rows) // 4}I", rows)
        return ()

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


class _Names:
    """The strings of a string table.

    Names may overlap, so that a small table could hold many long ones: all of them together are bounded.
    """

    def __init__(self, cursor: Cursor, table: memoryview, field: str) -> None:
        if len(table) > _MAX_NAME_TABLE:
            raise cursor.error(f"table of {field}", f"{len(table)} bytes long", f"at most {_MAX_NAME_TABLE}", at=0)
        self._cursor = cursor
        self._table = bytes(table)
        self._field = field
        self._known: dict[int, str] = {}
        self._left = _MAX_NAMES * len(table)

    def at(self, offset: int) -> str:
        name = self._known.get(offset)
        if name is None:
            end = self._table.find(b"\0", offset)
            if end < 0:
                size = len(self._table)
                raise self._cursor.error(self._field, f"{offset:#x}", f"a string within {size:#x} bytes", at=0)
            self._left -= end - offset
            if self._left < 0:
                raise self._cursor.error(self._field, "of many long overlapping strings", "names", at=0)
            name = self._known[offset] = self._table[offset:end].decode("latin-1")
        return name
