"""Where the fields of every format lie, and what they are set to: by the property tests, and by fuzzing.

Offsets and widths in bytes, by the ELF gABI, clang's offload bundle, ``ar(5)``, and for NVIDIA's formats by what
``fatbinary`` writes. Nothing here is shared with the parsers, which these tables test; only the sections that this
project defines itself come from their one definition.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from neutrino.abi import entries, results, sections, structures


class Field(NamedTuple):
    """A field of a structure. width: bytes; text: a decimal number in characters, as in an archive's headers."""

    name: str
    offset: int
    width: int
    text: bool = False


@dataclass(frozen=True)
class Place:
    """A field as it lies in some bytes: offset from their start."""

    structure: str
    field: str
    offset: int
    width: int
    text: bool = False

    def value(self, data: bytes | bytearray) -> int:
        """The number that this field of a binary format holds in data; 0 for text that is no number."""
        stored = bytes(data[self.offset : self.offset + self.width])
        if self.text:
            return int(stored) if stored.strip().isdigit() else 0
        return int.from_bytes(stored, "little")

    def put(self, data: bytearray, value: int) -> None:
        """Store a number in this field of a binary format: its low bits, or its first digits, where it does not fit."""
        if self.text:
            data[self.offset : self.offset + self.width] = str(value).encode().ljust(self.width)[: self.width]
        else:
            value &= (1 << 8 * self.width) - 1
            data[self.offset : self.offset + self.width] = value.to_bytes(self.width, "little")


def _fields(*rows: tuple[str, int, int]) -> tuple[Field, ...]:
    """Describe fields of a binary structure by rows of name, offset and width in bytes."""
    return tuple(Field(*row) for row in rows)


def _packed(*rows: tuple[str, int], start: int = 0) -> tuple[Field, ...]:
    """Describe fields of a binary structure that follow each other without gaps, by rows of name and width in bytes.

    start: the first one's offset.
    """
    fields = []
    for name, width in rows:
        fields.append(Field(name, start, width))
        start += width
    return tuple(fields)


def _members(struct_: structures.Struct) -> tuple[Field, ...]:
    """Return the fields of a binary structure that this project defines, from its one definition."""
    fields = struct_.dtype.fields or {}
    return tuple(Field(name, int(place[1]), place[0].itemsize) for name, place in fields.items())


CONTAINER = _packed(("magic", 4), ("version", 2), ("header_size", 2), ("size", 8))
ENTRY = _packed(
    ("kind", 2), ("version", 2), ("header_size", 4), ("payload_size", 8), ("compressed_size", 4), ("options_offset", 4),
    ("minor", 2), ("major", 2), ("arch", 4), ("name_offset", 4), ("name_size", 4), ("flags", 8), ("key", 8),
    ("uncompressed_size", 8),
)  # fmt: skip
OPTIONS = _packed(("string_offset", 4), ("length", 4))
WRAPPER = _packed(("magic", 4), ("version", 4), ("data", 8), ("filename", 8))
ELF_HEADER = _fields(
    ("EI_CLASS", 4, 1), ("EI_DATA", 5, 1), ("EI_OSABI", 7, 1), ("EI_ABIVERSION", 8, 1), ("e_type", 16, 2),
    ("e_machine", 18, 2), ("e_version", 20, 4), ("e_phoff", 32, 8), ("e_shoff", 40, 8), ("e_flags", 48, 4),
    ("e_ehsize", 52, 2), ("e_phentsize", 54, 2), ("e_phnum", 56, 2), ("e_shentsize", 58, 2), ("e_shnum", 60, 2),
    ("e_shstrndx", 62, 2),
)  # fmt: skip
SECTION_HEADER = _packed(
    ("sh_name", 4), ("sh_type", 4), ("sh_flags", 8), ("sh_addr", 8), ("sh_offset", 8), ("sh_size", 8), ("sh_link", 4),
    ("sh_info", 4), ("sh_addralign", 8), ("sh_entsize", 8),
)  # fmt: skip
PROGRAM_HEADER = _packed(
    ("p_type", 4), ("p_flags", 4), ("p_offset", 8), ("p_vaddr", 8), ("p_paddr", 8), ("p_filesz", 8), ("p_memsz", 8),
    ("p_align", 8),
)  # fmt: skip
SYMBOL = _packed(("st_name", 4), ("st_info", 1), ("st_other", 1), ("st_shndx", 2), ("st_value", 8), ("st_size", 8))
DYNAMIC = _packed(("d_tag", 8), ("d_val", 8))
RELA = _packed(("r_offset", 8), ("r_info", 8), ("r_addend", 8))
NOTE = _packed(("n_namesz", 4), ("n_descsz", 4), ("n_type", 4))
ATTRIBUTE = _packed(("format", 1), ("attribute", 1), ("size", 2))
OFFLOAD_BINARY = _packed(("magic", 4), ("version", 4), ("size", 8), ("entry_offset", 8), ("entry_size", 8))
OFFLOAD_ENTRY = _packed(("image_kind", 2), ("offload_kind", 2), ("flags", 4), ("string_offset", 8), ("strings", 8),
                        ("image_offset", 8), ("image_size", 8))  # fmt: skip
