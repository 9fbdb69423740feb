"""The instructions with .approx and .full (PTX ISA 9.7.3, 9.7.4): the nearest value, where the manual allows some ulps.

Each returns the float64 result rounded once to the type, and the manual's results for zeros, infinities, NaN and, with
.ftz, subnormal numbers. The hardware's last bits come from undocumented tables, so they are not reproduced. An H200
differed by at most one ulp of the type, by two in ex2, by 114 in tanh of f32; by 2**-15 in sin and cos of up to 314, by
2**-22 in lg2 near 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from neutrino.emulator.arithmetic.formats import decode, to_register
from neutrino.emulator.arithmetic.operation import Function, Lanes, Modifiers

# Mnemonic → the types that it has, from the PTX ISA section of the same name.
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
    """Return 1 / sqrt(value) of float64 values."""
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
    """Return a / b of f32 values as div.approx: the reciprocal of a finite divisor above 2**126 counts as zero.

    The instruction is specified as a * (1 / b), and such a reciprocal would be subnormal.
    """
    magnitude = np.abs(b)
    large = (magnitude > np.float32(2.0**126)) & np.isfinite(magnitude)
    quotient = np.divide(a, b, dtype=np.float64)
    if large.any():
        # Multiply by the zero, so that an infinite a gives NaN (PTX ISA 9.7.3, div).
        sign = np.copysign(np.float64(1), b)
        quotient = np.where(large, a.astype(np.float64) * (sign * np.float64(0)), quotient)
    return to_register(quotient, "f32", "rn")


def _on_upper_words(function: Function) -> Function:
    """Wrap a function of float64 values as the hardware approximates rcp and rsqrt of f64.

    Only the upper 32 bits of the operand are read, and the lower 32 bits of the result are zero. Subnormal operands and
    results count as zero. A NaN whose payload is in the lower word alone counts as infinity.
    """
    upper_mask = np.uint64(0xFFFFFFFF00000000)
    smallest_normal = np.finfo(np.float64).tiny
    # The NaN that these instructions write.
    nan_word = np.uint64(0x7FFFFFFF00000000)

    def apply(a: Lanes) -> Lanes:
        """Apply `function` to the upper 32 bits of f64 registers, and truncate the result to its upper 32 bits.

        Subnormal operands and results become zeros of the same sign, NaN becomes `nan_word`.
        """
        upper = (np.asarray(a).view(np.uint64) & upper_mask).view(np.float64)
        flushed = np.where(np.abs(upper) < smallest_normal, np.copysign(np.float64(0), upper), upper)
        result = function(flushed)
        result = np.where(np.abs(result) < smallest_normal, np.copysign(np.float64(0), result), result)
        words = np.where(np.isnan(result), nan_word, np.asarray(result).view(np.uint64) & upper_mask)
        return words.view(np.float64)

    return apply


def _approximation(modifiers: Modifiers, name: str, form: str) -> tuple[Function, int]:
    """Return the function of registers of the scalar type `name` for an approximation, and its number of operands.

    form: "approx" or "full". Raise ValueError if the instruction does not have this form for this type; rcp of f64
    requires .ftz, which changes nothing for rsqrt: both take subnormal numbers as zeros.
    """
    if name not in _TYPES[modifiers.mnemonic] or (form == "full" and modifiers.mnemonic != "div"):
        raise ValueError(f"{modifiers.opcode}: {modifiers.mnemonic}.{form} has no form for {name}")
    if modifiers.mnemonic == "div":
        if form == "approx":
            return _divide, 2
        # div.full has no exception for large divisors.
        return lambda a, b: to_register(np.divide(a, b, dtype=np.float64), "f32", "rn"), 2
    function = _FUNCTIONS[modifiers.mnemonic]
    if name == "f64":
        if modifiers.mnemonic == "rcp":
            modifiers.take_required(("ftz",), "modifier")
        else:
            modifiers.take_flag("ftz")
        return _on_upper_words(function), 1
    return lambda a: to_register(function(decode(a, name).astype(np.float64)), name, "rn"), 1


BUILDERS: Mapping[str, Callable[[Modifiers, str, str], tuple[Function, int]]] = dict.fromkeys(_TYPES, _approximation)
