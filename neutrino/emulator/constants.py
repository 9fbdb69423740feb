"""Constants of PTX: literals and constant expressions (PTX ISA 4.5)."""

from __future__ import annotations

import operator as operators
import re
import struct
from collections.abc import Callable

_TOKEN = re.compile(r"\s*(?:(0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+U?)|(<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^~!<>()?:]))")
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


def evaluate_integer(text: str) -> int | None:
    """The value of a constant expression of integers, modulo 2**64 from -2**63; None where it is none."""
    if len(text) > 1000:
        return None
    tokens = []
    position = 0
    text = text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            return None
        tokens.append(match[1] or match[2])
        position = match.end()
    parser = _Expression(tokens)
    value = parser.ternary(0)
    return value if value is not None and parser.at == len(tokens) else None


def _wrapped(value: int) -> int:
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


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

    def ternary(self, depth: int) -> int | None:
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
        return first if condition else second

    def binary(self, binding: int, depth: int) -> int | None:
        left = self.unary(depth)
        while left is not None and _BINDING.get(self.next(), 0) >= binding:
            operator = self.take()
            right = self.binary(_BINDING[operator] + 1, depth + 1) if depth < _DEEPEST else None
            if right is None:
                return None
            left = _apply(operator, left, right)
        return left

    def unary(self, depth: int) -> int | None:
        token = self.take()
        if depth > _DEEPEST or not token:
            return None
        if token in "+-~!":
            value = self.unary(depth + 1)
            if value is None:
                return None
            return {"+": value, "-": _wrapped(-value), "~": ~value, "!": int(not value)}[token]
        if token == "(":
            inside = self.ternary(depth + 1)
            return inside if self.take() == ")" else None
        if token[0].isdigit():
            return _literal(token)
        return None


def _literal(token: str) -> int | None:
    digits = token.rstrip("U")
    if len(digits) > 1 and digits[0] == "0" and digits[1] not in "xXbB":
        return _wrapped(int(digits, 8)) if all(digit in "01234567" for digit in digits) else None
    return _wrapped(int(digits, 0))


def _apply(operator: str, left: int, right: int) -> int | None:
    if operator in ("/", "%"):
        if right == 0:
            return None
        quotient = abs(left) // abs(right)
        quotient = quotient if (left < 0) == (right < 0) else -quotient
        return _wrapped(quotient if operator == "/" else left - quotient * right)
    if operator in ("<<", ">>"):
        if not 0 <= right < 64:
            return 0
        return _wrapped(left << right) if operator == "<<" else left >> right
    return _wrapped(int(_SIMPLE[operator](left, right)))


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
