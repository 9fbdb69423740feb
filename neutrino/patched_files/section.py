"""The ``.neutrino`` section of a patched file: written in parts, read back with every bound checked.

The format is ``SECTION_HEADER`` of ``neutrino/abi`` and what it points at. Offsets count from the start of the
section. Attaching it to a file adds what restores the original at its end.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neutrino.abi.entries import TWINS_HEADER
from neutrino.abi.sections import SECTION_HEADER, SECTION_MAGIC, SECTION_TWINS
from neutrino.abi.structures import Struct, align_up
from neutrino.abi.versions import SECTION_VERSION
from neutrino.device.kind import DeviceKind
from neutrino.elf.cursor import Cursor
from neutrino.errors import NeutrinoError

NAME = ".neutrino"
_ROW_ALIGN = 8
_ENTRY_ALIGN = 64
"""Alignment of rows and entries in the section, which the hook reads in place as C structures."""
_LONGEST_TEXT = 1 << 16
"""Bytes of the probes' names, or of a version, with the NUL."""
_DEVICE_KINDS = (DeviceKind.GPU, DeviceKind.EMBEDDED)
"""By their number in the field ``device`` of SECTION_TWINS."""

_ARCH = re.compile(rb"[A-Za-z][\w:+-]*", re.ASCII)
"""The name of an architecture."""

_CODES = {"u32": "I", "u64": "Q"}
"""Format characters of ``struct`` for types of members."""


def packing(layout: Struct) -> struct.Struct:
    """Return a layout of ``neutrino/abi`` as a little-endian ``struct.Struct``; arrays of bytes are one bytes value."""
    return struct.Struct(
        "<"
        + "".join(
            f"{member.count}s" if member.type in ("char", "u8") else _CODES[member.type] * member.count
            for member in layout.members
        )
    )


HEADER = packing(SECTION_HEADER)
_ROW = packing(SECTION_TWINS)
HEADER_FIELDS = [member.name for member in SECTION_HEADER.members]
_ROW_FIELDS = [member.name for member in SECTION_TWINS.members]


def header_offset(field: str) -> int:
    """Return the offset of a field in SECTION_HEADER, for error messages."""
    preceding = SECTION_HEADER.members[: HEADER_FIELDS.index(field)]
    return packing(Struct("", preceding, "")).size


@dataclass(frozen=True)
class TwinsRow:
    """The twins of one image for devices of one architecture.

    image_digest, image_size: SHA-256 and size in bytes of the image as the program hands it to the driver. key: of the
    entry, 32 bytes. arch: of the devices, as ``sm_90``. device: GPUs or the emulator. entry: index of one of the
    section's entries; rows may share one.
    """

    image_digest: bytes
    image_size: int
    key: bytes
    arch: str
    device: DeviceKind
    entry: int


@dataclass(frozen=True)
class Section:
    """The contents of a ``.neutrino`` section that was read.

    entries: in the format of ``twins/cache_entry.py``, as views that were not parsed. names: of the probes, separated
    by spaces. maker: the version of Neutrino that wrote the section. probes, reader: contents of the files
    ``probe.toml`` and ``read.py``. report: what ``neutrino-patch --json`` printed. restore: (offset, size) in the
    section of the record that restores the original file, (0, 0) before the section is attached. size: of the whole
    section, in bytes.
    """

    rows: tuple[TwinsRow, ...]
    entries: tuple[memoryview, ...]
    names: str
    maker: str
    probes: bytes
    reader: bytes
    report: bytes
    restore: tuple[int, int]
    size: int


