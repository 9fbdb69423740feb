"""The part of a report on one map of one kernel: how much was recorded, and its buckets, keys, fields and sites."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import TypeVar

from neutrino.abi.levels import Level
from neutrino.late_dataclass import dataclass
from neutrino.maps.declaration import Layout, Report, all_zero_words, result_words
from neutrino.tracing.saved_values import Meaning
from neutrino.tracing.shown.exact_numbers import bucket_ends, exact
from neutrino.tracing.shown.model import Cell, Column, Kind, Line, Section, Table, counted
from neutrino.tracing.shown.names import whole_of, words_of
from neutrino.tracing.since_first import SinceFirst
from neutrino.tracing.summary import BucketSummary, MapSummary
from neutrino.tracing.trace import Clock

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
_ADDRESSES = ("addr", "address")
"""Names of fields that are addresses whatever the probe does."""
_Of = TypeVar("_Of")


@dataclass(frozen=True)
class Known:
    """What is known of a map's numbers besides their values.

    meanings: of fields, by the probes' code. times: since each launch's first, of fields that are clocks. clock: whose.
    """

    meanings: Mapping[str, Meaning] = field(default_factory=dict)
    times: Mapping[str, SinceFirst] = field(default_factory=dict)
    clock: Clock = Clock.CYCLES

    def is_address(self, name: str) -> bool:
        """Whether a field holds addresses."""
        return name in _ADDRESSES or self.meanings.get(name) is Meaning.ADDRESS

    def unit(self, name: str) -> str:
        """The unit of a field that is a clock; "" of others."""
        meaning = self.meanings.get(name)
        if meaning is None or not meaning.is_time:
            return ""
        if self.clock is Clock.STEPS:
            return "steps"
        return "cycles" if meaning is Meaning.CLOCK else "ns"

    def is_apart(self, name: str) -> bool:
        """Whether a field holds clocks of which each multiprocessor has its own, without a common zero: of records of
        several ones neither the order nor the time between is known.
        """
        return self.clock is Clock.CYCLES and self.meanings.get(name) is Meaning.CLOCK


NOTHING_KNOWN = Known()
APART = "not comparable between multiprocessors"
"""What is said of times that ``Known.is_apart`` tells."""


def of_map(found: Mapping[tuple[str, str], _Of], name: str) -> dict[str, _Of]:
    """Return what is known of one map's fields, by field. found: by map and field. name: the map's."""
    return {field: known for (owner, field), known in found.items() if owner == name}


def shown_map(
    entry: MapSummary, kernel: int, *, is_of_first: bool, show_all: bool, nothing: str = "",
    known: Known = NOTHING_KNOWN,
) -> Section:
    """Return the section of a map (what probes save to): how much it recorded, its buckets or the range of each field,
    then its records by site (instruction that probes match).

    kernel: its id. is_of_first: whether the records of warps, or blocks, are those of their first threads. nothing: why
    nothing was saved, "" if that is not known or not so. known: of its numbers.
    """
    filled = any(bucket.count for bucket in entry.buckets)
    is_empty = not filled and not entry.keys and entry.kind.report in (Report.BUCKETS, Report.KEYS)
    title = f"{entry.name}: {_recorded(entry, is_of_first=is_of_first)}{'; nothing was saved' if is_empty else ''}"
    if filled:
        title += f"; {counted(sum(bucket.count for bucket in entry.buckets), 'value', 'values')}"
    if entry.keys and not entry.dropped and entry.kind.name != "topk":
        saves = counted(sum(key.count for key in entry.keys), "save", "saves")
        title += f"; {saves} with {counted(len(entry.keys), 'key', 'keys')}"
    blocks: list[Line | Table] = []
    if entry.all_zero:
        blocks.append(Line.of(all_zero_words(entry.all_zero, entry.records), indent=_INDENT))
    if filled:
        blocks.append(_buckets(entry, known, show_all=show_all))
    if entry.keys:
        blocks.append(_keys(entry, known, show_all=show_all))
    if entry.fields:
        blocks.append(_fields(entry, known, show_all=show_all))
    if entry.sites:
        blocks.append(_sites(entry, show_all=show_all))
    if nothing:
        blocks.append(Line.of(f"nothing: {nothing}", indent=_INDENT))
    return Section("map", Line.of(title, indent=1), tuple(blocks), kernel, entry.name)


def empty_maps(entries: Sequence[tuple[MapSummary, str]], kernel: int) -> list[Section]:
    """Return a section for each reason why maps of a kernel are empty. entries: the maps, each with its reason, ""
    where none is known. kernel: its id.
    """
    names: dict[str, list[str]] = {}
    for entry, reason in entries:
        # Which instructions match nothing is another list for each map.
        if reason.startswith("no instruction matches") and len(entries) > 1:
            reason = "no instruction matches"
        # Sums may have been saved, and be 0.
        is_zero = entry.kind.report is Report.TOTALS and not reason.startswith("no instruction")
        words = f"{'0 in all fields' if is_zero else 'nothing was saved'}{reason and ': '}{reason}"
        names.setdefault(words, []).append(entry.name)
    return [
        Section("empty", Line.of(f"{', '.join(found)}: {words}", indent=1), (), kernel)
        for words, found in names.items()
    ]


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


def _fields(entry: MapSummary, known: Known, *, show_all: bool) -> Table:
    """Return the table of a map's fields: the range of each, and of a sum map the total over all launches, with its
    share where it is part of a whole. Of sums those that are 0 are in one line, unless --all is given.
    """
    titles = ["min", "median", "max"]
    totals = {found.name: found.total for found in entry.fields if found.total is not None}
    wholes = whole_of(entry.name, totals)
    # Such maps' fields, and no others, have a total.
    if entry.kind.report is Report.TOTALS:
        titles.append("total")
    if wholes:
        titles.append("share")
    # The range is that of the launches' means.
    if entry.kind.report is Report.MEANS:
        titles += ["values", "mean"]
    zeros = [found.name for found in entry.fields if found.minimum == found.maximum == found.total == 0]
    if show_all or len(zeros) < 2 or len(zeros) == len(entry.fields):
        zeros = []
    rows: list[tuple[Cell, ...]] = []
    notes: list[str] = []
    words_for, words = words_of(entry.name, _names(entry))
    for found in entry.fields:
        if found.name in zeros:
            continue
        row = [Cell(found.name, found.name)]
        times = known.times.get(found.name)
        if times is not None:
            row += [Cell(f"{value:,}", value) for value in (times.minimum, times.median, times.maximum)]
            zero = f"; {counted(times.zeros, 'record has', 'records have')} none" if times.zeros else ""
            apart = f"; {APART}" if known.is_apart(found.name) else ""
            notes.append(f"{known.unit(found.name)} since the launch's first{zero}{apart}")
        else:
            is_address = known.is_address(found.name) and entry.kind.report is Report.RECORDS
            own = words if found.name == words_for else {}
            row += [_value(value, is_address, own) for value in (found.minimum, found.median, found.maximum)]
            notes.append(f"{unit} of the clock" if (unit := known.unit(found.name)) else "")
        row += [Cell(_number(more), more) for more in (found.total, found.values, found.mean) if more is not None]
        if wholes:
            whole = wholes.get(found.name)
            row.append(Cell("") if whole is None else _share(found.total or 0, whole))
        rows.append(tuple(row))
    columns = [Column("field", Kind.TEXT), *map(Column, titles)]
    if any(notes):
        columns.append(Column("", Kind.TEXT))
        rows = [(*row, Cell(note)) for row, note in zip(rows, notes, strict=True)]
    more = Line.of(f"0 in {', '.join(zeros)}", indent=_INDENT) if zeros else None
    return Table("fields", tuple(columns), tuple(rows), _INDENT, left_out=len(zeros), more=more)


def _names(entry: MapSummary) -> list[str]:
    """The names of a map's fields; that of the number of the site, which has no range, too. Of histograms none is kept.
    """
    names = [found.name for found in entry.fields]
    return [*names, "site"] if entry.sites else names


def _value(value: int | float, is_address: bool, words: Mapping[int, str]) -> Cell:
    """Return the cell of a field's value. words: what values are called."""
    if isinstance(value, int) and (is_address or value in words):
        return Cell(f"{value:#x}" if is_address else words[value], value)
    return Cell(_number(value), value)


