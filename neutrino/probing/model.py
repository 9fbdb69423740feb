"""What a probe file means once it is read and found valid: plain values, from TOML and from Python alike."""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from neutrino.errors import Diagnostic

STATE_SPACES = frozenset({"const", "global", "local", "param", "shared"})
"""State spaces that a modifier can name, without their ``::`` sub-qualifier (PTX ISA 5.1)."""


class Level(enum.Enum):
    """Which threads a snippet runs for, and which threads own a slot of a map."""

    THREAD = "thread"
    WARP = "warp"
    BLOCK = "block"


class MapKind(enum.Enum):
    """``ARRAY``: up to ``cap`` records a slot. ``SUM``: one record, added over all threads of the launch."""

    ARRAY = "array"
    SUM = "sum"


class Lanes(enum.Enum):
    """Which lanes of an instruction with a predicate a snippet runs for.

    ``EXECUTING``: those for which the instruction runs. ``REACHING``: all that come to it.
    """

    EXECUTING = "executing"
    REACHING = "reaching"


DYNAMIC_CAP = 0
"""``cap`` of a map whose slots hold as many records as earlier launches of the kernel needed."""


class ScalarType(enum.Enum):
    """Type of one field of a record, by the names of PTX and of the DSL."""

    U8 = "u8"
    S8 = "s8"
    U16 = "u16"
    S16 = "s16"
    U32 = "u32"
    S32 = "s32"
    U64 = "u64"
    S64 = "s64"
    F32 = "f32"
    F64 = "f64"

    @property
    def size(self) -> int:
        """Bytes; also the alignment."""
        return int(self.value[1:]) // 8


SUM_TYPES = frozenset({ScalarType.U32, ScalarType.S32, ScalarType.U64, ScalarType.S64})
"""Types of fields that are added up."""


@dataclass(frozen=True)
class Span:
    """A place in the probe file, counted from 1."""

    line: int
    column: int


@dataclass(frozen=True)
class Field:
    """One field of a record. offset: bytes from the record's start, by C alignment."""

    name: str
    type: ScalarType
    offset: int


@dataclass(frozen=True)
class Map:
    """``[map.NAME]``. size: bytes of one record; cap: records a slot (1 for ``SUM``, or ``DYNAMIC_CAP``)."""

    name: str
    kind: MapKind
    level: Level
    size: int
    cap: int
    fields: tuple[Field, ...]
    span: Span


@dataclass(frozen=True)
class Register:
    """A register of the probe file, alive from a kernel's entry to its exit.

    name: as written, with ``%``. type: PTX register type without the dot (``b32``, ``u64``, ``pred`` …).
    initial: the bits that it begins with, as an unsigned number.
    """

    name: str
    type: str
    initial: int
    span: Span


@dataclass(frozen=True)
class Instruction:
    """One instruction of a snippet, without the semicolon; helpers (OUT, IN1 …) are still words in it."""

    text: str
    span: Span


@dataclass(frozen=True)
class Save:
    """``SAVE [ MAP ] { operands }``, with as many operands as the map has fields."""

    map: Map
    operands: tuple[str, ...]
    span: Span


@dataclass(frozen=True)
class Snippet:
    """What is inserted on one side of a site, in order."""

    statements: tuple[Instruction | Save, ...]


CLASSES = ("memory", "load", "store", "atomic", "barrier", "branch", "tensor", "convert", "special")
"""Words that stand for many instructions; the assembly's table of opcodes says which."""


class Subject(enum.Enum):
    """What a pattern finds: a kernel's entry and ends, instructions, a ``.func``'s entry and returns, a source line."""

    KERNEL = "kernel"
    OPCODE = "opcode"
    CLASS = "class"
    ANY = "any"
    FUNCTION = "function"
    LINE = "line"


@dataclass(frozen=True)
class SourceLines:
    """Lines first to last of a source file. file: its name, or the end of its path from a ``/`` on."""

    file: str
    first: int
    last: int


