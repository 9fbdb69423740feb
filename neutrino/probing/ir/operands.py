"""What the statements of a probe read and write: registers, constants, and values of the instruction at a site."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from neutrino.errors import Span
from neutrino.probing.ir.types import Type


@dataclass(frozen=True)
class Register:
    """A register of a probe.

    name: with ``%``. initial: its initial bits, as an unsigned number. is_local: its value is lost after the snippet;
    others are live from a kernel's entry to its exit and are shared by all probes of a set.
    """

    name: str
    type: Type
    initial: int
    span: Span = field(compare=False)
    is_local: bool = field(default=False, compare=False)

    @property
    def text(self) -> str:
        """Its name in assembly."""
        return self.name


@dataclass(frozen=True)
class Constant:
    """A typed number. bits: its representation, as an unsigned number of the type's width."""

    type: Type
    bits: int

    @property
    def text(self) -> str:
        """The constant in assembly: integers as unsigned numbers, floats by their bits."""
        if self.type is Type.F32:
            return f"0f{self.bits:08X}"
        return f"0d{self.bits:016X}" if self.type is Type.F64 else str(self.bits)


class Special(enum.Enum):
    """Values that every target's hardware provides to each thread.

    ``CLOCK`` counts cycles of the multiprocessor (u64), ``TIME`` nanoseconds of the GPU (u64). ``CUID`` is the
    multiprocessor or compute unit (u32).
    """

    CLOCK = "clock"
    TIME = "time"
    CUID = "cuid"

    @property
    def type(self) -> Type:
        """The type of its value."""
        return Type.U32 if self is Special.CUID else Type.U64


@dataclass(frozen=True)
class SiteOperand:
    """A value of the instruction that a probe matches: ``OUT``, ``IN1`` …, ``ADDR``, ``BYTES``, ``PRED`` …

    element: of a vector, such as ``y`` or ``3``; None for the first one.
    """

    name: str
    element: str | None = None

    @property
    def text(self) -> str:
        """Its name in assembly."""
        return self.name if self.element is None else f"{self.name}.{self.element}"


@dataclass(frozen=True)
class SpecialRegister:
    """A special register of one target, in hand-written assembly. name: with ``%``."""

    name: str
    type: Type

    @property
    def text(self) -> str:
        """Its name in assembly."""
        return self.name


@dataclass(frozen=True)
class Immediate:
    """A number in hand-written assembly, as it is written there."""

    text: str


@dataclass(frozen=True)
class Inverted:
    """The inverse of a predicate in hand-written assembly: ``!%p``."""

    operand: Register | SiteOperand

    @property
    def text(self) -> str:
        """Its name in assembly."""
        return f"!{self.operand.text}"


@dataclass(frozen=True)
class Pair:
    """Two destinations of one instruction, in hand-written assembly: ``%p|%q``."""

    first: Register
    second: Register

    @property
    def text(self) -> str:
        """Its name in assembly."""
        return f"{self.first.text}|{self.second.text}"


Value = Register | Constant | Special | SiteOperand
"""An operand that a typed operation reads."""

AssemblyOperand = Register | SiteOperand | SpecialRegister | Immediate | Inverted | Pair
"""An operand of hand-written assembly."""

SavedOperand = Register | Constant | SiteOperand | SpecialRegister | Immediate
"""A value for a field of a record. A ``Constant`` comes from typed code, an ``Immediate`` from assembly."""