def _share(part: int | float, whole: int | float) -> Cell:
    """Return the cell of a share in percent, with a digit: below each other, in columns. 0 and 100 only if nothing, or
    nothing else, is there.
    """
    if not whole:
        return Cell("")
    share = part / whole
    if 0.9995 <= share < 1:
        return Cell(">99.9 %", share)
    return Cell("<0.1 %" if 0 < share < 0.001 else f"{share * 100:.1f} %", share)


def _buckets(entry: MapSummary, known: Known, *, show_all: bool) -> Table:
    """Return a histogram's buckets with shares and bars, from the first to the last that is not empty; empty ones next
    to each other are one row.

    If they are too many, empty ones are left out, and then those above the limit, unless --all is given.
    """
    filled = [index for index, bucket in enumerate(entry.buckets) if bucket.count]
    candidates: Sequence[BucketSummary] = entry.buckets[filled[0] : filled[-1] + 1]
    if not show_all:
        candidates = tuple(_merged(candidates))
    if len(candidates) > _MAX_BUCKETS and not show_all:
        candidates = tuple(bucket for bucket in candidates if bucket.count)
    shown = candidates if show_all else candidates[:_MAX_BUCKETS]
    total = sum(bucket.count for bucket in candidates)
    _, words = words_of(entry.name, [entry.field_name])
    is_address = known.is_address(entry.field_name)
    rows = []
    for bucket in shown:
        low, high = bucket_ends(bucket.low, bucket.high)
        if is_address and isinstance(bucket.low, int) and isinstance(bucket.high, int):
            low, high = f"{bucket.low:#x}", f"{bucket.high:#x}"
        row = [Cell(low, bucket.low), Cell(high, bucket.high), Cell(f"{bucket.count:,}", bucket.count)]
        row.append(_share(bucket.count, total))
        if words:
            name = words.get(int(bucket.low), "") if bucket.low == bucket.high else ""
            row.append(Cell(name, name))
        rows.append(tuple(row))
    columns = [Column("from"), Column("to"), Column("count"), Column("share")]
    if words:
        columns.append(Column("", Kind.TEXT))
    left_out = len(candidates) - len(shown)
    return Table(
        "buckets", tuple(columns), tuple(rows), _INDENT, bars=2,
        longest=max(bucket.count for bucket in candidates), left_out=left_out,
        more=_more(left_out, "bucket", "buckets"),
    )  # fmt: skip


