"""The operands of a resolved PTX statement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from neutrino.emulator.datatypes import TYPES


@dataclass(frozen=True)
class Register:
    """One register of a function. index: its index in the function's register file."""

    index: int
    type: str

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type in which the register's values are stored."""
        return TYPES[self.type]


@dataclass(frozen=True)
class Immediate:
    """A constant. bits: its value. float_size: 4 or 8 (bytes) for a floating-point constant, 0 for an integer."""

    bits: int
    float_size: int = 0


@dataclass(frozen=True)
class Special:
    """A special register, without the ``%``."""

    name: str


@dataclass(frozen=True)
class Variable:
    """A variable in memory. size, alignment: in bytes.

    place: depends on the state space. For global, const and shared it is the variable's number in the module, for
    local its byte offset in the function's stack frame, for param its byte offset in the kernel's parameter buffer.
    """

    name: str
    space: str
    size: int
    alignment: int
    place: int


@dataclass(frozen=True)
class Symbol:
    """The address of a variable, or of a function (then ``variable`` is None), plus an offset in bytes."""

    name: str
    variable: Variable | None
    offset: int = 0


@dataclass(frozen=True)
class Memory:
    """A memory operand, ``[base + offset]``. offset: bytes."""

    base: Operand
    offset: int


@dataclass(frozen=True)
class Vector:
    """A vector operand, ``{a, b}``, or the parenthesized list of results or arguments of a call."""

    elements: tuple[Operand, ...]


@dataclass(frozen=True)
class Pair:
    """A pair of destinations, ``p|q``."""

    first: Operand
    second: Operand


@dataclass(frozen=True)
class Negated:
    """A negated predicate, ``!p``."""

    register: Register


@dataclass(frozen=True)
class Sum:
    """A register of an integer type plus a constant as a value, ``%r1+4``. It wraps around at the register's width."""

    register: Register
    offset: int


@dataclass(frozen=True)
class Sink:
    """``_``, a destination whose value is discarded."""


@dataclass(frozen=True)
class Target:
    """A branch target. instruction: index of the instruction after the label; -1 for a function of ``.calltargets``."""

    name: str
    instruction: int


CallShape = tuple[tuple[int, ...], tuple[int, ...]]
"""The sizes in bytes of the results and of the parameters of a ``.callprototype``."""

Operand = Register | Immediate | Special | Symbol | Memory | Vector | Pair | Negated | Sum | Sink | Target