OFFLOAD_STRING = _packed(("key_offset", 8), ("value_offset", 8))
BUNDLE = _fields(("count", 24, 8))
BUNDLE_ENTRY = _packed(("offset", 8), ("size", 8), ("id_size", 8))
COMPRESSED_BUNDLE = {
    1: _packed(("magic", 4), ("version", 2), ("method", 2), ("uncompressed_size", 4), ("hash", 8)),
    2: _packed(("magic", 4), ("version", 2), ("method", 2), ("size", 4), ("uncompressed_size", 4), ("hash", 8)),
    3: _packed(("magic", 4), ("version", 2), ("method", 2), ("size", 8), ("uncompressed_size", 8), ("hash", 8)),
}
ZIP_END = _packed(("magic", 4), ("disk", 2), ("first_disk", 2), ("entries_here", 2), ("entries", 2), ("size", 4),
                  ("offset", 4), ("comment_size", 2))  # fmt: skip
ZIP_END_64 = _packed(("magic", 4), ("record_size", 8), ("made_by", 2), ("needed", 2), ("disk", 4), ("first_disk", 4),
                     ("entries_here", 8), ("entries", 8), ("size", 8), ("offset", 8))  # fmt: skip
ZIP_LOCATOR_64 = _packed(("magic", 4), ("disk", 4), ("offset", 8), ("disks", 4))
ZIP_CENTRAL = _packed(
    ("magic", 4), ("made_by", 2), ("needed", 2), ("flags", 2), ("method", 2), ("time", 2), ("date", 2), ("crc", 4),
    ("compressed_size", 4), ("size", 4), ("name_size", 2), ("extra_size", 2), ("comment_size", 2), ("disk", 2),
    ("internal", 2), ("external", 4), ("offset", 4),
)  # fmt: skip
ZIP_LOCAL = _packed(
    ("magic", 4), ("needed", 2), ("flags", 2), ("method", 2), ("time", 2), ("date", 2), ("crc", 4),
    ("compressed_size", 4), ("size", 4), ("name_size", 2), ("extra_size", 2),
)  # fmt: skip
MEMBER = (Field("name", 0, 16, True), Field("mtime", 16, 12, True), Field("mode", 40, 8, True),
          Field("size", 48, 10, True), Field("end", 58, 2))  # fmt: skip

VALUES = (0, 1, 2, 7, 8, 16, 0xFF, 0x7FFF, 0xFFFF, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 62,
          (1 << 63) - 1, 1 << 63, (1 << 64) - 8, (1 << 64) - 1)  # fmt: skip
"""Values at which sizes, counts and offsets change their meaning."""

_OWN = {
    sections.SECTION_MAGIC: sections.SECTION_HEADER,
    entries.TWINS_MAGIC: entries.TWINS_HEADER,
}
_OWN_TABLES = (
    (sections.SECTION_HEADER, "rows_offset", "rows", sections.SECTION_TWINS),
    (entries.TWINS_HEADER, "maps_offset", "maps", results.MAP_DESCRIPTOR),
    (entries.TWINS_HEADER, "kernels_offset", "kernels", entries.TWIN_KERNEL),
    (entries.TWINS_HEADER, "images_offset", "images", entries.TWIN_IMAGE),
)
_MAX_ROWS = 24
"""Rows of a table that are looked at: more of the same add nothing."""
_SHT_SYMTAB, _SHT_RELA, _SHT_DYNAMIC, _SHT_NOTE, _SHT_DYNSYM = 2, 4, 6, 7, 11
_BY_SECTION_TYPE = {
    _SHT_SYMTAB: ("symbol", SYMBOL), _SHT_DYNSYM: ("symbol", SYMBOL), _SHT_RELA: ("relocation", RELA),
    _SHT_DYNAMIC: ("dynamic", DYNAMIC), _SHT_NOTE: ("note", NOTE),
}  # fmt: skip
_SHT_CUDA_INFO = 0x70000000


