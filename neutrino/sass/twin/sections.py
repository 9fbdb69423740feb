"""A cubin as a list of sections that may change their sizes, and its bytes again.

The layout is that of ``ptxas``: sections in the order of their headers, the section headers, the program headers.
``tests/sass/test_cutting.py`` compares with what ``ptxas`` writes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from neutrino.elf.constants import PT_LOAD, PT_PHDR, SHF_ALLOC, SHF_WRITE, SHT_NOBITS, SHT_NULL
from neutrino.elf.cursor import Cursor
from neutrino.elf.reader import Elf
from neutrino.elf.rows import HEADER_LAYOUT, SECTION_LAYOUT, SEGMENT_LAYOUT, SYMBOL_LAYOUT, Section, Segment

SHF_INFO_LINK = 0x40
"""sh_info is the index of a section (gABI)."""
_PROGRAM_ALIGNMENT = 8
_LARGEST_ALIGNMENT = 1 << 16
"""Of a section, in bytes; ``ptxas`` uses 128 at most."""
_LARGEST_INDEX = 0xFEFF
"""Of a section: what is above has special meanings (SHN_LORESERVE)."""


@dataclass
class Part:
    """A section that may change. type, flags, link, info, alignment, entry_size: as in its header, with the numbers of
    sections and symbols of the file that it is in. content: its bytes, empty for SHT_NOBITS. size: in bytes, of
    SHT_NOBITS alone. offset: where it was in the file that it was read from, in bytes."""

    name: str
    type: int
    flags: int
    link: int
    info: int
    alignment: int
    entry_size: int
    content: bytearray
    size: int
    offset: int

    @property
    def memory_size(self) -> int:
        """How many bytes the section takes when it is loaded."""
        return self.size if self.type == SHT_NOBITS else len(self.content)


@dataclass
class SymbolEntry:
    """A row of the symbol table. section: index, or a special one. index: in the file that it was read from."""

    name: str
    info: int
    other: int
    section: int
    value: int
    size: int
    index: int

    @property
    def type(self) -> int:
        """The symbol's type (STT_FUNC …)."""
        return self.info & 0xF


def read_parts(elf: Elf, *, contents: bool = True) -> list[Part]:
    """Return all sections of a cubin, the empty first one included.

    contents: whether with copies of their contents, else with none. Raises FormatError for a section that leaves the
    file, if its contents are read, and for an alignment that is not a small power of two.
    """
    size = SECTION_LAYOUT.size * len(elf.sections)
    rows = SECTION_LAYOUT.iter_unpack(elf.bytes_at(elf.section_headers, size, "section header table"))
    parts = []
    for section, row in zip(elf.sections, rows, strict=True):
        alignment, entry_size = row[8], row[9]
        if alignment & (alignment - 1) or alignment > _LARGEST_ALIGNMENT:
            expected = f"a power of two up to {_LARGEST_ALIGNMENT}"
            raise Cursor(elf.data, elf.file, base=elf.base).error(
                f"sh_addralign of {section.name}", str(alignment), expected, at=elf.section_headers
            )
        content = content_of(elf, section) if contents else bytearray()
        parts.append(
            Part(
                section.name, section.type, section.flags, section.link, section.info, alignment, entry_size, content,
                section.size if section.type == SHT_NOBITS else 0, section.offset,
            )
        )  # fmt: skip
    return parts


def content_of(elf: Elf, section: Section) -> bytearray:
    """Return a copy of a section's bytes, none of SHT_NOBITS. Raises FormatError where they leave the file."""
    return bytearray(elf.contents(section)) if section.type not in (SHT_NULL, SHT_NOBITS) else bytearray()


def read_symbols(elf: Elf, table: int) -> list[SymbolEntry]:
    """Return all symbols, in the order of the table. table: number of its section. Raises FormatError for a damaged
    one."""
    content = elf.contents(elf.sections[table])
    names = {symbol.index: symbol.name for symbol in elf.symbols()}
    return [
        SymbolEntry(names[index], info, other, section, value, size, index)
        for index, (_, info, other, section, value, size) in enumerate(SYMBOL_LAYOUT.iter_unpack(content))
    ]


def covers(segment: Segment, part: Part) -> bool:
    """Whether a PT_LOAD segment loads a section: its bytes, or room for it after the segment's own bytes."""
    if not part.flags & SHF_ALLOC or not part.memory_size:
        return False
    end = segment.offset + segment.file_size
    if part.type == SHT_NOBITS:
        has_room = segment.memory_size > segment.file_size
        return has_room and bool(segment.flags & 2) == bool(part.flags & SHF_WRITE) and part.offset >= segment.offset
    return segment.offset <= part.offset and part.offset + len(part.content) <= end


