"""Imbalance: warps that execute more instructions than others of their block or launch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from neutrino.abi.levels import Per
from neutrino.tracing.analyses.block_times import by_block
from neutrino.tracing.analyses.evidence import Analysis, Evidence, middle, shared, spread_of
from neutrino.tracing.analyses.finding import FigureKind, Finding, Threshold, brief, percent


def run(analysis: Analysis, evidence: Evidence) -> Iterator[Finding]:
    """Yield how unevenly the work of a launch is spread over its warps, and how long those of a block wait for its
    longest one."""
    entry = evidence.entry("WarpWork", ("instructions",))
    if entry is None or entry.per is not Per.WARP:
        return
    ratios, waited, worst, total = [], [], (0.0, 0, 0), 0
    for view in evidence.views("WarpWork"):
        warps, done, held, most = 0, 0.0, 0.0, (0.0, 0, 0)
        # Whole blocks, some at a time.
        for results, owners in view.owned():
            if not len(results):
                continue
            order, starts = by_block(owners["block"])
            work = results["instructions"][order].astype(np.float64)
            longest = np.maximum.reduceat(work, starts)
            # A block's place is taken until its longest warp has ended.
            held += float((longest * np.diff(np.r_[starts, len(work)])).sum())
            done, warps = done + float(work.sum()), warps + len(work)
            at = int(work.argmax())
            found = (float(work[at]), int(owners["block"][order[at]]), int(owners["warp"][order[at]]))
            most = max(most, found, key=lambda row: row[0])
        if not done:
            continue
        waited.append(1 - shared(done, held))
        ratios.append(most[0] * warps / done)
        worst = max(worst, most, key=lambda row: row[0])
        total += warps
    if not ratios:
        return
    ratio, share = middle(ratios), middle(waited)
    values = {
        "greatest_over_mean": ratio, "waiting": share, "greatest": int(worst[0]), "warps": total // len(ratios)
    }  # fmt: skip
    certainty = evidence.certainty(
        ["WarpWork"], is_timed=False, spread=spread_of("greatest_over_mean", ratios), launches=len(ratios)
    )
    sentence = (
        f"the warp with most work executes {brief(ratio)} times the mean of its launch's (block {worst[1]:,}, warp "
        f"{worst[2]}: {worst[0]:,.0f} instructions), and those of a block have {percent(share)} less than its longest "
        "one, on average"
    )
    remedies = (
        "spread the work over warps by its amount and not by its index", "let warps take work from a common counter"
    )
    yield analysis.finding(evidence, sentence, values, certainty, remedies=remedies)


ANALYSIS = Analysis(
    "imbalance",
    "Do some warps do more than others?",
    (("work_per_warp",),),
    (
        FigureKind("greatest_over_mean", "", "instructions of the warp with most, by the mean of all"),
        FigureKind("waiting", "share", "instructions that warps of a block do less than its longest, of all"),
        FigureKind("greatest", "", "instructions of the warp with most"),
        FigureKind("warps", "", "warps of a launch"),
    ),
    (Threshold("greatest_over_mean", 1.5, 3), Threshold("waiting", 0.2, 0.5)),
    run,
    is_cheap=False,
)
