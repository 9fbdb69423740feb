"""What a run would take that was only measured (``neutrino --memusage``): device memory, and the files of its trace.

All is computed from what such a run leaves, by the formulas that lay out a trace: each launch that would be probed has
a record in ``launches.bin``, and kernels have their manifests as in a run that probes. What a log holds is known only
once it is written: it is counted as if nothing was saved to it, and named.
"""

from __future__ import annotations

from collections import Counter
from math import prod

import numpy as np

from neutrino.abi.launches import LAUNCH, LAUNCHES_HEADER_SIZE, LaunchState
from neutrino.abi.levels import Per
from neutrino.abi.reasons import Reason
from neutrino.abi.results import FRAME, MAP_DESCRIPTOR, RESULT_HEADER
from neutrino.abi.structures import align_up
from neutrino.errors import TraceError
from neutrino.late_dataclass import dataclass
from neutrino.maps.declaration import Layout, Map
from neutrino.maps.regions import LANES, REGION_ALIGN, Region, region_layout, run_layout
from neutrino.tracing.events import member
from neutrino.tracing.summary import NotProbed, not_probed_launches
from neutrino.tracing.trace import Trace, TraceKernel

_BATCH = 1 << 14
"""Launches whose records are read at once."""
_NEARLY_ALL = 0.95
_HEADER_ALIGN = 64
_NEED_PARTS = 256
"""Of a unit, in what the cache has of a kernel's need by warps: needs.h."""
_MEASURED = (LaunchState.SUBMITTED, LaunchState.WRITTEN, LaunchState.MEASURED)
"""States of launches that would be probed; those of a process that was killed may be SUBMITTED."""
_DATA_SHARE, _RECORDS_SHARE = 0.75, 0.25
"""Of --max-trace-size, for the data of launches and for their records."""
_NOT_IN_BOTH = ("analyze.log", "control", "reserve")
"""Files that only a run with probes has, or that are there only while the process runs."""


@dataclass(frozen=True)
class MapUsage:
    """What one map of a kernel would take, in bytes.

    least, most: of device memory, in a launch. data: in the trace, of all launches. is_log: what is saved to it comes
    on top, and is not known.
    """

    entry: Map
    least: int
    most: int
    data: int
    is_log: bool


@dataclass(frozen=True)
class KernelUsage:
    """What a kernel's launches would take, in bytes: those that would be probed.

    least, most: of device memory for all maps of a launch, but for what logs hold. data: of its result files, the same.
    with_logs: the same with logs as an earlier run had them; None if none had. maps: those with most data first.
    """

    kernel: TraceKernel
    launches: int
    least: int
    most: int
    data: int
    with_logs: int | None
    maps: tuple[MapUsage, ...]

    @property
    def has_logs(self) -> bool:
        """Whether the kernel saves to logs, whose size before a run is only known at the least."""
        return any(entry.is_log for entry in self.maps)


@dataclass(frozen=True)
class DeviceUsage:
    """Device memory that the hook would allocate, in bytes, at most at a time: for maps of launches, and of graphs.

    contexts: those that had a pool. limit: what the pool of one context may have; where there is less, it grows with
    launches that wait for their data to be copied back. launch_limit: what one launch may have of it.
    """

    pools: int
    graphs: int
    contexts: int
    limit: int
    launch_limit: int

    @property
    def is_final(self) -> bool:
        """Whether the memory pools took all that they may have, so that they cannot grow further; parts of units aside.
        """
        return self.pools >= self.contexts * self.limit * _NEARLY_ALL


@dataclass(frozen=True)
class MemoryUsage:
    """What a run would take that was only measured, in bytes.

    kernels: those with most data first. records: of ``launches.bin``, which may have holes beside. rest: of all other
    files. device: None of a process that did not end normally. max_trace_size: the limit of the trace's size, None
    without one. not_probed: launches that would run their originals, those with most launches first.
    """

    trace: Trace
    kernels: tuple[KernelUsage, ...]
    records: int
    rest: int
    device: DeviceUsage | None
    max_trace_size: int | None
    not_probed: tuple[NotProbed, ...]

    @property
    def data(self) -> int:
        """How many bytes the result files of all kernels would have."""
        return sum(usage.data for usage in self.kernels)

    @property
    def size_with_logs(self) -> int | None:
        """Bytes of all files of the trace, if logs take what they took in an earlier run; None if that is not known of
        all."""
        found = [usage.with_logs if usage.has_logs else usage.data for usage in self.kernels]
        data = [size for size in found if size is not None]
        return sum(data) + self.records + self.rest if self.has_logs and len(data) == len(found) else None

    @property
    def trace_size(self) -> int:
        """Bytes of all files of the trace, without what logs hold, and without a limit."""
        return self.data + self.records + self.rest

    @property
    def limited_size(self) -> int | None:
        """Bytes of all files of the trace, at most, under --max-trace-size; None if that has no effect."""
        if self.max_trace_size is None:
            return None
        data, records = int(self.max_trace_size * _DATA_SHARE), int(self.max_trace_size * _RECORDS_SHARE)
        if self.data <= data and self.records <= records and not self.has_logs:
            return None
        return (data if self.has_logs else min(self.data, data)) + min(self.records, records) + self.rest

    @property
    def has_logs(self) -> bool:
        """Whether any kernel that was launched saves to a log, whose size cannot be known before."""
        return any(usage.has_logs for usage in self.kernels)


def is_measured(trace: Trace) -> bool:
    """Whether a trace is of a run with --memusage, which has measured and not probed."""
    return bool(trace.process.get("memusage"))


