"""The report of a trace with many kernels: a table for each map, with a line for each kernel, and one for reasons."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from neutrino.abi.reasons import Reason
from neutrino.cli.exact_numbers import bucket_range, exact
from neutrino.maps.declaration import Layout, Report, result_words
from neutrino.tracing.summary import FieldSummary, KernelSummary, MapSummary, NotProbed

_BARS = " ▁▂▃▄▅▆▇█"
_BAR_WIDTH = 16
"""Characters of a histogram in a table, at most."""
_MOST_FIELDS = 2
"""Fields of records whose medians are shown."""
_MOST_NAMED = 8
"""Kernels that are named in one line."""
_DURATIONS = ("elapsed", "cycles", "latency", "wait", "duration")
"""Names of fields that say how long something took: they are shown, if there are any, rather than the first ones."""


@dataclass(frozen=True)
class OverviewTable:
    """A table. titles: of the columns. rows: those to show first first; the first cell is the kernel. left: the columns
    that are aligned left, after the first."""

    heading: str
    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: tuple[str, ...] = ()


def overview(kernels: Sequence[KernelSummary], label: Callable[[KernelSummary], str]) -> Iterator[OverviewTable]:
    """Yield a table for each map (what probes save to) of the kernels that were launched, with a line for each of them,
    the largest first. label: gives a kernel's name as it is shown.
    """
    launched = [kernel for kernel in kernels if kernel.submitted]
    names = dict.fromkeys(entry.name for kernel in launched for entry in kernel.maps)
    for name in names:
        found = [(kernel, entry) for kernel in launched for entry in kernel.maps if entry.name == name]
        # The largest first; equal ones by their names.
        found.sort(key=lambda row: (-_size(row[1]), label(row[0])))
        yield _table([entry for _, entry in found], [(label(kernel), kernel.submitted) for kernel, _ in found])


def lines_not_probed(kernels: Sequence[KernelSummary], label: Callable[[KernelSummary], str]) -> Iterator[str]:
    """Yield a line for each map (what probes save to) that some launched kernels have no figures of: they could not
    take its probe.

    label: as for ``overview``.
    """
    found: dict[str, list[str]] = {}
    for summary in kernels:
        manifest = summary.kernel.manifest
        for name in manifest.not_probed if manifest is not None and summary.submitted else ():
            found.setdefault(name, []).append(label(summary))
    for name, labels in found.items():
        more = f" and {len(labels) - _MOST_NAMED:,} more" if len(labels) > _MOST_NAMED else ""
        yield f"{name} was not probed in {', '.join(labels[:_MOST_NAMED])}{more} (--why says why)"


def _size(entry: MapSummary) -> int | float:
    """How much a map (what probes save to) has measured in a kernel (a total, a count, a time): kernels are sorted by
    it.
    """
    if entry.kind.report is Report.TOTALS:
        totals = [field.total or 0 for field in entry.fields]
        return sum(total for total in totals if math.isfinite(total))
    if entry.kind.report is Report.MEANS:
        return sum(field.values or 0 for field in entry.fields)
    if entry.kind.report is Report.BUCKETS:
        return sum(bucket.count for bucket in entry.buckets)
    if entry.kind.report is Report.KEYS:
        return sum(key.count for key in entry.keys)
    # How long all of it took, where records say that.
    durations = [field.added for field in entry.fields if field.name in _DURATIONS and field.added is not None]
    return durations[0] if durations else entry.records


def _table(entries: Sequence[MapSummary], kernels: Sequence[tuple[str, int]]) -> OverviewTable:
    """The table of one map (what probes save to), a row for each kernel.

    entries: what the map has of each. kernels: their names and launches.
    """
    first = entries[0]
    write = {
        Report.TOTALS: _totals, Report.MEANS: _means, Report.BUCKETS: _buckets, Report.KEYS: _keys,
    }.get(first.kind.report, _records)  # fmt: skip
    titles, columns, left = write(entries)
    dropped = [entry.dropped for entry in entries]
    if any(dropped):
        titles, columns = [*titles, "dropped"], [*columns, [f"{number:,}" for number in dropped]]
    words = result_words(first.kind, first.per)
    if first.kind.layout is Layout.CHUNKS:
        words = f"records by {first.level.value}"
    elif first.kind.layout is Layout.SLOTS:
        words = f"records per {first.level.value}"
    rows = [
        (name, f"{launches:,}", *cells)
        for (name, launches), cells in zip(kernels, zip(*columns, strict=True), strict=True)
    ]
    return OverviewTable(f"{first.name}: {words}", ("kernel", "launches", *titles), tuple(rows), tuple(left))


Columns = tuple[list[str], list[list[str]], list[str]]
"""Titles of columns, their cells, and which are aligned left."""


def _totals(entries: Sequence[MapSummary]) -> Columns:
    """The columns of sums: the total of each field that is not 0 everywhere.

    entries: what the map (what probes save to) has of each kernel.
    """
    by_name = [{field.name: field.total or 0 for field in entry.fields} for entry in entries]
    names = [name for name in by_name[0] if any(totals.get(name) for totals in by_name)] or list(by_name[0])[:1]
    return names, [[number(totals.get(name, 0)) for totals in by_name] for name in names], []


def _means(entries: Sequence[MapSummary]) -> Columns:
    """The columns of averages: how many values, their mean, and the greatest mean of a launch.

    entries: of each kernel.
    """
    fields = [entry.fields[0] if entry.fields else None for entry in entries]
    values = [f"{field.values or 0:,}" if field else "0" for field in fields]
    means = ["" if field is None or field.mean is None else f"{field.mean:.6g}" for field in fields]
    greatest = [number(field.maximum) if field else "" for field in fields]
    return ["values", "mean", "max of launches"], [values, means, greatest], []


def _buckets(entries: Sequence[MapSummary]) -> Columns:
    """The columns of histograms: how many values, from where to where, and bars from the first to the last bucket that
    has any. entries: of each kernel.
    """
    counts, ranges, bars = [], [], []
    for entry in entries:
        filled = [index for index, bucket in enumerate(entry.buckets) if bucket.count]
        counts.append(f"{sum(bucket.count for bucket in entry.buckets):,}")
        if not filled:
            ranges.append("")
            bars.append("")
            continue
        shown = entry.buckets[filled[0] : filled[-1] + 1]
        # Those of floating-point numbers may have a last bucket of NaNs.
        numbers = [bucket for bucket in shown if not math.isnan(bucket.low)]
        ends = bucket_range(numbers[0].low, numbers[-1].high) if numbers else ""
        more = ["not a number"] if len(numbers) < len(shown) and shown[-1].count else []
        ranges.append(", ".join([ends, *more] if ends else more))
        bars.append(bar([bucket.count for bucket in shown]))
    return ["values", "range", ""], [counts, ranges, bars], [""]


def _keys(entries: Sequence[MapSummary]) -> Columns:
    """The columns of maps with keys: how many keys, and the first one's share of all saves. entries: of each kernel."""
    numbers = [f"{len(entry.keys):,}" for entry in entries]
    firsts = []
    for entry in entries:
        saves = sum(key.count for key in entry.keys)
        if not saves:
            firsts.append("")
            continue
        key = entry.keys[0]
        place = f" {key.place}" if key.place else ""
        firsts.append(f"{exact(key.key)}{place} ({key.count / saves:.0%} of {saves:,})")
    return ["keys", "first"], [numbers, firsts], ["first"]


