"""Constants of PTX: literals and constant expressions (PTX ISA 4.5)."""

from __future__ import annotations

import operator as operators
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

_TOKEN = re.compile(
    r"\s*(?:(\(\s*\.[su]64\s*\))|(0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+U?)"
    r"|(<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^~!<>()?:]))"
)
_HEX_FLOAT = re.compile(r"(-?)0(?:[fF]([0-9a-fA-F]{8})|[dD]([0-9a-fA-F]{16}))")
_DECIMAL_FLOAT = re.compile(r"-?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?")
# How tightly each binary operator binds, as in C.
_PRECEDENCE = {
    "||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, ">": 7, "<=": 7, ">=": 7,
    "<<": 8, ">>": 8, "+": 9, "-": 9, "*": 10, "/": 10, "%": 10,
}  # fmt: skip
_DEEPEST = 50
_MASK = (1 << 64) - 1


@lru_cache(maxsize=4096)
def float_bits(text: str) -> tuple[int, int] | None:
    """Read a floating-point literal; return its bits and its size in bytes, None if `text` is none.

    ``0f3F800000`` → (0x3F800000, 4); ``0d…`` and decimal fractions → (bits of a double, 8).
    """
    match = _HEX_FLOAT.fullmatch(text)
    if match is not None:
        sign, single_digits, double_digits = match.groups()
        size = 4 if single_digits else 8
        bits = int(single_digits or double_digits, 16)
        sign_bit = 1 << (8 * size - 1)
        return (bits ^ sign_bit if sign else bits), size
    # Without a point or an exponent it is an integer.
    if _DECIMAL_FLOAT.fullmatch(text) and any(mark in text for mark in ".eE"):
        return struct.unpack("<Q", struct.pack("<d", float(text)))[0], 8
    return None


@dataclass(frozen=True)
class _Number:
    """A 64-bit integer: its bits as a number from 0 to 2**64 - 1, and whether its type is .u64 instead of .s64.

    Literals are .s64 if they fit and have no U suffix (PTX ISA 4.5.1).
    """

    bits: int
    unsigned: bool = False

    @property
    def signed_value(self) -> int:
        """The bits as a number in two's complement."""
        return self.bits - (1 << 64) if self.bits >> 63 else self.bits

    @property
    def value(self) -> int:
        """The number that the bits stand for in their type, .u64 or .s64."""
        return self.bits if self.unsigned else self.signed_value


@lru_cache(maxsize=4096)
def evaluate_integer(text: str) -> int | None:
    """Return the value of an integer constant expression as a signed 64-bit number; None if `text` is none.

    The rules are those of PTX ISA 4.5.6 as ptxas 13 applies them. A text of more than 1000 characters is not read.
    """
    # No compiler writes such constants, and Python's int refuses decimal numbers of more than 4300 digits.
    if len(text) > 1000:
        return None
    tokens = []
    position = 0
    text = text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            return None
        # The group that matched is the token without the space before it.
        tokens.append(match[match.lastindex or 0])
        position = match.end()
    parser = _ExpressionParser(tokens)
    value = parser.ternary(depth=0)
    # An expression that ends before the text does is none.
    return value.signed_value if value is not None and parser.position == len(tokens) else None


