"""Offload binaries: clang's new driver puts one for each image into the section ``.llvm.offloading`` of an object file.

The layout is LLVM's (``llvm/Object/OffloadBinary.h``, version 1): a header, one entry, a table of keys and values, and
the image. Several follow each other, 8-aligned.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace

from neutrino.elf.cursor import Cursor
from neutrino.fatbin.bundle import section_image
from neutrino.fatbin.container import Container
from neutrino.fatbin.image import Image, ImageKind

OFFLOAD_BINARY = "offload-binary"
MAGIC = b"\x10\xff\x10\xad"

_HEADER = struct.Struct("<4sIQQQ")
_ENTRY = struct.Struct("<HHIQQQQ")
_STRING = struct.Struct("<QQ")
_ENTRY_OFFSET = 16
"""Where the entry's offset is in the header."""
_STRINGS_OFFSET, _IMAGE_OFFSET = 8, 24
"""Where the offsets of the strings and of the image are in the entry."""
_VERSION = 1
MAX_BINARIES = 1 << 17
"""Offload binaries that one section may have, so that many tiny ones cannot use up the memory."""
_PTX = 5
"""LLVM's ``IMG_PTX``. Images of other kinds are recognized by their first bytes."""
_MAX_STRINGS = 64
"""Keys of one image; LLVM writes two, the triple and the architecture."""
_MAX_STRING = 1 << 12
"""Bytes of a key or a value, with the NUL that ends it."""


def read_offload_binaries(cursor: Cursor, section: str, first_index: int = 0) -> Iterator[Container]:
    """Yield every offload binary between the cursor and its end, as a container with one image.

    section: the name of the section that is read. first_index: the index of the first container. Raises FormatError
    for damaged data, and for more than MAX_BINARIES.
    """
    index = first_index
    while cursor.remaining:
        begin = cursor.position
        # Padding to 8 bytes must be zero, else these bytes are read as a binary, which fails.
        padding = -begin % 8
        if not any(cursor.data[begin : min(begin + padding, cursor.end)]):
            cursor.take(min(padding, cursor.remaining), "padding")
        if cursor.remaining:
            if index - first_index >= MAX_BINARIES:
                raise cursor.error("number of offload binaries", f"above {MAX_BINARIES}", "one that a section may have")
            yield _read(cursor, index, section)
            index += 1


def _read(cursor: Cursor, index: int, section: str) -> Container:
    """Read the offload binary at the cursor, and advance the cursor past it.

    Raises FormatError for offsets and sizes that leave the binary or the file.
    """
    begin = cursor.position
    # Errors name the fields' places in the header: version at 4, size at 8, the entry's size at 24.
    magic, version, size, entry_offset, entry_size = cursor.unpack(_HEADER, "offload binary header")
    if magic != MAGIC:
        raise cursor.error("offload binary magic", magic.hex(" "), MAGIC.hex(" "), at=begin)
    if version != _VERSION:
        raise cursor.error("offload binary version", str(version), str(_VERSION), at=begin + 4)
    if size < _HEADER.size:
        raise cursor.error("offload binary size", str(size), f"at least {_HEADER.size}", at=begin + 8)
    if entry_size < _ENTRY.size:
        raise cursor.error("offload binary entry size", str(entry_size), f"at least {_ENTRY.size}", at=begin + 24)
    cursor.seek(begin, "offload binary")
    content = cursor.take(size, "offload binary (size)")

    # Offsets count from the beginning of the offload binary.
    binary = Cursor(content, cursor.file, base=cursor.base + begin)
    binary.seek(entry_offset, "offset of the entry", at=_ENTRY_OFFSET)
    kind, _, _, strings_offset, string_count, image_offset, image_size = binary.unpack(_ENTRY, "offload binary entry")
    binary.seek(strings_offset, "offset of the strings", at=entry_offset + _STRINGS_OFFSET)
    if string_count > _MAX_STRINGS:
        raise binary.error("number of strings", str(string_count), f"at most {_MAX_STRINGS}")
    string_offsets = [binary.unpack(_STRING, "string") for _ in range(string_count)]
    strings = {_string(binary, key): _string(binary, value) for key, value in string_offsets}
    binary.seek(image_offset, "offset of the image", at=entry_offset + _IMAGE_OFFSET)
    payload = binary.take(image_size, "image")
    image = _image(payload, kind, strings, cursor.file, binary.base)

    # Header and trailing bytes are kept, so that the container can be written back unchanged.
    image = replace(image, header=bytes(content[:image_offset]))
    trailing = bytes(content[image_offset + image_size :])
    return Container(index, OFFLOAD_BINARY, section, binary.base, size, (image,), trailing=trailing)


def _image(payload: memoryview, kind: int, strings: dict[str, str], file: str, offset: int) -> Image:
    """Return the image of an offload binary.

    kind: LLVM's ``ImageKind``. strings: the table of keys and values, with ``triple`` and ``arch``. offset: of the
    offload binary in the file.
    """
    triple, arch = strings.get("triple", ""), strings.get("arch", "")
    # The form of the names in bundles; it becomes the image's identifier.
    name = f"{triple}-{arch}" if arch else triple
    image = section_image(index=0, name=name, payload=payload, file=file, offset=offset)
    # PTX is text, without a magic number to recognize it by.
    if kind == _PTX and image.kind is ImageKind.UNKNOWN:
        image = replace(image, kind=ImageKind.PTX)
    return replace(image, arch=arch or triple)


def _string(binary: Cursor, offset: int) -> str:
    """Read the NUL-terminated string at an offset of the offload binary. Raises FormatError for one without a NUL."""
    binary.seek(offset, "offset of a string")
    content = bytes(binary.take(min(binary.remaining, _MAX_STRING), "string"))
    end = content.find(b"\0")
    if end < 0:
        raise binary.error("string", f"longer than {len(content)} bytes", "one that ends with NUL", at=offset)
    return content[:end].decode("latin-1")
