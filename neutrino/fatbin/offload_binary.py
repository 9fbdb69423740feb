"""Offload binaries: what clang's new driver puts into ``.llvm.offloading`` of objects, one for each image.

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
"""Of the field in the header; the others in the entry."""
_STRINGS_OFFSET, _IMAGE_OFFSET = 8, 24
_VERSION = 1
MAX_BINARIES = 1 << 17
"""In one section: tiny ones without end would take any memory."""
_PTX = 5
"""ImageKind of ``IMG_PTX``; the others' first bytes tell what they are."""
_MAX_STRINGS = 64
"""Keys of one image; LLVM writes two, the triple and the architecture."""
_MAX_STRING = 1 << 12


def read_offload_binaries(cursor: Cursor, section: str, first_index: int = 0) -> Iterator[Container]:
    """Every offload binary between the cursor and its end: a container with one image each. Raises FormatError."""
    index = first_index
    while cursor.remaining:
        if index - first_index > MAX_BINARIES:
            raise cursor.error("number of offload binaries", f"above {MAX_BINARIES}", "one that a section may have")
        begin = cursor.position
        padding = -begin % 8
        if not any(cursor.data[begin : min(begin + padding, cursor.end)]):
            cursor.take(min(padding, cursor.remaining), "padding")
        if cursor.remaining:
            yield _read(cursor, index, section)
            index += 1


def _read(cursor: Cursor, index: int, section: str) -> Container:
    begin = cursor.position
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
    whole = cursor.take(size, "offload binary (size)")
    inner = Cursor(whole, cursor.file, base=cursor.base + begin)
    inner.seek(entry_offset, "offset of the entry", at=_ENTRY_OFFSET)
    kind, _, _, strings_offset, strings, image_offset, image_size = inner.unpack(_ENTRY, "offload binary entry")
    inner.seek(strings_offset, "offset of the strings", at=entry_offset + _STRINGS_OFFSET)
    if strings > _MAX_STRINGS:
        raise inner.error("number of strings", str(strings), f"at most {_MAX_STRINGS}")
    places = [inner.unpack(_STRING, "string") for _ in range(strings)]
    words = {_string(inner, key): _string(inner, value) for key, value in places}
    inner.seek(image_offset, "offset of the image", at=entry_offset + _IMAGE_OFFSET)
    payload = inner.take(image_size, "image")
    image = _image(payload, kind, words, cursor.file, inner.base)
    image = replace(image, header=bytes(whole[:image_offset]))
    tail = bytes(whole[image_offset + image_size :])
    return Container(index, OFFLOAD_BINARY, section, inner.base, size, (image,), trailing=tail)


def _image(payload: memoryview, kind: int, words: dict[str, str], file: str, offset: int) -> Image:
    triple, arch = words.get("triple", ""), words.get("arch", "")
    image = section_image(0, f"{triple}-{arch}" if arch else triple, payload, file, offset)
    if kind == _PTX and image.kind is ImageKind.UNKNOWN:
        image = replace(image, kind=ImageKind.PTX)
    return replace(image, arch=arch or triple)


def _string(inner: Cursor, offset: int) -> str:
    inner.seek(offset, "offset of a string")
    content = bytes(inner.take(min(inner.remaining, _MAX_STRING), "string"))
    end = content.find(b"\0")
    if end < 0:
        raise inner.error("string", f"longer than {len(content)} bytes", "one that ends with NUL", at=offset)
    return content[:end].decode("latin-1")
