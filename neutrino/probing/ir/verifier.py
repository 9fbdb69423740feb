"""The verifier of typed IR: what every target relies on, whatever front end made the probes.

Types agree, registers are the probes' own and are assigned before they are read, loops end, records fit their maps.
What depends on a target's instructions, such as which site has which operand, its own verifier checks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from neutrino.abi.records import Field
from neutrino.errors import Diagnostic, Span
from neutrino.probing.ir.draft import DraftProbes
from neutrino.probing.ir.operands import (
    Constant,
    Immediate,
    Register,
    SavedOperand,
    SiteOperand,
    SpecialRegister,
    Value,
)
from neutrino.probing.ir.probe_set import Probe
from neutrino.probing.ir.statements import (
    Assembly,
    Compare,
    Convert,
    For,
    If,
    Load,
    Operation,
    Operator,
    Relation,
    Save,
    Select,
    Statement,
)
from neutrino.probing.ir.types import Type

BUDGET = 256
"""Statements of one snippet, with its loops unrolled."""

DEPTH = 32
"""``If`` and ``For`` inside of each other."""

FAULTS: dict[str, str] = {
    "ir-type": "a value of another type than the operation takes",
    "ir-operator": "an operator that the type does not support",
    "ir-register": "a register that is not declared",
    "ir-unassigned": "a local register that is read before every path has assigned it",
    "ir-loop": "a loop without an end or with too many iterations, or one that assigns its own variable",
    "ir-budget": f"more than {BUDGET} statements with all loops unrolled, or nested more than {DEPTH} deep",
    "ir-save": "a record that does not match its map, or its map's level",
    "ir-assembly": "hand-written assembly where it is not allowed",
}
"""Code → what is wrong."""

_BITWISE = frozenset({Operator.AND, Operator.OR, Operator.XOR, Operator.NOT})
_SHIFTS = frozenset({Operator.SHL, Operator.SHR})
_COUNTS = frozenset({Operator.POPC, Operator.CLZ})
_UNARY = frozenset({Operator.MOVE, Operator.NOT, Operator.NEG, Operator.ABS, *_COUNTS})
_DIVISIONS = frozenset({Operator.DIV, Operator.REM})


def verify(draft: DraftProbes) -> list[Diagnostic]:
    """What is wrong with probes, in file order; empty when nothing is."""
    checker = _Checker(draft)
    for probe in draft.probes:
        for snippet in (probe.before, probe.after):
            if snippet is not None:
                checker.snippet(snippet.statements, probe)
    return sorted(checker.found, key=lambda item: (item.line, item.column))


def _unrolled_size(statements: Sequence[Statement]) -> int:
    """Statements that run when every loop is unrolled, both sides of every ``If`` counted."""
    size = 0
    for statement in statements:
        if isinstance(statement, If):
            size += 1 + _unrolled_size(statement.then) + _unrolled_size(statement.otherwise)
        elif isinstance(statement, For):
            turns = _turns(statement)
            # Others are faults of their own.
            if turns is not None and turns <= BUDGET:
                size += turns * (1 + _unrolled_size(statement.body))
        else:
            size += 1
    return size


def _turns(loop: For) -> int | None:
    """How often a loop runs, however often that is; None if it has no end."""
    if loop.step == 0:
        return None
    return max(0, -((loop.start - loop.stop) // loop.step))


def _depth_beyond(statements: Sequence[Statement], depth: int) -> Statement | None:
    """The first statement that is nested more than so deep."""
    for statement in statements:
        if isinstance(statement, (If, For)):
            if depth == 0:
                return statement
            inner = statement.body if isinstance(statement, For) else (*statement.then, *statement.otherwise)
            found = _depth_beyond(inner, depth - 1)
            if found is not None:
                return found
    return None


class _Checker:
    """One file's snippets; collects the faults."""

    def __init__(self, draft: DraftProbes) -> None:
        self._file = draft.file
        self._lines = draft.source.split("\n")
        self._registers = {register.name: register for register in draft.registers}
        self._maps = set(draft.maps)
        self.found: list[Diagnostic] = []

    def snippet(self, statements: tuple[Statement, ...], probe: Probe) -> None:
        deep = _depth_beyond(statements, DEPTH)
        if deep is not None:
            self._report(deep.span, "ir-budget", f"'if' and 'for' are nested more than {DEPTH} deep")
            return
        size = _unrolled_size(statements)
        if size > BUDGET:
            message = f"probe '{probe.name}' has {_shown(size)} statements with its loops unrolled, more than {BUDGET}"
            self._report(probe.span, "ir-budget", message)
        self._block(statements, probe, set(), frozenset())

    def _report(self, span: Span, code: str, message: str) -> None:
        line = self._lines[span.line - 1] if 0 < span.line <= len(self._lines) else ""
        self.found.append(Diagnostic(self._file, span.line, span.column, line, message, code=code))

    def _block(
        self, statements: tuple[Statement, ...], probe: Probe, assigned: set[str], loops: frozenset[str]
    ) -> None:
        """assigned: local registers that have a value; grows. loops: the variables of the loops around."""
        for statement in statements:
            for value in _read(statement):
                self._value(value, statement.span, assigned)
            if isinstance(statement, If):
                then, otherwise = set(assigned), set(assigned)
                self._type(statement.condition, Type.PRED, statement.span)
                self._block(statement.then, probe, then, loops)
                self._block(statement.otherwise, probe, otherwise, loops)
                assigned |= then & otherwise
            elif isinstance(statement, For):
                self._loop(statement, probe, assigned, loops)
            elif isinstance(statement, Save):
                self._save(statement, probe)
            elif isinstance(statement, Assembly):
                self._report(statement.span, "ir-assembly", f"'{statement.text}' among typed statements")
            else:
                self._computes(statement)
                self._assign(statement.destination, statement.span, assigned, loops)

    def _value(self, value: Value | SavedOperand, span: Span, assigned: set[str]) -> None:
        if isinstance(value, Register):
            if self._registers.get(value.name) != value:
                self._report(span, "ir-register", f"register {value.name} is not one of the probes'")
            elif value.is_local and value.name not in assigned:
                self._report(span, "ir-unassigned", f"{_word(value)} may have no value here")
        elif isinstance(value, Constant) and not 0 <= value.bits < 1 << value.type.bits:
            self._report(span, "ir-type", f"{value.bits} does not fit in {value.type}")

    def _assign(self, register: Register, span: Span, assigned: set[str], loops: frozenset[str]) -> None:
        if self._registers.get(register.name) != register:
            self._report(span, "ir-register", f"register {register.name} is not one of the probes'")
        if register.name in loops:
            self._report(span, "ir-loop", f"{_word(register)} is the variable of a loop around this")
        assigned.add(register.name)

    def _loop(self, loop: For, probe: Probe, assigned: set[str], loops: frozenset[str]) -> None:
        turns, variable = _turns(loop), loop.variable
        if turns is None:
            self._report(loop.span, "ir-loop", "a loop whose step is 0 has no end")
            return
        if turns > BUDGET:
            self._report(loop.span, "ir-loop", f"a loop of {_shown(turns)} turns, more than {BUDGET}")
            return
        if not variable.type.is_integer or not variable.is_local:
            what = "a register that all probes share" if variable.type.is_integer else variable.type
            self._report(loop.span, "ir-type", f"the variable of a loop is {what}, not a local integer")
        elif loop.values and not all(_holds(variable.type, value) for value in (loop.values[0], loop.values[-1])):
            message = f"{variable.type} does not hold {_shown(loop.values[0])} to {_shown(loop.values[-1])}"
            self._report(loop.span, "ir-type", message)
        inside = set(assigned)
        self._assign(loop.variable, loop.span, inside, loops)
        self._block(loop.body, probe, inside, loops | {loop.variable.name})
        if loop.values:
            assigned |= inside

    # Types

    def _type(self, value: Value, wanted: Type, span: Span) -> None:
        kind = value.type if not isinstance(value, SiteOperand) else None
        if kind is not wanted:
            what = value.text if isinstance(value, SiteOperand) else kind
            self._report(span, "ir-type", f"{what} where the operation takes {wanted}")

    def _computes(self, statement: Operation | Convert | Compare | Select | Load) -> None:
        span, kind = statement.span, statement.destination.type
        if isinstance(statement, Operation):
            self._operation(statement)
        elif isinstance(statement, Compare):
            self._type(statement.destination, Type.PRED, span)
            left = statement.left
            if isinstance(left, SiteOperand):
                self._report(span, "ir-type", f"{left.text} is loaded into a register first")
                return
            self._type(statement.right, left.type, span)
            if left.type in {Type.PRED, Type.F16X2} or (
                left.type.value.startswith("b") and statement.relation not in {Relation.EQ, Relation.NE}
                and left.type is not Type.BF16
            ):
                self._report(span, "ir-operator", f"values of {left.type} have no '{statement.relation.value}'")
        elif isinstance(statement, Select):
            self._type(statement.condition, Type.PRED, span)
            self._type(statement.then, kind, span)
            self._type(statement.otherwise, kind, span)
        elif isinstance(statement, Convert):
            if isinstance(statement.source, SiteOperand):
                self._report(span, "ir-type", f"{statement.source.text} is loaded into a register first")
            elif Type.F16X2 in {kind, statement.source.type}:
                self._report(span, "ir-operator", "a pair of halves is not converted")

    def _operation(self, statement: Operation) -> None:
        operator, kind, span = statement.operator, statement.destination.type, statement.span
        wanted = 1 if operator in _UNARY else 2
        if len(statement.sources) != wanted:
            self._report(span, "ir-operator", f"'{operator.value}' takes {wanted} values")
            return
        if operator in _COUNTS:
            source = statement.sources[0]
            self._type(statement.destination, Type.U32, span)
            if isinstance(source, SiteOperand) or source.type not in {Type.U32, Type.U64}:
                self._report(span, "ir-type", f"'{operator.value}' takes u32 or u64")
            return
        kinds = [kind, Type.U32] if operator in _SHIFTS else [kind] * wanted
        for source, expected in zip(statement.sources, kinds, strict=True):
            self._type(source, expected, span)
        if not _has(kind, operator):
            self._report(span, "ir-operator", f"values of {kind} have no '{operator.value}'")

    # Records

    def _save(self, save: Save, probe: Probe) -> None:
        if save.map not in self._maps:
            self._report(save.span, "ir-save", f"'{save.map.name}' is not one of the probes' maps")
        if save.guard is not None:
            self._report(save.span, "ir-save", "a save under a predicate of its own, which an 'if' is to say")
        if save.map.level is not probe.level:
            message = f"a {probe.level.value} probe saves to '{save.map.name}', a {save.map.level.value} map"
            self._report(save.span, "ir-save", message)
        if len(save.operands) != len(save.map.fields):
            message = f"{len(save.operands)} values for the {len(save.map.fields)} fields of '{save.map.name}'"
            self._report(save.span, "ir-save", message)
            return
        for operand, field in zip(save.operands, save.map.fields, strict=True):
            if isinstance(operand, (Register, Constant)) and not _fits(operand.type, field):
                message = f"a value of {operand.type} for field '{field.name}', which is {field.type.value}"
                self._report(save.span, "ir-save", message)
            elif isinstance(operand, (Immediate, SpecialRegister)):
                self._report(save.span, "ir-assembly", f"'{operand.text}' among typed statements")


