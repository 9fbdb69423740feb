"""Quotients and remainders of integers as instructions that are exact and compute nothing in floating point.

ptxas makes an FMUL of ``div.u16`` and calls a function for ``div.u64``. So narrow integers are divided in 32 bits, and
those of 64 bits by constants alone: by shifts, and by the upper half of a product with a scaled inverse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from neutrino.errors import Span
from neutrino.ir.operands import AssemblyOperand, Constant, Immediate, Register
from neutrino.ir.statements import Operation, Operator
from neutrino.ir.types import Type
from neutrino.ptx.snippets.writer import Writer

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
    """Return how to divide any u64 by a number from 3 to 2^64 - 1 that is no power of two.

    Granlund and Montgomery, "Division by Invariant Integers using Multiplication", theorem 4.2: with
    2^(64 + s) <= m d <= 2^(64 + s) + 2^(s + k), the quotient of any n below 2^(64 - k) is m n >> (64 + s).
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
        """Write the quotient or remainder of a signed dividend: that of the sizes, with its sign.

        The size of the lowest number, 2^63, is right as an unsigned one.
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
        """Return the quotient of an unsigned dividend by a number above 0."""
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
        """Return an unsigned value shifted to the right."""
        if amount == 0:
            return value
        return self._computed("shr.u64", Type.U64, (value, Immediate(str(amount))), span)

    def _move(self, target: Register, value: AssemblyOperand, span: Span) -> None:
        self._emit("mov.b64", target, (value,), span)
