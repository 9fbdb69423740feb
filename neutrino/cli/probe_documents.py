"""Maps and probes of a probe file as JSON objects, and the sizes of snippets, for ``list`` and ``check``."""

from __future__ import annotations

from typing import Any

from neutrino.abi.levels import Per
from neutrino.maps.declaration import Map
from neutrino.probing.ir.draft import DraftProbes
from neutrino.probing.ir.probe_set import Probe, ProbeSet, Snippet
from neutrino.probing.ir.structured import Save, walk
from neutrino.probing.written import WrittenProbe, WrittenProbes, WrittenSave


def snippet_sizes(probes: ProbeSet | WrittenProbes | DraftProbes) -> dict[str, int]:
    """Return for each probe how many instructions its snippets have, without SAVEs; of Python probes, statements.

    Of both snippets, before and after, together.
    """
    sizes = {}
    for probe in probes.probes:
        sizes[probe.name] = 0
        for snippet in (probe.before, probe.after):
            if snippet is None:
                continue
            # Statements of the IR may have others in them (if, for), statements as written have none.
            statements = walk(snippet.statements) if isinstance(snippet, Snippet) else snippet.statements
            sizes[probe.name] += sum(not isinstance(statement, (Save, WrittenSave)) for statement in statements)
    return sizes


def probe_document(probe: Probe | WrittenProbe) -> dict[str, Any]:
    """Return a probe's object in JSON documents: its position and level, and on which sides of it there is code."""
    return {
        "name": probe.name,
        "position": probe.tracepoint.text,
        "level": probe.level.value,
        "lanes": probe.lanes.value,
        "before": probe.before is not None,
        "after": probe.after is not None,
    }


def map_document(entry: Map) -> dict[str, Any]:
    """Return a map's object in JSON documents: its layout, and the options of its type, such as a histogram's scale."""
    return {
        "name": entry.name,
        "type": entry.kind.name,
        "level": entry.level.value,
        **({"per": entry.per.value} if entry.per is not Per.LAUNCH else {}),
        "size": entry.size,
        "cap": entry.cap,
        "fields": [{"name": item.name, "type": item.type.value, "offset": item.offset} for item in entry.fields],
        **entry.kind.options(),
    }
