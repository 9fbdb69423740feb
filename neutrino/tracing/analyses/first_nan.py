"""The first NaN: which instruction it came from."""

from __future__ import annotations

from collections.abc import Iterator

from neutrino.tracing.analyses.evidence import Analysis, Evidence
from neutrino.tracing.analyses.finding import FigureKind, Finding, Place, Threshold

_MOST_PLACES = 5


def run(analysis: Analysis, evidence: Evidence) -> Iterator[Finding]:
    """Yield how many threads got a NaN, and where the first one came from."""
    watched = [entry for entry in evidence.summary.maps if entry.name == "FirstNaN"]
    if not watched or not watched[0].records:
        return
    # By time: the least is the first.
    keys = sorted(evidence.keys("FirstNaN", ("min",)), key=lambda key: (float(key.kept["min"]), -key.count))
    count = sum(key.count for key in keys)
    certainty = evidence.certainty(
        ["FirstNaN"], is_timed=False,
        caveats=[
            "a NaN that comes from memory shows where it is first computed with; tensor instructions, moves, minima "
            "and maxima are not watched"
        ],
    )  # fmt: skip
    values = {"nan_count": count, "instructions": len(keys)}
    if not keys:
        yield analysis.finding(evidence, "no thread computes a NaN", values, certainty)
        return
    places = tuple(Place(key.place, key.instruction, f"{key.count:,} threads") for key in keys[:_MOST_PLACES])
    threads = "thread computes its" if count == 1 else "threads compute their"
    sentence = (
        f"{count:,} {threads} first NaN, the earliest at {places[0].place or 'an unknown place'}: "
        f"{places[0].instruction or 'an instruction that the manifest has not'}"
    )
    remedies = (
        "look at what this instruction takes: a root or logarithm of a negative number, 0 / 0, infinity less infinity, "
        "or a NaN from memory",
        "-p value_watch counts infinities and the range of values as well",
    )
    yield analysis.finding(evidence, sentence, values, certainty, places=places, remedies=remedies)


ANALYSIS = Analysis(
    "first_nan",
    "Where does the first NaN come from?",
    (("nan_finder",),),
    (
        FigureKind("nan_count", "", "threads that compute a NaN"),
        FigureKind("instructions", "", "from which threads get their first one"),
    ),
    (Threshold("nan_count", 1, 1),),
    run,
)
