"""Where the pointers in a host file lead once it is linked and loaded.

The bytes of a pointer are not the whole story: linkers put the address there (GNU ld), into the relocation alone
(lld), or leave both to a symbol (objects, AMD's device linking).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from neutrino.elf.constants import ET_REL, SHN_XINDEX, SHT_NOBITS, SHT_RELA, SHT_SYMTAB
from neutrino.elf.reader import Elf
from neutrino.elf.rows import Relocation, Section

_POINTER = struct.Struct("<Q")
_ADDRESS_MASK = (1 << 64) - 1


def pointees(elf: Elf, offsets: Iterable[int]) -> dict[int, tuple[int, int]]:
    """File offsets (begin, end) that the 8-byte pointers at these file offsets lead to: the byte pointed at, and
    where its segment ends (its section, in an object). What leads to nothing in the file is left out.

    Raises FormatError for relocation tables that leave the file.
    """
    found = {}
    wanted = sorted(offsets)
    places = _in_object(elf, wanted) if elf.type == ET_REL else _loaded(elf, wanted)
    for offset, place in places:
        if place is not None:
            found[offset] = place
    return found


def _loaded(elf: Elf, offsets: list[int]) -> Iterator[tuple[int, tuple[int, int] | None]]:
    slots = {address: offset for offset in offsets if (address := elf.address(offset)) is not None}
    values = {offset: _POINTER.unpack(elf.bytes_at(offset, 8, "pointer"))[0] for offset in offsets}
    for relocation in elf.dynamic_relocations(slots) if slots else ():
        value = _dynamic_symbol(elf, relocation.symbol) + relocation.addend
        values[slots[relocation.offset]] = value & _ADDRESS_MASK
    # DT_RELR needs no look: what it relocates is in the slot.
    for offset, value in values.items():
        yield offset, elf.file_range(value)


def _dynamic_symbol(elf: Elf, index: int) -> int:
    # Index 0 stands for no symbol: of RELATIVE relocations, whatever the machine's number for them.
    row = elf.dynamic_symbol_row(index) if index else None
    return 0 if row is None else row.value


def _in_object(elf: Elf, offsets: list[int]) -> Iterator[tuple[int, tuple[int, int] | None]]:
    """In an object (ET_REL) by its relocations against symbols of its own sections."""
    by_section: dict[int, dict[int, int]] = {}
    for offset in offsets:
        home = elf.section_at(offset)
        if home is not None:
            by_section.setdefault(home.index, {})[offset - home.offset] = offset
    for index, slots in by_section.items():
        for table in elf.relocation_tables.get(index, ()):
            if table.type == SHT_RELA:
                for relocation in elf.relocations(table, slots):
                    yield slots[relocation.offset], _symbol(elf, table, relocation)


def _symbol(elf: Elf, table: Section, relocation: Relocation) -> tuple[int, int] | None:
    if table.link >= len(elf.sections) or elf.sections[table.link].type != SHT_SYMTAB:
        return None
    row = elf.symbol_row(elf.sections[table.link], relocation.symbol)
    if row.section == SHN_XINDEX or not 0 < row.section < len(elf.sections):
        return None
    section = elf.sections[row.section]
    if section.type == SHT_NOBITS:
        return None
    end = section.offset + len(elf.contents(section))
    begin = section.offset + row.value + relocation.addend
    return (begin, end) if section.offset <= begin < end else None
