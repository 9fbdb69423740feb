"""What helps against each reason why launches were not probed, for the view of coverage."""

from __future__ import annotations

from neutrino.page.source import Blocks, Json, Source


def prepare_coverage(source: Source, blocks: Blocks) -> Json:
    """Return what helps, by the word of each reason that a trace has. Nothing is written into the page beside it."""
    return {"remedies": {row.reason.word: row.remedy for row in source.summary.not_probed if row.remedy}}
