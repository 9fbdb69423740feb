"""A trace's summary as an object of the JSON document of ``neutrino-report --json``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from neutrino.abi.levels import Per
from neutrino.cli.benchmark_report import benchmark_document
from neutrino.cli.findings_json import findings_document
from neutrino.cli.kernel_names import demangled
from neutrino.cli.occupancy import occupancy_document
from neutrino.cli.report_sources import meanings_in
from neutrino.cli.why import coverage_document
from neutrino.errors import TraceError
from neutrino.maps.declaration import Layout, Report, has_no_count
from neutrino.tracing.analyses.run import Findings
from neutrino.tracing.saved_values import Field, Meaning
from neutrino.tracing.shown.maps import Known, of_map
from neutrino.tracing.shown.report import readable_benchmark
from neutrino.tracing.since_first import times_since_first
from neutrino.tracing.summary import BucketSummary, KernelSummary, KeySummary, MapSummary, TraceSummary


def trace_document(
    summary: TraceSummary, findings: Findings | None = None, launches: range | None = None
) -> dict[str, Any]:
    """Return the object of a trace in the JSON document of ``neutrino-report --json``, from its summary and findings;
    without those the object has none. launches: the numbers of those that are in the summary; None for all.
    """
    trace = summary.trace
    benchmark = readable_benchmark(trace)
    return {
        "path": str(Path(trace.path)),
        "complete": trace.complete,
        "started": trace.started,
        "process": trace.process,
        "devices": list(trace.devices),
        "clock": trace.clock.value,
        "coverage": coverage_document(trace.coverage),
        "kernels": [_kernel_document(kernel, meanings_in(trace), launches) for kernel in summary.kernels],
        "not_probed": [
            {
                "kernel": row.kernel.id,
                "name": row.kernel.name,
                "demangled": demangled(row.kernel),
                "reason": row.reason.word,
                "text": row.text,
                "detail": row.detail,
                "launches": row.launches,
            }
            for row in summary.not_probed
        ],
        **({"benchmark": benchmark_document(benchmark, trace)} if benchmark else {}),
        **(findings_document(findings) if findings is not None else {}),
        "notes": [*summary.notes, *summary.trace.faults],
    }


def _kernel_document(
    summary: KernelSummary, meanings: Mapping[Field, Meaning], launches: range | None
) -> dict[str, Any]:
    """Return a probed kernel's object in the JSON document: its launches by outcome, its twin's facts and its maps
    (what probes save to). meanings: what their fields hold. launches: of the summary.
    """
    clock = summary.kernel.trace.clock
    try:
        times = times_since_first(summary.kernel, meanings, launches)
    except TraceError:
        # Which is among the notes.
        times = {}
    manifest = summary.kernel.manifest
    # The facts are as in manifest.json, null where it has none.
    raw = manifest.raw if manifest else {}
    return {
        "kernel": summary.kernel.id,
        "name": summary.kernel.name,
        "demangled": demangled(summary.kernel),
        "launches": {
            "probed": summary.submitted,
            "written": summary.written,
            "lost": summary.lost,
            "pending": summary.pending,
            **({"removed": summary.removed} if summary.kernel.has_removed else {}),
            "capped": summary.capped,
            "fewer_blocks": summary.fewer_blocks,
            "not_probed": summary.unprobed,
        },
        "assembler": raw.get("assembler"),
        "registers": raw.get("registers"),
        "spills": raw.get("spills"),
        **occupancy_document(summary),
        "retargeted": raw.get("retargeted"),
        **({"made_of": raw["made_of"]} if "made_of" in raw else {}),
        "sites": len(manifest.sites) if manifest else 0,
        "maps": [
            _map_document(entry, Known(of_map(meanings, entry.name), of_map(times, entry.name), clock))
            for entry in summary.maps
        ],
        "probes_left_out": [asdict(probe) for probe in manifest.probes_left_out] if manifest else [],
    }


def _map_document(entry: MapSummary, known: Known) -> dict[str, Any]:
    """Return a map's object in the JSON document; ``buckets`` only for a histogram, ``keys`` for a map (what probes
    save to) with keys, and ``key``, what they are called; the cap of a log is null.

    known: of its fields. Numbers are as they were saved; what holds addresses or a clock's times has a ``unit``:
    ``address``, ``cycles``, ``ns`` or ``steps``; and times ``since_first``, their range since their launch's first one,
    with ``clocks`` where each multiprocessor has its own, without a common zero.
    """
    has_cap = entry.kind.layout is not Layout.CHUNKS
    return {
        "name": entry.name,
        "kind": entry.kind.name,
        "level": entry.level.value,
        **({"per": entry.per.value} if entry.per is not Per.LAUNCH else {}),
        "cap": entry.cap if has_cap else None,
        "wanted": entry.wanted,
        "records": entry.records,
        "dropped": entry.dropped,
        **({"all_zero": entry.all_zero} if has_no_count(entry.kind, entry.cap) else {}),
        "fields": [
            {
                "name": field.name,
                "type": field.type,
                **_unit(known, field.name),
                "min": _plain(field.minimum),
                "median": _plain(field.median),
                "max": _plain(field.maximum),
                "total": None if field.total is None else _plain(field.total),
                **({} if field.mean is None else {"values": field.values, "mean": _plain(field.mean)}),
                **_since_first(known, field.name),
            }
            for field in entry.fields
        ],
        **(_unit(known, entry.field_name) if entry.buckets or entry.keys else {}),
        "sites": [asdict(site) for site in entry.sites],
        **({"buckets": [_bucket_document(bucket) for bucket in entry.buckets]} if entry.buckets else {}),
        **({"key": entry.key_name} if entry.kind.report is Report.KEYS else {}),
        **({"keys": [_key_document(key) for key in entry.keys]} if entry.keys else {}),
        **({"dropped_sum": _plain(entry.dropped_sum)} if entry.kind.report is Report.KEYS else {}),
    }


def _unit(known: Known, name: str) -> dict[str, str]:
    """Return the member ``unit`` of a field that holds addresses or a clock's times; nothing of others."""
    unit = "address" if known.is_address(name) else known.unit(name)
    return {"unit": unit} if unit else {}


def _since_first(known: Known, name: str) -> dict[str, Any]:
    """Return the member ``since_first`` of a field that holds times; nothing of others. zeros: records without one."""
    times = known.times.get(name)
    if times is None:
        return {}
    found: dict[str, Any] = {"min": times.minimum, "median": times.median, "max": times.maximum, "zeros": times.zeros}
    if known.is_apart(name):
        found["clocks"] = "multiprocessors"
    return {"since_first": found}


def _bucket_document(bucket: BucketSummary) -> dict[str, Any]:
    """Return the object of a histogram's bucket in the JSON document."""
    return {"low": _plain(bucket.low), "high": _plain(bucket.high), "count": bucket.count}


def _key_document(key: KeySummary) -> dict[str, Any]:
    """Return the object of a map's key in the JSON document."""
    kept = {name: _plain(number) for name, number in key.kept.items()}
    return asdict(key) | {"key": _plain(key.key), "kept": kept}


def _plain(value: int | float) -> int | float | str:
    """Return a number as JSON can have it: infinities and NaN as text."""
    return value if isinstance(value, int) or math.isfinite(value) else str(value)
