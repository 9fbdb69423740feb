"""Containers of images: CUDA fatbins and offload bundles; a file that is a single image counts as one, too."""

from __future__ import annotations

import codecs
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from neutrino.elf.constants import E_MACHINE, EM_AMDGPU, EM_CUDA
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
_MOST_SHOWN = 40
"""Letters of a text that an error shows."""
_BUNDLE_MAGICS = (b"__CL", b"CCOB")
BUNDLE_SECTION = "__CLANG_OFFLOAD_BUNDLE__"
"""How the names of sections begin in which clang keeps the device code of an object; what follows is its target."""
_BITCODE_MAGIC = b"BC\xc0\xde"
_MAX_IMAGES = 1 << 18
"""Images and containers that one section may have, so that many tiny ones cannot use up the memory. The largest real
libraries have a tenth of this."""
_MAX_WALKED = 32 << 20
"""Bytes of a mapped file that are read before their pages are released."""
_NOT_ZERO = re.compile(rb"[^\0]")


@dataclass(frozen=True)
class Container:
    """Images that belong together: those of one translation unit, or one bare image.

    index: number of the container in its file. kind: ``cuda-fatbin``, ``hip-bundle``, ``offload-binary`` or ``file``.
    section: of the host ELF that contains it, empty if none. offset, size: in the file, in bytes; for a member of an
    archive, in the archive, or for a thin archive in the member's own file. header: bytes of the container's header,
    empty for ``file``. trailing: bytes after the container that were read with it. bundle: for a ``hip-bundle``, its
    table and compression; None when the image is a section by itself. member: name of the archive's member that
    contains it, empty if none. wrappers: versions of the wrappers (structures by which host code finds containers)
    that point to it, in file order: 1 for a translation unit's, 2 for one made by the device linker.
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
    """Read what a program passes to the driver: a fatbin, an offload bundle, a cubin, or PTX text that may end in NUL.

    name: what the data are, for error messages. The images refer to the data, which must not change while they are in
    use. Raises FormatError for anything else, and for damaged data.
    """
    view = memoryview(data)
    cursor = Cursor(view, name)
    if is_fatbin(view):
        container = _read_fatbin(cursor, index=0, section="", images_left=_MAX_IMAGES)
    elif is_bundle(view):
        container = _read_bundle(cursor, index=0, section="")
    else:
        # A single image states no size: it is all of the data.
        return read_bare(view, name)
    return replace(container, trailing=bytes(cursor.take(cursor.remaining, "rest")))


def read_bare(data: memoryview, name: str, section: str = "", base: int = 0) -> Container:
    """Read data that are a single image (cubin, code object, bitcode or text), as a container of kind ``file``.

    section, base: the section that the data come from, and their offset in the file, if they are not the whole file.
    Raises FormatError for anything else.
    """
    magic = bytes(data[:4])
    if magic == ELF_MAGIC:
        machine = Elf(data, name, base).machine
        if machine == EM_CUDA:
            # Imports are within functions here: they are slow, and listing a library needs none of these modules.
            from neutrino.sass.cubin import cubin_arch

            return _bare(data, name, ImageKind.CUBIN, cubin_arch(data, name), section, base)
        if machine == EM_AMDGPU:
            from neutrino.fatbin.code_object import code_object_target

            return _bare(data, name, ImageKind.CODE_OBJECT, code_object_target(data, name), section, base)
        expected = f"{EM_CUDA} (CUDA) or {EM_AMDGPU} (AMD GPU)"
        raise Cursor(data, name, base=base).error("e_machine", str(machine), expected, at=E_MACHINE)
    if magic == _BITCODE_MAGIC:
        return _bare(data, name, ImageKind.BITCODE, "", section, base)
    from neutrino.fatbin.ptxscan import is_ptx, ptx_target

    if is_ptx(data):
        return _bare(data, name, ImageKind.PTX, ptx_target(data), section, base)
    from neutrino.fatbin.gcn_text import gcn_target

    target = gcn_target(data)
    if target is not None:
        return _bare(data, name, ImageKind.TEXT, target, section, base)
    # Without any data the magic number is empty.
    found = _FOREIGN.get(magic, magic.hex(" ")) or "empty"
    expected = "a fatbin container, a cubin, or PTX text (it begins with .version)"
    # A library ("!<arch>") is no text, though all of its first bytes are letters.
    line = "" if magic in _FOREIGN else _first_line(data)
    if line:
        found = f"text that begins with {line!r}"
        expected += "; GPU code is in the compiled program or library" * (not section)
    raise FormatError(name, base, "content", found, expected)


def _first_line(data: memoryview) -> str:
    """Return how the first line of text begins that is not blank; "" if the data begin with what is no UTF-8 text."""
    # The last letter of what is looked at may be cut off.
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(bytes(data[:512])).strip()
    is_text = all(letter.isprintable() or letter.isspace() for letter in text) and "\ufffd" not in text
    return text.partition("\n")[0].rstrip()[:_MOST_SHOWN] if is_text else ""


def read_fatbins(cursor: Cursor, section: str, first_index: int = 0) -> Iterator[Container]:
    """Yield every CUDA container between the cursor and its end; only zero bytes may lie between them.

    section: the name of the section that is read, empty if none. first_index: the index of the first container.
    Raises FormatError for anything else than containers, and for more images than ``_MAX_IMAGES``.
    """
    index = first_index
    # Containers count too: any number of empty ones could follow each other.
    images_left = _MAX_IMAGES
    bytes_since_release = 0
    while cursor.remaining:
        begin = cursor.position
        nonzero = _NOT_ZERO.search(cursor.data, begin, cursor.end)
        if nonzero is None:
            return
        # Containers are 8-aligned in their section, and their magic does not begin with a zero byte. So the next one
        # begins at the last multiple of 8 up to the first byte that is not zero, or there is something else.
        cursor.seek(begin + (nonzero.start() - begin) // 8 * 8, "container")
        container = _read_fatbin(cursor, index, section, images_left)
        images_left -= 1 + len(container.images)
        bytes_since_release += container.size
        # Free the pages of a mapped file that have been read, so that a large file does not fill the memory.
        if bytes_since_release >= _MAX_WALKED:
            cursor.release()
            bytes_since_release = 0
        yield container
        index += 1


def read_bundles(cursor: Cursor, section: str, first_index: int = 0) -> Iterator[Container]:
    """Yield every offload bundle (``.hip_fatbin``), plain or compressed, between the cursor and its end.

    Only zero bytes may lie between them. section: the name of the section that is read, empty if none. first_index: the
    index of the first container. Raises FormatError for anything else, and for more images than ``_MAX_IMAGES``.
    """
    index = first_index
    # Containers count too: any number of empty ones could follow each other.
    images_left = _MAX_IMAGES
    bytes_since_release = 0
    # The magic of a bundle does not begin with a zero byte either, so the next one begins at the first other byte.
    while nonzero := _NOT_ZERO.search(cursor.data, cursor.position, cursor.end):
        cursor.seek(nonzero.start(), "bundle")
        container = _read_bundle(cursor, index, section)
        images_left -= 1 + len(container.images)
        if images_left < 0:
            raise cursor.error("number of images", f"above {_MAX_IMAGES}", "one that a section may have")
        bytes_since_release += container.size
        # Free the pages of a mapped file that have been read, so that a large file does not fill the memory.
        if bytes_since_release >= _MAX_WALKED:
            cursor.release()
            bytes_since_release = 0
        yield container
        index += 1


def read_bundled_section(cursor: Cursor, section: str, index: int = 0) -> Container | None:
    """Read a ``__CLANG_OFFLOAD_BUNDLE__<target>`` section of an object file: a container with the section's one image.

    cursor: over the section's content. section: its name. index: of the container. Returns None for the section of the
    host, which holds no device code.
    """
    from neutrino.fatbin.bundle import section_image

    target = section.removeprefix(BUNDLE_SECTION)
    if target.startswith("host-"):
        return None
    offset = cursor.base + cursor.position
    payload = cursor.take(cursor.remaining, "section")
    image = section_image(index=0, name=target, payload=payload, file=cursor.file, offset=offset)
    return Container(index, HIP_BUNDLE, section, offset, len(payload), (image,))


def fatbin_extent(cursor: Cursor) -> tuple[int | None, int]:
    """Return the size in bytes of the CUDA container at the cursor, and how many of its entries were plausible.

    The size is None unless every entry is plausible and the last one ends exactly where the container ends. This is
    stricter than reading, because it must reject data that only begin like a container; so an empty one, which has
    nothing but its header, is rejected too. The cursor does not move.
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
    """Whether the magic number of an offload bundle, plain or compressed, is at that offset."""
    return bytes(data[offset : offset + 4]) in _BUNDLE_MAGICS


