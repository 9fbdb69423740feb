"""The PTX in an image that a program hands to the driver: plain text, or a CUDA fat binary container of entries."""

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
    """Why the driver refuses an image, as its error code (CUresult)."""

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
    """An entry of a container: PTX or machine code for one architecture.

    kind: _KIND_PTX, _KIND_CUBIN or another. arch: 90 for sm_90. flags: _FLAG_…. payload: its content, compressed if
    the flags say so. uncompressed_size: in bytes, of the content.
    """

    kind: int
    arch: int
    flags: int
    payload: memoryview
    uncompressed_size: int

    @property
    def rank(self) -> int:
        """How well an entry suits the device: the driver takes the highest rank; -1 for an entry that it cannot take.

        A newer architecture is better, then a more specific form of it (sm_90a, then sm_90f, then sm_90). The specific
        forms run only on their own architecture.
        """
        # Only NVIDIA's driver can read obfuscated PTX.
        if self.kind != _KIND_PTX or self.flags & _FLAG_OBFUSCATED or self.arch > DEVICE_ARCH:
            return -1
        specificity = 0
        if self.flags & _FLAG_ARCH_SPECIFIC:
            specificity = 2
        elif self.flags & _FLAG_ARCH_FAMILY:
            specificity = 1
        if specificity and self.arch != DEVICE_ARCH:
            return -1
        # The factor leaves room for the specificity, so that the architecture counts first.
        return self.arch * 4 + specificity


def find_ptx(image: bytes) -> str:
    """Return the PTX text in an image that the device would run.

    Raise ImageError, with the driver's error code, if there is none or the image is malformed.
    """
    if image.startswith(_ELF):
        raise ImageError(ImageFault.NO_BINARY, "the image is machine code only (a cubin); the device runs PTX")
    # A container begins with its magic number, a 32-bit word.
    if len(image) >= 4 and int.from_bytes(image[:4], "little") == _CONTAINER_MAGIC:
        return _ptx_from_container(memoryview(image))
    return _decode_text(image)


def _decode_text(data: bytes) -> str:
    """Return PTX bytes, which may end with zero bytes, as text.

    Raise ImageError if they are no PTX or the device's driver would refuse their version or target.
    """
    try:
        text = data.rstrip(b"\0").decode()
    except UnicodeDecodeError as error:
        raise ImageError(ImageFault.INVALID, f"the image is neither a container nor text: {error}") from error
    if ".version" not in text:
        raise ImageError(ImageFault.INVALID, "the image is neither a container nor PTX")
    _check_version_and_target(text)
    return text


def _check_version_and_target(text: str) -> None:
    """Check the .version and .target directives of a PTX text, as the driver does before it reads any statement.

    Raise ImageError if the version is too new, has no such target, or the target is not for the device.
    """
    # Without a .version at the start of a line there is none to check. (Both of these are None then; the conditions
    # name both for the type checker.)
    version_match = _VERSION.search(text)
    version = (int(version_match[1]), int(version_match[2])) if version_match is not None else None
    if version_match is not None and version is not None and version > PTX_ISA:
        newest = ".".join(map(str, PTX_ISA))
        message = f"PTX version {version_match[1]}.{version_match[2]}, and the newest that is known is {newest}"
        raise ImageError(ImageFault.UNSUPPORTED_PTX_VERSION, message)

    target_match = _TARGET.search(text)
    if target_match is None:
        raise ImageError(ImageFault.INVALID_PTX, "the PTX has no .target sm_NN")
    arch_digits, suffix = target_match.groups()
    arch = int(arch_digits)
    # The forms of the device's own architecture with a suffix (sm_90a) came with PTX 8.0. Targets before sm_50 are not
    # in the table, and any version is right for them.
    first_isa = (8, 0) if suffix and arch == DEVICE_ARCH else _FIRST_ISA.get(arch, (1, 0))
    if version_match is not None and version is not None and version < first_isa:
        message = (
            f"PTX version {version_match[1]}.{version_match[2]} knows no sm_{arch}{suffix}:"
            f" {first_isa[0]}.{first_isa[1]} does"
        )
        raise ImageError(ImageFault.INVALID_PTX, message)
    if arch > DEVICE_ARCH or (suffix and arch != DEVICE_ARCH):
        message = f"PTX for sm_{arch_digits}{suffix}, and the device is an sm_{DEVICE_ARCH}"
        raise ImageError(ImageFault.INVALID_PTX, message)


def _ptx_from_container(data: memoryview) -> str:
    """Return the PTX text of a container's entry that suits the device best. Raise ImageError if none does."""
    entries = _read_entries(data)
    best = max(entries, key=lambda entry: entry.rank, default=None)
    if best is not None and best.rank >= 0:
        return _decode_text(_decompress(best))
    # Nothing fits; say why.
    kinds = sorted({entry.kind for entry in entries})
    if kinds == [_KIND_CUBIN]:
        raise ImageError(ImageFault.NO_BINARY, "the image holds machine code only (cubins); the device runs PTX")
    archs = ", ".join(f"sm_{entry.arch}" for entry in entries if entry.kind == _KIND_PTX)
    reason = f"its PTX is for {archs}" if archs else "it holds none"
    raise ImageError(ImageFault.NO_BINARY, f"the image has no PTX for sm_{DEVICE_ARCH} or older: {reason}")


def _read_entries(data: memoryview) -> list[_Entry]:
    """Return the entries of a container (header, then entries one after the other).

    Raise ImageError if the container exceeds the image, or an entry exceeds the container.
    """
    # The caller has checked no more than the magic number.
    if len(data) < _CONTAINER.size:
        raise ImageError(ImageFault.INVALID, f"container header: {len(data)} bytes, expected {_CONTAINER.size}")
    _, _, header_size, size = _CONTAINER.unpack_from(data)
    end = header_size + size
    if header_size < _CONTAINER.size or end > len(data):
        raise ImageError(ImageFault.INVALID, f"container of {end} bytes in an image of {len(data)}")
    entries = []
    offset = header_size
    while offset + _ENTRY.size <= end:
        fields = _ENTRY.unpack_from(data, offset)
        kind, _, entry_header_size, payload_size, compressed_size, _, _, _, arch, _, _, flags, _, uncompressed = fields
        # The payload follows the entry's header, which may be longer than the part that is known.
        start = offset + entry_header_size
        if entry_header_size < _ENTRY.size or payload_size > end - start or compressed_size > payload_size:
            raise ImageError(ImageFault.INVALID, f"entry at {offset:#x} reaches beyond its container")
        # A compressed payload may be followed by padding.
        stored_size = compressed_size if flags & (_FLAG_LZ4 | _FLAG_ZSTD) else payload_size
        entries.append(_Entry(kind, arch, flags, data[start : start + stored_size], uncompressed))
        offset = start + payload_size
    return entries


def _decompress(entry: _Entry) -> bytes:
    """Return the uncompressed payload of an entry.

    Raise ImageError if it does not decompress, or claims to be larger than any image that the device takes.
    """
    # A damaged or malicious size must not exhaust the memory.
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
