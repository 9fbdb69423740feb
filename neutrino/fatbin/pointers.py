"""Where the pointers in a host file lead once it is linked and loaded.

The bytes of a pointer are not the whole story: linkers put the address there (GNU ld), into the relocation alone
(lld), or leave both to a symbol (objects, AMD's device linking).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from neutrino.elf.reader import (
    DT_RELA,
    DT_RELASZ,
    DT_SYMTAB,
    ET_REL,
    SHN_XINDEX,
    SHT_NOBITS,
    SHT_RELA,
    SHT_SYMTAB,
    SHT_SYMTAB_SHNDX,
    SYMBOL,
    Elf,
    Section,
)

_POINTER = struct.Struct("<Q")
_RELA = struct.Struct("<QQq")
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
    slots = {elf.address(offset): offset for offset in offsets}
    values = {offset: _POINTER.unpack(elf.bytes_at(offset, 8, "pointer"))[0] for offset in offsets}
    table = elf.file_range(elf.dynamic.get(DT_RELA, 0))
    if slots and table and DT_RELASZ in elf.dynamic:
        size = elf.dynamic[DT_RELASZ]
        for address, info, addend in _RELA.iter_unpack(elf.bytes_at(table[0], size - size % _RELA.size, "DT_RELA")):
            if address in slots:
                values[slots[address]] = _dynamic_symbol(elf, info >> 32) + addend & _ADDRESS_MASK
    # DT_RELR needs no look: what it relocates is in the slot.
    for offset, value in values.items():
        yield offset, elf.file_range(value)


def _dynamic_symbol(elf: Elf, index: int) -> int:
    # Index 0 stands for no symbol: of RELATIVE relocations, whatever the machine's number for them.
    place = elf.file_range(elf.dynamic.get(DT_SYMTAB, 0)) if index else None
    if place is None:
        return 0
    *_, value, _ = SYMBOL.unpack(elf.bytes_at(place[0] + index * SYMBOL.size, SYMBOL.size, f"dynamic symbol {index}"))
    return int(value)


def _in_object(elf: Elf, offsets: list[int]) -> Iterator[tuple[int, tuple[int, int] | None]]:
    """In an object (ET_REL) by its relocations against symbols of its own sections."""
    relocations = {section.info: section for section in elf.sections if section.type == SHT_RELA}
    wide = {section.link: section for section in elf.sections if section.type == SHT_SYMTAB_SHNDX}
    by_section: dict[int, dict[int, int]] = {}
    for offset in offsets:
        home = elf.section_at(offset)
        if home is not None:
            by_section.setdefault(home.index, {})[offset - home.offset] = offset
    for index, slots in by_section.items():
        if index in relocations:
            rows = elf.contents(relocations[index])
            for place, info, addend in _RELA.iter_unpack(rows[: len(rows) // _RELA.size * _RELA.size]):
                if place in slots:
                    table = relocations[index].link
                    yield slots[place], _symbol(elf, table, wide.get(table), info >> 32, addend)


def _symbol(elf: Elf, table: int, wide: Section | None, index: int, addend: int) -> tuple[int, int] | None:
    if table >= len(elf.sections) or elf.sections[table].type != SHT_SYMTAB:
        return None
    at = elf.sections[table].offset + index * SYMBOL.size
    _, _, _, home, value, _ = SYMBOL.unpack(elf.bytes_at(at, SYMBOL.size, f"symbol {index}"))
    if home == SHN_XINDEX:
        if wide is None:
            return None
        home = int.from_bytes(elf.bytes_at(wide.offset + 4 * index, 4, f"section of symbol {index}"), "little")
    if not 0 < home < len(elf.sections) or elf.sections[home].type == SHT_NOBITS:
        return None
    section = elf.sections[home]
    end = section.offset + len(elf.contents(section))
    begin = section.offset + value + addend
    return (begin, end) if section.offset <= begin < end else None
