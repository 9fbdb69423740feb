"""What one instruction computes, and the words of an opcode that say so."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

# One-dimensional arrays with an element a lane, or NumPy scalars for what is the same in all lanes. The two share most
# methods but no type, and the element types follow from the opcode, so that mypy has nothing to check here.
Lanes: TypeAlias = Any
Function: TypeAlias = Callable[..., Any]
Carry: TypeAlias = Literal["in", "out", "inout"]

BOOL = np.dtype(np.bool_)
U8, U16, U32, U64 = (np.dtype(name) for name in ("u1", "u2", "u4", "u8"))
S8, S16, S32, S64 = (np.dtype(name) for name in ("i1", "i2", "i4", "i8"))
F16, F32, F64 = (np.dtype(name) for name in ("f2", "f4", "f8"))

INTEGERS = {"u8": U8, "u16": U16, "u32": U32, "u64": U64, "s8": S8, "s16": S16, "s32": S32, "s64": S64}
BITS = {"b8": U8, "b16": U16, "b32": U32, "b64": U64}
FLOATS = {"f16": F16, "f32": F32, "f64": F64}
# Registers that hold what NumPy has no type for are words of their size.
PACKED = {"bf16": U16, "f16x2": U32, "bf16x2": U32, "f32x2": U64, "u16x2": U32, "s16x2": U32}
REGISTERS = {**INTEGERS, **BITS, **FLOATS, **PACKED, "pred": BOOL}


@dataclass(frozen=True)
class Operation:
    """What an instruction that only reads and writes registers computes.

    inputs, outputs: the types of `function`'s arguments and results, in the order of the PTX operands.
    function: takes one-dimensional arrays or NumPy scalars of exactly `inputs`; gives what broadcasts to the lanes, of
    exactly `outputs`, in a tuple where there are several. It keeps no state and expects NumPy's warnings to be off.
    expression: where one line of NumPy does the same, that line, with {0}, {1} … for the arguments and `np` for NumPy.
    carry: whether the condition code's carry flag is the last input ("in"), the last output ("out"), or both ("inout").
    """

    inputs: tuple[np.dtype[Any], ...]
    outputs: tuple[np.dtype[Any], ...]
    function: Function
    expression: str | None = None
    carry: Carry | None = None


class Modifiers:
    """The dotted words after an opcode's first, taken one by one by whoever knows what they mean.

    destinations: how many registers the instruction writes (`p|q` are two). sources: how many it reads, 0 where the
    opcode says it.
    """

    def __init__(self, opcode: str, destinations: int = 1, sources: int = 0) -> None:
        self.opcode = opcode
        self.destinations = destinations
        self.sources = sources
        self.mnemonic, *self._words = opcode.split(".")

    def flag(self, word: str) -> bool:
        """Whether `word` is among the modifiers; it is taken."""
        if word not in self._words:
            return False
        self._words.remove(word)
        return True

    def choose(self, words: Iterable[str]) -> str | None:
        """The first modifier that is one of `words`, taken; None where there is none."""
        allowed = set(words)
        for word in self._words:
            if word in allowed:
                self._words.remove(word)
                return word
        return None

    def require(self, words: Iterable[str], what: str) -> str:
        """As `choose`; ValueError where there is none."""
        words = tuple(words)
        found = self.choose(words)
        if found is None:
            raise ValueError(f"{self.opcode}: no {what}, which is one of {', '.join('.' + word for word in words)}")
        return found

    def type(self, allowed: Iterable[str]) -> str:
        """The last modifier, taken; ValueError unless it is one of the types `allowed`."""
        word = self.last()
        if word not in set(allowed):
            raise ValueError(f"{self.opcode}: .{word} is no type that {self.mnemonic} has here")
        return word

    def last(self) -> str:
        """The last modifier, taken; ValueError where none is left."""
        if not self._words:
            raise ValueError(f"{self.opcode}: a type is missing")
        return self._words.pop()

    def peek(self) -> str:
        """The last modifier, left in place; empty where none is left."""
        return self._words[-1] if self._words else ""

    def finish(self) -> None:
        """Raise ValueError that names the modifiers that were not used."""
        if self._words:
            raise ValueError(f"{self.opcode}: unknown modifier .{self._words[0]}")


def from_expression(inputs: tuple[np.dtype[Any], ...], output: np.dtype[Any], expression: str) -> Operation:
    """The operation that `expression` describes, its function made from it."""
    names = [f"x{index}" for index in range(len(inputs))]
    source = f"lambda {', '.join(names)}: {expression.format(*names)}"
    return Operation(inputs, (output,), eval(source, {"np": np}), expression)  # our own tables' text only


# Lanes at a time in long computations: their arrays then stay in the processor's cache, which doubles the speed.
_BLOCK = 4096


def in_blocks(function: Function) -> Function:
    """`function`, of one result, applied to a few thousand lanes at a time."""

    def apply(*operands: Lanes) -> Lanes:
        size = max(np.size(operand) for operand in operands)
        if size <= 2 * _BLOCK:
            return function(*operands)
        parts = [
            function(*(x[start : start + _BLOCK] if np.ndim(x) else x for x in operands))
            for start in range(0, size, _BLOCK)
        ]
        return np.concatenate(parts)

    return apply
