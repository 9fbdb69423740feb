"""Containers: what holds images. A CUDA fatbin, or a bare image that is a file of its own."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from neutrino.elf.constants import EM_AMDGPU, EM_CUDA
from neutrino.elf.constants import MAGIC as ELF_MAGIC
from neutrino.elf.cursor import Cursor
from neutrino.elf.reader import Elf
from neutrino.errors import FormatError
from neutrino.fatbin.compression import Compression
from neutrino.fatbin.entry import entry_extent, read_entry
from neutrino.fatbin.image import Image, ImageKind

if TYPE_CHECKING:
    from neutrino.fatbin.bundle import Bundle

CUDA_FATBIN = "cuda-fatbin"
HIP_BUNDLE = "hip-bundle"
FILE = "file"

_HEADER = struct.Struct("<IHHQ")
_MAGIC = 0xBA55ED50
_MAGIC_BYTES = struct.pack("<I", _MAGIC)
_VERSION = 1
_FOREIGN = {
    struct.pack("<I", 0x1EE55A01): "a fatbin of the format before CUDA 5",
    struct.pack("<I", 0x466243B1): "a fatbin wrapper, which only points to the container",
    b"!<ar": "an archive",
    b"!<th": "a thin archive",
}
_BUNDLE_MAGICS = (b"__CL", b"CCOB")
BUNDLE_SECTION = "__CLANG_OFFLOAD_BUNDLE__"
"""How the names of sections begin in which clang keeps the device code of an object; what follows is its target."""
_BITCODE_MAGIC = b"BC\xc0\xde"
_MAX_IMAGES = 1 << 18
"""Images and containers in one section: tiny ones without end would take any memory. Of real libraries the largest
have a tenth of it."""
_MAX_WALKED = 32 << 20
"""Bytes of a mapped file that are walked through before their pages are let go of."""
_NOT_ZERO = re.compile(rb"[^\0]")


@dataclass(frozen=True)
class Container:
    """Images that belong together: those of one translation unit, or one bare image.

    kind: ``cuda-fatbin``, ``hip-bundle`` or ``file``. section: of the host ELF, empty if none. offset, size: in the
    file, in bytes; of a member of an archive, in the archive, or for a thin one in the member's own file. header: the
    container's own, empty for ``file``. trailing: bytes after it that were given with it. bundle: of a
    ``hip-bundle``, its table and how it is compressed; None when the image is a section of its own. member: the
    archive's member that it is in, empty if none. wrappers: versions of the wrappers that point to it, in file order:
    1 for a translation unit's, 2 for one that the device linker made; none when nothing in the file does.
    """

    index: int
    kind: str
    section: str
    offset: int
    size: int
    images: tuple[Image, ...]
    header: bytes = field(default=b"", repr=False)
    trailing: bytes = field(default=b"", repr=False)
    bundle: Bundle | None = field(default=None, repr=False)
    member: str = ""
    wrappers: tuple[int, ...] = ()


def read_container(data: bytes | memoryview, name: str) -> Container:
    """Read what a program hands to the driver: a fatbin container, a cubin, or PTX text that may end in NUL.

    name: what data are, for error messages. Images refer to data, so they must not change. Raises
    FormatError.
    """
    view = memoryview(data)
    cursor = Cursor(view, name)
    if is_fatbin(view):
        container = _read_fatbin(cursor, 0, "", _MAX_IMAGES)
    elif bytes(view[:4]) in _BUNDLE_MAGICS:
        container = _read_bundle(cursor, 0, "")
    else:
        return read_bare(view, name)
    return replace(container, trailing=bytes(cursor.take(cursor.remaining, "rest")))


def read_bare(data: memoryview, name: str, section: str = "", base: int = 0) -> Container:
    """Data that are one image: one container of kind ``file``. section, base: where the data are, if not the whole
    file. Raises FormatError for anything else."""
    magic = bytes(data[:4])
    if magic == ELF_MAGIC:
        machine = Elf(data, name, base).machine
        if machine == EM_CUDA:
            # Imports stand here and below, because a listing of a library needs none of them and is to start soon.
            from neutrino.sass.cubin import cubin_arch

            return _bare(data, name, ImageKind.CUBIN, cubin_arch(data, name), section, base)
        if machine == EM_AMDGPU:
            from neutrino.fatbin.code_object import code_object_target

            return _bare(data, name, ImageKind.CODE_OBJECT, code_object_target(data, name), section, base)
        known = f"{EM_CUDA} (CUDA) or {EM_AMDGPU} (AMD GPU)"
        raise Cursor(data, name, base=base).error("e_machine", str(machine), known, at=0x12)
    if magic == _BITCODE_MAGIC:
        return _bare(data, name, ImageKind.BITCODE, "", section, base)
    from neutrino.fatbin.ptxscan import is_ptx, ptx_target

    if is_ptx(data):
        return _bare(data, name, ImageKind.PTX, ptx_target(data), section, base)
    found = _FOREIGN.get(magic) or (magic.hex(" ") if magic else "empty")
    expected = "a fatbin container, a cubin, or PTX text (it begins with .version)"
    raise FormatError(name, base, "content", found, expected)


def read_fatbins(cursor: Cursor, section: str, first_index: int = 0) -> Iterator[Container]:
    """Every container between the cursor and its end, with zero bytes between them. Raises FormatError."""
    index = first_index
    left = _MAX_IMAGES
    walked = 0
    while cursor.remaining:
        begin = cursor.position
        found = _NOT_ZERO.search(cursor.data, begin, cursor.end)
        if found is None:
            return
        # Containers are 8-aligned in their section, and the magic does not begin with a zero byte.
        cursor.seek(begin + (found.start() - begin) // 8 * 8, "container")
        container = _read_fatbin(cursor, index, section, left)
        left -= 1 + len(container.images)
        walked += container.size
        if walked >= _MAX_WALKED:
            cursor.release()
            walked = 0
        yield container
        index += 1


def read_bundles(cursor: Cursor, section: str, first_index: int = 0) -> Iterator[Container]:
    """As read_fatbins, for the offload bundles of ``.hip_fatbin``, plain and compressed ones mixed."""
    index = first_index
    left = _MAX_IMAGES
    walked = 0
    while found := _NOT_ZERO.search(cursor.data, cursor.position, cursor.end):
        cursor.seek(found.start(), "bundle")
        container = _read_bundle(cursor, index, section)
        left -= 1 + len(container.images)
        if left < 0:
            raise cursor.error("number of images", f"above {_MAX_IMAGES}", "one that a section may have")
        walked += container.size
        if walked >= _MAX_WALKED:
            cursor.release()
            walked = 0
        yield container
        index += 1


def read_bundled_section(cursor: Cursor, section: str, index: int = 0) -> Container | None:
    """The one image of a ``__CLANG_OFFLOAD_BUNDLE__NAME`` section of an object; None for the host's, which is not
    device code."""
    from neutrino.fatbin.bundle import section_image

    name = section.removeprefix(BUNDLE_SECTION)
    if name.startswith("host-"):
        return None
    offset = cursor.base + cursor.position
    payload = cursor.take(cursor.remaining, "section")
    image = section_image(0, name, payload, cursor.file, offset)
    return Container(index, HIP_BUNDLE, section, offset, len(payload), (image,))


def fatbin_extent(cursor: Cursor) -> tuple[int | None, int]:
    """Bytes of the CUDA container under the cursor if its entries end where it ends, else None; and how many entries
    were looked at.

    Far stricter than reading is, for telling containers from what only begins like one. The cursor stays.
    """
    begin, data = cursor.position, cursor.data
    if cursor.remaining < _HEADER.size:
        return None, 0
    magic, version, header_size, body_size = _HEADER.unpack_from(data, begin)
    end = begin + header_size + body_size
    if (magic, version, header_size) != (_MAGIC, _VERSION, _HEADER.size) or not body_size or end > cursor.end:
        return None, 0
    position = begin + header_size
    entries = 0
    while position < end:
        size = entry_extent(data, position, end)
        if size is None:
            return None, entries
        position += size
        entries += 1
    return end - begin, entries


def is_bundle(data: memoryview, offset: int = 0) -> bool:
    """Whether the magic of an offload bundle, plain or compressed, is at that offset."""
    return bytes(data[offset : offset + 4]) in _BUNDLE_MAGICS


def is_fatbin(data: memoryview, offset: int = 0) -> bool:
    """Whether a CUDA container's magic is at that offset."""
    return bytes(data[offset : offset + 4]) == _MAGIC_BYTES


