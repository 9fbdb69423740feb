"""``neutrino-report``: what the probes saw, as tables or as JSON."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from neutrino.abi.levels import Level
from neutrino.cli.benchmark_report import benchmark_lines, readable_benchmark
from neutrino.cli.exact_numbers import bucket_ends, exact
from neutrino.cli.kernel_names import demangled, shorten
from neutrino.cli.memory_report import usage_document, usage_lines
from neutrino.cli.nothing_saved import NothingSaved, is_nothing
from neutrino.cli.occupancy import occupancy_lines
from neutrino.cli.overview import folded, lines_not_probed, overview
from neutrino.cli.record_options import is_asked, prepared
from neutrino.cli.record_rows import record_lines
from neutrino.cli.report_faults import report_faults
from neutrino.cli.report_first import maps_of_first_lanes
from neutrino.cli.report_json import trace_document
from neutrino.cli.report_messages import DONE, NOTHING, fail, say
from neutrino.cli.report_options import report_parser
from neutrino.cli.report_scripts import analyze_trace
from neutrino.cli.streams import escaped, print_anything
from neutrino.cli.table import stripped
from neutrino.cli.trace_choice import newest_of_ranks, of_ranks, require_launches, why_no_kernel
from neutrino.cli.why import Why, coverage_document, explain, not_probed_rows, nothing_matches_line, why_document
from neutrino.errors import NeutrinoError, TraceError
from neutrino.maps.declaration import Layout, Report, all_zero_words, result_words
from neutrino.probing.selection import Selection
from neutrino.tracing import Clock, Trace, TraceKernel, TraceSummary, find_traces, summarize
from neutrino.tracing.manifest import Assembly, Retargeted, Spills
from neutrino.tracing.memory_usage import MemoryUsage, is_measured, memory_usage
from neutrino.tracing.summary import KernelSummary, MapSummary, NotProbed

_DEFAULT_FOLDER = "trace"
"""Where ``neutrino`` writes traces without ``--tracedir``."""
_MAX_BUCKETS = 32
"""Rows of a histogram that are shown without ``--all``."""
_BAR_WIDTH = 40
"""Characters of the longest bar."""
_MAX_KEYS = 20
"""Keys of a map that are shown without --all."""
_MAX_SITES = 10
"""Sites of a map that are shown without --all."""
_MOST_IN_FULL = 4
"""Probed kernels that are shown one by one without --all or -k; of more there is an overview."""
_MOST_LINES = 20
"""Lines of a table of the overview that are shown without --all."""
_MOST_REASONS = 8
"""Kernels that were not probed that are listed without --all; of more the reasons are."""
_PIPED_WIDTH = 10_000
"""Characters of a line that is no terminal's: nothing is wrapped."""
_NAME_WIDTH = 100
"""Characters of a kernel's name, however wide the console is."""
_MIN_NAME_WIDTH = 16
"""Characters of a kernel's name, however narrow the console is."""
_NAME_SHARE = 0.4
"""Of the console's width, for kernel names in the table of kernels that were not probed."""
_NO_INSTRUCTION = {0xFFFFFFFF: "the kernel's entry", 0xFFFFFFFE: "the kernel's end"}
"""Numbers that the shipped probes save where there is no site."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns the exit status: 0 done, 2 an unreadable trace, a wrong expression or a script that failed, 3 no kernel was
    probed.
    """
    try:
        return _run(report_parser().parse_args(prepared(sys.argv[1:] if arguments is None else arguments)))
    except KeyboardInterrupt:
        # End by the signal, as the shell expects; a script that was running was stopped before this.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        raise


