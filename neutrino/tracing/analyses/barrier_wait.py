"""Waiting at barriers and for asynchronous copies, by line."""

from __future__ import annotations

from collections.abc import Iterator

from neutrino.tracing.analyses.evidence import Analysis, Evidence, shared
from neutrino.tracing.analyses.finding import FigureKind, Finding, Place, State, Threshold, brief
from neutrino.tracing.percent import percent

_MOST_PLACES = 5
_TIMES = (("WarpTimes", "cycles"), ("BlockSched", "elapsed"))
"""Maps of the time of each warp, by the multiprocessor's clock."""


def run(analysis: Analysis, evidence: Evidence) -> Iterator[Finding]:
    """Yield how long warps wait, of all their time if that is known, and where."""
    keys = sorted(evidence.keys("PerWait", ("sum", "min", "max")), key=lambda key: (-float(key.kept["sum"]), key.key))
    if not keys:
        return
    waits = sum(key.count for key in keys)
    total = sum(float(key.kept["sum"]) for key in keys)
    # What the barrier and the clock themselves take.
    least = min(float(key.kept["min"]) for key in keys)
    values = {
        "mean": total / waits, "least": least, "greatest": max(float(key.kept["max"]) for key in keys),
        "waits": waits, "mean_over_least": shared(total / waits, least),
    }  # fmt: skip
    of_warps = _time_of_warps(evidence)
    unit = evidence.unit
    sentence = (
        f"a warp waits {brief(values['mean'])} {unit} at a barrier or for a copy on average, {brief(least)} at least"
    )
    cost = evidence.cost
    if of_warps:
        # What the probes cost is outside of the waits: without it these are a larger share.
        ratio = 1.0 if cost is None else cost.ratio
        values["share"] = min(max(total - least * waits, 0.0) * ratio / of_warps, 1.0)
        whose = "the time of all warps" if cost is None else "the time that all warps take without probes"
        sentence += f"; beyond that least, {percent(values['share'])} of {whose}"
    places = tuple(
        Place(
            key.place, key.instruction,
            f"{brief(float(key.kept['sum']) / key.count)} {unit} each of {key.count:,} times, "
            f"{percent(shared(float(key.kept['sum']), total))} of all",
        )
        for key in keys[:_MOST_PLACES]
    )  # fmt: skip
    judged = "share" if of_warps else "mean"
    state = analysis.state({judged: values[judged]})
    caveats = [] if of_warps else ["the time of the warps is not in this trace: add -p warp_timeline for the share"]
    if of_warps and cost is None:
        caveats.append("the probes are in the time of the warps and not in the waits: without them the share is larger")
    certainty = evidence.certainty(["PerWait"], is_timed=True, caveats=caveats)
    if state is not State.OK:
        sentence += f"; most at {places[0].place or 'an unknown place'}"
    remedies = (
        "give the warps of a block equal work between barriers (the analysis imbalance)",
        "synchronise fewer threads (a warp, a named barrier), or wait for copies later than where they are issued",
    )  # fmt: skip
    yield analysis.finding(evidence, sentence, values, certainty, state=state, places=places, remedies=remedies)


def _time_of_warps(evidence: Evidence) -> float:
    """Return the time of all warps together; 0 if the trace has it not."""
    for name, field_name in _TIMES:
        entry = evidence.entry(name, (field_name,))
        for field in entry.fields if entry is not None else ():
            if field.name == field_name and field.added is not None:
                return float(field.added)
    return 0.0


ANALYSIS = Analysis(
    "barrier_wait",
    "How long do warps wait at barriers and for copies?",
    (("barrier_wait", "warp_timeline"), ("barrier_wait",)),
    (
        FigureKind("mean", "", "of a wait, in the clock's units"),
        FigureKind("least", "", "wait, in the clock's units"),
        FigureKind("greatest", "", "wait, in the clock's units"),
        FigureKind("mean_over_least", "", "the mean wait by the least"),
        FigureKind("waits", "", "of warps, or of parts of them that come apart"),
        FigureKind("share", "share", "waiting beyond the least, of the time of all warps"),
    ),
    (Threshold("share", 0.1, 0.3), Threshold("mean", 500, 2000)),
    run,
)
