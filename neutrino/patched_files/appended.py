"""The segment that patching appends to an ELF file, and the changes to the file's tables that make it known.

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
from neutrino.elf.constants import (
    DF_1_NODELETE,
    DT_AUXILIARY,
    DT_FLAGS_1,
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
from neutrino.elf.cursor import release
from neutrino.elf.reader import Elf
from neutrino.elf.rows import DYNAMIC_LAYOUT, SEGMENT_LAYOUT
from neutrino.elf.tables import ELF_HEADER_SIZE, ProgramHeader, SectionHeader, Tables
from neutrino.errors import FormatError, PatchError
from neutrino.patched_files.carrier import refusal
from neutrino.patched_files.large_files import write_at
from neutrino.patched_files.original import Original, crc_of_tables, pack_record, record_size
from neutrino.patched_files.place import find_section
from neutrino.patched_files.room import make_room, move_block
from neutrino.patched_files.section import NAME, complete_header

_PAGE = 1 << 12
_LARGEST_PAGE = 1 << 16
"""Pages of the systems that ELF files are linked for: 4 KiB to 64 KiB (AArch64, POWER)."""
_LARGEST_ALIGNMENT = 1 << 21
"""The new segment's address is aligned as the original's segments are, up to this many bytes: large pages of x86-64,
for which older linkers align."""
_OLD_NAME = NAME + ".old"
"""The name that the section of an earlier patch gets."""
_LAST_ADDRESS = 1 << 62
"""Where the new segment must end, at the latest: far beyond what a processor can address."""
LARGEST_GAP = 1 << 30
"""Bytes without content that a program may get when its program header table moves: as many as its .bss has."""
_LONGEST_PATH = 4096
"""Bytes of a DT_AUXILIARY that are compared, at most."""
_PROGRAM = "is a program, which cannot load the stub: its kernels are recorded only under the neutrino command"
"""glibc puts the DT_AUXILIARY of a program before the program itself in its list of loaded objects, and cannot handle
that: 2.36 crashes in relocation or ends with an assertion of dl-fini.c."""
_ALIGN = 64
"""Alignment of each table that follows the section in its segment: enough for any of them."""


@dataclass(frozen=True)
class Attachment:
    """What attach did. offset, size: of the section in target, bytes. address: its virtual address.

    remarks: sentences for the user about restrictions of the new file; mostly none.
    """

    offset: int
    size: int
    address: int
    remarks: tuple[str, ...]


@dataclass
class _Piece:
    """A table that follows the section in the new segment.

    size: in bytes. fill: returns its bytes in parts, called once all offsets and addresses are known. skew: bytes by
    which it starts after a multiple of ``_ALIGN``. offset, address: where it will be in the file and in memory.

    fill must not refer to the ``Appended`` that owns the piece: such a reference cycle would keep the new file open
    until the next garbage collection, and a program that is open for writing cannot be executed.
    """

    size: int
    fill: Callable[[], Sequence[bytes | memoryview]]
    skew: int = 0
    offset: int = 0
    address: int = 0


def retired_sections(elf: Elf, tables: Tables) -> list[int]:
    """Rename the section of an earlier patch, and return the file offsets of its magic, which is to be erased.

    elf, tables: of the file, and those of the new one. A reader looks for the name, and for the magic at the start of a
    segment; it must find the new section only. There is an old one only in a file that another tool has changed after
    it was patched: otherwise ``attach`` starts from the original. Without one the result is empty.
    """
    place = find_section(elf)
    if place is None:
        return []
    header = tables.section(NAME)
    if header is not None:
        tables.rename_section(header, _OLD_NAME)
    return [place.offset]


class Appended:
    """The segment that is appended to an ELF file, and the changes to the file's tables that make it known.

    elf: the original. section: the ``.neutrino`` section in parts, in order. auxiliary: name of the stub, the library
    that loads the hook, for DT_AUXILIARY: the dynamic loader loads it together with the file. attachment: where the
    section will be. Nothing is written before ``write``. Raises PatchError when the file cannot carry a section,
    FormatError when it is damaged.

    tables: those of the new file. load: the new segment's program header. room: how room was made for that; a block or
    the whole program header table may have to move. pieces: what follows the section in the segment. strings, dynamic:
    the pieces with copies of the dynamic string table and section, None if these do not move. changes: (offset,
    original bytes) of each range that is overwritten, for the record that restores the original. retired: offsets of
    earlier sections' magics.
    """

    def __init__(self, elf: Elf, section: Sequence[bytes | memoryview], auxiliary: str) -> None:
        """Plan everything that ``write`` will do: change the tables in memory and assign all offsets.

        elf: the original. section: the ``.neutrino`` section in parts. auxiliary: library name for DT_AUXILIARY.
        """
        reason = refusal(elf)
        if reason is not None:
            raise PatchError(elf.file, reason)
        self._elf = elf
        self._section = section
        self._tables = tables = Tables(elf)

        # File offsets of the magics of earlier sections, which write erases.
        self._retired = retired_sections(elf, tables)

        # One more PT_LOAD, after the last one: they must be in the order of their addresses, and this one gets the
        # highest. Its offset, address and size are set by _lay_out.
        if not tables.loads:
            raise self._error("PT_LOAD", "missing", "at least one")
        self._room = make_room(tables)
        self._load = ProgramHeader(PT_LOAD, PF_R, 0, 0, 0, 0, 0, 0)
        tables.programs.insert(tables.programs.index(tables.loads[-1]) + 1, self._load)

        # The dynamic section names the stub. Copies of the string table and of the dynamic section, if they move; and
        # the section headers of the two, if the file has them.
        self._strings: _Piece | None = None
        self._dynamic: _Piece | None = None
        self._strings_header = self._section_at(self._strings_address())
        self._dynamic_header = next((row for row in tables.sections if row.type == SHT_DYNAMIC), None)
        self._remarks = [self._room.remark] if self._room.remark else []
        # Dynamic entries may hold addresses in a block that moves.
        self._dynamic_changes = self._room.block is not None
        if any(row.type == PT_INTERP for row in tables.programs):
            self._remarks.append(_PROGRAM)
        else:
            # Both need an entry, unless the file has one that changes.
            added = [*self._name_auxiliary(auxiliary), *self._mark_nodelete()]
            if added:
                self._add_dynamic(added)

        # The ranges that change determine the size of the restore record, and that all offsets in the segment. changes:
        # (file offset, the original's bytes).
        ranges = self._changed_ranges()
        self._changes = tuple((begin, bytes(elf.bytes_at(begin, end - begin, "table"))) for begin, end in ranges)
        # From the start of the section.
        self._record_offset = align_up(sum(map(len, section)), 8)
        self._section_size = self._record_offset + record_size(self._changes)
        self.attachment = self._lay_out()

    def write(self, new: int, checksum: bytes) -> None:
        """Append the segment to a copy of the original, and change the copy's tables.

        new: descriptor of the copy. checksum: the original's SHA-256. Raises OSError, and FormatError for an address
        that does not fit into its field.
        """
        tables = self._tables
        begin = self._load.offset
        # Packed before anything is written, since packing raises FormatError for an address that does not fit.
        pieces = [(piece.offset, piece.fill()) for piece in self._pieces]

        # The section, whose header is written again with its final size, and the tables that follow it.
        position = begin
        for part in self._section:
            write_at(new, position, part)
            position += len(part)
            release(memoryview(part))
        write_at(new, begin, complete_header(self._section, self._section_size, self._record_offset))
        for position, parts in pieces:
            for part in parts:
                write_at(new, position, part)
                position += len(part)

        # The section name table and the section headers, which are not loaded, end the file. section_headers: offset of
        # the latter, 0 for a file without any.
        section_headers = 0
        if tables.sections:
            names_header = tables.sections[tables.names_index]
            names_header.offset, names_header.size = begin + self._load.file_size, len(tables.names)
            section_headers = align_up(names_header.offset + names_header.size, 8)
            write_at(new, names_header.offset, bytes(tables.names))
            write_at(new, section_headers, tables.pack_sections())

        # What changes in place. The section of an earlier patch loses its magic, so that it is not found any more.
        for offset in self._retired:
            write_at(new, offset, bytes(len(SECTION_MAGIC)))
        if self._dynamic is None and self._dynamic_changes:
            write_at(new, tables.dynamic_offset, tables.pack_dynamic())
        write_at(new, tables.programs_offset, tables.pack_programs())
        write_at(new, 0, tables.pack_header(section_headers))

        # The restore record comes last: it holds the checksum of all tables above, which is computed from the file.
        with mmap.mmap(new, 0, access=mmap.ACCESS_READ) as written, memoryview(written) as view:
            crc = crc_of_tables(view, begin + self._section_size, self._changes)
        original = Original(len(self._elf.data), checksum, self._changes, crc)
        write_at(new, begin + self._record_offset, pack_record(original, self._record_offset))

    def _strings_address(self) -> int:
        """The address of the dynamic section's string table; 0 without one."""
        # There is one: refusal has checked that.
        return self._tables.dynamic_value(DT_STRTAB) or 0

    def _section_at(self, address: int) -> SectionHeader | None:
        """Return the header of the ELF section that is loaded at an address; None without one."""
        rows = self._tables.sections
        return next((row for row in rows if row.flags & SHF_ALLOC and row.size and row.address == address), None)

    def _name_auxiliary(self, auxiliary: str) -> list[list[int]]:
        """Name the library auxiliary in a DT_AUXILIARY; return the entry for it, if one must be added.

        Sets ``_strings``, the longer copy of the dynamic string table. Nothing changes if the file names this library
        already. Raises FormatError for a damaged string table.
        """
        name = auxiliary.encode("utf-8", "surrogateescape") + b"\0"
        strings_range = self._elf.file_range(self._strings_address())
        if strings_range is None:
            raise self._error("DT_STRTAB", "outside the file", "in a PT_LOAD")
        old_strings = self._elf.bytes_at(strings_range[0], self._tables.dynamic_value(DT_STRSZ) or 0, "DT_STRSZ")
        # The new name is put at the end of the string table.
        name_offset = len(old_strings)
        added = [[DT_AUXILIARY, name_offset]]
        for entry in self._entries():
            tag, value = entry
            if tag == DT_AUXILIARY:
                current = bytes(old_strings[value : value + _LONGEST_PATH]).partition(b"\0")[0]
                if current == name[:-1]:
                    return []
                if PurePath(os.fsdecode(current)).name == PurePath(auxiliary).name:
                    # The stub of an earlier patch, at another path: its entry is changed instead of adding a second.
                    entry[1] = name_offset
                    added = []
                    break
        self._dynamic_changes = True
        self._strings = _Piece(len(old_strings) + len(name), lambda: [old_strings, name])
        return added

    def _mark_nodelete(self) -> list[list[int]]:
        """Mark the library as one that is never unloaded; return the entry for it, if one must be added.

        If dlmopen loads the library, glibc loses the stub from its list of loaded objects, and unloading the library
        would end the program. The stub repairs the list where it can (``stub.c``).
        """
        for entry in self._entries():
            if entry[0] == DT_FLAGS_1:
                self._dynamic_changes = self._dynamic_changes or not entry[1] & DF_1_NODELETE
                entry[1] |= DF_1_NODELETE
                return []
        return [[DT_FLAGS_1, DF_1_NODELETE]]

    def _entries(self) -> list[list[int]]:
        """Return the dynamic entries before the DT_NULL that ends them. Raises FormatError if none does."""
        entries = self._tables.dynamic
        end = next((index for index, (tag, _) in enumerate(entries) if tag == DT_NULL), None)
        if end is None:
            raise self._error("PT_DYNAMIC", "without DT_NULL", "one at its end")
        return entries[:end]

    def _add_dynamic(self, added: list[list[int]]) -> None:
        """Add entries to the dynamic section.

        Sets ``_dynamic``, a longer copy of it, if it has not enough DT_NULL that could become the new entries.
        """
        self._dynamic_changes = True
        # Not self in the lambda below: a reference cycle would keep the new file open until a garbage collection.
        tables = self._tables
        entries = tables.dynamic
        end = len(self._entries())
        # The first DT_NULL ends the entries, so another must follow.
        spare = entries[end + 1 : end + 1 + len(added)]
        if len(spare) == len(added) and all(tag == DT_NULL for tag, _ in spare):
            entries[end : end + len(added)] = added
        else:
            # One DT_NULL is the end, the other a spare, as most linkers leave one.
            entries[end:] = [*added, [DT_NULL, 0], [DT_NULL, 0]]
            self._dynamic = _Piece(DYNAMIC_LAYOUT.size * len(entries), lambda: [tables.pack_dynamic()])

    def _error(self, field: str, found: str, expected: str) -> FormatError:
        """Return the error for a field of the patched file that has a wrong value."""
        # These faults have no single offset; the program header table is where to start looking.
        return FormatError(self._elf.file, self._tables.programs_offset, field, found, expected)

    def _changed_ranges(self) -> list[tuple[int, int]]:
        """Return the ranges (begin, end) of the original that ``write`` overwrites, in order, without overlap.

        The original's bytes in them go into the record that restores it.
        """
        tables = self._tables
        programs = tables.programs_offset
        ranges = [(0, ELF_HEADER_SIZE), *((offset, offset + len(SECTION_MAGIC)) for offset in self._retired)]
        # A table that moves into the new segment keeps its old bytes.
        if not self._room.table_moves:
            ranges.append((programs, programs + SEGMENT_LAYOUT.size * len(tables.programs)))
        if self._dynamic is None and self._dynamic_changes:
            ranges.append((tables.dynamic_offset, tables.dynamic_offset + DYNAMIC_LAYOUT.size * len(tables.dynamic)))
        # They often overlap: the program header table mostly follows the ELF header at once.
        merged: list[tuple[int, int]] = []
        for begin, end in sorted(ranges):
            if merged and begin <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(end, merged[-1][1])
            else:
                merged.append((begin, end))
        return merged

    def _lay_out(self) -> Attachment:
        """Assign file offsets and addresses to the new segment and its pieces, and enter them in the tables.

        Raises PatchError when the program header table would need too much padding, FormatError when the segment's
        address would be too large.
        """
        tables, segment = self._tables, self._load
        self._place_segment()
        block = self._moved_block()
        table = self._moved_table()
        self._pieces = [piece for piece in (self._strings, self._dynamic, block, table) if piece is not None]

        # The pieces follow the section.
        position = self._section_size
        for piece in self._pieces:
            position = align_up(position, _ALIGN) + piece.skew
            piece.offset, piece.address = segment.offset + position, segment.address + position
            position += piece.size
        segment.physical = segment.address
        segment.file_size = segment.memory_size = position
        if segment.address + position > _LAST_ADDRESS:
            found = f"{self._end_of_loads():#x}"
            raise self._error("end of the last PT_LOAD", found, f"an address below {_LAST_ADDRESS:#x}")

        # The section's own header is added last, since _update_tables changes headers that were there.
        self._update_tables(block, table)
        if tables.sections:
            header = SectionHeader(
                name=0,  # add_section sets it
                type=SHT_PROGBITS,
                flags=SHF_ALLOC,
                address=segment.address,
                offset=segment.offset,
                size=self._section_size,
                link=0,
                info=0,
                alignment=segment.alignment,
                entry_size=0,
            )
            tables.add_section(NAME, header)
        return Attachment(segment.offset, self._section_size, segment.address, tuple(self._remarks))

    def _original_loads(self) -> list[ProgramHeader]:
        """The loaded segments (PT_LOAD) that the file had before it was patched."""
        return [load for load in self._tables.loads if load is not self._load]

    def _end_of_loads(self) -> int:
        """Return the first virtual address after all of the original's segments."""
        return max(load.address + load.memory_size for load in self._original_loads())

    def _place_segment(self) -> None:
        """Choose the new segment's alignment, file offset and virtual address: after the end of the original."""
        tables, segment = self._tables, self._load
        loads = self._original_loads()
        # p_align is the page size that the file was linked for. Only powers of two are valid; 0 and anything else say
        # nothing about pages.
        alignments = [load.alignment for load in loads if load.alignment.bit_count() == 1]
        largest = max([_PAGE, *alignments])
        segment.alignment = min(largest, _LARGEST_PAGE)
        # Offset and address must be equal modulo the segment's alignment: both are multiples of it.
        segment.offset = align_up(len(self._elf.data), segment.alignment)
        segment.address = align_up(self._end_of_loads(), min(largest, _LARGEST_ALIGNMENT))
        if self._room.table_moves and any(program.type == PT_INTERP for program in tables.programs):
            # Linux before 5.18 passes a program (AT_PHDR) its table's address as that of its first segment + e_phoff.
            # So the new segment must lie at the same distance from its file offset as the first one.
            bias = loads[0].address - loads[0].offset
            segment.offset = max(segment.offset, segment.address - bias)
            segment.address = segment.offset + bias
            gap = segment.offset - len(self._elf.data)
            if gap > LARGEST_GAP:
                raise PatchError(self._elf.file, f"would need {gap} bytes of padding after it, {LARGEST_GAP} at most")

    def _moved_block(self) -> _Piece | None:
        """Return a piece with what follows the program header table, which moves away so that a row can be added there.

        The piece becomes a part of the new segment, like the others. None if nothing has to move.
        """
        if self._room.block is None:
            # The new row has its place: another row was removed for it, or the whole table moves.
            return None
        begin, end = self._room.block
        if begin == end:
            # The table grows over padding, which nothing needs.
            return None
        data = bytes(self._elf.bytes_at(begin, end - begin, "what follows the program header table"))
        # With the same distance from a multiple of _ALIGN as before, so that what is in the block stays aligned.
        return _Piece(len(data), lambda: [data], skew=begin % _ALIGN)

    def _moved_table(self) -> _Piece | None:
        """Return a piece for the program header table if it moves into the new segment, else None."""
        if not self._room.table_moves:
            return None
        # Packed only when it is written: its rows get their final offsets after all pieces have theirs. Not self in the
        # lambda: a reference cycle would keep the new file open, and a file open for writing cannot be executed.
        tables = self._tables
        return _Piece(SEGMENT_LAYOUT.size * len(tables.programs), lambda: [tables.pack_programs()])

    def _update_tables(self, block: _Piece | None, table: _Piece | None) -> None:
        """Enter the new places of the pieces in program headers, section headers and the dynamic section.

        block, table: as in ``_moved_block`` and ``_moved_table``.
        """
        tables = self._tables
        # First the block: the string table may be in it, and the new address below is to replace the moved one.
        if self._room.block is not None and block is not None:
            move_block(tables, self._room.block, block.offset, block.address)
        if table is not None:
            tables.programs_offset = table.offset
        for program in tables.programs:
            # PT_PHDR describes the table, which has one more row, or is elsewhere.
            if program.type == PT_PHDR:
                program.file_size = program.memory_size = SEGMENT_LAYOUT.size * len(tables.programs)
                if table is not None:
                    program.offset, program.address, program.physical = table.offset, table.address, table.address
        if self._strings is not None:
            tables.set_dynamic(DT_STRTAB, self._strings.address)
            tables.set_dynamic(DT_STRSZ, self._strings.size)
            self._move_section(".dynstr", self._strings_header, self._strings)
        if self._dynamic is not None:
            # The dynamic loader may write to the dynamic section: glibc relocates the addresses in it.
            self._load.flags |= PF_W
            row = tables.dynamic_row
            row.offset, row.address, row.physical = self._dynamic.offset, self._dynamic.address, self._dynamic.address
            row.file_size = row.memory_size = self._dynamic.size
            self._move_section(".dynamic", self._dynamic_header, self._dynamic)

    def _move_section(self, name: str, header: SectionHeader | None, piece: _Piece) -> None:
        """Make a section header describe the piece that replaces its section; None means that there is no header.

        A second header, ``NAME.old``, covers the old bytes. Without it strip would find their segment empty. name: of
        the section.
        """
        if header is not None:
            old = replace(header, type=SHT_PROGBITS, link=0, info=0, entry_size=0)
            header.offset, header.address, header.size = piece.offset, piece.address, piece.size
            self._tables.add_section(f"{name}.old", old)
