"""Summary of a trace: for each kernel and map the number of records and the range of each field, and what was not
probed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.abi.launches import LaunchState
from neutrino.abi.levels import Level, Per
from neutrino.abi.reasons import REASON_REMEDY, REASON_TEXT, Reason
from neutrino.abi.scalars import NUMPY_TYPES
from neutrino.errors import TraceError
from neutrino.late_dataclass import dataclass
from neutrino.maps.declaration import Layout, Map, MapType, Report, has_no_count
from neutrino.maps.keyed import Keyed
from neutrino.tracing.aggregate import count_values, ranges_of
from neutrino.tracing.liveness import is_running
from neutrino.tracing.map_records import MapRecords
from neutrino.tracing.site_tables import combined, is_by_site, key_name, place_of, sites_by_number
from neutrino.tracing.trace import LaunchCounts, Trace, TraceKernel

Array = npt.NDArray[Any]
_MOST_ROWS = 1 << 16
"""Rows of keys that wait to be combined, unless there are more keys."""


@dataclass(frozen=True)
class FieldSummary:
    """The range of one field: over all valid records, of a sum map over the totals of the launches, of an average over
    their means.

    median: an existing value, the lower of the two middle ones. total: of a sum map the sum over all launches, else
    None. values, mean: of an average how many values all launches saved, and their mean; else None. added: of records
    the sum of all values, else None.
    """

    name: str
    type: str
    minimum: int | float
    median: int | float
    maximum: int | float
    total: int | float | None
    values: int | None = None
    mean: float | None = None
    added: int | float | None = None


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
    """One bucket of a histogram: how many values from low to high, both inclusive, all launches recorded.

    low, high: of floating-point numbers floats, both NaN of the bucket of NaNs, the last one.
    """

    low: int | float
    high: int | float
    count: int


@dataclass(frozen=True)
class KeySummary:
    """One key of a map with keys, all launches together: its count of saves, and what is kept of their values.

    kept: by name, in the order of the map's type. place, instruction: of a site, as in ``SiteSummary``; else "".
    """

    key: int | float
    count: int
    kept: dict[str, int | float]
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
    values are one result; unless it is the launch's, records are these results. all_zero: of an array with a cap of 1,
    which has no counts, records that are all zeros: saved so, or of slots that nothing was saved to. key_name: what the
    keys are called: of a table by site as the probe's field is. field_name: of keys and buckets, what the probe's field
    is called.
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
    dropped_sum: int | float = 0
    per: Per = Per.LAUNCH
    all_zero: int = 0
    key_name: str = "key"
    field_name: str = ""

    @property
    def is_nothing(self) -> bool:
        """Whether nothing has been saved to the map, or only what adds up to 0."""
        if self.kind.report in (Report.BUCKETS, Report.KEYS):
            return not self.keys and not any(bucket.count for bucket in self.buckets)
        if self.kind.report is Report.TOTALS:
            return not any(field.total for field in self.fields)
        if self.kind.report is Report.MEANS:
            return not any(field.values for field in self.fields)
        return not self.records and not self.dropped


@dataclass(frozen=True)
class KernelSummary:
    """One probed kernel, and its launches by outcome.

    submitted: launches of the twin (instrumented copy), of which written have their data in the trace, lost could not
    be copied back, and pending had not arrived when the trace ended; removed is those whose data went to keep to the
    limit of the trace's size. unprobed: launches of the original. capped: launches of the twin with a register cap;
    fewer_blocks: of the twin though fewer blocks of it fit on a multiprocessor than of the original; fewer_by_threads:
    these by the threads of a block.
    """

    kernel: TraceKernel
    submitted: int
    written: int
    lost: int
    pending: int
    unprobed: int
    capped: int
    fewer_blocks: int
    fewer_by_threads: Mapping[int, int]
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
        """The reason why these launches were not probed, as a sentence."""
        return REASON_TEXT[self.reason]

    @property
    def matches_nothing(self) -> bool:
        """Whether the kernel just has no instruction that a probe matches, which is no failure. Others of that reason
        have some, at which nothing can be placed."""
        return self.reason is Reason.NO_SITE and not self.detail.startswith("line ")

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


def summarize(
    trace: Trace, keep: Callable[[TraceKernel], bool] = lambda _: True, launches: range | None = None
) -> TraceSummary:
    """Summarize a trace for ``neutrino-report``: the probed kernels, those that were not probed, and notes.

    keep: whether to include a kernel. launches: the numbers of those whose records are read; all without. Launches are
    counted all the same, and maps per run are of all. Raises TraceError for damaged data.
    """
    kernels = []
    not_probed = []
    notes = list(trace.notes)
    for kernel in trace.kernels:
        if not keep(kernel):
            continue
        if kernel.manifest is not None and kernel.reason is Reason.PROBED:
            try:
                summary = _summarize_kernel(kernel, launches)
            except TraceError as error:
                trace.tolerate(error)
                summary = _summarize_kernel(kernel, launches, with_maps=False)
            kernels.append(summary)
            notes += _kernel_notes(summary)
        elif kernel.reason is Reason.PROBED and not any(
            f"kernel/{kernel.id}/manifest.json" in fault for fault in trace.faults
        ):
            # The process died before the manifest was written.
            notes.append(f"{kernel.name}: kernel/{kernel.id}/manifest.json is missing: its data cannot be read")
        not_probed += not_probed_launches(kernel)
    if launches is not None:
        which = f"launch {launches.start}" if len(launches) == 1 else f"launches from {launches.start} on"
        if len(launches) != 1 and launches.stop < sys.maxsize:
            which += f" and before {launches.stop}"
        notes.append(f"the maps have the records of {which} alone")
    not_probed.sort(key=lambda row: -row.launches)
    return TraceSummary(trace, tuple(kernels), tuple(not_probed), tuple(notes))


def _summarize_kernel(kernel: TraceKernel, launches: range | None, *, with_maps: bool = True) -> KernelSummary:
    """Count a kernel's launches by outcome, and summarize its maps (what probes save to), of chosen launches if any
    are.
    """
    counts = kernel.count_launches()
    read = counts.written
    if launches is not None:
        read = read[(read >= launches.start) & (read < launches.stop)]
    submitted, written, lost, pending, removed = _outcomes(kernel, counts)
    return KernelSummary(
        kernel,
        submitted=submitted,
        written=written,
        lost=lost,
        pending=pending,
        # From the counters, since there may be more launches than records.
        unprobed=sum(count for reason, count in kernel.counters.items() if reason is not Reason.PROBED),
        capped=counts.capped,
        fewer_blocks=counts.fewer_blocks,
        maps=_summarize_maps(kernel, read) if with_maps else (),
        removed=removed,
        fewer_by_threads=counts.fewer_by_threads,
    )


def _outcomes(kernel: TraceKernel, counts: LaunchCounts) -> tuple[int, int, int, int, int]:
    """Return how many launches of a kernel's twin (instrumented copy) there were, and how many of them are written,
    lost, pending and removed.
    """
    # Records of launches that ran the original, and records that were reserved and not used.
    not_submitted = counts.by_state[LaunchState.FALLBACK] + counts.by_state[LaunchState.EMPTY]
    # Any other record is of the twin. If the oldest records were removed, or could not be written, the counters still
    # count their launches.
    recorded = counts.launches - not_submitted
    lacks_records = kernel.has_removed or kernel.trace.lost[0]
    submitted = max(recorded, kernel.counters.get(Reason.PROBED, 0)) if lacks_records else recorded
    written, lost = len(counts.written), counts.by_state[LaunchState.LOST]
    pending = counts.by_state[LaunchState.SUBMITTED]
    if not kernel.has_removed:
        lost += submitted - recorded
    return submitted, written, lost, pending, submitted - written - lost - pending if kernel.has_removed else 0


def missing_launches(kernel: TraceKernel) -> list[str]:
    """Return notes about launches of a kernel whose data are not in the trace."""
    _, _, lost, pending, removed = _outcomes(kernel, kernel.count_launches())
    return _missing_notes(kernel.demangled, lost, removed, pending, may_come=bool(pending) and is_running(kernel.trace))


def _summarize_maps(kernel: TraceKernel, written: Array) -> tuple[MapSummary, ...]:
    """Summarize each map (what probes save to) of a kernel over all launches whose data are in the trace.

    written: their numbers.
    """
    maps = kernel.manifest.probed_maps if kernel.manifest else ()
    sites = kernel.manifest.sites if kernel.manifest else ()
    if not any(entry.per is not Per.RUN for entry in maps):
        # No map makes them be read; their frames are checked all the same.
        for _ in kernel.stacks(written):
            pass
    summaries = []
    is_checked = False
    for entry in maps:
        records = MapRecords(kernel, entry, written, is_checked=is_checked)
        # A map per run is in no frame.
        is_checked = is_checked or entry.per is not Per.RUN
        if entry.kind.report is Report.BUCKETS:
            summaries.append(_summarize_histogram(entry, records))
        elif entry.kind.report is Report.KEYS:
            summaries.append(_summarize_keys(entry, records, sites))
        elif entry.kind.report is Report.MEANS:
            summaries.append(_summarize_means(entry, records))
        else:
            summaries.append(_summarize_map(entry, records, sites))
    return tuple(summaries)


def _summarize_keys(entry: Map, records: MapRecords, sites: Sequence[dict[str, Any]]) -> MapSummary:
    """Summarize a map (what probes save to) with keys: the rows of a key, of all launches, are combined. It has a
    record for each launch.

    sites: of the kernel's manifest, to find the places of keys that are numbers of sites.
    """
    # All keys, also of a map that keeps the first ones alone: they may be others over all launches.
    document = entry.document()
    parts: list[Array] = []
    for view in records.views():
        parts.append(Keyed.read(view.records, document))
        if sum(map(len, parts[1:])) > max(_MOST_ROWS, len(parts[0])):
            parts = [combined(parts)]
    rows = combined(parts) if parts else np.empty(0, [("key", "<u8"), ("count", "<u8")])
    names = [name for name in rows.dtype.names or () if name not in ("key", "missed")]
    # A stable sort of the inverted numbers, so that equal ones stay in the order of the keys. NaNs are last.
    sizes = rows["sum" if "sum" in names else "count"]
    order = np.argsort(-sizes if sizes.dtype.kind == "f" else ~sizes, kind="stable")
    order = order[: document.get("n")]
    by_number = sites_by_number(sites) if is_by_site(entry) else {}
    summaries = []
    for number in order.tolist():
        key = rows["key"][number].item()
        kept = {name: rows[name][number].item() for name in names}
        place, instruction = place_of(by_number.get(key, {}))
        summaries.append(KeySummary(key, kept.pop("count"), kept, place, instruction))
    return MapSummary(
        entry.name, entry.kind, entry.level, entry.cap, wanted=0, records=records.launches, dropped=records.dropped,
        fields=(), keys=tuple(summaries), dropped_sum=records.dropped_sum, key_name=key_name(entry),
        field_name=entry.fields[0].name,
    )  # fmt: skip


def _summarize_histogram(entry: Map, records: MapRecords) -> MapSummary:
    """Summarize a histogram: the counts of all launches by bucket, in ascending order. It has no fields."""
    edges: list[tuple[float, float]] = []
    counts: list[int] = []
    rows = 0
    for tiles in records.tiles():
        # Each result has a row for each bucket, in the same order.
        found = tiles.records.reshape(-1)
        if not len(found):
            continue
        if not edges:
            width = len(entry.kind.cells(entry.fields))
            edges = [(low, high) for low, high, _ in found[:width].tolist()]
            counts = [0] * width
        table = found["count"].reshape(-1, len(edges))
        rows += len(table)
        # By halves, since the sum of all may need more than 64 bits.
        halves = zip((table >> 32).sum(axis=0).tolist(), (table & 0xFFFFFFFF).sum(axis=0).tolist(), strict=True)
        counts = [count + (high << 32) + low for count, (high, low) in zip(counts, halves, strict=True)]
    # A histogram has one cap, which is the least, the greatest and the last of all launches.
    return MapSummary(
        entry.name, entry.kind, entry.level, entry.cap, wanted=0,
        records=rows if entry.per.has_rows else records.launches, dropped=0, fields=(),
        buckets=tuple(BucketSummary(low, high, count) for (low, high), count in zip(edges, counts, strict=True)),
        per=entry.per, field_name=entry.fields[0].name,
    )  # fmt: skip


def _summarize_map(entry: Map, records: MapRecords, sites: Sequence[dict[str, Any]]) -> MapSummary:
    """Summarize a map (what probes save to) of records or sums: the range of each field, and records by site
    (instruction that probes match).

    sites: of the kernel's manifest.
    """
    # Of a sum those of its results: f64 for f32.
    columns = entry.kind.cells(entry.fields) if entry.kind.report is Report.TOTALS else entry.fields
    types = {field.name: NUMPY_TYPES[field.type.value] for field in columns}
    # A field called site has numbers of sites, which are counted; their range says nothing.
    is_by_site = "site" in types and entry.kind.report is Report.RECORDS and "f" not in types["site"]
    by_site = types.pop("site") if is_by_site else ""
    ranges = ranges_of(records.tiles(), tuple(types))
    dropped = records.dropped + ranges.dropped
    medians = records.medians(types, ranges)
    fields = []
    for field in entry.fields:
        if field.name in medians:
            known = ranges.fields[field.name]
            is_sum = entry.kind.report is Report.TOTALS
            fields.append(
                FieldSummary(
                    field.name, field.type.value, known.minimum, medians[field.name], known.maximum,
                    known.total if is_sum else None, added=None if is_sum else known.total,
                )
            )  # fmt: skip
    # Records are looked at once more only where some may be all zeros.
    may_be_zero = all(field.minimum <= 0 <= field.maximum for field in fields)
    is_uncounted = has_no_count(entry.kind, entry.cap) and ranges.records > 0
    all_zero = sum(view.all_zero for view in records.views()) if is_uncounted and may_be_zero else 0
    return MapSummary(
        entry.name, entry.kind, entry.level, entry.cap, ranges.wanted,
        records.launches if entry.per is Per.RUN else ranges.records, dropped, tuple(fields),
        _summarize_sites(records, ranges.records, by_site, sites) if by_site and ranges.records else (), per=entry.per,
        all_zero=all_zero,
    )  # fmt: skip


def _summarize_means(entry: Map, records: MapRecords) -> MapSummary:
    """Summarize a map (what probes save to) of averages: the range of the launches' means, and the mean of
    all values.
    """
    ranges = ranges_of(records.tiles(), ("count", "mean"))
    means, values = ranges.fields["mean"], int(ranges.fields["count"].total)
    fields = []
    if ranges.records:
        # The counts are at least 1. Weights that sum to 1, since the sum of all values may be beyond any number.
        overall = 0.0
        for rows in records.rows():
            overall += float((rows["mean"] * (rows["count"] / np.float64(values))).sum())
        median = records.medians({"mean": "<f8"}, ranges)["mean"]
        field = entry.fields[0]
        fields.append(
            FieldSummary(
                field.name, field.type.value, means.minimum, median, means.maximum, None, values=values, mean=overall
            )
        )
    return MapSummary(
        entry.name, entry.kind, entry.level, entry.cap, wanted=0,
        records=records.launches if entry.per is Per.RUN else ranges.records, dropped=0, fields=tuple(fields),
        per=entry.per,
    )  # fmt: skip


def _summarize_sites(
    records: MapRecords, number_of_records: int, kind: str, sites: Sequence[dict[str, Any]]
) -> tuple[SiteSummary, ...]:
    """Count a map's records by site (an instruction that a probe matched), those with most first.

    kind: NumPy's type of the field with the site's number. sites: of the kernel's manifest, to find their places.
    """
    site_by_number = sites_by_number(sites)
    rows = []
    for number, count in count_values(records.tiles, "site", np.dtype(kind), number_of_records).items():
        # A field called site may have other numbers, which a probe saved; they have no place.
        place, instruction = place_of(site_by_number.get(number, {}))
        rows.append(SiteSummary(number, count, place, instruction))
    return tuple(sorted(rows, key=lambda row: (-row.records, row.number)))


def _kernel_notes(summary: KernelSummary) -> list[str]:
    """Return notes about a kernel's data that are missing: dropped records, and launches without data."""
    notes = []
    name = summary.kernel.demangled
    for entry in summary.maps:
        # That a ring keeps the last records only is what was asked for.
        if entry.dropped and entry.kind.report is Report.KEYS:
            lost = entry.dropped_sum
            sums = f", sums {lost:,}" if isinstance(lost, int) else f", sums {lost:.6g}"
            sums = sums if lost else ""
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
    still = bool(summary.pending) and is_running(summary.kernel.trace)
    return notes + _missing_notes(name, summary.lost, summary.removed, summary.pending, may_come=still)


def _missing_notes(name: str, lost: int, removed: int, pending: int, *, may_come: bool) -> list[str]:
    """Return notes about a kernel's launches whose data are missing.

    name: the kernel's. lost, removed, pending: how many, by why. may_come: whether the process may still write them.
    """
    notes = []
    if lost:
        notes.append(f"{name}: the data of {_counted(lost, 'launch')} were lost on their way back")
    if removed:
        notes.append(f"{name}: the data of {_counted(removed, 'launch')} were removed to keep to --max-trace-size")
    if pending:
        what = "are not here yet" if may_come else "had not arrived when the trace ended"
        notes.append(f"{name}: the data of {_counted(pending, 'launch')} {what}")
    return notes


def _why_dropped(entry: MapSummary) -> str:
    """Return in words why records of a map were dropped, and what to do about it."""
    if entry.kind.layout is Layout.CHUNKS:
        return "there was no memory for them (--max-device-memory); later launches get as much as earlier ones needed"
    return f"a slot keeps {entry.cap}; raise cap"


def _counted(number: int, word: str) -> str:
    """Return a number with a noun in the singular or plural."""
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
