"""Divergence: conditional branches at which the lanes of a warp part."""

from __future__ import annotations

from collections.abc import Iterator

from neutrino.tracing.analyses.evidence import Analysis, Evidence, spread_of
from neutrino.tracing.analyses.finding import FigureKind, Finding, Threshold
from neutrino.tracing.percent import percent


def run(analysis: Analysis, evidence: Evidence) -> Iterator[Finding]:
    """Yield at which share of conditional branches lanes that come there together part."""
    totals = evidence.totals("BranchDivergence", ("branches", "diverged"))
    if totals is None or not totals["branches"]:
        return
    share = totals["diverged"] / totals["branches"]
    values = {"share": share, "diverged": totals["diverged"], "branches": totals["branches"]}
    spread = spread_of(
        "share",
        evidence.per_launch(
            "BranchDivergence", lambda row: row["diverged"] / row["branches"] if row["branches"] else None
        ),
    )
    certainty = evidence.certainty(
        ["BranchDivergence"], is_timed=False, spread=spread,
        caveats=["branches are those of the PTX text: ptxas may have made a short one into predicated instructions"],
    )  # fmt: skip
    sentence = (
        f"lanes part at {percent(share)} of the conditional branches that they reach together: "
        f"{totals['diverged']:,} of {totals['branches']:,}"
    )
    remedies = (
        "order the data so that neighbouring threads go the same way, or branch by warp or block instead of by thread",
        "replace short branches by selection (max, min, a conditional expression)",
    )
    yield analysis.finding(evidence, sentence, values, certainty, remedies=remedies)


ANALYSIS = Analysis(
    "divergence",
    "Do lanes of a warp part at branches?",
    (("branch_divergence",),),
    (
        FigureKind("share", "share", "branches at which lanes part, of those that they reach"),
        FigureKind("diverged", "", "branches at which lanes part"),
        FigureKind("branches", "", "conditional branches that groups of lanes reach"),
    ),
    (Threshold("share", 0.1, 0.3),),
    run,
)
