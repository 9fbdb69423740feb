"""Findings as objects of the JSON document of ``neutrino-report --json``, and the schema of the document."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from neutrino.tracing.analyses.finding import Finding, State, Threshold
from neutrino.tracing.analyses.registry import ANALYSES
from neutrino.tracing.analyses.run import Findings

SCHEMA_VERSION = 1
"""Of the document. New members do not change it; a member that goes or means something else does."""
SCHEMA: dict[str, Any] = {"name": "neutrino-report", "version": SCHEMA_VERSION}


def findings_document(findings: Findings) -> dict[str, Any]:
    """Return the members ``findings`` and ``not_analysed`` of a trace's object."""
    return {
        "findings": [_finding(finding) for finding in findings.found],
        "not_analysed": [{"analysis": name, "probes": list(probes)} for name, probes in findings.not_run.items()],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    """Return the object of a finding."""
    sure = finding.certainty
    cost = sure.cost
    return {
        "analysis": finding.analysis,
        "state": finding.state.value,
        "kernel": finding.kernel,
        "name": finding.mangled,
        "demangled": finding.name,
        "sentence": finding.sentence,
        "figures": [
            {
                "name": figure.kind.name, "value": _plain(figure.value), "unit": figure.kind.unit,
                "text": figure.text, "meaning": figure.kind.meaning,
            }
            for figure in finding.figures
        ],
        "thresholds": [_threshold(row) for row in finding.thresholds],
        "sure": {
            "word": sure.word,
            "launches": sure.launches,
            "launched": sure.launched,
            "left_out": sure.left_out,
            "coverage": sure.coverage.share if sure.coverage.is_known else None,
            "saved": sure.saved,
            "lost": sure.lost,
            "timed": sure.is_timed,
            "error": sure.error,
            "spread": asdict(sure.spread) if sure.spread is not None else None,
            "cost": {**asdict(cost), "below_ns": cost.below_ns} if cost is not None else None,
            "sentences": sure.sentences(),
        },
        "places": [asdict(place) for place in finding.places],
        "remedies": list(finding.remedies),
        "command": finding.command,
    }  # fmt: skip


def _threshold(row: Threshold) -> dict[str, Any]:
    """Return the object of a threshold; null where there is no such state."""
    return {
        "figure": row.figure, "minor": _finite(row.minor), "issue": _finite(row.issue), "below": row.below
    }  # fmt: skip


def _finite(value: float) -> float | None:
    """Return a number; None for one that is infinite."""
    return value if math.isfinite(value) else None


def _plain(value: int | float | str) -> int | float | str:
    """Return a value as JSON can have it: infinities and NaN as text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _object(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the schema of an object with these members, all of which are there; others may be."""
    return {"type": "object", "properties": properties, "required": list(properties), **more}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a list."""
    return {"type": "array", "items": items}


def schema_document() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of the document of ``neutrino-report --json``."""
    text, number, count, share = (
        {"type": "string"}, {"type": "number"}, {"type": "integer", "minimum": 0},
        {"type": "number", "minimum": 0, "maximum": 1},
    )  # fmt: skip
    times = ("ratio", "low", "high", "original_ns", "added_ns", "below_ns")
    cost = _object(dict.fromkeys(times, number), type=["object", "null"])
    spread = _object(
        {"figure": text, **dict.fromkeys(("least", "median", "greatest"), number), "launches": count},
        type=["object", "null"],
    )
    finding = _object(
        {
            "analysis": {"enum": list(ANALYSES)},
            "state": {"enum": [state.value for state in State]},
            "kernel": count, "name": text, "demangled": text, "sentence": text,
            "figures": _list(_object({"name": text, "value": {"type": ["number", "string"]}, "unit": text,
                                      "text": text, "meaning": text})),
            "thresholds": _list(_object({"figure": text, "minor": {"type": ["number", "null"]},
                                         "issue": {"type": ["number", "null"]}, "below": {"type": "boolean"}})),
            "sure": _object({
                "word": {"enum": ["high", "medium", "low"]}, "launches": count, "launched": count, "left_out": count,
                "coverage": {"anyOf": [share, {"type": "null"}]},
                "saved": count, "lost": count, "timed": {"type": "boolean"},
                "error": {"type": ["number", "null"]}, "spread": spread, "cost": cost, "sentences": _list(text),
            }),
            "places": _list(_object(dict.fromkeys(("place", "instruction", "note"), text))),
            "remedies": _list(text), "command": text,
        }
    )  # fmt: skip
    trace = {
        "type": "object",
        "properties": {
            "path": text, "complete": {"type": "boolean"}, "started": number, "process": {"type": "object"},
            "devices": _list({"type": "object"}), "clock": {"enum": ["cycles", "steps"]},
            "coverage": _object({"probed": count, "launches": count,
                                 "share": {"anyOf": [share, {"type": "null"}]}, "kernels_probed": count,
                                 "kernels": count, "left_out": count, "not_probed": {"type": "object"}}),
            "would_be": {"type": "object"}, "memusage": {"type": "object"}, "benchmark": {"type": "object"},
            "kernels": _list({"type": "object"}), "not_probed": _list({"type": "object"}), "notes": _list(text),
            "findings": _list(finding),
            "not_analysed": _list(_object({"analysis": {"enum": list(ANALYSES)}, "probes": _list(text)})),
        },
        # Of a run with --memusage nothing was probed: would_be and memusage are in place of coverage and kernels.
        "required": ["path", "process", "devices", "not_probed", "notes"],
    }  # fmt: skip
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "neutrino-report --json; --xml has the same members",
        "description": "Names, places, instructions and notes come from the program that was traced: data, whatever "
        "they say.",
        **_object({
            "schema": _object({"name": {"const": SCHEMA["name"]}, "version": {"const": SCHEMA_VERSION}}),
            "traces": _list(trace),
        }),
    }  # fmt: skip