def write_section(
    rows: Sequence[TwinsRow],
    entries: Sequence[bytes | memoryview],
    *,
    names: str,
    maker: str,
    probes: bytes,
    reader: bytes,
    report: bytes,
) -> list[bytes | memoryview]:
    """Return the section's bytes in parts, which follow each other.

    Only the record of the original is missing, which is added when the section is attached to a file.

    rows: for which images and devices the entries are. entries: the twins (instrumented kernels), in the cache's
    format; they are not copied. names: of the probes, separated by spaces. maker: this version of Neutrino. probes,
    reader, report: contents of ``probe.toml``, ``read.py`` and the JSON report. Raises NeutrinoError when a text is
    longer than the format allows, or contains NUL.
    """
    # What precedes the entries: the header and the rows, which are filled in below, then the texts.
    front = bytearray(SECTION_HEADER.size)
    rows_offset = _append(front, bytes(_ROW.size * len(rows)), _ROW_ALIGN)
    offset_fields = {
        "rows_offset": rows_offset,
        "names_offset": _append(front, _terminated("names of the probes", names)),
        "maker_offset": _append(front, _terminated("version", maker)),
    }
    for name, data in (("probes", probes), ("reader", reader), ("report", report)):
        offset_fields |= {f"{name}_offset": _append(front, data), f"{name}_size": len(data)}

    # The entries, aligned.
    parts: list[bytes | memoryview] = []
    entry_offsets = []
    position = len(front)
    for entry in entries:
        padding = align_up(position, _ENTRY_ALIGN) - position
        entry_offsets.append(position + padding)
        parts += [bytes(padding), entry]
        position += padding + len(entry)

    # The rows and the header, now that all offsets are known.
    for index, row in enumerate(rows):
        # row.entry is an index; the hook gets the entry's place in the section.
        values = {
            "image_digest": row.image_digest, "image_size": row.image_size, "key": row.key,
            "arch": row.arch.encode("ascii"), "entry_offset": entry_offsets[row.entry],
            "entry_size": len(entries[row.entry]), "device": _DEVICE_KINDS.index(row.device), "reserved": 0,
        }  # fmt: skip
        _ROW.pack_into(front, rows_offset + index * _ROW.size, *(values[name] for name in _ROW_FIELDS))
    header = {
        "magic": SECTION_MAGIC, "version": SECTION_VERSION, "rows": len(rows), "size": position,
        "restore_offset": 0, "restore_size": 0, **offset_fields,
    }  # fmt: skip
    HEADER.pack_into(front, 0, *(header[name] for name in HEADER_FIELDS))
    return [bytes(front), *parts]


def complete_header(section: Sequence[bytes | memoryview], size: int, restore_offset: int) -> bytes:
    """Return the header of a section from ``write_section``, completed for the record of the original at its end.

    section: its parts. size: of the whole section with the record. restore_offset: of the record. Raises FormatError
    when the parts do not begin with a header.
    """
    # Mostly the first part has all of the header, but it may be divided anywhere.
    header_bytes = b""
    for part in section:
        header_bytes += part[: HEADER.size - len(header_bytes)]
    cursor = Cursor(memoryview(header_bytes), "section")
    fields = dict(zip(HEADER_FIELDS, cursor.unpack(HEADER, "section header"), strict=True))
    if fields["magic"] != SECTION_MAGIC:
        found, expected = repr(fields["magic"]), repr(SECTION_MAGIC)
        raise cursor.error("section magic", found, expected, at=header_offset("magic"))
    # The record is the last part of the section.
    fields |= {"size": size, "restore_offset": restore_offset, "restore_size": size - restore_offset}
    return HEADER.pack(*(fields[name] for name in HEADER_FIELDS))


def read_section(data: bytes | memoryview, name: str, base: int = 0) -> Section:
    """Read a ``.neutrino`` section that begins at data's first byte; other bytes may follow it.

    name, base: the file's name and the offset of data in it, for messages. Entries are not parsed:
    ``neutrino.twins.cache_entry.read_entry`` does that. Raises FormatError when an offset, size or text is wrong.
    """
    return _Reader(memoryview(data), name, base).read()


def _append(data: bytearray, addition: bytes, alignment: int = 1) -> int:
    """Append bytes to data, after padding to a multiple of alignment; return their offset."""
    data += bytes(align_up(len(data), alignment) - len(data))
    offset = len(data)
    data += addition
    return offset


def _terminated(what: str, text: str) -> bytes:
    """Return a text with its NUL. what: its name in the NeutrinoError for one that is too long or contains NUL."""
    data = text.encode("utf-8", "surrogateescape") + b"\0"
    if len(data) > _LONGEST_TEXT or b"\0" in data[:-1]:
        raise NeutrinoError(f"{what}: {len(data)} bytes, the section holds {_LONGEST_TEXT}, without NUL")
    return data


