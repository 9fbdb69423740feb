"""Clang offload bundles: code objects for several targets, one after the other, after a table of their names.

The layout is that of clang's manual, "Clang Offload Bundler", section "Bundled Binary File Layout": magic, the
number of entries, and for each its offset from the bundle's beginning, its size and its name. There is no total
size: a bundle ends where its last entry ends.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from neutrino.elf.constants import EM_AMDGPU, EM_CUDA
from neutrino.elf.constants import MAGIC as ELF_MAGIC
from neutrino.elf.cursor import Cursor
from neutrino.errors import FormatError
from neutrino.fatbin.compressed_bundle import (
    DEFAULT_VERSION,
    CompressedBundle,
    compress_bundle,
    is_compressed_bundle,
    read_compressed_bundle,
)
from neutrino.fatbin.compression import Compression
from neutrino.fatbin.image import Image, ImageKind

MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"
ALIGNMENT = 4096
"""Of code objects in a bundle and of bundles in ``.hip_fatbin``, so that a loader can map them."""

_COUNT = struct.Struct("<Q")
_ENTRY = struct.Struct("<QQQ")
_MACHINES = {EM_AMDGPU: ImageKind.CODE_OBJECT, EM_CUDA: ImageKind.CUBIN}
_KIND_BYTES = 20
"""Bytes of an image that show its kind: an ELF header up to e_machine."""
_BITCODE_MAGIC = b"BC\xc0\xde"
_MAX_TABLE = 1 << 20
"""Limit in bytes of a table of entries. LLVM has some hundred targets, and an entry takes about 60 bytes."""
_Take = Callable[[int, str], bytes | memoryview]
_ErrorMaker = Callable[[str, str, str], FormatError]
_NAME_FIELDS = 5
"""KIND-ARCH-VENDOR-OS-ENVIRONMENT-TARGET: HIP's have an empty environment, older ones none."""
_PROCESSOR = re.compile(r"gfx|sm_")


@dataclass(frozen=True)
class BundleEntry:
    """A row of a bundle's table. name: as ``clang-offload-bundler --list`` prints it. offset, size: in bytes, from
    the decoded bundle's beginning."""

    name: str
    offset: int
    size: int


@dataclass(frozen=True)
class Bundle:
    """An offload bundle as it is stored.

    entries: of its table, also those without content, as the host's is. images: of the entries with content, as
    they were read. compressed: None for a plain one. stored: all of its bytes. offset: in the file.
    """

    entries: tuple[BundleEntry, ...]
    images: tuple[Image, ...]
    offset: int
    compressed: CompressedBundle | None
    stored: memoryview = field(repr=False, compare=False)

    def write(self, images: Sequence[Image]) -> bytes:
        """Serialize the bundle with these images, one for each image that it was read with, in the same order.

        With the images that it was read with, the result is the stored bytes. Otherwise it is a new bundle with the
        same entry names, order, compression and version, whose payloads are the images' decoded data. Raises
        ValueError if the number of images is not that of the bundle.
        """
        if len(images) != len(self.images):
            raise ValueError(f"{len(images)} images for a bundle of {len(self.images)}")
        if all(image is original for image, original in zip(images, self.images, strict=True)):
            return bytes(self.stored)
        remaining = iter(images)
        # Entries without content, such as the host's, have no image.
        entries = [(entry.name, next(remaining).data if entry.size else b"") for entry in self.entries]
        if self.compressed is None:
            return build_bundle(entries)
        return build_bundle(entries, self.compressed.compression, self.compressed.version)


def is_bundle(data: memoryview, offset: int = 0) -> bool:
    """Whether the magic number of an offload bundle, plain or compressed, is at that offset."""
    return bytes(data[offset : offset + len(MAGIC)]) == MAGIC or is_compressed_bundle(data, offset)


def read_bundle(cursor: Cursor) -> Bundle:
    """Read the offload bundle at the cursor, and advance the cursor past it.

    A compressed bundle is decoded only up to the first bytes of its last image, and the decoded data are not kept.
    Raises FormatError for entries that overlap or leave the bundle, and for damaged data.
    """
    begin = cursor.position
    compressed = None
    if is_compressed_bundle(cursor.data, begin):
        compressed = read_compressed_bundle(cursor)
        entries, images = _compressed_content(compressed)
    else:
        # Errors of the table name the beginning of the bundle.
        error = functools.partial(FormatError, cursor.file, cursor.base + begin)
        entries = _table(cursor.take, cursor.remaining, error)
        _check_ranges(entries, cursor.end - begin, error)
        cursor.seek(begin + _end(entries), "bundle")
        images = _plain_images(cursor, begin, entries)
    stored = cursor.data[begin : cursor.position]
    return Bundle(entries, images, cursor.base + begin, compressed, stored)


