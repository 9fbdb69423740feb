"""What a report says that a trace alone does not: of the probes' text, and of the device's registers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from neutrino.tracing.shown.report import Sources

if TYPE_CHECKING:
    from neutrino.cli.nothing_saved import NothingSaved
    from neutrino.tracing.summary import KernelSummary
    from neutrino.tracing.trace import Trace, TraceKernel


def _maps_of_first(trace: Trace) -> frozenset[str]:
    """Return the maps (what probes save to) whose records of a warp or block are those of its first thread."""
    from neutrino.cli.report_first import maps_of_first_lanes

    return maps_of_first_lanes(trace.path)


def _why_nothing(kernel: TraceKernel, name: str) -> str:
    """Return why a map (what probes save to) of a kernel is empty; "" if that is not known."""
    return _explainer(kernel.trace).in_kernel(kernel, name)


@lru_cache(1)
def _explainer(trace: Trace) -> NothingSaved:
    """Return what explains empty maps of a trace; it reads the probes once."""
    from neutrino.cli.nothing_saved import NothingSaved as Explainer

    return Explainer(trace)


def _occupancy(summary: KernelSummary) -> Sequence[str]:
    """Return the lines on blocks of a kernel's twin (copy with probes) that fit on a multiprocessor at a time."""
    from neutrino.cli.occupancy import occupancy_lines

    return tuple(occupancy_lines(summary))


SOURCES = Sources(_maps_of_first, _why_nothing, _occupancy)
"""All that is known."""
