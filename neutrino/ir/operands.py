"""What the statements of a probe read and write: registers, constants, and values of the instruction at a site."""

from __future__ import annotations

import enum
from dataclasses import field

from neutrino.errors import Span
from neutrino.ir.types import Type
from neutrino.late_dataclass import dataclass

SCRATCH = "$"
"""What the names of local registers hold in hand-written and in lowered assembly, and those of others do not."""


@dataclass(frozen=True)
class Register:
    """A register of a probe.

    name: with ``%``. initial: its initial bits, as an unsigned number. is_local: its value is lost after the snippet;
    others are live from a kernel's entry to its exit and are shared by all probes of a set. In assembly the local ones
    are those with a ``$`` in their names (``SCRATCH``).
    """

    name: str
    type: Type
    initial: int
    span: Span = field(compare=False)
    is_local: bool = field(default=False, compare=False)

    @property
    def text(self) -> str:
        """The register's name in assembly."""
        return self.name


@dataclass(frozen=True)
class Constant:
    """A typed number. bits: its representation, as an unsigned number of the type's width."""

    type: Type
    bits: int


class Special(enum.Enum):
    """Values that every target's hardware provides to each thread.

    ``CLOCK`` counts cycles of the multiprocessor (u64), ``TIME`` nanoseconds of the GPU (u64). ``CUID`` is the
    multiprocessor or compute unit. The others say where a thread is, by axis: ``TID`` its place in the block of
    ``NTID`` threads; ``CTAID`` the block's place in the grid of ``NCTAID`` blocks; ``CLUSTERID`` the cluster's place
    among the ``NCLUSTERID`` clusters; ``CLUSTER_CTAID`` the block's place in its cluster of ``CLUSTER_NCTAID`` blocks.
    ``LANE`` is the thread's place in its warp, ``LANEMASK_LT`` has a bit for each lane below, ``WARP`` is the warp's
    place in the block, by linear thread ids. All are u32 but the first two.
    """

    CLOCK = "clock"
    TIME = "time"
    CUID = "cuid"
    TID_X, TID_Y, TID_Z = "tid.x", "tid.y", "tid.z"
    NTID_X, NTID_Y, NTID_Z = "ntid.x", "ntid.y", "ntid.z"
    CTAID_X, CTAID_Y, CTAID_Z = "ctaid.x", "ctaid.y", "ctaid.z"
    NCTAID_X, NCTAID_Y, NCTAID_Z = "nctaid.x", "nctaid.y", "nctaid.z"
    CLUSTERID_X, CLUSTERID_Y, CLUSTERID_Z = "clusterid.x", "clusterid.y", "clusterid.z"
    NCLUSTERID_X, NCLUSTERID_Y, NCLUSTERID_Z = "nclusterid.x", "nclusterid.y", "nclusterid.z"
    CLUSTER_CTAID_X, CLUSTER_CTAID_Y, CLUSTER_CTAID_Z = "cluster_ctaid.x", "cluster_ctaid.y", "cluster_ctaid.z"
    CLUSTER_NCTAID_X, CLUSTER_NCTAID_Y, CLUSTER_NCTAID_Z = "cluster_nctaid.x", "cluster_nctaid.y", "cluster_nctaid.z"
    LANE = "lane"
    LANEMASK_LT = "lanemask_lt"
    WARP = "warp"

    @property
    def type(self) -> Type:
        """The type of the value that this special register of the hardware has."""
        return Type.U64 if self in {Special.CLOCK, Special.TIME} else Type.U32


@dataclass(frozen=True)
class SiteOperand:
    """A value of the instruction that a probe matches: ``OUT``, ``IN1`` …, ``ADDR``, ``BYTES``, ``PRED`` …

    element: of a vector, such as ``y`` or ``3``; None for the first one. Of ``PARAM``, a kernel's parameter, which one,
    as ``0``, ``n`` or ``0+8.u32``.
    """

    name: str
    element: str | None = None

    @property
    def text(self) -> str:
        """The name by which probes read the value, such as ``IN1.x``."""
        return self.name if self.element is None else f"{self.name}.{self.element}"


@dataclass(frozen=True)
class SpecialRegister:
    """A special register of one target, in hand-written assembly. name: with ``%``."""

    name: str
    type: Type

    @property
    def text(self) -> str:
        """The special register's name in assembly."""
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
        """The negated predicate as assembly has it, ``!%p``."""
        return f"!{self.operand.text}"


@dataclass(frozen=True)
class Pair:
    """Two destinations of one instruction, in hand-written assembly: ``%p|%q``."""

    first: Register
    second: Register

    @property
    def text(self) -> str:
        """The pair of predicates as assembly has it, ``%p|%q``."""
        return f"{self.first.text}|{self.second.text}"


Value = Register | Constant | Special | SiteOperand
"""An operand that a typed operation reads."""

AssemblyOperand = Register | SiteOperand | SpecialRegister | Immediate | Inverted | Pair
"""An operand of hand-written assembly."""

SavedOperand = Register | Constant | SiteOperand | SpecialRegister | Immediate
"""A value for a field of a record. A ``Constant`` comes from typed code, an ``Immediate`` from assembly."""
