"""Writing of instructions of a snippet: operands as PTX takes them, temporary registers, and quotients of integers.

Quotients and remainders are exact and compute nothing in floating point. ptxas makes an FMUL of ``div.u16`` and calls a
function for ``div.u64``. So narrow integers are divided in 32 bits, and those of 64 bits by constants alone: by shifts,
and by the upper half of a product with a scaled inverse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from neutrino.errors import Span
from neutrino.ir.operands import (
    AssemblyOperand,
    Constant,
    Immediate,
    Inverted,
    Register,
    SavedOperand,
    SiteOperand,
    Special,
    SpecialRegister,
    Value,
)
from neutrino.ir.statements import Assembly, Operation, Operator
from neutrino.ir.types import Type
from neutrino.probing.ir.structured import Straight

TARGET = "ptx"
"""The target of ``Assembly`` statements in PTX."""

SPECIAL: Mapping[Special, str] = {
    **{special: f"%{special.value}" for special in Special},
    Special.CLOCK: "%clock64", Special.TIME: "%globaltimer", Special.CUID: "%smid", Special.LANE: "%laneid",
}  # fmt: skip
"""All but ``WARP``, which is computed: ``%warpid`` may change while a kernel runs."""

REGISTER_TYPES: Mapping[Type, Type] = {
    Type.U8: Type.U16, Type.S8: Type.S16, Type.B8: Type.B16, Type.BF16: Type.B16,
}  # fmt: skip
"""Type of a value → type of the register that holds it, where they differ: PTX has no 8-bit and no bf16 registers."""


class Guard(NamedTuple):
    """The predicate under which statements take effect. is_inverted: where it is false."""

    register: Register
    is_inverted: bool = False

    @property
    def operand(self) -> Register | Inverted:
        """The guard as an operand of instructions on predicates."""
        return Inverted(self.register) if self.is_inverted else self.register


class Writer:
    """Writes the instructions of one snippet, in order.

    registers: those of the probe set by name, with types of PTX; temporary ones are added. declared: the names of the
    probes' own registers, which a temporary register must not have.
    """

    def __init__(self, registers: dict[str, Register], declared: frozenset[str]) -> None:
        """Set up a writer of a snippet's PTX instructions; none yet. registers: of the probe set by name; temporary
        ones are added. declared: names that a temporary one must not have."""
        self._registers = registers
        self._declared = declared
        self._code: list[Straight] = []
        self._temporaries = 0

    def _widened(self, source: AssemblyOperand, span: Span, source_type: Type = Type.BF16) -> Register:
        """Convert a value of type ``source_type``, bf16 or f16, to f32 and return its register."""
        wide = self._temporary(Type.F32, span)
        self._emit(f"cvt.f32.{source_type}", wide, (source,), span)
        return wide

    def _type_of(self, value: Value) -> Type:
        """Return the type of an operand. Raises TypeError for a value of the site, which has to be loaded before."""
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
        if value is Special.WARP:
            return self._warp(span)
        if isinstance(value, Special):
            register = self._temporary(value.type, span)
            self._emit(move(value.type, special=True), register, (SpecialRegister(SPECIAL[value], value.type),), span)
            return register
        if value.type is Type.PRED or value.type.is_float:
            register = self._temporary(value.type, span)
            self._emit(move(value.type), register, (Immediate(operand_text(value)),), span)
            return register
        return Immediate(integer_literal(value))

    def _warp(self, span: Span) -> Register:
        """Return the warp's number in its block: the linear thread id by the number of lanes."""
        place = self._operand(Special.TID_Z, span)
        for size, axis in ((Special.NTID_Y, Special.TID_Y), (Special.NTID_X, Special.TID_X)):
            place = self._computed(
                "mad.lo.u32", Type.U32, (place, self._operand(size, span), self._operand(axis, span)), span
            )
        return self._computed("shr.u32", Type.U32, (place, Immediate("5")), span)

    def _declared_register(self, register: Register) -> Register:
        """Return a register of the probe set as PTX declares it, maybe with another type (``REGISTER_TYPES``)."""
        return self._registers[register.name]

    def _temporary(self, value_type: Type, span: Span) -> Register:
        """Return a local register for a value of a type; no other value of this snippet is put into it.

        The temporary registers of each snippet are numbered from 1, so that snippets share them: a value lives within
        its snippet only.
        """
        register_type = REGISTER_TYPES.get(value_type, value_type)
        name = ""
        while not name or name in self._declared:
            self._temporaries += 1
            name = f"%${register_type}_{self._temporaries}"
        # Another snippet of the set may have added it.
        return self._registers.setdefault(name, Register(name, register_type, 0, span, is_local=True))

    def _computed(self, opcode: str, result_type: Type, sources: Sequence[AssemblyOperand], span: Span) -> Register:
        """Append an instruction that writes a new temporary register, and return that."""
        result = self._temporary(result_type, span)
        self._emit(opcode, result, sources, span)
        return result

    def _emit(
        self, opcode: str, destination: Register, sources: Sequence[AssemblyOperand], span: Span,
        guard: Guard | None = None,
    ) -> None:  # fmt: skip
        """Append an instruction that writes ``destination``. guard: the predicate under which it executes, if any."""
        register, is_inverted = guard or (None, False)
        self._append(Assembly(TARGET, opcode, (destination, *sources), span, register, is_inverted, (destination,)))

    def _append(self, instruction: Assembly) -> None:
        """Append an instruction to the snippet's code. Derived classes see each instruction here."""
        self._code.append(instruction)

    def _halves(self, value: AssemblyOperand, span: Span) -> tuple[Register, Register]:
        """Append the code that splits a u64; return registers with its upper and its lower 32 bits."""
        shifted = self._computed("shr.u64", Type.U64, (value, Immediate("32")), span)
        upper = self._computed("cvt.u32.u64", Type.U32, (shifted,), span)
        return upper, self._computed("cvt.u32.u64", Type.U32, (value,), span)

    def _join(self, target: Register, upper: Register, lower: Register, span: Span) -> None:
        """Append the code that puts two words of 32 bits together to one of 64. target: a register of 64 bits of any
        type."""
        high = self._computed("cvt.u64.u32", Type.U64, (upper,), span)
        low = self._computed("cvt.u64.u32", Type.U64, (lower,), span)
        self._emit("shl.b64", high, (high, Immediate("32")), span)
        self._emit("or.b64", low, (low, high), span)
        self._emit("mov.b64", target, (low,), span)

    # Conversions

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
                self._emit(f"selp.b{register_bits(to_type)}", target, (Immediate("1"), Immediate("0"), source), span)
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
            self._emit(move(to_type), target, (source,), span)
        else:
            opcode = f"cvt{_cvt_rounding(to_type, from_type)}.{_cvt_type(to_type)}.{_cvt_type(from_type)}"
            self._emit(opcode, target, (source,), span)
            if from_type.is_float and to_type.is_integer and (from_type is Type.F64 or to_type.bits == 64):
                # PTX ISA, cvt: elsewhere a NaN becomes 0, with these types an integer with only the highest bit set.
                is_number = self._temporary(Type.PRED, span)
                self._emit(f"setp.num.{from_type}", is_number, (source, source), span)
                width = register_bits(to_type)
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
        compared = from_type.value if from_type.is_float else f"u{register_bits(from_type)}"
        self._emit(f"setp.{comparison}.{compared}", target, (source, Immediate(zero)), span)

    def _reinterpret(self, target: Register, to_type: Type, source: Value, span: Span) -> None:
        """Append the move of a value's bits to a register of another type."""
        operand = Immediate(str(source.bits)) if isinstance(source, Constant) else self._operand(source, span)
        self._emit(f"mov.b{register_bits(to_type)}", target, (operand,), span)
        # In their 16-bit registers, u8 is extended with zeros and s8 with the sign.
        self._wrap(target, to_type, span)

    def _wrap(self, target: Register, value_type: Type, span: Span) -> None:
        """If a type has 8 bits, wrap its result around: keep the low 8 of the 16 bits in ``target``, and extend them.

        So a register that holds an 8-bit value always holds it extended: with the sign (s8) or with zeros (u8, b8).
        """
        if value_type.is_integer and value_type.bits == 8:
            opcode = "cvt.s16.s8" if value_type.is_signed else "cvt.u16.u8"
            self._emit(opcode, target, (target,), span)

    def _word(self, value: Value, span: Span) -> AssemblyOperand:
        """Return a value's bits as an operand of 32 bits: its lower ones if it has more, zeros above them if it has
        fewer."""
        value_type, source = self._type_of(value), self._operand(value, span)
        if value_type is Type.PRED:
            return self._computed("selp.u32", Type.U32, (Immediate("1"), Immediate("0"), source), span)
        if not value_type.is_integer:
            # Conversions take integers of the width.
            bits = Type(f"u{value_type.bits}")
            source = self._computed(f"mov.b{value_type.bits}", bits, (source,), span)
        width = register_bits(value_type)
        return source if width == 32 else self._computed(f"cvt.u32.u{width}", Type.U32, (source,), span)


