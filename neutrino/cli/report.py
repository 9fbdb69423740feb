"""``neutrino-report``: what the probes saw, as tables or as JSON."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from neutrino.cli.file_options import is_file_asked, run_asked
from neutrino.cli.kernel_names import demangled, some_of
from neutrino.cli.memory_report import usage_document
from neutrino.cli.record_options import is_asked, prepared
from neutrino.cli.report_faults import report_faults
from neutrino.cli.report_messages import DONE, NOTHING, fail, say
from neutrino.cli.report_options import is_drawn, report_parser
from neutrino.cli.report_scripts import analyze_trace
from neutrino.cli.report_sources import SOURCES
from neutrino.cli.streams import escaped, print_anything
from neutrino.cli.trace_choice import (
    newest_of_ranks,
    newest_traces,
    of_ranks,
    print_lines,
    require_launches,
    traces_at,
    why_no_kernel,
)
from neutrino.cli.why import coverage_document, why_document
from neutrino.errors import NeutrinoError, TraceError
from neutrino.probing.selection import Selection
from neutrino.tracing import Trace, TraceKernel, TraceSummary, find_traces, summarize
from neutrino.tracing.analyses.run import Findings, findings_of
from neutrino.tracing.memory_usage import MemoryUsage, is_measured, memory_usage
from neutrino.tracing.shown.model import Choice
from neutrino.tracing.shown.report import nothing_matches_line, shown_report
from neutrino.tracing.shown.why import Why, explain, not_probed_rows

if TYPE_CHECKING:
    from neutrino.cli.report_text import ReportText
    from neutrino.tracing.analyses.condition import Condition

_DEFAULT_FOLDER = "trace"
"""Where ``neutrino`` writes traces without ``--tracedir``."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns the exit status: 0 done, 1 a condition of --fail-if holds or --diff found a change, 2 an unreadable trace or
    lost records, a wrong expression or a script that failed, 3 no kernel was probed.
    """
    try:
        parser = report_parser()
        options = parser.parse_args(prepared(sys.argv[1:] if arguments is None else arguments))
        if is_file_asked(options):
            return run_asked(options, parser)
        return _run(options)
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
    _check_forms(options)
    if options.html and Path(options.html).is_dir():
        given = options.html.rstrip("/") or "/"
        return fail(f"--html takes a file, and {given} is a folder: neutrino-report {given} --html page.html")
    if options.schema:
        # Imported here and below: what most reports do not need takes as long as they do.
        from neutrino.cli.findings_json import schema_document

        return print_lines([json.dumps(schema_document(), indent=1)])
    if is_drawn(options) and (asks_records or options.json or options.rows or options.why is not None):
        report_parser().error("--html, --open, --png and --svg go without --json, --rows, --why and queries")
    if asks_records and (options.why is not None or options.rows or (options.csv and options.json)):
        report_parser().error(
            "--records, --where, --group-by, --sort and --csv go without --rows and --why, and --csv without --json"
        )
    try:
        selection = Selection(tuple(options.kernel), tuple(options.filter))
        asked = Selection((options.why,) if options.why else ())
        conditions = _conditions(options.fail_if)
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
            paths = newest_traces(find_traces(_DEFAULT_FOLDER), options)
        except NeutrinoError as error:
            return fail(f"{error}; a program that loads no GPU code leaves no trace; give the path of one")
    for path in options.trace:
        try:
            paths += traces_at(path, options)
        except NeutrinoError as error:
            status = fail(error)
    if not paths:
        return status
    try:
        choose = newest_of_ranks if options.rank and not options.trace else of_ranks
        paths = choose(paths, options.rank)
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
                lost = [] if is_drawn(options) else [fault for fault in trace.faults if "/launches.bin: " in fault]
                if lost and not trace.started:
                    status = fail(f"{lost[0]}; nothing is known of the launches without it: run the program again")
                    opened.pop()
                    continue
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

    try:
        # A page finds what it shows by itself.
        found = _find(summaries, options) if options.why is None and (not is_drawn(options) or conditions) else []
    except NeutrinoError as error:
        return fail(error)

    # The report.
    try:
        if is_drawn(options):
            from neutrino.cli.report_page import write_report

            # That a trace could not be read says more than that there is nothing to draw.
            drawn = write_report(summaries, usages, options)
            status = status or drawn
        elif options.why is None:
            _print(summaries, found, usages, keep, options)
        else:
            _print_why(reasons, options)
    except BrokenPipeError:
        return _end_output(DONE)
    except OSError as error:
        return _end_output(fail(error.strerror or str(error)))
    status = report_faults(opened) or status
    if conditions and status == DONE:
        from neutrino.cli.findings_text import check

        status = check(conditions, summaries, found)
    if status == DONE and options.why is not None:
        if not any(why for _, why in reasons):
            unmatched = any(row.matches_nothing for trace, _ in reasons for row in not_probed_rows(trace))
            every = "every launch of a kernel with an instruction that matches" if unmatched else "every launch"
            names = (kernel.name for trace, _ in reasons for kernel in trace.kernels)
            said = f"no kernel matches {options.why}; there are {some_of(names)}" if options.why else ""
            say(escaped(said) or f"{every} that was chosen was probed")
        is_found = any(trace.coverage.probed and (why or not options.why) for trace, why in reasons)
        return DONE if is_found else NOTHING
    has_kernels = any(summary.kernels for summary in summaries) or any(usage.kernels for usage in usages)
    if status == DONE and not has_kernels:
        # The table of kernels that were not probed, if there is one, says why.
        if not any(summary.not_probed for summary in summaries) and not any(usage.not_probed for usage in usages):
            say(why_no_kernel(read, options))
        return NOTHING
    return status


def report_of(path: Path) -> str:
    """Return the report of one trace without options, as the command prints it. Raises NeutrinoError if it cannot be
    read.
    """
    trace = Trace(path, is_tolerant=True)
    options = report_parser().parse_args([])
    if is_measured(trace):
        return _usage_text(memory_usage(trace), lambda _: True, options)
    summary = summarize(trace)
    (findings,) = _find([summary], options)
    return _summary_text(summary, findings, options)


def _usage_text(usage: MemoryUsage, keep: Callable[[TraceKernel], bool], options: argparse.Namespace) -> str:
    """Return the report of a run with --memusage. keep: whether to list a kernel."""
    text = _text(options)
    text.show_usage(usage, keep)
    return text.console.text()


def _summary_text(summary: TraceSummary, findings: Findings, options: argparse.Namespace) -> str:
    """Return the report of a trace."""
    text = _text(options)
    choice = Choice(bool(options.kernel), options.all, bool(options.rows), options.launch)
    text.show(shown_report(summary, choice, SOURCES, findings), summary)
    # Each part ends with an empty line; one between traces is enough, and none at the end.
    return text.console.text()


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


def _check_forms(options: argparse.Namespace) -> None:
    """End the command, as for a wrong option, if options ask for several things in place of the report."""
    forms = {
        "--findings": options.findings, "--summary": options.summary, "--proof": options.proof, "--json": options.json,
        "--xml": options.xml,
    }  # fmt: skip
    others = {
        "--html, --open, --png and --svg": is_drawn(options), "--why": options.why is not None,
        "--records": is_asked(options),
    }  # fmt: skip
    asked = [name for name, is_there in forms.items() if is_there]
    more = [name for name, is_there in others.items() if is_there]
    new = [name for name in asked if name != "--json"]
    if len(asked) > 1 or (new and (more or options.rows)):
        first, second = (*asked, *more, "--rows")[:2]
        report_parser().error(f"{first} goes without {second}")
    shows_page = bool(options.html or options.open)
    alone = {
        "--threshold goes with --diff": options.threshold is not None,
        "--sass goes with --html or --open": options.sass and not shows_page,
        "--source goes with --html, --open, --png or --svg": options.source and not is_drawn(options),
    }  # fmt: skip
    for says, is_wrong in alone.items():
        if is_wrong:
            report_parser().error(says)
    if options.fail_if and (options.why is not None or is_asked(options)):
        report_parser().error("--fail-if goes without --why and queries")


def _conditions(texts: Sequence[str]) -> list[Condition]:
    """Read the conditions of --fail-if. Raises NeutrinoError."""
    if not texts:
        return []
    from neutrino.tracing.analyses.condition import read_condition

    return [read_condition(text) for text in texts]


def _find(summaries: Sequence[TraceSummary], options: argparse.Namespace) -> list[Findings]:
    """Return the findings of traces, as the options ask. Raises NeutrinoError for an analysis that there is not."""
    # All kernels' records are read only for who asks for findings.
    is_asked = options.findings or options.summary or options.json or options.xml or options.fail_if
    return [
        findings_of(summary, names=options.analysis, launches=options.launch, reads_all=bool(is_asked))
        for summary in summaries
    ]


def _print(
    summaries: Sequence[TraceSummary],
    found: Sequence[Findings],
    usages: Sequence[MemoryUsage],
    keep: Callable[[TraceKernel], bool],
    options: argparse.Namespace,
) -> None:
    """Print the report of all traces, as tables or as one document. Raises OSError if stdout cannot be written.

    found: of each summary. usages: of the traces of runs with --memusage, which come first. keep: whether to list a
    kernel of these.
    """
    if options.json or options.xml:
        from neutrino.cli.findings_json import SCHEMA
        from neutrino.cli.report_json import trace_document

        documents = [*(usage_document(usage, keep) for usage in usages), *(
            trace_document(*each, options.launch) for each in zip(summaries, found, strict=True)
        )]
        document = {"schema": SCHEMA, "traces": documents}
        if options.xml:
            from neutrino.cli.report_xml import xml_text

            print(xml_text(document), end="")
        else:
            print(json.dumps(document, indent=1))
    elif options.findings or options.summary or options.proof:
        from neutrino.cli.findings_text import text_of

        for number, (summary, findings) in enumerate(zip(summaries, found, strict=True)):
            print(("\n" if number else "") + text_of(summary, findings, options))
    else:
        texts = (_usage_text(usage, keep, options) for usage in usages)
        others = (_summary_text(*each, options) for each in zip(summaries, found, strict=True))
        for number, text in enumerate(chain(texts, others)):
            print(("\n" if number else "") + text)
    if sys.stdout is not None:
        sys.stdout.flush()


def _text(options: argparse.Namespace) -> ReportText:
    """Return what prints a report as the options ask."""
    # Imported here, since JSON needs none.
    from neutrino.cli.report_console import ReportConsole
    from neutrino.cli.report_text import ReportText

    return ReportText(
        ReportConsole(), wide=options.wide, show_all=options.all, rows=options.rows, launches=options.launch
    )


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
        for number, (trace, kernels) in enumerate(reasons):
            text = _text(options)
            not_listed = "" if options.why or options.all else nothing_matches_line(not_probed_rows(trace))
            text.show_why(trace, kernels, not_listed)
            print(("\n" if number else "") + text.console.text())
    if sys.stdout is not None:
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
