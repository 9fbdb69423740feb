"""What patching appends to a file: one segment, and what of the original's tables is changed so that it is found.

Everything is known before anything is written. The changes to the tables come first: they give the size of the record
that restores the original, and with it all offsets are known.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from neutrino.abi.sections import SECTION_MAGIC
from neutrino.abi.structures import align_up
from neutrino.ahead.aside import write
from neutrino.ahead.carrier import why_not
from neutrino.ahead.original import Original, crc_of_tables, pack_record, record_size
from neutrino.ahead.place import find_section
from neutrino.ahead.room import make_room, move_block
from neutrino.ahead.section import NAME, complete_header
from neutrino.elf.constants import (
    DT_AUXILIARY,
    DT_NULL,
    DT_STRSZ,
    DT_STRTAB,
    PF_R,
    PF_W,
    PT_INTERP,
    PT_LOAD,
    PT_PHDR,
    SHF_ALLOC,
    SHT_DYNAMIC,
    SHT_PROGBITS,
)
from neutrino.elf.reader import Elf
from neutrino.elf.rows import DYNAMIC_LAYOUT, SEGMENT_LAYOUT
from neutrino.elf.tables import ELF_HEADER_SIZE, ProgramHeader, SectionHeader, Tables
from neutrino.errors import FormatError, PatchError

_PAGE = 1 << 12
_LARGEST_PAGE = 1 << 16
"""Pages of the systems that ELF files are linked for: 4 KiB to 64 KiB (AArch64, POWER)."""
_LARGEST_ALIGNMENT = 1 << 21
_OLD_NAME = NAME + ".old"
_LAST_ADDRESS = 1 << 62
LARGEST_GAP = 1 << 30
"""Bytes without content that a program may get when its program header table moves: as many as its .bss has."""
_LONGEST_PATH = 4096
_PROGRAM = "is a program, which cannot load the stub: its kernels are recorded only under the neutrino command"
"""glibc puts the DT_AUXILIARY of a program in front of the program itself, which its own lists do not bear: 2.36
crashes in relocation or ends with an assertion of dl-fini.c."""
_ALIGN = 64
"""Of what follows the section in its segment: enough for each table that may be there."""


@dataclass(frozen=True)
class Attachment:
    """What attach did. offset, size: of the section in target, bytes. address: its virtual address.

    remarks: what users should know of the file, in words; mostly none.
    """

    offset: int
    size: int
    address: int
    remarks: tuple[str, ...]


@dataclass
class _Piece:
    """What follows the section in the segment. fill: its bytes, once every place is known."""

    size: int
    fill: Callable[[], Sequence[bytes | memoryview]]
    skew: int = 0
    offset: int = 0
    address: int = 0


class Appended:
    """What is appended and changed. elf: the original. section: its parts in order. auxiliary: for DT_AUXILIARY.

    attachment: what will have been done.

    The file is only read until ``write``. Raises PatchError when it can carry no section, FormatError when it is
    damaged.
    """

    def __init__(self, elf: Elf, section: Sequence[bytes | memoryview], auxiliary: str) -> None:
        reason = why_not(elf)
        if reason is not None:
            raise PatchError(elf.file, reason)
        self._elf = elf
        self._section = section
        self._tables = tables = Tables(elf)
        self._retired = self._retire()
        if not tables.loads:
            raise self._error("PT_LOAD", "missing", "at least one")
        self._room = make_room(tables)
        self._row = ProgramHeader(PT_LOAD, PF_R, 0, 0, 0, 0, 0, 0)
        tables.programs.insert(tables.programs.index(tables.loads[-1]) + 1, self._row)
        self._strings: _Piece | None = None
        self._dynamic: _Piece | None = None
        self._strings_header = self._section_at(self._strings_address())
        self._dynamic_header = next((row for row in tables.sections if row.type == SHT_DYNAMIC), None)
        self._remarks = [self._room.remark] if self._room.remark else []
        self._dynamic_changes = self._room.block is not None
        if any(row.type == PT_INTERP for row in tables.programs):
            self._remarks.append(_PROGRAM)
        else:
            self._add_auxiliary(auxiliary)
        ranges = self._touched()
        self._changes = tuple((begin, bytes(elf.bytes_at(begin, end - begin, "table"))) for begin, end in ranges)
        self._record_offset = align_up(sum(map(len, section)), 8)
        self._section_size = self._record_offset + record_size(self._changes)
        self.attachment = self._lay_out()

    def write(self, new: int, checksum: bytes) -> None:
        """Append to the original, which is in the file already, and change its tables. checksum: its SHA-256."""
        tables = self._tables
        begin = self._row.offset
        pieces = [(piece.offset, piece.fill()) for piece in self._pieces]
        position = begin
        for part in self._section:
            write(new, position, part)
            position += len(part)
        write(new, begin, complete_header(self._section, self._section_size, self._record_offset))
        for position, parts in pieces:
            for part in parts:
                write(new, position, part)
                position += len(part)
        headers = 0
        if tables.sections:
            names = tables.sections[tables.names_index]
            names.offset, names.size = begin + self._row.file_size, len(tables.names)
            headers = align_up(names.offset + names.size, 8)
            write(new, names.offset, bytes(tables.names))
            write(new, headers, tables.pack_sections())
        for offset in self._retired:
            write(new, offset, bytes(len(SECTION_MAGIC)))
        if self._dynamic is None and self._dynamic_changes:
            write(new, tables.dynamic_offset, tables.pack_dynamic())
        write(new, tables.programs_offset, tables.pack_programs())
        write(new, 0, tables.pack_header(headers))
        with mmap.mmap(new, 0, access=mmap.ACCESS_READ) as written, memoryview(written) as view:
            crc = crc_of_tables(view, begin + self._section_size, self._changes)
        original = Original(len(self._elf.data), checksum, self._changes, crc)
        write(new, begin + self._record_offset, pack_record(original, self._record_offset))

    def _retire(self) -> list[int]:
        """Where the section of an earlier patch is, in a file that was changed since: it is no section any more."""
        place = find_section(self._elf)
        if place is None:
            return []
        header = self._tables.section(NAME)
        if header is not None:
            self._tables.rename_section(header, _OLD_NAME)
        return [place.offset]

    def _strings_address(self) -> int:
        return self._tables.dynamic_value(DT_STRTAB) or 0

    def _section_at(self, address: int) -> SectionHeader | None:
        rows = self._tables.sections
        return next((row for row in rows if row.flags & SHF_ALLOC and row.size and row.address == address), None)

    def _add_auxiliary(self, auxiliary: str) -> None:
        """Make the dynamic section name the library, and say what that moves."""
        name = auxiliary.encode("utf-8", "surrogateescape") + b"\0"
        place = self._elf.file_range(self._strings_address())
        if place is None:
            raise self._error("DT_STRTAB", "outside the file", "in a PT_LOAD")
        old = self._elf.bytes_at(place[0], self._tables.dynamic_value(DT_STRSZ) or 0, "DT_STRSZ")
        entries = self._tables.dynamic
        end = next((index for index, entry in enumerate(entries) if entry[0] == DT_NULL), None)
        if end is None:
            raise self._error("PT_DYNAMIC", "without DT_NULL", "one at its end")
        self._dynamic_changes = True
        for entry in entries[:end]:
            if entry[0] == DT_AUXILIARY:
                known = bytes(old[entry[1] : entry[1] + _LONGEST_PATH]).partition(b"\0")[0]
                if known == name[:-1]:
                    return
                if PurePath(os.fsdecode(known)).name == PurePath(auxiliary).name:
                    # The stub of an earlier patch, which lay elsewhere.
                    entry[1] = len(old)
                    break
        else:
            added = [DT_AUXILIARY, len(old)]
            if end + 1 < len(entries) and entries[end + 1][0] == DT_NULL:
                entries[end] = added
            else:
                entries[end:] = [added, [DT_NULL, 0], [DT_NULL, 0]]
                self._dynamic = _Piece(DYNAMIC_LAYOUT.size * len(entries), lambda: [self._tables.pack_dynamic()])
        self._strings = _Piece(len(old) + len(name), lambda: [old, name])

    def _error(self, field: str, found: str, expected: str) -> FormatError:
        return FormatError(self._elf.file, self._tables.programs_offset, field, found, expected)

    def _touched(self) -> list[tuple[int, int]]:
        """The ranges of the original that change, in order and without overlap."""
        tables = self._tables
        programs = tables.programs_offset
        ranges = [(0, ELF_HEADER_SIZE), *((offset, offset + len(SECTION_MAGIC)) for offset in self._retired)]
        if not self._room.table_moves:
            ranges.append((programs, programs + SEGMENT_LAYOUT.size * len(tables.programs)))
        if self._dynamic is None and self._dynamic_changes:
            ranges.append((tables.dynamic_offset, tables.dynamic_offset + DYNAMIC_LAYOUT.size * len(tables.dynamic)))
        merged: list[tuple[int, int]] = []
        for begin, end in sorted(ranges):
            if merged and begin <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(end, merged[-1][1])
            else:
                merged.append((begin, end))
        return merged

    def _lay_out(self) -> Attachment:
        tables, row, room = self._tables, self._row, self._room
        loads = [load for load in tables.loads if load is not row]
        alignments = [load.alignment for load in loads if load.alignment.bit_count() == 1]
        largest = max([_PAGE, *alignments])
        page = min(largest, _LARGEST_PAGE)
        row.alignment = page
        row.offset = align_up(len(self._elf.data), page)
        end = max(load.address + load.memory_size for load in loads)
        row.address = align_up(end, min(largest, _LARGEST_ALIGNMENT))
        if room.table_moves and any(program.type == PT_INTERP for program in tables.programs):
            # Linux before 5.18 passes a program its table's address as that of its first segment + e_phoff.
            bias = loads[0].address - loads[0].offset
            row.offset = max(row.offset, row.address - bias)
            row.address = row.offset + bias
            gap = row.offset - len(self._elf.data)
            if gap > LARGEST_GAP:
                raise PatchError(self._elf.file, f"would need {gap} bytes of padding after it, {LARGEST_GAP} at most")
        block = _Piece(0, list)
        table = _Piece(0, list)
        if room.block is not None:
            begin, end = room.block
            data = bytes(self._elf.bytes_at(begin, end - begin, "what follows the program header table"))
            block = _Piece(len(data), lambda: [data], skew=begin % _ALIGN)
        if room.table_moves:
            table = _Piece(SEGMENT_LAYOUT.size * len(tables.programs), lambda: [tables.pack_programs()])
        self._pieces = [piece for piece in (self._strings, self._dynamic, block, table) if piece and piece.size]
        position = self._section_size
        for piece in self._pieces:
            position = align_up(position, _ALIGN) + piece.skew
            piece.offset, piece.address = row.offset + position, row.address + position
            position += piece.size
        row.physical = row.address
        row.file_size = row.memory_size = position
        if row.address + position > _LAST_ADDRESS:
            raise self._error("end of the last PT_LOAD", f"{end:#x}", f"an address below {_LAST_ADDRESS:#x}")
        self._point(block, table)
        if tables.sections:
            size = self._section_size
            header = SectionHeader(0, SHT_PROGBITS, SHF_ALLOC, row.address, row.offset, size, 0, 0, page, 0)
            tables.add_section(NAME, header)
        return Attachment(row.offset, self._section_size, row.address, tuple(self._remarks))

    def _point(self, block: _Piece, table: _Piece) -> None:
        """Make the tables say where the pieces are."""
        tables = self._tables
        if self._room.block is not None and block.size:
            move_block(tables, self._room.block, block.offset, block.address)
        if table.size:
            tables.programs_offset = table.offset
        for program in tables.programs:
            if program.type == PT_PHDR:
                program.file_size = program.memory_size = SEGMENT_LAYOUT.size * len(tables.programs)
                if table.size:
                    program.offset, program.address, program.physical = table.offset, table.address, table.address
        if self._strings is not None:
            tables.set_dynamic(DT_STRTAB, self._strings.address)
            tables.set_dynamic(DT_STRSZ, self._strings.size)
            self._move(".dynstr", self._strings_header, self._strings)
        if self._dynamic is not None:
            self._row.flags |= PF_W
            row = tables.dynamic_row
            row.offset, row.address, row.physical = self._dynamic.offset, self._dynamic.address, self._dynamic.address
            row.file_size = row.memory_size = self._dynamic.size
            self._move(".dynamic", self._dynamic_header, self._dynamic)

    def _move(self, name: str, header: SectionHeader | None, piece: _Piece) -> None:
        """Make a section header follow; another keeps the old bytes, whose segment strip would else find empty."""
        if header is not None:
            old = replace(header, type=SHT_PROGBITS, link=0, info=0, entry_size=0)
            header.offset, header.address, header.size = piece.offset, piece.address, piece.size
            self._tables.add_section(f"{name}.old", old)
