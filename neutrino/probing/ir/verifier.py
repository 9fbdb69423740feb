"""The verifier of typed IR: checks what every target relies on, independent of the front end that built the probes.

Types agree, registers are declared and assigned before they are read, loops end, records fit their maps. What depends
on a target's instructions, such as which of them has which operand, is checked by the target's own verifier.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from neutrino.abi.levels import Level
from neutrino.abi.records import Field
from neutrino.errors import Diagnostic, Span
from neutrino.ir.operands import (
    Constant,
    Immediate,
    Register,
    SavedOperand,
    SiteOperand,
    Special,
    SpecialRegister,
    Value,
)
from neutrino.ir.statements import (
    OF_MAPS,
    Assembly,
    ClockAfter,
    Collective,
    Compare,
    Computation,
    Convert,
    IsGlobal,
    Operation,
    Operator,
    Reduction,
    Reinterpret,
    Relation,
    Select,
    Shuffle,
    reduced_type,
)
from neutrino.ir.types import Type
from neutrino.probing.ir.draft import DraftProbes
from neutrino.probing.ir.probe_set import Probe
from neutrino.probing.ir.structured import For, If, Save, Statement, While
from neutrino.probing.savable_maps import misfit

BUDGET = 256
"""Greatest number of statements of one snippet, with its loops unrolled."""

DEPTH = 32
"""Greatest nesting depth of ``If``, ``For`` and ``While``."""

FAULTS: dict[str, str] = {
    "ir-type": "a value of another type than the operation takes",
    "ir-operator": "an operator that the type does not support",
    "ir-register": "a register that is not declared",
    "ir-unassigned": "a local register that is read before every path has assigned it",
    "ir-loop": "a loop without an end or with too many iterations, or one that assigns its own variable",
    "ir-collective": "a value that lanes exchange, put into a register that all probes share",
    "ir-budget": f"more than {BUDGET} statements with all loops unrolled, or nested more than {DEPTH} deep",
    "ir-group": "a register that all probes share, assigned by a probe at level `group`",
    "ir-save": "a record that does not match its map, or its map's level",
    "ir-assembly": "hand-written assembly where it is not allowed",
}
"""Code of a diagnostic → its meaning."""

OF_THREADS = "the lowest lane is another one each time: save to a map, as a sum, or make the level thread"
"""Hint for registers that a probe at level group assigns, which each thread has."""

_BITWISE = frozenset({Operator.AND, Operator.OR, Operator.XOR, Operator.NOT})
_SHIFTS = frozenset({Operator.SHL, Operator.SHR})
_BIT_COUNTS = frozenset({Operator.POPC, Operator.CLZ})
"""Operators that count bits of a value."""
_UNARY = frozenset({Operator.MOVE, Operator.NOT, Operator.NEG, Operator.ABS, *_BIT_COUNTS})
_DIVISIONS = frozenset({Operator.DIV, Operator.REM})


_OF_ONE_STATEMENT = frozenset({"ir-type", "ir-operator", "ir-save", "ir-collective"})
"""Faults of a statement by itself, which no other statement can mend."""


def verify(draft: DraftProbes) -> list[Diagnostic]:
    """Return the faults of typed probes in file order; an empty list if they are valid.

    Of probes with statements that could not be read only faults that do not follow from these.
    """
    diagnostics = [
        Diagnostic(draft.file, register.span.line, register.span.column, "", message, code="ir-type")
        for register in draft.registers
        if register.type is Type.LANES
        for message in [f"{register.name} is a set of lanes, which only map types have"]
    ]
    for probe in draft.probes:
        checker = _Checker(draft)
        for snippet in (probe.before, probe.after):
            if snippet is not None:
                checker.check_snippet(snippet.statements, probe)
        is_unread = probe.name in draft.unread
        diagnostics += [item for item in checker.diagnostics if not is_unread or item.code in _OF_ONE_STATEMENT]
    return sorted(diagnostics, key=lambda diagnostic: (diagnostic.line, diagnostic.column))


def _unrolled_size(statements: Sequence[Statement]) -> int:
    """Return how many statements a probe's code has with every loop unrolled, counting both sides of every ``If``.

    ``BUDGET`` limits it: each of them becomes code at every site, as lowering unrolls loops and inserts both sides
    under predicates.
    """
    size = 0
    for statement in statements:
        if isinstance(statement, If):
            size += 1 + _unrolled_size(statement.then) + _unrolled_size(statement.otherwise)
        elif isinstance(statement, For):
            iterations = _iterations(statement)
            # Loops without an end or with more iterations are reported by _check_loop.
            if iterations is not None and iterations <= BUDGET:
                # One more per iteration, for the assignment of the loop's variable.
                size += iterations * (1 + _unrolled_size(statement.body))
        elif isinstance(statement, While):
            # One more per iteration, for its predicate.
            if 0 <= statement.bound <= BUDGET:
                size += statement.bound * (1 + _unrolled_size(statement.test) + _unrolled_size(statement.body))
        else:
            size += 1
    return size


def _iterations(loop: For) -> int | None:
    """Return the number of iterations of a loop, of any size; None for an endless loop, whose step is 0."""
    if loop.step == 0:
        return None
    # Not len(loop.values), which raises OverflowError for large numbers. -(-a // b) rounds a / b up: the last step may
    # go beyond the stop.
    return max(0, -((loop.start - loop.stop) // loop.step))


def _first_below(statements: Sequence[Statement], depth: int) -> Statement | None:
    """Return the first statement that is nested too deeply: an ``If``, ``For`` or ``While`` inside ``depth`` others;
    None if none is."""
    for statement in statements:
        if isinstance(statement, (If, For, While)):
            if depth == 0:
                return statement
            if isinstance(statement, If):
                inner = (*statement.then, *statement.otherwise)
            else:
                inner = statement.body if isinstance(statement, For) else (*statement.test, *statement.body)
            nested = _first_below(inner, depth - 1)
            if nested is not None:
                return nested
    return None


class _Checker:
    """Checks the snippets of one file and collects the diagnostics.

    registers, maps: those of the file, which statements must use unchanged.
    """

    def __init__(self, draft: DraftProbes) -> None:
        """Prepare to check the probes of one file. draft: the probes."""
        self._file = draft.file
        self._lines = draft.source.split("\n")
        self._registers = {register.name: register for register in draft.registers}
        self._maps = set(draft.maps)
        self._lane_mask = draft.lane_mask
        self.diagnostics: list[Diagnostic] = []

    def check_snippet(self, statements: tuple[Statement, ...], probe: Probe) -> None:
        """Check the statements of the ``before`` or ``after`` of a probe."""
        too_deep = _first_below(statements, DEPTH)
        # The checks below follow the nesting by recursion, so they need a limit to it.
        if too_deep is not None:
            message = f"'if', 'for' and 'while' are nested more than {DEPTH} deep"
            self._report(too_deep.span, "ir-budget", message, "join conditions with and")
            return
        size = _unrolled_size(statements)
        if size > BUDGET:
            message = f"probe '{probe.name}' has {_shown(size)} statements with its loops unrolled, more than {BUDGET}"
            self._report(probe.span, "ir-budget", message, "each turn and each side of an if counts: write fewer")
        self._check_block(statements, probe, assigned=set(), loops=frozenset())

    def _report(self, span: Span, code: str, message: str, hint: str = "") -> None:
        """Add an error to the diagnostics, at a place in the file. code: one of ``FAULTS``."""
        line = self._lines[span.line - 1] if 0 < span.line <= len(self._lines) else ""
        self.diagnostics.append(Diagnostic(self._file, span.line, span.column, line, message, hint, code=code))

    def _check_block(
        self, statements: tuple[Statement, ...], probe: Probe, assigned: set[str], loops: frozenset[str]
    ) -> None:
        """Check statements in order.

        assigned: names of local registers that have a value at this point; those that the statements assign on every
        path are added. loops: variables of the enclosing loops.
        """
        for statement in statements:
            for value in _values_read(statement):
                self._check_value(value, statement.span, assigned)
            if isinstance(statement, If):
                self._check_type(statement.condition, Type.PRED, statement.span)
                assigned_in_then, assigned_in_otherwise = set(assigned), set(assigned)
                self._check_block(statement.then, probe, assigned_in_then, loops)
                self._check_block(statement.otherwise, probe, assigned_in_otherwise, loops)
                # Only what both sides assign has a value whichever of them runs.
                assigned |= assigned_in_then & assigned_in_otherwise
            elif isinstance(statement, For):
                self._check_loop(statement, probe, assigned, loops)
            elif isinstance(statement, While):
                self._check_while(statement, probe, assigned, loops)
            elif isinstance(statement, Save):
                self._check_save(statement, probe)
            elif isinstance(statement, Assembly):
                written = f"{statement.opcode} {', '.join(operand.text for operand in statement.operands)}".rstrip()
                self._report(statement.span, "ir-assembly", f"'{written}' among typed statements")
            else:
                self._check_types(statement)
                self._check_assignment(statement.destination, statement.span, assigned, loops)
                if probe.level is Level.GROUP and not statement.destination.is_local:
                    message = f"a group probe assigns {_source_name(statement.destination)}, which all probes share"
                    self._report(statement.span, "ir-group", message, OF_THREADS)

    def _check_value(self, value: Value | SavedOperand, span: Span, assigned: set[str]) -> None:
        """Check that a register that is read is declared and has a value, and that a constant fits its type.

        span: of the statement that reads it. assigned: see ``_check_block``.
        """
        if isinstance(value, Register):
            # Equal also in type and initial value, not only in name.
            if self._registers.get(value.name) != value:
                self._report(span, "ir-register", f"register {value.name} is not one of the probes'")
            # Shared registers always have a value: their initial one.
            elif value.is_local and value.name not in assigned:
                message = f"{_source_name(value)} may have no value here"
                self._report(span, "ir-unassigned", message, "assign it before, on each way")
        elif isinstance(value, Constant) and not 0 <= value.bits < 1 << value.type.bits:
            self._report(span, "ir-type", f"{value.bits} does not fit in {value.type}")

    def _check_assignment(self, register: Register, span: Span, assigned: set[str], loops: frozenset[str]) -> None:
        """Check that a register may be assigned, and add it to those that have a value.

        span: of the statement that assigns it. assigned, loops: see ``_check_block``.
        """
        if self._registers.get(register.name) != register:
            self._report(span, "ir-register", f"register {register.name} is not one of the probes'")
        if register.name in loops:
            message = f"{_source_name(register)} is the variable of a loop around this"
            self._report(span, "ir-loop", message, "choose another name")
        assigned.add(register.name)

    def _check_loop(self, loop: For, probe: Probe, assigned: set[str], loops: frozenset[str]) -> None:
        """Check a loop and its body. assigned, loops: see ``_check_block``."""
        iterations, variable = _iterations(loop), loop.variable
        # The body of a loop that cannot be unrolled is not checked.
        if iterations is None:
            self._report(loop.span, "ir-loop", "a loop whose step is 0 has no end")
            return
        if iterations > BUDGET:
            self._report(loop.span, "ir-loop", f"a loop of {_shown(iterations)} turns, more than {BUDGET}")
            return
        if not variable.type.is_integer or not variable.is_local:
            fault = "a register that all probes share" if variable.type.is_integer else variable.type
            self._report(loop.span, "ir-type", f"the variable of a loop is {fault}, not a local integer")
        # All other values are between the first and the last.
        elif loop.values and not all(_holds(variable.type, value) for value in (loop.values[0], loop.values[-1])):
            message = f"{variable.type} does not hold {_shown(loop.values[0])} to {_shown(loop.values[-1])}"
            self._report(loop.span, "ir-type", message, "give the variable of this loop a name of its own")
        assigned_in_body = set(assigned)
        self._check_assignment(loop.variable, loop.span, assigned_in_body, loops)
        self._check_block(loop.body, probe, assigned_in_body, loops | {loop.variable.name})
        # A loop without iterations assigns nothing.
        if loop.values:
            assigned |= assigned_in_body

    def _check_while(self, loop: While, probe: Probe, assigned: set[str], loops: frozenset[str]) -> None:
        """Check a loop with a condition, its test and its body. assigned, loops: see ``_check_block``."""
        if not 1 <= loop.bound <= BUDGET:
            message = f"a loop of at most {_shown(loop.bound)} turns, which are 1 to {BUDGET}"
            self._report(loop.span, "ir-loop", message)
            return
        # The test runs at least once, the body maybe never.
        self._check_block(loop.test, probe, assigned, loops)
        self._check_value(loop.condition, loop.span, assigned)
        self._check_type(loop.condition, Type.PRED, loop.span)
        self._check_block(loop.body, probe, set(assigned), loops)

    # Types

    def _check_type(self, value: Value, expected: Type, span: Span) -> None:
        """Report a value of another type than ``expected``.

        A ``SiteOperand`` is always reported: its type depends on the site, so ``Load`` first puts it into a register.
        """
        value_type = value.type if not isinstance(value, SiteOperand) else None
        if value is Special.LANEMASK_LT:
            value_type = self._lane_mask
        if value_type is not expected:
            shown = value.text if isinstance(value, SiteOperand) else value_type
            self._report(span, "ir-type", f"{shown} where the operation takes {expected}")

    def _check_types(self, statement: Computation) -> None:
        """Check that the types of a statement's operands agree, and that they support its operator.

        A ``Load`` needs no check: the value of the instruction may have any type.
        """
        span, result_type = statement.span, statement.destination.type
        if isinstance(statement, Operation):
            self._check_operation(statement)
        elif isinstance(statement, Compare):
            self._check_type(statement.destination, Type.PRED, span)
            left = statement.left
            # The type of a value of the instruction depends on the site, so there is none to compare here.
            if isinstance(left, SiteOperand):
                self._report(span, "ir-type", f"{left.text} is loaded into a register first")
                return
            self._check_type(statement.right, left.type, span)
            # Untyped bits can be equal, but have no order; predicates and pairs of halves are not compared at all.
            has_order = left.type not in {Type.PRED, Type.F16X2} and not left.type.is_untyped
            is_test_of_bits = left.type.is_untyped and statement.relation in {Relation.EQ, Relation.NE}
            if not has_order and not is_test_of_bits:
                self._report(span, "ir-operator", f"values of {left.type} have no '{statement.relation.value}'")
        elif isinstance(statement, Select):
            self._check_type(statement.condition, Type.PRED, span)
            self._check_type(statement.then, result_type, span)
            self._check_type(statement.otherwise, result_type, span)
        elif isinstance(statement, Convert):
            if isinstance(statement.source, SiteOperand):
                self._report(span, "ir-type", f"{statement.source.text} is loaded into a register first")
            elif Type.F16X2 in {result_type, statement.source.type}:
                self._report(span, "ir-operator", "a pair of halves is not converted")
        elif isinstance(statement, Reinterpret):
            self._check_reinterpretation(statement)
        elif isinstance(statement, Collective):
            self._check_collective(statement)
        elif isinstance(statement, Shuffle):
            self._check_exchanged("shuffle", statement, span)
            self._check_type(statement.lane, Type.U32, span)
            if not isinstance(statement.source, SiteOperand):
                self._check_type(statement.destination, statement.source.type, span)
        elif isinstance(statement, IsGlobal):
            self._check_type(statement.destination, Type.PRED, span)
            self._check_type(statement.address, Type.U64, span)
        elif isinstance(statement, ClockAfter):
            self._check_type(statement.destination, Type.U64, span)

    def _check_reinterpretation(self, statement: Reinterpret) -> None:
        """Check that both sides of a reinterpretation have bits, and as many."""
        source, result_type = statement.source, statement.destination.type
        if isinstance(source, SiteOperand):
            self._report(statement.span, "ir-type", f"{source.text} is loaded into a register first")
        elif Type.PRED in {source.type, result_type}:
            self._report(statement.span, "ir-operator", "a predicate has no bits")
        elif source.type.bits != result_type.bits:
            message = f"the {source.type.bits} bits of {source.type} as {result_type}, which has {result_type.bits}"
            self._report(statement.span, "ir-type", message)

    def _check_exchanged(self, name: str, statement: Collective | Shuffle, span: Span) -> None:
        """Check that what lanes exchange is no value of the instruction, and goes to a local register.

        A shared one keeps its value in threads that a probe at level warp or block is not for, while the lanes of a
        warp exchange values before these are left out.
        """
        destination, source = statement.destination, statement.source
        if not destination.is_local:
            message = f"'{name}' between lanes into {_source_name(destination)}, which all probes share"
            self._report(span, "ir-collective", message)
        if isinstance(source, SiteOperand):
            self._report(span, "ir-type", f"{source.text} is loaded into a register first")

    def _check_collective(self, statement: Collective) -> None:
        """Report an operation between lanes with types that it does not have."""
        reduction, destination, source = statement.reduction, statement.destination, statement.source
        span = statement.span
        self._check_exchanged(reduction.value, statement, span)
        if isinstance(source, SiteOperand):
            return
        of_predicate = reduction in {Reduction.ANY, Reduction.ALL, Reduction.BALLOT}
        if of_predicate:
            self._check_type(source, Type.PRED, span)
        elif not _reduces(source.type, reduction):
            hint = ""
            if reduction is Reduction.SUM and source.type.is_float:
                hint = "it would depend on the order of the lanes: add integers, or save each value"
            elif reduction in {Reduction.MATCH, Reduction.SAME, Reduction.OR}:
                hint = "convert it: to a u32" + ("" if reduction is Reduction.OR else " or a u64")
            message = f"values of {source.type} have no '{reduction.value}' between lanes"
            self._report(span, "ir-operator", message, hint)
            return
        self._check_type(destination, reduced_type(reduction, source.type, self._lane_mask), span)

    def _check_operation(self, statement: Operation) -> None:
        """Report an operation with a wrong number of operands, or with types that its operator does not have."""
        operator, result_type, span = statement.operator, statement.destination.type, statement.span
        source_count = 1 if operator in _UNARY else 2
        if len(statement.sources) != source_count:
            self._report(span, "ir-operator", f"'{operator.value}' takes {source_count} values")
            return
        if operator in _BIT_COUNTS:
            # A number of bits is a u32, whatever the width of the value whose bits are counted.
            self._check_type(statement.destination, Type.U32, span)
            (source,) = statement.sources
            # The type of a value of the instruction depends on the site, so it must be loaded into a register first.
            if isinstance(source, SiteOperand) or source.type not in {Type.U32, Type.U64}:
                self._report(span, "ir-type", f"'{operator.value}' takes u32 or u64")
            return
        # The amount of a shift is u32, whatever is shifted.
        source_types = [result_type, Type.U32] if operator in _SHIFTS else [result_type] * source_count
        for source, expected in zip(statement.sources, source_types, strict=True):
            self._check_type(source, expected, span)
        divisor = statement.sources[-1]
        if operator in _DIVISIONS and result_type.is_integer and not result_type.is_untyped and result_type.bits == 64:
            # By anything else it becomes the call of a function.
            if not isinstance(divisor, Constant) or divisor.bits == 0:
                self._report(span, "ir-operator", f"values of {result_type} have '{operator.value}' by constants alone")
        elif not _supports(result_type, operator):
            hint = ""
            if result_type.is_float:
                hint = "save both, and divide afterwards" if operator in _DIVISIONS else "nl.bits(x) has the bits of x"
            elif result_type is Type.PRED:
                hint = "as an integer it is 1 or 0: nl.u32(…)"
            self._report(span, "ir-operator", f"values of {result_type} have no '{operator.value}'", hint)

    # Records

    def _check_save(self, save: Save, probe: Probe) -> None:
        """Report a save that does not fit its map: by the level, or the number and types of the values."""
        if save.map not in self._maps:
            self._report(save.span, "ir-save", f"'{save.map.name}' is not one of the probes' maps")
        if save.guard is not None:
            self._report(save.span, "ir-save", "a save under a predicate of its own, which an 'if' is to say")
        fault = misfit(probe.level, save.map)
        if fault is not None:
            self._report(save.span, "ir-save", *fault)
        if len(save.operands) != len(save.map.fields):
            message = f"{len(save.operands)} values for the {len(save.map.fields)} fields of '{save.map.name}'"
            self._report(save.span, "ir-save", message)
            return
        for operand, field, place in zip(save.operands, save.map.fields, save.operand_spans, strict=True):
            # The width of a SiteOperand, for which there is no branch, is checked at each site.
            if isinstance(operand, (Register, Constant)) and not _fits(operand.type, field):
                message = f"a value of {operand.type} for field '{field.name}', which is {field.type.value}"
                self._report(place, "ir-save", message)
            elif isinstance(operand, (Immediate, SpecialRegister)):
                self._report(place, "ir-assembly", f"'{operand.text}' among typed statements")


def _values_read(statement: Statement) -> Iterator[Value | SavedOperand]:
    """Yield the values that a statement itself reads, without those of statements nested in it.

    Nothing is yielded for ``For``, which reads no values; for ``While``, whose condition its test may assign; for
    ``Load``, as any value of the instruction can be loaded;
    and for ``Assembly``, which is rejected as a whole.
    """
    if isinstance(statement, Operation):
        yield from statement.sources
    elif isinstance(statement, (Convert, Reinterpret, Collective)):
        yield statement.source
    elif isinstance(statement, Shuffle):
        yield from (statement.source, statement.lane)
    elif isinstance(statement, IsGlobal):
        yield statement.address
    elif isinstance(statement, ClockAfter):
        yield statement.value
    elif isinstance(statement, Compare):
        yield from (statement.left, statement.right)
    elif isinstance(statement, Select):
        yield from (statement.condition, statement.then, statement.otherwise)
    elif isinstance(statement, If):
        yield statement.condition
    elif isinstance(statement, Save):
        yield from statement.operands


def _holds(integer_type: Type, value: int) -> bool:
    """Return whether an integer type can represent a value."""
    lowest = -(1 << (integer_type.bits - 1)) if integer_type.is_signed else 0
    return lowest <= value < lowest + (1 << integer_type.bits)


def _source_name(register: Register) -> str:
    """Return the name of a register in the source: a front end prepends ``%`` and may append a suffix after ``$``."""
    return register.name[1:].partition("$")[0]


def _shown(number: int) -> str:
    """Return a number as text for a message, as Python refuses to write thousands of digits."""
    return f"{number:,}" if number.bit_length() < 128 else "very many"


def _supports(value_type: Type, operator: Operator) -> bool:
    """Return whether an arithmetic operator is defined for values of a type; operators that count bits are not asked
    for."""
    if operator in OF_MAPS:
        return False
    if operator is Operator.MOVE:
        return True
    if value_type is Type.F16X2:
        return False  # a pair, which only hand-written assembly takes apart
    if value_type is Type.PRED:
        return operator in _BITWISE
    if value_type.is_untyped:
        return operator in _BITWISE | _SHIFTS
    if value_type.is_float:
        return operator not in _BITWISE | _SHIFTS | _DIVISIONS
    return operator is not Operator.ABS or value_type.is_signed


def _reduces(value_type: Type, reduction: Reduction) -> bool:
    """Return whether a reduction over lanes, other than those of predicates, is defined for values of a type."""
    if reduction is Reduction.FIRST:
        return True
    if reduction in {Reduction.MATCH, Reduction.SAME}:
        return value_type.is_integer and value_type.bits >= 32
    if reduction is Reduction.OR:
        return value_type is Type.U32
    if value_type in {Type.PRED, Type.F16X2} or value_type.is_untyped:
        return False
    # A sum of floats depends on the order of the lanes.
    return reduction is not Reduction.SUM or not value_type.is_float


def _fits(value_type: Type, field: Field) -> bool:
    """Return whether a value of a type can be saved in a field.

    An integer field takes integers of its width, signed or not; a float field takes its own type. Both take untyped
    bits (``b32``) of their width.
    """
    field_type = Type(field.type.value)
    if field_type.is_float or value_type.is_float:
        # A float in an integer field is in neither case.
        return value_type is field_type or (value_type.is_untyped and value_type.bits == field_type.bits)
    return value_type is not Type.PRED and value_type.bits == field_type.bits
