"""The text of one kernel's twin, for people: what of it is the kernel, what are functions, how much was inserted."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from neutrino.abi.reasons import Reason
from neutrino.backend.protocol import ShownTwin, TwinText
from neutrino.ptx.instrument.plan import KernelPlan
from neutrino.ptx.instrument.programs import FewerProbes
from neutrino.ptx.instrument.twin import TwinKernel
from neutrino.ptx.instrument.twin_bodies import write_twin
from neutrino.ptx.text.module import parse
from neutrino.twins.cache_entry import KernelEntry
from neutrino.twins.probe_units import ProbeLeftOut

# Also matches inside comments and strings, but those are the same in the original and the probed text.
_DECLARATION = re.compile(r"(?<!\w)\.(?:reg|local|shared|param|pragma)\b[^;(){}]*;")


def show(plan: KernelPlan, entry: KernelEntry | None) -> ShownTwin:
    """Write a planned twin (instrumented copy), with the probes and the text that it was assembled with.

    entry: the result of assembling it, whose text may differ, as by a register cap; a refused twin has none there. None
    if it was not assembled.
    """
    files = entry.files if entry is not None else {}
    manifest = json.loads(files["manifest.json"]) if "manifest.json" in files else {}
    twin = _with_probes_of(manifest, plan, write_twin(plan))
    probed = files["probed.ptx"].decode("latin-1") if "probed.ptx" in files else twin.whole_text()
    module = parse(probed)
    texts = {one.name: module.source(one.statement) for one in (*module.functions, *module.entries)}
    parts = [
        TwinText(copy.name, plan.lines[copy.name], copy.original_text, texts[copy.copy_name])
        for copy in twin.all_copies
    ]
    parts.append(TwinText(twin.name, plan.lines[twin.name], twin.original_text, texts[twin.twin_name], is_kernel=True))
    added = sum(_instruction_count(part.probed) - _instruction_count(part.original) for part in parts)
    return ShownTwin(twin, probed, tuple(sorted(parts, key=lambda part: part.line)), added)


def _with_probes_of(manifest: Mapping[str, Any], plan: KernelPlan, twin: TwinKernel) -> TwinKernel:
    """Return the twin with the probes that the assembled one has, with notes about the others.

    manifest: of the assembled twin, empty without one. twin: as planned.
    """
    rows = {row["probe"]: row for row in manifest.get("probes_left_out", [])}
    if rows.keys() == {probe.probe for probe in twin.probes_left_out}:
        return twin
    names = [probe.name for probe in plan.rewriting.probes.probes if probe.name not in rows]
    fewer = FewerProbes(plan).twin(names)
    reasons = {reason.word: reason for reason in Reason}
    notes = [
        ProbeLeftOut(**{**row, "reason": reasons[row["reason"]], "maps": tuple(row["maps"])}) for row in rows.values()
    ]
    return replace(fewer if isinstance(fewer, TwinKernel) else twin, probes_left_out=tuple(notes))


def _instruction_count(text: str) -> int:
    """Return how many instructions a PTX text has, for the difference of two texts.

    Semicolons in comments count too; they are the same in both texts, so the difference does not have them.
    """
    # Each instruction ends with a semicolon, and so do declarations.
    return text.count(";") - len(_DECLARATION.findall(text))
