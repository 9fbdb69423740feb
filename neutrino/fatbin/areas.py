"""Parts of a file that are searched for byte patterns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

BLOCK = 1 << 20
"""Bytes that are copied and searched at a time."""


@dataclass
class Area:
    """A part of an ELF file that is data.

    begin, end: offsets in the file; in a member of an archive, from the member's first byte. section: its name, empty
    in a file without section headers. writable: whether the program may write to it.
    """

    begin: int
    end: int
    section: str
    writable: bool


def occurrences(data: memoryview, begin: int, end: int, pattern: bytes) -> Iterator[int]:
    """Yield the offsets in ``data`` of every occurrence of the pattern in ``data[begin:end]``.

    The data are copied in blocks of 1 MiB, never as a whole: a memoryview cannot be searched.
    """
    for start in range(begin, end, BLOCK):
        # Blocks overlap, so that an occurrence across a border is found.
        block = bytes(data[start : min(start + BLOCK + len(pattern) - 1, end)])
        offset = block.find(pattern)
        while offset >= 0:
            yield start + offset
            offset = block.find(pattern, offset + 1)
