"""What all computing of probes' statements begins with: where values are, how they move, and choices between them.

A value that is the same in all lanes is in SGPRs, others are in VGPRs. What a vector instruction reads besides is first
brought into VGPRs, so that no limit on scalar operands of vector instructions matters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from neutrino.gcn.instrument.code import Code, Mask, Place, Scalar, Value, Vector
from neutrino.gcn.instrument.machine import Machine
from neutrino.gcn.instrument.surroundings import Surroundings
from neutrino.ir.operands import Constant, Register, SiteOperand, Special
from neutrino.ir.types import Type

WORD = (1 << 32) - 1
_INLINE = range(-16, 65)
_ONES = {Type.F16: 0x3C00, Type.BF16: 0x3F80, Type.F32: 0x3F800000, Type.F64: 0x3FF << 52}
"""Bits of 1 as floats."""


class CannotError(Exception):
    """What a probe asks for is not done here; the message says what. kind: a word by which refusals are counted:
    ``statement``, ``map``, ``registers``, ``mode``, ``end``, ``code``."""

    def __init__(self, message: str, kind: str = "statement") -> None:
        """Take the message and the kind."""
        super().__init__(message)
        self.kind = kind


def type_of(value: object) -> Type:
    """Return the type of an operand."""
    if isinstance(value, (Register, Constant, Special)):
        return value.type
    raise CannotError(f"{value} has no type of its own")


def extended(value: Constant) -> int:
    """Return a constant as registers have it: 8 and 16 bits extended by the sign of the type."""
    bits, width = value.bits, value.type.bits
    if value.type.is_signed and width < 32 and bits >> width - 1:
        bits += (1 << 32) - (1 << width)
    return bits


def is_inline(bits: int) -> bool:
    """Return whether a 32-bit number is an inline constant of instructions."""
    return bits < _INLINE.stop or bits >= (1 << 32) + _INLINE.start


class Moves:
    """Registers and values of one snippet. here: where it stands. vectors: the names of its registers that differ
    between lanes."""

    def __init__(self, here: Surroundings, vectors: Iterable[str] = ()) -> None:
        """Begin a snippet."""
        self.here = here
        self.code: Code = here.code
        self._vectors = set(vectors)
        self._places: dict[str, Place] = {}
        self._conditions = 0
        """How many conditions that are not the same in all lanes are around the present statement."""

    @property
    def _machine(self) -> Machine:
        return self.code.machine

    # Registers

    def place(self, register: Register) -> Place:
        """Return where a register is; a local one gets a place when it is first asked for."""
        if not register.is_local:
            return self.here.home(register)
        found = self._places.get(register.name)
        if found is None:
            words = self.words(register.type)
            if register.type is Type.PRED:
                found = self.code.mask()
            else:
                found = self.code.vector(words) if register.name in self._vectors else self.code.scalar(words)
            self._places[register.name] = found
            self.code.pin(found)
        return found

    def is_kept(self, register: Register) -> bool:
        """Return whether a register lives longer than the snippet."""
        return not register.is_local

    def bind(self, register: Register, place: Place) -> None:
        """Let a probe's local register be in these registers, before it is used for the first time."""
        self._places[register.name] = place

    def is_place(self, register: Register, place: Value) -> bool:
        """Return whether a local register that is only read can be in registers that have its value already."""
        if isinstance(place, (Constant, Mask)) or register.type is Type.PRED or register.type.bits < 32:
            return False
        is_vector = isinstance(place, Vector)
        return is_vector == (register.name in self._vectors) and place.words == self.words(register.type)

    def words(self, type_: Type) -> int:
        """Return how many registers a value of a type takes."""
        if type_ in (Type.PRED, Type.LANES):
            return self._machine.mask_words
        return 2 if type_.bits == 64 else 1

    def value(self, operand: object) -> Value:
        """Return the registers that have an operand's value, or the constant that it is; code that reads it is
        appended."""
        if isinstance(operand, Constant):
            return operand
        if isinstance(operand, Register):
            place = self.place(operand)
            if isinstance(place, Mask) and self.is_kept(operand):
                # It has bits of other lanes, too.
                clean, machine = self.code.mask(), self._machine
                self.code.emit(f"s_and_{machine.mask} {clean.text}, {place.text}, {machine.exec}")
                return clean
            return place
        if isinstance(operand, Special):
            return self.here.special(operand)
        if isinstance(operand, SiteOperand):
            return self.here.operand(operand)
        raise CannotError(f"{operand} is no operand of typed statements")

    @contextmanager
    def assigning(self, register: Register) -> Iterator[Place]:
        """Give the place where the new value of a register belongs. In other lanes than those that are active the
        register keeps its value."""
        if register.type is not Type.PRED or not (self._conditions or self.is_kept(register)):
            yield self.place(register)
            return
        code, machine = self.code, self._machine
        new = code.mask()
        yield new
        place = self.place(register)
        code.emit(f"{machine.and_not} {place.text}, {place.text}, {machine.exec}")
        code.emit(f"s_or_{machine.mask} {place.text}, {place.text}, {new.text}")

    @contextmanager
    def in_lanes(self, destination: Place, words: int = 0) -> Iterator[Vector]:
        """Give VGPRs for a result that only vector instructions compute; it ends in the destination. words: of it, 0
        for as many as the destination has."""
        if isinstance(destination, Vector):
            yield destination
            return
        result = self.code.vector(words or destination.words)
        yield result
        self.move(destination, result, Type.U64)

    # Words

    def word(self, value: Value, number: int) -> str:
        """Return a 32-bit word of a value as an operand; beyond a value's words 0."""
        if isinstance(value, Constant):
            bits = extended(value) >> 32 * number & WORD
            if not is_inline(bits):
                return f"{bits:#x}"
            return str(bits - (1 << 32) if bits > WORD // 2 else bits)
        return value.word(number) if number < value.words else "0"

    def pair(self, left: Value, right: Value, number: int = 0) -> str:
        """Return a word of two values as operands of one scalar instruction, which may have one literal only."""
        if isinstance(left, Constant) and isinstance(right, Constant):
            first = self.code.scalar()
            self.code.emit(f"s_mov_b32 {first.text}, {self.word(left, number)}")
            return f"{first.text}, {self.word(right, number)}"
        return f"{self.word(left, number)}, {self.word(right, number)}"

    # Moves

    def move(self, destination: Place, value: Value, type_: Type) -> None:
        """Bring a value to a place. type_: of what is moved."""
        code = self.code
        if isinstance(destination, Mask):
            machine, text = self._machine, self.mask_text(value)
            # Without lanes that are not active, which the value may have from where it was computed.
            code.emit(f"s_mov_{machine.mask} {destination.text}, {text}" if isinstance(value, Constant)
                      else f"s_and_{machine.mask} {destination.text}, {text}, {machine.exec}")  # fmt: skip
            return
        if isinstance(value, (Scalar, Vector)) and value == destination:
            return
        is_vector = isinstance(destination, Vector)
        if not is_vector and isinstance(value, Scalar) and value.words == destination.words == 2:
            code.emit(f"s_mov_b64 {destination.text}, {value.text}")
            return
        if not is_vector and isinstance(value, Vector):
            # It is the same in all lanes, or nothing is known of the others.
            mnemonic = "v_readfirstlane_b32"
        else:
            mnemonic = "v_mov_b32" if is_vector else "s_mov_b32"
        for number in range(destination.words):
            beyond = isinstance(value, Vector) and number >= value.words and not is_vector
            name = "s_mov_b32" if beyond else mnemonic
            code.emit(f"{name} {destination.word(number)}, {self.word(value, number)}")

    def mask_text(self, value: Value) -> str:
        """Return a predicate as an operand of scalar instructions."""
        if isinstance(value, Constant):
            return self._machine.exec if value.bits else "0"
        return value.text

    def in_vector(self, value: Value, words: int) -> Vector:
        """Return a value in VGPRs, the same ones if it is there. words: how many."""
        if isinstance(value, Vector) and value.words == words:
            return value
        place = self.code.vector(words)
        for number in range(words):
            self.code.emit(f"v_mov_b32 {place.word(number)}, {self.word(value, number)}")
        return place

    def in_scalar(self, value: Value, words: int) -> Scalar:
        """Return a value that is the same in all lanes in SGPRs, the same ones if it is there. words: how many."""
        if isinstance(value, Scalar) and value.words == words:
            return value
        place = self.code.scalar(words)
        self.move(place, value, Type.U64)
        return place

    def number(self, bits: int, words: int = 1) -> Vector:
        """Return a constant in VGPRs."""
        return self.in_vector(Constant(Type.U64, bits), words)

    def from_mask(self, destination: Place, mask: Value, type_: Type) -> None:
        """Write 1 where a predicate is true, 0 elsewhere, as numbers of a type."""
        code, one = self.code, _ONES.get(type_, 1)
        if isinstance(destination, Scalar):
            self.test(mask)
            for number in range(destination.words):
                word = self.word(Constant(Type.U64, one), number)
                code.emit(f"s_cselect_b32 {destination.word(number)}, {word}, 0")
            return
        if isinstance(mask, Constant):
            self.move(destination, Constant(Type.U64, one if mask.bits else 0), Type.U64)
            return
        for number in range(destination.words):
            bits = one >> 32 * number & WORD
            if not bits:
                code.emit(f"v_mov_b32 {destination.word(number)}, 0")
                continue
            source = self.word(Constant(Type.U32, bits), 0) if is_inline(bits) else self.number(bits).text
            code.emit(f"v_cndmask_b32_e64 {destination.word(number)}, 0, {source}, {mask.text}")

    def test(self, mask: Value) -> None:
        """Set SCC to whether a predicate is true in any lane that is active."""
        if isinstance(mask, Constant):
            self.code.emit(f"s_cmp_lg_u32 {int(mask.bits != 0)}, 0")
        else:
            self.code.emit(f"s_cmp_lg_u{self._machine.wave} {mask.text}, 0")

    def choose(self, destination: Vector, condition: Value, then: Value, otherwise: Value) -> None:
        """Take one of two values in each lane."""
        if isinstance(condition, Constant):
            self.move(destination, then if condition.bits else otherwise, Type.U64)
            return
        words = destination.words
        first, second = self.in_vector(then, words), self.in_vector(otherwise, words)
        for number in range(words):
            self.code.emit(
                f"v_cndmask_b32_e64 {destination.word(number)}, {second.word(number)}, {first.word(number)},"
                f" {condition.text}"
            )

    def narrow(self, destination: Place, type_: Type) -> None:
        """Extend a result of 8 or 16 bits to its word, by the type's sign."""
        if type_.bits not in (8, 16):
            return
        text, code = destination.text, self.code
        if isinstance(destination, Vector):
            kind = "i32" if type_.is_signed else "u32"
            code.emit(f"v_bfe_{kind} {text}, {text}, 0, {type_.bits}")
        elif type_.is_signed:
            code.emit(f"s_sext_i32_i{type_.bits} {text}, {text}")
        else:
            code.emit(f"s_and_b32 {text}, {text}, {(1 << type_.bits) - 1:#x}")
