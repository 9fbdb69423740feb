"""Which snippets only add to registers that probes share, and what: it does not matter when, and often not in which
lanes."""

from __future__ import annotations

from dataclasses import dataclass

from neutrino.gcn.instrument.access_bytes import AMOUNTS
from neutrino.gcn.instrument.probe_registers import names_in
from neutrino.ir.operands import Constant, Register, SiteOperand
from neutrino.ir.statements import Compare, Convert, IsGlobal, Load, Operation, Operator, Reinterpret, Select
from neutrino.ir.types import Type
from neutrino.probing.ir.probe_set import Snippet
from neutrino.probing.ir.structured import Statement

MOST_ADDED = 1 << 25
"""What each of up to 64 lanes may add, so that 32 bits have the sum."""
_AMOUNTS = tuple(map(SiteOperand, AMOUNTS))
_COMPUTED = (Compare, Convert, IsGlobal, Load, Operation, Reinterpret, Select)


@dataclass(frozen=True)
class Addition:
    """What is added to a register. name: of the register. amount: a number, ``BYTES`` or ``OPS`` for those of the
    instruction. condition: a predicate, in whose lanes it is added; None: in all."""

    name: str
    amount: int | str
    condition: Register | None = None


@dataclass(frozen=True)
class Additions:
    """All that a snippet does. conditions: the statements that compute the conditions, in order."""

    rows: tuple[Addition, ...]
    conditions: tuple[Statement, ...] = ()


def additions_of(snippet: Snippet) -> Additions | None:
    """Return what a snippet adds to shared registers, None if it does anything else, or what it adds is not known.

    Its values have names of their own, so that each is assigned once.
    """
    amounts: dict[str, tuple[int | str, Register | None]] = {}
    """By a local register's name, as of an ``Addition``."""
    rows: list[Addition] = []
    computed: list[Statement] = []
    assigned: set[str] = set()

    def amount_of(value: object) -> tuple[int | str, Register | None] | None:
        if isinstance(value, Constant):
            return (value.bits, None) if value.bits < MOST_ADDED else None
        return amounts.get(value.name) if isinstance(value, Register) else None

    for statement in snippet.statements:
        if not isinstance(statement, _COMPUTED):
            return None
        to = statement.destination
        if not to.is_local:
            row = _added(statement)
            amount = amount_of(row)
            if amount is None or to.type not in (Type.U64, Type.U32):
                return None
            rows.append(Addition(to.name, *amount))
            continue
        if to.name in assigned:
            return None
        assigned.add(to.name)
        computed.append(statement)
        if isinstance(statement, Load) and statement.operand in _AMOUNTS:
            assert isinstance(statement.operand, SiteOperand)
            amounts[to.name] = statement.operand.name, None
        elif isinstance(statement, Select) and _is_zero(statement.otherwise):
            then = amount_of(statement.then)
            if then is not None and then[1] is None and isinstance(statement.condition, Register):
                amounts[to.name] = then[0], statement.condition
    needed = {row.condition.name for row in rows if row.condition is not None}
    conditions: list[Statement] = []
    for statement in reversed(computed):
        destination = getattr(statement, "destination", None)
        if isinstance(destination, Register) and destination.name in needed:
            conditions.append(statement)
            needed |= names_in(statement)
    if not rows or not needed <= assigned:
        # It reads what others may change meanwhile.
        return None
    return Additions(tuple(rows), tuple(conditions[::-1]))


def _added(statement: Statement) -> object:
    """Return what a statement adds to its own destination, None if it does something else."""
    if not isinstance(statement, Operation) or statement.operator is not Operator.ADD:
        return None
    left, right = statement.sources
    return right if left == statement.destination else None


def _is_zero(value: object) -> bool:
    """Return whether an operand is the number 0."""
    return isinstance(value, Constant) and value.bits == 0
