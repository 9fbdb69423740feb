"""What a target can do, and what probes ask of one: compared before anything is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Protocol

from neutrino.errors import Diagnostic, NeutrinoError, Span
from neutrino.ir.operands import Inverted, SiteOperand, Special
from neutrino.ir.statements import ClockAfter, Collective, IsGlobal, Operation, Shuffle
from neutrino.probing.ir.draft import DraftProbes
from neutrino.probing.ir.probe_set import Probe, ProbeSet
from neutrino.probing.ir.structured import Statement, walk
from neutrino.probing.model import Pattern, Subject


@dataclass(frozen=True)
class Capabilities:
    """What a target can do; None stands for all that probes can ask for.

    tracepoints: subjects, such as ``kernel`` and ``opcode``, and classes, such as ``memory``. operands: values of an
    instruction, without numbers: ``OUT``, ``IN``, ``ADDR``. helpers: names of typed operations (``add``), of what is
    computed among lanes (``ballot``, ``shuffle``), of what the hardware provides (``lane``), ``clock(after)`` and
    ``is_global``. maps: names of map types.
    """

    tracepoints: frozenset[str] | None = None
    operands: frozenset[str] | None = None
    helpers: frozenset[str] | None = None
    maps: frozenset[str] | None = None


CODE = "target-lacks"
"""Code of the fault of a typed probe that asks for what its target cannot do."""

_WORDS = {
    "tracepoints": "the tracepoint {}", "operands": "the value {}", "helpers": "the operation {}",
    "maps": "a map of type {}",
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
    def name(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities: ...


def check_capabilities(target: Able, probes: ProbeSet) -> None:
    """Raise NeutrinoError if probes are in the assembly of another target, or ask for what this one cannot do."""
    # Probes without hand-written instructions have no target: every target can lower them.
    if probes.target not in ("", target.name):
        raise NeutrinoError(f"{probes.file}: its assembly is {probes.target}, and these kernels take {target.name}")
    if missing := lacking(probes, target.capabilities):
        raise NeutrinoError(f"{probes.file}: not available for kernels in {target.name}: {'; '.join(missing)}")


def lacking(probes: ProbeSet, capabilities: Capabilities) -> list[str]:
    """Return what a target cannot do of what probes ask for, in words, each with the first probe that asks for it."""
    if capabilities == Capabilities():
        return []
    asked: dict[tuple[str, str], str] = {}
    for probe in probes.probes:
        for kind, name in _asked_by(probe):
            asked.setdefault((kind, name), f"probe '{probe.name}'")
    for map_ in probes.maps:
        asked.setdefault(("maps", map_.kind.name), f"map '{map_.name}'")
    return [
        f"{who}: {_WORDS[kind].format(name)}"
        for (kind, name), who in asked.items()
        if not _has(capabilities, kind, name)
    ]


def capability_faults(draft: DraftProbes, target: Able) -> list[Diagnostic]:
    """Return what a target cannot do of what typed probes ask for: one fault for each, where it first stands."""
    if target.capabilities == Capabilities():
        return []
    asked: dict[tuple[str, str], Span] = {}
    for probe in draft.probes:
        for pattern in probe.tracepoint.patterns:
            asked.setdefault(_tracepoint_of(pattern), probe.span)
        for statement in _statements(probe):
            for each in _asked_in(statement):
                asked.setdefault(each, statement.span)
    for map_ in draft.maps:
        asked.setdefault(("maps", map_.kind.name), map_.span)
    lines = draft.source.split("\n")
    faults = []
    for (kind, name), span in asked.items():
        if not _has(target.capabilities, kind, name):
            other, hint = _INSTEAD.get((kind, name), (None, ""))
            if other is not None and not _has(target.capabilities, *other):
                hint = ""
            message = f"{_WORDS[kind].format(name)} is not available for kernels in {target.name}"
            line = lines[span.line - 1] if 0 < span.line <= len(lines) else ""
            faults.append(Diagnostic(draft.file, span.line, span.column, line, message, hint, code=CODE))
    return sorted(faults, key=lambda fault: (fault.line, fault.column))


def _has(capabilities: Capabilities, kind: str, name: str) -> bool:
    """Return whether a target can do something. kind: a field of ``Capabilities``."""
    names: frozenset[str] | None = getattr(capabilities, kind)
    return names is None or name in names


def _asked_by(probe: Probe) -> Iterator[tuple[str, str]]:
    """Yield what a probe asks for, as the field of ``Capabilities`` and the name in it."""
    for pattern in probe.tracepoint.patterns:
        yield _tracepoint_of(pattern)
    for statement in _statements(probe):
        yield from _asked_in(statement)


def _tracepoint_of(pattern: Pattern) -> tuple[str, str]:
    return "tracepoints", pattern.group if pattern.subject is Subject.CLASS else pattern.subject.value


def _statements(probe: Probe) -> Iterator[Statement]:
    for snippet in (probe.before, probe.after):
        if snippet is not None:
            yield from walk(snippet.statements)


def _asked_in(statement: Statement) -> Iterator[tuple[str, str]]:
    if isinstance(statement, Operation):
        yield "helpers", statement.operator.value
    elif isinstance(statement, Collective):
        yield "helpers", statement.reduction.value
    elif isinstance(statement, Shuffle):
        yield "helpers", "shuffle"
    elif isinstance(statement, ClockAfter):
        yield "helpers", "clock(after)"
    elif isinstance(statement, IsGlobal):
        yield "helpers", "is_global"
    for operand in _read_by(statement):
        inner = operand.operand if isinstance(operand, Inverted) else operand
        if isinstance(inner, SiteOperand):
            yield "operands", inner.name.rstrip("0123456789")
        elif isinstance(inner, Special):
            yield "helpers", inner.value


def _read_by(statement: Statement) -> Iterable[object]:
    """Yield the operands of one statement, whatever it is, without those of the statements in it."""
    for field in fields(statement):
        value = getattr(statement, field.name)
        yield from value if isinstance(value, tuple) else (value,)
