"""Libraries whose licence forbids changing them, recognized by their names, as in the hook."""

from __future__ import annotations

import contextlib
from pathlib import Path

from neutrino.abi.vendor_libraries import VENDOR_LIBRARIES
from neutrino.elf.constants import DT_SONAME, DT_STRTAB, MAGIC
from neutrino.elf.reader import Elf
from neutrino.errors import FormatError

_LONGEST_NAME = 4096
"""Bytes of DT_SONAME that are read, at most."""


def vendor_library(path: Path, data: memoryview | None = None) -> str | None:
    """Return the name that identifies a file as a vendor-licensed library; None if it is not one.

    The licence of such a library forbids changing it, so it is never patched. The file's name, the name of the file
    that a symbolic link leads to, and DT_SONAME are compared with the known libraries. data: the file's bytes, for
    DT_SONAME; None, or bytes of no valid ELF file, leave that out.
    """
    names = [path.name, path.resolve().name]
    if data is not None and bytes(data[: len(MAGIC)]) == MAGIC:
        # A damaged file may still be recognized by its name.
        with contextlib.suppress(FormatError):
            names.append(_soname(data, str(path)))
    return next((name for name in names if name.startswith(VENDOR_LIBRARIES)), None)


def _soname(data: memoryview, name: str) -> str:
    """Return the DT_SONAME of an ELF file, "" if it has none. Raises FormatError for a damaged file."""
    elf = Elf(data, name)
    strings = elf.file_range(elf.dynamic.get(DT_STRTAB, 0))
    if not strings or DT_SONAME not in elf.dynamic:
        return ""
    strings_begin, strings_end = strings
    begin = strings_begin + elf.dynamic[DT_SONAME]
    return bytes(data[begin : min(begin + _LONGEST_NAME, strings_end)]).partition(b"\0")[0].decode("latin-1")
