"""Where the pointers in a host file lead after linking and loading.

A pointer's bytes in the file are not enough: the address may be there (GNU ld), in the relocation's addend only (lld),
or be that of a symbol (object files, AMD's device linking).
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
    """Find what the 8-byte pointers at these file offsets point to.

    Returns, by the pointer's offset, the file offset that it points to, and the file offset where that segment ends (in
    an object file, that section). Pointers that lead to nothing in the file are left out. Raises FormatError for
    relocation tables that leave the file.
    """
    targets = {}
    targets_of = _in_object if elf.type == ET_REL else _loaded
    for offset, target in targets_of(elf, sorted(offsets)):
        if target is not None:
            targets[offset] = target
    return targets


def _loaded(elf: Elf, offsets: list[int]) -> Iterator[tuple[int, tuple[int, int] | None]]:
    """Yield (offset, target) for the pointers of a linked file; offsets and targets are those of pointees.

    The target is None when the pointer leads to nothing in the file. A pointer's value is that of its dynamic
    relocation, if it has one, else its bytes in the file.
    """
    # The file offset of each pointer by its virtual address, which relocations state.
    slots = {address: offset for offset in offsets if (address := elf.address(offset)) is not None}
    values: dict[int, int] = {}
    for offset in offsets:
        (values[offset],) = _POINTER.unpack(elf.bytes_at(offset, _POINTER.size, "pointer"))
    # The relocations, of which there may be millions, are only read if a pointer is in a segment.
    for relocation in elf.dynamic_relocations(slots) if slots else ():
        # Addends may be negative, and addresses have 64 bits.
        value = _dynamic_symbol(elf, relocation.symbol) + relocation.addend
        values[slots[relocation.offset]] = value & _ADDRESS_MASK
    # DT_RELR relocations need not be read: their addend is in the file, at the pointer itself.
    for offset, value in values.items():
        yield offset, elf.file_range(value)


def _dynamic_symbol(elf: Elf, index: int) -> int:
    """Return the address of a dynamic symbol; 0 for index 0, which means no symbol."""
    # RELATIVE relocations have index 0. So their type number, which depends on the machine, is not needed.
    row = elf.dynamic_symbol_row(index) if index else None
    return 0 if row is None else row.value


def _in_object(elf: Elf, offsets: list[int]) -> Iterator[tuple[int, tuple[int, int] | None]]:
    """Yield (offset, target) for the pointers of an object file; offsets and targets are those of pointees.

    Only relocations against symbols of the file's own sections are followed; for others the target is None.
    """
    # By the section's index: the file offset of each pointer by its offset in the section, which relocations state.
    slots_by_section: dict[int, dict[int, int]] = {}
    for offset in offsets:
        section = elf.section_at(offset)
        if section is not None:
            slots_by_section.setdefault(section.index, {})[offset - section.offset] = offset
    for index, slots in slots_by_section.items():
        for table in elf.relocation_tables.get(index, ()):
            if table.type == SHT_RELA:
                for relocation in elf.relocations(table, slots):
                    yield slots[relocation.offset], _relocation_target(elf, table, relocation)


def _relocation_target(elf: Elf, table: Section, relocation: Relocation) -> tuple[int, int] | None:
    """Return the file offset that a relocation in an object file refers to, and the file offset where its section ends.

    table: the relocation's table. None when it refers to nothing in the file.
    """
    # sh_link of a relocation table is the index of its symbol table.
    if table.link >= len(elf.sections) or elf.sections[table.link].type != SHT_SYMTAB:
        return None
    symbol = elf.symbol_row(elf.sections[table.link], relocation.symbol)
    # SHN_XINDEX is left where the file has no table of longer indices. 0 means that another file defines the symbol.
    if symbol.section == SHN_XINDEX or not 0 < symbol.section < len(elf.sections):
        return None
    section = elf.sections[symbol.section]
    # Such a section has no bytes in the file.
    if section.type == SHT_NOBITS:
        return None
    section_end = section.offset + len(elf.contents(section))
    target = section.offset + symbol.value + relocation.addend
    return (target, section_end) if section.offset <= target < section_end else None
