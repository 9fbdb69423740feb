"""Compressed offload bundles, ``CCOB``: a header, and a whole offload bundle as one ZLIB stream or ZSTD frame.

Clang's driver writes them (``--offload-compress``); the layouts are those of ``CompressedOffloadBundle`` in
``clang/lib/Driver/OffloadBundler.cpp``. The decoded bundle may be hundreds of megabytes of code for a dozen
architectures, so it is decoded as a stream: reading one image does not keep the others in memory.
"""

from __future__ import annotations

import functools
import hashlib
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from neutrino.elf.cursor import Cursor
from neutrino.errors import FormatError
from neutrino.fatbin.compression import MAX_DECODED, Compression

MAGIC = b"CCOB"
DEFAULT_VERSION = 2
"""What clang 18 to 21 write and every HIP runtime since ROCm 6 reads."""

_START = struct.Struct("<4sHH")
"""Magic, version and method: the beginning of the header in every version."""
_SIZES = {1: struct.Struct("<I8s"), 2: struct.Struct("<II8s"), 3: struct.Struct("<QQ8s")}
"""What follows it, by version: the total size (not in version 1, where the bundle ends with the compressed data), the
uncompressed size, and the digest."""
_METHODS = {0: Compression.ZLIB, 1: Compression.ZSTD}
_ZLIB_MAX_RATIO = 1032
"""Deflate codes at most 258 bytes in 2 bits (zlib's technical notes, "Maximum Compression Factor")."""
_ZSTD_MAX_RATIO = 128 * 1024 // 4
"""The shortest ZSTD block, 3 bytes of header and one of content, gives at most 128 KiB (RFC 8878, 3.1.1.2)."""
_ZSTD_BLOCK_RLE = 1
_ZSTD_CHECKSUM_SIZE = 4
_HASH_SIZE = 8
_CHUNK = 1 << 20
_MAX_CACHED = 32 << 20
"""Bytes of the largest decoded bundle that is cached as a whole; a larger one is decoded as a stream."""


