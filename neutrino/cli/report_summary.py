"""``neutrino-report --summary``: one page of facts that fits a chat, a log of a CI job, or an agent's context."""

from __future__ import annotations

import time
from collections.abc import Iterator

from neutrino.cli.kernel_names import shorten
from neutrino.cli.report_proof import short_proof
from neutrino.cli.streams import escaped
from neutrino.tracing.analyses.finding import State
from neutrino.tracing.analyses.run import Findings
from neutrino.tracing.liveness import is_running
from neutrino.tracing.shown.model import counted
from neutrino.tracing.shown.report import folded, heading, readable_benchmark
from neutrino.tracing.summary import TraceSummary

MOST_LINES = 60
_MOST_KERNELS = 8
_MOST_FINDINGS = 8
"""Of which each takes up to four lines."""
_MOST_REASONS = 4
_MOST_NOTES = 4
_NAME_WIDTH = 60
_LINE_WIDTH = 400
"""Characters of a line, at most."""


def summary_lines(summary: TraceSummary, findings: Findings) -> list[str]:
    """Return the lines of a trace's summary, MOST_LINES at most, with all names escaped."""
    lines = [_cut(escaped(line)) for line in _lines(summary, findings)]
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES - 1], f"and {len(lines) - MOST_LINES + 1} lines more (neutrino-report TRACE)"]
    return lines


def _cut(line: str) -> str:
    """Return a line that is not longer than a line may be."""
    return line if len(line) <= _LINE_WIDTH else f"{line[: _LINE_WIDTH - 1]}…"


def _lines(summary: TraceSummary, findings: Findings) -> Iterator[str]:
    """Yield the lines of a trace's summary."""
    trace = summary.trace
    head = heading(trace)
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(head.started))
    yield f"trace: {head.path}"
    yield f"ran: {head.command or 'unknown command'} ({', '.join((head.process, started, *head.devices))})"
    for line in head.lines:
        yield f"seen: {line.text}"
    # What a process that runs on has not written yet is said above.
    lost = sum(
        kernel.lost + kernel.removed + (0 if is_running(trace) else kernel.pending) for kernel in summary.kernels
    )
    dropped = sum(entry.dropped for kernel in summary.kernels for entry in kernel.maps if not entry.kind.keeps_last)
    yield f"lost: the data of {lost:,} launches, {dropped:,} results without a place"
    yield _cost(summary)
    yield from short_proof(summary)
    kernels = sorted(summary.kernels, key=lambda kernel: -kernel.submitted)
    for kernel in kernels[:_MOST_KERNELS]:
        maps = ", ".join(f"{entry.name} {entry.records:,}" for entry in kernel.maps)
        yield (
            f"kernel: {shorten(kernel.kernel.full_name, _NAME_WIDTH)}: "
            f"{counted(kernel.submitted, 'launch', 'launches')} probed, {kernel.unprobed:,} not; {maps or 'no map'}"
        )
    if len(kernels) > _MOST_KERNELS:
        yield f"kernel: and {len(kernels) - _MOST_KERNELS:,} more"
    bad = findings.of_state(State.ISSUE, State.MINOR)
    for finding in bad[:_MOST_FINDINGS]:
        yield f"{finding.state.value}: {finding.analysis} in {shorten(finding.name, _NAME_WIDTH)}: {finding.sentence}"
        yield f"  sure: {finding.certainty.word}: {'; '.join(finding.certainty.sentences())}"
        if finding.places:
            place = finding.places[0]
            yield f"  at: {place.place or 'an unknown place'} · {place.instruction}: {place.note}"
        if finding.remedies:
            yield f"  try: {finding.remedies[0]}"
    if len(bad) > _MOST_FINDINGS:
        yield f"findings: and {len(bad) - _MOST_FINDINGS:,} more (--findings)"
    rest = findings.of_state(State.OK)
    good, others = ([one for one in rest if bool(one.thresholds) is judged] for judged in (True, False))
    if good:
        names = dict.fromkeys(finding.analysis for finding in good)
        yield f"ok: {', '.join(names)} ({counted(len(good), 'finding', 'findings')} within the thresholds)"
    if others:
        names = dict.fromkeys(finding.analysis for finding in others)
        yield f"not judged: {', '.join(names)} (times are steps of the embedded device, no durations)"
    if findings.not_run:
        yield f"not analysed: no data for {', '.join(findings.not_run)} (--findings names the probes)"
    for reason in folded([row for row in summary.not_probed if row.launches])[:_MOST_REASONS]:
        launches = f"{counted(reason.launches, 'launch', 'launches')} of {counted(reason.kernels, 'kernel', 'kernels')}"
        yield f"not probed: {launches}: {reason.reason.word}: {reason.text}"
    notes = [*summary.notes, *trace.faults]
    for note in notes[:_MOST_NOTES]:
        yield f"note: {note}"
    if len(notes) > _MOST_NOTES:
        yield f"note: and {len(notes) - _MOST_NOTES:,} more"


def _cost(summary: TraceSummary) -> str:
    """Return the line on what the probes cost."""
    benchmark = readable_benchmark(summary.trace)
    if benchmark is None or benchmark.slowdown is None:
        return "cost of the probes: not measured (--benchmark does); times include it"
    launches = sum(group.launches for group in benchmark.compared)
    return f"cost of the probes: {benchmark.slowdown:.3f} times as long, by {launches:,} launches"
