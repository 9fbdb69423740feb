"""``launches.bin``: the counters of each kernel and one fixed-size record per launch, mapped into memory."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
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
)
from neutrino.abi.versions import LAUNCHES_VERSION
from neutrino.errors import TraceError

Array = npt.NDArray[Any]
_COUNTER_SIZE = 8
"""Bytes of a counter, a u64."""


@dataclass(frozen=True)
class Launches:
    """The contents of ``launches.bin``.

    records: the used launch records, a 1-D structured array by ``LAUNCH``. counters: launches by outcome, u64
    ``[kernel][reason]``. ended: whether the process ended the trace. monotonic_ns, realtime_ns: two clocks at its
    start.
    """

    records: Array
    counters: Array
    ended: bool
    monotonic_ns: int
    realtime_ns: int


def map_file(path: Path) -> Array:
    """Map a file read-only and return its bytes as uint8. Raises TraceError when it cannot be read."""
    try:
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                # An empty file cannot be mapped.
                return np.empty(0, np.uint8)
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from error


def read_launches(path: Path) -> Launches:
    """Map ``launches.bin``. Raises TraceError for a file that is cut off, of another format, or of another version."""
    data = map_file(path)

    # The header, and the table of counters after it. The records follow, anywhere after these.
    min_records_offset = LAUNCHES_HEADER_SIZE + MAX_KERNELS * REASON_SLOTS * _COUNTER_SIZE
    if data.size < min_records_offset:
        raise TraceError(f"{path}: has {data.size} bytes, expected at least {min_records_offset}: it is cut off")
    header = np.frombuffer(data, LAUNCHES_HEADER.dtype, 1)[0]
    magic = bytes(data[: len(LAUNCHES_MAGIC)])
    if magic != LAUNCHES_MAGIC:
        raise TraceError(f"{path}: at 0x0: magic is {magic!r}, expected {LAUNCHES_MAGIC!r}")
    for name, expected in (("version", LAUNCHES_VERSION), ("record_size", LAUNCH.size)):
        if header[name] != expected:
            hint = "; read it with the Neutrino that wrote it" if name == "version" else ""
            raise TraceError(f"{path}: {name} is {header[name]}, expected {expected}{hint}")

    # The records.
    offset, used = int(header["records_offset"]), int(header["records_used"])
    if offset < min_records_offset:
        raise TraceError(f"{path}: records_offset is {offset:#x}, expected at least {min_records_offset:#x}")
    available = max(data.size - offset, 0) // LAUNCH.size
    if used > available:
        raise TraceError(f"{path}: {used} records are used but only {available} are in the file: it is cut off")
    # Without records, their offset may be after the end of the file, which np.frombuffer refuses.
    records = np.frombuffer(data, LAUNCH.dtype, used, offset) if used else np.empty(0, LAUNCH.dtype)
    counters = np.frombuffer(data, "<u8", MAX_KERNELS * REASON_SLOTS, LAUNCHES_HEADER_SIZE)
    return Launches(
        records,
        counters.reshape(MAX_KERNELS, REASON_SLOTS),
        bool(header["ended"]),
        int(header["monotonic_ns"]),
        int(header["realtime_ns"]),
    )
