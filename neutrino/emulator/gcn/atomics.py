"""Atomic operations: what they do, and the lanes one after the other."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from neutrino.emulator.gcn import floats

Array = npt.NDArray[Any]


class Atomic(NamedTuple):
    """kind: type of the value in memory. size: its bytes. compares: whether it has an operand to compare with.
    function: gives the new value of the old one and the operand."""

    kind: str
    size: int
    compares: bool
    function: Callable[[Any, Any], Any]


def _increase(old: Any, limit: Any) -> Any:
    """Return what an atomic increment leaves in memory: old + 1, or 0 from the limit on."""
    return old.dtype.type(0) if old >= limit else old + old.dtype.type(1)


def _decrease(old: Any, limit: Any) -> Any:
    """Return what an atomic decrement leaves in memory: old - 1, or the limit if old is 0 or above the limit."""
    return limit if old == 0 or old > limit else old - old.dtype.type(1)


def _packed_sum(kind: str) -> Callable[[Any, Any], Any]:
    """Return the function that adds pairs of 16-bit floats in words. kind: ``f16`` or ``bf16``."""
    def add(old: Any, value: Any) -> Any:
        """Add both halves of a word to those of another one; return the word of sums."""
        a, b = np.atleast_1d(old).view(np.uint16), np.atleast_1d(value).view(np.uint16)
        if kind == "bf16":
            total = floats.f32_to_bf16(floats.bf16_to_f32(a) + floats.bf16_to_f32(b))
        else:
            total = (a.view(np.float16) + b.view(np.float16)).view(np.uint16)
        return total.view(np.uint32)[0]

    return add


_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda old, value: old + value,
    "sub": lambda old, value: old - value,
    "rsub": lambda old, value: value - old,
    "and": lambda old, value: old & value,
    "or": lambda old, value: old | value,
    "xor": lambda old, value: old ^ value,
    "swap": lambda old, value: value,
    "wrxchg": lambda old, value: value,
    "storexchg": lambda old, value: value,
    "min": np.minimum,
    "max": np.maximum,
    "inc": _increase,
    "dec": _decrease,
    "sub_clamp": lambda old, value: old - value if old >= value else old.dtype.type(0),
}
_TYPES = {"u32": "u4", "i32": "i4", "b32": "u4", "u64": "u8", "i64": "i8", "b64": "u8", "f32": "f4", "f64": "f8"}
_OPERATION = re.compile(
    r"atomic_(cmpswap|cmpst|cmpstore|add|sub|rsub|and|or|xor|swap|wrxchg|storexchg|[su]min|[su]max|f?min|f?max|inc|dec"
    r"|pk_add)(_num)?(?:_(u32|i32|b32|u64|i64|b64|f32|f64|f16|bf16|x2))?"
)


def atomic_of(name: str) -> Atomic | None:
    """Return the operation of an instruction's name, such as ``atomic_add_u32`` or ``atomic_smax_x2``."""
    match = _OPERATION.fullmatch(name)
    if match is None:
        return None
    base, kind = match[1], match[3] or "b32"
    if base == "pk_add":
        return Atomic("u4", 4, False, _packed_sum(kind))
    # A C type in front of the name, as gfx9 has it.
    sign = base[0] if base in ("smin", "smax", "umin", "umax", "fmin", "fmax") else ""
    base = base[1:] if sign else base
    wide = kind.endswith("64") or kind == "x2"
    if sign == "s":
        kind = "i64" if wide else "i32"
    elif sign == "f":
        kind = "f64" if wide else "f32"
    elif kind == "x2":
        kind = "u64"
    if kind not in _TYPES:
        return None
    compares = base.startswith("cmp")
    function = _FUNCTIONS["swap"] if compares else _FUNCTIONS[base]
    if kind[0] == "f" and base in ("min", "max"):
        function = floats.minimum if base == "min" else floats.maximum
    return Atomic(_TYPES[kind], int(_TYPES[kind][1]), compares, function)


def perform(atomic: Atomic, memory: Array, places: Array, rows: list[Array], compared: list[Array]) -> list[Array]:
    """Let lanes do an atomic operation, in their order, and return the old values, in words.

    memory: u8. places: of the lanes' values. rows: the operands, in words. compared: what to compare with, in words.
    """
    dtype = np.dtype(atomic.kind)
    values = _joined(rows, dtype)
    expected = _joined(compared, dtype) if atomic.compares else None
    old = np.zeros(places.size, dtype)
    function = atomic.function
    for lane, place in enumerate(places.tolist()):
        cell = memory[place : place + dtype.itemsize].view(dtype)
        before = cell[0]
        old[lane] = before
        if expected is None:
            cell[0] = function(before, values[lane])
        elif before == expected[lane]:
            cell[0] = values[lane]
    words = old.view(np.uint32).reshape(-1, dtype.itemsize // 4)
    return [words[:, word] for word in range(words.shape[1])]


def _joined(rows: list[Array], dtype: np.dtype[Any]) -> Array:
    """Return values of one type from their words. rows: a row of u32 for each word of the values, the lowest first."""
    joined: Array = np.ascontiguousarray(np.stack(rows, axis=1)).view(dtype)[:, 0]
    return joined
