"""``neutrino-report --records``, ``--where``, ``--group-by``, ``--sort``: one table of a map's records, or of groups of
them, as text, CSV or JSON."""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.cli.diagnostics import print_diagnostics
from neutrino.cli.kernel_names import demangled
from neutrino.cli.record_map import chosen_map, map_names
from neutrino.cli.record_options import ALL, SHOWN
from neutrino.cli.record_rows import addresses_of, column_texts, label, shortened, site_labels, value_of
from neutrino.cli.report_messages import BAD_INPUT, DONE, NOTHING, say
from neutrino.cli.streams import escaped
from neutrino.cli.table import counted, table
from neutrino.cli.trace_choice import why_no_kernel
from neutrino.errors import Diagnostic, ExpressionError, NeutrinoError
from neutrino.language.uses import Value
from neutrino.late_dataclass import dataclass
from neutrino.maps.declaration import Report
from neutrino.tracing.expression import Expression
from neutrino.tracing.queries import FirstRows, Groups, GroupsError, group, matching
from neutrino.tracing.recorded import RecordedMap, Rows
from neutrino.tracing.site_tables import KEPT, combined, place_of, sites_by_number
from neutrino.tracing.summary import missing_launches
from neutrino.tracing.trace import Trace, TraceKernel

Array = npt.NDArray[Any]
_MOST_SORTED = 500_000
"""Records that are sorted to be printed all."""
_LARGE, _HUGE = 1e5, 1e15
"""Between these, fractions are shown with one decimal and no exponent."""
_WORDS = ("kernel", "line", "site")
"""What records are grouped by besides expressions."""


def print_records(traces: Sequence[Trace], keep: Callable[[TraceKernel], bool], options: argparse.Namespace) -> int:
    """Print the records that a command line asks for.

    keep: whether a kernel is chosen. Returns the exit status: 0, 2 for a wrong expression, 3 if no kernel was probed.
    Raises OSError if stdout cannot be written, TraceError for damaged data, and NeutrinoError if no map or more than
    one is chosen, or if there are too many records to sort.
    """
    kernels = [kernel for trace in traces for kernel in trace.kernels if keep(kernel) and map_names(kernel)]
    if not kernels:
        say(why_no_kernel(traces, options))
        return NOTHING
    try:
        query = _Query(traces, kernels, options)
        # With stdout closed it is None.
        if sys.stdout is not None:
            query.print()
    except _QueryError as failure:
        error = failure.error
        place = f"neutrino-report: {failure.option}"
        print_diagnostics([Diagnostic(place, 1, error.at + 1, error.text, error.message, error.hint)])
        return BAD_INPUT
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()
    return DONE


