"""The part of a report on many kernels at once: a table for each map, with a line for each kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field

from neutrino.late_dataclass import dataclass
from neutrino.maps.declaration import Layout, Report, result_words
from neutrino.tracing.percent import percent
from neutrino.tracing.shown.exact_numbers import bucket_range, exact
from neutrino.tracing.shown.maps import NOTHING_KNOWN, Known
from neutrino.tracing.shown.model import Cell, Column, Kind, Line, Name, Section, Table, counted, joined
from neutrino.tracing.summary import FieldSummary, KernelSummary, MapSummary

MOST_ROWS = 20
"""Lines of a table of the overview that are shown without --all."""
_BARS = " ▁▂▃▄▅▆▇█"
_BAR_WIDTH = 16
"""Characters of a histogram in a table, at most."""
_MOST_FIELDS = 2
"""Fields of records whose medians are shown."""
_MOST_NAMED = 8
"""Kernels that are named in one line."""
_NONE = Cell("")
_DURATIONS = ("elapsed", "cycles", "latency", "wait", "duration")
"""Names of fields that say how long something took: they are shown, if there are any, rather than the first ones."""


def overview(
    kernels: Sequence[KernelSummary], known_of: Callable[[KernelSummary], Callable[[str], Known]]
) -> Iterator[Section]:
    """Yield a section for each map (what probes save to) of the kernels that were launched, with a line for each of
    them, the largest first; then one of lines about what the tables lack.

    known_of: what gives for a kernel, and then for the name of a map, what is known of its numbers.
    """
    launched = [kernel for kernel in kernels if kernel.submitted]
    asked: dict[int, Callable[[str], Known]] = {}

    def known(kernel: KernelSummary, name: str) -> Known:
        """Return what is known of a map of a kernel, whose times are read once."""
        if kernel.kernel.id not in asked:
            asked[kernel.kernel.id] = known_of(kernel)
        return asked[kernel.kernel.id](name)

    nothing: list[str] = []
    for name in dict.fromkeys(entry.name for kernel in launched for entry in kernel.maps):
        found = [(kernel, entry) for kernel in launched for entry in kernel.maps if entry.name == name]
        # Where no data has come, nothing can be said of what was saved.
        has_data = any(kernel.written for kernel, _ in found)
        if has_data and all(entry.is_nothing and not entry.dropped for _, entry in found):
            nothing.append(name)
            continue
        # The largest first; equal ones by their names.
        found.sort(key=lambda row: (-_size(row[1]), row[0].kernel.full_name))
        # Of kernels that have no line nothing is read.
        numbers = [known(kernel, name) for kernel, _ in found[:MOST_ROWS]]
        numbers += [NOTHING_KNOWN] * (len(found) - len(numbers))
        heading, table = _table([entry for _, entry in found], [kernel for kernel, _ in found], numbers)
        yield Section("overview", Line.of(heading), (table,), name=name)
    lines = list(_not_probed(kernels))
    if nothing:
        lines.append(Line.of(f"{', '.join(nothing)}: nothing was saved, or 0, in any kernel"))
    idle = sum(not kernel.submitted for kernel in kernels)
    if idle:
        lines.append(Line.of(f"{counted(idle, 'kernel has', 'kernels have')} no probed launch"))
    lines.append(Line.of("-k NAME shows all of a kernel, --all of all kernels"))
    yield Section("overview", None, tuple(lines))


def _not_probed(kernels: Sequence[KernelSummary]) -> Iterator[Line]:
    """Yield a line for each map (what probes save to) that some launched kernels have no figures of: they could not
    take its probe.
    """
    found: dict[str, list[Name]] = {}
    for summary in kernels:
        manifest = summary.kernel.manifest
        for name in manifest.not_probed if manifest is not None and summary.submitted else ():
            found.setdefault(name, []).append(Name(summary.kernel.full_name, summary.kernel.id))
    for name, names in found.items():
        yield Line.of(f"{name} was not probed in ", *joined(names, _MOST_NAMED), " (--why says why)")


def _size(entry: MapSummary) -> int | float:
    """How much a map (what probes save to) has measured in a kernel (a total, a count, a time): kernels are sorted by
    it.
    """
    if entry.kind.report is Report.TOTALS:
        totals = [total.total or 0 for total in entry.fields]
        return sum(total for total in totals if math.isfinite(total))
    if entry.kind.report is Report.MEANS:
        return sum(mean.values or 0 for mean in entry.fields)
    if entry.kind.report is Report.BUCKETS:
        return sum(bucket.count for bucket in entry.buckets)
    if entry.kind.report is Report.KEYS:
        return sum(key.count for key in entry.keys)
    # How long all of it took, where records say that.
    durations = [found.added for found in entry.fields if found.name in _DURATIONS and found.added is not None]
    return durations[0] if durations else entry.records


@dataclass
class _Columns:
    """Columns of a table, and the cells of each."""

    heads: list[Column] = field(default_factory=list)
    cells: list[list[Cell]] = field(default_factory=list)

    def add(self, title: str, cells: Sequence[Cell], kind: Kind = Kind.NUMBER) -> None:
        """Add a column with its cells, one for each kernel."""
        self.heads.append(Column(title, kind))
        self.cells.append(list(cells))


def _table(
    entries: Sequence[MapSummary], kernels: Sequence[KernelSummary], known: Sequence[Known]
) -> tuple[str, Table]:
    """Return the heading and the table of one map (what probes save to), a row for each kernel.

    entries: what the map has of each; known: of its numbers.
    """
    first = entries[0]
    write = {
        Report.TOTALS: _totals, Report.MEANS: _means, Report.BUCKETS: _buckets, Report.KEYS: _keys,
    }.get(first.kind.report, _records)  # fmt: skip
    columns = write(entries, known)
    dropped = [entry.dropped for entry in entries]
    if any(dropped):
        columns.add("dropped", [_number(number) for number in dropped])
    words = result_words(first.kind, first.per)
    if first.kind.layout is Layout.CHUNKS:
        words = f"records by {first.level.value}"
    elif first.kind.layout is Layout.SLOTS:
        words = f"records per {first.level.value}"
    # Of damaged maps there may be no column.
    rows = [
        (
            Cell.named(Name(summary.kernel.full_name, summary.kernel.id)), _number(summary.submitted),
            *(cells[at] for cells in columns.cells),
        )
        for at, summary in enumerate(kernels)
    ]  # fmt: skip
    hidden = max(len(rows) - MOST_ROWS, 0)
    more = Line.of(f"and {counted(hidden, 'kernel', 'kernels')} more", indent=1) if hidden else None
    heads = (Column("kernel", Kind.NAME), Column("launches"), *columns.heads)
    return f"{first.name}: {words}", Table(
        first.name, heads, tuple(rows[:MOST_ROWS]), indent=1, left_out=hidden, more=more
    )


def _totals(entries: Sequence[MapSummary], _: Sequence[Known]) -> _Columns:
    """The columns of sums: the total of each field that is not 0 everywhere.

    entries: what the map (what probes save to) has of each kernel.
    """
    by_name = [{field.name: field.total or 0 for field in entry.fields} for entry in entries]
    # Some kernels' may be damaged, and have none.
    known = list(dict.fromkeys(name for totals in by_name for name in totals))
    names = [name for name in known if any(totals.get(name) for totals in by_name)] or known[:1]
    columns = _Columns()
    for name in names:
        columns.add(name, [_number(totals.get(name, 0)) for totals in by_name])
    return columns


def _means(entries: Sequence[MapSummary], _: Sequence[Known]) -> _Columns:
    """The columns of averages: how many values, their mean, and the greatest mean of a launch.

    entries: of each kernel.
    """
    fields = [entry.fields[0] if entry.fields else None for entry in entries]
    columns = _Columns()
    columns.add("values", [_number((found.values or 0) if found else 0) for found in fields])
    columns.add(
        "mean",
        [
            Cell("") if found is None or found.mean is None else Cell(f"{found.mean:.6g}", found.mean)
            for found in fields
        ],
    )
    columns.add("max of launches", [_number(found.maximum) if found else Cell("") for found in fields])
    return columns


def _buckets(entries: Sequence[MapSummary], known: Sequence[Known]) -> _Columns:
    """The columns of histograms: how many values, from where to where, and bars from the first to the last bucket that
    has any. entries: of each kernel.
    """
    counts, ranges, bars = [], [], []
    for entry, its in zip(entries, known, strict=True):
        filled = [index for index, bucket in enumerate(entry.buckets) if bucket.count]
        counts.append(_number(sum(bucket.count for bucket in entry.buckets)))
        if not filled:
            ranges.append(Cell(""))
            bars.append(Cell(""))
            continue
        shown = entry.buckets[filled[0] : filled[-1] + 1]
        # Those of floating-point numbers may have a last bucket of NaNs.
        numbers = [bucket for bucket in shown if not math.isnan(bucket.low)]
        ends = bucket_range(numbers[0].low, numbers[-1].high) if numbers else ""
        if numbers and its.is_address(entry.field_name):
            ends = f"{int(numbers[0].low):#x} to {int(numbers[-1].high):#x}"
        more = ["not a number"] if len(numbers) < len(shown) and shown[-1].count else []
        ranges.append(Cell(", ".join([ends, *more] if ends else more)))
        bars.append(Cell(bar([bucket.count for bucket in shown])))
    columns = _Columns()
    columns.add("values", counts)
    columns.add("range", ranges)
    columns.add("", bars, Kind.BARS)
    return columns


def _keys(entries: Sequence[MapSummary], known: Sequence[Known]) -> _Columns:
    """The columns of maps with keys: how many keys, and the first one's share of all saves. entries: of each kernel."""
    firsts = []
    for entry, its in zip(entries, known, strict=True):
        saves = sum(key.count for key in entry.keys)
        if not saves:
            firsts.append(Cell(""))
            continue
        key = entry.keys[0]
        place = f" {key.place}" if key.place else ""
        is_address = its.is_address(entry.field_name) and isinstance(key.key, int)
        name = f"{key.key:#x}" if is_address else exact(key.key)
        firsts.append(Cell(f"{name}{place} ({percent(key.count / saves)} of {saves:,})", key.count))
    columns = _Columns()
    columns.add("keys", [_number(len(entry.keys)) for entry in entries])
    columns.add("first", firsts, Kind.TEXT)
    return columns


