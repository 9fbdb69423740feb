"""The views of a page, in their order: a new one is a file in ``web/views`` and a row here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from neutrino.page.accesses import prepare_accesses
from neutrino.page.coverage import prepare_coverage
from neutrino.page.distributions import prepare_distributions
from neutrino.page.launch_times import prepare_launches
from neutrino.page.ranges import prepare_ranges
from neutrino.page.schedule import prepare_spans
from neutrino.page.source import Blocks, Json, Source
from neutrino.page.sources import prepare_sources


@dataclass(frozen=True)
class View:
    """A view. name: in the page's address. title: as readers see it. file: in ``web/views``; it exports ``draw``."""

    name: str
    title: str
    file: str


VIEWS = (
    View("overview", "Overview", "overview.js"),
    View("findings", "Findings", "findings.js"),
    View("kernels", "Kernels by time", "kernels.js"),
    View("launches", "Launch timeline", "launches.js"),
    View("schedule", "Block schedule", "schedule.js"),
    View("warps", "Warp timelines", "warps.js"),
    View("inside", "Inside warps", "inside.js"),
    View("maps", "Maps", "maps.js"),
    View("source", "Source", "source.js"),
    View("memory", "Memory accesses", "memory.js"),
    View("coverage", "Coverage", "coverage.js"),
    View("comparison", "Comparison", "comparison.js"),
)

DATA: dict[str, Callable[[Source, Blocks], Json]] = {
    "spans": prepare_spans,
    "launches": prepare_launches,
    "distributions": prepare_distributions,
    "coverage": prepare_coverage,
    "ranges": prepare_ranges,
    "sources": prepare_sources,
    "accesses": prepare_accesses,
}
"""What views draw beside the document of ``neutrino-report --json``: by name, how it is prepared."""
