"""Containers: what holds images. A CUDA fatbin, or a bare image that is a file of its own."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from neutrino.errors import FormatError
from neutrino.fatbin.compression import Compression
from neutrino.fatbin.cubin import cubin_arch
from neutrino.fatbin.cursor import Cursor
from neutrino.fatbin.elf import EM_AMDGPU, EM_CUDA, Elf
from neutrino.fatbin.elf import MAGIC as ELF_MAGIC
from neutrino.fatbin.entry import read_entry
from neutrino.fatbin.image import Image, ImageKind
from neutrino.fatbin.ptxscan import is_ptx, ptx_target

CUDA_FATBIN = "cuda-fatbin"
FILE = "file"

_HEADER = struct.Struct("<IHHQ")
_MAGIC = 0xBA55ED50
_MAGIC_BYTES = struct.pack("<I", _MAGIC)
_VERSION = 1
_FOREIGN = {
    struct.pack("<I", 0x1EE55A01): "a fatbin of the format before CUDA 5",
    struct.pack("<I", 0x466243B1): "a fatbin wrapper, which only points to the container",
    b"!<ar": "an archive",
    b"!<th": "a thin archive",
    b"__CL": "an offload bundle of clang",
    b"CCOB": "a compressed offload bundle of clang",
}
_BITCODE_MAGIC = b"BC\xc0\xde"
_NOT_ZERO = re.compile(rb"[^\0]")


@dataclass(frozen=True)
class Container:
    """Images that belong together: those of one translation unit, or one bare image.

    kind: ``cuda-fatbin`` or ``file``. section: of the host ELF, empty if none. offset, size: in the file, in
    bytes. header: the container's own, empty for ``file``. trailing: bytes behind it that were handed over
    with it.
    """

    index: int
    kind: str
    section: str
    offset: int
    size: int
    images: tuple[Image, ...]
    header: bytes = field(default=b"", repr=False)
    trailing: bytes = field(default=b"", repr=False)


def read_container(data: bytes | memoryview, name: str) -> Container:
    """Read what a program hands to the driver: a fatbin container, a cubin, or PTX text that may end in NUL.

    name: what data are, for error messages. Images refer to data, so they must not change. Raises
    FormatError.
    """
    view = memoryview(data)
    if bytes(view[:4]) != _MAGIC_BYTES:
        return read_bare(view, name)
    cursor = Cursor(view, name)
    container = _read_fatbin(cursor, 0, "")
    return replace(container, trailing=bytes(cursor.take(cursor.remaining, "rest")))


def read_bare(data: memoryview, name: str) -> Container:
    """A file or buffer that is one image: one container of kind ``file``. Raises FormatError for anything
    else."""
    magic = bytes(data[:4])
    if magic == ELF_MAGIC:
        machine = Elf(data, name).machine
        if machine == EM_CUDA:
            return _bare(data, name, ImageKind.CUBIN, cubin_arch(data, name))
        if machine == EM_AMDGPU:
            return _bare(data, name, ImageKind.CODE_OBJECT, "")
        known = f"{EM_CUDA} (CUDA) or {EM_AMDGPU} (AMD GPU)"
        raise Cursor(data, name).error("e_machine", str(machine), known, at=0x12)
    if magic == _BITCODE_MAGIC:
        return _bare(data, name, ImageKind.BITCODE, "")
    if is_ptx(data):
        return _bare(data, name, ImageKind.PTX, ptx_target(data))
    found = _FOREIGN.get(magic) or (magic.hex(" ") if magic else "empty")
    expected = "a fatbin container, a cubin, or PTX text (it begins with .version)"
    raise FormatError(name, 0, "content", found, expected)


def read_fatbins(cursor: Cursor, section: str, first_index: int = 0) -> Iterator[Container]:
    """Every container between the cursor and its end, with zero bytes between them. Raises FormatError."""
    index = first_index
    while cursor.remaining:
        begin = cursor.position
        found = _NOT_ZERO.search(cursor.data, begin, cursor.end)
        if found is None:
            return
        # Containers are 8-aligned in their section, and the magic does not begin with a zero byte.
        cursor.seek(begin + (found.start() - begin) // 8 * 8, "container")
        yield _read_fatbin(cursor, index, section)
        index += 1


def is_fatbin(data: memoryview, offset: int = 0) -> bool:
    """Whether a CUDA container's magic is at that offset."""
    return bytes(data[offset : offset + 4]) == _MAGIC_BYTES


def write_container(container: Container) -> bytes:
    """The container's bytes. Of a container as it was read they are the bytes that it was read from.

    Images may have been exchanged (``dataclasses.replace``): the container's size field is made to fit.
    """
    body = b"".join(part for image in container.images for part in (image.header, bytes(image.payload)))
    header = container.header
    if header:
        header = header[:8] + struct.pack("<Q", len(body)) + header[16:]
    return header + body + container.trailing


def build_container(entries: Iterable[bytes]) -> bytes:
    """A new CUDA container of entries made by ``build_entry``, as ``fatbinary`` writes it."""
    body = b"".join(entries)
    return _HEADER.pack(_MAGIC, _VERSION, _HEADER.size, len(body)) + body


def _read_fatbin(cursor: Cursor, index: int, section: str) -> Container:
    begin = cursor.position
    magic, version, header_size, body_size = cursor.unpack(_HEADER, "container header")
    if magic != _MAGIC:
        found = _FOREIGN.get(struct.pack("<I", magic), f"{magic:#010x}")
        raise cursor.error("container magic", found, f"{_MAGIC:#010x}", at=begin)
    if version != _VERSION:
        raise cursor.error("container version", str(version), str(_VERSION), at=begin + 4)
    if header_size < _HEADER.size:
        raise cursor.error("container header_size", str(header_size), f"at least {_HEADER.size}", at=begin + 6)
    cursor.seek(begin, "container")
    header = bytes(cursor.take(header_size, "container header"))
    body = cursor.position
    cursor.take(body_size, "container")
    entries = Cursor(cursor.data, cursor.file, start=body, end=cursor.position, base=cursor.base)
    images: list[Image] = []
    while entries.remaining:
        images.append(read_entry(entries, len(images)))
    return Container(index, CUDA_FATBIN, section, cursor.base + begin, header_size + body_size, tuple(images), header)


def _bare(data: memoryview, name: str, kind: ImageKind, arch: str) -> Container:
    image = Image(
        index=0,
        kind=kind,
        arch=arch,
        compression=Compression.NONE,
        offset=0,
        stored_size=len(data),
        options="",
        version=(0, 0),
        flags=0,
        identifier="",
        obfuscated=False,
        file=name,
        header=b"",
        payload=data,
        encoded_size=None,
        decoded_size=len(data),
    )
    return Container(0, FILE, "", 0, len(data), (image,))
