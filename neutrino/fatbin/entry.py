"""One entry of a CUDA container: a header, then an image's payload.

The header is 0x40 bytes (0x48 from nvcc 12.4 and libnvfatbin), then the source file's name and the options,
each if there is one; ``header_size`` counts all of it. NVIDIA documents none of this: it was learned from
what ``fatbinary`` writes and ``cuobjdump`` reads, CUDA 11.7 to 13.5.
"""

from __future__ import annotations

import re
import struct

from neutrino.elf.constants import MAGIC as ELF_MAGIC
from neutrino.elf.cursor import Cursor
from neutrino.fatbin.compression import MAX_DECODED, Compression, compress
from neutrino.fatbin.image import Image, ImageKind

FLAG_64_BIT = 0x1
FLAG_DEBUG = 0x2
FLAG_HOST_LINUX = 0x10
FLAG_LZ4 = 0x2000
FLAG_ZSTD = 0x8000
FLAG_OBFUSCATED = 0x10000
FLAG_ARCH_A = 0x100000
FLAG_ARCH_F = 0x200000
FLAG_COMPATIBILITY = 0x1000000
"""The options area of a cubin's entry repeats the cubin's ``.nv.compat``."""

_HEADER = struct.Struct("<HHIQIIHHIIIQQQ")
_VERSION = 0x0101
_MAX_HEADER = 1 << 20
"""Bytes of a header, which is copied: it holds a source file's name and a command line."""
_KINDS = {1: ImageKind.PTX, 2: ImageKind.CUBIN, 8: ImageKind.NVVM}
_KIND_NUMBERS = {kind: number for number, kind in _KINDS.items()}
_OPTIONS = struct.Struct("<II")
_ARCH = re.compile(r"(?:sm|compute|lto)_(\d+)([af]?)")
_SUFFIX_FLAGS = {"": 0, "a": FLAG_ARCH_A, "f": FLAG_ARCH_F}
_FIRST_WITH_COMPATIBILITY = 100
"""The lowest SM for whose cubins ``fatbinary`` repeats ``.nv.compat``."""
_EI_ABIVERSION = 8


def entry_extent(data: memoryview, begin: int, end: int) -> int | None:
    """Return the size in bytes of the container entry at ``data[begin:]``, or None if no plausible entry is there.

    Plausible means: it has the version and header size that all known toolkits write, is padded to 8 bytes, and ends
    at ``end`` or before it. Only the header is read.
    """
    if end - begin < _HEADER.size:
        return None
    _, version, header_size, payload_size, *_ = _HEADER.unpack_from(data, begin)
    size: int = header_size + payload_size
    is_plausible = version == _VERSION and _HEADER.size <= header_size <= _MAX_HEADER and size % 8 == 0
    return size if is_plausible and size <= end - begin else None


def read_entry(cursor: Cursor, index: int) -> Image:
    """Read the container entry at the cursor, and advance the cursor past it.

    index: of the image in its container. Raises FormatError for sizes or offsets that leave the entry or the file.
    """
    begin = cursor.position
    # Errors name the fields' places in the header: header_size at 4, compressed_size at 0x10.
    (kind_number, _, header_size, payload_size, compressed_size, options_offset, minor, major, arch, name_offset,
     name_size, flags, _, uncompressed_size) = cursor.unpack(_HEADER, "entry header")  # fmt: skip
    if header_size < _HEADER.size:
        raise cursor.error("header_size", str(header_size), f"at least {_HEADER.size}", at=begin + 4)
    if header_size > _MAX_HEADER:
        raise cursor.error("header_size", str(header_size), f"at most {_MAX_HEADER}", at=begin + 4)
    cursor.seek(begin, "entry")
    header = bytes(cursor.take(header_size, "entry header with name and options (header_size)"))
    payload = cursor.take(payload_size, "payload (payload_size)")
    if compressed_size > payload_size:
        raise cursor.error("compressed_size", str(compressed_size), f"at most {payload_size}", at=begin + 0x10)

    compression = Compression.NONE
    if flags & FLAG_ZSTD:
        compression = Compression.ZSTD
    elif flags & FLAG_LZ4:
        compression = Compression.LZ4
    # A compressed size without one of these flags is an error, but only when the payload is decoded (Image.data).
    is_encoded = compressed_size > 0 or compression is not Compression.NONE
    kind = _KINDS.get(kind_number, ImageKind.UNKNOWN)

    # The source file's name and the options lie in the part of the header whose length varies. What an unknown kind of
    # image has there is unknown too.
    header_cursor = Cursor(memoryview(header), cursor.file, base=cursor.base + begin)
    options = ""
    identifier = ""
    if kind is not ImageKind.UNKNOWN:
        if name_offset:
            identifier = _text(header_cursor, name_offset, name_size, "name")
        # In the entry of a cubin this part has the cubin's .nv.compat instead.
        if kind is ImageKind.PTX and options_offset:
            header_cursor.seek(options_offset, "offset of the options")
            text_offset, text_size = header_cursor.unpack(_OPTIONS, "options")
            options = _text(header_cursor, text_offset, text_size, "options")
    suffix = ""
    if flags & FLAG_ARCH_A:
        suffix = "a"
    elif flags & FLAG_ARCH_F:
        suffix = "f"
    return Image(
        index=index,
        kind=kind,
        arch=f"sm_{arch}{suffix}" if arch else "",
        compression=compression,
        offset=cursor.base + begin,
        stored_size=compressed_size if is_encoded else payload_size,
        options=options,
        version=(major, minor),
        flags=flags,
        identifier=identifier,
        obfuscated=is_encoded and bool(flags & FLAG_OBFUSCATED),
        file=cursor.file,
        header=header,
        payload=payload,
        encoded_size=compressed_size if is_encoded else None,
        decoded_size=uncompressed_size if is_encoded else payload_size,
    )


