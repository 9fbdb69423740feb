"""Imbalance: warps that execute more instructions than others of their block or launch, or of their role."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from neutrino.abi.levels import Per
from neutrino.tracing.analyses.block_times import by_block
from neutrino.tracing.analyses.evidence import Analysis, Array, Evidence, middle, shared, spread_of
from neutrino.tracing.analyses.finding import FigureKind, Finding, Threshold, brief
from neutrino.tracing.percent import percent


def run(analysis: Analysis, evidence: Evidence) -> Iterator[Finding]:
    """Yield how unevenly the work of a launch is spread over its warps, and how long those of a block wait for its
    longest one."""
    entry = evidence.entry("WarpWork", ("instructions",))
    if entry is None or entry.per is not Per.WARP:
        return
    ratios, waited, worst, total = [], [], (0.0, 0, 0), 0
    names = evidence.roles.names
    for view in evidence.views("WarpWork"):
        roles = _numbers(names, view.geometry.warps)
        count = int(roles.max()) + 1
        warps, done, most = np.zeros(count), np.zeros(count), [(0.0, 0, 0)] * count
        held = 0.0
        # Whole blocks, some at a time.
        for results, owners in view.owned():
            if not len(results):
                continue
            role = roles[owners["warp"]]
            order, starts = by_block(owners["block"].astype(np.int64) * count + role)
            work = results["instructions"][order].astype(np.float64)
            longest = np.maximum.reduceat(work, starts)
            # A block's place is taken until its longest warp has ended; those of another role have another job.
            held += float((longest * np.diff(np.r_[starts, len(work)])).sum())
            done += np.bincount(role[order], work, count)
            warps += np.bincount(role, minlength=count)
            for which in range(count):
                here = np.flatnonzero(role[order] == which)
                if len(here):
                    at = int(here[work[here].argmax()])
                    found = (float(work[at]), int(owners["block"][order[at]]), int(owners["warp"][order[at]]))
                    most[which] = max(most[which], found, key=lambda row: row[0])
        if not done.any():
            continue
        waited.append(1 - shared(float(done.sum()), held))
        by_role = [shared(most[which][0] * warps[which], done[which]) for which in range(count)]
        least_even = max(range(count), key=lambda which: (round(by_role[which], 9), most[which][0]))
        ratios.append(by_role[least_even])
        worst = max(worst, most[least_even], key=lambda row: row[0])
        total += int(warps.sum())
    if not ratios:
        return
    ratio, share = middle(ratios), middle(waited)
    values = {
        "greatest_over_mean": ratio, "waiting": share, "greatest": int(worst[0]), "warps": total // len(ratios)
    }  # fmt: skip
    certainty = evidence.certainty(
        ["WarpWork"], is_timed=False, spread=spread_of("greatest_over_mean", ratios), launches=len(ratios)
    )
    whose, of_block = ("role's", "a role in a block") if names else ("launch's", "a block")
    sentence = (
        f"the warp with most work executes {brief(ratio)} times the mean of its {whose} (block {worst[1]:,}, warp "
        f"{worst[2]}: {worst[0]:,.0f} instructions), and those of {of_block} have {percent(share)} less than its "
        "longest one, on average"
    )
    remedies = (
        "spread the work over warps by its amount and not by its index", "let warps take work from a common counter"
    )
    yield analysis.finding(evidence, sentence, values, certainty, remedies=remedies)


def _numbers(names: dict[int, str], warps: int) -> Array:
    """Return the number of the role of each warp of a block, ``[warp]``; zeros where not all have one."""
    if not all(warp in names for warp in range(warps)):
        return np.zeros(warps, np.int64)
    known = list(dict.fromkeys(names.values()))
    return np.array([known.index(names[warp]) for warp in range(warps)])


ANALYSIS = Analysis(
    "imbalance",
    "Do some warps do more than others?",
    (("work_per_warp",),),
    (
        FigureKind("greatest_over_mean", "", "instructions of the warp with most, by the mean of all, or of its role"),
        FigureKind("waiting", "share", "instructions that warps of a block do less than its longest, of all; by roles"),
        FigureKind("greatest", "", "instructions of the warp with most"),
        FigureKind("warps", "", "warps of a launch"),
    ),
    (Threshold("greatest_over_mean", 1.5, 3), Threshold("waiting", 0.2, 0.5)),
    run,
    is_cheap=False,
)
