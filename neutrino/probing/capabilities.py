"""What a target can do, and what probes ask of one: compared before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Protocol

from neutrino.errors import Diagnostic, Span
from neutrino.ir.operands import Constant, Inverted, Register, SiteOperand, Special
from neutrino.ir.statements import (
    SETS_OF_LANES,
    Assembly,
    ClockAfter,
    Collective,
    IsGlobal,
    Load,
    Operation,
    Operator,
    Shuffle,
)
from neutrino.late_dataclass import dataclass
from neutrino.maps.declaration import Map
from neutrino.probing.ir.draft import DraftProbes
from neutrino.probing.ir.probe_set import Probe, ProbeSet
from neutrino.probing.ir.structured import Save, Statement, walk
from neutrino.probing.model import Lanes, Subject


@dataclass(frozen=True)
class Capabilities:
    """What a target can do; None stands for all that probes can ask for.

    tracepoints: subjects, such as ``kernel`` and ``opcode``, and classes, such as ``memory``; and what else patterns
    may demand of an instruction, as ``TRACEPOINT_PARTS`` has it. operands: values of an instruction, without numbers:
    ``OUT``, ``IN``, ``ADDR``. helpers: names of typed operations (``add``), of what is computed among lanes
    (``ballot``, ``shuffle``), of what the hardware provides (``lane``), ``clock(after)`` and ``is_global``. maps: names
    of map types. statements: of typed code, without those that are helpers, such as ``compare``, ``select``,
    ``convert``, ``if``. types: of what typed code computes with, such as ``f64``. levels: of probes, and ``reaching``
    for snippets that also run for lanes whose predicate is false. lane_sets: in how many bits sets of lanes fit, ``32``
    or ``64``: probes that were read for warps of 32 lanes have them in u32. refuses_map: says what the target cannot do
    of a map whose type it has, "" if nothing.
    """

    tracepoints: frozenset[str] | None = None
    operands: frozenset[str] | None = None
    helpers: frozenset[str] | None = None
    maps: frozenset[str] | None = None
    statements: frozenset[str] | None = None
    types: frozenset[str] | None = None
    levels: frozenset[str] | None = None
    lane_sets: frozenset[str] | None = None
    refuses_map: Callable[[Map], str] | None = None


TRACEPOINT_PARTS: Mapping[str, str] = {
    "function": "functions", "lines": "lines", "not_functions": "functions", "not_lines": "lines",
    "predicated": "predicates", "unpredicated": "predicates", "callees": "callees", "not_callees": "callees",
    "ranges": "ranges", "not_ranges": "ranges",
}  # fmt: skip
"""Members of ``Pattern`` that more than an opcode decides → their word in ``Capabilities.tracepoints``."""

CODE = "target-lacks"
"""Code of the fault of a typed probe that asks for what its target cannot do."""

_WORDS = {
    "tracepoints": "the tracepoint {}", "operands": "the value {}", "helpers": "the operation {}",
    "maps": "a map of type {}", "statements": "the statement {}", "types": "a value of type {}",
    "levels": "level {}", "lane_sets": "a set of lanes in {} bits",
}  # fmt: skip


_INSTEAD: Mapping[tuple[str, str], tuple[tuple[str, str], str]] = {
    ("helpers", "clock"): (("helpers", "time"), "nl.time() has nanoseconds"),
    ("helpers", "clock(after)"): (("helpers", "clock"), "nl.clock() reads it without waiting"),
    ("helpers", "lanemask_lt"): (("helpers", "lane"), "compute it from nl.lane()"),
    ("helpers", "sum"): (("maps", "sum"), "save each value to a map of type sum"),
    ("helpers", "min"): (("maps", "min"), "save each value to a map of type min"),
    ("helpers", "max"): (("maps", "max"), "save each value to a map of type max"),
    ("helpers", "div"): (("helpers", "mul"), "save both numbers, and divide afterwards"),
    ("helpers", "rem"): (("helpers", "mul"), "save both numbers, and divide afterwards"),
}  # fmt: skip
"""What a target may lack → what it may have instead, and a hint that names it."""


class Able(Protocol):
    """What has capabilities, and a name: a target."""

    @property
    def name(self) -> str:
        """The name of the target (kind of GPU code), such as ``ptx``."""

    @property
    def capabilities(self) -> Capabilities:
        """Which tracepoints, operands, helpers and maps probes may use in this kind of GPU code."""


def lacking(probes: ProbeSet, capabilities: Capabilities) -> list[str]:
    """Return what probes ask for and a target cannot do, in words, each with the first probe that asks for it."""
    if capabilities == Capabilities():
        return []
    found: dict[str, str] = {}
    for probe in probes.probes:
        for missing in lacking_of(probe, capabilities):
            found.setdefault(missing, f"probe '{probe.name}'")
    for map_ in probes.maps:
        for missing in lacking_of_map(map_, capabilities):
            found.setdefault(missing, f"map '{map_.name}'")
    return [f"{who}: {missing}" for missing, who in found.items()]


def lacking_of(probe: Probe, capabilities: Capabilities) -> list[str]:
    """Return what a probe asks for and a target cannot do, in words, without the maps that it saves to."""
    asked = dict.fromkeys(_asked_by(probe))
    return [_WORDS[kind].format(name) for kind, name in asked if not _has(capabilities, kind, name)]


def lacking_of_map(map_: Map, capabilities: Capabilities) -> list[str]:
    """Return what a map (what probes save to) needs and a target cannot do, in words."""
    if not _has(capabilities, "maps", map_.kind.name):
        return [_WORDS["maps"].format(map_.kind.name)]
    refused = capabilities.refuses_map(map_) if capabilities.refuses_map is not None else ""
    return [refused] if refused else []


def capability_faults(draft: DraftProbes, target: Able) -> list[Diagnostic]:
    """Return a fault for each thing that typed probes ask for and a target cannot do, where it first stands in the
    file."""
    if target.capabilities == Capabilities():
        return []
    asked: dict[tuple[str, str], Span] = {}
    for probe in draft.probes:
        for each in _asked_of_places(probe):
            asked.setdefault(each, probe.span)
        for statement in _statements(probe):
            for each in _asked_in(statement):
                asked.setdefault(each, statement.span)
    for map_ in draft.maps:
        asked.setdefault(("maps", map_.kind.name), map_.span)
    lines = draft.source.split("\n")
    faults = []

    def fault(what: str, span: Span, hint: str = "") -> None:
        """Add a diagnostic that the target lacks something. what: with its article, as people say it."""
        message = f"{what} is not available for kernels in {target.name}"
        line = lines[span.line - 1] if 0 < span.line <= len(lines) else ""
        faults.append(Diagnostic(draft.file, span.line, span.column, line, message, hint, code=CODE))

    for (kind, name), span in asked.items():
        if not _has(target.capabilities, kind, name):
            other, hint = _INSTEAD.get((kind, name), (None, ""))
            if other is not None and not _has(target.capabilities, *other):
                hint = ""
            fault(_WORDS[kind].format(name), span, hint)
    for map_ in draft.maps:
        if _has(target.capabilities, "maps", map_.kind.name):
            for refused in lacking_of_map(map_, target.capabilities):
                fault(refused, map_.span)
    return sorted(faults, key=lambda fault: (fault.line, fault.column))


def _has(capabilities: Capabilities, kind: str, name: str) -> bool:
    """Return whether a target can do something of which a probe names an instance. kind: a field of ``Capabilities``.
    """
    names: frozenset[str] | None = getattr(capabilities, kind)
    return names is None or name in names


def _asked_by(probe: Probe) -> Iterator[tuple[str, str]]:
    """Yield all that a probe asks of a target, as the field of ``Capabilities`` and the name in it."""
    yield from _asked_of_places(probe)
    for statement in _statements(probe):
        yield from _asked_in(statement)


def _asked_of_places(probe: Probe) -> Iterator[tuple[str, str]]:
    """Yield what a probe asks of a target by its tracepoint and level, as (kind of capability, word)."""
    for pattern in probe.tracepoint.patterns:
        yield "tracepoints", pattern.group if pattern.subject is Subject.CLASS else pattern.subject.value
        for member, word in TRACEPOINT_PARTS.items():
            # The subject itself may be a function, a line or a range.
            if getattr(pattern, member) and pattern.has_operands:
                yield "tracepoints", word
    yield "levels", probe.level.value
    if probe.lanes is Lanes.REACHING:
        yield "levels", probe.lanes.value


def _statements(probe: Probe) -> Iterator[Statement]:
    """Yield the statements of both of a probe's snippets, with those inside conditions and loops."""
    for snippet in (probe.before, probe.after):
        if snippet is not None:
            yield from walk(snippet.statements)


