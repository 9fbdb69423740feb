"""Lanes of a warp as masks and as arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LANES = 32


def lanes_of(mask: int) -> NDArray[np.bool_]:
    """A mask as an array."""
    return _MASKS[mask] if mask in _MASKS else _MASKS.setdefault(
        mask, np.array([mask >> lane & 1 for lane in range(LANES)], bool)
    )  # fmt: skip


_MASKS: dict[int, NDArray[np.bool_]] = {}


def mask_of(lanes: NDArray[np.bool_]) -> int:
    """An array as a mask."""
    return int.from_bytes(np.packbits(lanes, bitorder="little").tobytes(), "little")
