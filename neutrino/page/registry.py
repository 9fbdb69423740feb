"""The views of a page, in their order: a new one is a file in ``web/views`` and a row here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from neutrino.page.schedule import prepare_spans
from neutrino.page.source import Blocks, Json, Source


@dataclass(frozen=True)
class View:
    """A view. name: in the page's address. title: as readers see it. file: in ``web/views``; it exports ``draw``."""

    name: str
    title: str
    file: str


VIEWS = (
    View("overview", "Overview", "overview.js"),
    View("kernels", "Kernels by time", "kernels.js"),
    View("schedule", "Block schedule", "schedule.js"),
)

DATA: dict[str, Callable[[Source, Blocks], Json]] = {
    "spans": prepare_spans,
}
"""What views draw beside the document of ``neutrino-report --json``: by name, how it is prepared."""
