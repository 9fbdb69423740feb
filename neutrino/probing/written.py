"""Parsed probe files before verification; ``neutrino.verification`` makes probe sets of them."""

from __future__ import annotations

from neutrino.abi.levels import Level
from neutrino.errors import Diagnostic, Span
from neutrino.ir.operands import Register
from neutrino.late_dataclass import dataclass
from neutrino.maps.declaration import Map
from neutrino.probing.model import DEFAULT_PLATFORM, Lanes, Tracepoint


@dataclass(frozen=True)
class WrittenInstruction:
    """One instruction of a snippet, without its semicolon, with single spaces between words."""

    text: str
    span: Span


@dataclass(frozen=True)
class WrittenSave:
    """``SAVE [ MAP ] { operands }``. If the number of operands is not that of the map's fields, it has been reported.

    guard, is_inverted: see ``ir.statements.Save``.
    """

    map: Map
    operands: tuple[str, ...]
    span: Span
    guard: str | None = None
    is_inverted: bool = False


@dataclass(frozen=True)
class WrittenSnippet:
    """The statements before or after a site."""

    statements: tuple[WrittenInstruction | WrittenSave, ...]


@dataclass(frozen=True)
class WrittenProbe:
    """``[probe.NAME]``, with at least one of the snippets before and after.

    registers: for AMD's assembly, the items of the key ``register``: ``(("u32", 2), ("type", "sgpr"))``.
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
    """One probe file. Members have the same meaning as in ``ProbeSet``.

    platform: of the snippets' assembly. is_older: some probes are in the older dialect.
    """

    file: str
    source: str
    maps: tuple[Map, ...]
    registers: tuple[Register, ...]
    probes: tuple[WrittenProbe, ...]
    warnings: tuple[Diagnostic, ...] = ()
    platform: str = DEFAULT_PLATFORM
    analyze_hooks: tuple[str, ...] = ()
    callbacks: tuple[str, ...] = ()
    is_older: bool = False