def is_fatbin(data: memoryview, offset: int = 0) -> bool:
    """Whether the magic number of a CUDA container is at that offset."""
    return bytes(data[offset : offset + 4]) == _MAGIC_BYTES


def write_container(container: Container) -> bytes:
    """Serialize a container. For one that has not been changed these are the bytes that it was read from.

    Images may have been replaced (``dataclasses.replace``): then the size field of the header is updated, and a bundle
    is built anew.
    """
    if container.bundle is not None:
        return container.bundle.write(container.images) + container.trailing
    body = b"".join(part for image in container.images for part in (image.header, bytes(image.payload)))
    header = container.header
    # Only fatbins have one; that of an offload binary is a part of its image.
    if header:
        # Bytes 8 to 15 of the header are the size of the body.
        header = header[:8] + struct.pack("<Q", len(body)) + header[16:]
    return header + body + container.trailing


def build_container(entries: Iterable[bytes]) -> bytes:
    """Build a CUDA container from entries made by ``build_entry``, as ``fatbinary`` writes it."""
    body = b"".join(entries)
    return _HEADER.pack(_MAGIC, _VERSION, _HEADER.size, len(body)) + body


def _read_fatbin(cursor: Cursor, index: int, section: str, images_left: int) -> Container:
    """Read the CUDA container at the cursor, and advance the cursor past it.

    index: of the container. section: that is read, "" for none. images_left: how many images it may have at most.
    Raises FormatError for more of them, and for damaged data.
    """
    begin = cursor.position
    # Errors name the fields' places in the header: version at 4, header_size at 6.
    magic, version, header_size, body_size = cursor.unpack(_HEADER, "container header")
    if magic != _MAGIC:
        found = _FOREIGN.get(struct.pack("<I", magic), f"{magic:#010x}")
        raise cursor.error("container magic", found, f"{_MAGIC:#010x}", at=begin)
    if version != _VERSION:
        raise cursor.error("container version", str(version), str(_VERSION), at=begin + 4)
    if header_size < _HEADER.size:
        raise cursor.error("container header_size", str(header_size), f"at least {_HEADER.size}", at=begin + 6)
    # The header may be longer than its known fields. All of it is kept, to be written back.
    cursor.seek(begin, "container")
    header = bytes(cursor.take(header_size, "container header"))
    body_begin = cursor.position
    # This checks the size and moves the cursor past the container, whose entries have a cursor of their own.
    cursor.take(body_size, "container")

    entries = Cursor(cursor.data, cursor.file, start=body_begin, end=cursor.position, base=cursor.base)
    images: list[Image] = []
    released_to = body_begin
    while entries.remaining:
        if len(images) >= images_left:
            raise entries.error("number of images", f"above {_MAX_IMAGES}", "one that a section may have")
        images.append(read_entry(entries, len(images)))
        # Free the pages of a mapped file that have been read, so that a large file does not fill the memory.
        if entries.position - released_to >= _MAX_WALKED:
            entries.release()
            released_to = entries.position
    return Container(index, CUDA_FATBIN, section, cursor.base + begin, header_size + body_size, tuple(images), header)


def _read_bundle(cursor: Cursor, index: int, section: str) -> Container:
    """Read the offload bundle at the cursor, and advance the cursor past it. Raises FormatError for damaged data."""
    from neutrino.fatbin.bundle import read_bundle

    bundle = read_bundle(cursor)
    return Container(index, HIP_BUNDLE, section, bundle.offset, len(bundle.stored), bundle.images, bundle=bundle)


def _bare(data: memoryview, name: str, kind: ImageKind, arch: str, section: str, base: int) -> Container:
    """Return a container of kind ``file`` with one image, which is stored without a container's headers.

    name: the file, for error messages. base: the offset of the data in it.
    """
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