def _asked_in(statement: Statement) -> Iterator[tuple[str, str]]:
    """Yield what a statement asks of a target: the kind of the capability, as ``Capabilities`` has it, and its name."""
    if isinstance(statement, Operation):
        yield "helpers", statement.operator.value
    elif isinstance(statement, Collective):
        yield "helpers", statement.reduction.value
        if statement.reduction in SETS_OF_LANES:
            yield "lane_sets", str(statement.destination.type.bits)
    elif isinstance(statement, Shuffle):
        yield "helpers", "shuffle"
    elif isinstance(statement, ClockAfter):
        yield "helpers", "clock(after)"
    elif isinstance(statement, IsGlobal):
        yield "helpers", "is_global"
    elif not isinstance(statement, (Assembly, Load, Save)):
        yield "statements", type(statement).__name__.lower()
    for operand in _read_by(statement):
        inner = operand.operand if isinstance(operand, Inverted) else operand
        if isinstance(inner, SiteOperand):
            yield "operands", inner.name.rstrip("0123456789")
        elif isinstance(inner, Special):
            yield "helpers", inner.value
            # How many bits are 1 is a u32, however wide the set is.
            if (
                inner is Special.LANEMASK_LT and isinstance(statement, Operation)
                and statement.operator not in (Operator.POPC, Operator.CLZ)
            ):
                yield "lane_sets", str(statement.destination.type.bits)
        elif isinstance(inner, (Register, Constant)):
            yield "types", inner.type.value


def _read_by(statement: Statement) -> Iterable[object]:
    """Yield the operands that one statement of the IR reads, without those of the statements nested in it."""
    for field in fields(statement):
        value = getattr(statement, field.name)
        yield from value if isinstance(value, tuple) else (value,)
