"""What a report says that a trace alone does not: of the probes' text, and of the device's registers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from neutrino.errors import NeutrinoError
from neutrino.tracing.probe_sets import probe_files
from neutrino.tracing.shown.report import Sources

if TYPE_CHECKING:
    from pathlib import Path

    from neutrino.cli.nothing_saved import NothingSaved
    from neutrino.tracing.saved_values import Field, Meaning
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


def meanings_in(trace: Trace) -> Mapping[Field, Meaning]:
    """Return what the fields of a trace's maps (what probes save to) hold: addresses, clocks. Fields of whose probes
    nothing can be read are not among them.
    """
    return _meanings(trace.path)


@lru_cache
def _meanings(path: Path) -> Mapping[Field, Meaning]:
    """Read the probes of a trace."""
    files = probe_files(path)
    if not files:
        return {}
    # Here, since many reports need not wait for what reads probes.
    from neutrino.tracing.saved_values import meanings_of
    from neutrino.verification import load_probes

    found: dict[Field, Meaning] = {}
    others: set[Field] = set()
    for file in files:
        try:
            probes = load_probes([str(file)])
            known = meanings_of(probes)
        except (NeutrinoError, OSError, TypeError):
            continue
        # Several sets may have maps of one name.
        for field in ((entry.name, field.name) for entry in probes.maps for field in entry.fields):
            if field in known and found.get(field, known[field]) is known[field] and field not in others:
                found[field] = known[field]
            else:
                others.add(field)
                found.pop(field, None)
    return found


def _occupancy(summary: KernelSummary) -> Sequence[str]:
    """Return the lines on blocks of a kernel's twin (copy with probes) that fit on a multiprocessor at a time."""
    from neutrino.cli.occupancy import occupancy_lines

    return tuple(occupancy_lines(summary))


SOURCES = Sources(_maps_of_first, _why_nothing, _occupancy, meanings_in)
"""All that is known."""
