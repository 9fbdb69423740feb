"""What a report leaves out of traces, since it is damaged."""

from __future__ import annotations

from collections.abc import Sequence

from neutrino.cli.report_messages import DONE, fail
from neutrino.tracing import Trace
from neutrino.tracing.liveness import awaited, awaited_words, is_running

_MOST_FAULTS = 8
"""Damaged places of a trace that are listed one by one."""


def report_faults(traces: Sequence[Trace]) -> int:
    """Report what was left out of traces, since it is damaged, and what is missing. Returns the exit status."""
    status = DONE
    for trace in traces:
        for fault in trace.faults[:_MOST_FAULTS]:
            status = fail(fault)
        if more := len(trace.faults) - _MOST_FAULTS:
            status = fail(f"{trace.path}: {more:,} more places are damaged") if more > 0 else status
        if trace.lost[0]:
            status = fail(f"{trace.path}: {trace.lost[1]}")
        # What is only not here yet is no fault.
        if awaited(trace) and not is_running(trace):
            status = fail(f"{trace.path}: {awaited_words(trace)}")
    return status
