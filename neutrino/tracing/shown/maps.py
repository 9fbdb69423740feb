"""The part of a report on one map of one kernel: how much was recorded, and its buckets, keys, fields and sites."""

from __future__ import annotations

from neutrino.abi.levels import Level
from neutrino.maps.declaration import Layout, Report, all_zero_words, result_words
from neutrino.tracing.shown.exact_numbers import bucket_ends, exact
from neutrino.tracing.shown.model import Cell, Column, Kind, Line, Section, Table, counted
from neutrino.tracing.summary import MapSummary

_INDENT = 2
"""Of what is below a map's first line."""
_MAX_BUCKETS = 32
"""Rows of a histogram that are shown without ``--all``."""
_MAX_KEYS = 20
"""Keys of a map that are shown without --all."""
_MAX_SITES = 10
"""Sites of a map that are shown without --all."""
_NO_INSTRUCTION = {0xFFFFFFFF: "the kernel's entry", 0xFFFFFFFE: "the kernel's end"}
"""Numbers that the shipped probes save where there is no site."""


def shown_map(entry: MapSummary, kernel: int, *, is_of_first: bool, show_all: bool, nothing: str = "") -> Section:
    """Return the section of a map (what probes save to): how much it recorded, its buckets or the range of each field,
    then its records by site (instruction that probes match).

    kernel: its id. is_of_first: whether the records of warps, or blocks, are those of their first threads. nothing: why
    nothing was saved, "" if that is not known or not so.
    """
    filled = any(bucket.count for bucket in entry.buckets)
    is_empty = not filled and not entry.keys and entry.kind.report in (Report.BUCKETS, Report.KEYS)
    title = f"{entry.name}: {_recorded(entry, is_of_first=is_of_first)}{'; nothing was saved' if is_empty else ''}"
    blocks: list[Line | Table] = []
    if entry.all_zero:
        blocks.append(Line.of(all_zero_words(entry.all_zero, entry.records), indent=_INDENT))
    if filled:
        blocks.append(_buckets(entry, show_all=show_all))
    if entry.keys:
        blocks.append(_keys(entry, show_all=show_all))
    if entry.fields:
        blocks.append(_fields(entry))
    if entry.sites:
        blocks.append(_sites(entry, show_all=show_all))
    if nothing:
        blocks.append(Line.of(f"nothing: {nothing}", indent=_INDENT))
    return Section("map", Line.of(title, indent=1), tuple(blocks), kernel, entry.name)


def may_be_of_first(entry: MapSummary) -> bool:
    """Whether a map has records of warps or blocks, which their first threads may have saved."""
    return entry.level is not Level.THREAD and entry.kind.layout in (Layout.SLOTS, Layout.CHUNKS)


def _recorded(entry: MapSummary, *, is_of_first: bool) -> str:
    """Return in words how much a map has recorded and lost."""
    # Maps without slots have one combined result per launch, others records in the slots of threads, warps, blocks.
    recorded = f"{counted(entry.records, 'launch', 'launches')} of {result_words(entry.kind, entry.per)}"
    if entry.per.has_rows:
        recorded = f"{counted(entry.records, 'result', 'results')} of {result_words(entry.kind, entry.per)}"
    elif entry.kind.layout is Layout.CHUNKS:
        recorded = f"{counted(entry.records, 'record', 'records')}, by {entry.level.value}"
    elif entry.kind.layout is Layout.SLOTS:
        limit = f"up to {entry.cap}" if entry.cap > 1 else "one"
        if entry.kind.keeps_last:
            limit = f"the last {entry.cap if entry.cap > 1 else 'one'}"
        recorded = f"{counted(entry.records, 'record', 'records')}, {limit} per {entry.level.value}"
    if is_of_first:
        recorded += ", of its first lane" if entry.level is Level.WARP else ", of its thread 0"
    if entry.dropped and entry.kind.report is Report.KEYS:
        recorded += f"; {counted(entry.dropped, 'save', 'saves')} found no place"
    elif entry.dropped:
        recorded += f", {entry.dropped:,} {'overwritten' if entry.kind.keeps_last else 'dropped'}"
    return recorded


