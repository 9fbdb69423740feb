"""What is known of the results of floating-point instructions before they run: signs, and where a NaN can begin.

Whatever the flow of control, a register has what some instruction of the body wrote. So a register of which every
writer gives a number of at least +0, or a NaN, holds one. Equal names in different scopes are taken as one register.
"""

from __future__ import annotations

import math
import struct
from collections import defaultdict, deque

from neutrino.lazy import lazy
from neutrino.ptx.isa.instruction import REGISTER, Instruction
from neutrino.ptx.isa.scalars import FLOAT
from neutrino.ptx.text.body import Body

_FLOATS = frozenset({"f16", "f16x2", "bf16", "bf16x2", "f32", "f64"})
_LEAST_NORMAL = 2.0**-126
_NAN_STAYS = frozenset({"cvt", "ex2", "rcp", "tanh"})
"""Words of opcodes that make a NaN of a NaN alone."""
_OF_POSITIVE = frozenset({"sqrt", "rsqrt", "lg2"})
"""And those that do so of numbers that are not negative."""


def constant(operand: str) -> float | None:
    """Return the f32 that an operand is, written as ``0f3F800000``; None for anything else."""
    is_single = operand[:2] in {"0f", "0F"} and FLOAT.fullmatch(operand)
    return float(struct.unpack(">f", bytes.fromhex(operand[2:]))[0]) if is_single else None


def float_types(instruction: Instruction) -> tuple[str, ...]:
    """Return the floating-point types in an opcode: the result's first; of conversions the source's last."""
    return tuple(part for part in instruction.parts if part in _FLOATS)


def _is_finite(operand: str) -> bool:
    """Whether an operand is a finite constant."""
    number = constant(operand)
    return number is not None and math.isfinite(number)


def _is_factor(operand: str) -> bool:
    """Whether an operand is a constant by which infinities and numbers can be multiplied: finite, and no zero even
    where those below normal numbers are flushed."""
    number = constant(operand)
    return number is not None and _LEAST_NORMAL <= abs(number) < math.inf


def _is_register(operand: str) -> bool:
    """Whether an operand is a register, as it is."""
    return REGISTER.fullmatch(operand) is not None


