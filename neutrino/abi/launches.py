"""``launches.bin``: a header and one record per launch. ``counters.bin``: the counters of each kernel."""

from __future__ import annotations

import enum

from neutrino.abi.structures import Member, Struct

MAX_KERNELS = 4096
"""Rows of the counter table that ``launches.bin`` had up to version 3; kernels beyond share the last row."""
REASON_SLOTS = 24
"""Counters of a kernel, u64, by the number of the reason: a row of ``counters.bin``."""
NO_KERNEL = 0xFFFFFFFF
"""The kernel in the record of a graph's replay, whose kernels have records of their own."""
LAUNCHES_HEADER_SIZE = 4096
LAUNCHES_MAGIC = b"NTLAUNCH"


class LaunchState(enum.IntEnum):
    """State of one record of ``launches.bin``. The order is part of the file format."""

    EMPTY = 0
    SUBMITTED = 1
    WRITTEN = 2
    LOST = 3
    FALLBACK = 4
    MEASURED = 5
    """With --memusage: the original ran, and data_size is what its twin's maps would have had on the device."""


LAUNCHES_HEADER = Struct(
    "launches_header",
    (
        Member("magic", "char", 8),
        Member("version", "u32"),
        Member("record_size", "u32"),
        Member("records_offset", "u64", note="bytes from the start of the file"),
        Member("reserved", "u64"),
        Member("records_used", "u64", note="after the last record; some before it may be EMPTY"),
        Member("monotonic_ns", "u64", note="CLOCK_MONOTONIC when the file was made"),
        Member("realtime_ns", "u64", note="CLOCK_REALTIME at the same moment"),
        Member("pid", "u32"),
        Member("ended", "u32", note="1 once the process drained at its end"),
        Member("records_first", "u64", note="records before it were removed for --max-trace-size"),
        Member("data_removed", "u64", note="bytes of result files that were removed for it"),
    ),
    "Start of launches.bin. Up to version 3 a table u64 [MAX_KERNELS][REASON_SLOTS] is at LAUNCHES_HEADER_SIZE.",
)

LAUNCH = Struct(
    "launch",
    (
        Member("state", "u32"),
        Member("kernel", "u32", note="kernel id: the folder kernel/<id>/; NO_KERNEL for the replay of a graph"),
        Member("context", "u64"),
        Member("stream", "u64"),
        Member("submit_ns", "u64", note="CLOCK_MONOTONIC at submission"),
        Member("data_offset", "u64", note="of the frame in the kernel's result files; valid when WRITTEN"),
        Member("data_size", "u64", note="bytes of the regions"),
        Member("grid", "u32", 3),
        Member("block", "u32", 3),
        Member("shared", "u32", note="dynamic shared memory, bytes"),
        Member("device", "u32"),
        Member("thread", "u32", note="host thread id"),
        Member("variant", "u32", note="1: the twin under a register cap; 2: of the twin fewer blocks fit than else"),
        Member("unused", "u32"),
        Member("lanes", "u32", note="of a warp; 0, in earlier files: 32"),
        Member("graph", "u32", note="id of the executable graph; 0: an ordinary launch"),
        Member("node", "u32", note="of the graph's kernel nodes, from 1; 0 with a graph: the replay itself"),
        Member("log_units", "u32", note="units of memory that each log with cap 1 had; 0: the kernel has none"),
        Member("set", "u32", note="number of a kernel's probes, where WRITTEN or MEASURED; 0, in earlier files: 1"),
        Member("reserved", "u32", 4),
    ),
    "One record of launches.bin.",
)