def bundle_target(name: str) -> str:
    """Return the target that a bundle entry is for: ``gfx942`` for ``hipv4-amdgcn-amd-amdhsa--gfx942``.

    name: of the entry, KIND-ARCH-VENDOR-OS-ENVIRONMENT-TARGET. The target may have features (``gfx942:sramecc+``).
    Returns KIND-ARCH-VENDOR-OS where no processor is named, and the name itself when it has another form.
    """
    parts = name.split("-", _NAME_FIELDS)
    if len(parts) < _NAME_FIELDS:
        return name
    # The target is missing in some names. It may itself contain dashes (gfx10-3-generic, :xnack-).
    kind, arch, vendor, system, environment, *target = parts
    # Older names lack the environment, so the processor is in its place, and what follows its first dash in the target.
    if _PROCESSOR.match(environment):
        return "-".join((environment, *target))
    return "".join(target) or "-".join((kind, arch, vendor, system))


def build_bundle(
    entries: Iterable[tuple[str, bytes]],
    compression: Compression = Compression.NONE,
    version: int = DEFAULT_VERSION,
    *,
    alignment: int = ALIGNMENT,
) -> bytes:
    """Build an offload bundle; without compression it is byte for byte what ``clang-offload-bundler -type=o`` writes.

    entries: (name, content) of each. version: of the compressed format, used only with compression. alignment: of each
    content, in bytes. Raises ValueError as ``compress_bundle``.
    """
    rows = [(name.encode("latin-1"), content) for name, content in entries]
    table_size = len(MAGIC) + _COUNT.size + sum(_ENTRY.size + len(name) for name, _ in rows)
    table = bytearray(MAGIC + _COUNT.pack(len(rows)))
    body = bytearray()
    for name, content in rows:
        # Align the content in the bundle, in which the body comes after the table.
        body += bytes(-(table_size + len(body)) % alignment)
        table += _ENTRY.pack(table_size + len(body), len(content), len(name)) + name
        body += content
    plain = bytes(table + body)
    return plain if compression is Compression.NONE else compress_bundle(plain, compression, version)


def _table(take: _Take, size: int, error: _ErrorMaker) -> tuple[BundleEntry, ...]:
    """Read the table of entries at the beginning of a bundle.

    take: returns the bundle's next bytes, given their number and the field's name for errors. size: of the bundle, in
    bytes. error: makes the FormatError to raise, from the field, what was found and what was expected.
    """
    magic = bytes(take(len(MAGIC), "bundle magic"))
    if magic != MAGIC:
        raise error("bundle magic", repr(magic), repr(MAGIC))
    (count,) = _COUNT.unpack(take(_COUNT.size, "number of entries"))
    table_size = len(MAGIC) + _COUNT.size
    limit = min(size, _MAX_TABLE)
    if count > limit // _ENTRY.size:
        raise error("number of entries", str(count), f"at most {limit // _ENTRY.size}")
    entries = []
    for _ in range(count):
        offset, entry_size, name_size = _ENTRY.unpack(take(_ENTRY.size, "entry"))
        table_size += _ENTRY.size + name_size
        if table_size > limit:
            raise error("table of entries", f"{table_size} bytes long or more", f"at most {limit}")
        name = bytes(take(name_size, "name of an entry")).decode("latin-1")
        entries.append(BundleEntry(name, offset, entry_size))
    return tuple(entries)


def _table_size(entries: Iterable[BundleEntry]) -> int:
    """Return how many bytes the header and the table of a bundle with these entries have."""
    return len(MAGIC) + _COUNT.size + sum(_ENTRY.size + len(entry.name) for entry in entries)


def _end(entries: Sequence[BundleEntry]) -> int:
    """Return where a bundle ends: after its table and all contents."""
    return max([_table_size(entries), *(entry.offset + entry.size for entry in entries if entry.size)])


