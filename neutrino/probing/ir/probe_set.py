"""Verified probes: what ``load_probes`` returns, and all that code which inserts probes takes."""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import InitVar, dataclass, fields, replace
from functools import cached_property
from typing import Any

from neutrino.abi.levels import Level
from neutrino.errors import Diagnostic, Span
from neutrino.maps.declaration import Map
from neutrino.probing.ir.operands import Register
from neutrino.probing.ir.statements import Assembly, Save, Statement, Straight, registers_of
from neutrino.probing.model import Lanes, Tracepoint


@dataclass(frozen=True)
class Snippet:
    """What is inserted on one side of a site, in order."""

    statements: tuple[Statement, ...]

    @cached_property
    def straight(self) -> tuple[Straight, ...]:
        """The statements of a snippet that a target has lowered. Raises TypeError for one that it has not."""
        lowered = tuple(statement for statement in self.statements if isinstance(statement, (Assembly, Save)))
        if len(lowered) < len(self.statements):
            raise TypeError("a snippet with typed statements, which are lowered first")
        return lowered

    @cached_property
    def named(self) -> frozenset[str]:
        """The probes' registers that the statements of a lowered snippet name."""
        registers = (register for statement in self.straight for register in registers_of(statement))
        return frozenset(register.name for register in registers if not register.is_local)

    @cached_property
    def written(self) -> frozenset[str]:
        """The probes' registers that the instructions of a lowered snippet write."""
        instructions = (statement for statement in self.straight if isinstance(statement, Assembly))
        written = (register for instruction in instructions for register in instruction.writes)
        return frozenset(register.name for register in written if not register.is_local)


@dataclass(frozen=True)
class Probe:
    """One probe: at least one of before and after is there."""

    name: str
    tracepoint: Tracepoint
    level: Level
    before: Snippet | None
    after: Snippet | None
    span: Span
    lanes: Lanes = Lanes.EXECUTING

    def with_snippets(self, change: Callable[[Snippet], Snippet]) -> Probe:
        """The probe with each of its snippets changed."""
        before = change(self.before) if self.before is not None else None
        after = change(self.after) if self.after is not None else None
        return replace(self, before=before, after=after)


_PLATFORMS = {"": "cuda", "ptx": "cuda"}


class _Seal:
    """Held by this module alone, so that a set is made here alone."""


_SEAL = _Seal()


@dataclass(frozen=True)
class ProbeSet:
    """All probes of a run, verified. Probes run in the order of this tuple.

    file, source: path and text that it was written as. reads_back: the source is one probe file in the newer dialect of
    TOML, and reads back to this set. warnings: what was accepted and should be written otherwise, in
    file order. parts: the sets of the single files, where this one was merged from several; spans count in their
    file. target: whose assembly its hand-written instructions are, ``ptx``; "" without any. analyze_hooks, callbacks:
    paths of scripts that run beside the program, when its trace has ended and whenever there are new launches in it.

    Only ``verified`` makes one: ``ProbeSet(…)`` and ``dataclasses.replace`` raise TypeError.
    """

    file: str
    source: str
    reads_back: bool
    target: str
    maps: tuple[Map, ...]
    registers: tuple[Register, ...]
    probes: tuple[Probe, ...]
    warnings: tuple[Diagnostic, ...] = ()
    parts: tuple[ProbeSet, ...] = ()
    analyze_hooks: tuple[str, ...] = ()
    callbacks: tuple[str, ...] = ()
    seal: InitVar[_Seal | None] = None

    def __post_init__(self, seal: _Seal | None) -> None:
        if seal is not _SEAL:
            raise TypeError("a ProbeSet is made by neutrino.load_probes, which verifies what is in it")

    def __hash__(self) -> int:
        # Looked up for every module: different sets have different texts.
        return hash((self.file, self.source))

    @property
    def platform(self) -> str:
        """What probe files call the target."""
        return _PLATFORMS[self.target]

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hex, over what the set means: comments and positions do not count."""
        meaning = [self.target, _plain(self.maps), _plain(self.registers), _plain(self.probes)]
        return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()

    def with_callbacks(self, paths: tuple[str, ...]) -> ProbeSet:
        """The set with more scripts that run whenever there are new launches."""
        return replace(self, callbacks=(*self.callbacks, *paths), seal=_SEAL)

    def only(self, names: Collection[str]) -> ProbeSet:
        """The set with these of its probes alone."""
        chosen = tuple(probe for probe in self.probes if probe.name in names)
        return replace(self, probes=chosen, reads_back=False, seal=_SEAL)

    def lowered(self, target: str, registers: tuple[Register, ...], probes: tuple[Probe, ...]) -> ProbeSet:
        """The set as a target has lowered it: the same probes, with straight snippets."""
        return replace(self, target=target, registers=registers, probes=probes, seal=_SEAL)


def verified(
    file: str,
    source: str,
    reads_back: bool,
    target: str,
    maps: tuple[Map, ...],
    registers: tuple[Register, ...],
    probes: tuple[Probe, ...],
    warnings: tuple[Diagnostic, ...] = (),
    parts: tuple[ProbeSet, ...] = (),
    analyze_hooks: tuple[str, ...] = (),
    callbacks: tuple[str, ...] = (),
) -> ProbeSet:
    """A set from its members. For the verifier, once it has found nothing wrong with them."""
    return ProbeSet(
        file, source, reads_back, target, maps, registers, probes, warnings, parts, analyze_hooks, callbacks, _SEAL
    )


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return [[_plain(key), _plain(item)] for key, item in value.items()]
    if hasattr(value, "__dataclass_fields__"):
        members = (member.name for member in fields(value) if member.compare and member.name != "span")
        return {"": type(value).__name__, **{name: _plain(getattr(value, name)) for name in members}}
    return value
