"""``benchmark.bin``: how long launches took on the GPU, of originals and of twins, with ``neutrino --benchmark``."""

from __future__ import annotations

import enum

from neutrino.abi.structures import Member, Struct

BENCHMARK_MAGIC = b"NTBENCH\0"


class SampleKind(enum.IntEnum):
    """What a sample is of. The numbers are part of the file format."""

    ORIGINAL = 0
    PROBED = 1
    FLOOR = 2
    UNTIMED = 3


class SampleFlag(enum.IntFlag):
    """Why a sample does not count. The bits are part of the file format."""

    WARM_UP = 1


BENCHMARK_HEADER = Struct(
    "benchmark_header",
    (
        Member("magic", "char", 8),
        Member("version", "u32"),
        Member("record_size", "u32", note="of this header, too"),
        Member("seed", "u64", note="of the draws"),
        Member("monotonic_ns", "u64", note="CLOCK_MONOTONIC when the file was made"),
        Member("reserved", "u64", 12),
    ),
    "Start of benchmark.bin; samples follow.",
)

SAMPLE = Struct(
    "sample",
    (
        Member("kind", "u32", note="SampleKind: of which code; FLOOR: between two events with nothing between them"),
        Member("flags", "u32", note="SampleFlag"),
        Member("kernel", "u32", note="id; NO_KERNEL for the replay of a graph, and for FLOOR"),
        Member("graph", "u32", note="id of the executable graph; 0: an ordinary launch"),
        Member("number", "u64", note="of the draw in its group, from 0; UNTIMED: launches that were not timed"),
        Member("submit_ns", "u64", note="CLOCK_MONOTONIC at submission"),
        Member("begin_ns", "u64", note="of the first event by the GPU's time, near CLOCK_MONOTONIC"),
        Member("elapsed_ns", "u64", note="between the two events"),
        Member("context", "u64"),
        Member("stream", "u64"),
        Member("grid", "u32", 3),
        Member("block", "u32", 3),
        Member("shared", "u32", note="dynamic shared memory, bytes"),
        Member("device", "u32"),
        Member("thread", "u32", note="host thread id"),
        Member("variant", "u32", note="as in launches.bin, of PROBED"),
        Member("reserved", "u32", 6),
    ),
    "A sample of benchmark.bin.",
)
