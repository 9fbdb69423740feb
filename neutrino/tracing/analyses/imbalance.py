"""Imbalance: warps that execute more instructions than others of their block or launch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from neutrino.abi.levels import Per
from neutrino.tracing.analyses.evidence import Analysis, Evidence, shared, spread_of
from neutrino.tracing.analyses.finding import FigureKind, Finding, Threshold, brief, percent


def run(analysis: Analysis, evidence: Evidence) -> Iterator[Finding]:
    """Yield how unevenly the work of a launch is spread over its warps, and how long those of a block wait for its
    longest one."""
    entry = evidence.entry("WarpWork", ("instructions",))
    if entry is None or entry.per is not Per.WARP:
        return
    ratios, waited, worst, total = [], [], (0.0, 0, 0, 0), 0
    for view in evidence.views("WarpWork"):
        results, owners = view.valid(), view.places()
        work = results["instructions"].astype(np.float64)
        if not len(work) or not work.sum():
            continue
        order = np.argsort(owners["block"], kind="stable")
        starts = np.flatnonzero(np.r_[True, np.diff(owners["block"][order]) != 0])
        longest = np.maximum.reduceat(work[order], starts)
        warps = np.diff(np.r_[starts, len(work)])
        # A block's place is taken until its longest warp has ended.
        waited.append(1 - shared(float(work.sum()), float((longest * warps).sum())))
        ratios.append(float(work.max() / work.mean()))
        at = int(work.argmax())
        worst = max(worst, (float(work[at]), int(owners["block"][at]), int(owners["warp"][at]), len(ratios)))
        total += len(work)
    if not ratios:
        return
    ratio, share = float(np.median(ratios)), float(np.median(waited))
    values = {
        "greatest_over_mean": ratio, "waiting": share, "greatest": int(worst[0]), "warps": total // len(ratios)
    }  # fmt: skip
    certainty = evidence.certainty(
        ["WarpWork"], is_timed=False, spread=spread_of("greatest_over_mean", ratios), launches=len(ratios)
    )
    sentence = (
        f"the warp with most work executes {brief(ratio)} times the mean of its launch's (block {worst[1]:,}, warp "
        f"{worst[2]}: {worst[0]:,.0f} instructions), and warps have ended for {percent(share)} of their block's work"
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
