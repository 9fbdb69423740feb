"""What ``neutrino-report`` prints of findings, and whether a condition of ``--fail-if`` holds."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from neutrino.cli.kernel_names import shorten
from neutrino.cli.report_messages import BAD_INPUT, DONE, fail, say
from neutrino.cli.section_text import section_lines
from neutrino.cli.streams import escaped
from neutrino.tracing.analyses.condition import Condition, ConditionError
from neutrino.tracing.analyses.run import Findings
from neutrino.tracing.shown.findings import full_findings
from neutrino.tracing.shown.report import heading
from neutrino.tracing.summary import TraceSummary

HOLDS = 1
"""The exit status where a condition holds."""
_NAME_WIDTH = 100


def findings_text(summary: TraceSummary, findings: Findings, *, is_wide: bool) -> str:
    """Return all findings of a trace as text."""
    found = heading(summary.trace)
    lines = [found.path, found.command or "unknown command", *(line.text for line in found.lines), ""]

    def label(name: str) -> str:
        """Return a kernel's name as it is shown."""
        return name if is_wide else shorten(name, _NAME_WIDTH)

    for section in full_findings(findings):
        lines += section_lines(section, label)
        lines.append("")
    return "\n".join(map(escaped, lines)).rstrip("\n")


def text_of(summary: TraceSummary, findings: Findings, options: argparse.Namespace) -> str:
    """Return what is printed of a trace in place of its report: its summary, proof or findings."""
    if options.summary:
        from neutrino.cli.report_summary import summary_lines

        return "\n".join(summary_lines(summary, findings))
    if options.proof:
        from neutrino.cli.report_proof import proof_lines

        return "\n".join([escaped(str(summary.trace.path)), *proof_lines(summary)])
    return findings_text(summary, findings, is_wide=options.wide)


def check(conditions: Sequence[Condition], summaries: Sequence[TraceSummary], found: Sequence[Findings]) -> int:
    """Report for which kernels conditions hold. Returns the exit status: 1 if one holds, 2 if one cannot be answered.

    Of several traces those that have not what a condition needs are left out, unless none has it.
    """
    status = DONE
    for condition in conditions:
        faults, answered, holds = [], 0, False
        for summary, findings in zip(summaries, found, strict=True):
            try:
                hits = condition.hits(summary.trace.coverage, findings)
            except ConditionError as error:
                faults.append(error)
                continue
            answered += 1
            for hit in hits:
                holds = True
                values = ", ".join(f"{name} = {value}" for name, value in hit.values.items())
                kernel = f" in {shorten(hit.name, _NAME_WIDTH)}" if hit.name else ""
                say(f"{summary.trace.path}: {condition.text} holds{kernel}: {values}")
        if not answered:
            status = fail(faults[0]) if faults else fail(f"{condition.text}: no kernel was probed")
        elif holds and status != BAD_INPUT:
            status = HOLDS
    return status