def build_entry(
    kind: ImageKind,
    payload: bytes,
    arch: str,
    *,
    version: tuple[int, int] = (8, 0),
    options: str | None = None,
    compression: Compression = Compression.NONE,
    level: int | None = None,
    identifier: str = "",
    flags: int = FLAG_64_BIT | FLAG_HOST_LINUX,
) -> bytes:
    """Build a fatbin entry, byte for byte as ``fatbinary`` 13.0 writes it (except LZ4 data: the encoders differ).

    payload: PTX text, a cubin or LTO IR. arch: such as ``sm_90a`` (``compute_90a`` means the same). version: of
    the PTX ISA, used for PTX only. options: the ``ptxas`` command line to store with PTX, None to store none.
    level: of ZSTD. identifier: the source file's name, empty for none. flags: further flags; those of compression and
    of the architecture's suffix are added. Raises ValueError for what the format cannot represent, and FormatError for
    a cubin that is not a valid one.
    """
    if kind not in _KIND_NUMBERS:
        raise ValueError(f"a CUDA container has no entry for {kind.value}")
    arch_match = _ARCH.fullmatch(arch)
    if arch_match is None:
        raise ValueError(f"{arch!r} is not an architecture, expected one such as sm_90a")
    if options is not None and kind is not ImageKind.PTX:
        raise ValueError(f"options are stored with PTX only, not with {kind.value}")
    arch_number, suffix = int(arch_match[1]), arch_match[2]
    flags |= _SUFFIX_FLAGS[suffix]
    payload, version = _normalized_payload(kind, payload, version)
    compatibility = b""
    if kind is ImageKind.CUBIN and arch_number >= _FIRST_WITH_COMPATIBILITY:
        # Imported here because only writing needs it; this module is also imported for reading.
        from neutrino.sass.cubin import cubin_compatibility

        compatibility = cubin_compatibility(payload, "new cubin")
    if len(payload) > MAX_DECODED:
        raise ValueError(f"a payload of {len(payload)} bytes, more than the {MAX_DECODED} that are read back")

    # The header: its fixed part, filled in last, then the name and the options, each padded to 8 bytes.
    header = bytearray(_HEADER.size)
    name_offset = options_offset = 0
    name = identifier.encode("latin-1")
    if name:
        name_offset = len(header)
        header += _padded(name + b"\0")
    if compatibility:
        flags |= FLAG_COMPATIBILITY
        options_offset = len(header)
        # As fatbinary writes it: a NUL comes before the content, and the offset is that of the NUL.
        header += _OPTIONS.pack(options_offset + _OPTIONS.size, len(compatibility)) + _padded(b"\0" + compatibility)
    elif options is not None:
        text = options.encode("latin-1")
        options_offset = len(header)
        header += _OPTIONS.pack(options_offset + _OPTIONS.size, len(text)) + _padded(text + b"\0")

    stored = compress(payload, compression, level)
    # Both stay 0 in an uncompressed entry.
    compressed_size = uncompressed_size = 0
    if compression is not Compression.NONE:
        flags |= FLAG_LZ4 if compression is Compression.LZ4 else FLAG_ZSTD
        compressed_size, uncompressed_size = len(stored), len(payload)
    stored = _padded(stored)
    major, minor = version
    _HEADER.pack_into(
        header, 0, _KIND_NUMBERS[kind], _VERSION, len(header), len(stored), compressed_size, options_offset,
        minor, major, arch_number, name_offset, len(name), flags, 0, uncompressed_size,
    )  # fmt: skip
    return bytes(header) + stored


def _normalized_payload(kind: ImageKind, payload: bytes, version: tuple[int, int]) -> tuple[bytes, tuple[int, int]]:
    """Return the payload to store, and the version (major, minor) that its entry states, as ``fatbinary`` has them.

    PTX text gets exactly one NUL at its end, and keeps its version. Raises ValueError for PTX with another NUL in it.
    """
    if kind is ImageKind.CUBIN:
        # (1, the byte EI_ABIVERSION of the ELF header), as fatbinary writes it.
        if payload[:4] == ELF_MAGIC:
            version = (1, payload[_EI_ABIVERSION])
    elif kind is ImageKind.NVVM:
        # The constant that fatbinary 13.0 writes for LTO IR.
        version = (1, 65)
    else:
        payload = payload.rstrip(b"\0") + b"\0"
        if payload.count(b"\0") > 1:
            raise ValueError("PTX text with a NUL in it, which would end it there")
    return payload, version


def _text(header: Cursor, offset: int, size: int, field: str) -> str:
    """Read ``size`` bytes of text at ``offset`` of an entry's header. field: its name in error messages."""
    header.seek(offset, f"offset of the {field}")
    return bytes(header.take(size, field)).decode("latin-1")


def _padded(data: bytes) -> bytes:
    """Return data with zeros appended to a multiple of 8 bytes."""
    return data + bytes(-len(data) % 8)