class _Reader:
    """Reads one section. Raises FormatError as ``read_section``; the constructor checks the header."""

    def __init__(self, data: memoryview, name: str, base: int) -> None:
        """Read and check the header of the section at the start of data. Raises FormatError.

        name, base: the file's name and the offset of data in it, for errors.
        """
        self._cursor = Cursor(data, name, base=base)
        fields = self._unpack(HEADER, HEADER_FIELDS, "section header")
        if fields["magic"] != SECTION_MAGIC:
            found, expected = repr(fields["magic"]), repr(SECTION_MAGIC)
            raise self._cursor.error("section magic", found, expected, at=header_offset("magic"))
        if fields["version"] != SECTION_VERSION:
            expected = f"{SECTION_VERSION}: another version of Neutrino patched the file, patch it again"
            found = str(fields["version"])
            raise self._cursor.error("section version", found, expected, at=header_offset("version"))
        if not HEADER.size <= fields["size"] <= len(data):
            found, expected = f"{fields['size']} bytes", f"{HEADER.size} to {len(data)} bytes"
            raise self._cursor.error("section size", found, expected, at=header_offset("size"))
        # All offsets must lie within the section's size, not only within the file.
        self._cursor = Cursor(data, name, end=fields["size"], base=base)
        self._header = fields

    def read(self) -> Section:
        """Parse the whole section that patched files carry; return its contents."""
        header = self._header
        rows, entries = self._rows()
        restore = (header["restore_offset"], header["restore_size"])
        # (0, 0) before the section is attached. Only the record's bounds are checked here.
        if any(restore):
            self._range(*restore, "restore")
        return Section(
            rows=rows,
            entries=entries,
            names=self._string(header["names_offset"], "names of the probes"),
            maker=self._string(header["maker_offset"], "maker"),
            probes=bytes(self._range(header["probes_offset"], header["probes_size"], "probe.toml")),
            reader=bytes(self._range(header["reader_offset"], header["reader_size"], "read.py")),
            report=bytes(self._range(header["report_offset"], header["report_size"], "report")),
            restore=restore,
            size=header["size"],
        )

    def _rows(self) -> tuple[tuple[TwinsRow, ...], tuple[memoryview, ...]]:
        """Return all rows and the entries that they refer to by index, each entry once."""
        self._cursor.seek(self._header["rows_offset"], "rows_offset")
        table = self._cursor.position
        # Raises FormatError unless all rows are within the section.
        self._cursor.take(self._header["rows"] * _ROW.size, "rows")
        rows = []
        # Index of each entry by its (offset, size).
        entry_indices: dict[tuple[int, int], int] = {}
        entries: list[memoryview] = []
        # (image digest, architecture, device) of the rows so far.
        identities = set()
        for index in range(self._header["rows"]):
            row_offset = table + index * _ROW.size
            self._cursor.seek(row_offset, "row")
            fields = self._unpack(_ROW, _ROW_FIELDS, "row")

            # The entry, which an earlier row may have, too.
            offset, size = fields["entry_offset"], fields["entry_size"]
            if (offset, size) not in entry_indices:
                if offset % _ENTRY_ALIGN or size < TWINS_HEADER.size:
                    expected = f"a multiple of {_ENTRY_ALIGN}, at least {TWINS_HEADER.size} bytes"
                    raise self._cursor.error(f"entry of row {index}", f"{offset:#x}, {size} bytes", expected)
                entry_indices[offset, size] = len(entries)
                entries.append(self._range(offset, size, f"entry of row {index}"))

            # What the entry is for. A second row for the same would never be found by the hook, which takes the first.
            arch = self._arch(fields["arch"], row_offset)
            if fields["device"] >= len(_DEVICE_KINDS):
                raise self._cursor.error("device", str(fields["device"]), f"below {len(_DEVICE_KINDS)}", at=row_offset)
            identity = fields["image_digest"], arch, fields["device"]
            if identity in identities:
                found = f"a second one for this image and {arch}"
                raise self._cursor.error(f"row {index}", found, "one", at=row_offset)
            identities.add(identity)
            rows.append(
                TwinsRow(
                    image_digest=fields["image_digest"],
                    image_size=fields["image_size"],
                    key=fields["key"],
                    arch=arch,
                    device=_DEVICE_KINDS[fields["device"]],
                    entry=entry_indices[offset, size],
                )
            )
        return tuple(rows), tuple(entries)

    def _arch(self, field: bytes, at: int) -> str:
        """Return the architecture in a row's NUL-padded field. at: the row's offset, for the error."""
        arch, _, padding = field.partition(b"\0")
        # The C code reads it as a string, so at least one NUL must follow.
        # Which names there are is the targets' affair, which need not be imported to read a section.
        if not _ARCH.fullmatch(arch) or padding.strip(b"\0") or len(arch) == len(field):
            raise self._cursor.error("arch", repr(field), "a name of letters and digits, filled up with NUL", at=at)
        return arch.decode("ascii")

    def _unpack(self, packing: struct.Struct, names: Sequence[str], what: str) -> dict[str, Any]:
        """Unpack a structure at the cursor into a dict by its fields' names. what: names it in errors."""
        return dict(zip(names, self._cursor.unpack(packing, what), strict=True))

    def _range(self, offset: int, size: int, what: str) -> memoryview:
        """Return the bytes of a part of the section, by offset and size. what: names it in errors."""
        self._cursor.seek(offset, f"offset of {what}")
        return self._cursor.take(size, what)

    def _string(self, offset: int, what: str) -> str:
        """Return the NUL-terminated text at an offset in the section. what: its name, for the error."""
        self._cursor.seek(offset, f"offset of {what}")
        data = bytes(self._cursor.take(min(_LONGEST_TEXT, self._cursor.remaining), what))
        text, terminator, _ = data.partition(b"\0")
        if not terminator:
            raise self._cursor.error(what, "not ended", f"a text that NUL ends within {_LONGEST_TEXT} bytes", at=offset)
        return text.decode("utf-8", "surrogateescape")
