"""What a target can do, and what probes ask of one: compared before anything is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Protocol

from neutrino.errors import NeutrinoError
from neutrino.ir.operands import Inverted, SiteOperand, Special
from neutrino.ir.statements import Collective, Operation, Shuffle
from neutrino.probing.ir.probe_set import Probe, ProbeSet
from neutrino.probing.ir.structured import Statement, walk
from neutrino.probing.model import Subject


@dataclass(frozen=True)
class Capabilities:
    """What a target can do; None stands for all that probes can ask for.

    tracepoints: subjects, such as ``kernel`` and ``opcode``, and classes, such as ``memory``. operands: values of an
    instruction, without numbers: ``OUT``, ``IN``, ``ADDR``. helpers: names of typed operations (``add``), of what is
    computed among lanes (``ballot``, ``shuffle``), and of what the hardware provides (``lane``). maps: names of map
    types.
    """

    tracepoints: frozenset[str] | None = None
    operands: frozenset[str] | None = None
    helpers: frozenset[str] | None = None
    maps: frozenset[str] | None = None


_WORDS = {
    "tracepoints": "the tracepoint {}", "operands": "the value {}", "helpers": "the operation {}",
    "maps": "a map of type {}",
}  # fmt: skip


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
    has = {field.name: getattr(capabilities, field.name) for field in fields(capabilities)}
    return [
        f"{who}: {_WORDS[kind].format(name)}"
        for (kind, name), who in asked.items()
        if has[kind] is not None and name not in has[kind]
    ]


def _asked_by(probe: Probe) -> Iterator[tuple[str, str]]:
    """Yield what a probe asks for, as the field of ``Capabilities`` and the name in it."""
    for pattern in probe.tracepoint.patterns:
        yield "tracepoints", pattern.group if pattern.subject is Subject.CLASS else pattern.subject.value
    for snippet in (probe.before, probe.after):
        for statement in walk(snippet.statements) if snippet is not None else ():
            yield from _asked_in(statement)


def _asked_in(statement: Statement) -> Iterator[tuple[str, str]]:
    if isinstance(statement, Operation):
        yield "helpers", statement.operator.value
    elif isinstance(statement, Collective):
        yield "helpers", statement.reduction.value
    elif isinstance(statement, Shuffle):
        yield "helpers", "shuffle"
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
