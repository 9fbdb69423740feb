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
from neutrino.abi.levels import Level, Per
from neutrino.abi.reasons import REASON_REMEDY, REASON_TEXT, Reason
from neutrino.abi.records import Field
from neutrino.maps.declaration import Layout, Map, MapType, Report
from neutrino.tracing.trace import Trace, TraceKernel
from neutrino.tracing.views import MapView

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class FieldSummary:
    """The range of one field: over all valid records, of a sum map over the totals of the launches, of an average over
    their means.

    median: an existing value, the lower of the two middle ones. total: of a sum map the sum over all launches, else
    None. values, mean: of an average how many values all launches saved, and their mean; else None.
    """

    name: str
    type: str
    minimum: int | float
    median: int | float
    maximum: int | float
    total: int | None
    values: int | None = None
    mean: float | None = None


@dataclass(frozen=True)
class SiteSummary:
    """How many records a map with a field ``site`` has of one site (an instruction that a probe matched).

    number: the value of the field. place: the source line as ``file.cu:42``, else ``PTX line 7``. place, instruction:
    "" where the manifest has no such site.
    """

    number: int
    records: int
    place: str
    instruction: str


@dataclass(frozen=True)
class BucketSummary:
    """One bucket of a histogram: how many values from low to high, both inclusive, all launches recorded."""

    low: int
    high: int
    count: int


@dataclass(frozen=True)
class KeySummary:
    """One key of a map with keys, all launches together: its count of saves, and what is kept of their values.

    kept: by name, in the order of the map's type. place, instruction: of a key field ``site``, as in ``SiteSummary``;
    else "".
    """

    key: int
    count: int
    kept: dict[str, int]
    place: str = ""
    instruction: str = ""


@dataclass(frozen=True)
class MapSummary:
    """One map over all launches whose data are in the trace.

    cap: records that a slot (of a thread, warp or block) can hold. wanted: saves of the fullest slot, 0 for a map
    without counts. records: valid records, of a histogram launches. dropped: saves beyond the cap, of a ring
    replaced by later ones, of a map with keys those whose keys found no place. fields: empty
    without records, and for a histogram. sites: of an array map with a field ``site``, which is not in fields; those
    with most records first. buckets: of a histogram. keys: of a map with keys, those with the greatest sum or count
    first. dropped_sum: of such a map that keeps sums, the sum of the values whose keys found no place. per: whose
    values are one result; unless it is the launch's, records are these results.
    """

    name: str
    kind: MapType
    level: Level
    cap: int
    wanted: int
    records: int
    dropped: int
    fields: tuple[FieldSummary, ...]
    sites: tuple[SiteSummary, ...] = ()
    buckets: tuple[BucketSummary, ...] = ()
    keys: tuple[KeySummary, ...] = ()
    dropped_sum: int = 0
    per: Per = Per.LAUNCH


@dataclass(frozen=True)
class KernelSummary:
    """One probed kernel, and its launches by outcome.

    submitted: launches of the twin (instrumented copy), of which written have their data in the trace, lost could not
    be copied back, and pending had not arrived when the trace ended; removed is those whose data went to keep to the
    limit of the trace's size. unprobed: launches of the original. capped: launches of the twin with a register cap;
    fewer_blocks: of the twin though fewer blocks of it fit on a multiprocessor than of the original.
    """

    kernel: TraceKernel
    submitted: int
    written: int
    lost: int
    pending: int
    unprobed: int
    capped: int
    fewer_blocks: int
    maps: tuple[MapSummary, ...]
    removed: int = 0


@dataclass(frozen=True)
class NotProbed:
    """Launches of one kernel that ran the original, for one reason. launches: 0 for a kernel never launched."""

    kernel: TraceKernel
    reason: Reason
    detail: str
    launches: int

    @property
    def text(self) -> str:
        """The reason as a sentence."""
        return REASON_TEXT[self.reason]

    @property
    def remedy(self) -> str:
        """What the user can do about it; "" if nothing is known."""
        return REASON_REMEDY.get(self.reason, "")


@dataclass(frozen=True)
class TraceSummary:
    """The summary of one trace. not_probed: those with most launches first. notes: what a reader must know."""

    trace: Trace
    kernels: tuple[KernelSummary, ...]
    not_probed: tuple[NotProbed, ...]
    notes: tuple[str, ...]


