"""The ``.neutrino`` section of a patched file: written in parts, read back with every bound checked.

The format is ``SECTION_HEADER`` of ``neutrino/abi`` and what it points at. Offsets count from the start of the
section. Attaching it to a file adds what restores the original at its end.
"""

from __future__ import annotations

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
_LONGEST_TEXT = 1 << 16
"""Bytes of the probes' names, or of a version, with the NUL."""
_KINDS = (DeviceKind.GPU, DeviceKind.EMBEDDED)

_CODES = {"u32": "I", "u64": "Q"}


def packing(layout: Struct) -> struct.Struct:
    """A structure of the layout for ``struct``; arrays of bytes are one bytes value."""
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


@dataclass(frozen=True)
class TwinsRow:
    """The twins of one image for devices of one architecture.

    image_digest: SHA-256 of the image as the program hands it to the driver. image_size: its bytes. key: of the entry,
    32 bytes. arch: of the devices, as ``sm_90``. entry: which of the section's entries; rows may share one.
    """

    image_digest: bytes
    image_size: int
    key: bytes
    arch: str
    device: DeviceKind
    entry: int


@dataclass(frozen=True)
class Section:
    """A section as read back. entries: in the format of ``neutrino.cache.entry``, neither read nor copied.

    names: of the probes, with spaces between. maker: the version of Neutrino that wrote it. probes, reader: the files
    ``probe.toml`` and ``read.py``. report: what ``neutrino-patch --json`` printed. restore: (offset, size) of the
    record that restores the original file, (0, 0) before the section is attached. size: bytes of the whole section.
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
    """The section in parts, to be written one after the other: complete but for what restores the original.

    Entries are not copied. Raises NeutrinoError when a text is longer than the format holds.
    """
    front = bytearray(SECTION_HEADER.size)
    rows_offset = _append(front, bytes(_ROW.size * len(rows)), _ROW_ALIGN)
    places = {
        "rows_offset": rows_offset,
        "names_offset": _append(front, _text("names of the probes", names)),
        "maker_offset": _append(front, _text("version", maker)),
    }
    for name, data in (("probes", probes), ("reader", reader), ("report", report)):
        places |= {f"{name}_offset": _append(front, data), f"{name}_size": len(data)}
    parts: list[bytes | memoryview] = []
    offsets = []
    position = len(front)
    for entry in entries:
        padding = align_up(position, _ENTRY_ALIGN) - position
        offsets.append(position + padding)
        parts += [bytes(padding), entry]
        position += padding + len(entry)
    for index, row in enumerate(rows):
        values = {
            "image_digest": row.image_digest, "image_size": row.image_size, "key": row.key,
            "arch": row.arch.encode("ascii"), "entry_offset": offsets[row.entry],
            "entry_size": len(entries[row.entry]), "device": _KINDS.index(row.device), "reserved": 0,
        }  # fmt: skip
        _ROW.pack_into(front, rows_offset + index * _ROW.size, *(values[name] for name in _ROW_FIELDS))
    header = {
        "magic": SECTION_MAGIC, "version": SECTION_VERSION, "rows": len(rows), "size": position,
        "restore_offset": 0, "restore_size": 0, **places,
    }  # fmt: skip
    HEADER.pack_into(front, 0, *(header[name] for name in HEADER_FIELDS))
    return [bytes(front), *parts]


def complete_header(section: Sequence[bytes | memoryview], size: int, restore_offset: int) -> bytes:
    """The header of a section that was written without knowing what restores the original, which ends it.

    section: its parts. Raises FormatError when they do not begin with a header.
    """
    head = b""
    for part in section:
        head += part[: HEADER.size - len(head)]
    cursor = Cursor(memoryview(head), "section")
    fields = dict(zip(HEADER_FIELDS, cursor.unpack(HEADER, "section header"), strict=True))
    if fields["magic"] != SECTION_MAGIC:
        raise cursor.error("section magic", repr(fields["magic"]), repr(SECTION_MAGIC), at=0)
    fields |= {"size": size, "restore_offset": restore_offset, "restore_size": size - restore_offset}
    return HEADER.pack(*(fields[name] for name in HEADER_FIELDS))


def read_section(data: bytes | memoryview, name: str, base: int = 0) -> Section:
    """Read a section back; it begins at data's first byte and may be followed by others' bytes.

    name, base: the file, and where in it data begin, for messages. Entries are not read:
    ``neutrino.cache.entry.read_entry`` does. Raises FormatError.
    """
    return _Reader(memoryview(data), name, base).read()


def _append(data: bytearray, addition: bytes, alignment: int = 1) -> int:
    data += bytes(align_up(len(data), alignment) - len(data))
    offset = len(data)
    data += addition
    return offset


def _text(what: str, text: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape") + b"\0"
    if len(data) > _LONGEST_TEXT or b"\0" in data[:-1]:
        raise NeutrinoError(f"{what}: {len(data)} bytes, the section holds {_LONGEST_TEXT}, without NUL")
    return data


class _Reader:
    def __init__(self, data: memoryview, name: str, base: int) -> None:
        self._cursor = Cursor(data, name, base=base)
        fields = self._unpack(HEADER, HEADER_FIELDS, "section header")
        if fields["magic"] != SECTION_MAGIC:
            raise self._cursor.error("section magic", repr(fields["magic"]), repr(SECTION_MAGIC), at=0)
        if fields["version"] != SECTION_VERSION:
            expected = f"{SECTION_VERSION}: another version of Neutrino patched the file, patch it again"
            raise self._cursor.error("section version", str(fields["version"]), expected, at=8)
        if not HEADER.size <= fields["size"] <= len(data):
            found, expected = f"{fields['size']} bytes", f"{HEADER.size} to {len(data)} bytes"
            raise self._cursor.error("section size", found, expected, at=16)
        # Whatever the section says of itself must lie within its own size, not only within the file.
        self._cursor = Cursor(data, name, end=fields["size"], base=base)
        self._header = fields

    def read(self) -> Section:
        header = self._header
        rows, entries = self._rows()
        restore = (header["restore_offset"], header["restore_size"])
        if any(restore):
            self._span(*restore, "restore")
        return Section(
            rows=rows,
            entries=entries,
            names=self._string(header["names_offset"], "names of the probes"),
            maker=self._string(header["maker_offset"], "maker"),
            probes=bytes(self._span(header["probes_offset"], header["probes_size"], "probe.toml")),
            reader=bytes(self._span(header["reader_offset"], header["reader_size"], "read.py")),
            report=bytes(self._span(header["report_offset"], header["report_size"], "report")),
            restore=restore,
            size=header["size"],
        )

    def _rows(self) -> tuple[tuple[TwinsRow, ...], tuple[memoryview, ...]]:
        self._cursor.seek(self._header["rows_offset"], "rows_offset")
        table = self._cursor.position
        self._cursor.take(self._header["rows"] * _ROW.size, "rows")
        rows = []
        entries: dict[tuple[int, int], int] = {}
        views: list[memoryview] = []
        seen = set()
        for index in range(self._header["rows"]):
            self._cursor.seek(table + index * _ROW.size, "row")
            fields = self._unpack(_ROW, _ROW_FIELDS, "row")
            at = table + index * _ROW.size
            place = fields["entry_offset"], fields["entry_size"]
            if place not in entries:
                if place[0] % _ENTRY_ALIGN or place[1] < TWINS_HEADER.size:
                    expected = f"a multiple of {_ENTRY_ALIGN}, at least {TWINS_HEADER.size} bytes"
                    raise self._cursor.error(f"entry of row {index}", f"{place[0]:#x}, {place[1]} bytes", expected)
                entries[place] = len(views)
                views.append(self._span(*place, f"entry of row {index}"))
            arch = self._arch(fields["arch"], at)
            if fields["device"] >= len(_KINDS):
                raise self._cursor.error("device", str(fields["device"]), f"below {len(_KINDS)}", at=at)
            identity = fields["image_digest"], arch, fields["device"]
            if identity in seen:
                raise self._cursor.error(f"row {index}", f"a second one for this image and {arch}", "one", at=at)
            seen.add(identity)
            rows.append(
                TwinsRow(
                    fields["image_digest"], fields["image_size"], fields["key"], arch, _KINDS[fields["device"]],
                    entries[place],
                )
            )  # fmt: skip
        return tuple(rows), tuple(views)

    def _arch(self, field: bytes, at: int) -> str:
        arch, _, rest = field.partition(b"\0")
        if not arch.isascii() or not arch.startswith(b"sm_") or rest.strip(b"\0") or len(arch) == len(field):
            raise self._cursor.error("arch", repr(field), "a name as sm_90, filled up with NUL", at=at)
        return arch.decode("ascii")

    def _unpack(self, packing: struct.Struct, names: Sequence[str], what: str) -> dict[str, Any]:
        return dict(zip(names, self._cursor.unpack(packing, what), strict=True))

    def _span(self, offset: int, size: int, what: str) -> memoryview:
        self._cursor.seek(offset, f"offset of {what}")
        return self._cursor.take(size, what)

    def _string(self, offset: int, what: str) -> str:
        self._cursor.seek(offset, f"offset of {what}")
        data = bytes(self._cursor.take(min(_LONGEST_TEXT, self._cursor.remaining), what))
        text, end, _ = data.partition(b"\0")
        if not end:
            raise self._cursor.error(what, "not ended", f"a text that NUL ends within {_LONGEST_TEXT} bytes", at=offset)
        return text.decode("utf-8", "surrogateescape")
