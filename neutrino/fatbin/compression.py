"""Compression and decompression of payloads."""

from __future__ import annotations

import contextlib
import enum
import importlib

from neutrino.elf.cursor import Cursor

MAX_DECODED = 1 << 30
"""Bytes that a payload may decode to: a corrupt size must not become an allocation."""

_LZ4_MAX_RATIO = 255
"""One byte of an LZ4 length adds at most 255 bytes of output (LZ4 block format, "Format description")."""
_ZSTD_MAX_RATIO = 128 * 1024 // 4
"""The shortest ZSTD block, 3 bytes of header and one of content, gives at most 128 KiB (RFC 8878,
3.1.1.2)."""


class Compression(enum.Enum):
    """Compression of a stored payload. ``ZLIB`` occurs in AMD's bundles only."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"
    ZLIB = "zlib"


def compress(data: bytes, compression: Compression, level: int | None = None) -> bytes:
    """Compress data to an LZ4 block or a ZSTD frame; ``NONE`` returns them unchanged.

    level: of ZSTD; nvcc 13 uses 5 by default, and 19 for ``--compress-mode=size``. Raises ValueError for another
    compression.
    """
    if compression is Compression.LZ4:
        import lz4.block

        block: bytes = lz4.block.compress(data, mode="high_compression", store_size=False)
        return block
    if compression is Compression.ZSTD:
        import zstandard

        return zstandard.ZstdCompressor(level=5 if level is None else level).compress(data)
    if compression is Compression.NONE:
        return data
    raise ValueError(f"CUDA containers have no {compression.value} compression")


def decompress(cursor: Cursor, size: int, compression: Compression) -> bytes:
    """Decode all data from the cursor to its end, as LZ4 or else ZSTD.

    size: of the decoded data, in bytes. Raises FormatError if the data are damaged or decode to another size.
    """
    # The size comes from the file: it is checked before anything of that size is allocated.
    encoded = cursor.data[cursor.position : cursor.end]
    ratio = _LZ4_MAX_RATIO if compression is Compression.LZ4 else _ZSTD_MAX_RATIO
    limit = min(MAX_DECODED, len(encoded) * ratio)
    if size > limit:
        raise cursor.error("uncompressed_size", str(size), f"at most {limit} for a payload of {len(encoded)} bytes")
    decoded = _lz4(cursor, encoded, size) if compression is Compression.LZ4 else _zstd(cursor, encoded, size)
    if len(decoded) != size:
        raise cursor.error("payload", f"{len(decoded)} bytes when decoded", f"{size} bytes (uncompressed_size)")
    return decoded


def prepare() -> None:
    """Import what decodes payloads, so that forked processes need not. What is not there is asked for later."""
    for name in ("lz4.block", "zstandard"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _lz4(cursor: Cursor, encoded: memoryview, size: int) -> bytes:
    """Decode an LZ4 block of at most ``size`` decoded bytes. Raises FormatError for a damaged one."""
    import lz4.block

    try:
        decoded: bytes = lz4.block.decompress(encoded, uncompressed_size=size)
    except lz4.block.LZ4BlockError as error:
        raise cursor.error("payload", f"damaged ({error})", "an LZ4 block") from error
    return decoded


def _zstd(cursor: Cursor, encoded: memoryview, size: int) -> bytes:
    """Decode a ZSTD frame of at most ``size`` decoded bytes. Raises FormatError for a damaged one."""
    import zstandard

    try:
        # The decoder allocates as much as the frame states, so that is checked first.
        stated_size = zstandard.get_frame_parameters(encoded).content_size
        if stated_size not in (size, zstandard.CONTENTSIZE_UNKNOWN):
            raise cursor.error("ZSTD content size", str(stated_size), f"{size} (uncompressed_size)")
        # A max_output_size of 0 would mean no limit.
        return zstandard.ZstdDecompressor().decompress(encoded, max_output_size=size) if size else b""
    except zstandard.ZstdError as error:
        raise cursor.error("payload", f"damaged ({error})", "a ZSTD frame") from error