def summarize(trace: Trace, keep: Callable[[TraceKernel], bool] = lambda _: True) -> TraceSummary:
    """Summarize a trace for ``neutrino-report``: the probed kernels, those that were not probed, and notes.

    keep: whether to include a kernel. Raises TraceError for damaged data.
    """
    kernels = []
    not_probed = []
    notes = list(trace.notes)
    for kernel in trace.kernels:
        if not keep(kernel):
            continue
        if kernel.manifest is not None and kernel.reason is Reason.PROBED:
            summary = _summarize_kernel(kernel)
            kernels.append(summary)
            notes += _kernel_notes(summary)
        elif kernel.reason is Reason.PROBED:
            # The process died before the manifest was written.
            notes.append(f"{kernel.name}: kernel/{kernel.id}/manifest.json is missing: its data cannot be read")
        not_probed += not_probed_launches(kernel)
    not_probed.sort(key=lambda row: -row.launches)
    return TraceSummary(trace, tuple(kernels), tuple(not_probed), tuple(notes))


def _summarize_kernel(kernel: TraceKernel) -> KernelSummary:
    """Count a kernel's launches by outcome, and summarize its maps."""
    records = kernel.records
    by_state = {state: int(np.count_nonzero(records["state"] == state)) for state in LaunchState}
    # Records of launches that ran the original, and records that were reserved and not used.
    not_submitted = by_state[LaunchState.FALLBACK] + by_state[LaunchState.EMPTY]
    # Any other record is of the twin. If the oldest records were removed, the counters still count their launches.
    submitted = max(len(records) - not_submitted, kernel.counters.get(Reason.PROBED, 0) if kernel.has_removed else 0)
    written = int(np.count_nonzero(kernel.written))
    return KernelSummary(
        kernel,
        submitted=submitted,
        written=written,
        lost=by_state[LaunchState.LOST],
        pending=by_state[LaunchState.SUBMITTED],
        # From the counters, since there may be more launches than records.
        unprobed=sum(count for reason, count in kernel.counters.items() if reason is not Reason.PROBED),
        capped=int(np.count_nonzero(records["variant"] == 1)),
        fewer_blocks=int(np.count_nonzero(records["variant"] == 2)),
        maps=_summarize_maps(kernel),
        removed=submitted - written - by_state[LaunchState.LOST] - by_state[LaunchState.SUBMITTED]
        if kernel.has_removed
        else 0,
    )


@dataclass
class _MapData:
    """What is collected of one map over stacks (groups of launches of one geometry).

    columns: field → its values in each stack; of an average the rows of launches. rows: of launches, of a map with
    keys, for each stack. buckets: (low, high) → count, of a histogram. wanted, dropped:
    as in ``MapSummary``. launches: how many have data. results: of a histogram with rows, how many there are.
    """

    columns: dict[str, list[Array]]
    buckets: dict[tuple[int, int], int]
    rows: list[Array]
    wanted: int = 0
    dropped: int = 0
    dropped_sum: int = 0
    launches: int = 0
    results: int = 0


def _summarize_maps(kernel: TraceKernel) -> tuple[MapSummary, ...]:
    """Summarize each map of a kernel over all launches whose data are in the trace."""
    maps = kernel.manifest.maps if kernel.manifest else ()
    sites = kernel.manifest.sites if kernel.manifest else ()
    collected = {
        entry.name: _MapData(columns={field.name: [] for field in entry.fields}, buckets={}, rows=[])
        for entry in maps
    }
    for stack in kernel.stacks():
        for name, view in stack.items():
            # The first axis of a stack is the launch.
            collected[name].launches += len(view.records)
            _collect(collected[name], view)
    whole = kernel.whole_run
    for name, view in whole.maps.items():
        _collect(collected[name], view)
        collected[name].launches = whole.launches
    summaries = []
    for entry in maps:
        data = collected[entry.name]
        if entry.kind.report is Report.BUCKETS:
            summaries.append(_summarize_histogram(entry, data))
        elif entry.kind.report is Report.KEYS:
            summaries.append(_summarize_keys(entry, data, sites))
        else:
            summaries.append(_summarize_map(entry, data, sites))
    return tuple(summaries)


def _collect(data: _MapData, view: MapView) -> None:
    """Add what a map has of some launches, or of the run."""
    valid = view.valid()
    data.wanted = max(data.wanted, view.wanted)
    data.dropped += view.dropped
    data.dropped_sum += view.dropped_sum
    if view.map.kind.report is Report.KEYS:
        # All keys, also of a map that keeps the first ones alone: they may be others over all launches.
        document = {key: value for key, value in view.map.document().items() if key != "n"}
        data.rows.append(view.map.kind.read(view.records, document))
        return
    # A histogram has a row for each bucket and launch, whose fields are not the map's.
    if view.map.kind.report is Report.BUCKETS:
        for low, high, count in valid.tolist():
            data.buckets[low, high] = data.buckets.get((low, high), 0) + count
        if view.map.per.has_rows and data.buckets:
            data.results += len(valid) // len(data.buckets)
        return
    for field in view.map.fields:
        is_average = view.map.kind.report is Report.MEANS
        data.columns[field.name].append(valid if is_average else valid[field.name])