class _Query:
    """What a command line asks of the records of one map of some kernels. Raises as its methods say."""

    def __init__(self, traces: Sequence[Trace], kernels: Sequence[TraceKernel], options: argparse.Namespace) -> None:
        """Prepare to answer what a command line asks of the records of one map. kernels: of the traces, with data.

        Raises NeutrinoError if no map or more than one is chosen or known, TraceError as ``RecordedMap``, and
        _QueryError for an expression.
        """
        self._traces = traces
        self._options = options
        name = chosen_map(kernels, options)
        self._kernels = [kernel for kernel in kernels if name in map_names(kernel)]
        self._recorded = RecordedMap(self._kernels, name, options.launch)
        self._name = name
        self._types = self._recorded.types
        self._fields = list(self._types)[self._recorded.places :]
        self._floats = {name: kind.kind == "f" for name, kind in self._types.items()}
        self._site = self._recorded.site
        self._is_table = bool(self._site) and self._recorded.map.kind.report is Report.KEYS
        self._by = "site" if options.group_by == self._site else options.group_by
        self._labels: dict[int, dict[int, str]] = {}
        self._addresses = addresses_of(self._kernels, name)
        self._total = 0
        self._where = self._read("--where", options.where, self._floats)
        self._most: int | None = None if options.records in (None, ALL) else options.records
        if options.group_by is None:
            self._order = self._read("--sort", options.sort, self._floats)
        else:
            self._key = self._read_key(options.group_by)
            self._columns = self._group_columns()
            self._order = self._read("--sort", options.sort, self._columns)

    def _read(self, option: str, text: str | None, floats: Mapping[str, bool]) -> Expression | None:
        """Parse an option's expression; None if the option is not given.

        floats: the names it may use, and whether each is of fractions. Raises _QueryError for a fault in it.
        """
        if text is None:
            return None
        try:
            return Expression.read(text, floats)
        except ExpressionError as error:
            raise _QueryError(option, error) from error

    def print(self) -> None:
        """Print the table. Raises OSError if stdout cannot be written, TraceError for damaged data, _QueryError for
        values that cannot be computed, and NeutrinoError for too many groups or records to sort."""
        rows = self._counted(self._recorded.rows())
        if self._where is not None:
            rows = _explained("--where", matching(rows, self._where))
        (self._print_records if self._options.group_by is None else self._print_groups)(rows)
        for note in self._notes() if self._options.csv else ():
            say(f"note: {note}")

    def _counted(self, source: Iterable[Rows]) -> Iterator[Rows]:
        """Yield records unchanged, and count them in ``_total``."""
        for rows in source:
            self._total += len(rows)
            yield rows

    def _print_records(self, rows: Iterator[Rows]) -> None:
        """Print the first records in the order of --sort, or all.

        Raises NeutrinoError if they are too many to be sorted.
        """
        is_whole = self._most is None and (self._options.csv or self._options.json)
        if is_whole and self._order is None:
            self._write_records(_Whole(rows))
            return
        most = _MOST_SORTED if is_whole else SHOWN if self._most is None else self._most
        try:
            first = FirstRows(rows, most, self._order)
        except ExpressionError as error:
            raise _QueryError("--sort", error) from error
        if is_whole and first.count > most:
            raise NeutrinoError(
                f"{counted(first.count, 'record')}, of which --sort keeps at most {most:,}: give --records N, or a "
                "narrower --where"
            )
        self._write_records(first)

    def _write_records(self, rows: _Whole | FirstRows) -> None:
        """Print records in the form that is asked for: JSON, CSV or a table. rows: the records, in parts."""
        if self._options.json:
            titles = self._record_titles(self._fields)
            found = (zip(*self._json_columns(part), strict=True) for part in rows)
            self._write_json(titles, itertools.chain.from_iterable(found))
            self._end_json(records=rows.count)
        elif self._options.csv:
            writer = csv.writer(sys.stdout, lineterminator="\r\n")
            writer.writerow(map(escaped, self._record_titles(self._fields)))
            for part in rows:
                writer.writerows(zip(*self._csv_columns(part), strict=True))
        else:
            self._heading()
            launch, *others = self._types
            trace = [self._title("trace")] if len(self._traces) > 1 else []
            kernel = [self._title("kernel")] if len(self._kernels) > 1 else []
            head = [escaped(title) for title in (*trace, launch, *kernel, *others)]
            right = set(head) - {*trace, *kernel, self._site}
            for line in table(head, _Cells(rows, self._text_columns), right) if rows.count else ():
                print(line)
            shown = sum(len(part) for part in rows)
            self._footing(shown, rows.count, "record")

    def _record_titles(self, fields: Sequence[str]) -> list[str]:
        """Return the titles of the columns of records in CSV and JSON. fields: of the map (what probes save to)."""
        launch, *places = list(self._types)[: self._recorded.places]
        trace = [self._title("trace")] if len(self._traces) > 1 else []
        sites = [self._title("place"), self._title("instruction")] if self._site else []
        return [*trace, launch, self._title("kernel"), *places, *fields, *sites]

    def _title(self, word: str) -> str:
        """Return the title of a table's column that is no field of the records: in brackets if a field has that name.
        """
        return f"[{word}]" if word in self._fields else word

    def _owners(self, part: Rows, name: str) -> list[list[str]]:
        """Return the columns that say whose records are: the trace (if there are several), the launch, and the kernel's
        name unless "".
        """
        trace = [[part.kernel.trace_path.name] * len(part)] if len(self._traces) > 1 else []
        launches = [str(number) for number in part.columns[next(iter(self._types))].tolist()]
        return [*trace, launches, *([[name] * len(part)] if name else [])]

    def _text_columns(self, part: Rows) -> list[list[str]]:
        """Return the columns of the table as text for some records. part: records of one launch or kernel."""
        name = self._shown(demangled(part.kernel)) if len(self._kernels) > 1 else ""
        shown = [
            column_texts(part.columns, value_of(title, self._site, self._addresses), part.kernel, is_formatted=False)
            for title in list(self._types)[1:]
        ]
        return [[escaped(cell) for cell in column] for column in (*self._owners(part, name), *shown)]

    def _csv_columns(self, part: Rows) -> list[list[str]]:
        """Return the columns of the CSV for some records, with whole names. part: records of one launch or kernel."""
        fields = list(self._types)[1:]
        numbers = [Value(name, is_address=name in self._addresses) for name in fields]
        shown = [column_texts(part.columns, number, part.kernel, is_formatted=False) for number in numbers]
        columns = [*self._owners(part, demangled(part.kernel)), *shown, *self._places(part)]
        return [[escaped(cell) for cell in column] for column in columns]

    def _json_columns(self, part: Rows) -> list[list[Any]]:
        """Return the columns of the JSON document for some records, numbers as numbers.

        part: records of one launch or kernel.
        """
        first, *others = (part.columns[name].tolist() for name in self._types)
        trace = [[str(part.kernel.trace_path)] * len(part)] if len(self._traces) > 1 else []
        return [*trace, first, [demangled(part.kernel)] * len(part), *others, *self._places(part)]

    def _places(self, part: Rows) -> list[list[str]]:
        """Return for records that say which instruction saved them the columns place (source line) and instruction;
        none for others.
        """
        if not self._site:
            return []
        numbers, found = part.columns[self._site].tolist(), self._recorded.sites_of(part)
        places = [place or label({}, number) for number, (place, _) in zip(numbers, found, strict=True)]
        return [places, [instruction for _, instruction in found]]

    # Groups.

    def _read_key(self, text: str) -> Expression | None:
        """Return the expression of --group-by; None for a word (kernel, line, or site: an instruction that probes
        match) that is no field of the map (what probes save to).

        Raises _QueryError for a word that the records say nothing of, and for a fault in the expression.
        """
        if self._by in _WORDS and (self._by not in self._fields or self._by == "site"):
            if text != "kernel" and not self._site:
                message = f"the records of map {self._name} have no site, so that they have no {text}"
                names = ", ".join([*self._types, "kernel"])
                hint = f"group by one of {names}, or save SITE: as a field called site, or as the key of all saves"
                raise _QueryError("--group-by", ExpressionError(text, 0, message, hint))
            return None
        return self._read("--group-by", text, self._floats)

    def _group_columns(self) -> dict[str, bool]:
        """Return the names of the columns of groups that can be sorted by, and whether they have fractions."""
        if self._adds_up:
            return {name: name == "mean" or self._floats.get(name, False) for name in self._table_titles()}
        columns = {"records": False}
        if self._key is not None and self._options.group_by in self._types:
            columns[self._options.group_by] = self._key.is_float
        for name in self._aggregated():
            columns |= {f"{name}_{kind}": kind == "mean" or self._floats[name] for kind in self._kinds(name)}
        return columns

    def _aggregated(self) -> tuple[str, ...]:
        """Return the fields of which a table of groups shows numbers: all but that by which records are grouped."""
        left_out = {self._options.group_by, self._site}
        return tuple(name for name in self._fields if name not in left_out)

    def _print_groups(self, rows: Iterator[Rows]) -> None:
        """Print the table of groups in the form that is asked for. rows: the records to group."""
        found = self._sorted(self._grouped(rows))
        total = len(found)
        is_whole = self._options.all or self._options.csv or self._options.json
        found = found[: self._most if self._most is not None else total if is_whole else SHOWN]
        by, names = self._options.group_by, () if self._adds_up else self._aggregated()
        is_word = self._key is None
        kernel = ["kernel"] if self._by in ("line", "site") and is_word and len(self._kernels) > 1 else []
        if self._options.csv or self._options.json:
            keys = [by, "place", "instruction"] if self._by == "site" and is_word else [by]
            # A field of this name.
            keys = ["[records]"] if by == "records" else keys
            titles = [*kernel, *keys, "records", *(f"{name}_{kind}" for name in names for kind in self._kinds(name))]
            if self._adds_up:
                titles = [*kernel, *keys, *self._table_titles()]
            if self._options.json:
                rows_of = ([*(row.kernel for _ in kernel), *row.key, row.count, *row.values.values()] for row in found)
                self._write_json(titles, rows_of)
                self._end_json(groups=total)
                return
            writer = csv.writer(sys.stdout, lineterminator="\r\n")
            writer.writerow(map(escaped, titles))
            for row in found:
                key = [self._key_text(row)] if self._key is not None else map(str, row.key)
                texts = (self._text(title, value) for title, value in row.values.items())
                writer.writerow(map(escaped, [*(row.kernel for _ in kernel), *key, str(row.count), *texts]))
            return
        self._heading()
        head = [*kernel, escaped(by), *(self._table_titles() if self._adds_up else ["records"])]
        for name in names:
            first, *others = self._kinds(name)
            head += [f"{escaped(name)}: {first}", *others]
        cells = [
            [*(self._shown(row.kernel) for _ in kernel), self._key_text(row), f"{row.count:,}",
             *(self._text(title, value, is_short=True) for title, value in row.values.items())]
            for row in found
        ]  # fmt: skip
        left = {"kernel", *([escaped(by)] if self._key is None else [])}
        for line in table(head, cells, right=set(head) - left) if cells else ():
            print(line)
        self._footing(len(cells), total, "group")

    def _grouped(self, rows: Iterator[Rows]) -> list[_Group]:
        """Group records by the key of --group-by: all groups, unsorted.

        Raises _QueryError if the key cannot be computed, or there are too many groups.
        """
        names = self._aggregated()
        if self._key is not None:
            key = self._key
            try:
                groups = group(rows, lambda part: key.values(part.columns, len(part)), names)
            except ExpressionError as error:
                raise _QueryError("--group-by", error) from error
            except GroupsError as error:
                hint = "group by less exact values, such as addr >> 7, or narrow the records with --where"
                raise _QueryError("--group-by", ExpressionError(key.text, 0, str(error), hint)) from error
            return [_Group("", (number,), count, values) for number, count, values in self._taken(groups, names)]
        if self._adds_up:
            return self._added_up(rows)
        # A kernel's lines and sites are its own.
        by_kernel: dict[int, tuple[TraceKernel, Groups, dict[str, int]]] = {}
        for part in rows:
            kernel, groups, lines = by_kernel.setdefault(id(part.kernel), (part.kernel, Groups(names), {}))
            groups.add(self._word_keys(part, lines), part.columns)
        found = []
        for kernel, groups, lines in by_kernel.values():
            groups.finish()
            whose = self._owner(kernel, lines)
            found += [
                _Group(demangled(kernel), whose(number), count, values)
                for number, count, values in self._taken(groups, names)
            ]
        return found

    def _owner(self, kernel: TraceKernel, lines: Mapping[str, int]) -> Callable[[int], tuple[Any, ...]]:
        """Return a function from a group's number, within a kernel, to its key: the line, the site's number, place and
        instruction, or the kernel's name. lines: of the kernel, in the order of their numbers.
        """
        name, texts = demangled(kernel), list(lines)
        sites = sites_by_number(kernel.manifest.sites if kernel.manifest else ())

        def whose(number: int) -> tuple[Any, ...]:
            """Return the key of the group with this number: a tuple of what stands in its columns."""
            if self._by == "line":
                return (texts[number],)
            if self._by == "site":
                place, instruction = place_of(sites.get(number, {}))
                return number, place or label({}, number), instruction
            return (name,)

        return whose

    # Tables by site.

    @property
    def _adds_up(self) -> bool:
        """Whether rows of a table by site (instruction that probes match) are added up, as if the saves of a line were
        those of one site.
        """
        return self._is_table and self._key is None

    def _table_titles(self) -> list[str]:
        """Return the titles of the numbers of groups of a table by site: count, sum, least … and how many sites
        (instructions that probes match).
        """
        kept = [name for name in KEPT if name in self._fields]
        sites = [] if self._by == "site" else ["sites"]
        return ["count", *kept, *(["mean"] if "sum" in kept else []), *sites]

    def _added_up(self, rows: Iterator[Rows]) -> list[_Group]:
        """Return all groups of a table by site (instruction that probes match), unsorted, each with what its rows have
        together.
        """
        kept = [name for name in KEPT if name in self._fields]
        form = [("key", "<i8"), ("count", "<u8"), *((name, self._types[name]) for name in kept)]
        by_kernel: dict[int, _Lines] = {}
        for part in rows:
            of_kernel = by_kernel.setdefault(id(part.kernel), _Lines(part.kernel))
            keys, sites = self._word_keys(part, of_kernel.numbers), part.columns[self._site]
            found = np.zeros(len(part), form)
            found["key"] = keys
            for name in ("count", *kept):
                found[name] = part.columns[name]
            of_kernel.rows = combined([of_kernel.rows, found]) if of_kernel.rows is not None else combined([found])
            for key, site in set(zip(keys.tolist(), sites.tolist(), strict=True)):
                of_kernel.sites.setdefault(key, set()).add(site)
        groups = []
        for of_kernel in by_kernel.values():
            whose = self._owner(of_kernel.kernel, of_kernel.numbers)
            for row in of_kernel.rows if of_kernel.rows is not None else ():
                number, count, *numbers = row.item()
                values = dict(zip(kept, numbers, strict=True))
                if "sum" in values:
                    values["mean"] = values["sum"] / count if count else math.nan
                if self._by != "site":
                    values["sites"] = len(of_kernel.sites[number])
                groups.append(_Group(demangled(of_kernel.kernel), whose(number), count, values))
        return groups

    def _word_keys(self, part: Rows, lines: dict[str, int]) -> Array:
        """Return a number for each record that says which group of its kernel it is of.

        lines: the kernel's lines so far, with their numbers; new ones are added.
        """
        if self._by == "kernel":
            return np.zeros(len(part), np.int64)
        sites = part.columns[self._site]
        if self._by == "site":
            return sites
        labels = self._labels.get(id(part.kernel))
        if labels is None:
            labels = self._labels[id(part.kernel)] = site_labels(part.kernel, is_line=True)
        numbers, index = np.unique(sites, return_inverse=True)
        texts = [label(labels, number) for number in numbers.tolist()]
        return np.array([lines.setdefault(text, len(lines)) for text in texts], np.int64)[index]

    def _sorted(self, found: list[_Group]) -> list[_Group]:
        """Return groups in the order of --sort, without it those with most records first, of tables by site
        (instruction that probes match) those with the greatest sum or count.
        """
        found.sort(key=lambda row: (row.key[0] != row.key[0], row.key[0], row.kernel))
        if self._order is None:
            sizes = [row.values.get("sum", row.count) if self._adds_up else row.count for row in found]
            return [found[index] for index in sorted(range(len(found)), key=lambda index: _rank(sizes[index]))]
        columns = {}
        for title in self._order.names:
            values = [
                row.key[0] if title == self._options.group_by else row.values.get(title, row.count) for row in found
            ]
            columns[title] = np.array(values, np.float64 if self._columns[title] else object)
        try:
            keys = self._order.values(columns, len(found))
        except ExpressionError as error:
            raise _QueryError("--sort", error) from error
        return [found[index] for index in np.argsort(keys, kind="stable").tolist()]

    def _key_text(self, row: _Group) -> str:
        """Return the key of a group as text: a number, an address in hexadecimal, or the line, site (instruction that
        probes match) or kernel that it stands for.
        """
        key = row.key[0]
        if self._key is not None:
            # A condition is no address, whatever it is about.
            is_address = type(key) is int and not self._key.names.isdisjoint(self._addresses)
            return hex(key) if is_address else str(key)
        if self._by == "site":
            _, place, instruction = row.key
            return escaped(f"{place}: {instruction}" if instruction else place)
        return self._shown(key) if self._by == "kernel" else escaped(key)

    def _kinds(self, name: str) -> tuple[str, ...]:
        """Return which numbers groups have of a field: least, mean, greatest, sum; of addresses no mean and no sum."""
        return ("min", "max") if name in self._addresses else ("min", "mean", "max", "sum")

    def _taken(self, groups: Groups, names: Sequence[str]) -> Iterator[tuple[Any, int, dict[str, int | float]]]:
        """Yield for each group its key, how many records it has, and the numbers of its fields by column title."""
        columns: dict[str, Sequence[int | float]] = {}
        for name in names:
            known = groups.of(name)
            by_kind = {"min": known.minimum, "mean": known.mean, "max": known.maximum, "sum": known.total}
            columns |= {f"{name}_{kind}": by_kind[kind] for kind in self._kinds(name)}
        for index, (number, count) in enumerate(zip(groups.keys.tolist(), groups.counts.tolist(), strict=True)):
            yield number, count, {title: values[index] for title, values in columns.items()}

    def _text(self, title: str, value: int | float, *, is_short: bool = False) -> str:
        """Return a number of a group as text. is_short: a fraction with as many digits as people read."""
        if isinstance(value, int):
            return hex(value) if title.rpartition("_")[0] in self._addresses else str(value)
        if not is_short:
            return repr(value)
        return f"{value:.1f}" if _LARGE <= abs(value) < _HUGE else f"{value:.6g}"

    def _shown(self, name: str) -> str:
        """Return a kernel's name as it is shown to people."""
        return escaped(name) if self._options.wide else shortened(name)

    # What is around a table.

    def _heading(self) -> None:
        """Print the paths of the traces that the records are of."""
        for trace in self._traces:
            print(escaped(str(trace.path)))

    def _footing(self, shown: int, count: int, word: str) -> None:
        """Print how many records there are, and which. shown, count: rows of the table, and rows that it could have."""
        numbers = f"{shown:,} of {counted(count, word)}" if shown < count else counted(count, word)
        text = f"{numbers} of {self._name}"
        if word == "group":
            text += f" by {self._options.group_by}"
        if self._where is not None:
            text += f" where {self._where.text}, of {counted(self._total, 'record')} in all"
        elif word == "group":
            text += f", of {counted(self._total, 'record')}"
        more = "; --records N prints more" if shown < count else ""
        print(escaped(f"  {text}{more}"))
        for note in self._notes():
            print(escaped(f"note: {note}"))

    def _notes(self) -> list[str]:
        """Return in words what data the table of records lacks, and why."""
        notes = [note for trace in self._traces for note in trace.notes]
        notes += [note for kernel in self._kernels for note in missing_launches(kernel)]
        if self._recorded.dropped:
            saves = counted(self._recorded.dropped, "save")
            notes.append(f"{saves} of map {self._name} had no room and left no record")
        if self._by == "line" and self._options.group_by is not None and self._key is None:
            notes += [
                f"{kernel.demangled} has no source lines (-lineinfo): each line is one of its PTX"
                for kernel in self._kernels
                if kernel.manifest and not any(site.get("source") for site in kernel.manifest.sites)
            ]
        return notes

    def _write_json(self, titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Print the JSON document up to its rows, one on each line; ``_end_json`` prints the rest.

        titles: of the columns.
        """
        head = {
            "traces": [{"path": str(trace.path)} for trace in self._traces],
            "map": self._name,
            "kind": self._recorded.map.kind.name,
            "level": self._recorded.map.level.value,
            "where": self._options.where,
            "group_by": self._options.group_by,
            "sort": self._options.sort,
            "columns": list(titles),
        }
        sys.stdout.write(f'{json.dumps(head)[:-1]}, "rows": [')
        separator = "\n"
        for row in rows:
            document = {title: _json_value(value) for title, value in zip(titles, row, strict=True)}
            sys.stdout.write(separator + json.dumps(document))
            separator = ",\n"
        sys.stdout.write("\n], ")

    def _end_json(self, **counts: int) -> None:
        """Print the rest of the JSON document after its rows. counts: members with numbers of rows."""
        ends = {**counts, "recorded": self._total, "dropped": self._recorded.dropped, "notes": self._notes()}
        print(json.dumps(ends)[1:])


class _QueryError(NeutrinoError):
    """An option's expression cannot be used. option: its name. error: what is wrong."""

    def __init__(self, option: str, error: ExpressionError) -> None:
        """Make the error of an option whose expression cannot be used. option: its name. error: what is wrong with it.
        """
        super().__init__(f"{option}: {error}")
        self.option = option
        self.error = error


@dataclass(frozen=True)
class _Group:
    """A row of the table of groups. kernel: its name, of a line or site. key: the number, or what a word stands for.
    values: of the fields, by the columns' titles in CSV."""

    kernel: str
    key: tuple[Any, ...]
    count: int
    values: dict[str, int | float]


@dataclass
class _Lines:
    """Rows of a table by site of a kernel that are added up. numbers: of its lines. sites: of each number of rows."""

    kernel: TraceKernel
    numbers: dict[str, int] = field(default_factory=dict)
    sites: dict[int, set[int]] = field(default_factory=dict)
    rows: Array | None = None


class _Whole:
    """All records, which can be read once. count: how many were read."""

    def __init__(self, rows: Iterable[Rows]) -> None:
        """Set up records that are counted while they are read. rows: in parts; iterated over once."""
        self._rows = rows
        self.count = 0

    def __iter__(self) -> Iterator[Rows]:
        """Yield records part by part, and count them."""
        for part in self._rows:
            self.count += len(part)
            yield part


class _Cells:
    """The cells of a table, made each time that they are iterated over."""

    def __init__(self, rows: Iterable[Rows], columns: Callable[[Rows], list[list[str]]]) -> None:
        """Set up the cells of a table of records. rows: records in parts. columns: gives the columns of a part as text.
        """
        self._rows = rows
        self._columns = columns

    def __iter__(self) -> Iterator[Sequence[str]]:
        """Yield the table cells of each record, part by part."""
        for part in self._rows:
            yield from zip(*self._columns(part), strict=True)


def _explained(option: str, rows: Iterator[Rows]) -> Iterator[Rows]:
    """Pass on records; a fault in an option's expression, found while they are computed, becomes a _QueryError that
    names the option.
    """
    try:
        yield from rows
    except ExpressionError as error:
        raise _QueryError(option, error) from error


def _rank(size: int | float) -> tuple[bool, int | float]:
    """Return a key that sorts sizes from the greatest to the least, with NaNs last."""
    return math.isnan(size), -size


def _json_value(value: Any) -> Any:
    """Return a value as JSON can have it: infinities and NaN as text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