def _records(entries: Sequence[MapSummary]) -> Columns:
    """The columns of records: how many, the median and the greatest value of a few fields, and where most are from.

    entries: of each kernel.
    """
    titles, columns, left = ["records"], [[f"{entry.records:,}" for entry in entries]], []
    if any(entry.all_zero for entry in entries):
        titles.append("all zero or not saved")
        columns.append([f"{entry.all_zero:,}" for entry in entries])
    names = list(dict.fromkeys(field.name for entry in entries for field in entry.fields))
    durations = [name for name in names if name in _DURATIONS]
    for name in (durations or names)[:_MOST_FIELDS]:
        fields = [_field(entry, name) for entry in entries]
        titles += [f"{name}: median", "max"]
        columns.append([number(field.median) if field else "" for field in fields])
        columns.append([number(field.maximum) if field else "" for field in fields])
        if name in _DURATIONS:
            titles.append("sum")
            columns.append([number(field.added) if field and field.added is not None else "" for field in fields])
    if any(entry.sites for entry in entries):
        titles.append("most at")
        left.append("most at")
        columns.append([_most_at(entry) for entry in entries])
    return titles, columns, left


def _field(entry: MapSummary, name: str) -> FieldSummary | None:
    """What a map (what probes save to) has of the field of that name; None without it."""
    return next((field for field in entry.fields if field.name == name), None)


def _most_at(entry: MapSummary) -> str:
    """The site (instruction that a probe matches) with most records of a map, and its share, as
    ``file.cu:42 (31%)``.
    """
    if not entry.sites:
        return ""
    site = entry.sites[0]
    return f"{site.place or f'site {site.number}'} ({site.records / entry.records:.0%})"


def bar(counts: Sequence[int], width: int = _BAR_WIDTH) -> str:
    """Return counts as bars of a character each (``▁`` to ``█``), a count of 0 as a blank; neighbours share one where
    there are more than ``width``.
    """
    merge = -(-len(counts) // width)
    merged = [sum(counts[start : start + merge]) for start in range(0, len(counts), merge)]
    most = max(merged, default=0)
    return "".join(_BARS[-(-count * (len(_BARS) - 1) // most)] if most else _BARS[0] for count in merged).rstrip()


def number(value: int | float) -> str:
    """Return a number for a table: integers with separators, others with six digits."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


@dataclass(frozen=True)
class FoldedReason:
    """Launches that ran the original for one reason. kernels: how many had such launches, or were never launched."""

    reason: Reason
    launches: int
    kernels: int
    text: str
    remedy: str


def folded(rows: Sequence[NotProbed]) -> list[FoldedReason]:
    """Add up launches that were not probed by reason; that with most launches first."""
    by_reason: dict[Reason, list[NotProbed]] = {}
    for row in rows:
        by_reason.setdefault(row.reason, []).append(row)
    found = [
        FoldedReason(
            reason, sum(row.launches for row in own), len({row.kernel.id for row in own}), own[0].text, own[0].remedy
        )
        for reason, own in by_reason.items()
    ]
    return sorted(found, key=lambda row: (-row.launches, -row.kernels, row.reason))