@dataclass(frozen=True)
class CompressedBundle:
    """A compressed bundle as it is stored.

    file: for error messages. offset: of the compressed data in it. version: 1, 2 or 3 of the header. size: bytes
    of the bundle when decoded. digest: the first 8 bytes of the decoded bundle's MD5, as the header has them;
    the tools and runtimes do not look at it. payload: the compressed data, without the header.
    """

    file: str
    offset: int
    version: int
    compression: Compression
    size: int
    digest: bytes
    payload: memoryview = field(repr=False, compare=False)

    def read(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes at ``offset`` of the decoded bundle.

        Raises FormatError when the data are damaged or end before that.
        """
        # A small bundle is decoded as a whole, and kept for its other images. Streams check the range themselves.
        if self.size <= _MAX_CACHED:
            decoded = _cached(_ByIdentity(self))
            if not 0 <= offset <= offset + size <= len(decoded):
                raise self._error("range", f"{offset:#x} to {offset + size:#x}", f"one within {len(decoded):#x} bytes")
            return decoded[offset : offset + size]
        # A large bundle is decoded as a stream, which is kept for the next image: that usually follows this one.
        stream = _stream_before(self, offset)
        stream.skip(offset)
        content = stream.take(size)
        # This replaces the stream of another thread or another bundle, if there is one: at most one is kept.
        _idle_streams[:] = [stream]
        return content

    def stream(self) -> DecodedStream:
        """Return a new stream of the decoded bundle, at its beginning."""
        return DecodedStream(self)

    def digest_is_right(self) -> bool:
        """Whether the decoded bundle has the digest that the header states. Raises FormatError as ``read``."""
        md5 = hashlib.md5(usedforsecurity=False)
        # In chunks, because the decoded bundle may be too large to keep.
        stream = self.stream()
        remaining = self.size
        while remaining:
            chunk = stream.take(min(remaining, _CHUNK))
            md5.update(chunk)
            remaining -= len(chunk)
        return md5.digest()[:_HASH_SIZE] == self.digest

    def _error(self, field_name: str, found: str, expected: str) -> FormatError:
        """Return the error for a field of the bundle that has a wrong value."""
        return FormatError(self.file, self.offset, field_name, found, expected)


class DecodedStream:
    """Reads the decoded content of a compressed bundle forwards. position: in the decoded bundle, in bytes."""

    def __init__(self, bundle: CompressedBundle) -> None:
        """Begin to read the decompressed content of a bundle, from its start."""
        self.bundle = bundle
        self._decoder = _decoder(bundle.compression, bundle.payload)
        self.position = 0

    def skip(self, position: int) -> None:
        """Advance to a position of the decoded bundle, which must not lie before the current one.

        Raises FormatError when the bundle ends before it, or the data are damaged.
        """
        if position > self.bundle.size:
            raise self._error(f"{position} bytes", f"{self.bundle.size} bytes (uncompressed size)")
        # Compressed data can only be decoded from the beginning on, so what is skipped is decoded and dropped.
        while self.position < position:
            chunk = self._decoded(min(position - self.position, _CHUNK))
            if not chunk:
                raise self._error(f"{self.position} bytes when decoded", f"{self.bundle.size} bytes")
            self.position += len(chunk)

    def take(self, size: int) -> bytes:
        """Return the next ``size`` decoded bytes. Raises FormatError when there are fewer, or the data are damaged."""
        bundle = self.bundle
        if not 0 <= size <= bundle.size - self.position:
            raise self._error(f"{self.position + size} bytes", f"{bundle.size} bytes (uncompressed size)")
        content = bytearray()
        # In chunks, since ZSTD's reader allocates as much as it is asked for, even if damaged data end long before.
        while len(content) < size:
            chunk = self._decoded(min(size - len(content), _CHUNK))
            if not chunk:
                raise self._error(f"{self.position + len(content)} bytes when decoded", f"{bundle.size} bytes")
            content += chunk
        self.position += size
        return bytes(content)

    def finish(self) -> None:
        """Decode the remaining data. Raises FormatError unless they end at the uncompressed size of the header."""
        self.skip(self.bundle.size)
        # One more byte is enough to know that the bundle is longer.
        if self._decoded(1):
            raise self._error("longer when decoded", f"{self.bundle.size} bytes (uncompressed size)")

    def _decoded(self, size: int) -> bytes:
        """Decode at most ``size`` further bytes; empty at the end of the data."""
        try:
            return self._decoder.read(size)
        except _DecoderError as error:
            raise self._error(f"damaged ({error})", f"a {self.bundle.compression.name} stream") from error

    def _error(self, found: str, expected: str) -> FormatError:
        """Return the error for a bundle that cannot be decompressed as its header says."""
        return FormatError(self.bundle.file, self.bundle.offset, "compressed bundle", found, expected)


_idle_streams: list[DecodedStream] = []
"""At most one: the stream that an image of a large bundle was last read from. The next image usually follows it."""


def _stream_before(bundle: CompressedBundle, offset: int) -> DecodedStream:
    """Return a stream of the bundle whose position is not after ``offset``: the idle one if it fits, else a new one.

    The idle stream is removed from the list first, so that two threads never get the same one.
    """
    try:
        stream = _idle_streams.pop()
    except IndexError:
        return bundle.stream()
    return stream if stream.bundle is bundle and stream.position <= offset else bundle.stream()


class _DecoderError(Exception):
    """Damaged data, reported by either decompressor."""


class _Decoder(Protocol):
    def read(self, size: int) -> bytes:
        """At most size further bytes; none at the end. Raises _DecoderError."""


class _Zlib:
    """Decoder of a ZLIB stream."""

    def __init__(self, payload: memoryview) -> None:
        """Set up a decompressor of a ZLIB stream."""
        self._unread = payload
        self._stream = zlib.decompressobj()

    def read(self, size: int) -> bytes:
        """Return at most ``size`` further decoded bytes; none at the end. Raises _DecoderError."""
        try:
            while not self._stream.eof:
                # Input that the last call did not use, because the output was limited, must be passed again.
                tail = self._stream.unconsumed_tail
                compressed = tail or self._unread[:_CHUNK]
                if not tail:
                    self._unread = self._unread[len(compressed) :]
                decoded = self._stream.decompress(compressed, size)
                # Input may give no output yet; only without further input is that the end.
                if decoded or not compressed:
                    return decoded
        except zlib.error as error:
            raise _DecoderError(str(error)) from error
        return b""

    @property
    def unused(self) -> int | None:
        """How many bytes of the payload follow the end of the stream; None if the end was not reached."""
        return len(self._stream.unused_data) + len(self._unread) if self._stream.eof else None


class _Zstd:
    """Decoder of a ZSTD frame."""

    def __init__(self, payload: memoryview) -> None:
        """Set up a decompressor of a Zstandard frame. payload: the compressed data, whose stated sizes must have been
        checked."""
        # Imported here because few files need it; for the same reason ``read`` takes the exception from here.
        import zstandard

        self._error = zstandard.ZstdError
        # Because of that check the window may be as large as the content.
        self._reader = zstandard.ZstdDecompressor(max_window_size=MAX_DECODED).stream_reader(payload)

    def read(self, size: int) -> bytes:
        """Return at most ``size`` further decoded bytes; none at the end. Raises _DecoderError."""
        try:
            return self._reader.read(size)
        # MemoryError: a damaged frame may ask for a window that is too large for this machine.
        except (self._error, MemoryError) as error:
            raise _DecoderError(str(error)) from error


def _decoder(compression: Compression, payload: memoryview) -> _Decoder:
    """Return a decompressor for a payload, by its compression (zlib or Zstandard)."""
    return _Zlib(payload) if compression is Compression.ZLIB else _Zstd(payload)


class _ByIdentity:
    """A bundle as a key of the cache: comparing payloads would cost more than decoding them."""

    def __init__(self, bundle: CompressedBundle) -> None:
        """Make a key of a cache that stands for one bundle object."""
        self.bundle = bundle

    def __eq__(self, other: object) -> bool:
        """Whether both stand for the very same bundle object."""
        return isinstance(other, _ByIdentity) and other.bundle is self.bundle

    def __hash__(self) -> int:
        """A hash of the bundle object's identity."""
        return id(self.bundle)


@functools.lru_cache(maxsize=1)
def _cached(key: _ByIdentity) -> bytes:
    """Decode a whole bundle. The result for the last bundle is cached, so that reading all its images decodes it once.

    key: the bundle, which is compared by identity. Raises FormatError for damaged data.
    """
    stream = key.bundle.stream()
    decoded = stream.take(key.bundle.size)
    stream.finish()
    return decoded


def forget_decoded() -> None:
    """Free what is kept of decoded bundles for further images of theirs: a ZSTD stream alone takes as much as its
    bundle."""
    _idle_streams.clear()
    _cached.cache_clear()


def is_compressed_bundle(data: memoryview, offset: int = 0) -> bool:
    """Whether the magic number of a compressed bundle is at that offset."""
    return bytes(data[offset : offset + len(MAGIC)]) == MAGIC


def read_compressed_bundle(cursor: Cursor) -> CompressedBundle:
    """Read the compressed bundle at the cursor, and advance the cursor past it.

    Its content is not kept decoded. Raises FormatError for a damaged header and for impossible sizes.
    """
    begin = cursor.position
    # Errors name the fields' places in the header: version at 4, method at 6, and then the sizes.
    magic, version, method = cursor.unpack(_START, "compressed bundle header")
    if magic != MAGIC:
        raise cursor.error("compressed bundle magic", magic.hex(" "), MAGIC.hex(" "), at=begin)
    if version not in _SIZES:
        raise cursor.error("compressed bundle version", str(version), "1, 2 or 3", at=begin + 4)
    if method not in _METHODS:
        raise cursor.error("compression method", str(method), "0 (zlib) or 1 (zstd)", at=begin + 6)
    compression = _METHODS[method]
    *total_sizes, size, digest = cursor.unpack(_SIZES[version], "compressed bundle header")
    payload_begin = cursor.position
    if total_sizes:
        (total_size,) = total_sizes
        header_size = payload_begin - begin
        if total_size < header_size:
            raise cursor.error("total size", str(total_size), f"at least {header_size}", at=begin + _START.size)
        payload = cursor.take(total_size - header_size, "compressed bundle (total size)")
    else:
        # Version 1 has no total size. The data may extend to the cursor's end; how far they do is found below.
        payload = cursor.data[payload_begin : cursor.end]

    # The size that the header states is checked before anything is decoded or allocated.
    max_ratio = _ZLIB_MAX_RATIO if compression is Compression.ZLIB else _ZSTD_MAX_RATIO
    limit = min(MAX_DECODED, len(payload) * max_ratio)
    if size > limit:
        raise cursor.error("uncompressed size", str(size), f"at most {limit} for {len(payload)} bytes", at=begin)
    # Only after that check, because this may decode the data.
    if not total_sizes:
        used = _zlib_size(cursor, payload, size) if compression is Compression.ZLIB else _zstd_size(cursor)
        payload = cursor.take(used, "compressed bundle")
    offset = cursor.base + payload_begin
    return CompressedBundle(cursor.file, offset, version, compression, size, digest, payload)


def compress_bundle(plain: bytes, compression: Compression, version: int = DEFAULT_VERSION, level: int = 3) -> bytes:
    """Compress a plain offload bundle.

    version: 1, 2 or 3 of the header. level: of ZSTD; ZLIB always uses its default, 6. Raises ValueError for another
    compression or version, and for a bundle that is too large for the header's size fields.
    """
    if compression is Compression.ZLIB:
        payload = zlib.compress(plain, 6)
    elif compression is Compression.ZSTD:
        import zstandard

        payload = zstandard.ZstdCompressor(level=level).compress(plain)
    else:
        raise ValueError(f"offload bundles have no {compression.value} compression")
    if version not in _SIZES:
        raise ValueError(f"compressed offload bundles have versions 1, 2 and 3, not {version}")
    method = next(number for number, candidate in _METHODS.items() if candidate is compression)
    sizes = _SIZES[version]
    # Version 1 has no total size.
    total_size = () if version == 1 else (_START.size + sizes.size + len(payload),)
    digest = hashlib.md5(plain, usedforsecurity=False).digest()[:_HASH_SIZE]
    try:
        return _START.pack(MAGIC, version, method) + sizes.pack(*total_size, len(plain), digest) + payload
    # A size does not fit its field.
    except struct.error as error:
        raise ValueError(f"a bundle of {len(plain)} bytes is too large for version {version}") from error


def _zlib_size(cursor: Cursor, payload: memoryview, size: int) -> int:
    """Return how many bytes of ``payload`` its ZLIB stream takes; only decoding it shows where it ends.

    size: of the decoded data, in bytes, as the header states it. Raises FormatError when that is not right.
    """
    decoder = _Zlib(payload)
    decoded_size = 0
    try:
        while chunk := decoder.read(_CHUNK):
            decoded_size += len(chunk)
            # This is an error already, and the rest may decode to any size.
            if decoded_size > size:
                break
    except _DecoderError as error:
        raise cursor.error("compressed bundle", f"damaged ({error})", "a ZLIB stream") from error
    if decoded_size != size or decoder.unused is None:
        # After the break it is not known how many bytes there are.
        found = f"more than {size} bytes" if decoded_size > size else f"{decoded_size} bytes, or cut off"
        raise cursor.error("compressed bundle", found, f"{size} bytes (uncompressed size)")
    return len(payload) - decoder.unused


def _zstd_size(cursor: Cursor) -> int:
    """Return how many bytes the ZSTD frame at the cursor takes. Raises FormatError for a damaged one.

    Nothing is decoded: the headers of its blocks state their sizes (RFC 8878, 3.1.1).
    """
    import zstandard

    data = cursor.data[cursor.position : cursor.end]
    try:
        parameters = zstandard.get_frame_parameters(data)
        frame = Cursor(data, cursor.file, base=cursor.base + cursor.position)
        frame.take(zstandard.frame_header_size(data), "ZSTD frame header")
    except zstandard.ZstdError as error:
        raise cursor.error("compressed bundle", f"damaged ({error})", "a ZSTD frame") from error
    for is_last, size in _zstd_blocks(frame):
        frame.take(size, "ZSTD block")
        if is_last:
            break
    frame.take(_ZSTD_CHECKSUM_SIZE if parameters.has_checksum else 0, "ZSTD checksum")
    return frame.position


def _zstd_blocks(cursor: Cursor) -> Iterator[tuple[bool, int]]:
    """Yield, for each block, whether it is the last one, and the size of its content in bytes.

    At each yield the cursor is at the content, which the caller must step over before it asks for the next block.
    """
    while True:
        # RFC 8878, 3.1.1.2: 24 bits, little endian: bit 0 is the last block, bits 1 and 2 the type, then the size.
        header = cursor.integer(2, "ZSTD block header") | cursor.integer(1, "ZSTD block header") << 16
        is_last, block_type, size = bool(header & 1), header >> 1 & 3, header >> 3
        # An RLE block stores one byte, which is repeated size times.
        yield is_last, 1 if block_type == _ZSTD_BLOCK_RLE else size
