"""Recorded rows as text: those of ``print`` and ``save`` of one-liners, and of any map that keeps records."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from neutrino.cli.kernel_names import shorten
from neutrino.cli.streams import escaped
from neutrino.cli.table import counted, table
from neutrino.late_dataclass import dataclass

if TYPE_CHECKING:
    from neutrino.language.uses import Use, Value
    from neutrino.tracing import MapView, Trace, TraceKernel

NAME_WIDTH = 60
"""Characters of a kernel's name."""
_MOST_OWNERS = 5
"""Results of blocks, warps, threads or multiprocessors that a report has without being asked."""
MOST_KERNELS = 20
"""Kernels that are listed per map; the rest is in the total."""
_MOST_TEXT = 3 << 20
"""Characters of all tables together: the hook takes 16 MiB."""
_PLACES = ("block", "warp", "lane")
_NO_INSTRUCTION = {0xFFFFFFFF: "the kernel's entry", 0xFFFFFFFE: "the kernel's end"}


@dataclass(frozen=True)
class _Part:
    """The rows of one launch. submitted: when, in ns. launch: its number in the trace."""

    submitted: int
    launch: int
    kernel: TraceKernel
    view: MapView
    count: int


@dataclass
class Rows:
    """What a map of rows has recorded. counts: rows of each kernel, by its name. dropped: rows without room.

    parts: of the launches with the first rows, in the order of submission.
    """

    counts: dict[str, int] = field(default_factory=dict)
    dropped: int = 0
    parts: list[_Part] = field(default_factory=list)

    def keep(self, most: int) -> None:
        """Forget the launches that come after the first ``most`` rows, in the order of submission."""
        self.parts.sort(key=lambda part: (part.submitted, part.launch))
        rows = 0
        for number, part in enumerate(self.parts):
            rows += part.count
            if rows >= most:
                del self.parts[number + 1 :]
                return


def read_rows(
    trace: Trace, kernel_names: dict[int, str], uses: dict[str, Use], most: int,
    reading: Callable[[int], None] = lambda _: None,
) -> dict[str, Rows]:
    """Return what the maps (what probes save to) of rows have recorded, by name. Raises TraceError for damaged data.

    kernel_names: kernel's id → name as it is shown. uses: of these maps. most: how many rows will be printed. reading:
    is called with the id of each kernel before its records are read.
    """
    # Imported here: a run itself does not need NumPy.
    import numpy as np

    found = {name: Rows() for name in uses}
    for kernel in trace.kernels if uses else ():
        names = {entry.name for entry in kernel.manifest.probed_maps} & uses.keys() if kernel.manifest else set()
        if not names:
            continue
        reading(kernel.id)
        shown = kernel_names[kernel.id]
        # The first rows of a kernel are in the first launches that have any.
        listed = dict.fromkeys(names, 0)
        for numbers, views in kernel.numbered_stacks():
            submitted = trace.launches["submit_ns"][numbers]
            for name in names:
                view, rows = views[name], found[name]
                rows.dropped += view.dropped
                counts = view.record_counts()
                rows.counts[shown] = rows.counts.get(shown, 0) + int(counts.sum())
                for at in np.flatnonzero(counts).tolist():
                    if listed[name] >= most:
                        break
                    count = int(counts[at])
                    rows.parts.append(_Part(int(submitted[at]), int(numbers[at]), kernel, view.of(at), count))
                    listed[name] += count
        for rows in found.values():
            rows.keep(most)
    return found


