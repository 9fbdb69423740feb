"""Slots for intervals that overlap, so that those of one slot do not: of a multiprocessor, for its blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def slots_of(owners: Array, begins: Array, ends: Array) -> Array:
    """Return for each interval the number of its slot, from 0; those of one owner and slot do not overlap.

    As few slots as possible: an interval takes the one that was left first, of those that are free, and a new one only
    if none is. An interval may begin when another one ends. owners, begins, ends: int64 ``[interval]``; a begin is not
    after its end.
    """
    count = len(owners)
    if not count:
        return np.zeros(0, np.int64)
    # Intervals without length first, so that others that begin with them take their slot.
    by_begin = np.lexsort((ends, begins, owners))
    rank_of = np.empty(count, np.int64)
    rank_of[by_begin] = np.arange(count)
    is_point = begins == ends
    by_end = np.lexsort((rank_of, is_point, ends, owners))
    owner, begin = owners[by_begin], begins[by_begin]
    starts = np.flatnonzero(np.append(True, owner[1:] != owner[:-1]))
    sizes = np.diff(np.append(starts, count))
    first = np.repeat(starts, sizes)
    place = np.arange(count) - first

    # How many of the owner's intervals have ended when each one begins: ends and begins sorted together. At one time
    # ends come first, then intervals without length one after the other, then begins.
    times = np.concatenate([ends[by_end], begin])
    points = np.concatenate([is_point[by_end], is_point[by_begin]])
    is_begin = np.repeat(np.array([False, True]), count)
    phases = np.where(points, 1, 2 * is_begin)
    turns = np.concatenate([2 * rank_of[by_end] + 1, 2 * np.arange(count)])
    merged = np.lexsort((turns, phases, times, np.concatenate([owners[by_end], owner])))
    ended = np.cumsum(merged < count)
    at = np.empty(count, np.int64)
    begun = merged >= count
    at[merged[begun] - count] = ended[begun]
    ended_before = at - first

    # As many slots as were taken at once so far; an interval that adds none takes the one that was left next.
    taken = place + 1 - ended_before
    groups = np.repeat(np.arange(len(starts)), sizes)
    most = np.maximum.accumulate(taken + groups * (count + 1)) - groups * (count + 1)
    previous = np.append(0, most[:-1])
    previous[starts] = 0
    is_new = most > previous
    slots = np.where(is_new, most - 1, -1)
    # The n-th interval of an owner that takes no new slot follows the n-th that ended.
    reused = np.cumsum(~is_new)
    reused = reused - np.repeat(reused[starts] - np.where(is_new[starts], 0, 1), sizes)
    follows = np.arange(count)
    follows[~is_new] = rank_of[by_end[(first + reused - 1)[~is_new]]]
    # Each chain leads to an interval with a new slot; half of what is left at a time.
    while True:
        further = follows[follows]
        if (further == follows).all():
            break
        follows = further
    found = np.empty(count, np.int64)
    found[by_begin] = slots[follows]
    return found
