"""Cache entries: the twins (instrumented copies) of one image's kernels, what the hook must know of each kernel, and
the files for its trace folder.

The format is ``TWINS_HEADER`` and the tables that it points to, in ``neutrino/abi``. The hook reads an entry in place,
so the writer aligns tables to 8 bytes and images to 64, and ends every string with NUL.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import IO, Any

import numpy as np

from neutrino.abi.entries import (
    TWIN_FILE,
    TWIN_IMAGE,
    TWIN_KERNEL,
    TWIN_PARAMETER,
    TWINS_HEADER,
    TWINS_MAGIC,
    FewerBlocks,
)
from neutrino.abi.levels import LEVELS, PERS, Level, Per
from neutrino.abi.probe_block import BLOCK_EXTENTS, MAX_MAPS, block_size
from neutrino.abi.reasons import Reason
from neutrino.abi.records import MAX_RECORD, MAX_TABLE
from neutrino.abi.results import MAP_DESCRIPTOR
from neutrino.abi.structures import Struct, align_up
from neutrino.abi.versions import TWINS_VERSION
from neutrino.errors import FormatError, NeutrinoError
from neutrino.late_dataclass import dataclass
from neutrino.maps.declaration import Layout, Map, MapType
from neutrino.maps.regions import LANES
from neutrino.maps.registry import MAP_TYPES, number_of

WARP_SIZES = (32, 64)
"""How many lanes a kernel's warps may have."""
_TABLE_ALIGN = 8
_IMAGE_ALIGN = 64
_DIGEST_SIZE = 32
_BLOCK = 1 << 18
"""Bytes of a file that are read at once."""
_VARIABLE = np.dtype("<u8")
"""A row of a kernel's table of variables: the offset of a name."""
_UNUSED_LOGS = np.dtype("<u8")
"""A row of the table after that of the kernels: bit i is map i."""
_LONGEST_NAME = 63
"""Bytes of a map's name, without the NUL that ends it in the 64 bytes of its member."""
_MAX_ON_STACK = 65536
"""Limit in bytes of a kernel's parameters, and of its probe block. For a launch the hook copies both to the stack of
the program's thread."""


def _header_offset(member: str) -> int:
    """Return the offset in bytes of a member of an entry's header."""
    fields = TWINS_HEADER.dtype.fields
    # For the type checker: only types that are not structures have no fields.
    if fields is None:
        raise NeutrinoError("the header of a cache entry has no members")
    _, offset = fields[member][:2]
    return int(offset)


DIGESTED_FROM = _header_offset("digest") + _DIGEST_SIZE
"""Offset of the first byte that the header's digest covers."""


@dataclass(frozen=True)
class KernelEntry:
    """One kernel of an entry.

    name: mangled. reason, detail: why it has no twin (the instrumented copy). twin: the twin's name, empty if there is
    none. parameters: (offset, size) in bytes of the program's own parameters. variables: names of module variables
    whose addresses the twin needs. block_offset, block_size: of the probe block in the twin's parameter space, in
    bytes. image: index of the entry's image that has the twin. capped: index of the one that has it compiled with a
    register cap, 0 if none has. files: names and contents of the files for ``kernel/<id>/``. unused_logs: in ascending
    order the indices of the entry's maps that are logs to which nothing in the twin saves. fewer_blocks: which
    launches may run it though fewer blocks of it fit on a multiprocessor. lanes: of a warp, one of ``WARP_SIZES``; 0
    without a twin.
    """

    name: str
    reason: Reason
    detail: str = ""
    twin: str = ""
    parameters: tuple[tuple[int, int], ...] = ()
    variables: tuple[str, ...] = ()
    block_offset: int = 0
    block_size: int = 0
    image: int = 0
    capped: int = 0
    files: Mapping[str, bytes] = field(default_factory=dict)
    unused_logs: tuple[int, ...] = ()
    fewer_blocks: FewerBlocks = FewerBlocks.NONE
    lanes: int = 0

    def __post_init__(self) -> None:
        """Raise ValueError for a twin (copy with probes) whose warps have an impossible number of lanes."""
        if self.twin and self.lanes not in WARP_SIZES:
            raise ValueError(f"{self.twin}: {self.lanes} lanes of a warp, expected 32 or 64")


