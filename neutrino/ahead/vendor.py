"""Libraries whose licence forbids changing them: told by their names, as the hook does."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

from neutrino.errors import FormatError
from neutrino.fatbin.cursor import Cursor
from neutrino.fatbin.elf import MAGIC, PT_DYNAMIC, Elf
from neutrino.probing.layout import VENDOR_LIBRARIES

_DT_STRTAB = 5
_DT_SONAME = 14
_DYNAMIC = struct.Struct("<QQ")
_LONGEST_NAME = 4096


def vendor_library(path: Path, data: memoryview | None = None) -> str | None:
    """The name by which a file is a vendor-licensed library, None when it is none.

    path: its name counts, and that of the file that a link leads to. data: the file; DT_SONAME counts too. What is no
    sound ELF file has no such name.
    """
    names = [path.name, path.resolve().name]
    if data is not None and bytes(data[:4]) == MAGIC:
        with contextlib.suppress(FormatError):
            names.append(_soname(data, str(path)))
    return next((name for name in names if name.startswith(VENDOR_LIBRARIES)), None)


def _soname(data: memoryview, name: str) -> str:
    elf = Elf(data, name)
    for segment in elf.segments:
        if segment.type != PT_DYNAMIC:
            continue
        end = segment.offset + segment.file_size // _DYNAMIC.size * _DYNAMIC.size
        cursor = Cursor(data, name, start=segment.offset, end=end)
        tags: dict[int, int] = {}
        while cursor.remaining:
            tag, value = cursor.unpack(_DYNAMIC, "dynamic entry")
            if tag == 0:
                break
            tags.setdefault(tag, value)
        place = elf.file_range(tags.get(_DT_STRTAB, 0))
        if place and _DT_SONAME in tags:
            begin = place[0] + tags[_DT_SONAME]
            return bytes(data[begin : begin + _LONGEST_NAME]).partition(b"\0")[0].decode("latin-1")
    return ""
