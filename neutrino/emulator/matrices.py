"""Fragments of 8 by 8 matrices of 16-bit elements (PTX ISA 9.7.14.5): ldmatrix, stmatrix, movmatrix.

Thread l of a warp holds elements (l / 4, 2 (l % 4)) and the one to the right of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from neutrino.emulator.access import Accesses
from neutrino.emulator.datatypes import Array
from neutrino.emulator.geometry import WARP
from neutrino.emulator.state import Indices
from neutrino.emulator.warp import WarpOperations

_LANES = np.arange(WARP)
_WORD = np.dtype("u4")
_HALF = np.dtype("u2")


class Matrices(Accesses, WarpOperations):
    """Each thread of eight names a row of 16 bytes; threads 8 i to 8 i + 7 those of matrix i."""

    def load_matrices(
        self, number: int, space: int, base: Any, offset: Any, count: int, transposed: bool, at: Indices | None
    ) -> list[Any]:
        """``ldmatrix``: a word a thread for each of ``count`` matrices."""
        naming, addresses = self.naming_rows(base, offset, count, at)
        words = self.load_some(number, space, addresses, _WORD, 4, naming)
        rows = np.zeros((self.threads, 4), _WORD)
        rows[naming] = np.stack([np.broadcast_to(word, naming.shape) for word in words], axis=1)
        halves = rows.view(_HALF).reshape(-1, WARP, 8)
        return [
            self.threads_in(_fragment(halves[:, 8 * matrix : 8 * matrix + 8], transposed), at)
            for matrix in range(count)
        ]

    def store_matrices(
        self,
        number: int,
        space: int,
        base: Any,
        offset: Any,
        values: Sequence[Any],
        transposed: bool,
        at: Indices | None,
    ) -> None:
        """``stmatrix``"""
        naming, addresses = self.naming_rows(base, offset, len(values), at)
        rows = np.zeros((self.threads // WARP, WARP, 8), _HALF)
        for matrix, value in enumerate(values):
            rows[:, 8 * matrix : 8 * matrix + 8] = _matrix(self.rows(value, at), transposed)
        words = rows.reshape(-1, 8).view(_WORD)[naming]
        self.store_some(number, space, addresses, _WORD, [words[:, place] for place in range(4)], naming)

    def naming_rows(self, base: Any, offset: Any, count: int, at: Indices | None) -> tuple[Indices, Any]:
        """The threads whose addresses count, and these."""
        addresses = base if offset is None else base + offset
        threads = np.arange(self.threads, dtype=np.int64) if at is None else at
        chosen = (threads & 31) < 8 * count
        return threads[chosen], addresses[chosen] if addresses.ndim else addresses

    def transpose_matrix(self, value: Any, at: Indices | None) -> tuple[Any]:
        """``movmatrix``"""
        return (self.threads_in(_fragment(_matrix(self.rows(value, at), False), True), at),)


def _fragment(matrices: Array, transposed: bool) -> Array:
    # [warp, 8, 8] of halves → [warp, 32] of words.
    if transposed:
        matrices = matrices.transpose(0, 2, 1)
    low = matrices[:, _LANES // 4, 2 * (_LANES % 4)].astype(_WORD)
    high = matrices[:, _LANES // 4, 2 * (_LANES % 4) + 1].astype(_WORD)
    words: Array = low | (high << np.uint32(16))
    return words


def _matrix(words: Array, transposed: bool) -> Array:
    # [warp, 32] of words → [warp, 8, 8] of halves.
    matrices: Array = np.ascontiguousarray(words, _WORD).view(_HALF).reshape(-1, 8, 8)
    return matrices.transpose(0, 2, 1) if transposed else matrices