class FloatFacts:
    """Answers questions about the floating-point values of one body, a function's text."""

    def __init__(self, body: Body) -> None:
        """Prepare to answer questions about a body; nothing is found before one is asked."""
        self._body = body
        self._known: set[str] = set()

    def is_nonnegative(self, operand: str) -> bool:
        """Whether an operand of type f32 is at least +0, not -0, or a NaN."""
        return operand in self._nonnegative or _is_positive(operand)

    def nan_sources(self, instruction: Instruction) -> tuple[str, ...] | None:
        """Return the registers of which one holds a NaN where an instruction's result is one, or has one.

        None where the instruction may make a NaN of numbers. Infinities are numbers.
        """
        parts, sources = instruction.parts, instruction.sources
        types = float_types(instruction)
        if parts[0] in _NAN_STAYS and types and len(sources) <= 2 and all(map(_is_register, sources)):
            # Of "cvt" both types must be known.
            return tuple(sources) if len(types) == 1 + (parts[0] == "cvt") else None
        if types != ("f32",):
            return None
        if parts[0] in _OF_POSITIVE and self.is_nonnegative(sources[0]):
            return sources[:1]
        if parts[0] in {"add", "sub"} and len(sources) == 2:
            return self._of_sum(*sources, is_difference=parts[0] == "sub")
        if parts[0] == "mul" and len(sources) == 2:
            return _of_product(*sources)
        if parts[0] in {"fma", "mad"} and len(sources) == 3:
            *factors, addend = sources
            product = _of_product(factors[0], factors[1])
            if product is None or _is_finite(addend):
                return product
            # Two infinities of one sign add up to one.
            if self._is_product_nonnegative(factors[0], factors[1]) and self.is_nonnegative(addend):
                return (*product, addend) if _is_register(addend) else None
        return None

    def covered(self, instruction: Instruction) -> tuple[str, ...]:
        """Return the sources of an f32 instruction that lie between 0 and its result, and are finite where that is.

        With ``.ftz`` none is said of sources below normal numbers.
        """
        parts, sources = instruction.parts, instruction.sources
        if float_types(instruction) != ("f32",) or "sat" in parts:
            return ()
        if parts[0] == "add" and all(map(self.is_nonnegative, sources)):
            return tuple(filter(_is_register, sources))
        if parts[0] in {"fma", "mad"}:
            is_sum = self._is_product_nonnegative(*sources[:2]) and self.is_nonnegative(sources[2])
            return tuple(filter(_is_register, sources[2:])) if is_sum else ()
        return tuple(source for source, factor in _with_factor(instruction) if factor >= 1)

    def covering(self, instruction: Instruction) -> str | None:
        """Return the source of an f32 product that is finite where the result is, which lies between 0 and it."""
        if "sat" in instruction.parts:
            return None
        return next((source for source, factor in _with_factor(instruction) if _LEAST_NORMAL <= factor < 1), None)

    def _of_sum(self, left: str, right: str, *, is_difference: bool) -> tuple[str, ...] | None:
        """Return the registers from which a NaN of a sum or difference comes; None where it may begin there."""
        registers = tuple(operand for operand in (left, right) if _is_register(operand))
        if len(registers) == 1 and any(map(_is_finite, (left, right))):
            return registers
        is_same_sign = not is_difference and self.is_nonnegative(left) and self.is_nonnegative(right)
        return registers if is_same_sign and len(registers) == 2 else None

    def _is_product_nonnegative(self, left: str, right: str) -> bool:
        """Whether the product of two operands is at least +0, or a NaN."""
        return left == right or (self.is_nonnegative(left) and self.is_nonnegative(right))

    @lazy
    def _nonnegative(self) -> set[str]:
        """The registers that only ever hold f32 of at least +0, or a NaN."""
        writers: defaultdict[str, list[Instruction]] = defaultdict(list)
        readers: defaultdict[str, set[str]] = defaultdict(set)
        for statement in self._body:
            instruction = statement.instruction
            if instruction is None:
                continue
            for name in instruction.written:
                writers[name].append(instruction)
            for source in instruction.sources:
                readers[source] |= instruction.written
        # Assumed of all that may be, and taken back where it does not follow, until all of it follows.
        known = self._known = set(writers)
        waiting = deque(writers)
        while waiting:
            name = waiting.popleft()
            if name in known and not all(map(self._gives_nonnegative, writers[name])):
                known.remove(name)
                waiting += readers[name]
        return known

    def _gives_nonnegative(self, instruction: Instruction) -> bool:
        """Whether an instruction writes only f32 of at least +0, or NaNs, if the registers in ``_known`` hold these."""
        parts, sources = instruction.parts, instruction.sources
        if len(instruction.operands) == len(sources) or "sat" in parts:
            return False
        if parts[0] in {"mov", "selp", "shfl"}:
            if parts[0] != "shfl" and parts[1:] not in {("b32",), ("f32",)}:
                return False
            values = sources[: 2 if parts[0] == "selp" else 1]
            return all(value in self._known or _is_positive(value) for value in values)
        if float_types(instruction) != ("f32",):
            return False
        positive = [source in self._known or _is_positive(source) for source in sources]
        if parts[0] in {"ex2", "abs"}:
            return True
        if parts[0] in {"add", "div", "rcp", "sqrt", "rsqrt", "max", "min"}:
            return all(positive)
        if parts[0] in {"mul", "fma", "mad"}:
            return all(positive) or (sources[0] == sources[1] and all(positive[2:]))
        return False


def _of_product(left: str, right: str) -> tuple[str, ...] | None:
    """Return the registers from which a NaN of a product comes; None where it may begin there."""
    if left == right and _is_register(left):
        return (left,)
    if _is_factor(right) and _is_register(left):
        return (left,)
    return (right,) if _is_factor(left) and _is_register(right) else None


def _with_factor(instruction: Instruction) -> tuple[tuple[str, float], ...]:
    """Return the register that an f32 instruction multiplies by a finite constant, and that constant."""
    if instruction.parts[0] != "mul" or float_types(instruction) != ("f32",):
        return ()
    left, right = instruction.sources
    pairs = ((left, constant(right)), (right, constant(left)))
    return tuple((source, factor) for source, factor in pairs
                 if factor is not None and math.isfinite(factor) and _is_register(source))  # fmt: skip


def _is_positive(operand: str) -> bool:
    """Whether an operand is a constant of at least +0."""
    number = constant(operand)
    return number is not None and math.copysign(1, number) > 0 and not math.isnan(number)