def _string_table(names: list[str]) -> tuple[bytearray, dict[str, int]]:
    """Return a string table of names, and the offset of each."""
    table, offsets = bytearray(b"\0"), {"": 0}
    for name in names:
        if name not in offsets:
            offsets[name] = len(table)
            table += name.encode("latin-1") + b"\0"
    return table, offsets


def write_symbols(parts: list[Part], symbols: list[SymbolEntry], table: Part) -> None:
    """Set the contents of the symbol table and of its string table. ptxas has the number of all symbols in sh_info."""
    strings, offsets = _string_table([symbol.name for symbol in symbols])
    parts[table.link].content = strings
    table.content = bytearray().join(
        SYMBOL_LAYOUT.pack(offsets[row.name], row.info, row.other, row.section, row.value, row.size) for row in symbols
    )
    table.info = len(symbols)


def write_cubin(elf: Elf, parts: list[Part], names: Part) -> bytes:
    """Return the bytes of a cubin of these sections.

    elf: from which the ELF header and the program headers' order and flags are taken. parts: with the empty first one;
    contents, links and symbols must be right. names: the section that gets the names of all. Raises FormatError for
    what does not fit its field.
    """
    names.content, name_offsets = _string_table([part.name for part in parts])
    if len(parts) > _LARGEST_INDEX:
        raise Cursor(elf.data, elf.file, base=elf.base).error(
            "number of sections", str(len(parts)), f"up to {_LARGEST_INDEX}", at=0
        )
    out = bytearray(HEADER_LAYOUT.size)
    offsets = [0] * len(parts)
    for index, part in enumerate(parts):
        if part.type == SHT_NULL:
            continue
        if part.type != SHT_NOBITS:
            out += bytes(-len(out) % max(part.alignment, 1))
        offsets[index] = len(out)
        out += part.content
    out += bytes(-len(out) % _PROGRAM_ALIGNMENT)
    section_headers = len(out)
    for part, offset in zip(parts, offsets, strict=True):
        out += SECTION_LAYOUT.pack(
            name_offsets[part.name], part.type, part.flags, 0, offset, part.memory_size, part.link, part.info,
            part.alignment, part.entry_size,
        )  # fmt: skip
    program_headers = len(out)
    rows = _segments(elf, parts, offsets, program_headers)
    for row in rows:
        out += SEGMENT_LAYOUT.pack(
            row.type, row.flags, row.offset, row.address, row.address, row.file_size, row.memory_size, row.alignment
        )
    header = list(HEADER_LAYOUT.unpack(elf.bytes_at(0, HEADER_LAYOUT.size, "ELF header")))
    header[5], header[6] = program_headers if rows else 0, section_headers
    header[10], header[12], header[13] = len(rows), len(parts), parts.index(names)
    HEADER_LAYOUT.pack_into(out, 0, *header)
    return bytes(out)


def _segments(elf: Elf, parts: list[Part], offsets: list[int], program_headers: int) -> list[Segment]:
    """Return the program headers of a written cubin: those of the file that still load something, in its order.

    offsets: of the sections in the written cubin. program_headers: where the table will be there.
    """
    kept: list[tuple[Segment, list[int] | None]] = []
    for segment in elf.segments:
        # One segment is the program headers themselves, which are loaded, too.
        if segment.type == PT_PHDR or (segment.type == PT_LOAD and segment.offset == elf.program_headers):
            kept.append((segment, None))
            continue
        loaded = [index for index, part in enumerate(parts) if covers(segment, part)]
        if loaded:
            kept.append((segment, loaded))
    rows = []
    for segment, indices in kept:
        if indices is None:
            size = SEGMENT_LAYOUT.size * len(kept)
            rows.append(segment._replace(offset=program_headers, file_size=size, memory_size=size))
            continue
        bytes_of = [index for index in indices if parts[index].type != SHT_NOBITS]
        room = sum(parts[index].memory_size for index in indices if parts[index].type == SHT_NOBITS)
        begin = offsets[(bytes_of or indices)[0]]
        size = offsets[bytes_of[-1]] + len(parts[bytes_of[-1]].content) - begin if bytes_of else 0
        rows.append(segment._replace(offset=begin, file_size=size, memory_size=size + room))
    return rows


def words(content: bytes | bytearray | memoryview) -> tuple[int, ...]:
    """Return the 32-bit words of a list of them; an incomplete last one is left out."""
    return struct.unpack_from(f"<{len(content) // 4}I", content)
