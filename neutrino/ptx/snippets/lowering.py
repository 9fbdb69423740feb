"""Lowering of typed statements to straight-line PTX, since inserted code must not branch. ``docs/ir.md`` has their
meaning.

Both sides of an ``If`` become instructions, and loops are unrolled. What assigns a value there is under a predicate,
the guard: integer arithmetic and extremes of floats themselves, of all else a move from a temporary register, in which
it is computed without one.
"""

from __future__ import annotations

import functools
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard, get_args

from neutrino.abi.levels import Level
from neutrino.ir.operands import (
    SCRATCH,
    Constant,
    Immediate,
    Inverted,
    Register,
    SiteOperand,
    Special,
    SpecialRegister,
)
from neutrino.ir.statements import (
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
)
from neutrino.ir.types import Type
from neutrino.probing.ir.deferral import Parts, branching, deferrable
from neutrino.probing.ir.probe_set import Branching, Deferral, Probe, ProbeSet, Snippet
from neutrino.probing.ir.structured import For, If, Save, Statement, While, registers_of, walk
from neutrino.ptx.snippets.folding import folded
from neutrino.ptx.snippets.lanes import LaneWriter
from neutrino.ptx.snippets.writer import REGISTER_TYPES, SPECIAL, TARGET, DivisionWriter, Guard, move, register_bits

_SIGN_BIT_OF_S8 = 0x80
_UPPER_BYTE_OF_16_BITS = 0xFF00

_FLOAT_OPERATIONS = {Operator.ADD: "add.rn", Operator.SUB: "sub.rn", Operator.MUL: "mul.rn"}
_INTEGER_OPERATIONS = {
    Operator.ADD: "add", Operator.SUB: "sub", Operator.MUL: "mul.lo", Operator.MIN: "min", Operator.MAX: "max",
    Operator.SHR: "shr",
}  # fmt: skip
_GUARDED = frozenset(
    {
        Operator.MOVE, Operator.ADD, Operator.SUB, Operator.AND, Operator.OR, Operator.XOR, Operator.NOT, Operator.MIN,
        Operator.MAX, Operator.SHL, Operator.SHR, Operator.MUL, Operator.NEG, Operator.ABS,
    }
)  # fmt: skip
"""Operations on integers that are one instruction, which takes the guard; ptxas keeps what is around it fused. Of
floats it is so for the least and the greatest alone."""
_BIT_OPERATIONS = {
    Operator.AND: "and", Operator.OR: "or", Operator.XOR: "xor", Operator.NOT: "not", Operator.SHL: "shl",
}  # fmt: skip


# Cached: each module of a run asks for the same set again.
@functools.lru_cache(maxsize=8)
def lower(probes: ProbeSet) -> ProbeSet:
    """Return the same probes with straight snippets: only PTX instructions and saves, no typed statements.

    A set that is straight already is returned as it is. A set merged from several files may have snippets of both
    kinds. Local registers that no lowered statement names are dropped.
    """
    for known, lowered in tuple(_recent):
        if known is probes:
            return lowered
    lowered = _lower(probes)
    _recent.append((probes, lowered))
    return lowered


_recent: deque[tuple[ProbeSet, ProbeSet]] = deque(maxlen=4)
"""Sets that were lowered last, with the result: each module of a program is instrumented with the same set."""


def _lower(probes: ProbeSet) -> ProbeSet:
    """Return a set of probes with all typed statements lowered to straight-line PTX; ``lower`` keeps the results."""
    is_straight = all(_is_straight(snippet) for probe in probes.probes for snippet in _snippets(probe))
    # Typed snippets that only save are straight too, but their registers may have types that PTX has not.
    is_straight &= all(probe.level is not Level.GROUP for probe in probes.probes)
    has_ptx_registers = all(register.type not in REGISTER_TYPES for register in probes.registers)
    if is_straight and has_ptx_registers and probes.target == TARGET:
        return probes
    # Temporary registers of all snippets are added to these; ``declared`` keeps the names from before.
    registers = {register.name: _with_ptx_type(register) for register in probes.registers}
    declared = frozenset(registers)
    for register in probes.registers:
        # In assembly the name says that a register is local.
        if register.is_local and SCRATCH not in register.name:
            name = register.name + SCRATCH
            while name in declared:
                name += SCRATCH
            registers[register.name] = replace(registers[register.name], name=name)
    lowered: list[Probe] = []
    deferred = deferrable(probes) if probes.apart is None else {}
    for probe in probes.probes:
        lowered.append(_straight(probe, registers, declared, deferred, may_branch=probes.apart is None))
    statements = (statement for probe in lowered for snippet in _snippets(probe) for statement in snippet.straight)
    used = {register.name for statement in statements for register in registers_of(statement)}
    needed = tuple(register for register in registers.values() if not register.is_local or register.name in used)
    return probes.lowered(TARGET, needed, tuple(lowered))


