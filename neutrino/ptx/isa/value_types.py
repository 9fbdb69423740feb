"""The types that an instruction gives its operands: ``add.f32`` reads and writes floats, whatever its registers are.

Compilers declare registers without a type (``.b32``), so that only the instruction says what a value is.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from neutrino.ptx.isa.forms import TYPE, find_form, operand_type

FLOATS = frozenset({"f16", "bf16", "f32", "f64"})
"""Types of a single floating-point number. Pairs of halves (``f16x2``) are bits: no field of a record holds them."""

# Opcodes whose last type is that of the value that they move between registers and memory. The value's operand: 0 for
# the result, else the number of the input.
_MEMORY = {"ld": (0,), "ldu": (0,), "st": (2,), "atom": (0, 2, 3), "red": (2, 3)}
# Opcodes whose result and inputs have one type, if there is one type among their modifiers.
_UNIFORM = frozenset({
    "add", "sub", "mul", "fma", "mad", "div", "rem", "abs", "neg", "min", "max", "rcp", "sqrt", "rsqrt", "sin", "cos",
    "lg2", "ex2", "tanh", "copysign",
})  # fmt: skip
_WIDENING = "wide"


def is_untyped(kind: str) -> bool:
    """Return whether a PTX type says nothing of what its bits mean."""
    return kind[0] == "b" and not kind.startswith("bf")


@functools.cache
def value_type(opcode: str, operand: int) -> str | None:
    """Return the type that an instruction gives an operand; None if its opcode does not say.

    opcode: whole, as in a kernel (``ld.global.nc.f32``). operand: 0 for the result, else the number of the input.
    """
    parts = opcode.split(".")
    in_memory = _in_memory(parts, operand)
    if in_memory is not None:
        return in_memory
    known = find_form(opcode)
    if known is None:
        return _uniform(parts)
    form, types = known
    results = [kind for kind in form.operands if kind.startswith("=")]
    inputs = [kind for kind in form.operands if not kind.startswith("=")]
    kinds = inputs[operand - 1 : operand] if operand else results[:1]
    # Of a destination that may be two registers ("=t|p?") the first.
    return operand_type(kinds[0].lstrip("=").partition("|")[0].rstrip("?"), types) if kinds else None


def type_by_pattern(pattern: Sequence[str], operand: int) -> str | None:
    """Return the type that each instruction which an opcode pattern matches gives an operand.

    None: the pattern does not say, or what it says are bits. pattern: the dotted parts, some of which the instructions
    may have more of. operand: as in ``value_type``.
    """
    kind = _in_memory(pattern, operand) or _uniform(pattern)
    return kind if kind is not None and (kind in FLOATS or kind[0] in "us") else None


def field_for(kind: str) -> str:
    """Return the type of a field that holds values of a PTX type (``FLOATS``, an integer or ``pred``) exactly."""
    if kind == "pred":
        return "u32"
    return {"f16": "f32", "bf16": "f32"}.get(kind, kind)


def _in_memory(parts: Sequence[str], operand: int) -> str | None:
    """Return the type of a value that a load, store or atomic moves; None for other instructions and operands."""
    if operand not in _MEMORY.get(parts[0], ()) or "async" in parts or "bulk" in parts:
        return None
    types = [part for part in parts[1:] if TYPE.fullmatch(part)]
    return types[-1] if types else None


def _uniform(parts: Sequence[str]) -> str | None:
    """Return the one type of an arithmetic instruction, which all its operands have; None if that is not so."""
    types = [part for part in parts[1:] if TYPE.fullmatch(part)]
    return types[0] if parts[0] in _UNIFORM and len(types) == 1 and _WIDENING not in parts else None