def register_bits(value_type: Type) -> int:
    """Return the width of the PTX register for a value of a type: there are none below 16 bits."""
    return max(value_type.bits, 16)


def move(value_type: Type, *, special: bool = False) -> str:
    """Return the ``mov`` opcode that copies a value of a type. special: the source is a special register, an unsigned
    integer."""
    if value_type in {Type.PRED, Type.F32, Type.F64}:
        return f"mov.{value_type}"
    # Halves are moved as untyped bits too, since mov has no f16.
    letter = "u" if special else "b"
    return f"mov.{letter}{register_bits(value_type)}"


def operand_text(operand: AssemblyOperand | SavedOperand) -> str:
    """Return an operand as PTX writes it: integers as unsigned numbers, floats by their bits."""
    if not isinstance(operand, Constant):
        return operand.text
    if operand.type is Type.F32:
        return f"0f{operand.bits:08X}"
    return f"0d{operand.bits:016X}" if operand.type is Type.F64 else str(operand.bits)


def assembly_text(instruction: Assembly) -> str:
    """Return an instruction as PTX writes it, without its semicolon."""
    guard = instruction.guard
    prefix = "" if guard is None else f"@{'!' if instruction.is_inverted else ''}{guard.text} "
    return f"{prefix}{instruction.opcode} {', '.join(map(operand_text, instruction.operands))}".rstrip()