def _run(options: argparse.Namespace) -> int:
    """Read the traces that the options name, and print their report.

    Returns the exit status: 0 done, 2 bad input, 3 no kernel was probed.
    """
    print_anything()
    if not options.trace and options.why and Path(options.why).exists():
        # `neutrino-report --why TRACE`.
        options.trace, options.why = [options.why], ""
    if options.rows and (options.json or options.why is not None):
        report_parser().error("--rows is of the report as tables; --records has them in other forms")
    if options.launch is not None and options.why is not None:
        report_parser().error("--launch is of records, which --why has not")
    asks_records = is_asked(options)
    if asks_records and (options.why is not None or options.rows or (options.csv and options.json)):
        report_parser().error(
            "--records, --where, --group-by, --sort and --csv go without --rows and --why, and --csv without --json"
        )
    try:
        selection = Selection(tuple(options.kernel), tuple(options.filter))
        asked = Selection((options.why,) if options.why else ())
    except NeutrinoError as error:
        return fail(error)

    keep = partial(_is_selected, selection)
    # The traces, each with its scripts run first if asked for. One that cannot be read is reported and left out.
    paths: list[Path] = []
    summaries: list[TraceSummary] = []
    usages: list[MemoryUsage] = []
    reasons: list[tuple[Trace, list[Why]]] = []
    status = DONE
    if not options.trace:
        try:
            paths = find_traces(_DEFAULT_FOLDER)
        except NeutrinoError as error:
            return fail(f"{error}; give the path of a trace")
    for path in options.trace:
        try:
            paths += find_traces(path)
        except NeutrinoError as error:
            status = fail(error)
    if not paths:
        return status
    try:
        paths = of_ranks(paths, options.rank) if options.trace else newest_of_ranks(paths, options.rank)
    except NeutrinoError as error:
        return fail(error)
    traces: list[Trace] = []
    opened: list[Trace] = []
    for path in paths:
        if options.analyze:
            # DONE is 0, so a failure of an earlier trace stays.
            status = analyze_trace(path) or status
        try:
            trace = Trace(path, is_tolerant=True)
            opened.append(trace)
            if asks_records:
                traces.append(trace)
                continue
            if options.why is None:
                if is_measured(trace):
                    usages.append(memory_usage(trace))
                    continue
                summaries.append(summarize(trace, keep, options.launch))
                continue
            kept = [
                kernel
                for kernel in trace.kernels
                if _is_selected(selection, kernel) and _is_selected(asked, kernel)
            ]
            reasons.append((trace, explain(trace, kept, whole=bool(options.why) or options.all)))
        except TraceError as error:
            status = fail(error)

    read = traces if asks_records else [summary.trace for summary in summaries]
    try:
        require_launches(read, options.launch if read else None)
    except NeutrinoError as error:
        return fail(error)
    if asks_records:
        status = (_print_records(traces, selection, options) if traces else DONE) or status
        return report_faults(opened) or status
    known = {entry.name for summary in summaries for kernel in summary.kernels for entry in kernel.maps}
    unknown = [name for name in options.map if name not in known] if known else []
    if unknown:
        return fail(f"--map {unknown[0]}: no such map; there are {', '.join(sorted(known))}")
    if options.map:
        chosen = [_with_maps(summary, options.map) for summary in summaries]
        # Of a folder, the traces that have them.
        summaries = [summary for summary in chosen if summary.kernels] or chosen

    # The report.
    try:
        if options.why is None:
            _print(summaries, usages, keep, options)
        else:
            _print_why(reasons, options)
    except BrokenPipeError:
        return _end_output(DONE)
    except OSError as error:
        return _end_output(fail(error.strerror or str(error)))
    status = report_faults(opened) or status
    if status == DONE and options.why is not None:
        if not any(why for _, why in reasons):
            unmatched = any(row.matches_nothing for trace, _ in reasons for row in not_probed_rows(trace))
            every = "every launch of a kernel with an instruction that matches" if unmatched else "every launch"
            say(f"no kernel matches {options.why}" if options.why else f"{every} that was chosen was probed")
        found = any(trace.coverage.probed and (why or not options.why) for trace, why in reasons)
        return DONE if found else NOTHING
    has_kernels = any(summary.kernels for summary in summaries) or any(usage.kernels for usage in usages)
    if status == DONE and not has_kernels:
        # The table of kernels that were not probed, if there is one, says why.
        if not any(summary.not_probed for summary in summaries) and not any(usage.not_probed for usage in usages):
            say(why_no_kernel(read, options))
        return NOTHING
    return status


def _end_output(status: int) -> int:
    """Return a status after an error of stdout: a pipe that its reader closed (| head), or a full disk.

    What is left in the buffer must not fail a second time when Python closes stdout at exit.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


def _is_selected(selection: Selection, kernel: TraceKernel) -> bool:
    """Whether the user's options -k and --filter select a kernel."""
    return selection.selects(kernel.name, demangled(kernel))