def _merged(buckets: Sequence[BucketSummary]) -> Iterator[BucketSummary]:
    """Yield buckets with those next to each other that are empty as one."""
    empty: list[BucketSummary] = []
    for bucket in buckets:
        if not bucket.count:
            empty.append(bucket)
            continue
        if empty:
            yield BucketSummary(empty[0].low, empty[-1].high, 0)
            empty.clear()
        yield bucket


def _keys(entry: MapSummary, known: Known, *, show_all: bool) -> Table:
    """Return the keys of a map (what probes save to), those with the greatest sum or count first, with their shares of
    all saves, and their places if they are sites.
    """
    # The keys of a topk map are no more than it was declared for.
    shown = entry.keys if show_all or entry.kind.name == "topk" else entry.keys[:_MAX_KEYS]
    # Of the greatest alone the whole is not known, nor where saves found no place.
    saves = 0 if entry.dropped or entry.kind.name == "topk" else sum(key.count for key in entry.keys)
    columns = [Column(title) for title in (entry.key_name, "count", *(["share"] if saves else []))]
    columns += [Column(title) for title in entry.keys[0].kept]
    is_address = known.is_address(entry.field_name)
    has_places = any(key.place or key.instruction for key in shown)
    if has_places:
        columns += [Column("place", Kind.TEXT), Column("instruction", Kind.TEXT)]
    rows = []
    for key in shown:
        kept = [
            Cell(f"{number:,}" if isinstance(number, int) else _number(number), number) for number in key.kept.values()
        ]
        places = (Cell(key.place, key.place), Cell(key.instruction, key.instruction)) if has_places else ()
        name = f"{key.key:#x}" if is_address and isinstance(key.key, int) else exact(key.key)
        share = (_share(key.count, saves),) if saves else ()
        rows.append((Cell(name, key.key), Cell(f"{key.count:,}", key.count), *share, *kept, *places))
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
                _share(site.records, entry.records), Cell(site.place, site.place), Cell(instruction, instruction),
            )
        )  # fmt: skip
    left_out = len(entry.sites) - len(shown)
    columns = (
        Column("site"), Column("records"), Column("share"), Column("place", Kind.TEXT),
        Column("instruction", Kind.TEXT),
    )  # fmt: skip
    return Table("sites", columns, tuple(rows), _INDENT, left_out=left_out, more=_more(left_out, "site", "sites"))


def _more(left_out: int, one: str, many: str) -> Line | None:
    """Return the line that says how many rows of a table are not shown; None if all are."""
    return Line.of(f"and {counted(left_out, one, many)} more (--all)", indent=_INDENT) if left_out else None


def _number(value: int | float) -> str:
    """Return a number as it is printed: integers with separators, fractions with six digits."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
