"""Run the analyses that a trace allows, and put the worst findings first."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from neutrino.errors import NeutrinoError, TraceError
from neutrino.tracing.analyses import first_nan
from neutrino.tracing.analyses.evidence import Evidence
from neutrino.tracing.analyses.finding import Finding, State
from neutrino.tracing.analyses.registry import ANALYSES
from neutrino.tracing.summary import KernelSummary, TraceSummary

_MOST_KERNELS = 16
"""Kernels whose records are read for findings without being asked; of the others only summaries are looked at."""
_TIMES = ("elapsed", "cycles")
"""Fields of the time of a warp, of ``block_sched`` and ``warp_timeline``."""
_ORDER = (State.ISSUE, State.MINOR, State.OK)


@dataclass(frozen=True)
class Findings:
    """What the analyses found in a trace, the worst first. not_run: analyses of which the trace has no data, with the
    probes that would give them. skipped: kernels whose records were not read, since there are many.
    """

    found: tuple[Finding, ...]
    not_run: dict[str, tuple[str, ...]]
    skipped: int = 0

    def of_state(self, *states: State) -> tuple[Finding, ...]:
        """Return the findings with one of these states."""
        return tuple(finding for finding in self.found if finding.state in states)


def findings_of(
    summary: TraceSummary, *, names: Collection[str] = (), launches: range | None = None, reads_all: bool = True
) -> Findings:
    """Run analyses on a trace. names: of those to run, all without any. launches: whose records are read; all without.
    reads_all: False to read the records of no more than _MOST_KERNELS kernels.

    Raises NeutrinoError for a name that no analysis has.
    """
    unknown = [name for name in names if name not in ANALYSES]
    if unknown:
        raise NeutrinoError(f"no analysis {unknown[0]!r}; there are {', '.join(ANALYSES)}")
    found: list[Finding] = []
    ran = set()
    skipped = 0
    weights = {kernel.kernel.id: _weight(kernel) for kernel in summary.kernels}
    launched = sorted(
        (kernel for kernel in summary.kernels if kernel.written), key=lambda kernel: -weights[kernel.kernel.id]
    )
    for number, kernel in enumerate(launched):
        is_deep = reads_all or number < _MOST_KERNELS
        evidence = Evidence(kernel, launches, has_spread=is_deep)
        skipped += not is_deep
        for name, analysis in ANALYSES.items():
            if (names and name not in names) or not (analysis.is_cheap or is_deep):
                continue
            for finding in _tolerant(analysis.run(analysis, evidence), summary, name):
                found.append(finding)
                ran.add(name)
    order = {name: number for number, name in enumerate(ANALYSES)}
    # Wrong results first; then kernels that take most time, since little else is worth mending.
    found.sort(
        key=lambda finding: (
            _ORDER.index(finding.state), finding.analysis != first_nan.ANALYSIS.name, -weights[finding.kernel],
            order[finding.analysis],
        )
    )  # fmt: skip
    not_run = {
        name: analysis.probes[0] for name, analysis in ANALYSES.items()
        if name not in ran and (not names or name in names)
    }  # fmt: skip
    return Findings(tuple(found), not_run, skipped)


def _weight(kernel: KernelSummary) -> float:
    """Return how much a kernel counts beside others: the time of its warps in all launches if that was recorded, else
    its launches.
    """
    times = [
        float(field.added)
        for entry in kernel.maps
        for field in entry.fields
        if field.name in _TIMES and field.added is not None
    ]
    return max(times, default=float(kernel.submitted))


def _tolerant(findings: Iterator[Finding], summary: TraceSummary, name: str) -> Iterator[Finding]:
    """Yield findings; what is damaged ends them, and is listed among the trace's faults.

    name: of the analysis. A trace may have maps of the names that it knows, and anything in them.
    """
    try:
        yield from findings
    except TraceError as error:
        summary.trace.tolerate(error)
    except (ValueError, ArithmeticError, LookupError, TypeError) as error:
        summary.trace.tolerate(TraceError(f"{summary.trace.path}: the analysis {name} cannot read its maps: {error}"))
