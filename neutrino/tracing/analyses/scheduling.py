"""Scheduling against working time: for how long places for blocks are empty between two blocks."""

from __future__ import annotations

from collections.abc import Iterator

from neutrino.tracing.analyses.block_times import block_times, gaps, places, sources
from neutrino.tracing.analyses.evidence import Analysis, Evidence, shared, spread_of
from neutrino.tracing.analyses.finding import FigureKind, Finding, Threshold, brief
from neutrino.tracing.percent import percent


def run(analysis: Analysis, evidence: Evidence) -> Iterator[Finding]:
    """Yield how much of the time of places for blocks passes between the end of a block and the begin of the next."""
    name = sources(evidence)
    shares, empty, working, slots, blocks, read = [], 0, 0, 0, 0, 0
    unit = "ns" if name == "WarpTimes" and evidence.has_time else evidence.unit
    for launch in block_times(evidence, name) if name else ():
        lost = 0
        for begins, ends in launch.by_multiprocessor():
            lost += gaps(begins, ends)
            slots += places(begins, ends)
        busy = int((launch.end - launch.begin).sum())
        shares.append(shared(lost, lost + busy))
        empty, working, blocks, read = empty + lost, working + busy, blocks + len(launch.sm), read + 1
    if not read:
        return
    share = shared(empty, empty + working)
    values = {
        "share": share, "scheduling": round(empty / slots), "working": round(working / slots),
        "blocks_per_place": blocks / slots,
    }  # fmt: skip
    certainty = evidence.certainty([name], is_timed=True, spread=spread_of("share", shares), launches=read)
    sentence = (
        f"places for blocks on a multiprocessor are empty for {percent(share)} of their time, between the end of a "
        f"block and the begin of the next: {brief(values['scheduling'])} of "
        f"{brief(values['scheduling'] + values['working'])} {unit} each, which run "
        + ("one block" if slots == blocks else f"{brief(values['blocks_per_place'])} blocks one after the other")
    )
    remedies = (
        "launch only as many blocks as fit at once, and let each go on with the next part of the work (a persistent "
        "kernel)",
        "give each block more work",
    )
    yield analysis.finding(evidence, sentence, values, certainty, remedies=remedies)


ANALYSIS = Analysis(
    "scheduling",
    "How much time passes between a block's end and the begin of the next one in its place?",
    (("block_sched",), ("warp_timeline",)),
    (
        FigureKind("share", "share", "time between blocks, of all time of the places for blocks"),
        FigureKind("scheduling", "", "time between blocks for each place, in the clock's units"),
        FigureKind("working", "", "time of blocks for each place, in the clock's units"),
        FigureKind("blocks_per_place", "", "blocks that a place runs one after the other"),
    ),
    (Threshold("share", 0.05, 0.15),),
    run,
    is_cheap=False,
)
