"""What a probe file means once it is read and found valid: plain values, from TOML and from Python alike."""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

STATE_SPACES = frozenset({"const", "global", "local", "param", "shared"})
"""State spaces that a modifier can name, without their ``::`` sub-qualifier (PTX ISA 5.1)."""


class Level(enum.Enum):
    """Which threads a snippet runs for, and which threads own a slot of a map."""

    THREAD = "thread"
    WARP = "warp"


class MapKind(enum.Enum):
    """``ARRAY``: up to ``cap`` records a slot. ``SUM``: one record, added over all threads of the launch."""

    ARRAY = "array"
    SUM = "sum"


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
    """``[map.NAME]``. size: bytes of one record; cap: records a slot (1 for ``SUM``)."""

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


@dataclass(frozen=True)
class Tracepoint:
    """Where a probe goes. opcode: the pattern's dotted parts (``("ld", "global")``), empty for ``kernel``.

    text: as the user wrote it. without: modifiers that an instruction must not have, written ``!tensor``
    after the pattern; without them ``cp.async.bulk.shared.global`` could not be told from its tensor form.
    """

    text: str
    opcode: tuple[str, ...]
    without: tuple[str, ...] = ()

    @property
    def is_kernel(self) -> bool:
        """Entry and ends of the kernel rather than an instruction."""
        return not self.opcode

    def matches(self, instruction: Sequence[str]) -> bool:
        """Whether the pattern matches an instruction, given as the dotted parts of its opcode.

        The first part must be equal, the others must occur in this order among the modifiers. ``shared`` also
        stands for ``shared::cta`` and ``shared::cluster``; ``generic`` for the absence of a state space.
        """
        if not self.opcode or not instruction or self.opcode[0] != instruction[0]:
            return False
        modifiers = instruction[1:]
        if any(_is_modifier(modifier, part) for part in self.without for modifier in modifiers):
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
class Probe:
    """``[probe.NAME]``: at least one of before and after is there."""

    name: str
    tracepoint: Tracepoint
    level: Level
    before: Snippet | None
    after: Snippet | None
    span: Span


@dataclass(frozen=True)
class ProbeSet:
    """Everything that one or more ``-p`` named, validated. Probes run in the order of this tuple.

    parts: the sets of the single files, where this one was merged from several; spans count in their file.
    """

    file: str
    source: str
    maps: tuple[Map, ...]
    registers: tuple[Register, ...]
    probes: tuple[Probe, ...]
    warnings: tuple[str, ...] = ()
    parts: tuple[ProbeSet, ...] = ()

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
        skipped = {"span", "file", "source", "warnings", "parts"}
        names = [name for name in value.__dataclass_fields__ if name not in skipped]
        return {"": type(value).__name__, **{name: _plain(getattr(value, name)) for name in names}}
    return value


def _is_modifier(modifier: str, part: str) -> bool:
    return modifier == part or modifier.partition("::")[0] == part
