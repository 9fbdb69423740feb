"""The ``.neutrino`` section found in a patched file, and what it keeps of the original put back."""

from __future__ import annotations

import mmap
import os
import stat
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neutrino.abi.sections import RESTORE_EDIT, RESTORE_HEADER, SECTION_HEADER, SECTION_MAGIC
from neutrino.ahead.aside import copy, digest, write, written_aside
from neutrino.ahead.section import NAME, packing
from neutrino.elf.constants import MAGIC, PT_LOAD, SHT_NOBITS
from neutrino.elf.cursor import Cursor
from neutrino.elf.reader import Elf
from neutrino.errors import FormatError, PatchError

_HEADER = packing(SECTION_HEADER)
_HEADER_FIELDS = [member.name for member in SECTION_HEADER.members]
_RESTORE = packing(RESTORE_HEADER)
_EDIT = packing(RESTORE_EDIT)
_LATEST_VERSION = 0xFFFF
_MAX_EDITS = 1 << 10
"""Far above what attaching makes: a table, a header, an entry."""


@dataclass(frozen=True)
class SectionPlace:
    """Where the section is. offset, size: in the file, bytes. address: virtual, where it is in memory."""

    offset: int
    size: int
    address: int


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


def find_section(elf: Elf) -> SectionPlace | None:
    """Where the section is: by its name, else as the start of a PT_LOAD. None when there is none.

    Raises FormatError when the section's header is there but the section leaves its segment.
    """
    places = [
        (section.offset, section.size, section.address)
        for section in elf.sections
        if section.name == NAME and section.type != SHT_NOBITS
    ]
    places += [
        (segment.offset, segment.file_size, segment.address) for segment in elf.segments if segment.type == PT_LOAD
    ]
    for offset, room, address in places:
        begins = offset < len(elf.data) and elf.data[offset : offset + len(SECTION_MAGIC)] == SECTION_MAGIC
        if begins and room >= _HEADER.size:
            header = _read_header(elf, offset)
            if header["version"] > _LATEST_VERSION:
                # A string in somebody's .rodata: text stands where the version would.
                continue
            end = min(offset + room, len(elf.data))
            if not _HEADER.size <= header["size"] <= end - offset:
                expected = f"{_HEADER.size} to {end - offset} bytes"
                raise FormatError(elf.file, offset + 16, "section size", f"{header['size']} bytes", expected)
            return SectionPlace(offset, header["size"], address)
    return None


def read_original(elf: Elf) -> Original | None:
    """What the file says of the original that it was made from; None when it has no section.

    Whether it is still true is for the digest to say. Raises FormatError when the record leaves the section.
    """
    place = find_section(elf)
    if place is None:
        return None
    header = _read_header(elf, place.offset)
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


def complete_header(section: Sequence[bytes | memoryview], size: int, restore_offset: int) -> bytes:
    """The header of a section that was written without knowing what restores the original, which ends it.

    section: its parts. Raises FormatError when they do not begin with a header.
    """
    head = b""
    for part in section:
        head += part[: _HEADER.size - len(head)]
    cursor = Cursor(memoryview(head), "section")
    fields = dict(zip(_HEADER_FIELDS, cursor.unpack(_HEADER, "section header"), strict=True))
    if fields["magic"] != SECTION_MAGIC:
        raise cursor.error("section magic", repr(fields["magic"]), repr(SECTION_MAGIC), at=0)
    fields |= {"size": size, "restore_offset": restore_offset, "restore_size": size - restore_offset}
    return _HEADER.pack(*(fields[name] for name in _HEADER_FIELDS))


def is_unchanged(descriptor: int, size: int, original: Original) -> bool:
    """Whether a patched file of that size still holds its original: nothing else has changed it since."""
    return _fits(original, size) and digest(descriptor, original.size, original.changes) == original.digest


def crc_of_tables(data: memoryview, end: int, changes: Sequence[tuple[int, bytes]]) -> int:
    """CRC-32 of what patching wrote beside the section of a patched file: where changes were, and all behind it.

    end: of the section in the file. Another tool may change nothing but these: the original is still in the file then,
    but without what that tool did.
    """
    checksum = 0
    for offset, old in changes:
        checksum = zlib.crc32(data[offset : offset + len(old)], checksum)
    return zlib.crc32(data[end:], checksum)


def restore(source: Path, target: Path) -> None:
    """Write the original that a patched file was made from, byte for byte.

    Target appears complete and verified by its digest, or not at all; it may be source. Raises PatchError when source
    is not patched or was changed since, FormatError when it is damaged, OSError.
    """
    with mapped(source) as (descriptor, data):
        original = read_original(Elf(data, str(source)))
        if original is None:
            raise PatchError(str(source), f"has no {NAME} section: it is not patched, or no longer")
        changed = PatchError(
            str(source),
            "was changed by another tool (strip, patchelf …) since it was patched, so the original cannot be taken "
            "from it; take the file that was patched",
        )
        if not _fits(original, len(data)):
            raise changed
        with written_aside(target, stat.S_IMODE(os.fstat(descriptor).st_mode)) as new:
            copy_original(descriptor, new, original)
            if digest(new, original.size) != original.digest:
                raise changed


def copy_original(source: int, target: int, original: Original) -> None:
    """Copy the original's bytes out of a patched file to the start of an empty one."""
    copy(source, target, original.size)
    for offset, data in original.changes:
        write(target, offset, data)


@contextmanager
def mapped(path: Path) -> Iterator[tuple[int, memoryview]]:
    """A file's descriptor and bytes, not read before they are used. Raises PatchError for what is no ELF file."""
    with path.open("rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode) or file.read(len(MAGIC)) != MAGIC:
            raise PatchError(str(path), "is no ELF file")
        # Not closed by hand: what was read of it may still hold views.
        yield file.fileno(), memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _fits(original: Original, size: int) -> bool:
    """Whether a file of that size can hold it."""
    return original.size <= size and all(offset + len(data) <= original.size for offset, data in original.changes)


def _read_header(elf: Elf, offset: int) -> dict[str, Any]:
    cursor = Cursor(elf.data, elf.file, base=elf.base)
    cursor.seek(offset, "section")
    return dict(zip(_HEADER_FIELDS, cursor.unpack(_HEADER, "section header"), strict=True))
