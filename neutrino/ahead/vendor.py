"""Libraries whose licence forbids changing them, recognized by their names, as in the hook."""

from __future__ import annotations

import contextlib
from pathlib import Path

from neutrino.abi.vendor_libraries import VENDOR_LIBRARIES
from neutrino.elf.constants import DT_SONAME, DT_STRTAB, MAGIC
from neutrino.elf.reader import Elf
from neutrino.errors import FormatError

_LONGEST_NAME = 4096


def vendor_library(path: Path, data: memoryview | None = None) -> str | None:
    """The name by which a file is a vendor-licensed library, None when it is none.

    path: its name counts, and that of the file that a link leads to. data: the file; DT_SONAME counts too. What is no
    valid ELF file has no such name.
    """
    names = [path.name, path.resolve().name]
    if data is not None and bytes(data[:4]) == MAGIC:
        with contextlib.suppress(FormatError):
            names.append(_soname(data, str(path)))
    return next((name for name in names if name.startswith(VENDOR_LIBRARIES)), None)


def _soname(data: memoryview, name: str) -> str:
    elf = Elf(data, name)
    place = elf.file_range(elf.dynamic.get(DT_STRTAB, 0))
    if not place or DT_SONAME not in elf.dynamic:
        return ""
    begin = place[0] + elf.dynamic[DT_SONAME]
    return bytes(data[begin : min(begin + _LONGEST_NAME, place[1])]).partition(b"\0")[0].decode("latin-1")
