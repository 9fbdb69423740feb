"""Bank conflicts: accesses to shared memory that take more wavefronts than they need."""

from __future__ import annotations

from collections.abc import Iterator

from neutrino.tracing.analyses.evidence import Analysis, Evidence, spread_of
from neutrino.tracing.analyses.finding import FigureKind, Finding, Threshold, brief
from neutrino.tracing.percent import percent

_KINDS = ("load", "store", "matrix")


def run(analysis: Analysis, evidence: Evidence) -> Iterator[Finding]:
    """Yield how many wavefronts accesses to shared memory take beyond those that they need."""
    totals = evidence.totals("SmemBankConflict", ("load_wavefronts", "load_least"))
    if totals is None:
        return
    wavefronts, least = (
        sum(totals.get(f"{kind}_{what}", 0) for kind in _KINDS) for what in ("wavefronts", "least")
    )
    if not least:
        return
    values = {
        "ways": wavefronts / least, "wasted": 1 - least / wavefronts, "wavefronts": wavefronts, "least": least
    }  # fmt: skip

    def ways(row: dict[str, float]) -> float | None:
        """Return the wavefronts of a launch by those that it needs."""
        taken, needed = (sum(row.get(f"{kind}_{what}", 0) for kind in _KINDS) for what in ("wavefronts", "least"))
        return taken / needed if needed else None

    spread = spread_of("ways", evidence.per_launch("SmemBankConflict", lambda row: ways(dict(row))))
    certainty = evidence.certainty(["SmemBankConflict"], is_timed=False, spread=spread)
    sentence = (
        f"accesses to shared memory take {brief(values['ways'])} times the wavefronts that they need, "
        f"{percent(values['wasted'])} of them by bank conflicts"
    )
    remedies = ("pad the rows of the array by one element, or swizzle its index, so that lanes use different banks",)
    yield analysis.finding(evidence, sentence, values, certainty, remedies=remedies)


ANALYSIS = Analysis(
    "bank_conflicts",
    "Do lanes meet at banks of shared memory?",
    (("smem_bank_conflict",),),
    (
        FigureKind("ways", "", "wavefronts, by those without conflicts"),
        FigureKind("wasted", "share", "wavefronts beyond those without conflicts, of all"),
        FigureKind("wavefronts", "", "that accesses take"),
        FigureKind("least", "", "wavefronts without conflicts"),
    ),
    (Threshold("ways", 1.5, 4),),
    run,
)
