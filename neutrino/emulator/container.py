"""The PTX in an image that a program hands to the driver: plain text, or a CUDA container of entries."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from enum import IntEnum

import lz4.block
import zstandard

from neutrino.errors import EmulatorError

DEVICE_ARCH = 90
"""The device takes PTX for this architecture, its ``a`` and ``f`` forms, and for older ones without a suffix."""
PTX_ISA = (9, 0)
"""The newest version of PTX that the device takes: CUDA 13.0's."""
# PTX ISA 9.0, section 13 (release notes): the version that brought a target.
_FIRST_ISA = {
    50: (4, 0), 52: (4, 1), 53: (4, 2), 60: (5, 0), 61: (5, 0), 62: (5, 0), 70: (6, 0), 72: (6, 1), 75: (6, 3),
    80: (7, 0), 86: (7, 1), 87: (7, 4), 89: (7, 8), 90: (7, 8),
}  # fmt: skip

_ELF = b"\x7fELF"
_CONTAINER = struct.Struct("<IHHQ")  # magic, version, header size, size of what follows
_CONTAINER_MAGIC = 0xBA55ED50
# kind, version, header size, payload size, compressed size, …, architecture, …, flags, …, uncompressed size:
# learned from what NVIDIA's fatbinary writes; nothing documents it.
_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
_KIND_PTX = 1
_KIND_CUBIN = 2
_FLAG_LZ4 = 0x2000
_FLAG_ZSTD = 0x8000
_FLAG_OBFUSCATED = 0x10000
_FLAG_ARCH_SPECIFIC = 0x100000
_FLAG_ARCH_FAMILY = 0x200000
_LARGEST = 1 << 28
_VERSION = re.compile(r"^\s*\.version\s+(\d+)\.(\d+)", re.MULTILINE)
_TARGET = re.compile(r"^\s*\.target\s+sm_(\d+)([af]?)\b", re.MULTILINE)


class ImageFault(IntEnum):
    """Why an image is not taken, as the driver's error."""

    INVALID = 200
    NO_BINARY = 209
    INVALID_PTX = 218
    UNSUPPORTED_PTX_VERSION = 222


