"""When launches were submitted, for the launch timeline."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.abi.launches import NO_KERNEL, LaunchState
from neutrino.page.columns import Columns
from neutrino.page.source import Blocks, Json, Source

Array = npt.NDArray[Any]
MOST_LAUNCHES = 1 << 18
"""Launches that a page has one by one; of more it has how many each kernel had in each of some moments."""
MOMENTS = 1 << 12
_MOST_ROWS = 400
"""Kernels with a row of their own in a page of moments; those with most launches."""
_BATCH = 1 << 16
_NOT_LAUNCHED = (LaunchState.EMPTY,)


def prepare_launches(source: Source, blocks: Blocks) -> Json:
    """Write when the launches of a trace were submitted into a page; return what says where that is.

    Launches of originals are counted by kernel and have no time of their own in a trace.
    """
    trace = source.summary.trace
    kept = {kernel.kernel.id for kernel in source.summary.kernels}
    numbers = [_chosen(trace.launches, kept, first) for first in range(0, len(trace.launches), _BATCH)]
    found = np.concatenate(numbers) if numbers else np.empty(0, np.int64)
    if source.launches is not None:
        found = found[(found >= source.launches.start) & (found < source.launches.stop)]
    if not len(found):
        return {"launches": 0}
    times = trace.launches["submit_ns"][found]
    first, last = int(times.min()), int(times.max())
    facts = {"launches": len(found), "first": str(first), "time": min(last - first, 1 << 53)}
    if len(found) > MOST_LAUNCHES:
        return facts | _moments(trace.launches, found, first, max(last - first, 1), blocks)
    order = np.argsort(times, kind="stable")
    found, times = found[order], times[order]
    records = trace.launches[found]
    columns = Columns()
    columns.add("number", found, differences=True)
    columns.add("time", np.minimum(times - np.uint64(first), np.uint64(1 << 53)))
    for name in ("kernel", "state", "device", "graph", "variant"):
        columns.add(name, records[name])
    tables = {}
    for name in ("stream", "thread"):
        values, place = np.unique(records[name], return_inverse=True)
        columns.add(name, place)
        tables[f"{name}s"] = [f"{value:#x}" if name == "stream" else str(value) for value in values.tolist()[:4096]]
    for axis, letter in enumerate("xyz"):
        columns.add(f"grid_{letter}", records["grid"][:, axis])
        columns.add(f"block_{letter}", records["block"][:, axis])
    return facts | tables | {"kind": "exact", "block": blocks.add(columns)}


def _chosen(launches: Array, kept: set[int], first: int) -> Array:
    """Return the numbers of launches of some kernels, in a part of all records. first: the first record of the part."""
    part = launches[first : first + _BATCH]
    kernels = part["kernel"]
    used = ~np.isin(part["state"], _NOT_LAUNCHED) & (kernels != NO_KERNEL) & np.isin(kernels, list(kept))
    return np.flatnonzero(used) + first


def _moments(launches: Array, numbers: Array, first: int, time: int, blocks: Blocks) -> Json:
    """Write how many launches of each kernel there were in each moment; return what says where that is."""
    ids, counts = np.unique(launches["kernel"][numbers], return_counts=True)
    chosen = np.sort(ids[np.argsort(-counts, kind="stable")[:_MOST_ROWS]])
    cells = np.zeros(len(chosen) * MOMENTS, np.int64)
    for at in range(0, len(numbers), _BATCH):
        part = numbers[at : at + _BATCH]
        kernels = launches["kernel"][part]
        row = np.minimum(np.searchsorted(chosen, kernels), len(chosen) - 1)
        is_chosen = chosen[row] == kernels
        late = (launches["submit_ns"][part] - np.uint64(first)).astype(np.float64)
        moment = np.minimum((late * (MOMENTS / (time + 1))).astype(np.int64), MOMENTS - 1)
        cells += np.bincount((row * MOMENTS + moment)[is_chosen], minlength=len(cells))
    columns = Columns()
    columns.add("kernel", chosen)
    columns.add("cells", cells)
    return {"kind": "moments", "block": blocks.add(columns), "moments": MOMENTS, "left_out": len(ids) - len(chosen)}
