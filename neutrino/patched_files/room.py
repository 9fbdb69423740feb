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
_MOST_STEPS = 16
"""Limit of the search in ``_movable_block``: the new row overlaps one or two sections, of what linkers write."""
_MOVABLE_ROWS = (PT_NOTE, PT_GNU_PROPERTY, PT_INTERP)
"""Program headers whose content readers find only by the header, so that it may lie anywhere."""
_MOVABLE_SECTIONS = {
    SHT_STRTAB, SHT_HASH, SHT_NOTE, SHT_DYNSYM, SHT_GNU_HASH, SHT_GNU_VERDEF, SHT_GNU_VERNEED, SHT_GNU_VERSYM,
}  # fmt: skip
"""Sections without addresses relative to themselves, which readers find by a program header or a dynamic entry."""
_MOVABLE_ENTRIES = (DT_HASH, DT_STRTAB, DT_SYMTAB, DT_GNU_HASH, DT_VERSYM, DT_VERDEF, DT_VERNEED)
"""Dynamic entries whose values are the addresses of such sections."""


@dataclass(frozen=True)
class Room:
    """How room was made for one more row of the program header table.

    block: the range of the file (begin, end) after the table, over which the table grows; it must be moved into the new
    segment. None when no such block moves. table_moves: whether the table itself must be moved there. remark: a
    sentence for the user about a restriction, else "".
    """

    block: tuple[int, int] | None = None
    table_moves: bool = False
    remark: str = ""


def make_room(tables: Tables) -> Room:
    """Make room for a row of the program header table: remove a row, or return what has to move.

    The first of these that is possible, in the order of what is lost, the least first: remove an unused row; the
    PT_NOTE that PT_GNU_PROPERTY repeats; the PT_PHDR of a library, which only programs need. Let the table grow over
    what follows it, which moves. Remove a PT_NOTE without build ID; one with a build ID, if a section holds it, too.
    Move the table.

    tables: of the file. A removed row is taken out of them; what has to move is only returned.
    """
    for find_dispensable in (_unused_row, _repeated_note, _library_phdr):
        row = find_dispensable(tables)
        if row is not None:
            tables.programs.remove(row)
            return Room()
    block = _movable_block(tables)
    if block is not None:
        return Room(block=block)
    notes = [row for row in tables.programs if row.type == PT_NOTE]
    without_build_id = [row for row in notes if not _has_build_id(tables, row)]
    if without_build_id or (notes and tables.sections):
        tables.programs.remove((without_build_id or notes)[0])
        return Room(remark="" if without_build_id else "the build ID is no longer in a PT_NOTE; its section stays")
    # GNU strip needs section headers, so without them there is nothing to remark.
    remark = "the program header table moved to the end: GNU strip would damage the file" if tables.sections else ""
    return Room(table_moves=True, remark=remark)


def move_block(tables: Tables, block: tuple[int, int], offset: int, address: int) -> None:
    """Update all tables for a block (begin, end) of the file that moves to another file offset and virtual address.

    It makes way for a longer program header table. Only what may be in such a block is looked for: see
    ``_movable_block``. The bytes themselves are not moved. Raises FormatError when the block is not in a PT_LOAD, so
    that it has no address.
    """
    begin, end = block
    old_address = tables.elf.address(begin)
    if old_address is None:
        raise FormatError(tables.elf.file, begin, "program header table", "outside every PT_LOAD", "inside one")
    offset_delta, address_delta = offset - begin, address - old_address
    # What begins in the block is in it as a whole: _movable_block divides nothing.
    for row in tables.programs:
        if row.type in _MOVABLE_ROWS and begin <= row.offset < end:
            row.offset += offset_delta
            row.address += address_delta
            row.physical += address_delta
    for section in tables.sections:
        if _in_memory(section) and begin <= section.offset < end:
            section.offset += offset_delta
            section.address += address_delta
    for entry in tables.dynamic:
        tag, value = entry
        if tag in _MOVABLE_ENTRIES and old_address <= value < old_address + end - begin:
            entry[1] += address_delta


