"""What a trace has of the program's launches, in plain rows."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import neutrino
from neutrino.tracing.views import MapView
from tests.recipes.bed import MOST_RUNS, Finished, Folder
from tests.recipes.model import Launch


@dataclass(frozen=True)
class Recorded:
    """One launch. rows: map → its records or results, with the places that it has. lines: SITE → line of the text.

    dropped: the maps that lack some.
    """

    kernel: str
    rows: dict[str, list[dict[str, Any]]]
    lines: dict[int, int]
    dropped: frozenset[str]

    def by_line(self, name: str) -> dict[int, dict[str, int]]:
        """The rows of a table by SITE, by line."""
        return {self.lines[row["key"]]: {key: row[key] for key in row if key != "key"} for row in self.rows[name]}


def record(
    folder: Folder, place: str, *arguments: str, drops: frozenset[str] = frozenset()
) -> tuple[dict[int, Recorded], Finished]:
    """Run the program with its trace in a folder. Returns the launches that a probe matches, by their numbers.

    drops: the maps that have few slots.
    """
    for _ in range(MOST_RUNS):
        shutil.rmtree(folder.path / place, ignore_errors=True)
        finished = folder.run("-q", "--tracedir", place, *arguments, "./program")
        launches, is_complete = _launches(folder.path / place, folder.program.launches)
        # On a loaded machine the launch before may still have the memory; the next run knows how much is needed.
        if is_complete and not any(launch.dropped - drops for launch in launches.values()):
            break
    return launches, finished


def _launches(path: Path, launches: Sequence[Launch]) -> tuple[dict[int, Recorded], bool]:
    """The launches of a trace, and whether all are there that are to be."""
    trace = neutrino.open_trace(path)
    found: dict[int, Recorded] = {}
    matched = set()
    for kernel in trace.kernels:
        # None where no instruction matches.
        if kernel.manifest is not None:
            matched.add(kernel.name)
            lines = {site["site"]: site["line"] for site in kernel.manifest.sites if site["site"] is not None}
            for launch in kernel.launches():
                rows = {name: _rows(view) for name, view in launch.maps.items()}
                dropped = frozenset(name for name, view in launch.maps.items() if view.dropped)
                found[launch.index] = Recorded(kernel.name, rows, lines, dropped)
    expected = {number for number, launch in enumerate(launches) if launch.kernel in matched}
    return dict(sorted(found.items())), found.keys() == expected


def _rows(view: MapView) -> list[dict[str, Any]]:
    records = view.valid().reshape(-1)
    names = records.dtype.names or ()
    columns = {name: records[name].tolist() for name in names}
    # Results of the launch as a whole belong to nobody.
    with contextlib.suppress(ValueError):
        columns |= {f"[{name}]": column.tolist() for name, column in view.places().items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
