"""The statements of a probe's snippet: computations and instructions, conditions and loops around them, and saves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace

from neutrino.errors import Span
from neutrino.ir.operands import (
    AssemblyOperand,
    Constant,
    Immediate,
    Inverted,
    Pair,
    Register,
    SavedOperand,
    SiteOperand,
)
from neutrino.ir.statements import Assembly, Computation
from neutrino.late_dataclass import dataclass
from neutrino.maps.declaration import Map


@dataclass(frozen=True)
class If:
    """Statements for threads in which a predicate is true (then) or false (otherwise). Lowered without a branch.

    unlikely: it is expected to be false in all threads, nearly always, so that a target may test the conditions of
    several sites at once, and run ``then`` after the last of them.
    """

    condition: Register
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...]
    span: Span = field(compare=False)
    unlikely: bool = False


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
        """The value of the variable in each iteration."""
        return range(self.start, self.stop, self.step)


@dataclass(frozen=True)
class While:
    """Run ``test``, and if ``condition`` is true then, ``body``; and again, at most ``bound`` times.

    A thread in which the condition is still true after so many turns goes on after the loop.
    """

    test: tuple[Statement, ...]
    condition: Register
    body: tuple[Statement, ...]
    bound: int
    span: Span = field(compare=False)


@dataclass(frozen=True)
class Save:
    """Save one value for each field of a map. The map's type says how: an array stores a record, a sum adds.

    guard: the predicate under which a thread saves; None: every thread that runs the snippet does. is_inverted: it
    saves if the predicate is false. places: of the operands in the file, as far as these are known.
    """

    map: Map
    operands: tuple[SavedOperand, ...]
    span: Span = field(compare=False)
    guard: Register | None = None
    is_inverted: bool = False
    places: tuple[Span, ...] = field(default=(), compare=False)

    @property
    def operand_spans(self) -> tuple[Span, ...]:
        """The place of each operand in the file, for messages; that of the save where they are not known."""
        return self.places if len(self.places) == len(self.operands) else (self.span,) * len(self.operands)


def constant_key(save: Save) -> int | None:
    """Return the first operand of a save if it is an integer of the first field's type in the probe; else None."""
    operand, kind = save.operands[0], save.map.fields[0].type.value
    if kind[0] == "f":
        return None
    if isinstance(operand, Immediate):
        try:
            number = int(operand.text, 0)
        except ValueError:
            return None
    elif isinstance(operand, Constant) and operand.type.bits > 1 and not operand.type.is_float:
        number = operand.bits
        if operand.type.is_signed and number >> (operand.type.bits - 1):
            number -= 1 << operand.type.bits
    else:
        return None
    bits = int(kind[1:])
    least = -(1 << bits - 1) if kind[0] == "s" else 0
    return number if least <= number < least + (1 << bits) else None


Statement = Computation | If | For | While | Save | Assembly
"""One statement of a snippet."""

Straight = Save | Assembly
"""The statements of lowered snippets: straight-line code, without ``If``, loops and typed operations."""


def registers_of(statement: Straight) -> tuple[Register, ...]:
    """Return the registers that a statement of a probe's assembly names, its guard first; one named twice occurs twice.
    """
    registers: list[Register] = []
    for operand in _guard_and_operands(statement):
        # The inverse is of a register, or of a value of the instruction.
        if isinstance(operand, Inverted):
            operand = operand.operand
        if isinstance(operand, Pair):
            registers += [operand.first, operand.second]
        elif isinstance(operand, Register):
            registers.append(operand)
    return tuple(registers)


def site_operands_of(statement: Straight) -> tuple[SiteOperand, ...]:
    """Return the values of the instruction at the site (``OUT``, ``ADDR`` …) that a lowered statement names."""
    operands = (
        operand.operand if isinstance(operand, Inverted) else operand for operand in _guard_and_operands(statement)
    )
    return tuple(operand for operand in operands if isinstance(operand, SiteOperand))


def _guard_and_operands(statement: Straight) -> tuple[AssemblyOperand | SavedOperand, ...]:
    """Return all that a statement of a probe's assembly reads or writes: its guard, if it has one, and its operands."""
    guard = statement.guard
    return statement.operands if guard is None else (guard, *statement.operands)


def saving_to(maps: Mapping[str, Map], statements: Iterable[Statement]) -> tuple[Statement, ...]:
    """Return statements whose saves go to others of these maps, by their names."""
    found: list[Statement] = []
    for statement in statements:
        if isinstance(statement, Save):
            statement = replace(statement, map=maps[statement.map.name])
        elif isinstance(statement, If):
            then, otherwise = saving_to(maps, statement.then), saving_to(maps, statement.otherwise)
            statement = replace(statement, then=then, otherwise=otherwise)
        elif isinstance(statement, (For, While)):
            statement = replace(statement, body=saving_to(maps, statement.body))
        found.append(statement)
    return tuple(found)


def walk(statements: Iterable[Statement]) -> Iterator[Statement]:
    """Yield all statements, and after each ``If``, ``For`` and ``While`` those inside it."""
    for statement in statements:
        yield statement
        if isinstance(statement, If):
            yield from walk((*statement.then, *statement.otherwise))
        elif isinstance(statement, For):
            yield from walk(statement.body)
        elif isinstance(statement, While):
            yield from walk((*statement.test, *statement.body))
