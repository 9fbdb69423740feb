"""Rows of the tables of an ELF file: their layouts, and the fields that are read (gABI, chapters 4 and 5)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

HEADER_LAYOUT = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION_LAYOUT = struct.Struct("<IIQQQQIIQQ")
SEGMENT_LAYOUT = struct.Struct("<IIQQQQQQ")
SYMBOL_LAYOUT = struct.Struct("<IBBHQQ")
DYNAMIC_LAYOUT = struct.Struct("<QQ")
REL_LAYOUT = struct.Struct("<QQ")
RELA_LAYOUT = struct.Struct("<QQq")
NOTE_LAYOUT = struct.Struct("<III")


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


class Segment(NamedTuple):
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
    """A row of a symbol table. section: index, with SHN_XINDEX resolved."""

    index: int
    name: str
    type: int
    other: int
    section: int
    value: int
    size: int


class SymbolRow(NamedTuple):
    """A row of a symbol table as it is stored. name: offset in the string table. section: index, with SHN_XINDEX
    resolved if the file has a table for that."""

    name: int
    info: int
    other: int
    section: int
    value: int
    size: int


class Relocation(NamedTuple):
    """A row of a table of relocations.

    offset: in the section that is relocated; for a dynamic relocation a virtual address. symbol: index in the symbol
    table, 0 for none. type: the machine's number. addend: 0 in tables without (SHT_REL).
    """

    offset: int
    symbol: int
    type: int
    addend: int


class Note(NamedTuple):
    """A note. owner: with the NUL that ends it. offset: of its content in the file."""

    owner: bytes
    type: int
    content: memoryview
    offset: int