@dataclass(frozen=True)
class MapEntry:
    """What the hook, which launches twins, needs to know of a map, to which probes write records.

    record_size: in bytes. cap: records per slot.
    """

    name: str
    kind: type[MapType]
    level: Level
    record_size: int
    cap: int
    per: Per = Per.LAUNCH


@dataclass(frozen=True)
class Entry:
    """An entry as it was read. key: its 32-byte cache key. images: of the twins, then those with a register cap."""

    key: bytes
    maps: tuple[MapEntry, ...]
    kernels: tuple[KernelEntry, ...]
    images: tuple[bytes, ...]


class _Writer:
    """Appends tables, texts and images to a cache entry, after a header of ``header_size`` bytes, filled in last.

    file: the entry so far, which begins with the header's place. size: its bytes. Offsets count from its beginning.
    """

    def __init__(self, file: IO[bytes], header_size: int) -> None:
        """Begin a cache entry. file: empty. header_size: bytes to leave free at the beginning, for the header."""
        self._file = file
        self.size = file.write(bytes(header_size))
        self._text_offsets: dict[bytes, int] = {}
        """By the text with its NUL."""

    def append(self, data: bytes, alignment: int) -> int:
        """Append bytes at the next multiple of ``alignment``, and return their offset."""
        offset = align_up(self.size, alignment)
        self._file.write(bytes(offset - self.size))
        self._file.write(data)
        self.size = offset + len(data)
        return offset

    def put(self, data: bytes, offset: int) -> None:
        """Write bytes over those at an offset."""
        self._file.seek(offset)
        self._file.write(data)
        self._file.seek(self.size)

    def digest(self, begin: int) -> bytes:
        """Return the SHA-256 of all bytes from an offset on."""
        result = hashlib.sha256()
        self._file.seek(begin)
        while block := self._file.read(_BLOCK):
            result.update(block)
        return result.digest()

    def text(self, text: str) -> int:
        """Append a NUL-terminated string, and return its offset. Equal strings are stored once."""
        # surrogateescape: bytes of a name that are not valid UTF-8 are written as they are.
        data = text.encode("utf-8", "surrogateescape") + b"\0"
        if data not in self._text_offsets:
            self._text_offsets[data] = self.append(data, alignment=1)
        return self._text_offsets[data]

    def table(self, struct: Struct, rows: Sequence[Mapping[str, Any]]) -> int:
        """Append a table, and return its offset. rows: values by member; members that are left out are zero."""
        table = np.zeros(len(rows), struct.dtype)
        for row, values in zip(table, rows, strict=True):
            for name, value in values.items():
                row[name] = value
        return self.append(table.tobytes(), _TABLE_ALIGN)


def write_entry(key: bytes, maps: Sequence[Map], kernels: Sequence[KernelEntry], images: Sequence[bytes]) -> bytes:
    """Serialize a cache entry: the twins (instrumented copies) of one image's kernels, as the hook reads them.

    key: 32 bytes. maps: to which the probes write. kernels: all of the image's, also those without a twin. images:
    those that the driver loads for twins, then alternatives with a register cap. Raises NeutrinoError for a map whose
    name has more than 63 bytes.
    """
    file = io.BytesIO()
    write_entry_file(file, key, maps, kernels, images)
    return file.getvalue()


