"""Which records of a trace stand for the first thread of a warp or block."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from neutrino.errors import NeutrinoError
from neutrino.tracing.probe_sets import probe_files


@lru_cache
def maps_of_first_lanes(path: Path) -> frozenset[str]:
    """Return the names of the maps that probes save to which see a warp, or block, through its first thread alone.

    path: the trace directory, with its probes. None of what cannot be read.
    """
    files = probe_files(path)
    if not files:
        return frozenset()
    # Here, since most reports need not wait for what reads probes.
    from neutrino.probing.first_lane import saved_by_first
    from neutrino.probing.toml import read_probe_file
    from neutrino.targets import LANGUAGES

    found: set[str] = set()
    for file in files:
        try:
            probes = read_probe_file(file, LANGUAGES)
            found |= saved_by_first(probes, LANGUAGES[probes.platform].words)
        except (NeutrinoError, OSError):
            continue
    return frozenset(found)
