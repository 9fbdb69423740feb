"""The members of wheels and other ZIP files, read without unpacking the file.

Numbers and names are those of APPNOTE.TXT 6.3.9, "4.3 General Format". Members are read in the order of the central
directory, of which nothing is kept: one with millions of members takes no memory.
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
"""Largest size of a decoded member, in bytes: the largest CUDA library seen in a wheel has 2.6 GB."""
MAX_TOTAL = 32 << 30
"""Largest size of all decoded members of one file together, in bytes."""

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
    """A member of a ZIP file that is a file with content.

    name: as stored; it may be no valid path. size: of the decoded content, in bytes. compressed: whether the payload is
    deflated. payload: the stored bytes. crc: CRC-32 of the decoded content. file, offset: the ZIP file's name, and the
    offset of the payload in it.
    """

    name: str
    size: int
    compressed: bool
    payload: memoryview
    crc: int
    file: str
    offset: int


def read_members(data: memoryview, file: str) -> Iterator[Member]:
    """Yield every member of a ZIP file in the order of its directory, except folders and empty files.

    file: the file's name, for error messages. Raises FormatError for a damaged file, and before it yields a member that
    is encrypted, compressed otherwise than by deflate, or cannot have the size that the directory states: more than
    its compressed bytes can decode to, or more than MAX_MEMBER or MAX_TOTAL.
    """
    cursor = Cursor(data, file)
    begin, end = _directory(cursor)
    directory = Cursor(data, file, start=begin, end=end)
    stored_total = decoded_total = 0
    while directory.remaining:
        header_offset = directory.position
        member = _member(directory, cursor)
        if member is None:
            continue
        stored_total += len(member.payload)
        decoded_total += member.size
        # Members may share their bytes, so that a small file could decode to any size.
        if stored_total > len(data):
            raise directory.error(
                "members", f"{stored_total} compressed bytes", f"at most the file's {len(data)}", at=header_offset
            )
        if decoded_total > MAX_TOTAL:
            raise directory.error(
                "members", f"{decoded_total} bytes when decoded", f"at most {MAX_TOTAL}", at=header_offset
            )
        yield member


def first_bytes(member: Member, size: int) -> bytes:
    """Return the first ``size`` bytes of a member's decoded content, or fewer. Raises FormatError for damaged data."""
    if not member.compressed:
        return bytes(member.payload[:size])
    try:
        # Deflated data are at most slightly longer than their content: 4096 bytes more hold block headers and codes.
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(member.payload[: size + 4096], size)
    except zlib.error as error:
        raise _damaged(member, str(error)) from error


def decode(member: Member, target: BinaryIO) -> None:
    """Write the decoded content of a deflated member to ``target``.

    Raises FormatError for damaged data, and when the size or CRC-32 is not what the directory states; part of the
    content has been written then.
    """
    # A negative number of window bits means raw deflate, without a zlib header.
    decoder = zlib.decompressobj(-zlib.MAX_WBITS)
    written = crc = 0
    try:
        for begin in range(0, len(member.payload), _CHUNK):
            compressed: bytes | memoryview = member.payload[begin : begin + _CHUNK]
            while len(compressed) and not decoder.eof:
                decoded = decoder.decompress(compressed, _CHUNK)
                # Input that was not used, because the output was limited.
                compressed = decoder.unconsumed_tail
                written += len(decoded)
                if written > member.size:
                    raise _damaged(member, f"more than {member.size} bytes")
                crc = zlib.crc32(decoded, crc)
                target.write(decoded)
    except zlib.error as error:
        raise _damaged(member, str(error)) from error
    if not decoder.eof or written != member.size:
        raise _damaged(member, f"{written} of {member.size} bytes")
    if crc != member.crc:
        raise _damaged(member, f"CRC-32 {crc:#010x}, not {member.crc:#010x}")


def _damaged(member: Member, found: str) -> FormatError:
    """Return the error for a member of a ZIP file whose compressed data are damaged. found: what they decompress to."""
    cursor = Cursor(member.payload, f"{member.file}/{member.name}", base=member.offset)
    return cursor.error("deflated data", found, f"{member.size} bytes with CRC-32 {member.crc:#010x}", at=0)


def _directory(cursor: Cursor) -> tuple[int, int]:
    """Find the central directory of a ZIP file, the table of its members; return the offsets of its begin and end.

    Raises FormatError when there is none, or when the file is one part of several.
    """
    # The end record is followed only by a comment, whose length has 16 bits; the last match counts.
    tail_begin = max(0, cursor.end - _END.size - _LONGEST_COMMENT)
    record = tail_begin + bytes(cursor.data[tail_begin:]).rfind(_END_MAGIC)
    # rfind returns -1 when it finds nothing.
    if record < tail_begin:
        raise cursor.error("end of central directory", "not there", "one in the last 64 KiB", at=tail_begin)
    cursor.seek(record, "end of central directory")
    _, disk, first_disk, _, _, size, offset, _ = cursor.unpack(_END, "end of central directory")

    # Values that do not fit 32 bits are in the ZIP64 end record, which a locator just before this record points to.
    locator = record - _END_64_LOCATOR.size
    if _FULL in (size, offset) and locator >= 0 and bytes(cursor.data[locator : locator + 4]) == _END_64_LOCATOR_MAGIC:
        cursor.seek(locator, "ZIP64 locator")
        _, _, record, _ = cursor.unpack(_END_64_LOCATOR, "ZIP64 locator")
        cursor.seek(record, "ZIP64 end of central directory")
        magic, _, _, _, disk, first_disk, _, _, size, offset = cursor.unpack(_END_64, "ZIP64 end of central directory")
        if magic != _END_64_MAGIC:
            raise cursor.error("ZIP64 end of central directory", magic.hex(" "), _END_64_MAGIC.hex(" "), at=record)
    if disk or first_disk:
        raise cursor.error("number of the disk", f"{disk}, {first_disk}", "0: a file in one piece", at=record)
    cursor.seek(offset, "offset of the central directory")
    cursor.take(size, "central directory")
    return offset, offset + size