def integer_literal(constant: Constant) -> str:
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


_BITS = 64


class Inverse(NamedTuple):
    """How the upper half of a product divides a u64 by a constant that is no power of two.

    With ``n`` shifted right by ``before`` bits and ``high`` the upper 64 bits of its product with ``multiplier``, the
    quotient is ``high >> after``; with ``adds`` the multiplier has one more bit, 2^64, and the quotient is
    ``(high + ((n - high) >> 1)) >> (after - 1)``.
    """

    before: int
    multiplier: int
    after: int
    adds: bool


def inverse(divisor: int) -> Inverse:
    """Return how to divide any u64 by a constant from 3 to 2^64 - 1, no power of two, by a multiplication and shifts.

    Granlund and Montgomery, "Division by Invariant Integers using Multiplication", theorem 4.2: with 2^(64 + s) <= m d
    <= 2^(64 + s) + 2^(s + k), the quotient of any n below 2^(64 - k) is m n >> (64 + s).
    """
    zeros = (divisor & -divisor).bit_length() - 1
    # An even divisor may need no 65th bit once its zeros are shifted out, which leaves fewer bits of n.
    for before in dict.fromkeys((0, zeros)):
        odd = divisor >> before
        for after in range(odd.bit_length() + 1):
            multiplier = -(-(1 << (_BITS + after)) // odd)
            if multiplier >> _BITS == 0 and multiplier * odd - (1 << (_BITS + after)) <= 1 << (after + before):
                return Inverse(before, multiplier, after, adds=False)
    after = (divisor - 1).bit_length()
    return Inverse(0, -(-(1 << (_BITS + after)) // divisor) - (1 << _BITS), after, adds=True)


class DivisionWriter(Writer):
    """Writes the instructions of ``DIV`` and ``REM``. What they read stays as it is until the last of them."""

    def _division(self, statement: Operation, target: Register, sources: Sequence[AssemblyOperand]) -> None:
        """Write a quotient or remainder of integers into ``target``. sources: the statement's, as operands.

        Raises TypeError for a divisor of 64 bits that is no constant, which the verifier refuses.
        """
        kind, span = statement.destination.type, statement.span
        opcode = "div" if statement.operator is Operator.DIV else "rem"
        letter = "s" if kind.is_signed else "u"
        if kind.bits == 32:
            self._emit(f"{opcode}.{kind}", target, sources, span)
        elif kind.bits < 32:
            wide = Type.S32 if kind.is_signed else Type.U32
            extended = [
                source
                if isinstance(source, Immediate)
                else self._computed(f"cvt.{wide}.{letter}16", wide, (source,), span)
                for source in sources
            ]
            result = self._computed(f"{opcode}.{wide}", wide, extended, span)
            self._emit(f"cvt.{letter}16.{wide}", target, (result,), span)
            self._wrap(target, kind, span)
        else:
            divisor = statement.sources[1]
            if not isinstance(divisor, Constant):
                raise TypeError("a divisor of 64 bits that is no constant")
            dividend = sources[0]
            if isinstance(dividend, Immediate):
                dividend = self._computed("mov.b64", kind, (dividend,), span)
            if kind.is_signed:
                self._signed(statement.operator, target, dividend, divisor, span)
            elif statement.operator is Operator.DIV:
                self._move(target, self._quotient(dividend, divisor.bits, span), span)
            else:
                self._move(target, self._remainder(dividend, divisor.bits, span), span)

    def _signed(
        self, operator: Operator, target: Register, dividend: AssemblyOperand, divisor: Constant, span: Span
    ) -> None:
        """Write the quotient or remainder of a signed number by a constant: that of their absolute values, with the
        right sign.

        The absolute value of the lowest number, 2^63, is right as an unsigned one.
        """
        is_negative = bool(divisor.bits >> (_BITS - 1))
        size = (1 << _BITS) - divisor.bits if is_negative else divisor.bits
        absolute = self._computed("abs.s64", Type.S64, (dividend,), span)
        # All bits set where the result is negative: x ^ -1 is -x - 1.
        sign = self._computed("shr.s64", Type.S64, (dividend, Immediate(str(_BITS - 1))), span)
        if operator is Operator.DIV:
            result = self._quotient(absolute, size, span)
            if is_negative:
                sign = self._computed("not.b64", Type.S64, (sign,), span)
        else:
            result = self._remainder(absolute, size, span)
        inverted = self._computed("xor.b64", Type.S64, (result, sign), span)
        self._emit("sub.s64", target, (inverted, sign), span)

    def _quotient(self, dividend: AssemblyOperand, divisor: int, span: Span) -> AssemblyOperand:
        """Return the quotient of an unsigned u64 by a constant above 0: by a shift, or by a multiplication
        (``inverse``)."""
        if divisor & (divisor - 1) == 0:
            return self._shifted(dividend, divisor.bit_length() - 1, span)
        before, multiplier, after, adds = inverse(divisor)
        first = self._shifted(dividend, before, span)
        high = self._computed("mul.hi.u64", Type.U64, (first, Immediate(str(multiplier))), span)
        if not adds:
            return self._shifted(high, after, span)
        rest = self._computed("sub.u64", Type.U64, (dividend, high), span)
        half = self._computed("shr.u64", Type.U64, (rest, Immediate("1")), span)
        return self._shifted(self._computed("add.u64", Type.U64, (half, high), span), after - 1, span)

    def _remainder(self, dividend: AssemblyOperand, divisor: int, span: Span) -> AssemblyOperand:
        """Return the remainder of an unsigned dividend by a number above 0."""
        if divisor & (divisor - 1) == 0:
            return self._computed("and.b64", Type.U64, (dividend, Immediate(str(divisor - 1))), span)
        quotient = self._quotient(dividend, divisor, span)
        product = self._computed("mul.lo.u64", Type.U64, (quotient, Immediate(str(divisor))), span)
        return self._computed("sub.u64", Type.U64, (dividend, product), span)

    def _shifted(self, value: AssemblyOperand, amount: int, span: Span) -> AssemblyOperand:
        """Return an unsigned 64-bit value shifted to the right by a constant."""
        if amount == 0:
            return value
        return self._computed("shr.u64", Type.U64, (value, Immediate(str(amount))), span)

    def _move(self, target: Register, value: AssemblyOperand, span: Span) -> None:
        """Append a move of a 64-bit value into a register."""
        self._emit("mov.b64", target, (value,), span)
