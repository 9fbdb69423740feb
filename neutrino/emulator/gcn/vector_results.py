"""What vector instructions do with what they compute: modifiers, and limits of the mode."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from neutrino.emulator.gcn.compiler import TYPES, Compiler, Lanes, flush
from neutrino.emulator.gcn.rounding import directed
from neutrino.emulator.gcn.text import Parsed
from neutrino.emulator.gcn.vector_table import Function, Operation
from neutrino.emulator.gcn.wave import Wave

Write = Callable[[Wave, Any], None]

Wrap = Callable[[Lanes], Lanes]


def rounded(c: Compiler, name: str, operation: Operation) -> Function:
    """Return an operation's function, with the rounding that MODE asks for. name: such as ``add_f32``.

    Raises UnknownInstructionError if it is not known what that is.
    """
    mode = c.round32 if operation.result == "f32" else c.round64 if operation.result in ("f16", "f64") else 0
    if not mode:
        return operation.function
    function = directed(name, operation.result, operation.sources, operation.function, mode)
    if function is None:
        raise c.unknown(f"rounding mode {mode}")
    return function


def check_rounding(c: Compiler) -> None:
    """Raise UnknownInstructionError if MODE asks for another rounding than to nearest."""
    if c.round32 or c.round64:
        raise c.unknown(f"rounding mode {c.round32 | c.round64 << 2:#x}")


def applied(function: Callable[..., Any], reads: list[Lanes]) -> Lanes:
    """Return the function that computes a function of one, two or three operands of the lanes. reads: give the
    operands."""
    if len(reads) == 1:
        (one,) = reads
        return lambda wave: function(one(wave))
    if len(reads) == 2:
        first, second = reads
        return lambda wave: function(first(wave), second(wave))
    first, second, third = reads
    return lambda wave: function(first(wave), second(wave), third(wave))


_OUTPUT = {"mul:2": 2.0, "mul:4": 4.0, "div:2": 0.5}


def modified(c: Compiler, ins: Parsed, kind: str, compute: Lanes) -> Lanes:
    """Return a computation with what the instruction's modifiers do to its result, and without denormal numbers if
    the mode has none."""
    if kind[0] != "f":
        if "clamp" in ins.modifiers:
            return _saturated(c, ins, kind)
        return compute
    factor = next((value for name, value in _OUTPUT.items() if ins.modifiers.get(name[:3]) == name[4:]), None)
    if factor is not None:
        unscaled, by = compute, np.array(factor, TYPES[kind])[()]
        compute = lambda wave: unscaled(wave) * by  # noqa: E731
    if c.flush32 if kind == "f32" else c.flush16:
        unflushed = compute
        compute = lambda wave: flush(unflushed(wave))  # noqa: E731
    if "clamp" in ins.modifiers:
        unclamped, zero, one = compute, np.array(0, TYPES[kind])[()], np.array(1, TYPES[kind])[()]
        # A NaN becomes 0.
        compute = lambda wave: np.fmin(np.fmax(unclamped(wave), zero), one)  # noqa: E731
    return compute


def _saturated(c: Compiler, ins: Parsed, kind: str) -> Lanes:
    """Return a sum or a difference of integers that is cut at the limits of its type."""
    match = re.fullmatch(r"v_(add|sub|subrev)(?:_nc)?_([iu](?:16|32))", ins.mnemonic)
    if match is None:
        raise c.unknown("clamp")
    limits = np.iinfo(TYPES[kind])
    x, y = c.vector(ins.operands[1], kind), c.vector(ins.operands[2], kind)
    base = match[1]

    def compute(wave: Wave) -> Any:
        """Return the sum or difference, limited to the type's range."""
        a, b = x(wave).astype(np.int64), y(wave).astype(np.int64)
        result = a + b if base == "add" else a - b if base == "sub" else b - a
        return np.clip(result, limits.min, limits.max).astype(TYPES[kind])

    return compute


def word(text: str, which: int) -> str:
    """Return the text of one of the two registers that an operand of 64 bits has; a constant is in both."""
    match = re.fullmatch(r"([vas])\[(\d+):(\d+)\]", text)
    if match:
        return f"{match[1]}{int(match[2]) + which}"
    if text in ("vcc", "exec"):
        return f"{text}_{'hi' if which else 'lo'}"
    return text