def write_entry_file(
    file: IO[bytes], key: bytes, maps: Sequence[Map], kernels: Sequence[KernelEntry], images: Sequence[bytes]
) -> None:
    """Write a cache entry to a file, kernel by kernel. file: empty, read and written as bytes; its position means
    nothing afterwards. The others, and errors, as ``write_entry``; OSError, too.
    """
    writer = _Writer(file, TWINS_HEADER.size)
    map_rows = []
    for map_ in maps:
        name = map_.name.encode()
        if len(name) > _LONGEST_NAME:
            raise NeutrinoError(
                f"map {map_.name}: the name has {len(name)} bytes, the trace format holds {_LONGEST_NAME}"
            )
        map_rows.append({
            "name": name, "kind": number_of(map_.kind), "level": LEVELS.index(map_.level),
            "per": map_.per_number, "record_size": map_.size, "cap": map_.cap,
        })  # fmt: skip
    maps_offset = writer.table(MAP_DESCRIPTOR, map_rows)
    kernels_offset = writer.table(TWIN_KERNEL, [_kernel_row(writer, kernel) for kernel in kernels])
    has_unused_logs = any(kernel.unused_logs for kernel in kernels)
    if has_unused_logs:
        rows = np.array([sum(1 << number for number in kernel.unused_logs) for kernel in kernels], _UNUSED_LOGS)
        # Right after the kernels, whose rows have whole words.
        writer.append(rows.tobytes(), _TABLE_ALIGN)

    # The table of images comes before the images, so it is filled in when their offsets are known.
    images_offset = writer.append(bytes(TWIN_IMAGE.size * len(images)), _TABLE_ALIGN)
    image_rows = np.zeros(len(images), TWIN_IMAGE.dtype)
    for index, image in enumerate(images):
        image_rows[index] = (writer.append(image, _IMAGE_ALIGN), len(image))
    writer.put(image_rows.tobytes(), images_offset)

    header = np.zeros((), TWINS_HEADER.dtype)
    header["magic"] = TWINS_MAGIC
    header["version"] = TWINS_VERSION
    header["maps"] = len(maps)
    header["size"] = writer.size
    header["key"] = np.frombuffer(key, np.uint8)
    header["maps_offset"] = maps_offset
    header["kernels_offset"] = kernels_offset
    header["kernels"] = len(kernels)
    header["images"] = len(images)
    header["images_offset"] = images_offset
    header["unused_logs"] = has_unused_logs
    writer.put(header.tobytes(), 0)

    # The digest covers everything after itself, the rest of the header included.
    writer.put(writer.digest(DIGESTED_FROM), DIGESTED_FROM - _DIGEST_SIZE)


def _kernel_row(writer: _Writer, kernel: KernelEntry) -> dict[str, int]:
    """Append a kernel's texts, files and tables to an entry; return the kernel's row, which has their offsets.

    The row is for the table TWIN_KERNEL: values by member.
    """
    names = {name: writer.text(name) for name in kernel.files}
    files = []
    # One by one: each may be large, and read from a file.
    for name in kernel.files:
        data = kernel.files[name]
        files.append({"name_offset": names[name], "offset": writer.append(data, _TABLE_ALIGN), "size": len(data)})
    variables = np.array([writer.text(name) for name in kernel.variables], _VARIABLE)
    return {
        # An offset of 0, where the header is, means that there is no text.
        "name_offset": writer.text(kernel.name),
        "twin_offset": writer.text(kernel.twin) if kernel.twin else 0,
        "detail_offset": writer.text(kernel.detail) if kernel.detail else 0,
        "files_offset": writer.table(TWIN_FILE, files),
        "parameters_offset": writer.table(
            TWIN_PARAMETER, [{"offset": offset, "size": size} for offset, size in kernel.parameters]
        ),
        "variables_offset": writer.append(variables.tobytes(), _TABLE_ALIGN),
        "reason": int(kernel.reason),
        "files": len(files),
        "parameters": len(kernel.parameters),
        "variables": len(kernel.variables),
        "block_offset": kernel.block_offset,
        "block_size": kernel.block_size,
        "capped": kernel.capped,
        "image": kernel.image,
        "fewer_blocks": int(kernel.fewer_blocks),
        "lanes": kernel.lanes,
    }