def _straight(
    probe: Probe, registers: dict[str, Register], declared: frozenset[str], deferred: Mapping[int, Parts], *,
    may_branch: bool,
) -> Probe:  # fmt: skip
    """Return a probe with straight-line snippets. One at level group becomes one at level thread whose saves ask for
    ``LEADER``.

    registers, declared: see ``Writer``. deferred: by the id of a snippet, its parts, if some may run later.
    may_branch: whether unlikely code may be under a branch.
    """
    leads = probe.level is Level.GROUP

    def lowered(snippet: Snippet) -> Snippet:
        """Return a snippet as straight-line code, and in parts where some may run later."""
        whole = _Lowering(registers, declared, leads).lowered(snippet)
        parts = deferred.get(id(snippet))
        if parts is not None:
            return replace(whole, deferral=_deferral(parts, registers, declared))
        branch = branching(snippet.statements) if probe.level is Level.THREAD and may_branch else None
        return whole if branch is None else replace(whole, branching=_branching(*branch, registers, declared))

    straight = probe.with_snippets(lowered)
    # Saves to records of a warp have their guard where they are written: there it is known which slot is the warp's.
    is_of_warp = any(
        isinstance(statement, Save) and statement.map.level is Level.WARP
        for snippet in _snippets(straight) for statement in snippet.straight
    )
    return replace(straight, level=Level.THREAD) if leads and not is_of_warp else straight


def _deferral(parts: Parts, registers: dict[str, Register], declared: frozenset[str]) -> Deferral:
    """Return the parts of a snippet as straight-line code. registers, declared: see ``Writer``."""
    test, conditions = _Lowering(registers, declared).computed(parts.test, parts.conditions)
    state, state_conditions = _Lowering(registers, declared).computed(parts.state, parts.state_conditions)
    here = _Lowering(registers, declared).lowered(Snippet(parts.here)) if parts.here else None
    later = _Lowering(registers, declared).lowered(Snippet(parts.later))
    once = _Lowering(registers, declared).lowered(Snippet(parts.once)) if parts.once is not None else None
    least, greatest = (registers[each.name] for each in parts.extremes) if parts.extremes is not None else (None, None)
    extremes = (least, greatest) if least is not None and greatest is not None else None
    return Deferral(
        here, test, conditions, state, state_conditions, later, once, extremes, parts.nan, parts.of_out,
        parts.halves, parts.is_counting,
    )  # fmt: skip


def _branching(
    others: Sequence[Statement], last: If, is_clocked: bool, registers: dict[str, Register], declared: frozenset[str]
) -> Branching:  # fmt: skip
    """Return a snippet in two parts as straight-line code: what comes first, and what the last ``If`` has. registers,
    declared: see ``Writer``."""
    test, (condition,) = _Lowering(registers, declared).computed(others, [last.condition])
    inside = Snippet(last.then if is_clocked else (last,))
    return Branching(test, condition, _Lowering(registers, declared).lowered(inside), is_clocked)


def _snippets(probe: Probe) -> Iterator[Snippet]:
    """The snippets that a probe has."""
    return (snippet for snippet in (probe.before, probe.after) if snippet is not None)


def _is_straight(snippet: Snippet) -> bool:
    """Return whether a snippet consists of PTX instructions and saves alone, without typed statements to translate."""
    return all(isinstance(statement, (Assembly, Save)) for statement in snippet.statements)


