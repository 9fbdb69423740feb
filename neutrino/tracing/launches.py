"""``launches.bin``, one fixed-size record per launch, and ``counters.bin``, the counters of each kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.abi.launches import (
    LAUNCH,
    LAUNCHES_HEADER,
    LAUNCHES_HEADER_SIZE,
    LAUNCHES_MAGIC,
    MAX_KERNELS,
    REASON_SLOTS,
    LaunchState,
)
from neutrino.abi.reasons import Reason
from neutrino.abi.versions import LAUNCHES_VERSION
from neutrino.errors import TraceError
from neutrino.late_dataclass import dataclass
from neutrino.tracing.files import map_file

Array = npt.NDArray[Any]
_COUNTER_SIZE = 8
"""Bytes of a counter, a u64."""
_MOST_COUNTERS = 1 << 30
"""Bytes of ``counters.bin``, with room for the counters of five million kernels."""
_MOST_LAUNCHES = 1 << 48
"""Launches of a kernel, at most: more than ten years of one each microsecond."""
_WITH_TABLE = 3
"""The version of ``launches.bin`` that had the counters in it, with rows for a fixed number of kernels."""


@dataclass(frozen=True)
class Launches:
    """The contents of ``launches.bin`` and ``counters.bin``.

    records: the launch records by number, a 1-D structured array by ``LAUNCH``; some may be EMPTY. counters: launches
    by outcome, u64 ``[kernel][reason]``, up to the last kernel with a launch. shared_row: the last row is that of all
    further kernels, too. first: the number of the first record that was not removed. data_removed: bytes of result
    files that were removed. ended: whether the process ended the trace. monotonic_ns, realtime_ns: two clocks at its
    start.
    """

    records: Array
    counters: Array
    ended: bool
    monotonic_ns: int
    realtime_ns: int
    shared_row: bool = False
    first: int = 0
    data_removed: int = 0

    def counters_of(self, kernel: int, counters: Array) -> Array:
        """Return how many launches a kernel had by outcome (u64 ``[reason]``: probed, or why not). kernel: its id.
        counters: these, or what is known of them.
        """
        if self.shared_row:
            kernel = min(kernel, len(counters) - 1)
        return counters[kernel] if kernel < len(counters) else np.zeros(REASON_SLOTS, "<u8")


def read_launches(path: Path, faults: list[str] | None = None) -> Launches:
    """Map ``launches.bin``, and read ``counters.bin`` beside it.

    faults: gets a sentence for what cannot be read; without it TraceError is raised: for a file that is cut off, of
    another format, or of another version.
    """
    if faults is None:
        return _read(path, None)
    begin = len(faults)
    try:
        return _read(path, faults)
    except TraceError as error:
        faults.append(str(error))
        # Its faults are listed below.
        del faults[begin:-1]
    counters = _counters(path, faults, has_ended=False)
    return Launches(np.empty(0, LAUNCH.dtype), counters, ended=False, monotonic_ns=0, realtime_ns=0)


def _counters(path: Path, faults: list[str] | None, *, has_ended: bool) -> Array:
    """Return the counters in the file beside ``launches.bin``, u64 ``[kernel][reason]``; none of a damaged file.

    has_ended: whether the process has ended the trace, so that nothing is being written.

    faults: gets a sentence if it cannot be read; without it TraceError is raised.
    """
    try:
        rows = map_file(path.with_name("counters.bin"), inside=1)
        if rows.size > _MOST_COUNTERS:
            raise TraceError(f"{path.with_name('counters.bin')}: has {rows.size} bytes, which is no table of counters")
    except TraceError as error:
        if faults is None:
            raise
        faults.append(str(error))
        rows = np.empty(0, np.uint8)
    # Of a running process a row that is not whole is being written.
    count = rows.size // (REASON_SLOTS * _COUNTER_SIZE) * REASON_SLOTS
    counters = np.frombuffer(rows, "<u8", count) if count else np.empty(0, "<u8")
    counters = counters.reshape(-1, REASON_SLOTS)
    fault = ""
    if (counters > _MOST_LAUNCHES).any() or counters[:, max(Reason) + 1 :].any():
        fault = "its numbers are no counts of launches: it is damaged"
        counters = np.empty((0, REASON_SLOTS), "<u8")
    elif has_ended and rows.size % (REASON_SLOTS * _COUNTER_SIZE):
        fault = f"has {rows.size} bytes, which are no whole rows: it is cut off"
    if fault and faults is None:
        raise TraceError(f"{path.with_name('counters.bin')}: {fault}")
    if fault and faults is not None:
        faults.append(f"{path.with_name('counters.bin')}: {fault}")
    return counters


def _read(path: Path, faults: list[str] | None) -> Launches:
    """Map ``launches.bin`` and read the counters beside it; faults: as for ``read_launches``.

    Raises TraceError where nothing can be read.
    """
    data = map_file(path, inside=1)

    # The header.
    if data.size < LAUNCHES_HEADER_SIZE:
        raise TraceError(f"{path}: has {data.size} bytes, expected at least {LAUNCHES_HEADER_SIZE}: it is cut off")
    header = np.frombuffer(data, LAUNCHES_HEADER.dtype, 1)[0]
    magic = bytes(data[: len(LAUNCHES_MAGIC)])
    if magic != LAUNCHES_MAGIC:
        raise TraceError(f"{path}: at 0x0: magic is {magic!r}, expected {LAUNCHES_MAGIC!r}")
    if header["version"] not in (_WITH_TABLE, LAUNCHES_VERSION):
        hint = "read it with the Neutrino that wrote it"
        raise TraceError(f"{path}: version is {header['version']}, expected {LAUNCHES_VERSION}; {hint}")
    if header["record_size"] != LAUNCH.size:
        raise TraceError(f"{path}: record_size is {header['record_size']}, expected {LAUNCH.size}")

    # The counters.
    has_table = header["version"] == _WITH_TABLE
    min_records_offset = LAUNCHES_HEADER_SIZE
    if has_table:
        min_records_offset += MAX_KERNELS * REASON_SLOTS * _COUNTER_SIZE
        if data.size < min_records_offset:
            raise TraceError(f"{path}: has {data.size} bytes, expected at least {min_records_offset}: it is cut off")
        counters = np.frombuffer(data, "<u8", MAX_KERNELS * REASON_SLOTS, LAUNCHES_HEADER_SIZE)
        counters = counters.reshape(-1, REASON_SLOTS)
    else:
        counters = _counters(path, faults, has_ended=bool(header["ended"]))

    # The records.
    offset, used = int(header["records_offset"]), int(header["records_used"])
    if offset < min_records_offset:
        raise TraceError(f"{path}: records_offset is {offset:#x}, expected at least {min_records_offset:#x}")
    available = max(data.size - offset, 0) // LAUNCH.size
    if used > available:
        fault = f"{path}: {used} records are used but only {available} are in the file: it is cut off"
        if faults is None:
            raise TraceError(fault)
        faults.append(fault)
        used = available
    # Without records, their offset may be after the end of the file, which np.frombuffer refuses.
    records = np.frombuffer(data, LAUNCH.dtype, used, offset) if used else np.empty(0, LAUNCH.dtype)
    # The states are numbered from 0 without a gap.
    unknown = np.flatnonzero(records["state"] > max(LaunchState))
    if unknown.size:
        fault = f"{path}: launch {unknown[0]}: state {records['state'][unknown[0]]} is not known"
        if faults is None:
            raise TraceError(fault)
        more = f", and those of {unknown.size - 1:,} more" if unknown.size > 1 else ""
        faults.append(fault + more)
        records = records.copy()
        records["state"][unknown] = LaunchState.EMPTY
    return Launches(
        records,
        counters,
        bool(header["ended"]),
        int(header["monotonic_ns"]),
        int(header["realtime_ns"]),
        shared_row=has_table,
        first=0 if has_table else int(header["records_first"]),
        data_removed=0 if has_table else int(header["data_removed"]),
    )
