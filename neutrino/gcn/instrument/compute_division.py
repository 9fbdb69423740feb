"""Quotients and remainders of integers: of 32 bits and fewer by any number, of 64 bits by constants."""

from __future__ import annotations

from neutrino.gcn.instrument.code import Value, Vector
from neutrino.gcn.instrument.compute_moves import CannotError
from neutrino.gcn.instrument.compute_vectors import Vectors
from neutrino.ir.operands import Constant
from neutrino.ir.statements import Operator
from neutrino.ir.types import Type

_JUST_BELOW = 0x4F7FFFFE
"""2**32 - 512 as an f32: the reciprocal that it is multiplied by may be too large by its last bit."""


class Divisions(Vectors):
    """Lowers ``DIV`` and ``REM``."""

    def divide(self, destination: Vector, operator: Operator, type_: Type, values: list[Value]) -> None:
        """Compute a quotient rounded towards zero, or its remainder. By 0 any value comes out."""
        if type_.bits < 64:
            left, right = (self.in_vector(value, 1) for value in values)
            self._divide_words(destination, operator, left, right, is_signed=type_.is_signed)
            self.narrow(destination, type_)
            return
        divisor = values[1]
        if not isinstance(divisor, Constant) or not divisor.bits:
            raise CannotError("64 bits are divided by constants alone")
        self._divide_pair(destination, operator, type_, self.in_vector(values[0], 2), divisor)

    def _signs(self, value: Vector) -> Vector:
        """Return all bits of a word 1 where a number is negative, else 0."""
        signs = self.code.vector()
        self.code.emit(f"v_ashrrev_i32 {signs.text}, 31, {value.word(value.words - 1)}")
        return signs

    def _magnitude(self, value: Vector, signs: Vector) -> Vector:
        """Return a number without its sign; with the sign of another one if it has none."""
        code, result = self.code, self.code.vector(value.words)
        for number in range(value.words):
            code.emit(f"v_xor_b32 {result.word(number)}, {value.word(number)}, {signs.text}")
        if value.words == 1:
            code.emit(f"{self.plain_subtract} {result.text}, {result.text}, {signs.text}")
        else:
            both = code.vector(2)
            code.emit(*(f"v_mov_b32 {both.word(number)}, {signs.text}" for number in range(2)))
            self.add_pair(result, result, both, is_sum=False)
        return result

    def _divide_words(
        self, destination: Vector, operator: Operator, left: Vector, right: Vector, *, is_signed: bool
    ) -> None:
        """Divide 32 bits by an approximate reciprocal, whose quotient is too small by 2 at most.

        The reciprocal z of y is at most 2**32 / y, and one step of Newton makes it precise enough (as LLVM's expansion
        of the same operation has it).
        """
        code = self.code
        code.changes_mode = True
        sign: Vector | None = None
        if is_signed:
            of_left, of_right = self._signs(left), self._signs(right)
            left, right = self._magnitude(left, of_left), self._magnitude(right, of_right)
            sign = of_left
            if operator is Operator.DIV:
                code.emit(f"v_xor_b32 {sign.text}, {of_left.text}, {of_right.text}")
        z, part, quotient, rest = (code.vector() for _ in range(4))
        code.emit(
            f"v_cvt_f32_u32 {z.text}, {right.text}", f"v_rcp_iflag_f32 {z.text}, {z.text}",
            f"v_mul_f32 {z.text}, {_JUST_BELOW:#x}, {z.text}", f"v_cvt_u32_f32 {z.text}, {z.text}",
            f"{self.plain_subtract} {part.text}, 0, {right.text}", f"v_mul_lo_u32 {part.text}, {part.text}, {z.text}",
            f"v_mul_hi_u32 {part.text}, {z.text}, {part.text}", f"{self.plain_add} {z.text}, {z.text}, {part.text}",
            f"v_mul_hi_u32 {quotient.text}, {left.text}, {z.text}",
            f"v_mul_lo_u32 {part.text}, {quotient.text}, {right.text}",
            f"{self.plain_subtract} {rest.text}, {left.text}, {part.text}",
        )  # fmt: skip
        is_small = code.mask()
        for _ in range(2):
            code.emit(
                f"v_cmp_ge_u32_e64 {is_small.text}, {rest.text}, {right.text}",
                f"{self.plain_add} {part.text}, 1, {quotient.text}",
                f"v_cndmask_b32_e64 {quotient.text}, {quotient.text}, {part.text}, {is_small.text}",
                f"{self.plain_subtract} {part.text}, {rest.text}, {right.text}",
                f"v_cndmask_b32_e64 {rest.text}, {rest.text}, {part.text}, {is_small.text}",
            )
        result = quotient if operator is Operator.DIV else rest
        if sign is not None:
            result = self._magnitude(result, sign)
        self.move(destination, result, Type.U32)

    def _divide_pair(
        self, destination: Vector, operator: Operator, type_: Type, left: Vector, divisor: Constant
    ) -> None:
        """Divide 64 bits by a number that is known."""
        code, number = self.code, divisor.bits
        sign: Vector | None = None
        if type_.is_signed:
            is_negative = number >> 63 == 1
            number = (1 << 64) - number if is_negative else number
            signs = self._signs(left)
            left = self._magnitude(left, signs)
            sign = signs
            if operator is Operator.DIV and is_negative:
                sign = code.vector()
                code.emit(f"v_not_b32 {sign.text}, {signs.text}")
        quotient = self._quotient(left, number)
        result = quotient
        if operator is Operator.REM:
            result = code.vector(2)
            self.add_pair(result, left, self.low_product(quotient, self.number(number, 2)), is_sum=False)
        if sign is not None:
            result = self._magnitude(result, sign)
        self.move(destination, result, type_)

    def _quotient(self, left: Vector, number: int) -> Vector:
        """Divide an unsigned number of 64 bits by one that is known.

        T. Granlund and P. Montgomery, "Division by Invariant Integers using Multiplication", 1994, figure 4.1.
        """
        code, result = self.code, self.code.vector(2)
        shift = (number - 1).bit_length()
        if number == 1 << shift:
            code.emit(f"v_lshrrev_b64 {result.text}, {shift}, {left.text}")
            return result
        factor = ((1 << 64) * ((1 << shift) - number)) // number + 1
        high = self.high_product(self.number(factor, 2), left)
        self.add_pair(result, left, high, is_sum=False)
        code.emit(f"v_lshrrev_b64 {result.text}, 1, {result.text}")
        self.add_pair(result, result, high)
        code.emit(f"v_lshrrev_b64 {result.text}, {shift - 1}, {result.text}")
        return result
