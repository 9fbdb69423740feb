"""Archives of ``ar``: regular ones, and thin ones, which hold only the paths of their members.

GNU's form and BSD's names (``ar.h``; binutils, ``bfd/archive.c``). Members are given in the archive's order, and
several may have one name.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from neutrino.elf.cursor import Cursor

MAGIC = b"!<arch>\n"
MAGIC_THIN = b"!<thin>\n"

_HEADER = struct.Struct("<16s12s6s6s8s10s2s")
_END_OF_HEADER = b"`\n"
_SYMBOL_INDEXES = (b"/", b"/SYM64/", b"__.SYMDEF", b"__.SYMDEF SORTED", b"__.SYMDEF_64")
_NAME_TABLE = b"//"
_LONG_NAME = re.compile(rb"/(\d{1,10})(?::(\d{1,15}))?")
_NAME_IN_TABLE = re.compile(rb"[^\n\0]{0,4096}")
"""Up to the longest path that Linux knows (``PATH_MAX``): many members may refer to one place of the table."""
_BSD_NAME = re.compile(rb"#1/(\d{1,10})")


@dataclass(frozen=True)
class Member:
    """A member of an archive.

    name: as the archive has it: of a thin archive a path, relative to the archive's folder. data: None in a thin
    archive. offset: of the data in the archive. nested: in a thin archive, where the header of the member is in the
    archive that the path leads to; None when the path leads to the member itself.
    """

    name: str
    data: memoryview | None
    offset: int
    nested: int | None = None


def is_archive(data: memoryview) -> bool:
    """Whether data begin as an archive."""
    return bytes(data[: len(MAGIC)]) in (MAGIC, MAGIC_THIN)


def read_members(cursor: Cursor) -> Iterator[Member]:
    """The members of an archive under the cursor, without symbol indexes. Raises FormatError."""
    thin = bytes(cursor.take(len(MAGIC), "archive magic")) == MAGIC_THIN
    names: memoryview | None = None
    while cursor.remaining > 1:
        name, size = _header(cursor)
        if name == _NAME_TABLE:
            names = cursor.take(size, "table of long names")
        elif name in _SYMBOL_INDEXES:
            cursor.take(size, "symbol index")
        else:
            yield _member(cursor, name, size, names, thin)
        if (cursor.position - cursor.start) % 2 and cursor.remaining:
            cursor.take(1, "padding")


def nested_member(cursor: Cursor, header: int) -> Member:
    """The member whose header is at that offset of a regular archive, as a thin one refers to it. Raises
    FormatError."""
    if bytes(cursor.take(len(MAGIC), "archive magic")) != MAGIC:
        raise cursor.error("content", "no archive", "an archive, which a thin archive refers to", at=0)
    names = None
    while cursor.remaining > 1:
        name, size = _header(cursor)
        if name != _NAME_TABLE and name not in _SYMBOL_INDEXES:
            break
        contents = cursor.take(size, "member")
        names = contents if name == _NAME_TABLE else names
        if (cursor.position - cursor.start) % 2 and cursor.remaining:
            cursor.take(1, "padding")
    cursor.seek(cursor.start + header, "place of a member")
    name, size = _header(cursor)
    return _member(cursor, name, size, names, thin=False)


def _header(cursor: Cursor) -> tuple[bytes, int]:
    begin = cursor.position
    name, _, _, _, _, digits, end = cursor.unpack(_HEADER, "member header")
    if end != _END_OF_HEADER:
        raise cursor.error("end of a member header", end.hex(" "), _END_OF_HEADER.hex(" "), at=begin + 58)
    if not digits.rstrip().isdigit():
        raise cursor.error("size of a member", repr(digits), "decimal digits", at=begin + 48)
    return name.rstrip(b" "), int(digits)


def _member(cursor: Cursor, name: bytes, size: int, names: memoryview | None, thin: bool) -> Member:
    begin = cursor.position
    nested = None
    if long := _LONG_NAME.fullmatch(name):
        name = _long_name(cursor, int(long[1]), names)
        nested = int(long[2]) if long[2] is not None else None
    elif bsd := _BSD_NAME.fullmatch(name):
        length = int(bsd[1])
        if length > size:
            raise cursor.error("length of a member's name", str(length), f"at most {size}", at=begin)
        name = bytes(cursor.take(length, "name of a member")).rstrip(b"\0")
        size -= length
    else:
        name = name.removesuffix(b"/")
    offset = cursor.position
    # Bytes of a path that are no UTF-8 reach the file system as they are.
    text = name.decode("utf-8", "surrogateescape")
    if thin:
        if b"\0" in name:
            raise cursor.error("name of a member", repr(name), "a path, which has no NUL", at=begin)
        return Member(text, None, cursor.base + begin, nested)
    return Member(text, cursor.take(size, f"member {text}"), cursor.base + offset)


def _long_name(cursor: Cursor, offset: int, names: memoryview | None) -> bytes:
    if names is None or offset >= len(names):
        held = 0 if names is None else len(names)
        raise cursor.error("offset of a long name", str(offset), f"below {held}, the size of the table of names")
    # A name ends in "/" and a newline; a path may have a "/" before any newline.
    found = _NAME_IN_TABLE.match(names, offset)
    return b"" if found is None else found[0].removesuffix(b"/")
