"""An image: a program of kernels in one form (PTX, cubin, …) for one architecture, as it is stored in a file."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from neutrino.elf.cursor import Cursor
from neutrino.fatbin.compression import Compression, decompress

if TYPE_CHECKING:
    from neutrino.fatbin.compressed_bundle import CompressedBundle


class ImageKind(enum.Enum):
    """The form of an image. The values are those of ``neutrino-extract --json``."""

    PTX = "ptx"
    TEXT = "text"
    """Assembly of other targets than PTX; its architecture says of which."""
    CUBIN = "cubin"
    NVVM = "nvvm"
    CODE_OBJECT = "code-object"
    BITCODE = "bitcode"
    UNKNOWN = "unknown"


_LONGEST_PADDING = 16
"""Bytes at the end of stored PTX in which NULs are looked for: the one that ends it, and padding to 8 bytes."""


@dataclass(frozen=True)
class Image:
    """An image and the bytes that it is made of.

    index: in its container. arch: as ``sm_90a``, empty if unknown. offset: of the entry in the file, in
    bytes. stored_size: of the payload as stored (compressed or not), in bytes. options: the ``ptxas`` command line
    that is stored with PTX, unchanged, empty if there is none. version: of the PTX ISA for PTX; (0, 0) for an image
    without an entry. identifier: the source file's name, or the bundle entry's; empty if none is stored. obfuscated:
    LTO IR that only NVIDIA's tools can decode; its ``data`` are the stored bytes. flags: of a fatbin's entry, as stored
    (``FLAG_DEBUG`` …), 0 for others. file: for error messages.

    header and payload are the entry's own bytes, padding included; writing an image back writes these two.
    encoded_size: how many bytes of the payload are compressed data; None if this image's payload is not compressed by
    itself. decoded_size: bytes after decoding as the entry states it; for PTX with the NUL that ends the text. within,
    within_offset: for an image in a compressed bundle, that bundle, whose payload is that of all its images, and the
    image's offset in the decoded bundle, in bytes.
    """

    index: int
    kind: ImageKind
    arch: str
    compression: Compression
    offset: int
    stored_size: int
    options: str
    version: tuple[int, int]
    flags: int
    identifier: str
    obfuscated: bool
    file: str
    header: bytes = field(repr=False)
    payload: memoryview = field(repr=False)
    encoded_size: int | None = field(repr=False)
    decoded_size: int = field(repr=False)
    within: CompressedBundle | None = field(default=None, repr=False, compare=False)
    within_offset: int = field(default=0, repr=False)

    @property
    def size(self) -> int:
        """The size of ``data`` in bytes. PTX is decoded for it: then it raises FormatError as ``data``."""
        return len(self.data) if self.kind is ImageKind.PTX else self.decoded_size

    @property
    def stated_size(self) -> int:
        """The size of ``data`` in bytes as the headers state it, without decoding: for listings.

        It differs from ``size`` only for compressed PTX that ends with another number of NULs than the one that
        compilers store.
        """
        if self.kind is not ImageKind.PTX:
            return self.decoded_size
        if self.encoded_size is None:
            # Uncompressed PTX: the NULs at its end are not part of the text.
            end = bytes(self.payload[-_LONGEST_PADDING:])
            return len(self.payload) - len(end) + len(end.rstrip(b"\0"))
        return max(self.decoded_size - 1, 0)

    @property
    def data(self) -> bytes:
        """The decoded image, byte for byte what ``cuobjdump -xptx`` or ``-xelf`` writes.

        It is decoded anew at each access, so keep the result. Raises FormatError when the payload is damaged.
        """
        decoded = self._decoded()
        # PTX is a C string: it ends at the first NUL, after which there may be padding.
        return decoded.partition(b"\0")[0] if self.kind is ImageKind.PTX else decoded

    def _decoded(self) -> bytes:
        """Decode the payload: from the compressed bundle that it is part of, or by itself.

        Obfuscated LTO IR cannot be decoded, so its stored bytes are returned.
        """
        if self.within is not None:
            return self.within.read(self.within_offset, self.decoded_size)
        if self.encoded_size is None:
            return bytes(self.payload)
        if self.obfuscated:
            return bytes(self.payload[: self.encoded_size])
        base = self.offset + len(self.header)
        cursor = Cursor(self.payload, self.file, end=self.encoded_size, base=base)
        if self.compression is Compression.NONE:
            raise cursor.error("flags", f"{self.flags:#x} with a compressed size", "LZ4 (0x2000) or ZSTD (0x8000)")
        return decompress(cursor, self.decoded_size, self.compression)