def _check_ranges(entries: Sequence[BundleEntry], size: int, error: _ErrorMaker) -> None:
    """Raise a FormatError unless each entry lies after the table, within ``size`` bytes, and overlaps no other.

    Entries without content may lie anywhere. error: makes the FormatError, from the field, what was found and what was
    expected.
    """
    end = _table_size(entries)
    for entry in sorted((entry for entry in entries if entry.size), key=lambda entry: entry.offset):
        if entry.offset < end:
            expected = f"{end:#x} or more, where what is before it ends"
            raise error(f"offset of {entry.name}", f"{entry.offset:#x}", expected)
        end = entry.offset + entry.size
        if end > size:
            expected = f"at most {size:#x}, where the bundle or its section ends"
            raise error(f"end of {entry.name}", f"{end:#x}", expected)


def _plain_images(cursor: Cursor, begin: int, entries: Sequence[BundleEntry]) -> tuple[Image, ...]:
    """Return the images of an uncompressed bundle that begins at ``begin`` of the cursor's data.

    Entries without content, such as the host's, have no image.
    """
    images: list[Image] = []
    for entry in entries:
        if entry.size:
            payload = cursor.data[begin + entry.offset : begin + entry.offset + entry.size]
            offset = cursor.base + begin + entry.offset
            images.append(section_image(len(images), entry.name, payload, cursor.file, offset))
    return tuple(images)


def section_image(index: int, name: str, payload: memoryview, file: str, offset: int) -> Image:
    """Return an image that is stored uncompressed in a bundle, or as a section of an object file.

    index: in its container. name: of the bundle entry, which states the target. payload: the image's bytes. file: its
    file, for error messages. offset: of the payload in the file, in bytes.
    """
    return Image(
        index=index,
        kind=_kind(bytes(payload[:_KIND_BYTES])),
        arch=bundle_target(name),
        compression=Compression.NONE,
        offset=offset,
        stored_size=len(payload),
        options="",
        version=(0, 0),
        flags=0,
        identifier=name,
        obfuscated=False,
        file=file,
        header=b"",
        payload=payload,
        encoded_size=None,
        decoded_size=len(payload),
    )


def _compressed_content(bundle: CompressedBundle) -> tuple[tuple[BundleEntry, ...], tuple[Image, ...]]:
    """Return the table of a compressed bundle, and an image for each entry with content.

    The kind of an image is found from its first bytes, so the bundle is decoded up to those of the last image. The
    images themselves are decoded when their data are used.
    """
    stream = bundle.stream()
    # Offsets within the decoded bundle are not offsets in the file: errors name the place of the compressed data.
    error = functools.partial(FormatError, bundle.file, bundle.offset)
    # The stream makes its own errors, without the name of a field.
    entries = _table(lambda size, _: stream.take(size), bundle.size, error)
    _check_ranges(entries, bundle.size, error)

    # The stream only moves forwards, and images may lie in another order than their entries. By offset, which is
    # different for each: entries do not overlap.
    kinds = {}
    for entry in sorted((entry for entry in entries if entry.size), key=lambda entry: entry.offset):
        stream.skip(entry.offset)
        kinds[entry.offset] = _kind(stream.take(min(entry.size, _KIND_BYTES)))
    images: list[Image] = []
    for entry in entries:
        if entry.size:
            images.append(
                Image(
                    index=len(images),
                    kind=kinds[entry.offset],
                    arch=bundle_target(entry.name),
                    compression=bundle.compression,
                    offset=bundle.offset,
                    stored_size=len(bundle.payload),
                    options="",
                    version=(0, 0),
                    flags=0,
                    identifier=entry.name,
                    obfuscated=False,
                    file=bundle.file,
                    header=b"",
                    payload=bundle.payload,
                    encoded_size=None,
                    decoded_size=entry.size,
                    within=bundle,
                    within_offset=entry.offset,
                )
            )
    return entries, tuple(images)


def _kind(head: bytes) -> ImageKind:
    """Return the kind of an image from its first ``_KIND_BYTES`` bytes (fewer if it is shorter)."""
    if head[:4] == ELF_MAGIC:
        machine = int.from_bytes(head[0x12:0x14], "little")  # e_machine
        return _MACHINES.get(machine, ImageKind.UNKNOWN)
    return ImageKind.BITCODE if head[:4] == _BITCODE_MAGIC else ImageKind.UNKNOWN
