"""Patterns of accesses: how the lanes of a warp lie in memory, how much memory they touch, and how much comes again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from neutrino.errors import NeutrinoError
from neutrino.tracing.accesses import LINE, AccessFacts, Pattern, SiteAccesses, has_accesses
from neutrino.tracing.analyses.devices import device_figures
from neutrino.tracing.analyses.evidence import Analysis, Evidence, shared
from neutrino.tracing.analyses.finding import FigureKind, Finding, Place, State, Threshold, brief
from neutrino.tracing.percent import percent
from neutrino.tracing.site_tables import place_of, sites_by_number

_MOST_PLACES = 5
_CACHE = 1 << 20
"""Bytes: a cache of this size is less than the L2 of any device in ``devices.py``."""
_REMEDIES = {
    Pattern.STRIDE: "let neighbouring lanes access neighbouring addresses: swap loops or indices, or keep each field "
    "in an array of its own",
    Pattern.GATHER: "sort the indices, or let the lanes of a warp take one row together",
    Pattern.RANDOM: "sort the work by address, or keep what is accessed at random in shared memory if it fits",
    Pattern.SINGLE: "take several of these accesses together as a wide one, or reduce over the block first",
}


def run(analysis: Analysis, evidence: Evidence) -> Iterator[Finding]:
    """Yield how the accesses of a kernel's first recorded launch lie in memory."""
    kernel = evidence.summary.kernel
    if not len(evidence.numbers):
        return
    first = int(evidence.numbers[0])
    launch = next(kernel.launches(range(first, first + 1)), None)
    name = next((name for name, view in (launch.maps if launch else {}).items() if has_accesses(view.map)), "")
    if launch is None or not name:
        return
    device = device_figures(evidence.device)
    try:
        facts = kernel.accesses(launch, name, together=device.multiprocessors if device else 0)
    except NeutrinoError:
        # Without its library or memory for it: the report itself says what is missing.
        return
    if facts.accesses:
        yield _finding(analysis, evidence, name, facts)


def _finding(analysis: Analysis, evidence: Evidence, name: str, facts: AccessFacts) -> Finding:
    """Return what is found in a launch with accesses. name: of the map."""
    patterns = Counter[Pattern]()
    for site in facts.sites:
        for pattern, executions in site.patterns.items():
            patterns[pattern] += executions
    executions = patterns.total()
    sectors, least = sum(site.sectors for site in facts.sites), sum(map(_least, facts.sites))
    values: dict[str, int | float | str] = {
        "accesses": facts.accesses, "bytes": facts.bytes, "footprint": int(facts.footprint[-1]),
        "wasted": max(0.0, 1 - shared(least, sectors)) if sectors else 0.0,
        **{pattern.name.lower(): shared(patterns[pattern], executions) for pattern in Pattern},
        "hit_rate": facts.hit_rate(_CACHE) or 0.0,
    }  # fmt: skip
    state = analysis.state({"wasted": float(values["wasted"])})
    said = ", ".join(f"{percent(count / executions)} {pattern.value}" for pattern, count in patterns.most_common())
    sentence = (
        f"{facts.accesses:,} accesses of a launch touch {_size(int(facts.footprint[-1]))}; by executions of warps they "
        f"are {said}; "
    )
    wasted = float(values["wasted"])
    sentence += (
        f"{percent(wasted)} of the sectors of 32 bytes are more than their bytes need"
        if wasted else "they touch no more sectors of 32 bytes than their bytes need"
    )  # fmt: skip
    listed = sites_by_number(evidence.summary.kernel.manifest.sites if evidence.summary.kernel.manifest else ())
    worst = sorted(facts.sites, key=lambda site: (_least(site) - site.sectors, -site.accesses, site.site))
    places = tuple(
        Place(*place_of(listed.get(site.site, {})), _note(site)) for site in worst[:_MOST_PLACES]
    )
    if state is not State.OK and places:
        sentence += f"; most at {places[0].place or 'an unknown place'}, which is {worst[0].pattern.value}"
    caveats = []
    if facts.starts_apart is not None:
        caveats.append(
            f"clocks of multiprocessors may differ by {facts.starts_apart:,} {evidence.unit}: so far apart are the "
            "first accesses of blocks that begin together"
        )
    elif evidence.has_time:
        caveats.append("clocks of different multiprocessors have no common order; how much they differ is not known")
    if facts.reuse_sample < 1:
        caveats.append(f"reuse is estimated from {percent(facts.reuse_sample)} of the lines")
    certainty = evidence.certainty([name], is_timed=False, launches=1, caveats=caveats)
    remedy = _REMEDIES.get(worst[0].pattern, _REMEDIES[Pattern.STRIDE])
    return analysis.finding(evidence, sentence, values, certainty, places=places, remedies=(remedy,), state=state)


def _least(site: SiteAccesses) -> int:
    """Return how many sectors an instruction's executions touch at least: one each, and room for their bytes, of which
    lanes at one address share theirs."""
    if set(site.patterns) <= {Pattern.BROADCAST, Pattern.SINGLE}:
        return site.sectors
    return min(max(site.executions, site.sectors_least), site.sectors)


def _note(site: SiteAccesses) -> str:
    """Return what an instruction's accesses are like, in words."""
    stride = f" of {site.stride:,} bytes" if site.pattern is Pattern.STRIDE and site.stride is not None else ""
    each = "1 sector" if site.sectors == site.executions else f"{brief(site.sectors / site.executions)} sectors"
    return f"{site.kind}, {site.pattern.value}{stride}: {each} for each of {site.executions:,} executions"


def _size(size: int) -> str:
    """Return a size in bytes with the unit that people use."""
    units = ("bytes", "KiB", "MiB", "GiB")
    power = min(max(size.bit_length() - 1, 0) // 10, len(units) - 1)
    return f"{brief(size / (1 << 10 * power))} {units[power]}"


ANALYSIS = Analysis(
    "access_patterns",
    "How do accesses lie in memory?",
    (("dmat",),),
    (
        FigureKind("accesses", "", "of lanes to global memory, in one launch"),
        FigureKind("bytes", "bytes", "that they ask for"),
        FigureKind("footprint", "bytes", f"in lines of {LINE} bytes that are touched"),
        FigureKind("wasted", "share", "sectors beyond those that the bytes need, of all"),
        FigureKind("broadcast", "share", "executions whose lanes have one address"),
        FigureKind("linear", "share", "executions whose lanes follow each other"),
        FigureKind("stride", "share", "executions whose lanes are equally far apart, but do not follow each other"),
        FigureKind("gather", "share", "executions whose lanes are irregular, but near to each other"),
        FigureKind("random", "share", "executions whose lanes are as far apart as by chance"),
        FigureKind("single", "share", "executions by one lane"),
        FigureKind("hit_rate", "share", "accesses to lines that a cache of 1 MiB with LRU would hit"),
    ),
    (Threshold("wasted", 0.2, 0.5),),
    run,
    is_cheap=False,
)