def _member(directory: Cursor, file_cursor: Cursor) -> Member | None:
    """Read the next header of the central directory, and return its member; None for a folder or an empty file.

    directory: at the header, advances past it. file_cursor: of the whole file; it is moved to the member. Raises
    FormatError as read_members.
    """
    header_offset = directory.position
    (magic, _, _, flags, method, _, _, crc, compressed_size, size, name_size, extra_size, comment_size, _, _, _,
     local_offset) = directory.unpack(_CENTRAL, "central directory header")  # fmt: skip
    if magic != _CENTRAL_MAGIC:
        raise directory.error("central directory header", magic.hex(" "), _CENTRAL_MAGIC.hex(" "), at=header_offset)
    name = _name(bytes(directory.take(name_size, "file name")), flags)
    extra = directory.take(extra_size, "extra field")
    directory.take(comment_size, "file comment")
    # The order matters: the ZIP64 extra field has only those values that do not fit, one after the other.
    zip64 = _Zip64(directory, extra, header_offset)
    size = zip64.resolve(size, "uncompressed size")
    compressed_size = zip64.resolve(compressed_size, "compressed size")
    local_offset = zip64.resolve(local_offset, "relative offset of local header")
    if name.endswith("/") or not size:
        return None

    def error(field: str, found: str, expected: str) -> FormatError:
        """Return the error for a field of the member's header that has a wrong value."""
        return directory.error(f"{field} of member {name!r}", found, expected, at=header_offset)

    if flags & _ENCRYPTED:
        raise error("flags", "encrypted", "a member that needs no password")
    if method not in (_STORED, _DEFLATED):
        raise error("compression method", str(method), "0 (stored) or 8 (deflated)")
    # The content of a stored member has as many bytes as it takes in the file.
    limit = compressed_size if method == _STORED else min(MAX_MEMBER, compressed_size * _DEFLATE_MAX_RATIO)
    if size > limit or (method == _STORED and size != compressed_size):
        raise error("uncompressed size", str(size), f"at most {limit} for {compressed_size} compressed bytes")

    # The content follows the local header, whose name and extra field may be longer than those of the directory.
    file_cursor.seek(local_offset, f"offset of member {name!r}")
    magic, *_, name_size, extra_size = file_cursor.unpack(_LOCAL, "local file header")
    if magic != MAGIC:
        raise file_cursor.error(f"local file header of {name!r}", magic.hex(" "), MAGIC.hex(" "), at=local_offset)
    file_cursor.take(name_size + extra_size, "local file header")
    begin = file_cursor.position
    payload = file_cursor.take(compressed_size, f"data of member {name!r}")
    return Member(name, size, method == _DEFLATED, payload, crc, file_cursor.file, begin)


def _name(name: bytes, flags: int) -> str:
    """Decode a member's name; bytes that are not valid UTF-8 become backslash escapes. flags: of its header."""
    # The flag says that the name is UTF-8; without it the encoding is code page 437 (APPNOTE.TXT, appendix D).
    try:
        return name.decode("utf-8" if flags & _UTF_8 else "cp437")
    except UnicodeDecodeError:
        # Only UTF-8 can fail: code page 437 has a character for every byte.
        return name.decode("utf-8", "backslashreplace")


class _Zip64:
    """The ZIP64 extra field of a directory header: 64-bit values, one for each header field that does not fit 32 bits.

    They are stored in the order of the header fields, which must be resolved in that order.
    """

    def __init__(self, directory: Cursor, extra: memoryview, header_offset: int) -> None:
        """Find the ZIP64 block in the extra field of a directory header; there may be none.

        directory: cursor over the central directory. extra: the extra field's content. header_offset: for errors.
        """
        blocks = Cursor(extra, directory.file, base=header_offset)
        # Empty, so that resolve fails if the ZIP64 block is missing.
        self._values = Cursor(extra[:0], directory.file, base=header_offset)
        while blocks.remaining >= _EXTRA.size:
            block_id, size = blocks.unpack(_EXTRA, "extra field")
            content = blocks.take(size, "extra field")
            if block_id == _EXTRA_ZIP64:
                self._values = Cursor(content, directory.file, base=header_offset)

    def resolve(self, value: int, field: str) -> int:
        """Return a header field's value, or the next 64-bit value if it is 0xFFFFFFFF.

        Raises FormatError when that is missing.
        """
        return self._values.integer(8, field) if value == _FULL else value
