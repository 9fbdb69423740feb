"""Parts of a file in which something is looked for by its first bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

BLOCK = 1 << 20
"""Bytes that are copied and searched at a time."""


@dataclass
class Area:
    """A part of a file that is data: file offsets, the section's name, and whether the program may write to it."""

    begin: int
    end: int
    section: str
    writable: bool


def occurrences(data: memoryview, begin: int, end: int, pattern: bytes) -> Iterator[int]:
    """Offsets of the pattern in data[begin:end]. The data are not copied as a whole."""
    for start in range(begin, end, BLOCK):
        block = bytes(data[start : min(start + BLOCK + len(pattern) - 1, end)])
        found = block.find(pattern)
        while found >= 0:
            yield start + found
            found = block.find(pattern, found + 1)
