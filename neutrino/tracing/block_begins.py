"""When the blocks of launches began, where nothing tells more: of ``launch_skew``, and maps with fields as it has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.abi.levels import Level, Per
from neutrino.late_dataclass import dataclass
from neutrino.maps.declaration import Layout, Map
from neutrino.tracing.recorded import parts_of
from neutrino.tracing.timeline import SMS, times_of
from neutrino.tracing.trace import TraceKernel

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class BlockBegins:
    """One launch. first: nanoseconds of the GPU. block, sm, since: of each block that has a time, int64 ``[block]``, by
    multiprocessor and time; since the first one."""

    number: int
    first: int
    block: Array
    sm: Array
    since: Array


def begins_map(kernel: TraceKernel) -> Map | None:
    """Return the map with a moment and a multiprocessor of each block; None without one."""
    for entry in kernel.manifest.probed_maps if kernel.manifest else ():
        names = {field.name for field in entry.fields}
        is_of_blocks = entry.level is Level.BLOCK and entry.per is Per.LAUNCH
        if is_of_blocks and entry.kind.layout is Layout.SLOTS and entry.cap == 1 and "time" in names and names & {*SMS}:
            return entry
    return None


def block_begins(kernel: TraceKernel, numbers: Array) -> Iterator[BlockBegins]:
    """Yield launches whose blocks have times. numbers: of those that are looked at, which have data."""
    entry = begins_map(kernel)
    for number in numbers.tolist() if entry is not None else ():
        ((indices, views),) = kernel.numbered_stacks(np.array([number]), is_checked=True)
        assert entry is not None
        where = next(name for name in SMS if name in {field.name for field in entry.fields})
        blocks, sms, times = [], [], []
        for _, places, records in parts_of(views[entry.name], indices):
            # A block that did not begin saved nothing.
            there = records["time"] != 0
            blocks.append(places["block"][there].astype(np.int64))
            sms.append(records[where][there].astype(np.int64))
            times.append(times_of(records["time"][there]))
        time = np.concatenate([np.zeros(0, np.int64), *times])
        if len(time):
            sm, order = np.concatenate(sms), np.lexsort((time, np.concatenate(sms)))
            first = int(time.min())
            yield BlockBegins(number, first, np.concatenate(blocks)[order], sm[order], (time - first)[order])
