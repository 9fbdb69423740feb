"""Hot addresses: lines of memory that are accessed far more than others, and atomics that meet at one address."""

from __future__ import annotations

import re
from collections.abc import Iterator

from neutrino.tracing.analyses.evidence import Analysis, Evidence, spread_of
from neutrino.tracing.analyses.finding import FigureKind, Finding, Place, State, Threshold, brief
from neutrino.tracing.percent import percent

_MOST_PLACES = 5
_ATOMIC = re.compile(r"\s*(\{\s*)?(@!?%?[\w$]+\s+)?((atom|red)\.|(global|flat|buffer)_atomic)")
"""How atomics begin, in PTX and in AMD's machine code."""


def run(analysis: Analysis, evidence: Evidence) -> Iterator[Finding]:
    """Yield how much more often the hottest line is accessed, and how many lanes of a warp meet at an address."""
    lines = evidence.keys("HotLines", ())
    atomics = evidence.totals("Atomics", ("lanes", "addresses"))
    values: dict[str, int | float | str] = {}
    sentences = []
    maps = []
    has_atomics = True
    if lines:
        counts = sorted((line.count for line in lines), reverse=True)
        # Of the lines that the probe keeps, those with most accesses.
        median = counts[(len(counts) - 1) // 2]
        # Of estimates: by how much the counts of the hottest line and of the middle one may be wrong.
        errors = {line.count: float(line.kept.get("error", 0)) for line in lines}
        is_estimated = any(errors.values())
        has_atomics = _has_atomics(evidence)
        maps.append("HotLines")
    if lines and errors[counts[0]] >= counts[0]:
        values["lines"] = len(counts)
        sentences.append(
            f"no line is known to be hot: that with most accesses has {counts[0]:,} ± {errors[counts[0]]:,.0f}, "
            "estimated from too few that were counted"
        )
    elif lines:
        ratio = max(counts[0] - errors[counts[0]], 0) / (median + errors[median])
        values |= {
            "top_share": counts[0] / sum(counts), "top_over_median": ratio, "top": counts[0], "lines": len(counts),
        }  # fmt: skip
        hottest = max(lines, key=lambda line: line.count).key
        address = f"{hottest:#x}" if isinstance(hottest, int) else str(hottest)
        count = f"{counts[0]:,} ± {errors[counts[0]]:,.0f}" if is_estimated else f"{counts[0]:,}"
        sentences.append(
            f"the hottest line, {address}, has {count} accesses, {'at least ' * is_estimated}{brief(ratio)} times "
            f"the median of the {len(counts)} hottest and {percent(counts[0] / sum(counts))} of theirs"
        )
        if not has_atomics:
            sentences.append("the kernel has no atomics, and caches serve the rest")
    keys = sorted(evidence.keys("PerAtomic", ("sum",)), key=lambda key: (-float(key.kept["sum"]), key.key))
    spread = None
    if atomics is not None and atomics["addresses"]:
        values["lanes_per_address"] = atomics["lanes"] / atomics["addresses"]
        meeting = brief(atomics["lanes"] / atomics["addresses"])
        sentences.append(f"{meeting} lanes of a warp meet at an address of atomics")
        maps.append("Atomics")
        spread = spread_of(
            "lanes_per_address",
            evidence.per_launch("Atomics", lambda row: row["lanes"] / row["addresses"] if row["addresses"] else None),
        )
    if not sentences:
        return
    places = tuple(
        Place(key.place, key.instruction, f"{brief(float(key.kept['sum']) / key.count)} lanes for each address")
        for key in keys[:_MOST_PLACES]
        if key.count
    )
    # Loads of a hot line come from caches, and stores to it meet there: only atomics wait for each other.
    judged = {name for name in values if name != "top_over_median" or has_atomics}
    state = analysis.state({name: float(values[name]) for name in judged if not isinstance(values[name], str)})
    if state is not State.OK and places:
        sentences.append(f"most atomics are at {places[0].place or 'an unknown place'}")
    remedies = (
        "combine in the warp or block first (redux, shuffles, shared memory), and have one atomic for all",
        "keep several copies of the counter or accumulator, in lines of their own, and add them up at the end",
    )  # fmt: skip
    certainty = evidence.certainty(maps, is_timed=False, spread=spread)
    yield analysis.finding(
        evidence, "; ".join(sentences), values, certainty, state=state, places=places, remedies=remedies
    )


def _has_atomics(evidence: Evidence) -> bool:
    """Whether the kernel has atomics where the probes looked; also where the manifest does not tell."""
    manifest = evidence.summary.kernel.manifest
    texts = [str(site.get("instruction", "")) for site in (manifest.sites if manifest else ())]
    return not texts or any(map(_ATOMIC.match, texts))


ANALYSIS = Analysis(
    "hot_addresses",
    "Are some addresses accessed far more than others?",
    (("hot_lines", "atomic_contention"), ("hot_lines",), ("atomic_contention",)),
    (
        FigureKind("top_over_median", "", "accesses to the hottest line, by the median of the hottest ones"),
        FigureKind("top_share", "share", "accesses to the hottest line, of those to the hottest ones"),
        FigureKind("top", "", "accesses to the hottest line"),
        FigureKind("lines", "", "the hottest ones, of which the probe keeps the counts"),
        FigureKind("lanes_per_address", "", "lanes of a warp at the same address of an atomic"),
    ),
    (Threshold("top_over_median", 8, float("inf")), Threshold("lanes_per_address", 4, 16)),
    run,
)
