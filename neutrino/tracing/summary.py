"""Summary of a trace: for each kernel and map the number of records and the range of each field, and what was not
probed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.abi.launches import LaunchState
from neutrino.abi.levels import Level
from neutrino.abi.reasons import REASON_TEXT, Reason
from neutrino.maps.declaration import DYNAMIC_CAP, Map, MapType, Report
from neutrino.tracing.trace import Trace, TraceKernel

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class FieldSummary:
    """One field. Of array maps over all valid records, of sum maps over the totals of each launch.

    median: the lower of the two middle values, exactly. total: of sum maps the sum over all launches, else
    None.
    """

    name: str
    type: str
    minimum: int | float
    median: int | float
    maximum: int | float
    total: int | None


@dataclass(frozen=True)
class SiteSummary:
    """Records of one site, of a map with a field ``site``. number: the value of the field.

    place: the source line as ``file.cu:42``, else ``PTX line 7``. place, instruction: "" where the manifest has no such
    site.
    """

    number: int
    records: int
    place: str
    instruction: str


@dataclass(frozen=True)
class BucketSummary:
    """Values from low to high, inclusive, over all launches."""

    low: int
    high: int
    count: int


@dataclass(frozen=True)
class MapSummary:
    """One map over all launches whose data are there. records: valid ones; dropped: saves beyond the cap.

    cap: records a slot, or ``DYNAMIC_CAP``. caps: the least and the most of the launches, and the last launch's; all 0
    without launches. wanted: saves of the fullest slot, 0 for a map without counts. fields: empty when there is no
    record; of a field ``site`` in an array map there is none, but sites, those with most records first. buckets: of a
    histogram, which has no fields; its records are its launches.
    """

    name: str
    kind: MapType
    level: Level
    cap: int
    caps: tuple[int, int, int]
    wanted: int
    records: int
    dropped: int
    fields: tuple[FieldSummary, ...]
    sites: tuple[SiteSummary, ...] = ()
    buckets: tuple[BucketSummary, ...] = ()

    @property
    def is_dynamic(self) -> bool:
        """Each launch has a cap of its own."""
        return self.cap == DYNAMIC_CAP


@dataclass(frozen=True)
class KernelSummary:
    """One probed kernel. Launch counts by state: submitted counts every launch of the twin, also those
    written.

    lost: data could not be copied back; pending: not there when the trace ended. unprobed: launches that
    ran the original.
    """

    kernel: TraceKernel
    submitted: int
    written: int
    lost: int
    pending: int
    unprobed: int
    capped: int
    maps: tuple[MapSummary, ...]


@dataclass(frozen=True)
class NotProbed:
    """Launches of one kernel that ran the original, for one reason.

    launches: 0 for a kernel never launched.
    """

    kernel: TraceKernel
    reason: Reason
    detail: str
    launches: int

    @property
    def text(self) -> str:
        """The reason as a sentence."""
        return REASON_TEXT[self.reason]


@dataclass(frozen=True)
class TraceSummary:
    """What one trace says."""

    trace: Trace
    kernels: tuple[KernelSummary, ...]
    not_probed: tuple[NotProbed, ...]
    notes: tuple[str, ...]


def summarize(trace: Trace, keep: Callable[[TraceKernel], bool] = lambda _: True) -> TraceSummary:
    """Figures of a trace. keep: which kernels count. Raises TraceError for damaged data."""
    kernels = []
    rows = []
    notes = list(trace.notes)
    for kernel in trace.kernels:
        if not keep(kernel):
            continue
        if kernel.manifest is not None and kernel.reason is Reason.PROBED:
            summary = _summarize_kernel(kernel)
            kernels.append(summary)
            notes += _kernel_notes(summary)
        elif kernel.reason is Reason.PROBED:
            notes.append(f"{kernel.name}: kernel/{kernel.id}/manifest.json is missing: its data cannot be read")
        rows += _not_probed(kernel)
    rows.sort(key=lambda row: -row.launches)
    return TraceSummary(trace, tuple(kernels), tuple(rows), tuple(notes))


def _summarize_kernel(kernel: TraceKernel) -> KernelSummary:
    records = kernel.records
    states = {state: int(np.count_nonzero(records["state"] == state)) for state in LaunchState}
    fallback = states[LaunchState.FALLBACK] + states[LaunchState.EMPTY]
    return KernelSummary(
        kernel,
        len(records) - fallback,
        states[LaunchState.WRITTEN],
        states[LaunchState.LOST],
        states[LaunchState.SUBMITTED],
        sum(count for reason, count in kernel.counters.items() if reason is not Reason.PROBED),
        int(np.count_nonzero(records["variant"])),
        _summarize_maps(kernel),
    )


def _summarize_maps(kernel: TraceKernel) -> tuple[MapSummary, ...]:
    maps = kernel.manifest.maps if kernel.manifest else ()
    columns: dict[str, dict[str, list[Array]]] = {
        entry.name: {field.name: [] for field in entry.fields} for entry in maps
    }
    slots = {name: _Slots([], 0, 0, 0) for name in columns}
    buckets: dict[str, dict[tuple[int, int], int]] = {name: {} for name in columns}
    for stack in kernel.stacks():
        for name, view in stack.items():
            valid = view.valid()
            slots[name].caps.append(view.cap)
            slots[name].wanted = max(slots[name].wanted, view.wanted)
            slots[name].dropped += view.dropped
            slots[name].launches += len(view.records)
            if view.map.kind.report is Report.BUCKETS:
                for low, high, count in valid.tolist():
                    buckets[name][low, high] = buckets[name].get((low, high), 0) + count
                continue
            for field in view.map.fields:
                columns[name][field.name].append(valid[field.name])
    sites = kernel.manifest.sites if kernel.manifest else ()
    return tuple(
        _summarize_buckets(entry, buckets[entry.name], slots[entry.name])
        if entry.kind.report is Report.BUCKETS
        else _summarize_map(entry, columns[entry.name], slots[entry.name], sites)
        for entry in maps
    )


@dataclass
class _Slots:
    """caps: of the stacks of launches, in order."""

    caps: list[int]
    wanted: int
    dropped: int
    launches: int


def _summarize_buckets(entry: Map, counts: dict[tuple[int, int], int], slots: _Slots) -> MapSummary:
    found = tuple(BucketSummary(low, high, count) for (low, high), count in sorted(counts.items()))
    caps = (entry.cap,) * 3 if slots.launches else (0, 0, 0)
    return MapSummary(entry.name, entry.kind, entry.level, entry.cap, caps, 0, slots.launches, 0, (), (), found)


def _summarize_map(
    entry: Map, columns: dict[str, list[Array]], slots: _Slots, sites: Sequence[dict[str, Any]]
) -> MapSummary:
    fields = []
    by_site: tuple[SiteSummary, ...] = ()
    records = 0
    for field in entry.fields:
        pieces = columns[field.name]
        values = np.concatenate(pieces) if pieces else np.empty(0)
        records = len(values)
        if not records:
            continue
        if field.name == "site" and entry.kind.report is Report.RECORDS and values.dtype.kind in "ui":
            by_site = _summarize_sites(values, sites)
            continue
        middle = np.partition(values, (records - 1) // 2)[(records - 1) // 2]
        total = _exact_sum(values) if entry.kind.report is Report.TOTALS else None
        fields.append(
            FieldSummary(
                field.name, field.type.value, values.min().item(), middle.item(), values.max().item(), total
            )
        )
    caps = (min(slots.caps), max(slots.caps), slots.caps[-1]) if slots.caps else (0, 0, 0)
    return MapSummary(
        entry.name, entry.kind, entry.level, entry.cap, caps, slots.wanted, records, slots.dropped, tuple(fields),
        by_site,
    )  # fmt: skip


def _summarize_sites(values: Array, sites: Sequence[dict[str, Any]]) -> tuple[SiteSummary, ...]:
    # Several probes at one instruction have rows of one number.
    known = {site["site"]: site for site in reversed(sites) if isinstance(site.get("site"), int)}
    rows = []
    for number, records in zip(*np.unique(values, return_counts=True), strict=True):
        site = known.get(int(number), {})
        place = str(site.get("source") or (f"PTX line {site['line']}" if "line" in site else ""))
        rows.append(SiteSummary(int(number), int(records), place, str(site.get("instruction", ""))))
    return tuple(sorted(rows, key=lambda row: (-row.records, row.number)))


def _exact_sum(values: Array) -> int:
    """Sum of integers without wrapping around: the halves of 64-bit values apart."""
    wide = values.astype(np.int64 if values.dtype.kind == "i" else np.uint64)
    return (int((wide >> 32).sum()) << 32) + int((wide & 0xFFFFFFFF).sum())


def _kernel_notes(summary: KernelSummary) -> list[str]:
    notes = []
    name = summary.kernel.demangled
    for entry in summary.maps:
        if entry.dropped:
            notes.append(
                f"{name}: {_counted(entry.dropped, 'record')} of map {entry.name} "
                f"{'was' if entry.dropped == 1 else 'were'} dropped: {_why_dropped(entry)}"
            )
    if summary.lost:
        notes.append(f"{name}: the data of {_counted(summary.lost, 'launch')} were lost on their way back")
    if summary.pending:
        pending = _counted(summary.pending, "launch")
        notes.append(f"{name}: the data of {pending} had not arrived when the trace ended")
    return notes


def _why_dropped(entry: MapSummary) -> str:
    if not entry.is_dynamic:
        return f"a slot keeps {entry.cap}; raise cap"
    wanted = f"a slot wanted up to {entry.wanted:,}"
    if entry.caps[2] >= entry.wanted:
        return f"{wanted}; later launches of this kernel had room for them"
    return f"{wanted}; another launch of this kernel would have room for them, as far as the pool has (--pool)"


def _counted(number: int, word: str) -> str:
    plural = f"{word}es" if word.endswith("h") else f"{word}s"
    return f"{number:,} {word if number == 1 else plural}"


def _not_probed(kernel: TraceKernel) -> list[NotProbed]:
    rows = [
        NotProbed(kernel, reason, kernel.detail if reason is kernel.reason else "", count)
        for reason, count in kernel.counters.items()
        if reason is not Reason.PROBED
    ]
    if not rows and kernel.reason is not Reason.PROBED:
        rows.append(NotProbed(kernel, kernel.reason, kernel.detail, 0))
    return rows