def memory_usage(trace: Trace) -> MemoryUsage:
    """Return what the run of a trace would take that was only measured.

    Raises TraceError for a damaged trace, and for one of a run that has probed.
    """
    if not is_measured(trace):
        raise TraceError(f"{trace.path}: the run has probed, and not measured: it was without --memusage")
    kernels, not_probed = [], []
    for kernel in trace.kernels:
        if kernel.manifest is not None and kernel.reason is Reason.PROBED:
            usage = _kernel_usage(kernel, kernel.manifest.maps)
            kernels += [usage] if usage.launches else []
        not_probed += not_probed_launches(kernel)
    kernels.sort(key=lambda usage: (-usage.data, usage.kernel.id))
    not_probed.sort(key=lambda row: -row.launches)
    sizes = {
        path.relative_to(trace.path).as_posix(): path.lstat().st_size
        for path in trace.path.rglob("*")
        if not path.is_symlink() and path.is_file() and path.name not in _NOT_IN_BOTH
    }
    # Numbers that no launch has are holes in the file, which take no space.
    del sizes["launches.bin"]
    states = trace.launches["state"]
    records = LAUNCHES_HEADER_SIZE + LAUNCH.size * int(np.count_nonzero(states != LaunchState.EMPTY))
    limit = trace.process.get("max_trace_size")
    return MemoryUsage(
        trace,
        tuple(kernels),
        records,
        sum(size for name, size in sizes.items() if not name.startswith("result/")),
        _device_usage(trace),
        limit if isinstance(limit, int) else None,
        tuple(not_probed),
    )


def _device_usage(trace: Trace) -> DeviceUsage | None:
    """Return the device memory that the run had, as the trace says; None if the process did not end normally.

    Raises TraceError.
    """
    event = trace.device_memory
    if event is None:
        return None
    names = ("pools", "graphs", "contexts", "pool_limit", "launch_limit")
    return DeviceUsage(*(member(event, name, int, trace.path / "events.jsonl") for name in names))


def _kernel_usage(kernel: TraceKernel, maps: tuple[Map, ...]) -> KernelUsage:
    """Add up what a kernel's launches would take in device memory and in the trace.

    Launches are counted by shape, of which there are few as a rule.
    """
    sizes: list[tuple[int, list[int]]] = []
    data, data_of, with_logs = 0, [0] * len(maps), 0
    launches = 0
    for (blocks, warps_per_block, lanes, has_units), count in _shapes(kernel).items():
        regions, size = region_layout(maps, blocks, warps_per_block, lanes)
        # Of a log that nothing was saved to, a frame has one unit.
        in_frame, frame = region_layout(maps, blocks, warps_per_block, lanes, has_units, in_frame=True)
        sizes.append((size, [_bytes(region) for region in regions]))
        data += count * (FRAME.size + frame)
        data_of = [before + count * _bytes(region) for before, region in zip(data_of, in_frame, strict=True)]
        need = _log_units(kernel, blocks * warps_per_block) if has_units else 0
        with_logs += count * (FRAME.size + region_layout(maps, blocks, warps_per_block, lanes, need, in_frame=True)[1])
        launches += count
    if launches:
        header = align_up(RESULT_HEADER.size + len(maps) * MAP_DESCRIPTOR.size, _HEADER_ALIGN)
        files = header
        # result/<id>.run has one frame with the maps per run.
        if any(entry.per is Per.RUN for entry in maps):
            files += header + FRAME.size + run_layout(maps)[1]
        data, with_logs = data + files, with_logs + files
    usages = [
        MapUsage(
            entry,
            min(of_maps[number] for _, of_maps in sizes),
            max(of_maps[number] for _, of_maps in sizes),
            data_of[number],
            entry.kind.layout is Layout.CHUNKS and entry.cap > 0,
        )
        for number, entry in enumerate(maps)
        if sizes
    ]
    usages.sort(key=lambda usage: (-usage.data, -usage.most))
    all_sizes = [size for size, _ in sizes] or [0]
    known = with_logs if kernel.log_need else None
    return KernelUsage(kernel, launches, min(all_sizes), max(all_sizes), data, known, tuple(usages))


def _log_units(kernel: TraceKernel, warps: int) -> int:
    """Units that each log of a launch had in an earlier run: at most of any, or by its warps if that is less."""
    units, per_warp = kernel.log_need or (1, 0)
    by_warps = per_warp * warps // _NEED_PARTS + 1
    return min(units, by_warps) if per_warp else units


def _shapes(kernel: TraceKernel) -> Counter[tuple[int, int, int, int]]:
    """Count the launches that would be probed by shape: blocks, warps of each, lanes, and whether logs had memory (0 or
    1)."""
    shapes: Counter[tuple[int, int, int, int]] = Counter()
    numbers = kernel.indices
    for first in range(0, len(numbers), _BATCH):
        part = kernel.records_of(numbers[first : first + _BATCH])
        part = part[np.isin(part["state"], _MEASURED)]
        columns = np.column_stack([part["grid"], part["block"], part["lanes"], part["log_units"] > 0])
        unique, counts = np.unique(columns, axis=0, return_counts=True)
        for row, count in zip(unique.tolist(), counts.tolist(), strict=True):
            lanes = row[6] or LANES
            shapes[prod(row[:3]), -(-prod(row[3:6]) // lanes), lanes, row[7]] += count
    return shapes


def _bytes(region: Region) -> int:
    """The bytes of a map's region in a launch's data: its records and counts, each rounded up to the alignment."""
    return align_up(region.records_size, REGION_ALIGN) + align_up(region.counts_size, REGION_ALIGN)
