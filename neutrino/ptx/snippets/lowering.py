"""Lowering of typed statements to straight-line PTX, since inserted code must not branch. ``docs/ir.md`` has their
meaning.

Both sides of an ``If`` become instructions, and loops are unrolled. Values are computed without a guard predicate:
only the moves that assign them, and the saves, are guarded.
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
"""The target of ``Assembly`` statements in PTX."""

_SPECIAL: Mapping[Special, str] = {
    Special.CLOCK: "%clock64", Special.TIME: "%globaltimer", Special.CUID: "%smid",
}  # fmt: skip

_REGISTER_TYPES: Mapping[Type, Type] = {
    Type.U8: Type.U16, Type.S8: Type.S16, Type.B8: Type.B16, Type.BF16: Type.B16,
}  # fmt: skip
"""Type of a value → type of the register that holds it, where they differ: PTX has no 8-bit and no bf16 registers."""

_SIGN_BIT_OF_S8 = 0x80
_UPPER_BYTE_OF_16_BITS = 0xFF00

_FLOAT_OPERATIONS = {Operator.ADD: "add.rn", Operator.SUB: "sub.rn", Operator.MUL: "mul.rn"}
_INTEGER_OPERATIONS = {
    Operator.ADD: "add", Operator.SUB: "sub", Operator.MUL: "mul.lo", Operator.DIV: "div", Operator.REM: "rem",
    Operator.MIN: "min", Operator.MAX: "max", Operator.SHR: "shr",
}  # fmt: skip
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
    is_straight = all(_is_straight(snippet) for probe in probes.probes for snippet in _snippets(probe))
    # Typed snippets that only save are straight too, but their registers may have types that PTX has not.
    has_ptx_registers = all(register.type not in _REGISTER_TYPES for register in probes.registers)
    if is_straight and has_ptx_registers and probes.target == TARGET:
        return probes
    # Temporary registers of all snippets are added to these; ``declared`` keeps the names from before.
    registers = {register.name: _with_ptx_type(register) for register in probes.registers}
    declared = frozenset(registers)
    lowered: list[Probe] = []
    for probe in probes.probes:
        lowered.append(probe.with_snippets(lambda snippet: _Lowering(registers, declared).lowered(snippet)))
    statements = (statement for probe in lowered for snippet in _snippets(probe) for statement in snippet.straight)
    used = {register.name for statement in statements for register in registers_of(statement)}
    needed = tuple(register for register in registers.values() if not register.is_local or register.name in used)
    return probes.lowered(TARGET, needed, tuple(lowered))


def _snippets(probe: Probe) -> Iterator[Snippet]:
    return (snippet for snippet in (probe.before, probe.after) if snippet is not None)


def _is_straight(snippet: Snippet) -> bool:
    return all(isinstance(statement, (Assembly, Save)) for statement in snippet.statements)


def _with_ptx_type(register: Register) -> Register:
    """Return a register of the same name with a type that registers of PTX can have, and an initial value of that type.

    8-bit integers become 16-bit ones. Their initial value is extended as ``_Lowering._wrap`` extends results: with
    zeros (u8, b8: it stays as it is), or with the sign (s8).
    """
    register_type = _REGISTER_TYPES.get(register.type, register.type)
    initial = register.initial
    if register.type is Type.S8 and initial & _SIGN_BIT_OF_S8:
        initial |= _UPPER_BYTE_OF_16_BITS
    return Register(register.name, register_type, initial, register.span, register.is_local)


class _Lowering:
    """Lowers one snippet: typed statements become instructions, in order.

    registers: those of the probe set by name, with types of PTX; temporary ones are added. declared: the names of the
    probes' own registers, which a temporary register must not have.
    """

    def __init__(self, registers: dict[str, Register], declared: frozenset[str]) -> None:
        self._registers = registers
        self._declared = declared
        self._code: list[Straight] = []
        self._temporaries = 0

    def lowered(self, snippet: Snippet) -> Snippet:
        """Return the snippet's straight form."""
        self._block(snippet.statements, None)
        return Snippet(tuple(self._code))

    def _block(self, statements: Sequence[Statement], guard: Register | None) -> None:
        """Lower statements. guard: the predicate under which they take effect; None if they always do."""
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
            elif isinstance(statement, Save):
                self._save(statement, guard)
            elif isinstance(statement, Assembly):
                self._code.append(statement)
            else:
                self._assign(statement, guard)

    # Control

    def _if(self, statement: If, guard: Register | None) -> None:
        """Lower both sides of an ``If``, each under its own predicate: the condition or its inverse, and ``guard``."""
        span = statement.span
        condition = self._declared_register(statement.condition)
        sides = [(statement.then, False), (statement.otherwise, True)]
        side_guards = []
        # Compute both predicates first: either side may assign the condition.
        for statements, is_inverted in sides:
            side_guard = self._temporary(Type.PRED, span)
            side_guards.append(side_guard)
            if not statements:
                continue  # its register is not used, and therefore not declared
            if guard is not None:
                self._emit("and.pred", side_guard, (guard, Inverted(condition) if is_inverted else condition), span)
            else:
                self._emit("not.pred" if is_inverted else "mov.pred", side_guard, (condition,), span)
        for (statements, _), side_guard in zip(sides, side_guards, strict=True):
            self._block(statements, side_guard)

    def _save(self, statement: Save, guard: Register | None) -> None:
        """Lower a save; its registers and constants become PTX operands.

        guard: the predicate under which the enclosing ``If`` takes effect; None outside of any.
        """
        operands = tuple(
            self._operand(operand, statement.span) if isinstance(operand, (Register, Constant)) else operand
            for operand in statement.operands
        )
        if guard is None:
            # Keeps a guard of its own, which a save in hand-written PTX may have.
            self._code.append(replace(statement, operands=operands))
        else:
            # Only typed statements stand inside an If, and typed saves have no guard of their own.
            self._code.append(Save(statement.map, operands, statement.span, guard))

    # Values

    def _assign(self, statement: Operation | Convert | Compare | Select | Load, guard: Register | None) -> None:
        """Lower a statement that computes a value.

        Without a guard the value is computed in the destination; with one in a temporary register, and a guarded move
        copies it to the destination, which keeps its value where the guard is false.
        """
        span, result_type = statement.span, statement.destination.type
        destination = self._declared_register(statement.destination)
        # A division whose guard is false may divide by zero, which is no fault in PTX.
        target = destination if guard is None else self._temporary(result_type, span)
        if isinstance(statement, Operation):
            self._operation(statement, target)
        elif isinstance(statement, Convert):
            source_type, source = self._type_of(statement.source), self._operand(statement.source, span)
            self._convert(target, result_type, source_type, source, span)
        elif isinstance(statement, Compare):
            self._compare(statement, target)
        elif isinstance(statement, Select):
            self._select(statement, target)
        else:
            # Untyped bits: the instruction's operand may be an integer or a float.
            untyped = "pred" if result_type is Type.PRED else f"b{_register_bits(result_type)}"
            self._emit(f"mov.{untyped}", target, (statement.operand,), span)
            self._wrap(target, result_type, span)
        if guard is not None:
            self._emit(_move(result_type), destination, (target,), span, guard)

    def _operation(self, statement: Operation, target: Register) -> None:
        """Lower an arithmetic or bitwise operation, or a move. target: the register for the result.

        8-bit integers are computed in 16 bits, then wrapped around to 8.
        """
        operator, result_type, span = statement.operator, statement.destination.type, statement.span
        first = statement.sources[0]
        if operator is Operator.MOVE and isinstance(first, Special):
            # Moved directly: _operand would move it to a temporary register first.
            special = SpecialRegister(_SPECIAL[first], result_type)
            self._emit(_move(result_type, special=True), target, (special,), span)
            return
        sources = [self._operand(source, span) for source in statement.sources]
        if operator is Operator.MOVE:
            self._emit(_move(result_type), target, sources, span)
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
            self._emit(_float_opcode(operator, result_type), target, sources, span)
        elif operator in _BIT_OPERATIONS:
            untyped = "pred" if result_type is Type.PRED else f"b{_register_bits(result_type)}"
            self._emit(f"{_BIT_OPERATIONS[operator]}.{untyped}", target, sources, span)
            self._wrap(target, result_type, span)
        elif operator in {Operator.NEG, Operator.ABS}:
            # PTX negates signed types only; of an unsigned number the bits are the same.
            self._emit(f"{operator.value}.s{_register_bits(result_type)}", target, sources, span)
            self._wrap(target, result_type, span)
        else:
            letter = "s" if result_type.is_signed else "u"
            opcode = f"{_INTEGER_OPERATIONS[operator]}.{letter}{_register_bits(result_type)}"
            self._emit(opcode, target, sources, span)
            self._wrap(target, result_type, span)

    def _wrap(self, target: Register, value_type: Type, span: Span) -> None:
        """If a type has 8 bits, wrap its result around: keep the low 8 of the 16 bits in ``target``, and extend them.

        So a register that holds an 8-bit value always holds it extended: with the sign (s8) or with zeros (u8, b8).
        """
        if value_type.is_integer and value_type.bits == 8:
            opcode = "cvt.s16.s8" if value_type.is_signed else "cvt.u16.u8"
            self._emit(opcode, target, (target,), span)

    def _compare(self, statement: Compare, target: Register) -> None:
        """Lower a comparison. target: the predicate register for the result."""
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
        self._emit(f"setp.{relation.value}.{letter}{_register_bits(operand_type)}", target, (left, right), span)

    def _select(self, statement: Select, target: Register) -> None:
        """Lower ``condition ? then : otherwise``. Predicates, which ``selp`` does not take, are combined bitwise."""
        span, result_type = statement.span, statement.destination.type
        condition = self._declared_register(statement.condition)
        then, otherwise = self._operand(statement.then, span), self._operand(statement.otherwise, span)
        if result_type is not Type.PRED:
            # selp has no f16; like integers, halves are selected as untyped bits.
            is_float = result_type in {Type.F32, Type.F64}
            selected = result_type.value if is_float else f"b{_register_bits(result_type)}"
            self._emit(f"selp.{selected}", target, (then, otherwise, condition), span)
            return
        first, second = self._temporary(Type.PRED, span), self._temporary(Type.PRED, span)
        self._emit("and.pred", first, (then, condition), span)
        self._emit("and.pred", second, (otherwise, Inverted(condition)), span)
        self._emit("or.pred", target, (first, second), span)

    def _convert(self, target: Register, to_type: Type, from_type: Type, source: AssemblyOperand, span: Span) -> None:
        """Convert ``source`` to another type and store the result in ``target``; docs/ir.md defines the values.

        All types but ``f16x2`` can be converted. Types that ``cvt`` does not take (predicates, and bf16 except from and
        to f32) are converted through another type, by calling this again.
        """
        if to_type is Type.PRED:
            self._convert_to_predicate(target, from_type, source, span)
        elif from_type is Type.PRED:
            if to_type.is_float:
                # selp has no halves, so 0 or 1 is selected as an integer, and converted.
                integer = self._temporary(Type.U32, span)
                self._emit("selp.u32", integer, (Immediate("1"), Immediate("0"), source), span)
                self._convert(target, to_type, Type.U32, integer, span)
            else:
                self._emit(f"selp.b{_register_bits(to_type)}", target, (Immediate("1"), Immediate("0"), source), span)
        elif to_type is Type.BF16 and from_type is not Type.BF16:
            # cvt makes bf16 from f32 only, so other types become f32 first.
            wide = source
            if from_type is not Type.F32:
                wide = self._temporary(Type.F32, span)
                self._convert(wide, Type.F32, from_type, source, span)
            self._emit("cvt.rn.bf16.f32", target, (wide,), span)
        elif from_type is Type.BF16 and to_type is not Type.BF16:
            self._convert(target, to_type, Type.F32, self._widened(source, span), span)
        elif _cvt_type(to_type) == _cvt_type(from_type) or (
            # Integers of one width have the same bits. Those of 8 bits do not: in their 16-bit registers, u8 is
            # extended with zeros and s8 with the sign.
            to_type.is_integer and from_type.is_integer and to_type.bits == from_type.bits > 8
        ):
            self._emit(_move(to_type), target, (source,), span)
        else:
            opcode = f"cvt{_cvt_rounding(to_type, from_type)}.{_cvt_type(to_type)}.{_cvt_type(from_type)}"
            self._emit(opcode, target, (source,), span)
            if from_type.is_float and to_type.is_integer and (from_type is Type.F64 or to_type.bits == 64):
                # PTX ISA, cvt: elsewhere a NaN becomes 0, with these types an integer with only the highest bit set.
                is_number = self._temporary(Type.PRED, span)
                self._emit(f"setp.num.{from_type}", is_number, (source, source), span)
                width = _register_bits(to_type)
                self._emit(f"selp.b{width}", target, (target, Immediate("0"), is_number), span)

    def _convert_to_predicate(self, target: Register, from_type: Type, source: AssemblyOperand, span: Span) -> None:
        """Set a predicate where a value is not zero; a NaN counts as not zero."""
        if from_type is Type.PRED:
            self._emit("mov.pred", target, (source,), span)
            return
        if from_type in {Type.F16, Type.BF16}:
            # setp has no bf16 before sm_90, and takes no immediate of these types.
            source, from_type = self._widened(source, span, from_type), Type.F32
        zero = {Type.F32: "0f00000000", Type.F64: "0d0000000000000000"}.get(from_type, "0")
        # "neu" is true for a NaN too, "ne" would be false.
        comparison = "neu" if from_type.is_float else "ne"
        # Whether an integer is zero does not depend on its sign.
        compared = from_type.value if from_type.is_float else f"u{_register_bits(from_type)}"
        self._emit(f"setp.{comparison}.{compared}", target, (source, Immediate(zero)), span)

    # Operands

    def _widened(self, source: AssemblyOperand, span: Span, source_type: Type = Type.BF16) -> Register:
        """Convert a value of type ``source_type``, bf16 or f16, to f32 and return its register."""
        wide = self._temporary(Type.F32, span)
        self._emit(f"cvt.f32.{source_type}", wide, (source,), span)
        return wide

    def _type_of(self, value: Value) -> Type:
        if isinstance(value, SiteOperand):
            raise TypeError("a site's value is loaded first, which the verifier sees to")
        return value.type

    def _operand(self, value: Value, span: Span) -> Register | SiteOperand | Immediate:
        """Return a value as an operand that instructions take.

        Special registers, predicates and floats are first moved to a temporary register, as many instructions take no
        such operands: only integer constants become immediates.
        """
        if isinstance(value, Register):
            return self._declared_register(value)
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
        return Immediate(_integer_literal(value))

    def _declared_register(self, register: Register) -> Register:
        """Return a register of the probe set as PTX declares it, maybe with another type (``_REGISTER_TYPES``)."""
        return self._registers[register.name]

    def _temporary(self, value_type: Type, span: Span) -> Register:
        """Return a local register for a value of a type; no other value of this snippet is put into it.

        The temporary registers of each snippet are numbered from 1, so that snippets share them: a value lives within
        its snippet only.
        """
        register_type = _REGISTER_TYPES.get(value_type, value_type)
        name = ""
        while not name or name in self._declared:
            self._temporaries += 1
            name = f"%${register_type}_{self._temporaries}"
        # Another snippet of the set may have added it.
        return self._registers.setdefault(name, Register(name, register_type, 0, span, is_local=True))

    def _emit(
        self, opcode: str, destination: Register, sources: Sequence[AssemblyOperand], span: Span,
        guard: Register | None = None,
    ) -> None:  # fmt: skip
        """Append an instruction that writes ``destination``. guard: the predicate under which it executes, if any."""
        operands = (destination, *sources)
        self._code.append(Assembly(TARGET, opcode, operands, span, guard, writes=(destination,)))


