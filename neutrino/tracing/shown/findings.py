"""The part of a report on findings: a line for each, or all that is known of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from neutrino.tracing.analyses.finding import Finding, State
from neutrino.tracing.analyses.run import Findings
from neutrino.tracing.shown.model import Line, Name, Section, counted

MOST_BRIEF = 10
"""Findings that a report has in short without --all."""


def brief_findings(findings: Findings, *, show_all: bool = False) -> Section | None:
    """Return the section that has a line for each finding that is minor or an issue; None without any."""
    found = findings.of_state(State.ISSUE, State.MINOR)
    if not found:
        return None
    shown = found if show_all else found[:MOST_BRIEF]
    lines = [sentence(finding, indent=1) for finding in shown]
    if len(shown) < len(found):
        lines.append(Line.of(f"and {len(found) - len(shown):,} more", indent=1))
    lines.append(Line.of("--findings says how sure that is, and what to try", indent=1))
    return Section("findings", Line.of("Findings"), tuple(lines))


def full_findings(findings: Findings) -> Iterator[Section]:
    """Yield a section for each finding with all that is known of it, then one on what was not looked at."""
    for finding in findings.found:
        title = Line.of(f"{finding.word}: {finding.analysis} in ", Name(finding.name, finding.kernel))
        yield Section("finding", title, tuple(_details(finding)), finding.kernel, finding.analysis)
    lines = []
    if not findings.found:
        lines.append(Line.of("no finding: the trace has nothing that an analysis looks at"))
    if findings.skipped:
        lines.append(Line.of(
            f"the records of {counted(findings.skipped, 'kernel was', 'kernels were')} not looked at; -k chooses some"
        ))  # fmt: skip
    lines += not_run_lines(findings)
    if lines:
        yield Section("findings", None, tuple(lines))


def not_run_lines(findings: Findings) -> list[Line]:
    """Return the lines that say which analyses the trace has no data for, and which probes give them."""
    if not findings.not_run:
        return []
    asked = "; ".join(
        f"{name} ({' '.join(f'-p {probe}' for probe in probes)})" for name, probes in findings.not_run.items()
    )
    return [Line.of(f"the trace has no data for {asked}")]


def sentence(finding: Finding, indent: int = 0) -> Line:
    """Return a finding as one line: its state, the kernel, and what was found."""
    parts: Sequence[str | Name] = (
        f"{finding.word}: ", Name(finding.name, finding.kernel), f": {finding.sentence}"
    )  # fmt: skip
    return Line.of(*parts, indent=indent)


def _details(finding: Finding) -> Iterator[Line]:
    """Yield the lines below a finding's title."""
    yield Line.of(finding.sentence, indent=1)
    figures = ", ".join(f"{figure.kind.name} {figure.text}" for figure in finding.figures)
    yield Line.of(f"figures: {figures}", indent=1)
    if finding.thresholds:
        yield Line.of(f"thresholds: {'; '.join(row.text for row in finding.thresholds)}", indent=1)
    yield Line.of(f"sure: {finding.certainty.word}: {'; '.join(finding.certainty.sentences())}", indent=1)
    for place in finding.places:
        where = " · ".join(text for text in (place.place, place.instruction) if text)
        yield Line.of(f"at {where or 'an unknown place'}: {place.note}", indent=1)
    for remedy in finding.remedies:
        yield Line.of(f"what to try: {remedy}", indent=1, role="remedy")
    yield Line.of(f"again: {finding.command}", indent=1)
