"""The statements of a probe."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from neutrino.errors import Span
from neutrino.maps.declaration import Map
from neutrino.probing.ir.operands import AssemblyOperand, Inverted, Pair, Register, SavedOperand, SiteOperand, Value


class Operator(enum.Enum):
    """What an ``Operation`` computes. Integers wrap around; floats round to nearest even and are never fused.

    ``DIV`` and ``REM`` are for integers of 16 and 32 bits. ``SHR`` keeps the sign of a signed integer; shift amounts
    beyond the width give 0, or the sign.
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


class Relation(enum.Enum):
    """What a ``Compare`` asks. With a NaN all but ``NE`` are false."""

    EQ = "eq"
    NE = "ne"
    LT = "lt"
    LE = "le"
    GT = "gt"
    GE = "ge"


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
class If:
    """Statements for the threads in which a predicate holds, and for the others. Lowered without a branch."""

    condition: Register
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...]
    span: Span = field(compare=False)


@dataclass(frozen=True)
class For:
    """``for variable in range(start, stop, step)``, unrolled. variable: a local register of an integer type."""

    variable: Register
    start: int
    stop: int
    step: int
    body: tuple[Statement, ...]
    span: Span = field(compare=False)

    @property
    def values(self) -> range:
        """What the variable is, turn by turn."""
        return range(self.start, self.stop, self.step)


@dataclass(frozen=True)
class Save:
    """Give a map one value for each of its fields: a record of an array, what a sum adds. What it does with them is
    the map's type's.

    guard: a predicate under which alone it is done; None for all threads of the snippet. is_inverted: under its
    opposite.
    """

    map: Map
    operands: tuple[SavedOperand, ...]
    span: Span = field(compare=False)
    guard: Register | None = None
    is_inverted: bool = False


@dataclass(frozen=True)
class Assembly:
    """One instruction that was written by hand, for one target.

    opcode: with its modifiers. guard: its predicate, a register or ``PRED``; is_inverted: as ``@!%p``. writes: the
    registers that it changes; all other registers among its operands, and the guard, are read.
    """

    target: str
    opcode: str
    operands: tuple[AssemblyOperand, ...]
    span: Span = field(compare=False)
    guard: Register | SiteOperand | None = None
    is_inverted: bool = False
    writes: tuple[Register, ...] = ()

    @property
    def text(self) -> str:
        """The instruction without its semicolon."""
        prefix = "" if self.guard is None else f"@{'!' if self.is_inverted else ''}{self.guard.text} "
        operands = ", ".join(operand.text for operand in self.operands)
        return f"{prefix}{self.opcode} {operands}".rstrip()

    @property
    def reads(self) -> tuple[AssemblyOperand, ...]:
        """What it reads, the guard first."""
        guard = () if self.guard is None else (self.guard,)
        return (*guard, *(self.operands[1:] if self.writes else self.operands))


Statement = Operation | Convert | Compare | Select | Load | If | For | Save | Assembly
"""One statement of a snippet."""

Straight = Save | Assembly
"""What is left once a target has lowered the others."""


def registers_of(statement: Straight) -> tuple[Register, ...]:
    """The registers that a lowered statement names, each as often as it does."""
    found: list[Register] = []
    guard = statement.guard
    for operand in (*(() if guard is None else (guard,)), *statement.operands):
        if isinstance(operand, Inverted):
            operand = operand.operand
        if isinstance(operand, Pair):
            found += [operand.first, operand.second]
        elif isinstance(operand, Register):
            found.append(operand)
    return tuple(found)


def site_operands_of(statement: Straight) -> tuple[SiteOperand, ...]:
    """The values of a site that a lowered statement names."""
    guard = statement.guard
    named = (*(() if guard is None else (guard,)), *statement.operands)
    inner = (operand.operand if isinstance(operand, Inverted) else operand for operand in named)
    return tuple(operand for operand in inner if isinstance(operand, SiteOperand))


def walk(statements: Iterable[Statement]) -> Iterator[Statement]:
    """All statements, those inside of others after them."""
    for statement in statements:
        yield statement
        if isinstance(statement, If):
            yield from walk((*statement.then, *statement.otherwise))
        elif isinstance(statement, For):
            yield from walk(statement.body)