def places(data: bytes | bytearray) -> list[Place]:
    """Every field of a known format that is found in data, following the headers as far as they lead."""
    data = bytes(data)
    found: list[Place] = []
    for match in _MAGICS.finditer(data):
        found += _STRUCTURES[match[0]](data, match.start())
    return found


def field_values(place: Place, found: Sequence[Place], data: bytes) -> tuple[int, ...]:
    """Return the numbers that a fuzzer puts into a field: VALUES, the file's size, and what leads to its end or other
    fields.

    Also what other fields hold.
    """
    size = len(data)
    near = (size, size - 1, size + 1, size - place.offset, place.offset, place.value(data) + 1, place.value(data) - 1)
    overlapping = (value for entry in found[:: max(1, len(found) // 8)] for value in (entry.offset, entry.value(data)))
    return (*VALUES, *near, *overlapping)


def _structure(name: str, fields: tuple[Field, ...], data: bytes, offset: int) -> Iterator[Place]:
    """Yield the fields, as they lie in data, of a binary structure that begins at an offset. name: the structure's."""
    for field in fields:
        if offset >= 0 and offset + field.offset + field.width <= len(data):
            yield Place(name, field.name, offset + field.offset, field.width, field.text)


def _rows(
    name: str, fields: tuple[Field, ...], data: bytes, offset: int, size: int, count: int
) -> Iterator[Place]:
    """Yield the fields of a binary table's rows. offset: of its first row; size: bytes of a row; count: rows that it
    claims to have."""
    for row in range(min(count, _MAX_ROWS)):
        if offset + (row + 1) * size > len(data):
            return
        yield from _structure(name, fields, data, offset + row * size)


def _number(data: bytes, offset: int, width: int) -> int:
    """Return the little-endian number of ``width`` bytes at an offset of data."""
    return int.from_bytes(data[offset : offset + width], "little")


def _container(data: bytes, start: int) -> Iterator[Place]:
    """Yield the fields of a fatbin (NVIDIA's container of GPU code) that begins at start, and of its entries."""
    yield from _structure("container", CONTAINER, data, start)
    position = start + 16
    end = min(len(data), position + _number(data, start + 8, 8))
    for _ in range(_MAX_ROWS):
        if position + 64 > end:
            return
        yield from _structure("entry", ENTRY, data, position)
        options = _number(data, position + 0x14, 4)
        if options:
            yield from _structure("options", OPTIONS, data, position + options)
        position += _number(data, position + 4, 4) + _number(data, position + 8, 8)


def _wrapper(data: bytes, start: int) -> Iterator[Place]:
    """Yield the fields of the structure at start by which a library points to its GPU code."""
    yield from _structure("wrapper", WRAPPER, data, start)


def _elf(data: bytes, start: int) -> Iterator[Place]:
    """Yield the fields of an ELF file at start: headers, symbols, relocations, notes, and NVIDIA's attributes of
    kernels."""
    yield from _structure("ELF header", ELF_HEADER, data, start)
    if len(data) < start + 64:
        return
    (phoff, shoff) = struct.unpack_from("<QQ", data, start + 32)
    (phnum,) = struct.unpack_from("<H", data, start + 56)
    (shnum,) = struct.unpack_from("<H", data, start + 60)
    yield from _rows("program header", PROGRAM_HEADER, data, start + phoff, 56, phnum)
    yield from _rows("section header", SECTION_HEADER, data, start + shoff, 64, shnum)
    for row in range(min(shnum, 2 * _MAX_ROWS)):
        header = start + shoff + 64 * row
        if header + 64 > len(data):
            return
        kind, offset, size = _number(data, header + 4, 4), start + _number(data, header + 24, 8), _number(
            data, header + 32, 8
        )
        if kind in _BY_SECTION_TYPE:
            name, fields = _BY_SECTION_TYPE[kind]
            width = fields[-1].offset + fields[-1].width
            yield from _rows(name, fields, data, offset, width, size // width)
        elif kind == _SHT_CUDA_INFO:
            yield from _attributes(data, offset, offset + size)


def _attributes(data: bytes, position: int, end: int) -> Iterator[Place]:
    """Yield the fields of the attributes in a cubin's ``.nv.info`` section, from position to end."""
    for _ in range(_MAX_ROWS):
        if position + 4 > min(end, len(data)):
            return
        yield from _structure("attribute", ATTRIBUTE, data, position)
        size = _number(data, position + 2, 2) if data[position] == 4 else 0
        for word in range(min(size // 4, 4)):
            if position + 8 + 4 * word <= len(data):
                yield Place("attribute", f"word {word}", position + 4 + 4 * word, 4)
        position += 4 + size


def _bundle(data: bytes, start: int) -> Iterator[Place]:
    """Yield the fields of clang's offload bundle at start, and of its entries."""
    yield from _structure("bundle", BUNDLE, data, start)
    position = start + 32
    for _ in range(min(_number(data, start + 24, 8), _MAX_ROWS)):
        if position + 24 > len(data):
            return
        yield from _structure("bundle entry", BUNDLE_ENTRY, data, position)
        position += 24 + _number(data, position + 16, 8)


def _offload_binary(data: bytes, start: int) -> Iterator[Place]:
    """Yield the fields of an offload binary (LLVM's container) at start, of its first entry and that entry's strings.
    """
    yield from _structure("offload binary", OFFLOAD_BINARY, data, start)
    entry = start + _number(data, start + 16, 8)
    yield from _structure("offload entry", OFFLOAD_ENTRY, data, entry)
    strings, count = _number(data, entry + 8, 8), _number(data, entry + 16, 8)
    yield from _rows("offload string", OFFLOAD_STRING, data, start + strings, 16, count)


def _compressed_bundle(data: bytes, start: int) -> Iterator[Place]:
    """Yield the fields of the header of a compressed offload bundle at start, by its version."""
    fields = COMPRESSED_BUNDLE.get(_number(data, start + 4, 2), COMPRESSED_BUNDLE[3])
    yield from _structure("compressed bundle", fields, data, start)


def _archive(data: bytes, start: int) -> Iterator[Place]:
    """Yield the fields of the members' headers of an ``ar`` archive at start."""
    position = start + 8
    for _ in range(_MAX_ROWS):
        if position + 60 > len(data):
            return
        yield from _structure("archive member", MEMBER, data, position)
        size = data[position + 48 : position + 58].strip()
        if not size.isdigit():
            return
        position += 60 + int(size) + int(size) % 2


def _own(data: bytes, start: int) -> Iterator[Place]:
    """Yield the fields of a structure of this project at start (a patched file's section, a cache entry), and of its
    tables."""
    own = _OWN[data[start : start + 8]]
    yield from _structure(own.name, _members(own), data, start)
    values = {field.name: _number(data, start + field.offset, field.width) for field in _members(own)}
    for parent, offset, count, row in _OWN_TABLES:
        if parent is own:
            yield from _rows(row.name, _members(row), data, start + values[offset], row.size, values[count])
    if values.get("restore_offset"):
        begin, header, edit = start + values["restore_offset"], sections.RESTORE_HEADER, sections.RESTORE_EDIT
        yield from _structure(header.name, _members(header), data, begin)
        count = next(field for field in _members(header) if field.name == "edits")
        rows = _number(data, begin + count.offset, count.width)
        yield from _rows(edit.name, _members(edit), data, begin + header.size, edit.size, rows)


def _zip(name: str, fields: tuple[Field, ...]) -> Callable[[bytes, int], Iterator[Place]]:
    """A function that gives the fields of one of ZIP's structures. name: the structure's."""
    return lambda data, start: _structure(name, fields, data, start)


_STRUCTURES: dict[bytes, Callable[[bytes, int], Iterator[Place]]] = {
    b"PK\x05\x06": _zip("ZIP end", ZIP_END),
    b"PK\x06\x06": _zip("ZIP64 end", ZIP_END_64),
    b"PK\x06\x07": _zip("ZIP64 locator", ZIP_LOCATOR_64),
    b"PK\x01\x02": _zip("ZIP central", ZIP_CENTRAL),
    b"PK\x03\x04": _zip("ZIP local", ZIP_LOCAL),
    b"\x50\xed\x55\xba": _container,
    b"\xb1\x43\x62\x46": _wrapper,
    b"\x46\x50\x49\x48": _wrapper,
    b"\x7fELF": _elf,
    b"__CLANG_OFFLOAD_BUNDLE__": _bundle,
    b"CCOB": _compressed_bundle,
    b"\x10\xff\x10\xad": _offload_binary,
    b"!<arch>\n": _archive,
    b"!<thin>\n": _archive,
    **dict.fromkeys(_OWN, _own),
}
_MAGICS = re.compile(b"|".join(map(re.escape, _STRUCTURES)))