class ImageError(EmulatorError):
    """An image without PTX for the device. fault: the driver's error that says so."""

    def __init__(self, fault: ImageFault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


@dataclass(frozen=True)
class _Entry:
    kind: int
    arch: int
    flags: int
    payload: memoryview
    uncompressed_size: int

    @property
    def rank(self) -> int:
        """Which entry the driver would rather take; negative for one that it cannot."""
        if self.kind != _KIND_PTX or self.flags & _FLAG_OBFUSCATED or self.arch > DEVICE_ARCH:
            return -1
        suffix = 2 if self.flags & _FLAG_ARCH_SPECIFIC else 1 if self.flags & _FLAG_ARCH_FAMILY else 0
        return -1 if suffix and self.arch != DEVICE_ARCH else self.arch * 4 + suffix


def find_ptx(image: bytes) -> str:
    """The PTX text that the device runs. ImageError: there is none, or the image is broken."""
    if image.startswith(_ELF):
        raise ImageError(ImageFault.NO_BINARY, "the image is machine code only (a cubin); the device runs PTX")
    if len(image) >= 4 and int.from_bytes(image[:4], "little") == _CONTAINER_MAGIC:
        return _from_container(memoryview(image))
    return _text(image)


def _text(data: bytes) -> str:
    try:
        text = data.rstrip(b"\0").decode()
    except UnicodeDecodeError as error:
        raise ImageError(ImageFault.INVALID, f"the image is neither a container nor text: {error}") from error
    if ".version" not in text:
        raise ImageError(ImageFault.INVALID, "the image is neither a container nor PTX")
    _check(text)
    return text


def _check(text: str) -> None:
    # What a driver of the device's says before it looks at a statement.
    version = _VERSION.search(text)
    if version is not None and (int(version[1]), int(version[2])) > PTX_ISA:
        newest = ".".join(map(str, PTX_ISA))
        said = f"PTX version {version[1]}.{version[2]}, and the newest that is known is {newest}"
        raise ImageError(ImageFault.UNSUPPORTED_PTX_VERSION, said)
    target = _TARGET.search(text)
    if target is None:
        raise ImageError(ImageFault.INVALID_PTX, "the PTX has no .target sm_NN")
    arch = int(target[1])
    first = (8, 0) if target[2] and arch == DEVICE_ARCH else _FIRST_ISA.get(arch, (1, 0))
    if version is not None and (int(version[1]), int(version[2])) < first:
        said = f"PTX version {version[1]}.{version[2]} knows no sm_{arch}{target[2]}: {first[0]}.{first[1]} does"
        raise ImageError(ImageFault.INVALID_PTX, said)
    if arch > DEVICE_ARCH or (target[2] and arch != DEVICE_ARCH):
        said = f"PTX for sm_{target[1]}{target[2]}, and the device is an sm_{DEVICE_ARCH}"
        raise ImageError(ImageFault.INVALID_PTX, said)


def _from_container(data: memoryview) -> str:
    entries = _entries(data)
    best = max(entries, key=lambda entry: entry.rank, default=None)
    if best is not None and best.rank >= 0:
        return _text(_decoded(best))
    kinds = sorted({entry.kind for entry in entries})
    if kinds == [_KIND_CUBIN]:
        raise ImageError(ImageFault.NO_BINARY, "the image holds machine code only (cubins); the device runs PTX")
    archs = ", ".join(f"sm_{entry.arch}" for entry in entries if entry.kind == _KIND_PTX)
    what = f"its PTX is for {archs}" if archs else "it holds none"
    raise ImageError(ImageFault.NO_BINARY, f"the image has no PTX for sm_{DEVICE_ARCH} or older: {what}")


def _entries(data: memoryview) -> list[_Entry]:
    if len(data) < _CONTAINER.size:
        raise ImageError(ImageFault.INVALID, f"container header: {len(data)} bytes, expected {_CONTAINER.size}")
    _, _, header_size, size = _CONTAINER.unpack_from(data)
    end = header_size + size
    if header_size < _CONTAINER.size or end > len(data):
        raise ImageError(ImageFault.INVALID, f"container of {end} bytes in an image of {len(data)}")
    found = []
    at = header_size
    while at + _ENTRY.size <= end:
        fields = _ENTRY.unpack_from(data, at)
        kind, _, entry_header, payload_size, compressed, _, _, _, arch, _, _, flags, _, uncompressed = fields
        start = at + entry_header
        if entry_header < _ENTRY.size or payload_size > end - start or compressed > payload_size:
            raise ImageError(ImageFault.INVALID, f"entry at {at:#x} reaches beyond its container")
        stored = compressed if flags & (_FLAG_LZ4 | _FLAG_ZSTD) else payload_size
        found.append(_Entry(kind, arch, flags, data[start : start + stored], uncompressed))
        at = start + payload_size
    return found


def _decoded(entry: _Entry) -> bytes:
    if entry.uncompressed_size > _LARGEST:
        raise ImageError(ImageFault.INVALID, f"an entry claims {entry.uncompressed_size} bytes")
    try:
        if entry.flags & _FLAG_ZSTD:
            return zstandard.ZstdDecompressor().decompress(entry.payload, max_output_size=entry.uncompressed_size)
        if entry.flags & _FLAG_LZ4:
            return bytes(lz4.block.decompress(entry.payload, uncompressed_size=entry.uncompressed_size))
    except (zstandard.ZstdError, lz4.block.LZ4BlockError) as error:
        raise ImageError(ImageFault.INVALID, f"an entry cannot be decompressed: {error}") from error
    return bytes(entry.payload)