def _records(entries: Sequence[MapSummary], known: Sequence[Known]) -> _Columns:
    """The columns of records: how many, the median and the greatest value of a few fields, and where most are from.

    entries: of each kernel. known: of its numbers: addresses are in hexadecimal, and times since a launch's first one.
    """
    columns = _Columns()
    columns.add("records", [_number(entry.records) for entry in entries])
    if any(entry.all_zero for entry in entries):
        columns.add("all zero or not saved", [_number(entry.all_zero) for entry in entries])
    names = list(dict.fromkeys(found.name for entry in entries for found in entry.fields))
    durations = [name for name in names if name in _DURATIONS]
    for name in (durations or names)[:_MOST_FIELDS]:
        fields = [_field(entry, name) for entry in entries]
        times = [its.times.get(name) for its in known]
        if any(times):
            # Of several multiprocessors they say nothing.
            if any(its.is_apart(name) for its in known):
                continue
            unit = next(its.unit(name) for its in known if name in its.times)
            columns.add(f"{name}, {unit} since the first: median", [_number(t.median) if t else _NONE for t in times])
            columns.add("max", [_number(t.maximum) if t else _NONE for t in times])
            continue
        write = _address if any(its.is_address(name) for its in known) else _number
        columns.add(f"{name}: median", [write(found.median) if found else _NONE for found in fields])
        columns.add("max", [write(found.maximum) if found else _NONE for found in fields])
        if name in _DURATIONS:
            sums = [found.added if found else None for found in fields]
            columns.add("sum", [_number(added) if added is not None else Cell("") for added in sums])
    if any(entry.sites for entry in entries):
        columns.add("most at", [_most_at(entry) for entry in entries], Kind.TEXT)
    return columns


