"""Bytes of an array as the words of lanes, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def gather(memory: Array, places: Array, size: int) -> list[Array]:
    """Return what lanes load: a row of u32 for each 4 bytes, one for fewer. memory: u8. places: of each lane's first
    byte. size: bytes a lane."""
    if size >= 4 and memory.size % 4 == 0 and not (places & 3).any():
        words = memory.view(np.uint32)
        first = places >> 2
        return [words[first + word] for word in range(size // 4)]
    rows = []
    for word in range(0, size, 4):
        row = np.zeros(places.size, np.uint32)
        for byte in range(min(4, size - word)):
            row |= memory[places + (word + byte)].astype(np.uint32) << np.uint32(8 * byte)
        rows.append(row)
    return rows


def scatter(memory: Array, places: Array, size: int, rows: list[Array]) -> None:
    """Store what lanes have: as ``gather``. Where lanes write the same bytes, the highest lane wins."""
    if size >= 4 and memory.size % 4 == 0 and not (places & 3).any():
        words = memory.view(np.uint32)
        first = places >> 2
        for word, row in enumerate(rows):
            words[first + word] = row
        return
    for word in range(0, size, 4):
        for byte in range(min(4, size - word)):
            memory[places + (word + byte)] = (rows[word // 4] >> np.uint32(8 * byte)).astype(np.uint8)
