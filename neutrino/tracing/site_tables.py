"""Tables by site: what their columns are called, where their sites are, and their rows added up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.maps.declaration import Map, Report

Array = npt.NDArray[Any]
KEY = "key"
"""What maps with keys call them, unless all are sites or constants."""
KEPT = ("sum", "min", "max")
"""Columns of what is kept of the values."""
_TAKEN = frozenset({KEY, "count", "sum", "min", "max", "mean", "missed", "error", "sites", "place", "instruction"})
"""Names of other columns of tables."""


def is_by_site(entry: Map) -> bool:
    """Return whether the keys of a map (what probes save to) are numbers of sites: those of a map whose saves all have
    SITE as the key, and any integers in a field called ``site``.
    """
    if entry.kind.report is not Report.KEYS:
        return False
    first = entry.fields[0]
    return entry.kind.knows_sites or (first.name == "site" and first.type.value[0] != "f")


def key_name(entry: Map) -> str:
    """Return the title of the column of the keys of a map (what probes save to): of sites (matched instructions) and
    constants the name of the probe's field.
    """
    name = entry.fields[0].name
    return name if (is_by_site(entry) or entry.kind.knows_keys) and name not in _TAKEN else KEY


def site_column(entry: Map) -> str:
    """Return the column of a map's records that says by number at which site (matched instruction) they were saved; ""
    for none.
    """
    if entry.kind.report is Report.KEYS:
        return key_name(entry) if is_by_site(entry) else ""
    found = [field for field in entry.fields if field.name == "site" and field.type.value[0] != "f"]
    return "site" if found and entry.kind.report is Report.RECORDS else ""


def sites_by_number(sites: Sequence[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return the sites (instructions that probes match) of a manifest, by their numbers."""
    # Several probes at one instruction have entries with one number; the first of them is used.
    # Entries of kernel entries and ends have no number.
    return {site["site"]: site for site in reversed(sites) if isinstance(site.get("site"), int)}


def place_of(site: dict[str, Any]) -> tuple[str, str]:
    """Return the place and the instruction of a manifest's site, "" where it has none."""
    place = str(site.get("source") or (f"PTX line {site['line']}" if "line" in site else ""))
    return place, str(site.get("instruction", ""))


def combined(parts: Sequence[Array]) -> Array:
    """Merge the rows of several launches to one row for each key, ascending: counts and sums are added, extremes
    compared."""
    rows = np.concatenate(parts)
    keys, group = np.unique(rows["key"], return_inverse=True)
    combined = np.zeros(len(keys), rows.dtype)
    combined["key"] = keys
    for name in rows.dtype.names or ():
        if name in ("key", "missed"):
            continue
        is_float = rows[name].dtype.kind == "f"
        if name == "min":
            combined[name] = np.nan if is_float else (1 << 64) - 1
        elif name == "max" and is_float:
            combined[name] = np.nan
        # NaNs are not the least or the greatest, but the sum.
        extremes = {"min": np.fmin, "max": np.fmax} if is_float else {"min": np.minimum, "max": np.maximum}
        if name == "error":
            # Of launches that do not depend on each other.
            squares = np.bincount(group, rows[name].astype(float) ** 2, len(keys))
            combined[name] = np.ceil(np.sqrt(squares))
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            extremes.get(name, np.add).at(combined[name], group, rows[name])
    return combined