def _fields(entry: MapSummary) -> Table:
    """Return the table of a map's fields: the range of each, and of a sum map the total over all launches."""
    titles = ["min", "median", "max"]
    # Such maps' fields, and no others, have a total.
    if entry.kind.report is Report.TOTALS:
        titles.append("total")
    # The range is that of the launches' means.
    if entry.kind.report is Report.MEANS:
        titles += ["values", "mean"]
    rows = []
    for field in entry.fields:
        values = [field.minimum, field.median, field.maximum]
        values += [more for more in (field.total, field.values, field.mean) if more is not None]
        rows.append((Cell(field.name, field.name), *(Cell(_number(value), value) for value in values)))
    columns = (Column("field", Kind.TEXT), *map(Column, titles))
    return Table("fields", columns, tuple(rows), _INDENT)


def _buckets(entry: MapSummary, *, show_all: bool) -> Table:
    """Return a histogram's buckets with bars, from the first to the last that is not empty.

    If they are too many, empty ones are left out, and then those above the limit, unless --all is given.
    """
    filled = [index for index, bucket in enumerate(entry.buckets) if bucket.count]
    candidates = entry.buckets[filled[0] : filled[-1] + 1]
    if len(candidates) > _MAX_BUCKETS and not show_all:
        candidates = tuple(bucket for bucket in candidates if bucket.count)
    shown = candidates if show_all else candidates[:_MAX_BUCKETS]
    rows = []
    for bucket in shown:
        low, high = bucket_ends(bucket.low, bucket.high)
        rows.append((Cell(low, bucket.low), Cell(high, bucket.high), Cell(f"{bucket.count:,}", bucket.count)))
    left_out = len(candidates) - len(shown)
    return Table(
        "buckets", (Column("from"), Column("to"), Column("count")), tuple(rows), _INDENT, bars=2,
        longest=max(bucket.count for bucket in candidates), left_out=left_out,
        more=_more(left_out, "bucket", "buckets"),
    )  # fmt: skip


def _keys(entry: MapSummary, *, show_all: bool) -> Table:
    """Return the keys of a map (what probes save to), those with the greatest sum or count first, with their places if
    they are sites.
    """
    # The keys of a topk map are no more than it was declared for.
    shown = entry.keys if show_all or entry.kind.name == "topk" else entry.keys[:_MAX_KEYS]
    columns = [Column(title) for title in (entry.key_name, "count", *entry.keys[0].kept)]
    has_places = any(key.place or key.instruction for key in shown)
    if has_places:
        columns += [Column("place", Kind.TEXT), Column("instruction", Kind.TEXT)]
    rows = []
    for key in shown:
        kept = [
            Cell(f"{number:,}" if isinstance(number, int) else _number(number), number) for number in key.kept.values()
        ]
        places = (Cell(key.place, key.place), Cell(key.instruction, key.instruction)) if has_places else ()
        rows.append((Cell(exact(key.key), key.key), Cell(f"{key.count:,}", key.count), *kept, *places))
    left_out = len(entry.keys) - len(shown)
    return Table(
        "keys", tuple(columns), tuple(rows), _INDENT, left_out=left_out, more=_more(left_out, "key", "keys")
    )


def _sites(entry: MapSummary, *, show_all: bool) -> Table:
    """Return how many records a map (what probes save to) has of each site (instruction that a probe matched)."""
    shown = entry.sites if show_all else entry.sites[:_MAX_SITES]
    rows = []
    for site in shown:
        instruction = site.instruction or _NO_INSTRUCTION.get(site.number, "not in the manifest")
        rows.append(
            (
                Cell(str(site.number), site.number), Cell(f"{site.records:,}", site.records),
                Cell(site.place, site.place), Cell(instruction, instruction),
            )
        )  # fmt: skip
    left_out = len(entry.sites) - len(shown)
    columns = (Column("site"), Column("records"), Column("place", Kind.TEXT), Column("instruction", Kind.TEXT))
    return Table("sites", columns, tuple(rows), _INDENT, left_out=left_out, more=_more(left_out, "site", "sites"))


def _more(left_out: int, one: str, many: str) -> Line | None:
    """Return the line that says how many rows of a table are not shown; None if all are."""
    return Line.of(f"and {counted(left_out, one, many)} more (--all)", indent=_INDENT) if left_out else None


def _number(value: int | float) -> str:
    """Return a number as it is printed: integers whole, fractions with six digits."""
    return str(value) if isinstance(value, int) else f"{value:.6g}"
