"""Probe files as they are written, taken apart but not verified: what ``verification`` makes probe sets of."""

from __future__ import annotations

from dataclasses import dataclass

from neutrino.abi.levels import Level
from neutrino.errors import Diagnostic, Span
from neutrino.maps.declaration import Map
from neutrino.probing.ir.operands import Register
from neutrino.probing.model import Lanes, Tracepoint


@dataclass(frozen=True)
class WrittenInstruction:
    """One instruction of a snippet, without the semicolon, words parted by single spaces."""

    text: str
    span: Span


@dataclass(frozen=True)
class WrittenSave:
    """``SAVE [ MAP ] { operands }``; with as many operands as the map has fields, unless that was reported.

    guard, is_inverted: as of ``ir.statements.Save``.
    """

    map: Map
    operands: tuple[str, ...]
    span: Span
    guard: str | None = None
    is_inverted: bool = False


@dataclass(frozen=True)
class WrittenSnippet:
    """One side of a probe."""

    statements: tuple[WrittenInstruction | WrittenSave, ...]


@dataclass(frozen=True)
class WrittenProbe:
    """``[probe.NAME]``: at least one of before and after is there.

    registers: of AMD's assembly, as ``register`` names them: ``(("u32", 2), ("type", "sgpr"))``.
    """

    name: str
    tracepoint: Tracepoint
    level: Level
    before: WrittenSnippet | None
    after: WrittenSnippet | None
    span: Span
    lanes: Lanes = Lanes.EXECUTING
    registers: tuple[tuple[str, int | str], ...] = ()


@dataclass(frozen=True)
class WrittenProbes:
    """One probe file. Members are as of ``ProbeSet``.

    platform: ``cuda`` or ``hip``, whose assembly the snippets are. is_older: some of it is in the older dialect.
    """

    file: str
    source: str
    maps: tuple[Map, ...]
    registers: tuple[Register, ...]
    probes: tuple[WrittenProbe, ...]
    warnings: tuple[Diagnostic, ...] = ()
    platform: str = "cuda"
    analyze_hooks: tuple[str, ...] = ()
    callbacks: tuple[str, ...] = ()
    is_older: bool = False
