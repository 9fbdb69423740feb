"""Floats that are rounded in the direction that MODE says: exact results first, as doubles whose last bit shows that
there is more, then one rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from neutrino.emulator.gcn.floats import odd_sum

_UP, _DOWN = 1, 2
"""MODE's fields; 0 is to nearest, even, and 3 toward 0."""
Function = Callable[..., Any]


def _wide(x: Any) -> Any:
    """Return floats or integers of 32 bits and fewer as doubles, exactly."""
    return np.asarray(x).astype(np.float64)


def _sum(a: Any, b: Any) -> tuple[Any, Any, Any]:
    """Return the parts of a sum: the sum rounded to odd, and what was added."""
    return odd_sum(a, b), a, b


_EXACT: dict[str, Callable[..., tuple[Any, Any, Any]]] = {
    "add": lambda a, b: _sum(_wide(a), _wide(b)),
    "sub": lambda a, b: _sum(_wide(a), -_wide(b)),
    "subrev": lambda a, b: _sum(_wide(b), -_wide(a)),
    "mul": lambda a, b: (_wide(a) * _wide(b), None, None),
    "fma": lambda a, b, c: _sum(_wide(a) * _wide(b), _wide(c)),
    "fmac": lambda a, b, c: _sum(_wide(a) * _wide(b), _wide(c)),
    "fmaak": lambda a, b, c: _sum(_wide(a) * _wide(b), _wide(c)),
    "fmamk": lambda a, k, b: _sum(_wide(a) * _wide(k), _wide(b)),
    "cvt": lambda x: (_wide(x), None, None),
}
"""Operation → the exact result of operands of at most 32 bits, as a double, and the two numbers that it is the sum
of."""
_UNROUNDED = ("floor", "ceil", "trunc", "rndne", "fract", "frexp", "min", "max", "med", "mov", "cndmask", "ldexp")
"""Operations whose results are never rounded, by the beginning of their names. (Those of V_LDEXP are where they become
denormal numbers; what hardware does then is not documented.)"""


def directed(name: str, result: str, sources: tuple[str, ...], function: Function, mode: int) -> Function | None:
    """Return the function of an operation that is rounded as ``mode`` says, None if that is not known.

    name: of the operation, such as ``add_f32``. result, sources: its types. function: rounds to nearest.
    """
    if name.startswith(_UNROUNDED) or result[0] != "f":
        return function
    base = name.split("_", maxsplit=1)[0]
    exact = _EXACT.get(base)
    if base == "cvt" and result == "f64":
        # Doubles have all numbers of 32 bits.
        return function
    if exact is None or result == "f64":
        return None
    if base != "cvt" and any(kind != result for kind in sources if kind != "+"):
        return None
    dtype = np.dtype({"f16": np.float16, "f32": np.float32}[result])

    def rounded(*operands: Any) -> Any:
        """Compute the exact result, and round it."""
        value, first, second = exact(*operands)
        if first is not None and mode == _DOWN:
            # What cancels itself is -0.
            value = np.where((value == 0) & (np.signbit(first) != np.signbit(second)), -0.0, value)
        return to(value, dtype, mode)

    return rounded


def to(value: Any, dtype: np.dtype[Any], mode: int) -> Any:
    """Return doubles as floats of fewer bits, rounded as ``mode`` says."""
    near = np.atleast_1d(value).astype(dtype)
    back = near.astype(np.float64)
    infinity = dtype.type(np.inf)
    if mode == _UP:
        return np.where(back < value, np.nextafter(near, infinity), near)
    if mode == _DOWN:
        return np.where(back > value, np.nextafter(near, -infinity), near)
    return np.where(np.abs(back) > np.abs(value), np.nextafter(near, dtype.type(0)), near)
