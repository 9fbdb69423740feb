"""Warnings about probes that see their warp, or block, through its first thread alone."""

from __future__ import annotations

from collections.abc import Iterator

from neutrino.abi.levels import Level
from neutrino.errors import Diagnostic
from neutrino.probing.ir.draft import DraftProbes
from neutrino.probing.ir.probe_set import Probe
from neutrino.probing.model import Pattern, Subject
from neutrino.probing.target import Words
from neutrino.probing.written import WrittenProbe, WrittenProbes, WrittenSave

CODE = "first-lane"

_FIRST = {Level.WARP: "the warp's first lane", Level.BLOCK: "the block's thread 0"}
_HINTS = {
    Level.WARP: 'level = "group" runs once for each group of lanes together, and can save to a record per warp',
    Level.BLOCK: 'a probe at level "thread" and a map with per = "block" have all threads\' values, as their greatest',
}


def first_lane_warnings(probes: WrittenProbes | DraftProbes, target: Words) -> Iterator[Diagnostic]:
    """Yield a warning for each probe at level warp or block that may miss executions, since one thread runs it for all
    others.

    That is where it runs at places that this first thread may not reach, or at the kernel's ends, where others may go
    on after it. There is none for probes that run only where all lanes do. target: knows the opcodes.
    """
    lines = probes.source.split("\n")
    for probe in probes.probes:
        words = _misses(probe, target)
        if not words:
            continue
        line, column = probe.span.line, probe.span.column
        source = lines[line - 1] if 0 < line <= len(lines) else ""
        message = f"level {probe.level.value}: {words}"
        yield Diagnostic(probes.file, line, column, source, message, _HINTS[probe.level], "warning", CODE)


def saved_by_first(probes: WrittenProbes, target: Words) -> frozenset[str]:
    """Return the names of the maps that probes save to which ``first_lane_warnings`` warns of."""
    return frozenset(
        statement.map.name
        for probe in probes.probes if _misses(probe, target)
        for snippet in (probe.before, probe.after) if snippet is not None
        for statement in snippet.statements if isinstance(statement, WrittenSave)
    )  # fmt: skip


def _misses(probe: Probe | WrittenProbe, target: Words) -> str:
    """Return which executions a probe may miss since only the first thread of a warp or block runs it, in words; "" if
    none."""
    if probe.level not in _FIRST:
        return ""
    if any(_may_miss(pattern, probe, target) for pattern in probe.tracepoint.patterns):
        return f"this stands for {_FIRST[probe.level]}: nothing where it does not take part"
    if probe.tracepoint.is_kernel and probe.after is not None:
        return f"this is where {_FIRST[probe.level]} ends: others may go on"
    return ""


def _may_miss(pattern: Pattern, probe: Probe | WrittenProbe, target: Words) -> bool:
    """Return whether a pattern matches places that the first thread of a warp or block may not reach."""
    if pattern.subject is Subject.KERNEL:
        return False
    # The opcodes are those of warps: the first thread of a block may belong to another warp than theirs.
    is_of_whole = probe.level is Level.WARP and pattern.subject is Subject.OPCODE
    return not (is_of_whole and target.is_of_whole_warps(pattern))
