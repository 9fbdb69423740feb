"""How payloads are compressed, and back."""

from __future__ import annotations

import enum

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
    """data as an LZ4 block or a ZSTD frame, or as it is for ``NONE``.

    level: of ZSTD; 5 is what nvcc 13 uses by default, 19 its ``--compress-mode=size``.
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
    """What is left under the cursor, decoded. Raises FormatError if that does not give exactly size bytes."""
    encoded = cursor.data[cursor.position : cursor.end]
    ratio = _LZ4_MAX_RATIO if compression is Compression.LZ4 else _ZSTD_MAX_RATIO
    limit = min(MAX_DECODED, len(encoded) * ratio)
    if size > limit:
        raise cursor.error("uncompressed_size", str(size), f"at most {limit} for a payload of {len(encoded)} bytes")
    decoded = _lz4(cursor, encoded, size) if compression is Compression.LZ4 else _zstd(cursor, encoded, size)
    if len(decoded) != size:
        raise cursor.error("payload", f"{len(decoded)} bytes when decoded", f"{size} bytes (uncompressed_size)")
    return decoded


def _lz4(cursor: Cursor, encoded: memoryview, size: int) -> bytes:
    import lz4.block

    try:
        decoded: bytes = lz4.block.decompress(encoded, uncompressed_size=size)
    except lz4.block.LZ4BlockError as error:
        raise cursor.error("payload", f"damaged ({error})", "an LZ4 block") from error
    return decoded


def _zstd(cursor: Cursor, encoded: memoryview, size: int) -> bytes:
    import zstandard

    try:
        # The decoder would allocate whatever the frame claims, so the claim is compared first.
        claimed = zstandard.get_frame_parameters(encoded).content_size
        if claimed not in (size, zstandard.CONTENTSIZE_UNKNOWN):
            raise cursor.error("ZSTD content size", str(claimed), f"{size} (uncompressed_size)")
        # A max_output_size of 0 would mean no limit.
        return zstandard.ZstdDecompressor().decompress(encoded, max_output_size=size) if size else b""
    except zstandard.ZstdError as error:
        raise cursor.error("payload", f"damaged ({error})", "a ZSTD frame") from error
