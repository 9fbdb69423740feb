"""Compressed offload bundles, ``CCOB``: a header, and a whole offload bundle as one ZLIB stream or ZSTD frame.

Clang's driver writes them (``--offload-compress``); the layouts are those of ``CompressedOffloadBundle`` in
``clang/lib/Driver/OffloadBundler.cpp``. The decoded bundle may be hundreds of megabytes of code for a dozen
architectures, so it is decoded as a stream: whoever wants one image never holds the others.
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
# What follows magic, version and method. Without a total size the end is where the compressed data end.
_DECODED, _TOTAL_DECODED = struct.Struct("<I8s"), struct.Struct("<II8s")
_WIDE_TOTAL_DECODED = struct.Struct("<QQ8s")
_REST = {1: _DECODED, 2: _TOTAL_DECODED, 3: _WIDE_TOTAL_DECODED}
_METHODS = {0: Compression.ZLIB, 1: Compression.ZSTD}
_ZLIB_MAX_RATIO = 1032
"""Deflate codes at most 258 bytes in 2 bits (zlib's technical notes, "Maximum Compression Factor")."""
_ZSTD_MAX_RATIO = 128 * 1024 // 4
"""The shortest ZSTD block, 3 bytes of header and one of content, gives at most 128 KiB (RFC 8878, 3.1.1.2)."""
_ZSTD_BLOCK_RLE = 1
_ZSTD_CHECKSUM_SIZE = 4
_HASH_SIZE = 8
_CHUNK = 1 << 20
_KEPT = 32 << 20
"""Bytes of a decoded bundle that are kept for the next image of it; a larger one is decoded from one to the next."""


@dataclass(frozen=True)
class CompressedBundle:
    """A compressed bundle as it is stored.

    file: for error messages. offset: of the compressed data in it. version: 1, 2 or 3 of the header. size: bytes
    of the bundle when decoded. digest: the first 8 bytes of the decoded bundle's MD5, as the header has them;
    the tools and runtimes do not look at it.
    """

    file: str
    offset: int
    version: int
    compression: Compression
    size: int
    digest: bytes
    payload: memoryview = field(repr=False, compare=False)

    def read(self, offset: int, size: int) -> bytes:
        """Bytes of the decoded bundle. Raises FormatError when the data are damaged or end before them."""
        if self.size <= _KEPT:
            whole = _kept(_ByIdentity(self))
            if not 0 <= offset <= offset + size <= len(whole):
                raise self._error("range", f"{offset:#x} to {offset + size:#x}", f"one within {len(whole):#x} bytes")
            return whole[offset : offset + size]
        stream = _stream_before(self, offset)
        stream.skip(offset)
        taken = stream.take(size)
        _waiting[:] = [stream]
        return taken

    def stream(self) -> DecodedStream:
        """The decoded bundle from its beginning on."""
        return DecodedStream(self)

    def digest_is_right(self) -> bool:
        """Whether the decoded bundle is the one that digest was made of. Raises FormatError as ``read``."""
        found = hashlib.md5(usedforsecurity=False)
        stream = self.stream()
        left = self.size
        while left:
            piece = stream.take(min(left, _CHUNK))
            found.update(piece)
            left -= len(piece)
        return found.digest()[:_HASH_SIZE] == self.digest

    def _error(self, field_name: str, found: str, expected: str) -> FormatError:
        return FormatError(self.file, self.offset, field_name, found, expected)


class DecodedStream:
    """Reads a decoded bundle forwards, holding no more of it than is asked for."""

    def __init__(self, bundle: CompressedBundle) -> None:
        self.bundle = bundle
        self._decoder = _decoder(bundle.compression, bundle.payload)
        self.position = 0

    def skip(self, position: int) -> None:
        """Advance to a position, which must not be an earlier one. Raises FormatError."""
        if position > self.bundle.size:
            raise self._error(f"{position} bytes", f"{self.bundle.size} bytes (uncompressed size)")
        while self.position < position:
            piece = self._decoded(min(position - self.position, _CHUNK))
            if not piece:
                raise self._error(f"{self.position} bytes when decoded", f"{self.bundle.size} bytes")
            self.position += len(piece)

    def take(self, size: int) -> bytes:
        """The next size bytes. Raises FormatError when there are fewer, or the data are damaged."""
        bundle = self.bundle
        if not 0 <= size <= bundle.size - self.position:
            raise self._error(f"{self.position + size} bytes", f"{bundle.size} bytes (uncompressed size)")
        taken = bytearray()
        while len(taken) < size:
            piece = self._decoded(min(size - len(taken), _CHUNK))
            if not piece:
                raise self._error(f"{self.position + len(taken)} bytes when decoded", f"{bundle.size} bytes")
            taken += piece
        self.position += size
        return bytes(taken)

    def finish(self) -> None:
        """Go to the end. Raises FormatError unless the data end there."""
        self.skip(self.bundle.size)
        if self._decoded(1):
            raise self._error("longer when decoded", f"{self.bundle.size} bytes (uncompressed size)")

    def _decoded(self, size: int) -> bytes:
        try:
            return self._decoder.read(size)
        except _DecoderError as error:
            raise self._error(f"damaged ({error})", f"a {self.bundle.compression.name} stream") from error

    def _error(self, found: str, expected: str) -> FormatError:
        return FormatError(self.bundle.file, self.bundle.offset, "compressed bundle", found, expected)


_waiting: list[DecodedStream] = []
"""The stream that a large bundle's last image was read from, if any: the next one follows it, mostly."""


def _stream_before(bundle: CompressedBundle, offset: int) -> DecodedStream:
    """A stream of the bundle that has not come further than offset. Nobody else is handed the same."""
    try:
        stream = _waiting.pop()
    except IndexError:
        return bundle.stream()
    return stream if stream.bundle is bundle and stream.position <= offset else bundle.stream()


class _DecoderError(Exception):
    """What a decompressor says of damaged data, whichever it is."""


class _Decoder(Protocol):
    def read(self, size: int) -> bytes:
        """At most size further bytes; none at the end. Raises _DecoderError."""


class _Zlib:
    def __init__(self, payload: memoryview) -> None:
        self._left = payload
        self._stream = zlib.decompressobj()

    def read(self, size: int) -> bytes:
        try:
            while not self._stream.eof:
                tail = self._stream.unconsumed_tail
                fed = tail or self._left[:_CHUNK]
                if not tail:
                    self._left = self._left[len(fed) :]
                piece = self._stream.decompress(fed, size)
                if piece or not fed:
                    return piece
        except zlib.error as error:
            raise _DecoderError(str(error)) from error
        return b""

    @property
    def unused(self) -> int | None:
        """Bytes after the end of the stream; None if the end was not reached."""
        return len(self._stream.unused_data) + len(self._left) if self._stream.eof else None


class _Zstd:
    def __init__(self, payload: memoryview) -> None:
        import zstandard

        self._error = zstandard.ZstdError
        # The sizes were compared with what the payload can hold, so the window may be as large as the content.
        self._reader = zstandard.ZstdDecompressor(max_window_size=MAX_DECODED).stream_reader(payload)

    def read(self, size: int) -> bytes:
        try:
            return self._reader.read(size)
        except (self._error, MemoryError) as error:
            raise _DecoderError(str(error)) from error


def _decoder(compression: Compression, payload: memoryview) -> _Decoder:
    return _Zlib(payload) if compression is Compression.ZLIB else _Zstd(payload)


class _ByIdentity:
    """A bundle as a key of the cache: comparing payloads would cost more than decoding them."""

    def __init__(self, bundle: CompressedBundle) -> None:
        self.bundle = bundle

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and other.bundle is self.bundle

    def __hash__(self) -> int:
        return id(self.bundle)


@functools.lru_cache(maxsize=1)
def _kept(key: _ByIdentity) -> bytes:
    stream = key.bundle.stream()
    whole = stream.take(key.bundle.size)
    stream.finish()
    return whole


def is_compressed_bundle(data: memoryview, offset: int = 0) -> bool:
    """Whether the magic of a compressed bundle is at that offset."""
    return bytes(data[offset : offset + len(MAGIC)]) == MAGIC


def read_compressed_bundle(cursor: Cursor) -> CompressedBundle:
    """The compressed bundle under the cursor, which advances past it. Raises FormatError for impossible sizes."""
    begin = cursor.position
    magic, version, method = cursor.unpack(_START, "compressed bundle header")
    if magic != MAGIC:
        raise cursor.error("compressed bundle magic", magic.hex(" "), MAGIC.hex(" "), at=begin)
    if version not in _REST:
        raise cursor.error("compressed bundle version", str(version), "1, 2 or 3", at=begin + 4)
    if method not in _METHODS:
        raise cursor.error("compression method", str(method), "0 (zlib) or 1 (zstd)", at=begin + 6)
    compression = _METHODS[method]
    *total, size, digest = cursor.unpack(_REST[version], "compressed bundle header")
    begin_of_payload = cursor.position
    if total:
        header_size = begin_of_payload - begin
        if total[0] < header_size:
            raise cursor.error("total size", str(total[0]), f"at least {header_size}", at=begin + 8)
        payload = cursor.take(total[0] - header_size, "compressed bundle (total size)")
    else:
        payload = cursor.data[begin_of_payload : cursor.end]
    ratio = _ZLIB_MAX_RATIO if compression is Compression.ZLIB else _ZSTD_MAX_RATIO
    limit = min(MAX_DECODED, len(payload) * ratio)
    if size > limit:
        raise cursor.error("uncompressed size", str(size), f"at most {limit} for {len(payload)} bytes", at=begin)
    if not total:
        used = _zlib_size(cursor, payload, size) if compression is Compression.ZLIB else _zstd_size(cursor)
        payload = cursor.take(used, "compressed bundle")
    offset = cursor.base + begin_of_payload
    return CompressedBundle(cursor.file, offset, version, compression, size, digest, payload)


def compress_bundle(plain: bytes, compression: Compression, version: int = DEFAULT_VERSION, level: int = 3) -> bytes:
    """A plain bundle as a compressed one. Raises ValueError for what the format cannot say."""
    if compression is Compression.ZLIB:
        payload = zlib.compress(plain, 6)
    elif compression is Compression.ZSTD:
        import zstandard

        payload = zstandard.ZstdCompressor(level=level).compress(plain)
    else:
        raise ValueError(f"offload bundles have no {compression.value} compression")
    if version not in _REST:
        raise ValueError(f"compressed offload bundles have versions 1, 2 and 3, not {version}")
    method = next(number for number, known in _METHODS.items() if known is compression)
    rest = _REST[version]
    total = () if version == 1 else (_START.size + rest.size + len(payload),)
    digest = hashlib.md5(plain, usedforsecurity=False).digest()[:_HASH_SIZE]
    try:
        return _START.pack(MAGIC, version, method) + rest.pack(*total, len(plain), digest) + payload
    except struct.error as error:
        raise ValueError(f"a bundle of {len(plain)} bytes is too large for version {version}") from error


def _zlib_size(cursor: Cursor, payload: memoryview, size: int) -> int:
    """Bytes of the ZLIB stream: only decoding finds its end."""
    decoder = _Zlib(payload)
    decoded = 0
    try:
        while piece := decoder.read(_CHUNK):
            decoded += len(piece)
            if decoded > size:
                break
    except _DecoderError as error:
        raise cursor.error("compressed bundle", f"damaged ({error})", "a ZLIB stream") from error
    if decoded != size or decoder.unused is None:
        raise cursor.error("compressed bundle", f"{decoded} bytes, or cut off", f"{size} bytes (uncompressed size)")
    return len(payload) - decoder.unused


def _zstd_size(cursor: Cursor) -> int:
    """Bytes of the ZSTD frame under the cursor, by the headers of its blocks (RFC 8878, 3.1.1); nothing is decoded."""
    import zstandard

    rest = cursor.data[cursor.position : cursor.end]
    try:
        parameters = zstandard.get_frame_parameters(rest)
        inner = Cursor(rest, cursor.file, base=cursor.base + cursor.position)
        inner.take(zstandard.frame_header_size(rest), "ZSTD frame header")
    except zstandard.ZstdError as error:
        raise cursor.error("compressed bundle", f"damaged ({error})", "a ZSTD frame") from error
    for last, size in _zstd_blocks(inner):
        inner.take(size, "ZSTD block")
        if last:
            break
    inner.take(_ZSTD_CHECKSUM_SIZE if parameters.has_checksum else 0, "ZSTD checksum")
    return inner.position


def _zstd_blocks(cursor: Cursor) -> Iterator[tuple[bool, int]]:
    """(whether it is the last, bytes of its content) of each block; the cursor stands at its content."""
    while True:
        word = cursor.integer(2, "ZSTD block header") | cursor.integer(1, "ZSTD block header") << 16
        yield bool(word & 1), 1 if word >> 1 & 3 == _ZSTD_BLOCK_RLE else word >> 3
