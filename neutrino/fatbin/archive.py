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
"""At most ``PATH_MAX`` bytes: many members may refer to the same part of the table, whose copies add up."""
_BSD_NAME = re.compile(rb"#1/(\d{1,10})")


@dataclass(frozen=True)
class Member:
    """A member of an archive.

    name: as stored; in a thin archive a path, relative to the archive's folder. data: the content; None in a thin
    archive. offset: of the data in the archive. nested: only in a thin archive whose path leads to another archive:
    the offset of the member's header in that archive; else None.
    """

    name: str
    data: memoryview | None
    offset: int
    nested: int | None = None


def is_archive(data: memoryview) -> bool:
    """Whether data begin with the magic string of an archive, regular or thin."""
    return bytes(data[: len(MAGIC)]) in (MAGIC, MAGIC_THIN)


def read_members(cursor: Cursor) -> Iterator[Member]:
    """Yield the members of the archive at the cursor, without symbol indexes and the table of long names.

    Raises FormatError for a damaged archive.
    """
    thin = bytes(cursor.take(len(MAGIC), "archive magic")) == MAGIC_THIN
    long_names: memoryview | None = None
    # One byte may be left over: padding after the last member.
    while cursor.remaining > 1:
        name, size = _header(cursor)
        if name == _NAME_TABLE:
            long_names = cursor.take(size, "table of long names")
        elif name in _SYMBOL_INDEXES:
            cursor.take(size, "symbol index")
        else:
            yield _member(cursor, name, size, long_names, thin=thin)
        # Members begin at even offsets.
        if (cursor.position - cursor.start) % 2 and cursor.remaining:
            cursor.take(1, "padding")


def nested_member(cursor: Cursor, header: int) -> Member:
    """Return the member of a regular archive whose header is at that offset, as a thin archive refers to it.

    cursor: at the beginning of the archive. Raises FormatError for a damaged archive, and for a thin one.
    """
    if bytes(cursor.take(len(MAGIC), "archive magic")) != MAGIC:
        raise cursor.error("content", "no archive", "an archive, which a thin archive refers to", at=0)
    # The member's name may be in the table of long names, which comes before all members but symbol indexes.
    long_names = None
    while cursor.remaining > 1:
        name, size = _header(cursor)
        if name != _NAME_TABLE and name not in _SYMBOL_INDEXES:
            break
        contents = cursor.take(size, "member")
        if name == _NAME_TABLE:
            long_names = contents
        # Members begin at even offsets.
        if (cursor.position - cursor.start) % 2 and cursor.remaining:
            cursor.take(1, "padding")
    cursor.seek(cursor.start + header, "place of a member")
    name, size = _header(cursor)
    return _member(cursor, name, size, long_names, thin=False)


def _header(cursor: Cursor) -> tuple[bytes, int]:
    """Read the next member header: the name field without trailing spaces, and the size of the content in bytes."""
    begin = cursor.position
    # The size is at offset 48 of the header, its end mark at 58.
    name, _, _, _, _, digits, end = cursor.unpack(_HEADER, "member header")
    if end != _END_OF_HEADER:
        raise cursor.error("end of a member header", end.hex(" "), _END_OF_HEADER.hex(" "), at=begin + 58)
    if not digits.rstrip().isdigit():
        raise cursor.error("size of a member", repr(digits), "decimal digits", at=begin + 48)
    return name.rstrip(b" "), int(digits)


def _member(cursor: Cursor, name: bytes, size: int, long_names: memoryview | None, thin: bool) -> Member:
    """Read a member's content at the cursor; a thin archive has none.

    name, size: from the member's header. long_names: content of the table of long names, None if there is none. thin:
    whether the archive is. Raises FormatError for a name that is not valid, and for content that leaves the archive.
    """
    begin = cursor.position
    nested = None
    # /OFFSET of the name in the table; in a thin archive also :OFFSET of the member's header in another archive.
    if long := _LONG_NAME.fullmatch(name):
        name_offset, header_offset = long.groups()
        name = _long_name(cursor, int(name_offset), long_names)
        nested = int(header_offset) if header_offset is not None else None
    elif bsd := _BSD_NAME.fullmatch(name):
        # BSD puts a long name before the content, and counts it in the size.
        (digits,) = bsd.groups()
        length = int(digits)
        if length > size:
            raise cursor.error("length of a member's name", str(length), f"at most {size}", at=begin)
        name = bytes(cursor.take(length, "name of a member")).rstrip(b"\0")
        size -= length
    else:
        # GNU ends a short name with "/", so that it may contain spaces.
        name = name.removesuffix(b"/")
    offset = cursor.position
    # surrogateescape: a path that is not valid UTF-8 reaches the file system with its bytes unchanged.
    text = name.decode("utf-8", "surrogateescape")
    if thin:
        if b"\0" in name:
            raise cursor.error("name of a member", repr(name), "a path, which has no NUL", at=begin)
        return Member(text, None, cursor.base + begin, nested)
    return Member(text, cursor.take(size, f"member {text}"), cursor.base + offset)


def _long_name(cursor: Cursor, offset: int, long_names: memoryview | None) -> bytes:
    """Return the name at that offset of the table of long names. Raises FormatError when it lies outside."""
    if long_names is None or offset >= len(long_names):
        table_size = 0 if long_names is None else len(long_names)
        raise cursor.error("offset of a long name", str(offset), f"below {table_size}, the size of the table of names")
    # A name ends with "/" and a newline. The path itself may contain "/", so the search is for the newline.
    name = _NAME_IN_TABLE.match(long_names, offset)
    return b"" if name is None else name[0].removesuffix(b"/")
