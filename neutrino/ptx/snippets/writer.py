"""Writing of instructions of a snippet: operands as PTX takes them, and temporary registers."""

from __future__ import annotations

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
from neutrino.probing.ir.statements import Assembly, Straight
from neutrino.probing.ir.types import Type

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
            self._emit(move(value.type), register, (Immediate(value.text),), span)
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
        self._code.append(
            Assembly(TARGET, opcode, (destination, *sources), span, register, is_inverted, (destination,))
        )

    def _halves(self, value: AssemblyOperand, span: Span) -> tuple[Register, Register]:
        """Return the upper and the lower 32 bits of a u64."""
        shifted = self._computed("shr.u64", Type.U64, (value, Immediate("32")), span)
        upper = self._computed("cvt.u32.u64", Type.U32, (shifted,), span)
        return upper, self._computed("cvt.u32.u64", Type.U32, (value,), span)

    def _join(self, target: Register, upper: Register, lower: Register, span: Span) -> None:
        """Put two words together; ``target`` may hold 64 bits of any type."""
        high = self._computed("cvt.u64.u32", Type.U64, (upper,), span)
        low = self._computed("cvt.u64.u32", Type.U64, (lower,), span)
        self._emit("shl.b64", high, (high, Immediate("32")), span)
        self._emit("or.b64", low, (low, high), span)
        self._emit("mov.b64", target, (low,), span)


def register_bits(value_type: Type) -> int:
    """Return the width of the register for a value of a type: PTX has none below 16 bits."""
    return max(value_type.bits, 16)


def move(value_type: Type, *, special: bool = False) -> str:
    """Return the opcode of ``mov`` for a type. special: the source is a special register, an unsigned integer."""
    if value_type in {Type.PRED, Type.F32, Type.F64}:
        return f"mov.{value_type}"
    # Halves are moved as untyped bits too, since mov has no f16.
    letter = "u" if special else "b"
    return f"mov.{letter}{register_bits(value_type)}"


def integer_literal(constant: Constant) -> str:
    """Return an integer constant as PTX writes it, negative if its type is signed and its highest bit is set."""
    sign_bit = 1 << (constant.type.bits - 1)
    if constant.type.is_signed and constant.bits & sign_bit:
        return str(constant.bits - (1 << constant.type.bits))
    return str(constant.bits)
