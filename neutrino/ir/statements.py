"""Typed statements that compute values, and instructions of a target."""

from __future__ import annotations

import enum
from dataclasses import field

from neutrino.errors import Span
from neutrino.ir.operands import AssemblyOperand, Register, SiteOperand, Value
from neutrino.ir.types import Type
from neutrino.late_dataclass import dataclass


class Operator(enum.Enum):
    """What an ``Operation`` computes. Integers wrap around; floats round to nearest even and are never fused.

    ``DIV`` and ``REM`` of integers of 64 bits are by constants other than 0 alone. ``SHR`` keeps the sign of a signed
    integer. A shift by the width or more gives 0, or with ``SHR`` of a signed integer all sign bits.

    Of map types alone: ``MUL_HIGH``, the upper half of an unsigned product; ``MUL_ADD``, the product of two u32 added
    to a u64 or a u32, or of two s32 to a u64; ``HIGHEST``, the number of the highest bit that is 1, from 0, or
    2**32 - 1 if there is none; ``LOWEST``, that of the lowest one likewise; ``FMA`` of floats, the
    product of two plus the third, rounded once.
    """

    MOVE = "move"
    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"
    REM = "rem"
    MIN = "min"
    MAX = "max"
    AND = "and"
    OR = "or"
    XOR = "xor"
    NOT = "not"
    NEG = "neg"
    ABS = "abs"
    SHL = "shl"
    SHR = "shr"
    POPC = "popc"
    CLZ = "clz"
    MUL_HIGH = "mul_high"
    MUL_ADD = "mul_add"
    HIGHEST = "highest"
    LOWEST = "lowest"
    FMA = "fma"


OF_MAPS = frozenset({Operator.MUL_HIGH, Operator.MUL_ADD, Operator.HIGHEST, Operator.LOWEST, Operator.FMA})
"""Operators that only map types use, not probes."""


class Relation(enum.Enum):
    """The comparison of a ``Compare``. With a NaN all but ``NE`` are false."""

    EQ = "eq"
    NE = "ne"
    LT = "lt"
    LE = "le"
    GT = "gt"
    GE = "ge"


class Reduction(enum.Enum):
    """What a ``Collective`` computes, over the lanes of a warp that execute it together.

    ``SUM``, ``MIN`` and ``MAX`` of a value; ``OR`` of the bits of a u32; ``ANY`` and ``ALL``: whether a predicate is
    true in one of them, or in all; ``BALLOT``: in which of them it is true; ``MATCH``: which lanes have the same value;
    ``SAME``: a predicate, whether all of them have the same value; ``FIRST``: the value of the lowest lane. A set of
    lanes has a bit for each, 0 for lanes that are not there: in probes it is a u32 where a warp has 32 lanes, a u64
    where it may have 64.
    """

    SUM = "sum"
    MIN = "min"
    MAX = "max"
    OR = "bit_or"
    ANY = "any"
    ALL = "all"
    BALLOT = "ballot"
    MATCH = "match"
    SAME = "same"
    FIRST = "first"


SETS_OF_LANES = frozenset({Reduction.BALLOT, Reduction.MATCH})
"""Reductions that give a set of lanes, a bit for each."""


def reduced_type(reduction: Reduction, source: Type, lane_mask: Type) -> Type:
    """Return the type of what a reduction gives. source: of what is reduced. lane_mask: of sets of lanes."""
    if reduction in SETS_OF_LANES:
        return lane_mask
    return Type.PRED if reduction is Reduction.SAME else source


@dataclass(frozen=True)
class Operation:
    """``destination = operator(sources)``, all of the destination's type.

    ``POPC`` and ``CLZ`` count bits of a u32 or u64 into a u32; the amount of a shift is a u32.
    """

    operator: Operator
    destination: Register
    sources: tuple[Value, ...]
    span: Span = field(compare=False)


@dataclass(frozen=True)
class Convert:
    """``destination = source`` in another type: integers extend by their sign or are cut, floats round to nearest
    even; a float becomes the integer towards zero, the nearest one where it does not fit; a predicate is 0 or 1.
    """

    destination: Register
    source: Value
    span: Span = field(compare=False)


@dataclass(frozen=True)
class Reinterpret:
    """``destination = source``, bits unchanged: both have the same width, and any type but ``pred``."""

    destination: Register
    source: Value
    span: Span = field(compare=False)


@dataclass(frozen=True)
class Compare:
    """``destination = left relation right``. destination: a predicate; left and right have one type."""

    relation: Relation
    destination: Register
    left: Value
    right: Value
    span: Span = field(compare=False)


@dataclass(frozen=True)
class Select:
    """``destination = condition ? then : otherwise``, all but the condition of one type."""

    destination: Register
    condition: Register
    then: Value
    otherwise: Value
    span: Span = field(compare=False)


@dataclass(frozen=True)
class Load:
    """``destination = operand``, bits unchanged: the destination has the width of the site's value.

    A kernel in which some site's value has another width is not probed, and the reason says which.
    """

    destination: Register
    operand: SiteOperand
    span: Span = field(compare=False)


@dataclass(frozen=True)
class Collective:
    """``destination = reduction(source)`` over the lanes that execute the site and every enclosing ``If`` together.

    At level warp or block these are all such lanes of the warp, not only that of the thread which saves. destination: a
    local register of the source's type; of ``BALLOT`` and ``MATCH`` of that of a set of lanes.
    """

    reduction: Reduction
    destination: Register
    source: Value
    span: Span = field(compare=False)


@dataclass(frozen=True)
class Shuffle:
    """``destination = source`` of the lane with a number, where that is one of the lanes that a ``Collective`` is over;
    the thread's own elsewhere.

    destination: a local register of the source's type. lane: a u32.
    """

    destination: Register
    source: Value
    lane: Value
    span: Span = field(compare=False)


@dataclass(frozen=True)
class IsGlobal:
    """``destination``, a predicate: whether a generic address, a u64, is in global memory."""

    destination: Register
    address: Value
    span: Span = field(compare=False)


@dataclass(frozen=True)
class ClockAfter:
    """``destination = Special.CLOCK``, read when ``value`` is there: after the load, say, that gives it.

    destination: a u64. A plain read of ``CLOCK`` waits for nothing.
    """

    destination: Register
    value: Register
    span: Span = field(compare=False)


@dataclass(frozen=True)
class Assembly:
    """One instruction of a target, written by hand or lowered.

    target: its name. opcode: with its modifiers. guard: its predicate, a register or ``PRED``; is_inverted: it runs
    where that is false. writes: the registers that it changes; all other registers among its operands, and the guard,
    are read.
    """

    target: str
    opcode: str
    operands: tuple[AssemblyOperand, ...]
    span: Span = field(compare=False)
    guard: Register | SiteOperand | None = None
    is_inverted: bool = False
    writes: tuple[Register, ...] = ()


Computation = Operation | Convert | Reinterpret | Compare | Select | Load | Collective | Shuffle | IsGlobal | ClockAfter
"""A typed statement that computes a value and assigns it to its ``destination``."""