class _ExpressionParser:
    """A recursive-descent parser that evaluates as it parses.

    tokens: their texts. position: the index of the next one. Its methods return None once the tokens are no valid
    expression. depth: the nesting so far; beyond a limit an expression is not valid, so that no text exhausts the
    stack.
    """

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.position = 0

    def next(self) -> str:
        """Return the next token without consuming it; empty at the end."""
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def take(self) -> str:
        """Consume the next token and return it; empty at the end."""
        token = self.next()
        self.position += 1
        return token

    def ternary(self, depth: int) -> _Number | None:
        """Parse and evaluate ``condition ? first : second``, or a binary expression; None if it is not valid."""
        # The lowest precedence is 1: all binary operators.
        condition = self.binary(1, depth)
        if condition is None or self.next() != "?":
            return condition
        self.take()
        first = self.ternary(depth + 1) if depth < _DEEPEST else None
        if first is None or self.take() != ":":
            return None
        second = self.ternary(depth + 1)
        if second is None:
            return None
        return first if condition.bits else second

    def binary(self, precedence: int, depth: int) -> _Number | None:
        """Parse and evaluate operands joined by binary operators of at least this precedence; None if not valid.

        This is precedence climbing: the right operand takes only operators that bind tighter.
        """
        left = self.unary(depth)
        # A token that is no binary operator has no precedence (0) and ends the loop.
        while left is not None and _PRECEDENCE.get(self.next(), 0) >= precedence:
            operator = self.take()
            right = self.binary(_PRECEDENCE[operator] + 1, depth + 1) if depth < _DEEPEST else None
            if right is None:
                return None
            left = _apply(operator, left, right)
        return left

    def unary(self, depth: int) -> _Number | None:
        """Parse and evaluate a literal, a parenthesized expression, or a unary operator or cast with its operand.

        Return None if the tokens are none of these.
        """
        token = self.take()
        if depth > _DEEPEST or not token:
            return None
        # The casts are the single tokens (.s64) and (.u64).
        is_cast = token.endswith("64)")
        if token in ("+", "-", "~", "!") or is_cast:
            operand = self.unary(depth + 1)
            if operand is None:
                return None
            if token == "+":
                return operand
            if token == "-":
                return _Number(-operand.bits & _MASK, operand.unsigned)
            if token == "~":
                # ptxas takes a complement as unsigned.
                return _Number(~operand.bits & _MASK, True)
            if token == "!":
                return _Number(int(not operand.bits))
            # A cast, to (.u64) or (.s64).
            return _Number(operand.bits, "u" in token)
        if token == "(":
            inner = self.ternary(depth + 1)
            return inner if self.take() == ")" else None
        if token[0].isdigit():
            return _literal(token)
        return None


def _literal(token: str) -> _Number | None:
    """Return the value of an integer literal (octal after a leading 0); None if it is not valid."""
    digits = token.rstrip("U")
    # Python writes octal numbers otherwise than C.
    if len(digits) > 1 and digits[0] == "0" and digits[1] not in "xXbB":
        if not all(digit in "01234567" for digit in digits):
            return None
        value = int(digits, 8)
    else:
        value = int(digits, 0)
    # Unsigned with a U suffix, or if .s64 cannot hold it.
    return _Number(value & _MASK, digits != token or bool(value >> 63))


def _apply(operator: str, left: _Number, right: _Number) -> _Number | None:
    """Apply a binary operator; None for a division by zero.

    If one operand is unsigned, both count as unsigned. The result is then unsigned, too, but signed for comparisons
    and logical operators; shifts have the type of their left operand.
    """
    if operator in ("<<", ">>"):
        # The amount counts modulo 64.
        count = right.bits & 63
        return _Number((left.value << count if operator == "<<" else left.value >> count) & _MASK, left.unsigned)
    unsigned = left.unsigned or right.unsigned
    first, second = (left.bits, right.bits) if unsigned else (left.value, right.value)
    if operator in ("/", "%"):
        if right.bits == 0:
            return None
        if operator == "%":
            # The remainder always treats its operands as unsigned.
            return _Number(left.bits % right.bits, True)
        # Truncate towards zero.
        quotient = abs(first) // abs(second)
        return _Number((quotient if (first < 0) == (second < 0) else -quotient) & _MASK, unsigned)
    is_arithmetic = operator in ("&", "|", "^", "+", "-", "*")
    return _Number(int(_PYTHON_OPERATORS[operator](first, second)) & _MASK, unsigned and is_arithmetic)


_PYTHON_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "||": lambda left, right: bool(left or right),
    "&&": lambda left, right: bool(left and right),
    "|": operators.or_,
    "^": operators.xor,
    "&": operators.and_,
    "==": operators.eq,
    "!=": operators.ne,
    "<": operators.lt,
    ">": operators.gt,
    "<=": operators.le,
    ">=": operators.ge,
    "+": operators.add,
    "-": operators.sub,
    "*": operators.mul,
}