def _print_records(traces: Sequence[Trace], selection: Selection, options: argparse.Namespace) -> int:
    """Print a table of records in place of the report. Returns the exit status, as ``main`` does."""
    try:
        # Imported here: most reports have none.
        from neutrino.cli.record_query import print_records

        return print_records(traces, partial(_is_selected, selection), options)
    except BrokenPipeError:
        return _end_output(DONE)
    except OSError as error:
        return _end_output(fail(error.strerror or str(error)))
    except NeutrinoError as error:
        return fail(error)


def _with_maps(summary: TraceSummary, names: Sequence[str]) -> TraceSummary:
    """Return a trace's summary with these maps (what probes save to) alone, and the kernels that have them."""
    kernels = (
        replace(kernel, maps=tuple(entry for entry in kernel.maps if entry.name in names)) for kernel in summary.kernels
    )
    return replace(summary, kernels=tuple(kernel for kernel in kernels if kernel.maps))


def _print(
    summaries: Sequence[TraceSummary],
    usages: Sequence[MemoryUsage],
    keep: Callable[[TraceKernel], bool],
    options: argparse.Namespace,
) -> None:
    """Print the report of all traces, as tables or as one JSON document. Raises OSError if stdout cannot be written.

    usages: of the traces of runs with --memusage, which come first. keep: whether to list a kernel of these.
    """
    if options.json:
        documents = [*(usage_document(usage, keep) for usage in usages), *map(trace_document, summaries)]
        print(json.dumps({"traces": documents}, indent=1))
    else:
        console = _console()
        for number, usage in enumerate(usages):
            with console.capture() as captured:
                _Report(console, options.wide, options.all).show_usage(usage, keep)
            print(("\n" if number else "") + stripped(captured.get()))
        for number, summary in enumerate(summaries, len(usages)):
            # Captured and printed in one go: rich itself would exit the process on a closed pipe (| head).
            with console.capture() as captured:
                shown = _Report(console, options.wide, options.all, options.rows, options.launch)
                shown.show(summary, bool(options.kernel))
            # Each part ends with an empty line; one between traces is enough, and none at the end.
            print(("\n" if number else "") + stripped(captured.get()))
    if sys.stdout is not None:
        sys.stdout.flush()


