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
_SIZE = 8  # of a matrix: rows, and elements of a row
_ROW_WORDS = 4


class Matrices(Accesses, WarpOperations):
    """Loads and stores of matrices. Lanes 8 i to 8 i + 7 of a warp have the addresses of the rows of matrix i.

    A row is 16 bytes. ``at``: indices of the threads that execute the instruction, None for all threads of the batch.
    """

    def load_matrices(
        self, number: int, space: int, base: Any, offset: Any, count: int, transposed: bool, at: Indices | None
    ) -> list[Any]:
        """Execute ``ldmatrix``. Returns for each of ``count`` matrices one 32-bit word (two elements) per thread.

        number: the statement's, for faults. space: a ``Space``. base, offset: each thread's address is their sum;
        offset may be None. transposed: each matrix is transposed when loaded.
        """
        threads, addresses = self.row_addresses(base, offset, count, at)
        words = self.load_some(number, space, addresses, _WORD, _ROW_WORDS, threads)
        # The row at each thread's address; zeros for threads that have none.
        rows = np.zeros((self.threads, _ROW_WORDS), _WORD)
        rows[threads] = np.stack([np.broadcast_to(word, threads.shape) for word in words], axis=1)
        # As [warp, row, element]: matrix i has the rows 8 i to 8 i + 7.
        halves = rows.view(_HALF).reshape(-1, WARP, _SIZE)
        return [
            self.threads_in(_fragment(halves[:, _SIZE * matrix : _SIZE * (matrix + 1)], transposed=transposed), at)
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
        """Execute ``stmatrix``. values: for each matrix one 32-bit word (two elements) per thread.

        number: the statement's, for faults. space: a ``Space``. base, offset: each thread's address is their sum;
        offset may be None. transposed: each matrix is transposed when stored.
        """
        threads, addresses = self.row_addresses(base, offset, len(values), at)
        # As [warp, row, element]: matrix i has the rows 8 i to 8 i + 7, which go to the addresses of these lanes.
        rows = np.zeros((self.threads // WARP, WARP, _SIZE), _HALF)
        for matrix, value in enumerate(values):
            rows[:, _SIZE * matrix : _SIZE * (matrix + 1)] = _matrix(self.rows(value, at), transposed=transposed)
        words = rows.reshape(-1, _SIZE).view(_WORD)[threads]
        columns = [words[:, column] for column in range(_ROW_WORDS)]
        self.store_some(number, space, addresses, _WORD, columns, threads)

    def row_addresses(self, base: Any, offset: Any, count: int, at: Indices | None) -> tuple[Indices, Any]:
        """Return the threads that have the address of a row, and these addresses: base + offset (None: 0).

        Those are the first 8 lanes of each warp for each of ``count`` matrices; the addresses of others are ignored.
        """
        addresses = base if offset is None else base + offset
        threads = np.arange(self.threads, dtype=np.int64) if at is None else at
        lane = threads & 31  # % WARP, but faster
        has_row = lane < _SIZE * count
        # A scalar address is that of all threads.
        return threads[has_row], addresses[has_row] if addresses.ndim else addresses

    def transpose_matrix(self, value: Any, at: Indices | None) -> tuple[Any]:
        """Execute ``movmatrix``: transpose the matrix of which each thread has one word. Returns the words, in a tuple.

        The generated code unpacks a tuple of results from every warp-wide operation.
        """
        matrices = _matrix(self.rows(value, at), transposed=False)
        return (self.threads_in(_fragment(matrices, transposed=True), at),)


def _fragment(matrices: Array, *, transposed: bool) -> Array:
    """Return the word of each lane, uint32[warp, 32], of one matrix per warp, uint16[warp, 8, 8].

    Lane l has the element (l / 4, 2 (l % 4)) in its low half, and the one to the right of it in its high half.
    transposed: transpose the matrices first.
    """
    if transposed:
        matrices = matrices.transpose(0, 2, 1)
    row, column = _LANES // 4, 2 * (_LANES % 4)
    low = matrices[:, row, column].astype(_WORD)
    high = matrices[:, row, column + 1].astype(_WORD)
    words: Array = low | (high << np.uint32(16))
    return words


def _matrix(words: Array, *, transposed: bool) -> Array:
    """Return one matrix per warp, uint16[warp, 8, 8], from the word of each lane, uint32[warp, 32].

    It undoes ``_fragment``: in the order of the lanes, the low half first, the elements are row by row.
    transposed: transpose the matrices afterwards.
    """
    matrices: Array = np.ascontiguousarray(words, _WORD).view(_HALF).reshape(-1, _SIZE, _SIZE)
    return matrices.transpose(0, 2, 1) if transposed else matrices