def row_lines(rows: Rows, use: Use, kernel_names: dict[int, str], most: int, tables: int) -> Iterator[str]:
    """Yield the lines of a table of the first rows: by launch, block, warp, lane and the order of saving.

    The last line has the number of rows of all launches, also by kernel. tables: how many there are, which share the
    room that there is for text.
    """
    head = ["launch", "kernel", *_PLACES]
    head += ["text"] if use.text is not None else [escaped(column.title) for column in use.columns]
    cells: list[Sequence[str]] = []
    for part in rows.parts:
        number = min(most - len(cells), part.count)
        view = part.view.first(number)
        records, places = view.valid()[:number], view.places()
        kernel = shortened(kernel_names[part.kernel.id])
        shown = [column_texts(records, column, part.kernel, use.text is not None) for column in use.columns]
        for row in range(number):
            values = [column[row] for column in shown]
            words = [escaped(use.text.format(*values))] if use.text is not None else [escaped(str(v)) for v in values]
            where = [str(places[axis][row]) for axis in _PLACES]
            cells.append([str(part.launch), kernel, *where, *words])
    widths = [max(map(len, column)) + 2 for column in zip(head, *cells, strict=True)]
    del cells[_MOST_TEXT // tables // sum(widths) :]
    # Numbers to the right, texts and places to the left.
    left = {"kernel", "text", *(escaped(column.title) for column in use.columns if column.is_site)}
    if cells:
        yield from table(head, cells, right=set(head) - left)
    total = sum(rows.counts.values())
    numbers = f"{len(cells):,} of {counted(total, 'row')}" if len(cells) < total else counted(total, "row")
    more = "; --rows N prints more" if len(cells) < total else ""
    yield f"  {numbers}: {by_kernel(rows)}{more}"


def record_lines(kernel: TraceKernel, name: str, most: int, launches: range | None = None) -> Iterator[str]:
    """Yield the lines of a table of the first records of a map (what probes save to) of a kernel: by launch, block,
    warp, lane and the order of saving.

    Nothing for a map that keeps no records; of one per block, warp, thread or multiprocessor the greatest results, a
    few also where most is 0. Clocks are since the launch's first. name: the map's. most: how many records. launches:
    the numbers of those to read; None: all.
    """
    from neutrino.cli.report_sources import meanings_in
    from neutrino.maps.declaration import Layout
    from neutrino.tracing.shown.names import words_of
    from neutrino.tracing.since_first import first_times

    entries = [entry for entry in kernel.manifest.maps if entry.name == name] if kernel.manifest else []
    if any(entry.per.has_rows for entry in entries):
        yield from _owner_lines(kernel, name, most or _MOST_OWNERS, launches)
        return
    if not most or any(entry.kind.layout is Layout.COPIES for entry in entries):
        return
    head: list[str] = []
    cells: list[Sequence[str]] = []
    total = 0
    addresses, meanings = addresses_of([kernel], name), meanings_in(kernel.trace)
    for launch in kernel.launches(launches):
        view = launch.maps[name]
        count = view.record_count
        total += count
        number = min(most - len(cells), count)
        if not number:
            continue
        view = view.first(number)
        records, places = view.valid()[:number], view.places()
        since = first_times(launch.maps, meanings)
        fields = [field.name for field in view.map.fields]
        # As in read.py, brackets tell a place from a field of the same name.
        head = ["launch", *(f"[{axis}]" if axis in fields else axis for axis in places), *fields]
        named, words = words_of(name, fields)
        columns = []
        for title in fields:
            column = column_texts(records, value_of(title, addresses=addresses), kernel, is_formatted=False)
            if (name, title) in since:
                column = [str(value - since[name, title]) if value else "" for value in records[title].tolist()]
            elif title == named:
                column = [words.get(value, str(value)) for value in records[title].tolist()]
            columns.append(column)
        for row in range(number):
            where = [str(column[row]) for column in places.values()]
            cells.append([str(launch.index), *where, *(escaped(column[row]) for column in columns)])
    if cells:
        for line in table(head, cells, right=set(head) - {"site"}):
            yield f"  {line}"
    if len(cells) < total:
        yield f"    {len(cells):,} of {counted(total, 'record')}"


def _owner_lines(kernel: TraceKernel, name: str, most: int, launches: range | None) -> Iterator[str]:
    """Yield the lines of a table of the greatest results of a map (what probes save to) per block, warp, thread or
    multiprocessor, by their last column; of a minimum of the least ones.
    """
    from neutrino.cli.report_sources import meanings_in
    from neutrino.tracing.since_first import first_times

    found: list[tuple[int | float, list[str]]] = []
    head: list[str] = []
    total = 0
    meanings, addresses = meanings_in(kernel.trace), addresses_of([kernel], name)
    since: dict[tuple[str, str], int] = {}
    of_launch = -1
    parts = ((launch, part) for launch in kernel.launches(launches) for part in launch.maps[name].owned())
    for launch, (results, places) in parts:
        *_, last = names = list(results.dtype.names or ())
        if last == "count":
            places = {axis: column[results[last] > 0] for axis, column in places.items()}
            results = results[results[last] > 0]
        total += len(results)
        head = ["launch", *(f"[{axis}]" if axis in names else axis for axis in places), *names]
        ranks = [_rank(value, launch.maps[name].map.kind.name) for value in results[last].tolist()]
        if launch.index != of_launch:
            of_launch, since = launch.index, first_times(launch.maps, meanings)
        # Stable: equal ones stay in their order.
        for index in heapq.nsmallest(most, range(len(ranks)), key=ranks.__getitem__):
            where = [str(column[index]) for column in places.values()]
            shown = []
            for title in names:
                value, first = results[title][index], since.get((name, title))
                text = str(value) if first is None or not value else str(int(value) - first)
                shown.append(f"{int(value):#x}" if title in addresses and value.dtype.kind != "f" else text)
            found.append((ranks[index], [str(launch.index), *where, *shown]))
        found.sort(key=lambda row: row[0])
        del found[most:]
    if found:
        for line in table(head, [cells for _, cells in found], right=set(head)):
            yield f"  {line}"
    if len(found) < total:
        yield f"    {len(found):,} of {counted(total, 'result')}; --rows N prints more"


def _rank(value: int | float, kind: str) -> int | float:
    """Return a key that sorts results of a map (what probes save to) of a type (``kind``): of a minimum the least
    first, else the greatest, NaNs last.
    """
    if math.isnan(value):
        return math.inf
    return value if kind == "min" else -value


def addresses_of(kernels: Sequence[TraceKernel], name: str) -> frozenset[str]:
    """Return the columns of a map's records that are addresses: by their names, or by the probes' code. kernels: with
    the map, what probes save to, of that name.
    """
    from neutrino.cli.report_sources import meanings_in
    from neutrino.tracing.saved_values import Meaning

    found = {"addr", "address"}
    for trace in {kernel.trace.path: kernel.trace for kernel in kernels}.values():
        known = meanings_in(trace).items()
        found |= {field for (owner, field), meaning in known if owner == name and meaning is Meaning.ADDRESS}
    entries = [entry for kernel in kernels if kernel.manifest for entry in kernel.manifest.maps if entry.name == name]
    # Where keys are called so, they are what the first field holds; the lowest and highest of a bucket, too.
    if entries and all(entry.fields[0].name in found for entry in entries):
        found |= {"key", "low", "high"}
    return frozenset(found)


def value_of(name: str, site: str = "site", addresses: Collection[str] = ("addr", "address")) -> Value:
    """Return how a field of any map (what probes save to) is shown: as an address, as the place of an instruction, or
    as a number.

    site: the name of the field that says which instruction saved. addresses: those of fields that are addresses.
    """
    from neutrino.language.uses import Value

    return Value(name, is_address=name in addresses, is_site=name == site)


def by_kernel(rows: Rows) -> str:
    """Return as text how many rows each kernel has, most first, as ``name 12, other 3``."""
    order = sorted((name for name in rows.counts if rows.counts[name]), key=lambda name: -rows.counts[name])
    parts = [f"{shortened(name)} {rows.counts[name]:,}" for name in order[:MOST_KERNELS]]
    if len(order) > MOST_KERNELS:
        parts.append(f"{len(order) - MOST_KERNELS} kernels more")
    return ", ".join(parts)


def column_texts(records: Any, column: Value, kernel: TraceKernel, is_formatted: bool) -> list[Any]:
    """Return a column's values as they are printed: numbers that a text formats, else texts.

    records: a structured array, or arrays by name.
    """
    values = records[column.field]
    if column.is_site:
        labels = site_labels(kernel, column.is_line)
        return [label(labels, number) for number in values.tolist()]
    numbers: list[Any] = values.tolist()
    if is_formatted:
        return numbers
    if column.is_address and values.dtype.kind != "f":
        return [f"{number:#x}" for number in numbers]
    # NumPy's own text of a fraction: as few digits as tell it from all others of its type.
    return [str(value) for value in values] if values.dtype.kind == "f" else [str(number) for number in numbers]


def site_labels(kernel: TraceKernel, is_line: bool) -> dict[int, str]:
    """Return a kernel's instruction numbers → where they are. is_line: source lines alone, else with the instruction.

    Without line information the place is the line of the PTX, and has the instruction in any case.
    """
    # Imported here, in the process that reads the trace: a run itself does not need NumPy.
    from neutrino.tracing.site_tables import place_of, sites_by_number

    labels = {}
    for number, site in sites_by_number(kernel.manifest.sites if kernel.manifest else ()).items():
        place, instruction = place_of(site)
        labels[number] = place if is_line and site.get("source") else f"{place}: {instruction}"
    return labels


def label(labels: dict[int, str], number: int) -> str:
    """Return where an instruction is, as text.

    labels: those of its kernel, by number. Numbers without one stand for the kernel's entry or end, or are given as
    they are.
    """
    return labels.get(number) or _NO_INSTRUCTION.get(number) or f"instruction {number}"


def shortened(name: str) -> str:
    """Return a kernel's name as it is printed."""
    return shorten(escaped(name), NAME_WIDTH)