class _Reader:
    """Reads parts of an entry. name: its file, for error messages."""

    def __init__(self, data: bytes, name: str) -> None:
        """Prepare to read parts of a cache entry. data: the whole entry. name: its file, for error messages."""
        self.data = data
        self.name = name

    def span(self, offset: int, size: int, field: str) -> bytes:
        """Return ``size`` bytes at an offset. Raises FormatError, naming the field, when they leave the entry."""
        if offset < 0 or size < 0 or offset + size > len(self.data):
            raise FormatError(self.name, offset, field, f"{size} bytes", f"to end by {len(self.data):#x}")
        return self.data[offset : offset + size]

    def table(self, struct: Struct, offset: int, rows: int, field: str) -> np.ndarray[Any, np.dtype[np.void]]:
        """Return the table at an offset of the entry as an array of ``rows`` structures.

        Raises FormatError, naming the field, when it leaves the entry or is not aligned.
        """
        if offset % _TABLE_ALIGN:
            raise FormatError(self.name, offset, field, "an odd offset", f"a multiple of {_TABLE_ALIGN}")
        return np.frombuffer(self.span(offset, rows * struct.size, field), struct.dtype)

    def text(self, offset: int, field: str) -> str:
        """Return the NUL-terminated string at an offset. Raises FormatError, naming the field, if it does not end.

        That is also so for an offset beyond the end of the entry.
        """
        end = self.data.find(b"\0", offset)
        if end < 0:
            raise FormatError(self.name, offset, field, "not ended", "a NUL-terminated text")
        # surrogateescape: as _Writer.text encodes it; no bytes are an error.
        return self.data[offset:end].decode("utf-8", "surrogateescape")


def read_entry(data: bytes, name: str) -> Entry:
    """Read a cache entry. name: the file, for error messages.

    Raises FormatError for everything that the hook (the library that launches kernels' copies with probes) refuses: a
    wrong digest, and values with which it could not launch them.
    """
    reader = _Reader(data, name)
    (header,) = reader.table(TWINS_HEADER, offset=0, rows=1, field="header")

    def error(member: str, found: str, expected: str) -> FormatError:
        """Return the error for a member of the header: what was found there, what was expected."""
        return FormatError(name, _header_offset(member), member, found, expected)

    # NumPy strips the NULs at the end of a string.
    if bytes(header["magic"]).ljust(len(TWINS_MAGIC), b"\0") != TWINS_MAGIC:
        raise error("magic", repr(bytes(header["magic"])), repr(TWINS_MAGIC))
    if int(header["version"]) != TWINS_VERSION:
        expected = f"{TWINS_VERSION}: another version of Neutrino made it, make it again"
        raise error("version", str(int(header["version"])), expected)
    # It comes before the digest, which therefore does not cover it.
    if int(header["reserved"]):
        raise error("reserved", str(int(header["reserved"])), "0")
    if int(header["size"]) != len(data):
        raise error("size", str(int(header["size"])), f"the file's {len(data)}")
    if hashlib.sha256(memoryview(data)[DIGESTED_FROM:]).digest() != header["digest"].tobytes():
        raise error("digest", "not that of the content", "SHA-256 of what follows")

    map_count, maps_offset = int(header["maps"]), int(header["maps_offset"])
    if map_count > MAX_MAPS:
        raise error("maps", str(map_count), f"at most {MAX_MAPS}")
    map_rows = reader.table(MAP_DESCRIPTOR, maps_offset, map_count, "map descriptors")
    maps = [_map(name, maps_offset + index * map_rows.itemsize, row) for index, row in enumerate(map_rows)]
    image_rows = reader.table(TWIN_IMAGE, int(header["images_offset"]), int(header["images"]), "images")
    kernels_offset = int(header["kernels_offset"])
    kernels = []
    kernel_rows = reader.table(TWIN_KERNEL, kernels_offset, int(header["kernels"]), "kernels")
    unused_logs = _unused_logs(reader, header, maps)
    for index, row in enumerate(kernel_rows):
        row_offset = kernels_offset + index * kernel_rows.itemsize
        kernel = replace(_kernel(reader, row_offset, row), unused_logs=unused_logs[index])
        _check_kernel(name, row_offset, kernel, len(maps), len(image_rows))
        kernels.append(kernel)
    return Entry(
        header["key"].tobytes(),
        tuple(maps),
        tuple(kernels),
        tuple(reader.span(int(row["offset"]), int(row["size"]), "image") for row in image_rows),
    )