def _summarize_keys(entry: Map, data: _MapData, sites: Sequence[dict[str, Any]]) -> MapSummary:
    """Summarize a map with keys: the rows of a key, of all launches, are combined. It has a record for each launch.

    sites: of the kernel's manifest, to find the places of keys that are numbers of sites.
    """
    rows = np.concatenate(data.rows) if data.rows else np.empty(0, [("key", "<u8"), ("count", "<u8")])
    keys, group = np.unique(rows["key"], return_inverse=True)
    columns = {}
    for name in rows.dtype.names or ():
        if name in ("key", "missed"):
            continue
        start = np.uint64((1 << 64) - 1) if name == "min" else np.uint64(0)
        columns[name] = np.full(len(keys), start, np.uint64)
        combine = {"min": np.minimum, "max": np.maximum}.get(name, np.add)
        combine.at(columns[name], group, rows[name])
    # A stable sort of the inverted numbers, so that equal ones stay in the order of the keys.
    order = np.argsort(~columns["sum" if "sum" in columns else "count"], kind="stable")
    order = order[: entry.document().get("n")]
    by_number = sites_by_number(sites) if entry.fields[0].name == "site" else {}
    summaries = []
    for number in order.tolist():
        key = int(keys[number])
        kept = {name: int(column[number]) for name, column in columns.items()}
        place, instruction = place_of(by_number.get(key, {}))
        summaries.append(KeySummary(key, kept.pop("count"), kept, place, instruction))
    return MapSummary(
        entry.name, entry.kind, entry.level, entry.cap, wanted=0, records=data.launches, dropped=data.dropped,
        fields=(), keys=tuple(summaries), dropped_sum=data.dropped_sum,
    )  # fmt: skip


def _summarize_histogram(entry: Map, data: _MapData) -> MapSummary:
    """Summarize a histogram: its buckets in ascending order. It has no fields, and a record for each launch."""
    buckets = tuple(BucketSummary(low, high, count) for (low, high), count in sorted(data.buckets.items()))
    # A histogram has one cap, which is the least, the greatest and the last of all launches.
    return MapSummary(
        entry.name, entry.kind, entry.level, entry.cap, wanted=0,
        records=data.results if entry.per.has_rows else data.launches, dropped=0, fields=(), buckets=buckets,
        per=entry.per,
    )  # fmt: skip


def _summarize_map(entry: Map, data: _MapData, sites: Sequence[dict[str, Any]]) -> MapSummary:
    """Summarize any other map: the range of each field, and records by site.

    sites: of the kernel's manifest.
    """
    fields = []
    by_site: tuple[SiteSummary, ...] = ()
    records = 0
    for field in entry.fields:
        pieces = data.columns[field.name]
        values = np.concatenate(pieces) if pieces else np.empty(0)
        # The same for all fields.
        records = data.launches if entry.per is Per.RUN else len(values)
        if not len(values):
            continue
        if entry.kind.report is Report.MEANS:
            fields.append(_summarize_means(field, values))
            continue
        # A field called site has numbers of sites, which are counted; their range says nothing.
        if field.name == "site" and entry.kind.report is Report.RECORDS and values.dtype.kind in "ui":
            by_site = _summarize_sites(values, sites)
            continue
        # np.partition puts the value at this index that sorting would put there, and is faster.
        middle = (len(values) - 1) // 2
        median = np.partition(values, middle)[middle]
        total = _exact_sum(values) if entry.kind.report is Report.TOTALS else None
        fields.append(
            FieldSummary(field.name, field.type.value, values.min().item(), median.item(), values.max().item(), total)
        )
    return MapSummary(
        entry.name, entry.kind, entry.level, entry.cap, data.wanted, records, data.dropped, tuple(fields),
        by_site, per=entry.per,
    )  # fmt: skip


def _summarize_means(field: Field, rows: Array) -> FieldSummary:
    """Summarize the field of an average. rows: count, sum and mean of each launch, at least one."""
    count, mean = rows["count"], rows["mean"]
    middle = (len(mean) - 1) // 2
    # The counts are at least 1. Weights that sum to 1, since the sum of all values may be beyond any number.
    overall = float((mean * (count / count.sum(dtype=np.float64))).sum())
    return FieldSummary(
        field.name, field.type.value, mean.min().item(), np.partition(mean, middle)[middle].item(), mean.max().item(),
        total=None, values=sum(count.tolist()), mean=overall,
    )  # fmt: skip


