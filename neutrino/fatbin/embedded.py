"""Images that lie in a program's data: put there by ``bin2c``, ``xxd``, ``.incbin`` or as a string, for the program to
hand to the driver itself.

Nothing points to them and nothing bounds them, so they are looked for by their first bytes, and taken for what they
seem to be only when all of it holds together: a CUDA container whose entries end where it ends, an offload bundle, an
ELF file for a GPU with valid tables, a C string of PTX with a target and a kernel or function. What lies inside of one
is part of it: a compressed payload with the magic of a container in it is no container.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from neutrino.elf.constants import EM_AMDGPU, EM_CUDA, SHT_NOBITS
from neutrino.elf.cursor import Cursor, release
from neutrino.elf.reader import Elf
from neutrino.elf.rows import HEADER_LAYOUT
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
"""Bytes of comments before ``.version`` that are looked for."""
_MAX_WALKED = 32 << 20
"""Bytes of a mapped file that are searched before their pages are let go of."""
_MAX_STEPS = 1 << 17
"""Entries and sections looked at in vain, in one file: what only begins as images do could cost any time."""


@dataclass
class _Steps:
    """How much is left to look at in vain."""

    left: int = _MAX_STEPS


def find_embedded(data: memoryview, areas: list[Area], file: str, base: int = 0) -> Iterator[Container]:
    """The images in these areas, in their order; indices are all 0.

    file, base: name and offset of the data, for error messages. Raises FormatError when there is too much that begins
    as an image and is none.
    """
    steps = _Steps()
    for area in areas:
        yield from _find(data, area, file, base, steps)


def _find(data: memoryview, area: Area, file: str, base: int, steps: _Steps) -> Iterator[Container]:
    position = released = area.begin
    last_end = area.begin
    while position < area.end:
        if position - released >= _MAX_WALKED:
            release(data)
            released = position
        block = bytes(data[position : min(position + BLOCK + _LONGEST - 1, area.end)])
        for found in _possible_starts(block):
            if position + found < last_end:
                continue
            at = Cursor(data, file, start=position + found, end=area.end, base=base)
            if block.startswith(_FATBIN, found):
                container = _fatbin(at, area.section, steps)
            elif block.startswith(_BUNDLE, found):
                container = _bundle(at, area.section, steps)
            elif block.startswith(_ELF, found):
                container = _elf(at, area.section, steps)
            else:
                container, last_end = _ptx(at, area, last_end)
            if container is not None:
                yield container
                last_end = container.offset - base + container.size
        position = max(position + BLOCK, last_end)


def _possible_starts(data: bytes) -> list[int]:
    """Where a container may start in one block. data: the block and the first bytes of the next one.

    A match that starts in those bytes belongs to the next block.
    """
    places = []
    for pattern in _PATTERNS:
        place = data.find(pattern)
        while 0 <= place < BLOCK:
            places.append(place)
            place = data.find(pattern, place + 1)
    return sorted(places)


def _fatbin(cursor: Cursor, section: str, steps: _Steps) -> Container | None:
    size, seen = fatbin_extent(cursor)
    if size is not None:
        whole = Cursor(cursor.data, cursor.file, start=cursor.start, end=cursor.start + size, base=cursor.base)
        try:
            return next(read_fatbins(whole, section))
        except FormatError:
            pass
    _charge(cursor, steps, seen)
    return None


def _bundle(cursor: Cursor, section: str, steps: _Steps) -> Container | None:
    try:
        return next(read_bundles(cursor, section))
    except FormatError:
        _charge(cursor, steps, 0)
    return None


def _elf(cursor: Cursor, section: str, steps: _Steps) -> Container | None:
    if cursor.remaining < HEADER_LAYOUT.size:
        return None
    *_, machine, _, _, phoff, shoff, _, _, _, phnum, _, shnum, _ = HEADER_LAYOUT.unpack_from(cursor.data, cursor.start)
    if machine not in (EM_CUDA, EM_AMDGPU) or not shoff or not shnum:
        return None
    data = cursor.data[cursor.start : cursor.end]
    try:
        elf = Elf(data, cursor.file, cursor.base + cursor.start)
        ends = [shoff + shnum * 64, phoff + phnum * 56]
        ends += [part.offset + part.size for part in elf.sections if part.type != SHT_NOBITS]
        ends += [part.offset + part.file_size for part in elf.segments]
        if max(ends) <= len(data):
            return read_bare(data[: max(ends)], cursor.file, section, cursor.base + cursor.start)
    except FormatError:
        pass
    _charge(cursor, steps, shnum + phnum)
    return None


def _ptx(cursor: Cursor, area: Area, last_end: int) -> tuple[Container | None, int]:
    """The text around a ``.version``, and where the string that holds it ends."""
    data, version = cursor.data, cursor.start
    text = _TEXT.match(data, version, area.end)
    end = version if text is None else text.end()
    if not _VERSION.match(data, version, end) or end == area.end or data[end] != 0:
        return None, end
    floor = max(last_end, area.begin)
    prefix = bytes(data[max(floor, version - _MAX_PREFIX) : version])
    begin = version - len(prefix) + prefix.rfind(b"\0") + 1
    # A string that has PTX inside of something else, a usage or a pattern, is none.
    if (begin != floor and data[begin - 1] != 0) or not is_ptx(data[begin:end]):
        return None, end
    content = data[begin:end]
    if ptx_target(content) and (ptx_entries(content) or _FUNCTION.search(content)):
        return read_bare(content, cursor.file, area.section, cursor.base + begin), end
    return None, end


def _charge(cursor: Cursor, steps: _Steps, cost: int) -> None:
    steps.left -= cost + 1
    if steps.left < 0:
        raise cursor.error("data", "full of what begins as images and is none", "a program's data")