def _unused_logs(reader: _Reader, header: np.void, maps: Sequence[MapEntry]) -> list[tuple[int, ...]]:
    """Return for each kernel of an entry the indices of the maps (what probes save to), logs, to which nothing in its
    twin (copy with probes) saves.

    maps: of the entry. Raises FormatError for a map that is no log.
    """
    kernels, kind = int(header["kernels"]), int(header["unused_logs"])
    rows: list[tuple[int, ...]] = []
    if not kind:
        return [() for _ in range(kernels)]
    if kind != 1:
        raise FormatError(reader.name, _header_offset("unused_logs"), "unused_logs", str(kind), "0 or 1")
    offset = int(header["kernels_offset"]) + kernels * TWIN_KERNEL.size
    logs = sum(1 << number for number, entry in enumerate(maps) if entry.kind.layout is Layout.CHUNKS)
    data = reader.span(offset, kernels * _UNUSED_LOGS.itemsize, "unused logs")
    for row in np.frombuffer(data, _UNUSED_LOGS).tolist():
        if row & ~logs:
            raise FormatError(reader.name, offset, "unused logs of a kernel", f"{row:#x}", f"of the logs {logs:#x}")
        rows.append(tuple(number for number in range(len(maps)) if row >> number & 1))
    return rows


def _map(file: str, row_offset: int, row: np.void) -> MapEntry:
    """Read and check a row of the table of maps, to which probes write records.

    file, row_offset: for error messages. Raises FormatError for an invalid kind, level, size, cap or name.
    """
    kind, level, size, cap = (int(row[member]) for member in ("kind", "level", "record_size", "cap"))
    if kind >= len(MAP_TYPES) or level >= len(LEVELS):
        expected = f"at most {len(MAP_TYPES) - 1}, {len(LEVELS) - 1}"
        raise FormatError(file, row_offset, "map kind, level", f"{kind}, {level}", expected)
    per = int(row["per"])
    if per >= len(PERS) or (per and not MAP_TYPES[kind].takes_per):
        raise FormatError(file, row_offset, f"per of a {MAP_TYPES[kind].name}", str(per), "0, or less of a sum")
    most = MAX_TABLE if MAP_TYPES[kind].layout is Layout.COPIES else MAX_RECORD
    if not 0 < size <= most:
        raise FormatError(file, row_offset, "record size", str(size), f"1 to {most}")
    # The cap is the number of records per slot; kinds of maps without slots always have 1.
    has_slots = MAP_TYPES[kind].layout is Layout.SLOTS
    if cap != 1 and not (has_slots and cap):
        expected = "1 or more" if has_slots else "1"
        raise FormatError(file, row_offset, f"cap of a {MAP_TYPES[kind].name}", str(cap), expected)
    text, _, _ = bytes(row["name"]).partition(b"\0")
    # A longer one leaves no room for the NUL in its member.
    if len(text) > _LONGEST_NAME:
        raise FormatError(file, row_offset, "map name", "not ended", "a NUL-terminated text")
    return MapEntry(text.decode("utf-8", "surrogateescape"), MAP_TYPES[kind], LEVELS[level], size, cap, PERS[per])


def _check_kernel(file: str, row_offset: int, kernel: KernelEntry, maps: int, images: int) -> None:
    """Check that a kernel of an entry is consistent, since the hook (Neutrino's library in the program) launches its
    twin (instrumented copy) by it.

    maps, images: how many the entry has. file, row_offset: for error messages. Raises FormatError for an inconsistent
    kernel.
    """

    def check(is_valid: bool, field: str, found: object, expected: str) -> None:
        """Raise FormatError, with what was found and expected in the field, unless it is valid."""
        if not is_valid:
            raise FormatError(file, row_offset, f"{field} of kernel {kernel.name!r}", str(found), expected)

    check((kernel.reason is Reason.PROBED) == bool(kernel.twin), "twin", repr(kernel.twin), "one if it is probed")
    # Without a twin, the image and the block size mean nothing.
    if kernel.twin:
        # image and capped are indices of images.
        check(max(kernel.image, kernel.capped) < images, "images", (kernel.image, kernel.capped), f"below {images}")
        expected_size = block_size(maps, len(kernel.variables))
        sizes = [expected_size, *([] if kernel.variables else [expected_size + BLOCK_EXTENTS])]
        check(kernel.block_size in sizes, "block_size", kernel.block_size, " or ".join(map(str, sizes)))
    largest = max(kernel.block_offset, kernel.block_size)
    check(largest <= _MAX_ON_STACK, "probe block", largest, f"at most {_MAX_ON_STACK}")
    # The program's parameters come before the probe block, and each has at least a byte.
    check(len(kernel.parameters) <= kernel.block_offset, "parameters", len(kernel.parameters), "one a byte")
    for offset, size in kernel.parameters:
        end = offset + size
        check(end <= kernel.block_offset, "parameter", end, f"to end by {kernel.block_offset}")
    # The hook writes these files into the kernel's folder of a trace: their names must not be hidden or lead out of it.
    for file_name in kernel.files:
        check(file_name[:1] not in {"", "."} and "/" not in file_name, "file name", repr(file_name), "a name")


