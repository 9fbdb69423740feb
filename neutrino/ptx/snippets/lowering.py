"""From typed statements to PTX instructions: straight code, without branches. ``docs/ir.md`` has their meaning.

Both sides of an ``If`` become instructions, loops are unrolled. Values are computed without predicates, so that these
are on nothing but the moves that assign them, and on what maps do.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

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
    Special.CLOCK: "%clock64", Special.TIME: "%globaltimer", Special.CUID: "%smid",
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


@functools.lru_cache(maxsize=8)
def lower(probes: ProbeSet) -> ProbeSet:
    """The same probes with straight snippets, whose assembly is PTX; a set that has such already as it is.

    A set of several files may have both.
    """
    straight = all(_is_straight(snippet) for probe in probes.probes for snippet in _snippets(probe))
    if straight and probes.target == TARGET and all(register.type not in _STORED for register in probes.registers):
        return probes
    registers = {register.name: _stored(register) for register in probes.registers}
    own = frozenset(registers)
    lowered: list[Probe] = []
    for probe in probes.probes:
        lowered.append(probe.with_snippets(lambda snippet: _Lowering(registers, own).snippet(snippet)))
    snippets = (snippet for probe in lowered for snippet in _snippets(probe))
    named = {entry.name for snippet in snippets for statement in snippet.straight for entry in registers_of(statement)}
    kept = tuple(register for register in registers.values() if not register.is_local or register.name in named)
    return probes.lowered(TARGET, kept, tuple(lowered))


def _snippets(probe: Probe) -> Iterator[Snippet]:
    return (snippet for snippet in (probe.before, probe.after) if snippet is not None)


def _is_straight(snippet: Snippet) -> bool:
    return all(isinstance(statement, (Assembly, Save)) for statement in snippet.statements)


def _stored(register: Register) -> Register:
    kind = _STORED.get(register.type, register.type)
    initial = register.initial
    if register.type is Type.S8 and initial >> 7:
        initial |= 0xFF00
    return Register(register.name, kind, initial, register.span, register.is_local)


class _Lowering:
    """One snippet. registers: of the set, as PTX has them; temporary ones join it. own: names of the set's own."""

    def __init__(self, registers: dict[str, Register], own: frozenset[str]) -> None:
        self._registers = registers
        self._own_names = own
        self._code: list[Straight] = []
        self._temporaries = 0

    def snippet(self, snippet: Snippet) -> Snippet:
        """The snippet's straight form."""
        self._block(snippet.statements, None)
        return Snippet(tuple(self._code))

    def _block(self, statements: Sequence[Statement], guard: Register | None) -> None:
        """guard: the predicate under which the statements are done."""
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

    def _if(self, statement: If, guard: Register | None) -> None:
        span = statement.span
        condition = self._own(statement.condition)
        sides = [(statement.then, False), (statement.otherwise, True)]
        guards = []
        # Both before either side, which may assign the condition.
        for statements, is_inverted in sides:
            side = self._temporary(Type.PRED, span)
            guards.append(side)
            if not statements:
                continue
            if guard is not None:
                self._emit("and.pred", side, (guard, Inverted(condition) if is_inverted else condition), span)
            else:
                self._emit("not.pred" if is_inverted else "mov.pred", side, (condition,), span)
        for (statements, _), side in zip(sides, guards, strict=True):
            self._block(statements, side)

    def _save(self, statement: Save, guard: Register | None) -> None:
        operands = tuple(
            self._operand(operand, statement.span) if isinstance(operand, (Register, Constant)) else operand
            for operand in statement.operands
        )
        if guard is None:
            self._code.append(replace(statement, operands=operands))
        else:
            self._code.append(Save(statement.map, operands, statement.span, guard))

    # Values

    def _assign(self, statement: Operation | Convert | Compare | Select | Load, guard: Register | None) -> None:
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
            # As bits: a site's register may be of any class.
            width = "pred" if kind is Type.PRED else f"b{max(kind.bits, 16)}"
            self._emit(f"mov.{width}", target, (statement.operand,), span)
            self._wrap(target, kind, span)
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
            if have.is_float and kind.is_integer and (have is Type.F64 or kind.bits == 64):
                # PTX ISA, cvt: a NaN becomes 0 but here, where it becomes the highest bit alone.
                is_number = self._temporary(Type.PRED, span)
                self._emit(f"setp.num.{have}", is_number, (source, source), span)
                width = max(kind.bits, 16)
                self._emit(f"selp.b{width}", target, (target, Immediate("0"), is_number), span)

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

    def _operand(self, value: Value, span: Span) -> Register | SiteOperand | Immediate:
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
        name = ""
        while not name or name in self._own_names:
            self._temporaries += 1
            name = f"%${kind}_{self._temporaries}"
        return self._registers.setdefault(name, Register(name, kind, 0, span, is_local=True))

    def _emit(
        self, opcode: str, destination: Register, sources: Sequence[AssemblyOperand], span: Span,
        guard: Register | None = None,
    ) -> None:  # fmt: skip
        operands = (destination, *sources)
        self._code.append(Assembly(TARGET, opcode, operands, span, guard, False, (destination,)))


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


def _rounding(target: Type, source: Type) -> str:
    """The rounding that ``cvt`` has to name: where the target cannot hold every value of the source."""
    if source.is_float and not target.is_float:
        return ".rzi"
    if target.is_float and (not source.is_float or target.bits < source.bits):
        return ".rn"
    return ""


def _float_opcode(operator: Operator, kind: Type) -> str:
    return f"{_FLOAT_OPERATIONS.get(operator, operator.value)}.{kind}"
