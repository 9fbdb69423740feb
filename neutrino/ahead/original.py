"""What a patched file remembers of the file that it was made from, and whether that is still in it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from neutrino.abi.sections import RESTORE_EDIT, RESTORE_HEADER
from neutrino.ahead.aside import copy, digest, write
from neutrino.ahead.place import find_section, read_header
from neutrino.ahead.section import packing
from neutrino.elf.cursor import Cursor
from neutrino.elf.reader import Elf

_RESTORE = packing(RESTORE_HEADER)
_EDIT = packing(RESTORE_EDIT)
_MAX_EDITS = 1 << 10
"""Far above what attaching makes: a table, a header, an entry."""


@dataclass(frozen=True)
class Original:
    """The file that was patched, as a patched file remembers it.

    size: its bytes. digest: SHA-256 of them. changes: (offset, bytes) of what patching changed in place. tables_crc: as
    of crc_of_tables when it was patched.
    """

    size: int
    digest: bytes
    changes: tuple[tuple[int, bytes], ...]
    tables_crc: int = 0

    def fits(self, size: int) -> bool:
        """Whether a file of that size can hold it."""
        return self.size <= size and all(offset + len(data) <= self.size for offset, data in self.changes)


def read_original(elf: Elf) -> Original | None:
    """What the file says of the original that it was made from; None when it has no section.

    Whether it is still true is for the digest to say. Raises FormatError when the record leaves the section.
    """
    place = find_section(elf)
    if place is None:
        return None
    header = read_header(elf, place.offset)
    section = elf.data[place.offset : place.offset + place.size]
    cursor = Cursor(section, elf.file, base=place.offset)
    cursor.seek(header["restore_offset"], "restore_offset")
    record = Cursor(cursor.take(header["restore_size"], "restore_size"), elf.file, base=place.offset + cursor.position)
    size, checksum, count, tables_crc = record.unpack(_RESTORE, "restore header")
    if count > _MAX_EDITS:
        raise record.error("edits", str(count), f"at most {_MAX_EDITS}")
    changes = []
    held = 0
    for _ in range(count):
        offset, length, at = record.unpack(_EDIT, "restore edit")
        # Edits that share their bytes would make a small section hold any amount.
        held += length
        if held > len(section):
            raise record.error("restore edits", f"{held} bytes", f"at most the section's {len(section)}")
        cursor.seek(at, "bytes_offset")
        changes.append((offset, bytes(cursor.take(length, "bytes of a restore edit"))))
    return Original(size, checksum, tuple(changes), tables_crc)


def record_size(changes: Sequence[tuple[int, bytes]]) -> int:
    """Bytes of what pack_record makes."""
    return _RESTORE.size + sum(_EDIT.size + len(data) for _, data in changes)


def pack_record(original: Original, offset: int) -> bytes:
    """What restores the original. offset: where in the section it will be."""
    head = _RESTORE.pack(original.size, original.digest, len(original.changes), original.tables_crc)
    at = offset + _RESTORE.size + _EDIT.size * len(original.changes)
    for place, data in original.changes:
        head += _EDIT.pack(place, len(data), at)
        at += len(data)
    return head + b"".join(data for _, data in original.changes)


def is_unchanged(descriptor: int, size: int, original: Original) -> bool:
    """Whether a patched file of that size still holds its original: nothing else has changed it since."""
    return original.fits(size) and digest(descriptor, original.size, original.changes) == original.digest


def crc_of_tables(data: memoryview, end: int, changes: Sequence[tuple[int, bytes]]) -> int:
    """CRC-32 of what patching wrote besides the section: the changed places, and everything after the section.

    end: of the section in the file. Another tool may change nothing but these: the original is still in the file then,
    but without what that tool did.
    """
    checksum = 0
    for offset, old in changes:
        checksum = zlib.crc32(data[offset : offset + len(old)], checksum)
    return zlib.crc32(data[end:], checksum)


def copy_original(source: int, target: int, original: Original) -> None:
    """Copy the original's bytes out of a patched file to the start of an empty one."""
    copy(source, target, original.size)
    for offset, data in original.changes:
        write(target, offset, data)