def _summarize_sites(values: Array, sites: Sequence[dict[str, Any]]) -> tuple[SiteSummary, ...]:
    """Count a map's records by site (an instruction that a probe matched), those with most first.

    values: the number of the site in each record. sites: of the kernel's manifest, to find their places.
    """
    site_by_number = sites_by_number(sites)
    rows = []
    for number, records in zip(*np.unique(values, return_counts=True), strict=True):
        # A field called site may have other numbers, which a probe saved; they have no place.
        place, instruction = place_of(site_by_number.get(int(number), {}))
        rows.append(SiteSummary(int(number), int(records), place, instruction))
    return tuple(sorted(rows, key=lambda row: (-row.records, row.number)))


def sites_by_number(sites: Sequence[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return a manifest's sites by their numbers."""
    # Several probes at one instruction have entries with one number; the first of them is used.
    # Entries of kernel entries and ends have no number.
    return {site["site"]: site for site in reversed(sites) if isinstance(site.get("site"), int)}


def place_of(site: dict[str, Any]) -> tuple[str, str]:
    """Return the place and the instruction of a manifest's site, "" where it has none."""
    place = str(site.get("source") or (f"PTX line {site['line']}" if "line" in site else ""))
    return place, str(site.get("instruction", ""))


def _exact_sum(values: Array) -> int:
    """Return the sum of integers as a Python int: upper and lower halves are summed apart, so as not to overflow.

    Sums of fewer than 2^31 numbers of 32 bits fit in 64 bits. The upper half has the sign, as >> of signed numbers
    keeps it; the lower half counts as unsigned.
    """
    wide = values.astype(np.int64 if values.dtype.kind == "i" else np.uint64)
    return (int((wide >> 32).sum()) << 32) + int((wide & 0xFFFFFFFF).sum())


def _kernel_notes(summary: KernelSummary) -> list[str]:
    """Return notes about a kernel's data that are missing: dropped records, and launches without data."""
    notes = []
    name = summary.kernel.demangled
    for entry in summary.maps:
        # That a ring keeps the last records only is what was asked for.
        if entry.dropped and entry.kind.report is Report.KEYS:
            sums = f", sums {entry.dropped_sum:,}" if entry.dropped_sum else ""
            notes.append(
                f"{name}: {_counted(entry.dropped, 'save')} of map {entry.name} found no place for "
                f"{'its key' if entry.dropped == 1 else 'their keys'}: counts may be that much too low{sums}, and keys "
                "that are missing had no more; raise room"
            )
        elif entry.dropped and not entry.kind.keeps_last:
            notes.append(
                f"{name}: {_counted(entry.dropped, 'record')} of map {entry.name} "
                f"{'was' if entry.dropped == 1 else 'were'} dropped: {_why_dropped(entry)}"
            )
    if summary.lost:
        notes.append(f"{name}: the data of {_counted(summary.lost, 'launch')} were lost on their way back")
    if summary.removed:
        removed = _counted(summary.removed, "launch")
        notes.append(f"{name}: the data of {removed} were removed to keep to --max-trace-size")
    if summary.pending:
        pending = _counted(summary.pending, "launch")
        notes.append(f"{name}: the data of {pending} had not arrived when the trace ended")
    return notes


def _why_dropped(entry: MapSummary) -> str:
    """Return in words why records of a map were dropped, and what to do about it."""
    if entry.kind.layout is Layout.CHUNKS:
        return "there was no memory for them (--max-device-memory); later launches get as much as earlier ones needed"
    return f"a slot keeps {entry.cap}; raise cap"


def _counted(number: int, word: str) -> str:
    plural = f"{word}es" if word.endswith("h") else f"{word}s"
    return f"{number:,} {word if number == 1 else plural}"


def not_probed_launches(kernel: TraceKernel) -> list[NotProbed]:
    """Return for each reason how many launches of a kernel ran the original; one entry with 0 if it was never launched.

    Empty for a probed kernel whose launches all ran the twin (instrumented copy).
    """
    # The detail is about the kernel's own reason: single launches may have had others.
    rows = [
        NotProbed(kernel, reason, kernel.detail if reason is kernel.reason else "", count)
        for reason, count in kernel.counters.items()
        if reason is not Reason.PROBED
    ]
    if not rows and kernel.reason is not Reason.PROBED:
        rows.append(NotProbed(kernel, kernel.reason, kernel.detail, launches=0))
    return rows