def _console() -> Console:
    """A console as wide as the terminal, or COLUMNS; without either nothing is wrapped."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    is_wide = not is_terminal and not os.environ.get("COLUMNS")
    return Console(markup=False, highlight=False, emoji=False, width=_PIPED_WIDTH if is_wide else None)


def _print_why(reasons: Sequence[tuple[Trace, Sequence[Why]]], options: argparse.Namespace) -> None:
    """Print for each trace why launches of its kernels were not probed, as text or JSON.

    Raises OSError if stdout cannot be written.
    """
    if options.json:
        documents = [
            {
                "path": str(trace.path),
                "coverage": coverage_document(trace.coverage),
                "why": [{**why_document(why), "demangled": demangled(why.kernel)} for why in kernels],
                "notes": [*trace.notes, *trace.faults],
            }
            for trace, kernels in reasons
        ]
        print(json.dumps({"traces": documents}, indent=1))
    else:
        console = _console()
        for number, (trace, kernels) in enumerate(reasons):
            with console.capture() as captured:
                not_listed = "" if options.why or options.all else nothing_matches_line(not_probed_rows(trace))
                _Report(console, options.wide, options.all).show_why(trace, kernels, not_listed)
            print(("\n" if number else "") + stripped(captured.get()))
    if sys.stdout is not None:
        sys.stdout.flush()


class _Report:
    """Prints the summary of a trace as tables on a console, as narrow as the console is."""

    def __init__(
        self, console: Console, wide: bool, show_all: bool, rows: int = 0, launches: range | None = None
    ) -> None:
        """Prepare to print reports. wide: whether to print whole kernel names (--wide). show_all: whether to leave
        nothing out (--all).

        rows: records to print of each map (what probes save to) of a kernel (--rows), launches: of which launches
        (--launch).
        """
        self.launches = launches
        self.rows = rows
        self.console = console
        self.wide = wide
        self.show_all = show_all

    def _line(self, text: str = "", *, style: str | None = None, soft_wrap: bool | None = None) -> None:
        """Print a line. Names in a trace come from the program, and could hold escape sequences: none is printed."""
        self.console.print(escaped(text), style=style, soft_wrap=soft_wrap)

    def show(self, summary: TraceSummary, chosen: bool = False) -> None:
        """Print all parts: the process, the probed kernels with their maps (what probes save to), the kernels not
        probed, and notes.

        chosen: whether the user chose kernels, which are then shown one by one, however many they are.
        """
        self._heading(summary.trace)
        benchmark = readable_benchmark(summary.trace)
        if benchmark is not None:
            names = {kernel.id: self._label(kernel, _NAME_SHARE) for kernel in summary.trace.kernels}
            for line in benchmark_lines(benchmark, names, show_all=self.show_all):
                self._line(line, soft_wrap=True)
            self._line()
        if chosen or self.show_all or self.rows or len(summary.kernels) <= _MOST_IN_FULL:
            for kernel in summary.kernels:
                self._kernel(kernel, summary.trace)
        else:
            self._overview(summary.kernels)
        self._not_probed(summary)
        for note in summary.notes:
            self._line(f"note: {note}")

    def show_usage(self, usage: MemoryUsage, keep: Callable[[TraceKernel], bool]) -> None:
        """Print what a run with --memusage says that recording would take. keep: whether to list a kernel."""
        self._heading(usage.trace)
        for line in usage_lines(usage, keep, shows_all=self.show_all, is_wide=self.wide):
            self._line(line, soft_wrap=True)

    def show_why(self, trace: Trace, kernels: Sequence[Why], not_listed: str = "") -> None:
        """Print for each kernel how many launches were not probed, for which reasons, and what helps.

        not_listed: how many kernels have nothing that a probe matches, which are not among these.
        """
        self._heading(trace)
        for why in kernels:
            self.console.print(self._label(why.kernel), style="bold", soft_wrap=self.wide)
            for line in why.lines():
                self.console.print(Padding(Text(escaped(line.text)), (0, 0, 0, line.indent)))
            self.console.print()
        if not_listed:
            self._line(f"{not_listed}; --all lists them")
        # Such as why the driver did not load a twin.
        for note in trace.notes:
            self.console.print(f"note: {escaped(note)}")

    def _label(self, kernel: TraceKernel, share: float = 1.0) -> str:
        """Return a kernel's name as it is shown: shortened to a share (0 to 1) of the console's width, unless --wide
        asks for whole names.
        """
        name = demangled(kernel)
        width = min(int(self.console.width * share), _NAME_WIDTH)
        return name if self.wide else shorten(name, max(_MIN_NAME_WIDTH, width))

    def _overview(self, kernels: Sequence[KernelSummary]) -> None:
        """Print a table for each map (what probes save to) of many kernels, with a line for each kernel, the largest
        first.
        """
        for overview_table in overview(kernels, lambda summary: self._label(summary.kernel, _NAME_SHARE)):
            self._line(overview_table.heading, style="bold")
            table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
            for number, title in enumerate(overview_table.titles):
                is_left = not number or title in overview_table.left
                table.add_column(
                    f"  {title}" if not number else title, justify="left" if is_left else "right", overflow="fold"
                )
            for name, *cells in overview_table.rows[:_MOST_LINES]:
                table.add_row(f"  {escaped(name)}", *map(escaped, cells))
            self.console.print(table)
            hidden = len(overview_table.rows) - _MOST_LINES
            if hidden > 0:
                self._line(f"  and {_counted(hidden, 'kernel', 'kernels')} more")
            self._line()
        for line in lines_not_probed(kernels, lambda summary: self._label(summary.kernel, _NAME_SHARE)):
            self._line(line)
        idle = sum(not kernel.submitted for kernel in kernels)
        if idle:
            self._line(f"{_counted(idle, 'kernel has', 'kernels have')} no probed launch")
        self._line("-k NAME shows all of a kernel, --all of all kernels")
        self._line()

    def _heading(self, trace: Trace) -> None:
        """Print the trace's path, and what was run, where, when and on which devices."""
        process = trace.process
        words = process.get("argv")
        command = " ".join(map(str, words)) if isinstance(words, list) else ""
        started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(trace.started))
        self._line(str(trace.path), style="bold", soft_wrap=True)
        facts = [f"pid {process.get('pid', '?')} on {process.get('host', '?')}", started]
        facts += [f"{device.get('name')} ({device.get('arch')})" for device in trace.devices]
        self._line(f"{command or 'unknown command'}: {', '.join(facts)}")
        if trace.clock is Clock.STEPS:
            self._line("embedded device: times are steps of the interpreter, not cycles")
        is_forecast = is_measured(trace)
        self._line(f"--memusage: {trace.coverage.forecast}" if is_forecast else trace.coverage.sentence)
        self._line()

    def _kernel(self, summary: KernelSummary, trace: Trace) -> None:
        """Print a probed kernel: its launches, what its twin (instrumented copy) costs, and its maps (what probes save
        to).

        trace: that it is of.
        """
        nothing: NothingSaved | None = None
        manifest = summary.kernel.manifest
        if manifest is None:
            # Only notes report such a kernel: summarize leaves it out.
            return
        self._line(self._label(summary.kernel), style="bold", soft_wrap=self.wide)
        launches = f"{_counted(summary.submitted, 'launch', 'launches')} probed"
        if summary.unprobed:
            launches += f", {summary.unprobed:,} not"
        self._line(f"  {launches}; {_resources(manifest.assembly, summary)}")
        for line in occupancy_lines(summary):
            self._line(f"  {line}", soft_wrap=self.wide)
        if manifest.retargeted is not None:
            self._line(f"  {_retargeted(manifest.retargeted)}")
        for probe in manifest.probes_left_out:
            self._line(f"  {probe.shown}", soft_wrap=self.wide)
            if probe.remedy:
                self._line(f"      what helps: {probe.remedy}", soft_wrap=self.wide)
        for name in manifest.not_probed:
            self._line(f"  {name}: not probed in this kernel")
        of_first = maps_of_first_lanes(trace.path) if any(map(_may_be_of_first, summary.maps)) else frozenset()
        for entry in summary.maps:
            self._map(entry, is_of_first=_may_be_of_first(entry) and entry.name in of_first)
            # Of chosen launches others may have something.
            if summary.written and self.launches is None and is_nothing(entry):
                nothing = nothing or NothingSaved(trace)
                why = nothing.in_kernel(summary.kernel, entry.name)
                if why:
                    self._line(f"    nothing: {why}", soft_wrap=self.wide)
            for line in record_lines(summary.kernel, entry.name, self.rows, self.launches):
                self._line(line, soft_wrap=True)
        self._line()

    def _map(self, entry: MapSummary, *, is_of_first: bool) -> None:
        """Print a map: how much it recorded, then its buckets or the range of each field, then its records by site
        (instruction that probes match).

        is_of_first: whether the records of warps, or blocks, are those of their first threads.
        """
        # Maps without slots have one combined result per launch, others records in the slots of threads, warps, blocks.
        recorded = f"{_counted(entry.records, 'launch', 'launches')} of {result_words(entry.kind, entry.per)}"
        if entry.per.has_rows:
            recorded = f"{_counted(entry.records, 'result', 'results')} of {result_words(entry.kind, entry.per)}"
        elif entry.kind.layout is Layout.CHUNKS:
            recorded = f"{_counted(entry.records, 'record', 'records')}, by {entry.level.value}"
        elif entry.kind.layout is Layout.SLOTS:
            limit = f"up to {entry.cap}" if entry.cap > 1 else "one"
            if entry.kind.keeps_last:
                limit = f"the last {entry.cap if entry.cap > 1 else 'one'}"
            recorded = f"{_counted(entry.records, 'record', 'records')}, {limit} per {entry.level.value}"
        if is_of_first:
            recorded += ", of its first lane" if entry.level is Level.WARP else ", of its thread 0"
        if entry.dropped and entry.kind.report is Report.KEYS:
            recorded += f"; {_counted(entry.dropped, 'save', 'saves')} found no place"
        elif entry.dropped:
            recorded += f", {entry.dropped:,} {'overwritten' if entry.kind.keeps_last else 'dropped'}"
        filled = any(bucket.count for bucket in entry.buckets)
        is_empty = not filled and not entry.keys and entry.kind.report in (Report.BUCKETS, Report.KEYS)
        self._line(f"  {entry.name}: {recorded}{'; nothing was saved' if is_empty else ''}")

        if entry.all_zero:
            self._line(f"    {all_zero_words(entry.all_zero, entry.records)}", soft_wrap=self.wide)
        if filled:
            self._buckets(entry)
        if entry.keys:
            self._keys(entry)
        if entry.fields:
            self._fields(entry)
        self._sites(entry)

    def _fields(self, entry: MapSummary) -> None:
        """Print the table of a map's fields: the range of each, and of a sum map the total over all launches."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("    field", overflow="fold")
        titles = ["min", "median", "max"]
        # Such maps' fields, and no others, have a total.
        if entry.kind.report is Report.TOTALS:
            titles.append("total")
        # The range is that of the launches' means.
        if entry.kind.report is Report.MEANS:
            titles += ["values", "mean"]
        for title in titles:
            table.add_column(title, justify="right", overflow="fold")
        for field in entry.fields:
            values = [field.minimum, field.median, field.maximum]
            for more in (field.total, field.values, field.mean):
                if more is not None:
                    values.append(more)
            table.add_row(f"    {escaped(field.name)}", *(_number(value) for value in values))
        self.console.print(table)

    def _buckets(self, entry: MapSummary) -> None:
        """Print a histogram's buckets with bars, from the first to the last that is not empty.

        If they are too many, empty ones are left out, and then those above the limit, unless --all is given.
        """
        filled = [index for index, bucket in enumerate(entry.buckets) if bucket.count]
        first, last = filled[0], filled[-1]
        candidates = entry.buckets[first : last + 1]
        if len(candidates) > _MAX_BUCKETS and not self.show_all:
            candidates = tuple(bucket for bucket in candidates if bucket.count)
        shown = candidates if self.show_all else candidates[:_MAX_BUCKETS]

        largest = max(bucket.count for bucket in candidates)
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for title in ("    from", "to", "count"):
            table.add_column(title, justify="right", overflow="fold")
        table.add_column("", no_wrap=True)
        for bucket in shown:
            # Rounded up, so that only empty buckets have no bar.
            bar = "#" * -(-bucket.count * _BAR_WIDTH // largest)
            low, high = bucket_ends(bucket.low, bucket.high)
            table.add_row(f"    {low}", high, f"{bucket.count:,}", bar)
        self.console.print(table)
        if len(shown) < len(candidates):
            self._line(f"    and {_counted(len(candidates) - len(shown), 'bucket', 'buckets')} more (--all)")

    def _keys(self, entry: MapSummary) -> None:
        """Print the keys of a map (what probes save to), those with the greatest sum or count first, with their places
        if they are sites.
        """
        # The keys of a topk map are no more than it was declared for.
        shown = entry.keys if self.show_all or entry.kind.name == "topk" else entry.keys[:_MAX_KEYS]
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for title in (f"    {escaped(entry.key_name)}", "count", *entry.keys[0].kept):
            table.add_column(title, justify="right", overflow="fold")
        has_places = any(key.place or key.instruction for key in shown)
        for title in ("place", "instruction") if has_places else ():
            table.add_column(title, overflow="fold")
        for key in shown:
            kept = (f"{number:,}" if isinstance(number, int) else _number(number) for number in key.kept.values())
            numbers = [f"    {exact(key.key)}", f"{key.count:,}", *kept]
            table.add_row(*numbers, *((escaped(key.place), escaped(key.instruction)) if has_places else ()))
        self.console.print(table)
        if len(shown) < len(entry.keys):
            self._line(f"    and {_counted(len(entry.keys) - len(shown), 'key', 'keys')} more (--all)")

    def _sites(self, entry: MapSummary) -> None:
        """Print how many records a map (what probes save to) has of each site (instruction that a probe matched);
        nothing without sites.
        """
        shown = entry.sites if self.show_all else entry.sites[:_MAX_SITES]
        if not shown:
            return
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for title in ("    site", "records"):
            table.add_column(title, justify="right")
        table.add_column("place", overflow="fold")
        table.add_column("instruction", overflow="fold")
        for site in shown:
            instruction = escaped(site.instruction) or _NO_INSTRUCTION.get(site.number, "not in the manifest")
            table.add_row(f"    {site.number}", f"{site.records:,}", escaped(site.place), instruction)
        self.console.print(table)
        if len(shown) < len(entry.sites):
            self._line(f"    and {_counted(len(entry.sites) - len(shown), 'site', 'sites')} more (--all)")

    def _not_probed(self, summary: TraceSummary) -> None:
        """Print launches that ran the original kernel, with the reason; never launched kernels only with --all."""
        counted = [row for row in summary.not_probed if not row.matches_nothing or self.show_all]
        nothing = "" if self.show_all else nothing_matches_line(summary.not_probed)
        if nothing:
            self._line(nothing)
            self._line()
        if not counted:
            return
        rows = [row for row in counted if row.launches or self.show_all]
        hidden = len(counted) - len(rows)
        self._line("Not probed", style="bold")
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("  launches", justify="right", overflow="fold")
        if len(rows) > _MOST_REASONS and not self.show_all:
            self._reasons(table, rows)
            rows = []
        table.add_column("kernel", overflow="fold")
        table.add_column("reason", overflow="fold")
        for row in rows:
            detail = f" ({row.detail})" if row.detail else ""
            reason = f"{row.reason.word}: {row.text}{detail}"
            table.add_row(f"{row.launches:,}", escaped(self._label(row.kernel, _NAME_SHARE)), escaped(reason))
        if rows:
            self.console.print(table)
        if hidden:
            kernels = _counted(hidden, "kernel that was", "kernels that were")
            self._line(f"  {kernels} never launched (--all lists them)")
        self._line()

    def _reasons(self, table: Table, rows: Sequence[NotProbed]) -> None:
        """Print launches that were not probed by reason, with how many kernels.

        table: has the column of launches already.
        """
        table.add_column("kernels", justify="right", overflow="fold")
        table.add_column("reason", overflow="fold")
        for reason in folded(rows):
            help_text = f"; what helps: {reason.remedy}" if reason.remedy else ""
            table.add_row(
                f"{reason.launches:,}", f"{reason.kernels:,}", f"{reason.reason.word}: {reason.text}{help_text}"
            )
        self.console.print(table)
        self._line("  --why names the kernels")


def _retargeted(retargeted: Retargeted) -> str:
    """Return the line about a twin (copy with probes) made of PTX for another architecture than the code that runs:
    what proves it.
    """
    if retargeted.same_code:
        evidence = "it assembles to the code that runs"
    elif retargeted.own_text:
        evidence = "the code that runs was compiled from it, but assembling it gives different code"
    else:
        evidence = "it is not proven to be the program that runs, so results may have differed"
    return f"retargeted: the PTX is for another architecture ({retargeted.target}); {evidence}"


def _resources(assembly: Assembly | None, summary: KernelSummary) -> str:
    """Return the registers per thread and spills of a kernel and its twin (copy with probes), as ``registers 16 → 20;
    spills 0 → 0``.

    The twin under a register cap, if launches used it, is added in brackets. assembly: None if nothing was assembled.
    """
    if assembly is None:
        return "not assembled: no ptxas"
    registers = f"registers {assembly.registers_original} → {assembly.registers_twin}"
    if assembly.spills_original is None and assembly.spills_twin is None:
        # Of code that no assembler wrote.
        return registers
    spills = f"spills {_spills(assembly.spills_original)} → {_spills(assembly.spills_twin)}"
    if summary.capped and assembly.registers_capped is not None:
        registers += f" ({assembly.registers_capped} in {summary.capped:,} launches)"
        spills += f" ({_spills(assembly.spills_capped)})"
    return f"{registers}; {spills}"


def _number(value: int | float) -> str:
    """Return a number as it is printed: integers whole, fractions with six digits."""
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def _may_be_of_first(entry: MapSummary) -> bool:
    """Whether a map has records of warps or blocks, which their first threads may have saved."""
    return entry.level is not Level.THREAD and entry.kind.layout in (Layout.SLOTS, Layout.CHUNKS)


def _counted(number: int, one: str, many: str) -> str:
    """Return a number with a noun. one: the singular, many: the plural."""
    return f"{number:,} {one if number == 1 else many}"


def _spills(spills: Spills | None) -> str:
    """Return spills as bytes stored/loaded; ``?`` if they are not known."""
    if spills is None:
        return "?"
    return f"{spills.stores:,}/{spills.loads:,} B" if spills.stores or spills.loads else "0"


if __name__ == "__main__":
    sys.exit(main())
