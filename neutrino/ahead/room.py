"""Make room for one more program header in a file whose table has no free row."""

from __future__ import annotations

from dataclasses import dataclass

from neutrino.elf.constants import (
    DT_GNU_HASH,
    DT_HASH,
    DT_STRTAB,
    DT_SYMTAB,
    DT_VERDEF,
    DT_VERNEED,
    DT_VERSYM,
    NT_GNU_BUILD_ID,
    PT_GNU_PROPERTY,
    PT_INTERP,
    PT_NOTE,
    PT_NULL,
    PT_PHDR,
    SHF_ALLOC,
    SHT_DYNSYM,
    SHT_GNU_HASH,
    SHT_GNU_VERDEF,
    SHT_GNU_VERNEED,
    SHT_GNU_VERSYM,
    SHT_HASH,
    SHT_NOBITS,
    SHT_NOTE,
    SHT_STRTAB,
)
from neutrino.elf.cursor import Cursor
from neutrino.elf.reader import read_notes
from neutrino.elf.rows import SEGMENT_LAYOUT
from neutrino.elf.tables import ProgramHeader, SectionHeader, Tables
from neutrino.errors import FormatError

_LARGEST_ALIGNMENT = 64
"""A moved block keeps the alignment of its content up to this many bytes."""
_MOST_MOVED = 16
"""Sections that may have to move at once; linkers put one or two of this size there."""
_MOVABLE_ROWS = (PT_NOTE, PT_GNU_PROPERTY, PT_INTERP)
_MOVABLE_SECTIONS = {
    SHT_STRTAB, SHT_HASH, SHT_NOTE, SHT_DYNSYM, SHT_GNU_HASH, SHT_GNU_VERDEF, SHT_GNU_VERNEED, SHT_GNU_VERSYM,
}  # fmt: skip
"""They hold no addresses relative to themselves, and readers find them through a program header or a dynamic entry."""
_MOVABLE_ENTRIES = (DT_HASH, DT_STRTAB, DT_SYMTAB, DT_GNU_HASH, DT_VERSYM, DT_VERDEF, DT_VERNEED)


@dataclass(frozen=True)
class Room:
    """How room for the row was made.

    block: the range of the file (begin, end) over which the table grows, to be moved into the new segment; None when
    nothing moves. table_moves: the table itself goes there. remark: what users should know, else "".
    """

    block: tuple[int, int] | None = None
    table_moves: bool = False
    remark: str = ""


def make_room(tables: Tables) -> Room:
    """Remove the row that is needed least from the table, or return what has to move so that there is one more.

    In this order: an unused row; the PT_NOTE that PT_GNU_PROPERTY repeats; the PT_PHDR of a library, which only
    programs need; the table grows over what follows it, which moves; a PT_NOTE without build ID; one with a build ID,
    if sections name it too; the table moves.
    """
    for dispensable in (_unused, _repeated_note, _table_of_library):
        row = dispensable(tables)
        if row is not None:
            tables.programs.remove(row)
            return Room()
    block = _after_the_table(tables)
    if block is not None:
        return Room(block=block)
    notes = [row for row in tables.programs if row.type == PT_NOTE]
    plain = [row for row in notes if not _has_build_id(tables, row)]
    if plain or (notes and tables.sections):
        tables.programs.remove((plain or notes)[0])
        return Room(remark="" if plain else "the build ID is no longer in a PT_NOTE; its section stays")
    # Without section headers nothing can be stripped.
    remark = "the program header table moved to the end: GNU strip would damage the file" if tables.sections else ""
    return Room(table_moves=True, remark=remark)


def move_block(tables: Tables, block: tuple[int, int], offset: int, address: int) -> None:
    """Say in the tables that a range of the file is now at offset and at the virtual address."""
    begin, end = block
    old = tables.elf.address(begin)
    if old is None:
        raise FormatError(tables.elf.file, begin, "program header table", "outside every PT_LOAD", "inside one")
    by, up = offset - begin, address - old
    for row in tables.programs:
        if row.type in _MOVABLE_ROWS and begin <= row.offset < end:
            row.offset += by
            row.address += up
            row.physical += up
    for section in tables.sections:
        if _in_memory(section) and begin <= section.offset < end:
            section.offset += by
            section.address += up
    for entry in tables.dynamic:
        if entry[0] in _MOVABLE_ENTRIES and old <= entry[1] < old + end - begin:
            entry[1] += up


def _unused(tables: Tables) -> ProgramHeader | None:
    return next((row for row in tables.programs if row.type == PT_NULL), None)


def _repeated_note(tables: Tables) -> ProgramHeader | None:
    repeats = {(row.offset, row.file_size) for row in tables.programs if row.type == PT_GNU_PROPERTY}
    notes = (row for row in tables.programs if row.type == PT_NOTE)
    return next((row for row in notes if (row.offset, row.file_size) in repeats), None)


def _table_of_library(tables: Tables) -> ProgramHeader | None:
    if any(row.type == PT_INTERP for row in tables.programs):
        return None
    return next((row for row in tables.programs if row.type == PT_PHDR), None)


def _after_the_table(tables: Tables) -> tuple[int, int] | None:
    """What has to move so that the table can grow by a row; an empty range when nothing is there."""
    if not tables.sections:
        return None
    begin = tables.programs_offset + SEGMENT_LAYOUT.size * len(tables.programs)
    needed = begin + SEGMENT_LAYOUT.size
    size = needed - tables.programs_offset
    load = next((row for row in tables.loads if row.covers(tables.programs_offset, size)), None)
    if load is None:
        return None
    sections = [row for row in tables.sections if _in_memory(row)]
    programs = [row for row in tables.programs if row is not load and row.type != PT_PHDR and row.file_size]
    end, reach = begin, needed
    for _ in range(_MOST_MOVED):
        moved = [row for row in sections if begin < row.offset + row.size and row.offset < reach]
        rows = [row for row in programs if begin < row.offset + row.file_size and row.offset < reach]
        if any(row.type not in _MOVABLE_ROWS or row.offset < begin for row in rows):
            return None
        if any(row.offset < begin or not _movable(tables, row) for row in moved):
            return None
        end = max([begin, *(row.offset + row.size for row in moved), *(row.offset + row.file_size for row in rows)])
        if end <= reach:
            return (begin, end) if load.covers(begin, end - begin) else None
        reach = end
    return None


def _movable(tables: Tables, section: SectionHeader) -> bool:
    if section.alignment > _LARGEST_ALIGNMENT:
        return False
    if section.type in _MOVABLE_SECTIONS:
        return True
    return any(row.type == PT_INTERP and row.offset == section.offset for row in tables.programs)


def _in_memory(section: SectionHeader) -> bool:
    return bool(section.flags & SHF_ALLOC) and section.type != SHT_NOBITS and section.size > 0


def _has_build_id(tables: Tables, row: ProgramHeader) -> bool:
    """Whether the notes of a row hold a build ID; notes that cannot be read may."""
    data = tables.elf.bytes_at(row.offset, row.file_size, "PT_NOTE")
    notes = read_notes(Cursor(data, tables.elf.file, base=row.offset), 8 if row.alignment == 8 else 4)
    try:
        return any(note.type == NT_GNU_BUILD_ID and note.owner == b"GNU\0" for note in notes)
    except FormatError:
        return True
