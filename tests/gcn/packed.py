"""Code objects of AMD's corpus in a file, for a machine that has none of what they are made with."""

from __future__ import annotations

import lzma
import pickle
from collections.abc import Iterable, Iterator
from pathlib import Path

_DICTIONARY = 1 << 27
"""Bytes in which what is the same is found: libraries for several versions of ROCm have nearly the same code."""


def pack(sources: Iterable[tuple[str, str, bytes]], file: Path) -> None:
    """Write code objects to a file: source, name and bytes of each."""
    contents: dict[bytes, bytes] = {}
    rows = []
    for source, name, data in sources:
        content = bytes(data)
        # The same object is pickled once.
        rows.append((source, name, contents.setdefault(content, content)))
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 2, "dict_size": _DICTIONARY}]
    with lzma.open(file, "wb", filters=filters) as packed:
        pickle.dump(rows, packed)


def unpacked(file: Path) -> Iterator[tuple[str, str, bytes]]:
    """Yield the code objects of a file that ``pack`` wrote. It must be one's own: it is a pickle."""
    with lzma.open(file) as packed:
        rows = pickle.load(packed)
    yield from rows
