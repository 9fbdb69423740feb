"""A bounds-checked reader of binary data, with which all fields of files are read."""

from __future__ import annotations

import mmap
import struct
from typing import Any

from neutrino.errors import FormatError

_WIDTHS = {size: struct.Struct(f"<{code}") for size, code in ((1, "B"), (2, "H"), (4, "I"), (8, "Q"))}


def release(data: memoryview) -> None:
    """Free the memory that the pages of a mapped file take; they are read again when they are accessed.

    Callers that read through a large file do so from time to time, so that it does not fill the memory. Accessing
    single pages all over a file loads many more (folios of the page cache, up to 2 MiB each). Data that are not a
    mapped file are left alone.
    """
    if data.readonly and isinstance(data.obj, mmap.mmap):
        data.obj.madvise(mmap.MADV_DONTNEED)


class Cursor:
    """Reads little-endian fields from ``data[start:end]``; reading beyond that range raises FormatError.

    file: what is read, as the user would name it. base: offset of data[0] in that file, for error messages. Positions
    count from data[0], not from start.
    """

    __slots__ = ("base", "data", "end", "file", "position", "start")

    def __init__(self, data: memoryview, file: str, *, start: int = 0, end: int | None = None, base: int = 0) -> None:
        """Start at ``data[start]``; parameters as described for the class. Raises FormatError for an invalid range."""
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
        """Free the memory that the pages of a mapped file take, as the function ``release``."""
        release(self.data)

    def error(self, field: str, found: str, expected: str, *, at: int | None = None) -> FormatError:
        """Return the FormatError for a field; the caller raises it.

        found, expected: in words. at: position of the field, None for the current position.
        """
        return FormatError(self.file, self.base + (self.position if at is None else at), field, found, expected)

    def take(self, size: int, field: str) -> memoryview:
        """Return the next ``size`` bytes, not copied, and advance. Raises FormatError, naming the field, if too few."""
        if not 0 <= size <= self.remaining:
            raise self.error(field, f"{size} bytes long", f"at most {self.remaining} bytes before the end")
        begin = self.position
        self.position += size
        return self.data[begin : self.position]

    def unpack(self, layout: struct.Struct, field: str) -> tuple[Any, ...]:
        """Return the next fields, as the ``struct`` layout has them, and advance. Raises FormatError if cut off."""
        if layout.size > self.remaining:
            raise self.error(field, f"cut off after {self.remaining} bytes", f"{layout.size} bytes")
        values = layout.unpack_from(self.data, self.position)
        self.position += layout.size
        return values

    def integer(self, size: int, field: str) -> int:
        """Return the next unsigned integer of 1, 2, 4 or 8 bytes, and advance. Raises FormatError if cut off."""
        value: int = self.unpack(_WIDTHS[size], field)[0]
        return value

    def seek(self, position: int, field: str, *, at: int | None = None) -> None:
        """Move to an absolute position. Raises FormatError when it is outside of the cursor's range.

        field: what states the position. at: where that field is, for the error; None for the current position.
        """
        if not self.start <= position <= self.end:
            raise self.error(field, f"{position:#x}", f"an offset from {self.start:#x} to {self.end:#x}", at=at)
        self.position = position
