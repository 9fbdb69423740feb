"""From typed statements to PTX instructions: straight code, without branches.

Both sides of an ``If`` become instructions under predicates, loops are unrolled. What only a predicate's side needs is
computed unconditionally, so that predicates guard nothing but assignments that outlive it, and records.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from neutrino.errors import Span
from neutrino.probing.ir.operands import (
    AssemblyOperand,
    Constant,
    Immediate,
    Inverted,
    Register,
    SiteOperand,
    Special,
    SpecialRegister,
    Value,
)
from neutrino.probing.ir.probe_set import Probe, ProbeSet, Snippet
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
    Straight,
    registers_of,
)
from neutrino.probing.ir.types import Type

TARGET = "ptx"
"""What ``Assembly`` calls this target."""

_SPECIAL: Mapping[Special, str] = {
    Special.CLOCK: "%clock64", Special.TIME: "%globaltimer", Special.CUID: "%smid", Special.LANE: "%laneid",
    Special.TID_X: "%tid.x", Special.TID_Y: "%tid.y", Special.TID_Z: "%tid.z",
    Special.BLOCK_X: "%ctaid.x", Special.BLOCK_Y: "%ctaid.y", Special.BLOCK_Z: "%ctaid.z",
}  # fmt: skip

_STORED: Mapping[Type, Type] = {
    Type.U8: Type.U16, Type.S8: Type.S16, Type.B8: Type.B16, Type.BF16: Type.B16,
}  # fmt: skip
"""Type → that of the register which holds it: PTX computes with 16 bits at least, and has no type for bf16."""

_FLOAT_OPERATIONS = {Operator.ADD: "add.rn", Operator.SUB: "sub.rn", Operator.MUL: "mul.rn"}
_INTEGER_OPERATIONS = {
    Operator.ADD: "add", Operator.SUB: "sub", Operator.MUL: "mul.lo", Operator.DIV: "div", Operator.REM: "rem",
    Operator.MIN: "min", Operator.MAX: "max", Operator.SHR: "shr",
}  # fmt: skip
_BIT_OPERATIONS = {
    Operator.AND: "and", Operator.OR: "or", Operator.XOR: "xor", Operator.NOT: "not", Operator.SHL: "shl",
}  # fmt: skip


class _Guard(NamedTuple):
    """Under which predicate statements are done."""

    register: Register
    is_inverted: bool


@functools.lru_cache(maxsize=8)
def lower(probes: ProbeSet) -> ProbeSet:
    """The same probes with straight snippets, whose assembly is PTX; a set that has such already as it is."""
    if probes.target == TARGET:
        return probes
    registers = {register.name: _stored(register) for register in probes.registers}
    lowered: list[Probe] = []
    for probe in probes.probes:
        lowered.append(probe.with_snippets(lambda snippet: _Lowering(registers).snippet(snippet)))
    snippets = (snippet for probe in lowered for snippet in (probe.before, probe.after) if snippet is not None)
    named = {entry.name for snippet in snippets for statement in snippet.straight for entry in registers_of(statement)}
    kept = tuple(register for register in registers.values() if not register.is_local or register.name in named)
    return probes.lowered(TARGET, kept, tuple(lowered))


def _stored(register: Register) -> Register:
    kind = _STORED.get(register.type, register.type)
    return Register(register.name, kind, register.initial, register.span, register.is_local)


class _Lowering:
    """One snippet. registers: of the set, as PTX has them; temporary ones join it."""

    def __init__(self, registers: dict[str, Register]) -> None:
        self._registers = registers
        self._code: list[Straight] = []
        self._temporaries = 0

    def snippet(self, snippet: Snippet) -> Snippet:
        """The snippet's straight form."""
        self._block(snippet.statements, None)
        return Snippet(tuple(self._code))

    def _block(self, statements: Sequence[Statement], guard: _Guard | None) -> None:
        for statement in statements:
            if isinstance(statement, If):
                self._if(statement, guard)
            elif isinstance(statement, For):
                for value in statement.values:
                    kind = statement.variable.type
                    constant = Constant(kind, value % (1 << kind.bits))
                    move = Operation(Operator.MOVE, statement.variable, (constant,), statement.span)
                    self._block((move, *statement.body), guard)
            elif isinstance(statement, Save):
                self._save(statement, guard)
            elif isinstance(statement, Assembly):
                self._code.append(statement)
            else:
                self._assign(statement, guard)

    # Control

    def _if(self, statement: If, guard: _Guard | None) -> None:
        span = statement.span
        condition = self._own(statement.condition)
        then, otherwise = self._temporary(Type.PRED, span), self._temporary(Type.PRED, span)
        if guard is None:
            self._emit("mov.pred", then, (condition,), span)
            if statement.otherwise:
                self._emit("not.pred", otherwise, (condition,), span)
        else:
            around: AssemblyOperand = Inverted(guard.register) if guard.is_inverted else guard.register
            self._emit("and.pred", then, (around, condition), span)
            if statement.otherwise:
                self._emit("and.pred", otherwise, (around, Inverted(condition)), span)
        self._block(statement.then, _Guard(then, False))
        self._block(statement.otherwise, _Guard(otherwise, False))

    def _save(self, statement: Save, guard: _Guard | None) -> None:
        operands = tuple(
            self._own(operand) if isinstance(operand, Register) else operand for operand in statement.operands
        )
        under = guard.register if guard else None
        self._code.append(Save(statement.map, operands, statement.span, under, bool(guard and guard.is_inverted)))

    # Values

    def _assign(self, statement: Operation | Convert | Compare | Select | Load, guard: _Guard | None) -> None:
        """Compute into the destination; under a guard into a temporary register, which the guard then lets through."""
        span, kind = statement.span, statement.destination.type
        destination = self._own(statement.destination)
        # A division under a guard that is false may be by zero, which is no fault.
        target = destination if guard is None else self._temporary(kind, span)
        if isinstance(statement, Operation):
            self._operation(statement, target)
        elif isinstance(statement, Convert):
            self._convert(target, kind, self._typed(statement.source), self._operand(statement.source, span), span)
        elif isinstance(statement, Compare):
            self._compare(statement, target)
        elif isinstance(statement, Select):
            self._select(statement, target)
        else:
            self._emit(_move(kind), target, (statement.operand,), span)
        if guard is not None:
            self._emit(_move(kind), destination, (target,), span, guard)

    def _operation(self, statement: Operation, target: Register) -> None:
        operator, kind, span = statement.operator, statement.destination.type, statement.span
        first = statement.sources[0]
        if operator is Operator.MOVE and isinstance(first, Special):
            self._emit(_move(kind, special=True), target, (SpecialRegister(_SPECIAL[first], kind),), span)
            return
        sources = [self._operand(source, span) for source in statement.sources]
        if operator is Operator.MOVE:
            self._emit(_move(kind), target, sources, span)
        elif operator in {Operator.POPC, Operator.CLZ}:
            bits = self._typed(statement.sources[0]).bits
            self._emit(f"{operator.value}.b{bits}", target, sources, span)
        elif kind is Type.BF16:
            # Only sm_90 adds them; with 24 bits in between sums and products round as if at once.
            wide = [self._widened(source, span) for source in sources]
            result = self._temporary(Type.F32, span)
            self._emit(_float_opcode(operator, Type.F32), result, wide, span)
            self._emit("cvt.rn.bf16.f32", target, (result,), span)
        elif kind.is_float:
            self._emit(_float_opcode(operator, kind), target, sources, span)
        elif operator in _BIT_OPERATIONS:
            width = "pred" if kind is Type.PRED else f"b{max(kind.bits, 16)}"
            self._emit(f"{_BIT_OPERATIONS[operator]}.{width}", target, sources, span)
            self._wrap(target, kind, span)
        elif operator is Operator.NEG:
            self._emit(f"neg.s{max(kind.bits, 16)}", target, sources, span)
            self._wrap(target, kind, span)
        elif operator is Operator.ABS:
            self._emit(f"abs.s{max(kind.bits, 16)}", target, sources, span)
            self._wrap(target, kind, span)
        else:
            letter = "s" if kind.is_signed else "u"
            self._emit(f"{_INTEGER_OPERATIONS[operator]}.{letter}{max(kind.bits, 16)}", target, sources, span)
            self._wrap(target, kind, span)

    def _wrap(self, target: Register, kind: Type, span: Span) -> None:
        """Bring what was computed in 16 bits back to the 8 that the type has."""
        if kind.is_integer and kind.bits == 8:
            opcode = "cvt.s16.s8" if kind.is_signed else "cvt.u16.u8"
            self._emit(opcode, target, (target,), span)

    def _compare(self, statement: Compare, target: Register) -> None:
        span, relation = statement.span, statement.relation
        kind = self._typed(statement.left)
        left, right = self._operand(statement.left, span), self._operand(statement.right, span)
        if kind is Type.BF16:
            left, right, kind = self._widened(left, span), self._widened(right, span), Type.F32
        if kind.is_float:
            # "ne" is false where one is a NaN, "neu" is true.
            word = "neu" if relation is Relation.NE else relation.value
            self._emit(f"setp.{word}.{kind}", target, (left, right), span)
            return
        letter = "b" if kind.value.startswith("b") else "s" if kind.is_signed else "u"
        self._emit(f"setp.{relation.value}.{letter}{max(kind.bits, 16)}", target, (left, right), span)

    def _select(self, statement: Select, target: Register) -> None:
        span, kind = statement.span, statement.destination.type
        condition = self._own(statement.condition)
        then, otherwise = self._operand(statement.then, span), self._operand(statement.otherwise, span)
        if kind is not Type.PRED:
            width = kind.value if kind in {Type.F32, Type.F64} else f"b{max(kind.bits, 16)}"
            self._emit(f"selp.{width}", target, (then, otherwise, condition), span)
            return
        first, second = self._temporary(Type.PRED, span), self._temporary(Type.PRED, span)
        self._emit("and.pred", first, (then, condition), span)
        self._emit("and.pred", second, (otherwise, Inverted(condition)), span)
        self._emit("or.pred", target, (first, second), span)

    def _convert(self, target: Register, kind: Type, have: Type, source: AssemblyOperand, span: Span) -> None:
        if kind is Type.PRED:
            zero = Immediate("0f00000000" if have is Type.F32 else "0d0000000000000000" if have is Type.F64 else "0")
            if have in {Type.F16, Type.BF16}:
                source, have, zero = self._widened(source, span, have), Type.F32, Immediate("0f00000000")
            if have is Type.PRED:
                self._emit("mov.pred", target, (source,), span)
            else:
                word = "neu" if have.is_float else "ne"
                width = have.value if have.is_float else f"u{max(have.bits, 16)}"
                self._emit(f"setp.{word}.{width}", target, (source, zero), span)
        elif have is Type.PRED:
            if kind.is_float:
                whole = self._temporary(Type.U32, span)
                self._emit("selp.u32", whole, (Immediate("1"), Immediate("0"), source), span)
                self._convert(target, kind, Type.U32, whole, span)
            else:
                self._emit(f"selp.b{max(kind.bits, 16)}", target, (Immediate("1"), Immediate("0"), source), span)
        elif Type.BF16 in {kind, have} and kind is not have:
            wide = self._widened(source, span, have) if have is Type.BF16 else source
            if kind is Type.BF16 and have is not Type.F32:
                wide = self._temporary(Type.F32, span)
                self._convert(wide, Type.F32, have, source, span)
            if kind is Type.BF16:
                self._emit("cvt.rn.bf16.f32", target, (wide,), span)
            else:
                self._convert(target, kind, Type.F32, wide, span)
        elif _spelled(kind) == _spelled(have) or (kind.is_integer and have.is_integer and kind.bits == have.bits > 8):
            self._emit(_move(kind), target, (source,), span)
        else:
            self._emit(f"cvt{_rounding(kind, have)}.{_spelled(kind)}.{_spelled(have)}", target, (source,), span)

    # Operands

    def _widened(self, source: AssemblyOperand, span: Span, kind: Type = Type.BF16) -> Register:
        """A bf16 or f16 value as f32."""
        wide = self._temporary(Type.F32, span)
        self._emit(f"cvt.f32.{kind}", wide, (source,), span)
        return wide

    def _typed(self, value: Value) -> Type:
        if isinstance(value, SiteOperand):
            raise TypeError("a site's value is loaded first, which the verifier sees to")
        return value.type

    def _operand(self, value: Value, span: Span) -> AssemblyOperand:
        """A value as an operand that every instruction takes."""
        if isinstance(value, Register):
            return self._own(value)
        if isinstance(value, SiteOperand):
            return value
        if isinstance(value, Special):
            register = self._temporary(value.type, span)
            self._emit(_move(value.type, special=True), register, (SpecialRegister(_SPECIAL[value], value.type),), span)
            return register
        if value.type is Type.PRED or value.type.is_float:
            register = self._temporary(value.type, span)
            self._emit(_move(value.type), register, (Immediate(value.text),), span)
            return register
        return Immediate(_number(value))

    def _own(self, register: Register) -> Register:
        return self._registers[register.name]

    def _temporary(self, kind: Type, span: Span) -> Register:
        kind = _STORED.get(kind, kind)
        self._temporaries += 1
        # No front end has names with a dollar sign.
        name = f"%${kind}_{self._temporaries}"
        return self._registers.setdefault(name, Register(name, kind, 0, span, is_local=True))

    def _emit(
        self, opcode: str, destination: Register, sources: Sequence[AssemblyOperand], span: Span,
        guard: _Guard | None = None,
    ) -> None:  # fmt: skip
        under, is_inverted = guard or (None, False)
        operands = (destination, *sources)
        self._code.append(Assembly(TARGET, opcode, operands, span, under, is_inverted, (destination,)))


def _move(kind: Type, *, special: bool = False) -> str:
    if kind in {Type.PRED, Type.F32, Type.F64}:
        return f"mov.{kind}"
    letter = "u" if special else "b"
    return f"mov.{letter}{max(kind.bits, 16)}"


def _number(constant: Constant) -> str:
    if constant.type.is_signed and constant.bits >> (constant.type.bits - 1):
        return str(constant.bits - (1 << constant.type.bits))
    return str(constant.bits)


def _spelled(kind: Type) -> str:
    """A type as conversions spell it: bits count as unsigned."""
    return kind.value if kind.is_float else f"{'s' if kind.is_signed else 'u'}{kind.bits}"


def _rounding(kind: Type, have: Type) -> str:
    if have.is_float and not kind.is_float:
        return ".rzi"
    if kind.is_float and (not have.is_float or kind.bits < have.bits):
        return ".rn"
    return ""


def _float_opcode(operator: Operator, kind: Type) -> str:
    return f"{_FLOAT_OPERATIONS.get(operator, operator.value)}.{kind}"