def _with_ptx_type(register: Register) -> Register:
    """Return a register of the same name with a type that registers of PTX can have, and an initial value of that type.

    8-bit integers become 16-bit ones. Their initial value is extended as ``_Lowering._wrap`` extends results: with
    zeros (u8, b8: it stays as it is), or with the sign (s8).
    """
    register_type = REGISTER_TYPES.get(register.type, register.type)
    initial = register.initial
    if register.type is Type.S8 and initial & _SIGN_BIT_OF_S8:
        initial |= _UPPER_BYTE_OF_16_BITS
    return Register(register.name, register_type, initial, register.span, register.is_local)


class _Lowering(DivisionWriter, LaneWriter):
    """Translates one snippet (a probe's code) to PTX: typed statements become instructions, in order.

    leads: the snippet is at level group: what it saves, each thread that ``LEADER`` is true for saves.
    """

    def __init__(self, registers: dict[str, Register], declared: frozenset[str], leads: bool = False) -> None:
        """Set up a translator of one snippet to PTX. registers, declared: see ``Writer``.

        leads: only the thread for which ``LEADER`` is true saves.
        """
        super().__init__(registers, declared)
        self._leads = leads
        self._leader: Register | None = None
        # How often the snippet names each of its local registers.
        self._mentions: Counter[str] = Counter()

    def lowered(self, snippet: Snippet) -> Snippet:
        """Return the snippet as PTX instructions and saves alone. Assembly in it is kept as it stands."""
        self._mentions = _mentioned(snippet.statements)
        self._block(snippet.statements, None)
        return Snippet(tuple(self._code) if _is_straight(snippet) else folded(self._code))

    def computed(
        self, statements: Sequence[Statement], conditions: Sequence[Register]
    ) -> tuple[Snippet, tuple[Register, ...]]:
        """Return statements that compute predicates as PTX instructions, and the predicates' registers there."""
        self._block(statements, None)
        return Snippet(tuple(self._code)), tuple(map(self._declared_register, conditions))

    def _block(self, statements: Sequence[Statement], guard: Guard | None) -> None:
        """Append the PTX of statements. guard: the predicate under which they take effect; None if they always do."""
        # Local registers that nothing else names may be assigned in all threads: only these statements read them.
        mentioned = _mentioned(statements) if guard is not None else Counter()
        own = {name for name, number in mentioned.items() if number == self._mentions[name]}
        for statement in statements:
            if isinstance(statement, If):
                self._if(statement, guard)
            elif isinstance(statement, For):
                # Unrolled: each iteration assigns the loop's variable, then runs the body.
                variable_type = statement.variable.type
                for value in statement.values:
                    # The remainder is the two's complement of a negative value.
                    constant = Constant(variable_type, value % (1 << variable_type.bits))
                    move = Operation(Operator.MOVE, statement.variable, (constant,), statement.span)
                    self._block((move, *statement.body), guard)
            elif isinstance(statement, While):
                self._while(statement, guard)
            elif isinstance(statement, Save):
                self._save(statement, guard)
            elif isinstance(statement, Assembly):
                self._code.append(statement)
            else:
                self._assign(statement, guard, is_own=statement.destination.name in own)

    # Control

    def _if(self, statement: If, guard: Guard | None) -> None:
        """Append the PTX of both sides of an ``If``, each under its own predicate: the condition or its inverse, and
        ``guard``."""
        span = statement.span
        condition = self._declared_register(statement.condition)
        # A condition that neither side assigns holds until the end, so that it is the predicate itself.
        inside = (*statement.then, *statement.otherwise)
        assigned = {inner.destination.name for inner in walk(inside) if isinstance(inner, Computation)}
        is_kept = statement.condition.name not in assigned
        guards: list[Guard] = []
        # Compute both predicates first: either side may assign the condition.
        for statements, is_inverted in ((statement.then, False), (statement.otherwise, True)):
            side = Guard(condition, is_inverted)
            if statements and (guard is not None or not is_kept):
                joined = self._temporary(Type.PRED, span)
                if guard is not None:
                    self._emit("and.pred", joined, (guard.operand, side.operand), span)
                else:
                    self._emit("not.pred" if is_inverted else "mov.pred", joined, (condition,), span)
                side = Guard(joined)
            guards.append(side)
        self._block(statement.then, guards[0])
        self._block(statement.otherwise, guards[1])

    def _while(self, statement: While, guard: Guard | None) -> None:
        """Append the PTX of a loop, unrolled as often as it may turn; a predicate says in which threads it still runs.
        """
        span = statement.span
        condition = self._declared_register(statement.condition)
        runs = self._temporary(Type.PRED, span)
        for _ in range(statement.bound):
            self._block(statement.test, guard)
            if guard is None:
                self._emit("mov.pred", runs, (condition,), span)
            else:
                self._emit("and.pred", runs, (guard.operand, condition), span)
            guard = Guard(runs)
            self._block(statement.body, guard)

    def _save(self, statement: Save, guard: Guard | None) -> None:
        """Append a save whose registers and constants have become PTX operands.

        guard: the predicate under which the enclosing ``If`` takes effect; None outside of any.
        """
        operands = tuple(
            self._operand(operand, statement.span) if isinstance(operand, (Register, Constant)) else operand
            for operand in statement.operands
        )
        if self._leads and statement.map.level is not Level.WARP:
            guard = self._of_leader(statement, guard)
        if guard is None:
            # Keeps a guard of its own, which a save in hand-written PTX may have.
            self._code.append(replace(statement, operands=operands))
        else:
            # Only typed statements stand inside an If, and typed saves have no guard of their own.
            self._code.append(Save(statement.map, operands, statement.span, guard.register, guard.is_inverted))

    def _of_leader(self, statement: Save, guard: Guard | None) -> Guard:
        """Return the guard (predicate) under which one lane saves for its group: that of LEADER, and of the ``If``
        around the save.

        guard: of the ``If``; None outside of any.
        """
        span = statement.span
        if self._leader is None:
            self._leader = self._computed("mov.pred", Type.PRED, (SiteOperand("LEADER"),), span)
        if guard is None and statement.guard is not None:
            guard = Guard(self._declared_register(statement.guard), statement.is_inverted)
        if guard is None:
            return Guard(self._leader)
        return Guard(self._computed("and.pred", Type.PRED, (self._leader, guard.operand), span))

    # Values

    def _assign(self, statement: Computation, guard: Guard | None, *, is_own: bool) -> None:
        """Append the PTX of a statement that computes a value into a register, only in threads for which the guard
        holds.

        is_own: it may be assigned in all threads, whatever the guard. Without a guard the value is computed in the
        destination. With one, an operation on integers that is one instruction takes the guard; else the value is
        computed in a temporary register, and a guarded move copies it. So the destination keeps its value where the
        guard is false.
        """
        span, result_type = statement.span, statement.destination.type
        destination = self._declared_register(statement.destination)
        if _is_active_mask(statement):
            # Under a predicate it gives the lanes for which that holds; a vote would be several instructions.
            self._emit("activemask.b32", destination, (), span, guard)
            return
        assigning = None if is_own else guard
        if assigning is not None and self._takes_agreed_guard(statement, assigning):
            assigning = None
        if assigning is not None and _takes_guard(statement):
            self._operation(statement, destination, assigning)
            return
        # A division whose guard is false may divide by zero, which is no fault in PTX.
        target = destination if assigning is None else self._temporary(result_type, span)
        if isinstance(statement, Operation):
            self._operation(statement, target)
        elif isinstance(statement, Convert):
            source_type, source = self._type_of(statement.source), self._operand(statement.source, span)
            self._convert(target, result_type, source_type, source, span)
        elif isinstance(statement, Reinterpret):
            self._reinterpret(target, result_type, statement.source, span)
        elif isinstance(statement, Compare):
            self._compare(statement, target)
        elif isinstance(statement, Select):
            self._select(statement, target)
        elif isinstance(statement, Collective):
            self._collective(statement, target, guard)
        elif isinstance(statement, Shuffle):
            self._shuffle(statement, target, guard)
        elif isinstance(statement, IsGlobal):
            address = self._operand(statement.address, span)
            if isinstance(address, Immediate):
                address = self._computed("mov.b64", Type.U64, (address,), span)
            self._emit("isspacep.global", target, (address,), span)
        elif isinstance(statement, ClockAfter):
            self._clock_after(statement, target)
        else:
            # Untyped bits: the instruction's operand may be an integer or a float.
            untyped = "pred" if result_type is Type.PRED else f"b{register_bits(result_type)}"
            self._emit(f"mov.{untyped}", target, (statement.operand,), span)
            self._wrap(target, result_type, span)
        if assigning is not None:
            self._emit(move(result_type), destination, (target,), span, assigning)

    def _operation(self, statement: Operation, target: Register, guard: Guard | None = None) -> None:
        """Append the code of an arithmetic or bitwise operation, or of a move. target: the register for the result.

        guard: of an operation that takes one (``_takes_guard``). 8-bit integers are computed in 16 bits, then wrapped
        around to 8.
        """
        operator, result_type, span = statement.operator, statement.destination.type, statement.span
        first = statement.sources[0]
        if operator is Operator.MOVE and isinstance(first, Special) and first is not Special.WARP:
            # Moved directly: _operand would move it to a temporary register first.
            special = SpecialRegister(SPECIAL[first], result_type)
            self._emit(move(result_type, special=True), target, (special,), span, guard)
            return
        sources = [self._operand(source, span) for source in statement.sources]
        if operator is Operator.MOVE:
            self._emit(move(result_type), target, sources, span, guard)
        elif operator in {Operator.POPC, Operator.CLZ}:
            # The result is a u32, whatever the width of the source.
            bits = self._type_of(first).bits
            self._emit(f"{operator.value}.b{bits}", target, sources, span)
        elif result_type is Type.BF16:
            # Before sm_90 there is no bf16 addition. In f32, sums and products round to the same bf16 as if they were
            # rounded once, as its precision of 24 bits is at least 2·8 + 2, where 8 is that of bf16. Other operators
            # (min, neg …) are exact.
            wide = [self._widened(source, span) for source in sources]
            result = self._temporary(Type.F32, span)
            self._emit(_float_opcode(operator, Type.F32), result, wide, span)
            self._emit("cvt.rn.bf16.f32", target, (result,), span)
        elif result_type.is_float:
            self._emit(_float_opcode(operator, result_type), target, sources, span, guard)
        elif operator in _BIT_OPERATIONS:
            untyped = "pred" if result_type is Type.PRED else f"b{register_bits(result_type)}"
            self._emit(f"{_BIT_OPERATIONS[operator]}.{untyped}", target, sources, span, guard)
            self._wrap(target, result_type, span)
        elif operator in {Operator.NEG, Operator.ABS}:
            # PTX negates signed types only; of an unsigned number the bits are the same.
            self._emit(f"{operator.value}.s{register_bits(result_type)}", target, sources, span, guard)
            self._wrap(target, result_type, span)
        elif operator in {Operator.DIV, Operator.REM}:
            self._division(statement, target, sources)
        else:
            letter = "s" if result_type.is_signed else "u"
            opcode = f"{_INTEGER_OPERATIONS[operator]}.{letter}{register_bits(result_type)}"
            self._emit(opcode, target, sources, span, guard)
            self._wrap(target, result_type, span)

    def _compare(self, statement: Compare, target: Register) -> None:
        """Append the code of a comparison. target: the predicate register for the result."""
        span, relation = statement.span, statement.relation
        operand_type = self._type_of(statement.left)
        left, right = self._operand(statement.left, span), self._operand(statement.right, span)
        if operand_type is Type.BF16:
            # setp has no bf16 before sm_90; every bf16 is also an f32.
            left, right, operand_type = self._widened(left, span), self._widened(right, span), Type.F32
        if operand_type.is_float:
            # With a NaN, "ne" of PTX is false; NE is true then, as "neu" is.
            comparison = "neu" if relation is Relation.NE else relation.value
            self._emit(f"setp.{comparison}.{operand_type}", target, (left, right), span)
            return
        # The letter of an integer type is b, s or u, as in PTX; 8-bit values are compared in their 16-bit registers.
        letter = operand_type.value[0]
        self._emit(f"setp.{relation.value}.{letter}{register_bits(operand_type)}", target, (left, right), span)

    def _select(self, statement: Select, target: Register) -> None:
        """Append the code of ``condition ? then : otherwise``. Predicates, which ``selp`` does not take, are combined
        bitwise.
        """
        span, result_type = statement.span, statement.destination.type
        condition = self._declared_register(statement.condition)
        then, otherwise = self._operand(statement.then, span), self._operand(statement.otherwise, span)
        if result_type is not Type.PRED:
            # selp has no f16; like integers, halves are selected as untyped bits.
            is_float = result_type in {Type.F32, Type.F64}
            selected = result_type.value if is_float else f"b{register_bits(result_type)}"
            self._emit(f"selp.{selected}", target, (then, otherwise, condition), span)
            return
        first, second = self._temporary(Type.PRED, span), self._temporary(Type.PRED, span)
        self._emit("and.pred", first, (then, condition), span)
        self._emit("and.pred", second, (otherwise, Inverted(condition)), span)
        self._emit("or.pred", target, (first, second), span)

    def _clock_after(self, statement: ClockAfter, target: Register) -> None:
        """Append the code that reads the clock once a value is there, such as what a load gives.

        What ptxas 13.0 does not move before the instruction that gives a value, on sm_75 to sm_120, is a clock under a
        predicate made of the value. This one holds in every thread: the grid has a block at least, of which ptxas does
        not know, and which is in constant memory.
        """
        span = statement.span
        word = self._word(statement.value, span)
        mask, is_there = self._temporary(Type.U32, span), self._temporary(Type.PRED, span)
        self._emit("mov.u32", mask, (SpecialRegister("%nctaid.x", Type.U32),), span)
        self._emit("or.b32", mask, (mask, word), span)
        self._emit("setp.ne.u32", is_there, (mask, Immediate("0")), span)
        # If the clock's register had no value otherwise, the predicate could be left out.
        self._emit("mov.b64", target, (Immediate("0"),), span)
        self._emit("mov.u64", target, (SpecialRegister("%clock64", Type.U64),), span, Guard(is_there))

