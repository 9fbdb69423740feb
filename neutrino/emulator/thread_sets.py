"""Sets of threads of a batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Lanes:
    """An immutable set of threads of a batch: as a mask, as sorted indices, and their count.

    mask: one element per thread of the batch. count: the number of threads in the set. at: their sorted indices, None
    if the set is every thread of the batch; computed on first use.
    """

    __slots__ = ("_at", "count", "mask")

    def __init__(self, mask: NDArray[np.bool_], count: int, at: NDArray[np.int64] | None = None) -> None:
        """mask: one element per thread of the batch. count: how many threads are in the set.

        at: their sorted indices; if they are not given they are computed from the mask when needed.
        """
        self.mask = mask
        self.count = count
        self._at = at

    @property
    def at(self) -> NDArray[np.int64] | None:
        """The sorted indices of the threads, None if the set is every thread of the batch."""
        if self._at is None and self.count != self.mask.size:
            self._at = np.flatnonzero(self.mask)
        return self._at

    def indices(self) -> NDArray[np.int64]:
        """Return the sorted indices of the threads, also if the set is every thread of the batch."""
        at = self.at
        return np.arange(self.mask.size) if at is None else at

    def joined(self, other: Lanes) -> Lanes:
        """Return the union of this set with a disjoint one."""
        return Lanes(self.mask | other.mask, self.count + other.count)

    def split(self, condition: NDArray[np.bool_], true: int) -> tuple[Lanes, Lanes]:
        """Split the set by a condition that has one element per thread of the set.

        Return the threads where it is true (`true` is their number) and those where it is false.
        """
        at = self.at
        if at is None:
            # The set is every thread of the batch, so that the condition is a mask already.
            return Lanes(condition, true), Lanes(~condition, self.count - true)
        return of_indices(at[condition], self.mask.size), of_indices(at[~condition], self.mask.size)


def of_indices(indices: NDArray[np.int64], size: int) -> Lanes:
    """Return the set of the threads with these sorted indices, in a batch of `size` threads."""
    mask = np.zeros(size, np.bool_)
    mask[indices] = True
    return Lanes(mask, indices.size, indices if indices.size != size else None)


def of_mask(mask: NDArray[np.bool_]) -> Lanes:
    """Return the set of the threads that a mask marks, which has one element per thread of the batch."""
    return Lanes(mask, int(np.count_nonzero(mask)))
