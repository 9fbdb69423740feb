"""Wheels, and any other ZIP file: what is in them, read where it lies.

Numbers and names are those of APPNOTE.TXT 6.3.9, "4.3 General Format". Nothing of the directory is kept, so that one
of millions of members takes no memory; members are looked at in its order.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from neutrino.elf.cursor import Cursor
from neutrino.errors import FormatError

MAGIC = b"PK\x03\x04"
MAX_MEMBER = 8 << 30
"""Bytes that one member may be: the largest CUDA library seen in a wheel has 2.6 GB."""
MAX_TOTAL = 32 << 30
"""Bytes that the members of one file may be together."""

_DEFLATE_MAX_RATIO = 1032
"""258 bytes from a length code and a distance code of one bit each (RFC 1951, 3.2.5)."""
_STORED, _DEFLATED = 0, 8
_ENCRYPTED = 0x1
_UTF_8 = 0x800
_END = struct.Struct("<4sHHHHIIH")
_END_MAGIC = b"PK\x05\x06"
_END_64_LOCATOR = struct.Struct("<4sIQI")
_END_64_LOCATOR_MAGIC = b"PK\x06\x07"
_END_64 = struct.Struct("<4sQHHIIQQQQ")
_END_64_MAGIC = b"PK\x06\x06"
_CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
_CENTRAL_MAGIC = b"PK\x01\x02"
_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_EXTRA = struct.Struct("<HH")
_EXTRA_ZIP64 = 0x0001
_LONGEST_COMMENT = 0xFFFF
_FULL = 0xFFFFFFFF
"""A size or offset that does not fit 32 bits stands in the ZIP64 extra field."""
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Member:
    """A member that is a file. name: as it stands in the ZIP file; whoever made that chose it. size: decoded.

    compressed: deflated, else stored. payload: its bytes in the file. crc: CRC-32 of the decoded bytes.
    """

    name: str
    size: int
    compressed: bool
    payload: memoryview
    crc: int
    file: str
    offset: int


def read_members(data: memoryview, file: str) -> Iterator[Member]:
    """Every member of a ZIP file but folders and empty files, in the order of its directory. file: for messages.

    Raises FormatError, before a member is given out that cannot be what it claims: sizes beyond what the compression
    can give, beyond MAX_MEMBER or MAX_TOTAL, more compressed bytes than the file has, encrypted, or compressed
    otherwise than by deflate.
    """
    cursor = Cursor(data, file)
    begin, end = _directory(cursor)
    directory = Cursor(data, file, start=begin, end=end)
    stored = total = 0
    while directory.remaining:
        at = directory.position
        member = _member(directory, cursor)
        if member is None:
            continue
        stored += len(member.payload)
        total += member.size
        # Members that share their bytes make a small file decode to anything.
        if stored > len(data):
            raise directory.error("members", f"{stored} compressed bytes", f"at most the file's {len(data)}", at=at)
        if total > MAX_TOTAL:
            raise directory.error("members", f"{total} bytes when decoded", f"at most {MAX_TOTAL}", at=at)
        yield member


def first_bytes(member: Member, size: int) -> bytes:
    """At most that many bytes from the member's beginning. Raises FormatError for damaged ones."""
    if not member.compressed:
        return bytes(member.payload[:size])
    try:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(member.payload[: size + 4096], size)
    except zlib.error as error:
        raise _damaged(member, str(error)) from error


def decode(member: Member, target: BinaryIO) -> None:
    """Write a deflated member's bytes to target. Raises FormatError when they are not what the directory says."""
    decoder = zlib.decompressobj(-zlib.MAX_WBITS)
    written = crc = 0
    try:
        for begin in range(0, len(member.payload), _CHUNK):
            waiting: bytes | memoryview = member.payload[begin : begin + _CHUNK]
            while len(waiting) and not decoder.eof:
                data = decoder.decompress(waiting, _CHUNK)
                waiting = decoder.unconsumed_tail
                written += len(data)
                if written > member.size:
                    raise _damaged(member, f"more than {member.size} bytes")
                crc = zlib.crc32(data, crc)
                target.write(data)
    except zlib.error as error:
        raise _damaged(member, str(error)) from error
    if not decoder.eof or written != member.size:
        raise _damaged(member, f"{written} of {member.size} bytes")
    if crc != member.crc:
        raise _damaged(member, f"CRC-32 {crc:#010x}, not {member.crc:#010x}")


def _damaged(member: Member, what: str) -> FormatError:
    cursor = Cursor(member.payload, f"{member.file}/{member.name}", base=member.offset)
    return cursor.error("deflated data", what, f"{member.size} bytes with CRC-32 {member.crc:#010x}", at=0)


