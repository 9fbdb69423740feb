"""Where in memory a launch's accesses were, and when: for the view of memory, from logs with each access."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.errors import NeutrinoError
from neutrino.page.columns import Columns
from neutrino.page.source import Blocks, Json, Source, multiprocessors_of
from neutrino.tracing.accesses import KINDS, AccessFacts, has_accesses
from neutrino.tracing.site_tables import place_of, sites_by_number
from neutrino.tracing.summary import KernelSummary
from neutrino.tracing.trace import Clock

Array = npt.NDArray[Any]
_MOST_LAUNCHES = 3
"""Of a kernel that are drawn: the first ones with data, the middle one and the last."""
_MOST = 12
"""Launches that a page has, of all kernels."""
_MOST_REGIONS = 512


def prepare_accesses(source: Source, blocks: Blocks) -> Json:
    """Write the pictures of launches' accesses into a page; return what says where they are, with tables.

    Launches that cannot be read, as without memory for it, have a reason in their place.
    """
    documents: list[Json] = []
    room = _MOST
    for kernel in source.summary.kernels:
        manifest = kernel.kernel.manifest
        shown = {entry.name for entry in kernel.maps if entry.records}
        for entry in manifest.probed_maps if manifest else ():
            if has_accesses(entry) and entry.name in shown and room:
                drawn = list(_drawn(source, kernel, entry.name, min(room, _MOST_LAUNCHES), blocks))
                room -= len(drawn)
                documents.append({"kernel": kernel.kernel.id, "map": entry.name, "launches": drawn})
    return {"kinds": list(KINDS), "kernels": documents}


def _drawn(source: Source, kernel: KernelSummary, name: str, most: int, blocks: Blocks) -> list[Json]:
    """Write the accesses of some launches of a kernel; return what says where they are."""
    numbers = kernel.kernel.written_numbers(source.launches)
    chosen = sorted({int(numbers[at]) for at in (0, len(numbers) // 2, -1)[:most]}) if len(numbers) else []
    is_steps = source.summary.trace.clock is Clock.STEPS
    found = []
    for number in chosen:
        for launch in kernel.kernel.launches(range(number, number + 1)):
            try:
                facts = kernel.kernel.accesses(launch, name, multiprocessors_of(source, number))
            except NeutrinoError as error:
                found.append({"launch": number, "fault": str(error)})
                continue
            if facts.accesses:
                found.append({"launch": number} | _document(kernel, facts, blocks, is_steps=is_steps))
    return found


def _document(kernel: KernelSummary, facts: AccessFacts, blocks: Blocks, *, is_steps: bool) -> Json:
    """Write a launch's pictures; return what says where they are, and its tables.

    is_steps: whether times are steps of an interpreter, which all multiprocessors share. ``far_apart``: whether clocks
    differ by so much that a picture over time shows little else, so that it begins with the warps of the grid.
    """
    used = [number for number in range(len(KINDS)) if facts.grid[number].any()]
    columns = Columns()
    columns.add("pages", facts.pages - facts.pages[0] if len(facts.pages) else facts.pages)
    for number in used:
        columns.add(f"kind_{number}", facts.grid[number].reshape(-1))
    columns.add("warps", facts.warp_grid.reshape(-1))
    manifest = kernel.kernel.manifest
    sites = sites_by_number(manifest.sites if manifest else ())
    regions = sorted(facts.regions, key=lambda region: -region.accesses)[:_MOST_REGIONS]
    return {
        "block": blocks.add(columns),
        "kinds": used,
        "times": facts.grid.shape[1],
        "columns": facts.grid.shape[2],
        "warp_rows": len(facts.warp_grid),
        "first_page": str(int(facts.pages[0])) if len(facts.pages) else "0",
        "page_bytes": facts.page_bytes,
        "accesses": facts.accesses,
        "bytes": facts.bytes,
        "strange": facts.strange,
        "empty": facts.empty,
        "time": facts.last_clock - facts.first_clock,
        "line": facts.line,
        "working_set": facts.working_set.tolist(),
        "footprint": facts.footprint.tolist(),
        "reuse": [int(count) for count in np.trim_zeros(facts.reuse, "b")],
        "reuse_first": facts.reuse_first,
        "reuse_sample": facts.reuse_sample,
        "starts_apart": facts.starts_apart,
        "far_apart": not is_steps and facts.starts_apart is not None
        and facts.starts_apart > (facts.last_clock - facts.first_clock) / 2,
        "regions": [
            {"begin": f"{region.begin:#x}", "bytes": region.end - region.begin, "accesses": region.accesses,
             "columns": list(region.columns)}
            for region in sorted(regions, key=lambda region: region.begin)
        ],
        "regions_left_out": max(len(facts.regions) - _MOST_REGIONS, 0),
        "sites": [
            {
                "site": site.site, "kind": site.kind, "accesses": site.accesses, "bytes": site.bytes,
                "executions": site.executions, "pattern": site.pattern.value, "stride": site.stride,
                "patterns": {pattern.value: count for pattern, count in site.patterns.items()},
                "sectors": site.sectors, "lines": site.lines, "sectors_least": min(site.sectors_least, site.sectors),
                "place": place_of(sites.get(site.site, {}))[0],
                "instruction": place_of(sites.get(site.site, {}))[1],
            }
            for site in facts.sites
        ],
    }  # fmt: skip
