"""What a probe file means once it is read and found valid: plain values, the same from TOML and from Python."""

from __future__ import annotations

import enum
import hashlib
import json
from dataclasses import dataclass
from typing import Any


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

    text: as the user wrote it.
    """

    text: str
    opcode: tuple[str, ...]

    @property
    def is_kernel(self) -> bool:
        """Entry and ends of the kernel rather than an instruction."""
        return not self.opcode


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
    """Everything that one or more ``-p`` named, validated. Probes run in the order of this tuple."""

    file: str
    source: str
    maps: tuple[Map, ...]
    registers: tuple[Register, ...]
    probes: tuple[Probe, ...]
    warnings: tuple[str, ...] = ()

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
        skipped = {"span", "file", "source", "warnings"}
        names = [name for name in value.__dataclass_fields__ if name not in skipped]
        return {"": type(value).__name__, **{name: _plain(getattr(value, name)) for name in names}}
    return value
