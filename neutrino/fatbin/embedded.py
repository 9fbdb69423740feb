"""Images in a program's data, put there by ``bin2c``, ``xxd``, ``.incbin`` or as a string. The program passes them to
the driver itself.

No structure points to them or states where they end. So they are searched for by their first bytes, and accepted only
if the whole is consistent: a CUDA container whose entries end where it ends, an offload bundle, an ELF file for a GPU
with valid tables, a C string of PTX with a target and a kernel or function. What lies inside an accepted image is part
of it: a compressed payload may contain the magic number of a container.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from neutrino.elf.constants import EM_AMDGPU, EM_CUDA, SHT_NOBITS
from neutrino.elf.cursor import Cursor, release
from neutrino.elf.reader import Elf
from neutrino.elf.rows import HEADER_LAYOUT, SECTION_LAYOUT, SEGMENT_LAYOUT
from neutrino.errors import FormatError
from neutrino.fatbin.areas import BLOCK, Area
from neutrino.fatbin.container import Container, fatbin_extent, read_bare, read_bundles, read_fatbins
from neutrino.fatbin.ptxscan import is_ptx, ptx_entries, ptx_target

_FATBIN = struct.pack("<IH", 0xBA55ED50, 1)
_BUNDLE = b"__CLANG_OFFLOAD_BUNDLE__"
_ELF = b"\x7fELF\x02\x01"
_PTX = b".version "
_PATTERNS = (_FATBIN, _BUNDLE, _ELF, _PTX)
_LONGEST = max(map(len, _PATTERNS))
_TEXT = re.compile(rb"[\t\n\v\f\r\x20-\x7e\x80-\xff]*")
_VERSION = re.compile(rb"\.version +\d+\.\d+\s")
_FUNCTION = re.compile(rb"\.func\b")
_MAX_PREFIX = 1 << 12
"""How far before ``.version`` the beginning of PTX text, which may be a comment, is searched for, in bytes."""
_MAX_WALKED = 32 << 20
"""Bytes of a mapped file that are searched before their pages are released."""
_MAX_REJECTED = 1 << 17
"""Entries and sections of rejected candidates that may be read in one file: this bounds the time for data that are full
of what only begins like an image."""


@dataclass
class _Budget:
    """How many more entries and sections of rejected candidates may be read in this file."""

    left: int = _MAX_REJECTED


def find_embedded(data: memoryview, areas: list[Area], file: str, base: int = 0) -> Iterator[Container]:
    """Search areas of a file's data for images, and yield each as a container, in the order of the areas.

    The index of every container is 0. file, base: name of the file and offset of the data in it, for error messages.
    Raises FormatError when too many places begin like an image but are none.
    """
    budget = _Budget()
    for area in areas:
        yield from _find(data, area, file, base, budget)


def _find(data: memoryview, area: Area, file: str, base: int, budget: _Budget) -> Iterator[Container]:
    """Yield the images in one area as containers; other parameters as for find_embedded.

    The area is searched in blocks of 1 MiB. budget: counts what is read of places that only begin like an image.
    """
    position = released_to = area.begin
    # Candidates inside an image that was found before are part of it. For PTX, last_end is also the end of a string
    # that was rejected.
    last_end = area.begin
    while position < area.end:
        if position - released_to >= _MAX_WALKED:
            release(data)
            released_to = position
        # The block overlaps the next one, so that a pattern across the border is found.
        block = bytes(data[position : min(position + BLOCK + _LONGEST - 1, area.end)])
        for start in _possible_starts(block):
            if position + start < last_end:
                continue
            cursor = Cursor(data, file, start=position + start, end=area.end, base=base)
            if block.startswith(_FATBIN, start):
                container = _fatbin(cursor, area.section, budget)
            elif block.startswith(_BUNDLE, start):
                container = _bundle(cursor, area.section, budget)
            elif block.startswith(_ELF, start):
                container = _elf(cursor, area.section, budget)
            else:
                container, last_end = _ptx(cursor, area, last_end)
            if container is not None:
                yield container
                last_end = container.offset - base + container.size
        # The next block; after an image that ends beyond it, what follows the image.
        position = max(position + BLOCK, last_end)


def _possible_starts(data: bytes) -> list[int]:
    """Return the sorted offsets in a block at which an image may begin: those of the patterns.

    data: the block and the first bytes of the next one. A match that begins in those belongs to the next block.
    """
    offsets = []
    for pattern in _PATTERNS:
        offset = data.find(pattern)
        while 0 <= offset < BLOCK:
            offsets.append(offset)
            offset = data.find(pattern, offset + 1)
    return sorted(offsets)


def _fatbin(cursor: Cursor, section: str, budget: _Budget) -> Container | None:
    """Return the CUDA container at the cursor, None if there is no valid one. The cursor does not move.

    section: the name of its section. budget: counts a candidate that is rejected.
    """
    # The whole extent is checked first, since data may begin like a container by chance.
    size, entries = fatbin_extent(cursor)
    if size is not None:
        container_cursor = Cursor(
            cursor.data, cursor.file, start=cursor.start, end=cursor.start + size, base=cursor.base
        )
        try:
            return next(read_fatbins(container_cursor, section))
        except FormatError:
            pass
    _spend(cursor, budget, entries)
    return None


def _bundle(cursor: Cursor, section: str, budget: _Budget) -> Container | None:
    """Return the offload bundle at the cursor, None if there is no valid one."""
    try:
        return next(read_bundles(cursor, section))
    except FormatError:
        _spend(cursor, budget, cost=0)
    return None


def _elf(cursor: Cursor, section: str, budget: _Budget) -> Container | None:
    """Return the GPU's ELF file (a cubin or code object) at the cursor, None if there is no valid one.

    An ELF file does not state its size: it ends where the last of its tables, sections and segments ends. section: the
    name of the section that it is in. budget: counts a candidate that is rejected.
    """
    if cursor.remaining < HEADER_LAYOUT.size:
        return None
    *_, machine, _, _, phoff, shoff, _, _, _, phnum, _, shnum, _ = HEADER_LAYOUT.unpack_from(cursor.data, cursor.start)
    # The files that GPUs' compilers make always have section headers.
    if machine not in (EM_CUDA, EM_AMDGPU) or not shoff or not shnum:
        return None
    data = cursor.data[cursor.start : cursor.end]
    try:
        elf = Elf(data, cursor.file, cursor.base + cursor.start)
        ends = [shoff + shnum * SECTION_LAYOUT.size, phoff + phnum * SEGMENT_LAYOUT.size]
        ends += [header.offset + header.size for header in elf.sections if header.type != SHT_NOBITS]
        ends += [header.offset + header.file_size for header in elf.segments]
        if max(ends) <= len(data):
            return read_bare(data[: max(ends)], cursor.file, section, cursor.base + cursor.start)
    except FormatError:
        pass
    _spend(cursor, budget, shnum + phnum)
    return None


def _ptx(cursor: Cursor, area: Area, last_end: int) -> tuple[Container | None, int]:
    """Return the PTX text around the ``.version`` at the cursor, None if there is none; and where its string ends.

    area: that is searched. last_end: where the image or string before it ends; the text does not begin before that.
    """
    data, version = cursor.data, cursor.start
    # The string goes on while its bytes are text, and must end with NUL.
    text = _TEXT.match(data, version, area.end)
    end = version if text is None else text.end()
    ends_with_nul = end < area.end and data[end] == 0
    if not ends_with_nul or not _VERSION.match(data, version, end):
        return None, end

    # It begins after the last NUL before .version: there may be comments in between. Without a NUL (rfind returns -1)
    # it begins where the prefix does; that must be the floor, or else the prefix was cut off.
    floor = max(last_end, area.begin)
    prefix = bytes(data[max(floor, version - _MAX_PREFIX) : version])
    begin = version - len(prefix) + prefix.rfind(b"\0") + 1
    has_beginning = begin == floor or data[begin - 1] == 0
    # Strings that only contain PTX, such as a usage message or a pattern, are not PTX.
    if not has_beginning or not is_ptx(data[begin:end]):
        return None, end
    content = data[begin:end]
    if ptx_target(content) and (ptx_entries(content) or _FUNCTION.search(content)):
        return read_bare(content, cursor.file, area.section, cursor.base + begin), end
    return None, end


def _spend(cursor: Cursor, budget: _Budget, cost: int) -> None:
    """Count a rejected candidate: a place that begins like an image and is none.

    cost: how many of its entries or sections were read. Raises FormatError when the budget is used up, because such
    data could otherwise take any amount of time.
    """
    budget.left -= cost + 1
    if budget.left < 0:
        raise cursor.error("data", "full of what begins as images and is none", "a program's data")