@dataclass(frozen=True)
class Pattern:
    """One alternative of a tracepoint.

    opcode: the dotted parts of an ``OPCODE`` pattern (``("ld", "global")``). group: one of ``CLASSES``.
    without: modifiers that an instruction must not have, written ``!tensor``; without them
    ``cp.async.bulk.shared.global`` could not be told from its tensor form. function, lines: the subject itself
    (``FUNCTION``, ``LINE``), else the function and the source lines that instructions must belong to. A function's
    name may be mangled, demangled or a glob. predicated: only instructions with a predicate, written ``@``.
    """

    subject: Subject
    opcode: tuple[str, ...] = ()
    group: str = ""
    without: tuple[str, ...] = ()
    function: str = ""
    lines: SourceLines | None = None
    predicated: bool = False

    @property
    def has_operands(self) -> bool:
        """What it finds is an instruction, with operands for a snippet to read."""
        return self.subject in {Subject.OPCODE, Subject.CLASS, Subject.ANY}

    def matches(self, instruction: Sequence[str], groups: Collection[str] = ()) -> bool:
        """Whether it matches an instruction, given as the dotted parts of its opcode and the classes it is in.

        Of an opcode pattern the first part must be equal, the others must occur in this order among the modifiers.
        ``shared`` also stands for ``shared::cta`` and ``shared::cluster``; ``generic`` for the absence of a state
        space. Where the instruction stands (``function``, ``lines``) and whether it has a predicate is not looked at.
        """
        if not instruction or not self.has_operands:
            return False
        modifiers = instruction[1:]
        if any(_is_modifier(modifier, part) for part in self.without for modifier in modifiers):
            return False
        if self.subject is Subject.ANY:
            return True
        if self.subject is Subject.CLASS:
            return self.group in groups
        if self.opcode[0] != instruction[0]:
            return False
        rest = iter(modifiers)
        for part in self.opcode[1:]:
            if part == "generic":
                if any(modifier.partition("::")[0] in STATE_SPACES for modifier in modifiers):
                    return False
            elif not any(_is_modifier(modifier, part) for modifier in rest):
                return False
        return True


@dataclass(frozen=True)
class Tracepoint:
    """Where a probe goes. text: as the user wrote it. patterns: its alternatives, at least one."""

    text: str
    patterns: tuple[Pattern, ...]

    @property
    def is_kernel(self) -> bool:
        """One of the alternatives is the kernel's entry and ends."""
        return any(pattern.subject is Subject.KERNEL for pattern in self.patterns)

    @property
    def has_operands(self) -> bool:
        """Every alternative is an instruction, so that helpers such as ``OUT`` may be used."""
        return all(pattern.has_operands for pattern in self.patterns)

    def matches(self, instruction: Sequence[str], groups: Collection[str] = ()) -> bool:
        """Whether some alternative matches an instruction; see ``Pattern.matches``."""
        return any(pattern.matches(instruction, groups) for pattern in self.patterns)


@dataclass(frozen=True)
class Probe:
    """``[probe.NAME]``: at least one of before and after is there.

    registers: of AMD's assembly, as ``register`` names them: ``(("u32", 2), ("type", "sgpr"))``.
    """

    name: str
    tracepoint: Tracepoint
    level: Level
    before: Snippet | None
    after: Snippet | None
    span: Span
    lanes: Lanes = Lanes.EXECUTING
    registers: tuple[tuple[str, int | str], ...] = ()


@dataclass(frozen=True)
class ProbeSet:
    """Everything that one or more ``-p`` named, validated. Probes run in the order of this tuple.

    warnings: what was accepted and should be written otherwise, in file order. parts: the sets of the single files,
    where this one was merged from several; spans count in their file.
    platform: ``cuda`` or ``hip``, whose assembly the snippets are. analyze_hooks, callbacks: paths of scripts that
    run beside the program, when its trace has ended and whenever there are new launches in it.
    """

    file: str
    source: str
    maps: tuple[Map, ...]
    registers: tuple[Register, ...]
    probes: tuple[Probe, ...]
    warnings: tuple[Diagnostic, ...] = ()
    parts: tuple[ProbeSet, ...] = ()
    platform: str = "cuda"
    analyze_hooks: tuple[str, ...] = ()
    callbacks: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256, in hex, over what the set means: comments and positions do not count."""
        return hashlib.sha256(json.dumps(_plain(self), sort_keys=True).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        skipped = {"span", "file", "source", "warnings", "parts", "analyze_hooks", "callbacks"}
        names = [name for name in value.__dataclass_fields__ if name not in skipped]
        return {"": type(value).__name__, **{name: _plain(getattr(value, name)) for name in names}}
    return value


def _is_modifier(modifier: str, part: str) -> bool:
    return modifier == part or modifier.partition("::")[0] == part