def _takes_guard(statement: Computation) -> TypeGuard[Operation]:
    """Return whether a statement becomes one instruction that can be predicated: on integers, or the minimum or maximum
    of floats."""
    if not isinstance(statement, Operation) or statement.operator not in _GUARDED:
        return False
    result_type = statement.destination.type
    if result_type in {Type.F32, Type.F64}:
        return statement.operator in {Operator.MIN, Operator.MAX}
    # Those of 8 bits are wrapped around by a second instruction.
    return result_type.is_integer and result_type.bits > 8


_NAMING_FIELDS: Mapping[type, tuple[str, ...]] = {
    # Maps and places name no register.
    kind: tuple(name for name in kind.__dataclass_fields__ if name not in {"map", "span"})
    for kind in get_args(Statement)
}
"""Kind of statement → its fields that may hold registers and further statements."""


def _mentioned(statements: Sequence[Statement]) -> Counter[str]:
    """Return how often statements name each local register of the snippet."""
    names: list[str] = []
    # Not recursive, since all statements of a snippet are walked here.
    nodes: list[Any] = list(statements)
    while nodes:
        node = nodes.pop()
        kind = type(node)
        if kind is Register:
            if node.is_local:
                names.append(node.name)
        elif kind is tuple:
            nodes += node
        elif kind in _NAMING_FIELDS:
            nodes += [getattr(node, name) for name in _NAMING_FIELDS[kind]]
    return Counter(names)


def _is_active_mask(statement: Computation) -> bool:
    """Return whether a statement asks for the mask of active lanes: a ballot of a predicate that is always true."""
    if not isinstance(statement, Collective) or statement.reduction is not Reduction.BALLOT:
        return False
    return statement.source == Constant(Type.PRED, 1)


def _float_opcode(operator: Operator, value_type: Type) -> str:
    """Return the PTX opcode, with its type, of an arithmetic operation on floats."""
    return f"{_FLOAT_OPERATIONS.get(operator, operator.value)}.{value_type}"
