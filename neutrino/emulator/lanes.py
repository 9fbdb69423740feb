"""Sets of threads of a batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Lanes:
    """An immutable set of threads: as a mask, as sorted indices, and how many.

    at: the indices, None where the set is every thread of the batch.
    """

    __slots__ = ("_at", "count", "mask")

    def __init__(self, mask: NDArray[np.bool_], count: int, at: NDArray[np.int64] | None = None) -> None:
        self.mask = mask
        self.count = count
        self._at = at

    @property
    def at(self) -> NDArray[np.int64] | None:
        if self._at is None and self.count != self.mask.size:
            self._at = np.flatnonzero(self.mask)
        return self._at

    def indices(self) -> NDArray[np.int64]:
        """The indices, also where the set is every thread."""
        at = self.at
        return np.arange(self.mask.size) if at is None else at

    def joined(self, other: Lanes) -> Lanes:
        """This set and another one that shares no thread with it."""
        return Lanes(self.mask | other.mask, self.count + other.count)

    def split(self, condition: NDArray[np.bool_], true: int) -> tuple[Lanes, Lanes]:
        """The threads for which a condition, one element for each of them, holds (``true`` many), and the others."""
        at = self.at
        if at is None:
            return Lanes(condition, true), Lanes(~condition, self.count - true)
        first = at[condition]
        second = at[~condition]
        return of_indices(first, self.mask.size), of_indices(second, self.mask.size)


def of_indices(at: NDArray[np.int64], size: int) -> Lanes:
    """The set of these sorted indices."""
    mask = np.zeros(size, np.bool_)
    mask[at] = True
    return Lanes(mask, at.size, at if at.size != size else None)


def of_mask(mask: NDArray[np.bool_]) -> Lanes:
    """The set of the threads of a mask."""
    return Lanes(mask, int(np.count_nonzero(mask)))