def _field(entry: MapSummary, name: str) -> FieldSummary | None:
    """What a map (what probes save to) has of the field of that name; None without it."""
    return next((found for found in entry.fields if found.name == name), None)


def _most_at(entry: MapSummary) -> Cell:
    """The site (instruction that a probe matches) with most records of a map, and its share, as
    ``file.cu:42 (31 %)``.
    """
    if not entry.sites:
        return Cell("")
    site = entry.sites[0]
    return Cell(f"{site.place or f'site {site.number}'} ({percent(site.records / entry.records)})", site.records)


def bar(counts: Sequence[int], width: int = _BAR_WIDTH) -> str:
    """Return counts as bars of a character each (``▁`` to ``█``), a count of 0 as a blank; neighbours share one where
    there are more than ``width``.
    """
    merge = -(-len(counts) // width)
    merged = [sum(counts[start : start + merge]) for start in range(0, len(counts), merge)]
    most = max(merged, default=0)
    return "".join(_BARS[-(-count * (len(_BARS) - 1) // most)] if most else _BARS[0] for count in merged).rstrip()


def _address(value: int | float) -> Cell:
    """Return the cell of an address."""
    return Cell(f"{value:#x}", value) if isinstance(value, int) else _number(value)


def _number(value: int | float) -> Cell:
    """Return a number's cell: integers with separators, others with six digits."""
    return Cell(f"{value:,}" if isinstance(value, int) else f"{value:.6g}", value)
