"""The counters of a trace, where a part of them is missing: those launches are counted that have records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.abi.launches import REASON_SLOTS, LaunchState
from neutrino.abi.reasons import Reason
from neutrino.late_dataclass import dataclass
from neutrino.tracing.launches import Launches

Array = npt.NDArray[Any]
_MOST_KERNELS = 1 << 20
"""Kernels whose launches are counted by their records."""


@dataclass(frozen=True)
class KnownCounts:
    """What is known of how many launches there were.

    counters: launches ``[kernel][reason]``, u64. is_whole: whether none is missing. fault: what is damaged, a sentence
    without the file's name; "" if nothing else than what reading the file has found.
    """

    counters: Array
    is_whole: bool
    fault: str = ""


def known_counts(
    launches: Launches, known: Collection[int], recorded: Callable[[], Iterable[int]],
    numbers_of: Callable[[int], Array], *, is_damaged: bool,
) -> KnownCounts:
    """Return the counters; of those that are missing, with the launches counted as probed that have records.

    known: ids of the kernels that the events name. recorded: gives the ids that launch records have. numbers_of: gives
    the launch records of a kernel. is_damaged: whether reading the counters has found a fault.
    """  # fmt: skip
    counters = launches.counters
    if launches.shared_row:
        return KnownCounts(counters, not is_damaged)
    if not launches.ended:
        # Of a killed process, or on a full disk, they may not have been written.
        return KnownCounts(counters, not is_damaged and bool(counters.any()))
    # Records are looked at only if a kernel has no launch: else nothing can be missing but single counts.
    if known and not is_damaged and all(0 <= one < len(counters) and counters[one].any() for one in known):
        return KnownCounts(counters, is_whole=True)
    lacking = {}
    for kernel in recorded():
        # Others are replays of graphs, or damaged.
        if kernel not in known or kernel >= _MOST_KERNELS:
            continue
        numbers = numbers_of(kernel)
        if len(numbers) > (counters[kernel].sum() if kernel < len(counters) else 0):
            lacking[kernel] = np.count_nonzero(launches.records["state"][numbers] != LaunchState.FALLBACK)
    if not lacking:
        return KnownCounts(counters, not is_damaged)
    whole = np.zeros((max(len(counters), max(lacking) + 1), REASON_SLOTS), "<u8")
    whole[: len(counters)] = counters
    for kernel, probed in lacking.items():
        whole[kernel, Reason.PROBED] = max(probed, whole[kernel, Reason.PROBED])
    fault = (
        f"it is damaged: it counts fewer launches than launches.bin has, of {len(lacking)} of {len(known)} kernels: "
        "the share of launches that was probed is not known"
    )
    return KnownCounts(whole, is_whole=False, fault="" if is_damaged else fault)