def _directory(cursor: Cursor) -> tuple[int, int]:
    """Where the central directory begins and ends."""
    tail = max(0, cursor.end - _END.size - _LONGEST_COMMENT)
    at = tail + bytes(cursor.data[tail:]).rfind(_END_MAGIC)
    if at < tail:
        raise cursor.error("end of central directory", "not there", "one in the last 64 KiB", at=tail)
    cursor.seek(at, "end of central directory")
    _, disk, first_disk, _, _, size, offset, _ = cursor.unpack(_END, "end of central directory")
    locator = at - _END_64_LOCATOR.size
    if _FULL in (size, offset) and locator >= 0 and bytes(cursor.data[locator : locator + 4]) == _END_64_LOCATOR_MAGIC:
        cursor.seek(locator, "ZIP64 locator")
        at = cursor.unpack(_END_64_LOCATOR, "ZIP64 locator")[2]
        cursor.seek(at, "ZIP64 end of central directory")
        magic, _, _, _, disk, first_disk, _, _, size, offset = cursor.unpack(_END_64, "ZIP64 end of central directory")
        if magic != _END_64_MAGIC:
            raise cursor.error("ZIP64 end of central directory", magic.hex(" "), _END_64_MAGIC.hex(" "), at=at)
    if disk or first_disk:
        raise cursor.error("number of the disk", f"{disk}, {first_disk}", "0: a file in one piece", at=at)
    cursor.seek(offset, "offset of the central directory")
    cursor.take(size, "central directory")
    return offset, offset + size


def _member(directory: Cursor, cursor: Cursor) -> Member | None:
    at = directory.position
    (magic, _, _, flags, method, _, _, crc, compressed_size, size, name_size, extra_size, comment_size, _, _, _,
     offset) = directory.unpack(_CENTRAL, "central directory header")  # fmt: skip
    if magic != _CENTRAL_MAGIC:
        raise directory.error("central directory header", magic.hex(" "), _CENTRAL_MAGIC.hex(" "), at=at)
    name = _name(bytes(directory.take(name_size, "file name")), flags)
    extra = directory.take(extra_size, "extra field")
    directory.take(comment_size, "file comment")
    wide = _Zip64(directory, extra, at)
    size = wide.resolve(size, "uncompressed size")
    compressed_size = wide.resolve(compressed_size, "compressed size")
    offset = wide.resolve(offset, "relative offset of local header")
    if name.endswith("/") or not size:
        return None

    def refuse(field: str, found: str, expected: str) -> FormatError:
        return directory.error(f"{field} of member {name!r}", found, expected, at=at)

    if flags & _ENCRYPTED:
        raise refuse("flags", "encrypted", "a member that needs no password")
    if method not in (_STORED, _DEFLATED):
        raise refuse("compression method", str(method), "0 (stored) or 8 (deflated)")
    limit = compressed_size if method == _STORED else min(MAX_MEMBER, compressed_size * _DEFLATE_MAX_RATIO)
    if size > limit or (method == _STORED and size != compressed_size):
        raise refuse("uncompressed size", str(size), f"at most {limit} for {compressed_size} compressed bytes")
    cursor.seek(offset, f"offset of member {name!r}")
    magic, *_, name_size, extra_size = cursor.unpack(_LOCAL, "local file header")
    if magic != MAGIC:
        raise cursor.error(f"local file header of {name!r}", magic.hex(" "), MAGIC.hex(" "), at=offset)
    cursor.take(name_size + extra_size, "local file header")
    begin = cursor.position
    payload = cursor.take(compressed_size, f"data of member {name!r}")
    return Member(name, size, method == _DEFLATED, payload, crc, cursor.file, begin)


def _name(name: bytes, flags: int) -> str:
    try:
        return name.decode("utf-8" if flags & _UTF_8 else "cp437")
    except UnicodeDecodeError:
        return name.decode("utf-8", "backslashreplace")


class _Zip64:
    """The fields that stand in the ZIP64 extra field, in the order in which they are asked for."""

    def __init__(self, directory: Cursor, extra: memoryview, at: int) -> None:
        fields = Cursor(extra, directory.file, base=at)
        self._values = Cursor(extra[:0], directory.file, base=at)
        while fields.remaining >= _EXTRA.size:
            number, size = fields.unpack(_EXTRA, "extra field")
            data = fields.take(size, "extra field")
            if number == _EXTRA_ZIP64:
                self._values = Cursor(data, directory.file, base=at)

    def resolve(self, value: int, field: str) -> int:
        """The value as the directory has it, or the one in its stead."""
        return self._values.integer(8, field) if value == _FULL else value
