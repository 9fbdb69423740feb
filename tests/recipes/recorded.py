"""What a trace has of the program's launches, in plain rows."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import neutrino
from neutrino.tracing.views import MapView


@dataclass(frozen=True)
class Recorded:
    """One launch. rows: map → its records or results, with the places that it has. lines: SITE → line of the text."""

    kernel: str
    rows: dict[str, list[dict[str, Any]]]
    lines: dict[int, int]

    def by_line(self, name: str) -> dict[int, dict[str, int]]:
        """The rows of a table by SITE, by line."""
        return {self.lines[row["key"]]: {key: row[key] for key in row if key != "key"} for row in self.rows[name]}


def launches_of(path: Path, *, drops: bool = False) -> dict[int, Recorded]:
    """The launches of the newest trace in a folder by their numbers. drops: whether slots may have been too few."""
    trace = neutrino.open_trace(path)
    found: dict[int, Recorded] = {}
    for kernel in trace.kernels:
        if kernel.manifest is None:
            # No instruction matches.
            continue
        lines = {site["site"]: site["line"] for site in kernel.manifest.sites if site["site"] is not None}
        for launch in kernel.launches():
            for view in launch.maps.values():
                assert drops or view.dropped == 0
            rows = {name: _rows(view) for name, view in launch.maps.items()}
            found[launch.index] = Recorded(kernel.name, rows, lines)
    return found


def _rows(view: MapView) -> list[dict[str, Any]]:
    records = view.valid().reshape(-1)
    names = records.dtype.names or ()
    columns = {name: records[name].tolist() for name in names}
    # Results of the launch as a whole belong to nobody.
    with contextlib.suppress(ValueError):
        columns |= {f"[{name}]": column.tolist() for name, column in view.places().items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