def _register_bits(value_type: Type) -> int:
    """Return the width of the register for a value of a type: PTX has none below 16 bits."""
    return max(value_type.bits, 16)


def _move(value_type: Type, *, special: bool = False) -> str:
    """Return the opcode of ``mov`` for a type. special: the source is a special register, an unsigned integer."""
    if value_type in {Type.PRED, Type.F32, Type.F64}:
        return f"mov.{value_type}"
    # Halves are moved as untyped bits too, since mov has no f16.
    letter = "u" if special else "b"
    return f"mov.{letter}{_register_bits(value_type)}"


def _integer_literal(constant: Constant) -> str:
    """Return an integer constant as PTX writes it, negative if its type is signed and its highest bit is set."""
    sign_bit = 1 << (constant.type.bits - 1)
    if constant.type.is_signed and constant.bits & sign_bit:
        return str(constant.bits - (1 << constant.type.bits))
    return str(constant.bits)


def _cvt_type(value_type: Type) -> str:
    """Return the name of a type in ``cvt``, which has no untyped bits: those are unsigned."""
    return value_type.value if value_type.is_float else f"{'s' if value_type.is_signed else 'u'}{value_type.bits}"


def _cvt_rounding(target: Type, source: Type) -> str:
    """Return the rounding modifier that PTX wants in a ``cvt`` between two types; ``""`` where it takes none."""
    if source.is_float and not target.is_float:
        return ".rzi"  # towards zero, to an integer
    # To the nearest even float. PTX wants it from every integer type, even where each value is exact.
    if target.is_float and (not source.is_float or target.bits < source.bits):
        return ".rn"
    return ""


def _float_opcode(operator: Operator, value_type: Type) -> str:
    return f"{_FLOAT_OPERATIONS.get(operator, operator.value)}.{value_type}"
