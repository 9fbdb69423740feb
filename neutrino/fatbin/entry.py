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
    """Bytes of the entry at that place if it is one as all known toolkits write them and lies before the end, else
    None."""
    if end - begin < _HEADER.size:
        return None
    _, version, header_size, payload_size, *_ = _HEADER.unpack_from(data, begin)
    size: int = header_size + payload_size
    known = version == _VERSION and _HEADER.size <= header_size <= _MAX_HEADER and size % 8 == 0
    return size if known and size <= end - begin else None


def read_entry(cursor: Cursor, index: int) -> Image:
    """The entry under the cursor, which advances past it. Raises FormatError for impossible sizes."""
    begin = cursor.position
    (number, _, header_size, payload_size, compressed_size, options_offset, minor, major, arch, name_offset,
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
    compression = Compression.ZSTD if flags & FLAG_ZSTD else Compression.LZ4 if flags & FLAG_LZ4 else Compression.NONE
    encoded = compressed_size > 0 or compression is not Compression.NONE
    inner = Cursor(memoryview(header), cursor.file, base=cursor.base + begin)
    kind = _KINDS.get(number, ImageKind.UNKNOWN)
    options = ""
    identifier = ""
    if kind is not ImageKind.UNKNOWN:
        if name_offset:
            identifier = _text(inner, name_offset, name_size, "name")
        if kind is ImageKind.PTX and options_offset:
            inner.seek(options_offset, "offset of the options")
            text_offset, text_size = inner.unpack(_OPTIONS, "options")
            options = _text(inner, text_offset, text_size, "options")
    suffix = "a" if flags & FLAG_ARCH_A else "f" if flags & FLAG_ARCH_F else ""
    return Image(
        index=index,
        kind=kind,
        arch=f"sm_{arch}{suffix}" if arch else "",
        compression=compression,
        offset=cursor.base + begin,
        stored_size=compressed_size if encoded else payload_size,
        options=options,
        version=(major, minor),
        flags=flags,
        identifier=identifier,
        obfuscated=encoded and bool(flags & FLAG_OBFUSCATED),
        file=cursor.file,
        header=header,
        payload=payload,
        encoded_size=compressed_size if encoded else None,
        decoded_size=uncompressed_size if encoded else payload_size,
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
    """A new entry, byte for byte as ``fatbinary`` 13.0 writes it (LZ4 apart, where the encoders differ).

    payload: PTX text, a cubin or LTO IR. arch: as ``sm_90a`` (``compute_90a`` means the same). version: of
    the PTX ISA, looked at for PTX only. options: the ``ptxas`` command line to store with PTX, None for no
    such area. level: of ZSTD. flags: further flags; those of compression and of the architecture's suffix are
    added. Raises ValueError for what the format cannot say and FormatError for a cubin that is none.
    """
    if kind not in _KIND_NUMBERS:
        raise ValueError(f"a CUDA container has no entry for {kind.value}")
    parts = _ARCH.fullmatch(arch)
    if parts is None:
        raise ValueError(f"{arch!r} is not an architecture, expected one such as sm_90a")
    if options is not None and kind is not ImageKind.PTX:
        raise ValueError(f"options are stored with PTX only, not with {kind.value}")
    number, suffix = int(parts[1]), parts[2]
    flags |= _SUFFIX_FLAGS[suffix]
    compatibility = b""
    if kind is ImageKind.CUBIN:
        # Here, because reading needs nothing of it.
        from neutrino.sass.cubin import cubin_compatibility

        if payload[:4] == ELF_MAGIC:
            version = (1, payload[_EI_ABIVERSION])
        if number >= _FIRST_WITH_COMPATIBILITY:
            compatibility = cubin_compatibility(payload, "new cubin")
    elif kind is ImageKind.NVVM:
        version = (1, 65)
    else:
        payload = payload.rstrip(b"\0") + b"\0"
        if payload.count(b"\0") > 1:
            raise ValueError("PTX text with a NUL in it, which would end it there")
    if len(payload) > MAX_DECODED:
        raise ValueError(f"a payload of {len(payload)} bytes, more than the {MAX_DECODED} that are read back")

    header = bytearray(_HEADER.size)
    name_offset = options_offset = 0
    name = identifier.encode("latin-1")
    if name:
        name_offset = len(header)
        header += _padded(name + b"\0")
    if compatibility:
        flags |= FLAG_COMPATIBILITY
        options_offset = len(header)
        header += _OPTIONS.pack(options_offset + 8, len(compatibility)) + _padded(b"\0" + compatibility)
    elif options is not None:
        text = options.encode("latin-1")
        options_offset = len(header)
        header += _OPTIONS.pack(options_offset + 8, len(text)) + _padded(text + b"\0")

    stored = compress(payload, compression, level)
    compressed_size = uncompressed_size = 0
    if compression is not Compression.NONE:
        flags |= FLAG_LZ4 if compression is Compression.LZ4 else FLAG_ZSTD
        compressed_size, uncompressed_size = len(stored), len(payload)
    stored = _padded(stored)
    major, minor = version
    _HEADER.pack_into(
        header, 0, _KIND_NUMBERS[kind], _VERSION, len(header), len(stored), compressed_size, options_offset,
        minor, major, number, name_offset, len(name), flags, 0, uncompressed_size,
    )  # fmt: skip
    return bytes(header) + stored


def _text(header: Cursor, offset: int, size: int, field: str) -> str:
    header.seek(offset, f"offset of the {field}")
    return bytes(header.take(size, field)).decode("latin-1")


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)
