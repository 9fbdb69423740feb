"""The instructions with .approx and .full (PTX ISA 9.7.3, 9.7.4): the nearest value, where the manual allows some ulps.

Each gives the float64 result rounded once to the type, and the manual's results for zeros, infinities, NaN and, with
.ftz, subnormal numbers. The hardware's last bits come from tables that are not documented, so they are not imitated:
an H200 was off by one step of the type at most, by two in ex2, by 114 in tanh of f32; by 2**-15 in sin and
cos of up to 314, by 2**-22 in lg2 near 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from neutrino.emulator.arithmetic.formats import decode, to_register
from neutrino.emulator.arithmetic.operation import Function, Lanes, Modifiers

# The types that each has, by PTX ISA section of the same name.
_TYPES: Mapping[str, tuple[str, ...]] = {
    "div": ("f32",),
    "rcp": ("f32", "f64"),
    "sqrt": ("f32",),
    "rsqrt": ("f32", "f64"),
    "sin": ("f32",),
    "cos": ("f32",),
    "lg2": ("f32",),
    "ex2": ("f32", "f16", "bf16"),
    "tanh": ("f32", "f16", "bf16"),
}


def _reciprocal_root(value: Lanes) -> Lanes:
    return np.float64(1) / np.sqrt(value)


_FUNCTIONS: Mapping[str, Function] = {
    "rcp": np.reciprocal,
    "sqrt": np.sqrt,
    "rsqrt": _reciprocal_root,
    "sin": np.sin,
    "cos": np.cos,
    "lg2": np.log2,
    "ex2": np.exp2,
    "tanh": np.tanh,
}


def _divide(a: Lanes, b: Lanes) -> Lanes:
    """div.approx: where the divisor is above 2**126, its reciprocal counts as zero."""
    magnitude = np.abs(b)
    large = (magnitude > np.float32(2.0**126)) & np.isfinite(magnitude)
    quotient = np.divide(a, b, dtype=np.float64)
    if large.any():
        sign = np.copysign(np.float64(1), b)
        quotient = np.where(large, a.astype(np.float64) * (sign * np.float64(0)), quotient)
    return to_register(quotient, "f32", "rn")


def _in_double(function: Function) -> Function:
    """rcp and rsqrt of f64: they look at the upper word and give one, cut off; the lower words are zero.

    Subnormal operands and results count as zero, NaN whose payload is in the lower word as infinity.
    """
    mask = np.uint64(0xFFFFFFFF00000000)
    smallest = np.finfo(np.float64).tiny

    def apply(a: Lanes) -> Lanes:
        upper = (np.asarray(a).view(np.uint64) & mask).view(np.float64)
        flushed = np.where(np.abs(upper) < smallest, np.copysign(np.float64(0), upper), upper)
        result = function(flushed)
        result = np.where(np.abs(result) < smallest, np.copysign(np.float64(0), result), result)
        words = np.where(np.isnan(result), np.uint64(0x7FFFFFFF00000000), np.asarray(result).view(np.uint64) & mask)
        return words.view(np.float64)

    return apply


def _approximation(modifiers: Modifiers, name: str, form: str) -> tuple[Function, int]:
    if name not in _TYPES[modifiers.mnemonic] or (form == "full" and modifiers.mnemonic != "div"):
        raise ValueError(f"{modifiers.opcode}: {modifiers.mnemonic}.{form} has no form for {name}")
    if modifiers.mnemonic == "div":
        if form == "approx":
            return _divide, 2
        return lambda a, b: to_register(np.divide(a, b, dtype=np.float64), "f32", "rn"), 2
    function = _FUNCTIONS[modifiers.mnemonic]
    if name == "f64":
        modifiers.take_required(("ftz",), "modifier")
        return _in_double(function), 1
    return lambda a: to_register(function(decode(a, name).astype(np.float64)), name, "rn"), 1


BUILDERS: Mapping[str, Callable[[Modifiers, str, str], tuple[Function, int]]] = dict.fromkeys(_TYPES, _approximation)
