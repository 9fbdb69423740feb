"""Latency by line: at which loads threads wait longest."""

from __future__ import annotations

from collections.abc import Iterator

from neutrino.maps.declaration import Report
from neutrino.tracing.analyses.evidence import Analysis, Evidence, shared
from neutrino.tracing.analyses.finding import FigureKind, Finding, Place, Threshold, brief
from neutrino.tracing.percent import percent

_MOST_PLACES = 5
_MOST_OF_ONE = 0.8
"""Of all waiting at one of several loads: that is where to look."""
_LONG = 400
"""Cycles; what L2 serves takes less. Where even the worst load does, none of them is a place to look."""


def run(analysis: Analysis, evidence: Evidence) -> Iterator[Finding]:
    """Yield how long loads take, and at which of them most of the waiting is."""
    keys = evidence.keys("PerLoad", ("sum", "min", "max"))
    if not keys:
        return
    reading = _reading(evidence)
    waits = [max(float(key.kept["sum"]) - reading * key.count, 0.0) for key in keys]
    order = sorted(range(len(keys)), key=lambda at: (-waits[at], at))
    worst = keys[order[0]]
    count = sum(key.count for key in keys)
    values = {
        "mean": sum(waits) / count, "worst_mean": waits[order[0]] / worst.count,
        "worst_share": shared(waits[order[0]], sum(waits)), "loads": count, "instructions": len(keys),
        "concentrated": shared(waits[order[0]], sum(waits)) if len(keys) > 1 else 0.0,
    }  # fmt: skip
    unit = evidence.unit
    places = tuple(
        Place(
            keys[at].place, keys[at].instruction,
            f"{brief(waits[at] / keys[at].count)} {unit} each, {percent(shared(waits[at], sum(waits)))} of all waiting",
        )
        for at in order[:_MOST_PLACES]
    )  # fmt: skip
    certainty = evidence.certainty(
        ["PerLoad"], is_timed=True,
        caveats=["a load that is measured is waited for: what is hidden without the probe counts"],
    )  # fmt: skip
    sentence = (
        f"a load takes {brief(values['mean'])} {unit} on average; {percent(values['worst_share'])} of all waiting is "
        f"at {places[0].place or 'one instruction'}, {brief(values['worst_mean'])} {unit} each"
    )
    judged = {name: float(value) for name, value in values.items()}
    if values["worst_mean"] < _LONG:
        del judged["concentrated"]
    state = analysis.state(judged)
    remedies = (
        "begin the load earlier (software pipelining, asynchronous copies), or have more warps at a time to hide it",
        "see whether it hits a cache: the analyses uncoalesced and hot_addresses, and -p reuse_distance",
    )  # fmt: skip
    yield analysis.finding(evidence, sentence, values, certainty, state=state, places=places, remedies=remedies)


def _reading(evidence: Evidence) -> float:
    """Return how long two readings of the clock take, which are in each latency; 0 if that was not measured."""
    entry = evidence.entry("ClockOverhead", ("cycles",))
    if entry is None or entry.kind.report in (Report.KEYS, Report.BUCKETS):
        return 0.0
    return float(entry.fields[0].minimum)


ANALYSIS = Analysis(
    "latency",
    "At which loads do threads wait longest?",
    (("latency",),),
    (
        FigureKind("mean", "", "of all loads, less the readings of the clock, in its units"),
        FigureKind("worst_mean", "", "of the instruction with most waiting, in the clock's units"),
        FigureKind("worst_share", "share", "waiting at that instruction, of all"),
        FigureKind("concentrated", "share", "the same, 0 where there is only one instruction"),
        FigureKind("loads", "", "executions by threads"),
        FigureKind("instructions", "", "that load"),
    ),
    (Threshold("worst_mean", 800, 1600), Threshold("concentrated", _MOST_OF_ONE, float("inf"))),
    run,
)
