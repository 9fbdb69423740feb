"""The operation that one instruction computes, and the modifiers of an opcode that select it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

# Arrays and NumPy scalars share most methods but no type, and the element types follow from the opcode, so that mypy
# has nothing to check here.
Lanes: TypeAlias = Any
"""A one-dimensional array with one element per lane (thread), or a NumPy scalar if all lanes have the same value."""
Function: TypeAlias = Callable[..., Any]
"""A function of one or several `Lanes` that returns `Lanes`, or a tuple of them."""
Carry: TypeAlias = Literal["in", "out", "inout"]
"""Whether an operation reads the carry flag, writes it, or both."""

BOOL = np.dtype(np.bool_)
U8, U16, U32, U64 = (np.dtype(name) for name in ("u1", "u2", "u4", "u8"))
S8, S16, S32, S64 = (np.dtype(name) for name in ("i1", "i2", "i4", "i8"))
F16, F32, F64 = (np.dtype(name) for name in ("f2", "f4", "f8"))

INTEGERS = {"u8": U8, "u16": U16, "u32": U32, "u64": U64, "s8": S8, "s16": S16, "s32": S32, "s64": S64}
BITS = {"b8": U8, "b16": U16, "b32": U32, "b64": U64}
FLOATS = {"f16": F16, "f32": F32, "f64": F64}
# Registers of types that NumPy does not have are unsigned words of their size.
PACKED = {"bf16": U16, "f16x2": U32, "bf16x2": U32, "f32x2": U64, "u16x2": U32, "s16x2": U32}
REGISTERS = {**INTEGERS, **BITS, **FLOATS, **PACKED, "pred": BOOL}
"""PTX type → the NumPy type in which registers of it are stored."""


@dataclass(frozen=True)
class Operation:
    """The computation of an instruction that only reads and writes registers.

    The emulator executes the instruction for many threads at once, by one call of `function`.

    inputs, outputs: the types of `function`'s arguments and results, in the order of the PTX operands. Registers of
    types that NumPy does not have (bf16, packed pairs) are unsigned words of their size.
    function: takes one-dimensional arrays (an element per thread) or NumPy scalars (the same in all threads) of exactly
    `inputs`; returns values of exactly `outputs` that broadcast to the lanes, in a tuple if there are several. It keeps
    no state and expects NumPy's warnings to be off.
    expression: an equivalent line of NumPy, if there is one, with {0}, {1} … for the arguments and `np` for NumPy.
    Generated code contains it in place of a call of the function.
    carry: whether the condition code's carry flag is the last input ("in"), the last output ("out"), or both ("inout").
    """

    inputs: tuple[np.dtype[Any], ...]
    outputs: tuple[np.dtype[Any], ...]
    function: Function
    expression: str | None = None
    carry: Carry | None = None


class Modifiers:
    """The modifiers of an opcode, such as `rn`, `ftz` and `f32` of `add.rn.ftz.f32`, with its mnemonic (`add`).

    Types count as modifiers, and come last. The function that builds an instruction's operation removes ("takes") the
    modifiers that it knows, one after the other; then `check_all_taken` refuses those that are left, so that none is
    ignored. destinations: the number of registers that the instruction writes (2 for `p|q`). sources: the number that
    it reads, 0 if the opcode determines it.
    """

    def __init__(self, opcode: str, destinations: int = 1, sources: int = 0) -> None:
        """Split an opcode such as `add.rn.f32`; none of its modifiers is taken yet.

        The parameters are as in the class.
        """
        self.opcode = opcode
        self.destinations = destinations
        self.sources = sources
        self.mnemonic, *self._remaining = opcode.split(".")

    def take_flag(self, modifier: str) -> bool:
        """Remove `modifier` from those that remain; return whether it was among them."""
        if modifier not in self._remaining:
            return False
        self._remaining.remove(modifier)
        return True

    def take_any(self, candidates: Iterable[str]) -> str | None:
        """Remove and return the first remaining modifier that is one of `candidates`; None if there is none."""
        allowed = set(candidates)
        for modifier in self._remaining:
            if modifier in allowed:
                self._remaining.remove(modifier)
                return modifier
        return None

    def take_required(self, candidates: Iterable[str], description: str) -> str:
        """Remove and return the first remaining modifier that is one of `candidates`.

        Raise ValueError, with the description of what is missing, if there is none.
        """
        candidates = tuple(candidates)
        modifier = self.take_any(candidates)
        if modifier is None:
            listed = ", ".join("." + candidate for candidate in candidates)
            raise ValueError(f"{self.opcode}: no {description}, which is one of {listed}")
        return modifier

    def take_type(self, allowed: Iterable[str]) -> str:
        """Remove and return the type that the opcode ends with, which is the last remaining modifier.

        If an opcode has several types, each call returns the one before. Raise ValueError if it is not in `allowed`.
        """
        name = self.take_last()
        if name not in set(allowed):
            raise ValueError(f"{self.opcode}: .{name} is no type that {self.mnemonic} has here")
        return name

    def take_last(self) -> str:
        """Remove and return the last remaining modifier. Raise ValueError if there is none."""
        if not self._remaining:
            raise ValueError(f"{self.opcode}: a type is missing")
        return self._remaining.pop()

    def peek_last(self) -> str:
        """Return the last remaining modifier without removing it; empty if there is none."""
        return self._remaining[-1] if self._remaining else ""

    def check_all_taken(self) -> None:
        """Raise ValueError, naming the first one, if modifiers remain: the device does not know them."""
        if self._remaining:
            raise ValueError(f"{self.opcode}: unknown modifier .{self._remaining[0]}")


def from_expression(inputs: tuple[np.dtype[Any], ...], output: np.dtype[Any], expression: str) -> Operation:
    """Return the operation that evaluates a NumPy expression such as "{0} + {1}", where {0}, {1} … are the arguments.

    inputs, output: the types of the arguments and of the result. The operation keeps the expression, too, as code that
    is generated for a kernel contains it directly, which saves a function call.
    """
    names = [f"x{index}" for index in range(len(inputs))]
    source = f"lambda {', '.join(names)}: {expression.format(*names)}"
    return Operation(inputs, (output,), eval(source, {"np": np}), expression)  # only expressions of this package


# Lanes per block of a long computation: their arrays then stay in the processor's cache, which doubles the speed.
_BLOCK = 4096


def in_blocks(function: Function) -> Function:
    """Wrap an element-wise function with one result, so that it processes a few thousand lanes at a time.

    Its intermediate arrays then stay in the processor's cache, which makes functions with many of them faster.
    """

    def apply(*operands: Lanes) -> Lanes:
        """Apply the function to slices of `_BLOCK` lanes of the operands, and concatenate its results."""
        size = max(np.size(operand) for operand in operands)
        # Few lanes fit the cache as they are. This includes operands that are all scalars, which have no slices.
        if size <= 2 * _BLOCK:
            return function(*operands)
        parts = [
            # Scalars are the same for all lanes.
            function(*(x[start : start + _BLOCK] if np.ndim(x) else x for x in operands))
            for start in range(0, size, _BLOCK)
        ]
        return np.concatenate(parts)

    return apply