def _kernel(reader: _Reader, row_offset: int, row: np.void) -> KernelEntry:
    """Read a row of the table of kernels, with the texts, files and tables that it points to.

    row_offset: for error messages. Raises FormatError when one of these leaves the entry, or a required one is missing.
    """

    def optional_text(member: str) -> str:
        """Return the text that a member of the row points to; "" if it points nowhere."""
        # An offset of 0, where the header is, means that there is no text.
        offset = int(row[member])
        return reader.text(offset, member) if offset else ""

    if not int(row["name_offset"]):
        raise FormatError(reader.name, row_offset, "name of a kernel", "none", "an offset")
    if int(row["twin_offset"]) and not optional_text("twin_offset"):
        raise FormatError(reader.name, row_offset, "twin of kernel", "an empty name", "a name")
    # _value2member_map_ has the values of all members of the enumeration.
    if int(row["reason"]) not in Reason._value2member_map_:
        raise FormatError(reader.name, row_offset, "reason", str(int(row["reason"])), f"at most {max(Reason)}")
    fewer = int(row["fewer_blocks"])
    if fewer > max(FewerBlocks):
        raise FormatError(reader.name, row_offset, "fewer_blocks", str(fewer), f"at most {max(FewerBlocks)}")
    if int(row["lanes"]) not in (0, *WARP_SIZES):
        raise FormatError(reader.name, row_offset, "lanes", str(int(row["lanes"])), "32 or 64")
    files = reader.table(TWIN_FILE, int(row["files_offset"]), int(row["files"]), "files")
    parameters = reader.table(TWIN_PARAMETER, int(row["parameters_offset"]), int(row["parameters"]), "parameters")
    variables_offset = int(row["variables_offset"])
    if variables_offset % _TABLE_ALIGN:
        raise FormatError(reader.name, variables_offset, "variables", "an odd offset", f"a multiple of {_TABLE_ALIGN}")
    variables_size = _VARIABLE.itemsize * int(row["variables"])
    variables = np.frombuffer(reader.span(variables_offset, variables_size, "variables"), _VARIABLE)
    # An offset of 0 means that there is no text, and these names are never missing.
    if not variables.all() or not all(int(file["name_offset"]) for file in files):
        raise FormatError(reader.name, row_offset, "name of a variable or file", "none", "an offset")
    return KernelEntry(
        name=reader.text(int(row["name_offset"]), "name"),
        reason=Reason(int(row["reason"])),
        detail=optional_text("detail_offset"),
        twin=optional_text("twin_offset"),
        parameters=tuple((int(parameter["offset"]), int(parameter["size"])) for parameter in parameters),
        variables=tuple(reader.text(int(offset), "variable") for offset in variables),
        block_offset=int(row["block_offset"]),
        block_size=int(row["block_size"]),
        image=int(row["image"]),
        capped=int(row["capped"]),
        fewer_blocks=FewerBlocks(fewer),
        lanes=int(row["lanes"]) or (LANES if row["twin_offset"] else 0),
        files={
            reader.text(int(file["name_offset"]), "file name"): reader.span(
                int(file["offset"]), int(file["size"]), "file"
            )
            for file in files
        },
    )
