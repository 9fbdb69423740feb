"""Uncoalesced accesses: instructions whose lanes touch more pieces of memory than their bytes need."""

from __future__ import annotations

import re
from collections.abc import Iterator

from neutrino.tracing.analyses.evidence import Analysis, Evidence, shared, spread_of
from neutrino.tracing.analyses.finding import FigureKind, Finding, Place, State, Threshold, brief
from neutrino.tracing.percent import percent
from neutrino.tracing.summary import KeySummary

_SECTOR = 32
"""Bytes of the pieces in which memory is moved."""
_MOST_PLACES = 5
_WIDTH = re.compile(r"\.(?:v(?P<many>[248]))?\.?(?:[busf]|b)(?P<bits>8|16|32|64|128)\b")
_MAPS = ("LoadRequests", "StoreRequests")
_FIELDS = ("requests", "lanes", "sectors", "distinct")


def run(analysis: Analysis, evidence: Evidence) -> Iterator[Finding]:
    """Yield how many sectors loads and stores touch beside those that their bytes need, and at which instructions."""
    found = [totals for name in _MAPS if (totals := evidence.totals(name, _FIELDS)) is not None]
    requests, sectors, distinct, lanes = (
        sum(totals[name] for totals in found) for name in ("requests", "sectors", "distinct", "lanes")
    )
    if not requests or not sectors:
        return
    needed = sum(_needed(totals) for totals in found)
    # Requests of the same bytes by more lanes than there are sectors need one each.
    wasted = max(0.0, 1 - needed / sectors)
    per_request = lanes / requests
    keys = sorted(
        evidence.keys("PerAccess", ("sum",)), key=lambda key: (-_excess(key, per_request), -key.count, key.key)
    )
    worst = keys[0] if keys else None
    values: dict[str, int | float | str] = {
        "sectors_per_request": sectors / requests, "wasted": wasted, "requests": requests, "sectors": sectors,
        "efficiency": shared(distinct, sectors * _SECTOR),
    }  # fmt: skip
    if worst is not None:
        values["worst_sectors_per_request"] = float(worst.kept["sum"]) / worst.count
    spread = spread_of(
        "sectors_per_request",
        evidence.per_launch("LoadRequests", lambda row: row["sectors"] / row["requests"] if row["requests"] else None),
    )
    certainty = evidence.certainty([*_MAPS, "PerAccess"], is_timed=False, spread=spread)
    sentence = (
        f"loads and stores of a warp touch {brief(sectors / requests)} sectors of 32 bytes on average, "
        f"{percent(wasted)} of them beyond what their bytes need"
    )
    places = tuple(
        Place(
            key.place,
            key.instruction,
            f"{brief(float(key.kept['sum']) / key.count)} sectors for each of {key.count:,} requests",
        )
        for key in keys[:_MOST_PLACES]
        if _excess(key, per_request) > 0
    )
    state = analysis.state({"wasted": wasted})
    if state is not State.OK and places:
        sentence += f"; most at {places[0].place or 'an unknown place'}"
    remedies = (
        "let neighbouring threads access neighbouring addresses: swap loops or indices, or lay the data out as a "
        "structure of arrays",
        "load tiles with neighbouring threads into shared memory, and go through them there",
    )  # fmt: skip
    yield analysis.finding(evidence, sentence, values, certainty, places=places, remedies=remedies)


def _needed(totals: dict[str, int]) -> float:
    """Return how many sectors requests need at least: one each, and room for the different bytes that they ask for."""
    return max(float(totals["requests"]), totals["distinct"] / _SECTOR)


def _excess(key: KeySummary, lanes: float) -> float:
    """Return how many sectors an instruction touches beside those that its bytes need. lanes: of a request."""
    match = _WIDTH.search(key.instruction)
    size = int(match["bits"]) // 8 * int(match["many"] or 1) if match else 4
    return float(key.kept["sum"]) - key.count * max(1.0, lanes * size / _SECTOR)


ANALYSIS = Analysis(
    "uncoalesced",
    "Do the lanes of a warp access memory together?",
    (("coalescing",),),
    (
        FigureKind("sectors_per_request", "", "sectors of 32 bytes that an instruction of a warp touches"),
        FigureKind("wasted", "share", "sectors beyond those that the bytes need, of all"),
        FigureKind("efficiency", "share", "different bytes that are asked for, of those in the sectors"),
        FigureKind("requests", "", "loads and stores as warps execute them"),
        FigureKind("sectors", "", "that they touch"),
        FigureKind("worst_sectors_per_request", "", "of the instruction with most beyond what its bytes need"),
    ),
    (Threshold("wasted", 0.2, 0.5),),
    run,
)
