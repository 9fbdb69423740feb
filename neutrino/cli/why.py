"""``neutrino-report --why`` as JSON, and the coverage of a trace."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from neutrino.tracing.coverage import Coverage
from neutrino.tracing.shown.why import Why


def coverage_document(coverage: Coverage) -> dict[str, Any]:
    """Return a trace's coverage as an object of the JSON document."""
    return {
        "probed": coverage.probed,
        "launches": coverage.launches,
        "share": coverage.share if coverage.is_known else None,
        "kernels_probed": coverage.kernels_probed,
        "kernels": coverage.kernels,
        "left_out": coverage.left_out,
        "not_probed": {reason.word: count for reason, count in coverage.not_probed.items()},
    }


def why_document(why: Why) -> dict[str, Any]:
    """Return a kernel's object in the JSON document of ``neutrino-report --why``."""
    return {
        "kernel": why.kernel.id,
        "name": why.kernel.name,
        "image": why.image.get("source", ""),
        "launches": why.chosen,
        "probed": why.probed,
        "reasons": [
            {
                "reason": row.reason.word,
                "launches": row.launches,
                "text": row.text,
                "detail": row.detail,
                "facts": list(why.facts(row)),
                "remedy": row.remedy,
            }
            for row in why.rows
        ],
        "probes_left_out": [asdict(probe) for probe in why.left_out],
    }
