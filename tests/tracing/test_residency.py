"""Slots for overlapping intervals, against a plain search one by one."""

from __future__ import annotations

import heapq
import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from neutrino.tracing.residency import slots_of

_INTERVALS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(0, 6)), max_size=60)


def _most_at_once(intervals: list[tuple[int, int]]) -> int:
    """How many slots are needed: each interval, by its begin, takes one that is free."""
    ends: list[int] = []
    most = 0
    for begin, end in sorted(intervals):
        if ends and ends[0] <= begin:
            heapq.heapreplace(ends, end)
        else:
            heapq.heappush(ends, end)
        most = max(most, len(ends))
    return most


@settings(max_examples=300, deadline=None)
@given(_INTERVALS)
def test_intervals_of_a_slot_do_not_overlap_and_slots_are_few(rows: list[tuple[int, int, int]]) -> None:
    owners = np.array([row[0] for row in rows], np.int64)
    begins = np.array([row[1] for row in rows], np.int64)
    ends = begins + np.array([row[2] for row in rows], np.int64)
    slots = slots_of(owners, begins, ends)
    for owner in set(owners.tolist()):
        of_owner = [index for index in range(len(rows)) if owners[index] == owner]
        needed = _most_at_once([(int(begins[index]), int(ends[index])) for index in of_owner])
        assert {int(slots[index]) for index in of_owner} == set(range(needed))
        for slot in range(needed):
            taken = sorted((int(begins[i]), int(ends[i])) for i in of_owner if slots[i] == slot)
            assert all(before[1] <= after[0] for before, after in itertools.pairwise(taken))
