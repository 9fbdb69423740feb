"""Constants of PTX: literals and constant expressions (PTX ISA 4.5)."""

from __future__ import annotations

import operator as operators
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass

_TOKEN = re.compile(
    r"\s*(?:(\(\s*\.[su]64\s*\))|(0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+U?)"
    r"|(<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^~!<>()?:]))"
)
_HEX_FLOAT = re.compile(r"(-?)0(?:[fF]([0-9a-fA-F]{8})|[dD]([0-9a-fA-F]{16}))")
_DECIMAL_FLOAT = re.compile(r"-?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?")
_BINDING = {
    "||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, ">": 7, "<=": 7, ">=": 7,
    "<<": 8, ">>": 8, "+": 9, "-": 9, "*": 10, "/": 10, "%": 10,
}  # fmt: skip
_DEEPEST = 50
_MASK = (1 << 64) - 1


def float_bits(text: str) -> tuple[int, int] | None:
    """``0f3F800000`` → (0x3F800000, 4); ``0d…`` and decimal fractions → (bits, 8); None for anything else."""
    match = _HEX_FLOAT.fullmatch(text)
    if match is not None:
        size = 4 if match[2] else 8
        bits = int(match[2] or match[3], 16)
        return (bits ^ (1 << (8 * size - 1)) if match[1] else bits), size
    if _DECIMAL_FLOAT.fullmatch(text) and any(mark in text for mark in ".eE"):
        return struct.unpack("<Q", struct.pack("<d", float(text)))[0], 8
    return None


@dataclass(frozen=True)
class _Number:
    # bits: from 0 up to 2**64. Literals are .s64 where they fit and have no U suffix (PTX ISA 4.5.1).
    bits: int
    unsigned: bool = False

    @property
    def signed_value(self) -> int:
        return self.bits - (1 << 64) if self.bits >> 63 else self.bits

    @property
    def value(self) -> int:
        return self.bits if self.unsigned else self.signed_value


def evaluate_integer(text: str) -> int | None:
    """The value of a constant expression of integers, modulo 2**64 from -2**63; None where it is none.

    The rules are those of PTX ISA 4.5.6 as ptxas 13 applies them.
    """
    if len(text) > 1000:
        return None
    tokens = []
    position = 0
    text = text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            return None
        tokens.append(match[match.lastindex or 0])
        position = match.end()
    parser = _Expression(tokens)
    value = parser.ternary(0)
    return value.signed_value if value is not None and parser.at == len(tokens) else None


class _Expression:
    # Every method returns None as soon as the tokens are not an expression.
    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.at = 0

    def next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        token = self.next()
        self.at += 1
        return token

    def ternary(self, depth: int) -> _Number | None:
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

    def binary(self, binding: int, depth: int) -> _Number | None:
        left = self.unary(depth)
        while left is not None and _BINDING.get(self.next(), 0) >= binding:
            operator = self.take()
            right = self.binary(_BINDING[operator] + 1, depth + 1) if depth < _DEEPEST else None
            if right is None:
                return None
            left = _apply(operator, left, right)
        return left

    def unary(self, depth: int) -> _Number | None:
        token = self.take()
        if depth > _DEEPEST or not token:
            return None
        if token in ("+", "-", "~", "!") or token.endswith("64)"):
            number = self.unary(depth + 1)
            if number is None:
                return None
            if token in "+-":
                return number if token == "+" else _Number(-number.bits & _MASK, number.unsigned)
            if token == "~":
                return _Number(~number.bits & _MASK, True)
            if token == "!":
                return _Number(int(not number.bits))
            return _Number(number.bits, "u" in token)
        if token == "(":
            inside = self.ternary(depth + 1)
            return inside if self.take() == ")" else None
        if token[0].isdigit():
            return _literal(token)
        return None


def _literal(token: str) -> _Number | None:
    digits = token.rstrip("U")
    if len(digits) > 1 and digits[0] == "0" and digits[1] not in "xXbB":
        if not all(digit in "01234567" for digit in digits):
            return None
        value = int(digits, 8)
    else:
        value = int(digits, 0)
    return _Number(value & _MASK, digits != token or bool(value >> 63))


def _apply(operator: str, left: _Number, right: _Number) -> _Number | None:
    if operator in ("<<", ">>"):
        count = right.bits & 63
        return _Number((left.value << count if operator == "<<" else left.value >> count) & _MASK, left.unsigned)
    unsigned = left.unsigned or right.unsigned
    first, second = (left.bits, right.bits) if unsigned else (left.value, right.value)
    if operator in ("/", "%"):
        if right.bits == 0:
            return None
        if operator == "%":
            # Always of unsigned numbers.
            return _Number(left.bits % right.bits, True)
        quotient = abs(first) // abs(second)
        return _Number((quotient if (first < 0) == (second < 0) else -quotient) & _MASK, unsigned)
    kept = operator in ("&", "|", "^", "+", "-", "*")
    return _Number(int(_SIMPLE[operator](first, second)) & _MASK, unsigned and kept)


_SIMPLE: dict[str, Callable[[int, int], int]] = {
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
