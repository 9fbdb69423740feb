"""The record in a patched file of the file that it was made from: written, read, and compared with the file."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from neutrino.abi.sections import RESTORE_EDIT, RESTORE_HEADER
from neutrino.elf.cursor import Cursor
from neutrino.elf.reader import Elf
from neutrino.patched_files.large_files import copy_prefix, sha256_prefix, write_at
from neutrino.patched_files.place import find_section, read_header
from neutrino.patched_files.section import packing

_RESTORE = packing(RESTORE_HEADER)
_EDIT = packing(RESTORE_EDIT)
_MAX_EDITS = 1 << 10
"""A limit for damaged files. ``appended.py`` writes a few: ELF header, program headers, dynamic section."""


@dataclass(frozen=True)
class Original:
    """The original of a patched file, as the patched file records it.

    size: in bytes. digest: SHA-256 of the original. changes: (file offset, original bytes) of each range that patching
    overwrote. tables_crc: the result of ``crc_of_tables`` right after patching.
    """

    size: int
    digest: bytes
    changes: tuple[tuple[int, bytes], ...]
    tables_crc: int = 0

    def fits(self, size: int) -> bool:
        """Whether a patched file of size bytes is long enough for the original and all its changes."""
        return self.size <= size and all(offset + len(data) <= self.size for offset, data in self.changes)


def read_original(elf: Elf) -> Original | None:
    """Read from a patched file's ``.neutrino`` section how to restore the original; None when it has no such section.

    Only the record's form is checked, not whether the file is still as it was when patched (``is_unchanged``). Raises
    FormatError when the record or something that it refers to lies outside the section.
    """
    place = find_section(elf)
    if place is None:
        return None
    header = read_header(elf, place.offset)
    section = elf.data[place.offset : place.offset + place.size]
    cursor = Cursor(section, elf.file, base=place.offset)
    cursor.seek(header["restore_offset"], "restore_offset")
    record_data = cursor.take(header["restore_size"], "restore_size")
    record = Cursor(record_data, elf.file, base=place.offset + header["restore_offset"])
    size, checksum, count, tables_crc = record.unpack(_RESTORE, "restore header")
    if count > _MAX_EDITS:
        raise record.error("edits", str(count), f"at most {_MAX_EDITS}")
    # Each row follows the previous one; the original's bytes for it are elsewhere in the section.
    changes = []
    total_length = 0
    for _ in range(count):
        offset, length, bytes_offset = record.unpack(_EDIT, "restore edit")
        # Edits of a damaged file may overlap in the section, so that their copies would take any amount of memory.
        total_length += length
        if total_length > len(section):
            raise record.error("restore edits", f"{total_length} bytes", f"at most the section's {len(section)}")
        cursor.seek(bytes_offset, "bytes_offset")
        changes.append((offset, bytes(cursor.take(length, "bytes of a restore edit"))))
    return Original(size, checksum, tuple(changes), tables_crc)


def record_size(changes: Sequence[tuple[int, bytes]]) -> int:
    """Return how many bytes ``pack_record`` returns for these changes (file offset, original bytes)."""
    return _RESTORE.size + sum(_EDIT.size + len(data) for _, data in changes)


def pack_record(original: Original, offset: int) -> bytes:
    """Return the bytes of the record by which the original is restored from the patched file (``read_original``).

    It is a header, a row per range that patching overwrote, then the original bytes of these ranges. offset: of the
    record in the section, because a row refers to its bytes by their offset in the section.
    """
    record = _RESTORE.pack(original.size, original.digest, len(original.changes), original.tables_crc)
    # The bytes of the first range follow the last row.
    bytes_offset = offset + _RESTORE.size + _EDIT.size * len(original.changes)
    for file_offset, original_bytes in original.changes:
        record += _EDIT.pack(file_offset, len(original_bytes), bytes_offset)
        bytes_offset += len(original_bytes)
    return record + b"".join(original_bytes for _, original_bytes in original.changes)


def is_unchanged(descriptor: int, size: int, original: Original) -> bool:
    """Whether a patched file still holds its original, so that no other tool has changed those bytes.

    descriptor, size: of the patched file. Its first bytes are hashed as they were before patching, with the original
    bytes in place of the overwritten ones.
    """
    return original.fits(size) and sha256_prefix(descriptor, original.size, original.changes) == original.digest


def crc_of_tables(data: memoryview, end: int, changes: Sequence[tuple[int, bytes]]) -> int:
    """Return the CRC-32 of what patching wrote outside the section: the changed ranges, and all after the section.

    data: the patched file. end: file offset of the section's end. changes: as in ``Original``, for the ranges only; the
    bytes are those that patching put there.

    The record of the original does not cover these bytes. If another tool changed only them, restoring the original
    would silently undo that tool's work; the CRC shows it.
    """
    crc = 0
    for offset, original_bytes in changes:
        crc = zlib.crc32(data[offset : offset + len(original_bytes)], crc)
    return zlib.crc32(data[end:], crc)


def copy_original(source: int, target: int, original: Original) -> None:
    """Write the original's bytes to the start of an empty file. source: descriptor of the patched file; target: of the
    empty one. Raises OSError.
    """
    copy_prefix(source, target, original.size)
    for offset, data in original.changes:
        write_at(target, offset, data)