def _unused_row(tables: Tables) -> ProgramHeader | None:
    """Return a program header that is not in use (PT_NULL), None if there is none."""
    return next((row for row in tables.programs if row.type == PT_NULL), None)


def _repeated_note(tables: Tables) -> ProgramHeader | None:
    """Return a PT_NOTE whose bytes are exactly those of a PT_GNU_PROPERTY; None without one."""
    properties = {(row.offset, row.file_size) for row in tables.programs if row.type == PT_GNU_PROPERTY}
    notes = (row for row in tables.programs if row.type == PT_NOTE)
    return next((row for row in notes if (row.offset, row.file_size) in properties), None)


def _library_phdr(tables: Tables) -> ProgramHeader | None:
    """Return the PT_PHDR of a file without PT_INTERP; None for a program, which needs its PT_PHDR."""
    if any(row.type == PT_INTERP for row in tables.programs):
        return None
    return next((row for row in tables.programs if row.type == PT_PHDR), None)


def _movable_block(tables: Tables) -> tuple[int, int] | None:
    """Return the range of the file (begin, end) that has to move so that the program header table can grow by a row.

    It begins after the table and holds whole sections and segments. Empty when only padding follows the table. None
    when something that must not move is in the way, or without section headers, which would show what is there.
    """
    if not tables.sections:
        return None
    begin = tables.programs_offset + SEGMENT_LAYOUT.size * len(tables.programs)
    needed = begin + SEGMENT_LAYOUT.size
    size = needed - tables.programs_offset
    # The larger table must be loaded as a whole, since PT_PHDR and the kernel refer to it in memory.
    load = next((row for row in tables.loads if row.covers(tables.programs_offset, size)), None)
    if load is None:
        return None
    sections = [row for row in tables.sections if _in_memory(row)]
    programs = [row for row in tables.programs if row is not load and row.type != PT_PHDR and row.file_size]
    # What overlaps the new row has to move as a whole, and with it what overlaps that, and so on.
    reach = needed
    for _ in range(_MOST_STEPS):
        moved_sections = [row for row in sections if begin < row.offset + row.size and row.offset < reach]
        moved_programs = [row for row in programs if begin < row.offset + row.file_size and row.offset < reach]
        if any(row.type not in _MOVABLE_ROWS or row.offset < begin for row in moved_programs):
            return None
        if any(row.offset < begin or not _is_movable(tables, row) for row in moved_sections):
            return None
        section_ends = [row.offset + row.size for row in moved_sections]
        program_ends = [row.offset + row.file_size for row in moved_programs]
        end = max([begin, *section_ends, *program_ends])
        if end <= reach:
            # Nothing more overlaps. The block must have addresses, which move_block changes.
            return (begin, end) if load.covers(begin, end - begin) else None
        reach = end
    return None


def _is_movable(tables: Tables, section: SectionHeader) -> bool:
    """Whether a section may lie elsewhere: of one of the movable types, or the interpreter's name (PT_INTERP)."""
    if section.alignment > _LARGEST_ALIGNMENT:
        # It would be less aligned at its new place.
        return False
    if section.type in _MOVABLE_SECTIONS:
        return True
    return any(row.type == PT_INTERP and row.offset == section.offset for row in tables.programs)


def _in_memory(section: SectionHeader) -> bool:
    """Whether a section has bytes in the file that are loaded."""
    return bool(section.flags & SHF_ALLOC) and section.type != SHT_NOBITS and section.size > 0


def _has_build_id(tables: Tables, row: ProgramHeader) -> bool:
    """Whether the notes of a PT_NOTE hold a build ID, by which debuggers find a file's debugging information.

    True for damaged notes, since they may hold one.
    """
    data = tables.elf.bytes_at(row.offset, row.file_size, "PT_NOTE")
    # The parts of a note are padded to 4 bytes, or to 8 in a PT_NOTE that is aligned so.
    padding = 8 if row.alignment == 8 else 4
    notes = read_notes(Cursor(data, tables.elf.file, base=row.offset), padding)
    try:
        return any(note.type == NT_GNU_BUILD_ID and note.owner == b"GNU\0" for note in notes)
    except FormatError:
        return True