def write_container(container: Container) -> bytes:
    """The container's bytes. Of a container as it was read they are the bytes that it was read from.

    Images may have been exchanged (``dataclasses.replace``): the container's size field is made to fit, and a bundle
    is written anew.
    """
    if container.bundle is not None:
        return container.bundle.write(container.images) + container.trailing
    body = b"".join(part for image in container.images for part in (image.header, bytes(image.payload)))
    header = container.header
    if header:
        header = header[:8] + struct.pack("<Q", len(body)) + header[16:]
    return header + body + container.trailing


def build_container(entries: Iterable[bytes]) -> bytes:
    """A new CUDA container of entries made by ``build_entry``, as ``fatbinary`` writes it."""
    body = b"".join(entries)
    return _HEADER.pack(_MAGIC, _VERSION, _HEADER.size, len(body)) + body


def _read_fatbin(cursor: Cursor, index: int, section: str, left: int) -> Container:
    begin = cursor.position
    magic, version, header_size, body_size = cursor.unpack(_HEADER, "container header")
    if magic != _MAGIC:
        found = _FOREIGN.get(struct.pack("<I", magic), f"{magic:#010x}")
        raise cursor.error("container magic", found, f"{_MAGIC:#010x}", at=begin)
    if version != _VERSION:
        raise cursor.error("container version", str(version), str(_VERSION), at=begin + 4)
    if header_size < _HEADER.size:
        raise cursor.error("container header_size", str(header_size), f"at least {_HEADER.size}", at=begin + 6)
    cursor.seek(begin, "container")
    header = bytes(cursor.take(header_size, "container header"))
    body = cursor.position
    cursor.take(body_size, "container")
    entries = Cursor(cursor.data, cursor.file, start=body, end=cursor.position, base=cursor.base)
    images: list[Image] = []
    released = body
    while entries.remaining:
        if len(images) >= left:
            raise entries.error("number of images", f"above {_MAX_IMAGES}", "one that a section may have")
        images.append(read_entry(entries, len(images)))
        if entries.position - released >= _MAX_WALKED:
            entries.release()
            released = entries.position
    return Container(index, CUDA_FATBIN, section, cursor.base + begin, header_size + body_size, tuple(images), header)


def _read_bundle(cursor: Cursor, index: int, section: str) -> Container:
    from neutrino.fatbin.bundle import read_bundle

    bundle = read_bundle(cursor)
    return Container(index, HIP_BUNDLE, section, bundle.offset, len(bundle.stored), bundle.images, bundle=bundle)


def _bare(data: memoryview, name: str, kind: ImageKind, arch: str, section: str, base: int) -> Container:
    image = Image(
        index=0,
        kind=kind,
        arch=arch,
        compression=Compression.NONE,
        offset=base,
        stored_size=len(data),
        options="",
        version=(0, 0),
        flags=0,
        identifier="",
        obfuscated=False,
        file=name,
        header=b"",
        payload=data,
        encoded_size=None,
        decoded_size=len(data),
    )
    return Container(0, FILE, section, base, len(data), (image,))