def _read(statement: Statement) -> Iterator[Value | SavedOperand]:
    """What a statement itself reads."""
    if isinstance(statement, Operation):
        yield from statement.sources
    elif isinstance(statement, Convert):
        yield statement.source
    elif isinstance(statement, Compare):
        yield from (statement.left, statement.right)
    elif isinstance(statement, Select):
        yield from (statement.condition, statement.then, statement.otherwise)
    elif isinstance(statement, If):
        yield statement.condition
    elif isinstance(statement, Save):
        yield from statement.operands


def _holds(kind: Type, value: int) -> bool:
    """Whether an integer type has a value."""
    lowest = -(1 << (kind.bits - 1)) if kind.is_signed else 0
    return lowest <= value < lowest + (1 << kind.bits)


def _word(register: Register) -> str:
    """A register as its file calls it: a front end appends a suffix after ``$``."""
    return register.name[1:].partition("$")[0]


def _shown(number: int) -> str:
    """A number as messages show it: Python refuses to write thousands of digits."""
    return f"{number:,}" if number.bit_length() < 128 else "very many"


def _has(kind: Type, operator: Operator) -> bool:
    """Whether values of a type have an operator."""
    if operator is Operator.MOVE:
        return True
    if kind is Type.F16X2:
        return False
    if kind is Type.PRED or (kind.value.startswith("b") and kind is not Type.BF16):
        return operator in _BITWISE or (operator in _SHIFTS and kind is not Type.PRED)
    if kind.is_float:
        return operator not in _BITWISE | _SHIFTS | _DIVISIONS
    if operator in _DIVISIONS:
        # Divisions of 64 bits become calls.
        return kind.bits < 64
    return operator is not Operator.ABS or kind.is_signed


def _fits(kind: Type, field: Field) -> bool:
    """A field takes integers of its width, or bits of it, whatever their sign; floats of its own type."""
    wanted = Type(field.type.value)
    if wanted.is_float or kind.is_float:
        return kind is wanted or (kind.value.startswith("b") and kind.bits == wanted.bits and not kind.is_float)
    return kind is not Type.PRED and kind.bits == wanted.bits


