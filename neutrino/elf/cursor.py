"""A bounds-checked position in bytes: the only way in which this package reads a field."""

from __future__ import annotations

import mmap
import struct
from typing import Any

from neutrino.errors import FormatError

_WIDTHS = {size: struct.Struct(f"<{code}") for size, code in ((1, "B"), (2, "H"), (4, "I"), (8, "Q"))}


def release(data: memoryview) -> None:
    """Let go of the memory that the pages of a mapped file take; they are there again when they are looked at.

    A page touched here and there brings many others along (folios of the page cache, 2 MiB each at most). Data that
    are no mapped file are left alone.
    """
    if data.readonly and isinstance(data.obj, mmap.mmap):
        data.obj.madvise(mmap.MADV_DONTNEED)


class Cursor:
    """Reads little-endian fields from data[start:end]; whatever would leave that range is a FormatError.

    file: what is read, as the user would name it. base: offset of data[0] in that file, for error messages.
    """

    __slots__ = ("base", "data", "end", "file", "position", "start")

    def __init__(self, data: memoryview, file: str, *, start: int = 0, end: int | None = None, base: int = 0) -> None:
        self.data = data
        self.file = file
        self.base = base
        self.start = start
        self.end = len(data) if end is None else end
        self.position = start
        if not 0 <= start <= self.end <= len(data):
            raise self.error("range", f"{start:#x} to {self.end:#x}", f"one within {len(data):#x} bytes")

    @property
    def remaining(self) -> int:
        """Bytes between the position and the end."""
        return self.end - self.position

    def release(self) -> None:
        """Let go of the memory that the pages of a mapped file take: ``release``."""
        release(self.data)

    def error(self, field: str, found: str, expected: str, *, at: int | None = None) -> FormatError:
        """The FormatError for a field at offset ``at`` of the data (the position, if left out)."""
        return FormatError(self.file, self.base + (self.position if at is None else at), field, found, expected)

    def take(self, size: int, field: str) -> memoryview:
        """The next size bytes, not copied; the position advances past them."""
        if not 0 <= size <= self.remaining:
            raise self.error(field, f"{size} bytes long", f"at most {self.remaining} bytes before the end")
        begin = self.position
        self.position += size
        return self.data[begin : self.position]

    def unpack(self, layout: struct.Struct, field: str) -> tuple[Any, ...]:
        """The next fields, by a ``struct`` layout."""
        if layout.size > self.remaining:
            raise self.error(field, f"cut off after {self.remaining} bytes", f"{layout.size} bytes")
        values = layout.unpack_from(self.data, self.position)
        self.position += layout.size
        return values

    def integer(self, size: int, field: str) -> int:
        """The next unsigned integer of 1, 2, 4 or 8 bytes."""
        value: int = self.unpack(_WIDTHS[size], field)[0]
        return value

    def seek(self, position: int, field: str, *, at: int | None = None) -> None:
        """Move to an absolute offset of the data, which must lie within the range. at: where the field is that holds
        it, for the error (the position, if left out)."""
        if not self.start <= position <= self.end:
            raise self.error(field, f"{position:#x}", f"an offset from {self.start:#x} to {self.end:#x}", at=at)
        self.position = position
