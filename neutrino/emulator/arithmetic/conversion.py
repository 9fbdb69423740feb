"""Moves and conversions between types (PTX ISA 9.7.9, mov, cvt, cvt.pack)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from neutrino.emulator.arithmetic.double import settle_nan
from neutrino.emulator.arithmetic.floats import finish, rectify, saturate
from neutrino.emulator.arithmetic.formats import (
    FORMATS,
    Format,
    canonical,
    decode,
    encode,
    flush,
    flush_result,
    halves_of,
    narrow_nan,
    round_to,
    to_bf16,
    to_register,
)
from neutrino.emulator.arithmetic.operation import (
    F64,
    INTEGERS,
    REGISTERS,
    S32,
    U8,
    U16,
    U32,
    Function,
    Lanes,
    Modifiers,
    Operation,
    from_expression,
    in_blocks,
)
from neutrino.emulator.arithmetic.rounding import MODES, sum_to_odd, to_f32, to_integer

_FLOAT_TYPES = ("f16", "bf16", "f32", "f64")
_TO_INTEGER = {"rni": "rn", "rzi": "rz", "rmi": "rm", "rpi": "rp"}
# Packed pairs that cvt writes: the format of each value, and the register that holds both.
_PAIRS: Mapping[str, tuple[str, np.dtype[Any]]] = {
    "f16x2": ("f16", U32),
    "bf16x2": ("bf16", U32),
    "e4m3x2": ("e4m3", U16),
    "e5m2x2": ("e5m2", U16),
    "e2m3x2": ("e2m3", U16),
    "e3m2x2": ("e3m2", U16),
    "e2m1x2": ("e2m1", U8),
    "ue8m0x2": ("ue8m0", U16),
}


def _move(modifiers: Modifiers) -> Operation | None:
    """mov of one register into another; None for vectors."""
    if modifiers.take_any(("v2", "v4")) is not None:
        return None
    dtype = REGISTERS.get(modifiers.take_last())
    modifiers.check_all_taken()
    return None if dtype is None else from_expression((dtype,), dtype, "{0}")


def _integer_to_integer(source: np.dtype[Any], target: np.dtype[Any], saturating: bool) -> Operation:
    if not saturating:
        return from_expression((source,), target, f"{{0}}.astype(np.{target.name})")
    held, wanted = np.iinfo(source), np.iinfo(target)
    low, high = max(held.min, wanted.min), min(held.max, wanted.max)
    return from_expression(
        (source,), target, f"np.clip({{0}}, np.{source.name}({low}), np.{source.name}({high})).astype(np.{target.name})"
    )


def _float_to_integer(name: str, target: np.dtype[Any], mode: str, ftz: bool) -> Function:
    """The whole number that `mode` gives, held within the target's range; NaN as the manual's table says."""
    limits = np.iinfo(target)
    # NaN gives zero, but the sign bit alone where the source is f64 or the target has 64 bits.
    nan = 1 << (8 * target.itemsize - 1) if name == "f64" or target.itemsize == 8 else 0
    nan_word = np.array(nan, f"u{target.itemsize}").view(target)[()]
    low, high = float(limits.min), float(limits.max)

    def function(a: Lanes) -> Lanes:
        value = decode(a, name)
        if ftz and name == "f32":
            value = flush(value, name)
        whole = to_integer(value.astype(np.float64), mode)
        # The largest 64-bit numbers are no float64 values: float(limits.max) is one above them.
        above, below, bad = whole >= high, whole <= low, np.isnan(whole)
        inside = np.where(above | below | bad, 0.0, whole)
        result = inside.astype(target)
        if above.any():
            result = np.where(above, target.type(limits.max), result)
        if below.any():
            result = np.where(below, target.type(limits.min), result)
        return np.where(bad, nan_word, result) if bad.any() else result

    return function


def _integer_to_double(a: Lanes, exact: bool) -> Lanes:
    """Integers as float64, rounded to odd where they have more than 53 bits."""
    if exact:
        return a.astype(np.float64)
    half = a.dtype.type(32)
    high = (a >> half).astype(np.float64) * 4294967296.0
    return sum_to_odd(high, (a & a.dtype.type(0xFFFFFFFF)).astype(np.float64))


def _integer_to_float(source: np.dtype[Any], name: str, mode: str) -> Function:
    dtype = REGISTERS[name]
    if name == "f64":
        if source.itemsize < 8:
            return lambda a: a.astype(dtype)
        return lambda a: _whole_to_double(a, mode)
    if mode == "rn" and (name == "f32" or (name == "f16" and source.itemsize <= 2)):
        return lambda a: a.astype(dtype)
    return lambda a: to_register(_integer_to_double(a, source.itemsize < 8), name, mode)


def _whole_to_double(a: Lanes, mode: str) -> Lanes:
    """64-bit integers as float64, rounded by `mode`."""
    near = a.astype(np.float64)
    if mode == "rn":
        return near
    half = a.dtype.type(32)
    high = (a >> half).astype(np.float64) * 4294967296.0
    low = (a & a.dtype.type(0xFFFFFFFF)).astype(np.float64)
    error = (high - near) + low
    down = {"rm": error < 0, "rp": np.bool_(False), "rz": (error < 0) & (near > 0)}[mode]
    up = {"rm": np.bool_(False), "rp": error > 0, "rz": (error > 0) & (near < 0)}[mode]
    return np.where(down, np.nextafter(near, -np.inf), np.where(up, np.nextafter(near, np.inf), near))


def _convert(modifiers: Modifiers) -> Operation:
    """cvt."""
    if modifiers.take_flag("pack"):
        return _pack_integers(modifiers)
    source, target = modifiers.take_last(), modifiers.take_last()
    if target in _PAIRS:
        return _to_pair(modifiers, source, target)
    if source in _PAIRS:
        raise ValueError(f"{modifiers.opcode}: no conversion from {source} to {target}")
    if target == "tf32":
        return _to_tf32(modifiers, source)
    for name in (source, target):
        if name not in INTEGERS and name not in _FLOAT_TYPES:
            raise ValueError(f"{modifiers.opcode}: .{name} is no type that cvt has here")
    saturating = modifiers.take_flag("sat")
    if source in INTEGERS and target in INTEGERS:
        modifiers.check_all_taken()
        return _integer_to_integer(INTEGERS[source], INTEGERS[target], saturating)
    whole, mode, ftz = modifiers.take_any(_TO_INTEGER), modifiers.take_any(MODES), modifiers.take_flag("ftz")
    relu, finite = modifiers.take_flag("relu"), modifiers.take_flag("satfinite")
    modifiers.check_all_taken()
    if target in INTEGERS:
        if whole is None:
            raise ValueError(f"{modifiers.opcode}: no rounding to integer, which is one of .rni, .rzi, .rmi, .rpi")
        return _single(source, target, _float_to_integer(source, INTEGERS[target], _TO_INTEGER[whole], ftz))
    function = (
        _integer_to_float(INTEGERS[source], target, mode or "rn")
        if source in INTEGERS
        else _float_to_float(source, target, mode or "rn", None if whole is None else _TO_INTEGER[whole], ftz)
    )
    return _single(source, target, _finished(function, target, saturating=saturating, relu=relu, finite=finite))


def _single(source: str, target: str, function: Function) -> Operation:
    return Operation((REGISTERS[source],), (REGISTERS[target],), function)


def _finished(function: Function, name: str, *, saturating: bool, relu: bool, finite: bool) -> Function:
    """`function`, whose results are registers of the type `name`, with .sat, .relu and .satfinite."""
    if not (saturating or relu or finite):
        return function

    def apply(a: Lanes) -> Lanes:
        result = function(a)
        if finite:
            largest = FORMATS[name].largest
            result = finish(
                result,
                name,
                lambda value: np.where(np.isinf(value), np.copysign(value.dtype.type(largest), value), value),
            )
        if saturating:
            result = finish(result, name, saturate)
        return finish(result, name, rectify) if relu else result

    return apply


def _float_to_float(source: str, target: str, mode: str, whole: str | None, ftz: bool) -> Function:
    """Registers of one scalar type as another's; `whole`: rounded to an integer first.

    NaN keeps its sign and what there is room for of its payload from and to f64, and from bf16 to f32; it becomes the
    canonical one elsewhere, and with .ftz. (ptxas, where it folds constants, makes it canonical in more places.)
    """

    def function(a: Lanes) -> Lanes:
        value = decode(a, source)
        # To f16 the hardware rounds subnormal operands as any others, .ftz or not: it shows in rm and rp.
        if ftz and source == "f32" and target != "f16":
            value = flush(value, source)
        if source == target:
            result = _whole_float(a, value, target, whole)
            return canonical(result) if ftz else result
        if target == "f64":
            value = value.astype(np.float32)
            return (canonical(value) if ftz else value).astype(F64)
        if source == "bf16" and target == "f32" and not ftz:
            return value
        if source == "f64" and target == "f32":
            result = to_f32(value, mode)
            return flush_result(result, target, lambda: value, mode) if ftz else result
        if target == "bf16" and mode == "rn" and value.dtype == np.float32:
            return to_bf16(value)
        result = to_register(value.astype(np.float64), target, mode)
        if source == "f64":
            return narrow_nan(result, target, value)
        return flush(result, "f32") if ftz and target == "f32" else result

    return function


def _whole_float(a: Lanes, value: Lanes, name: str, whole: str | None) -> Lanes:
    """Registers `a`, which hold `value`, rounded to integers if `whole` says how."""
    if whole is None:
        return a if name == "bf16" else value
    rounded = to_integer(value, whole)
    if name == "bf16":
        return to_bf16(rounded)
    return settle_nan(rounded, a) if name == "f64" else canonical(rounded)


def _to_tf32(modifiers: Modifiers, source: str) -> Operation:
    if source != "f32":
        raise ValueError(f"{modifiers.opcode}: no conversion from {source} to tf32")
    mode = modifiers.take_required(("rna", "rn", "rz"), "rounding")
    relu, finite = modifiers.take_flag("relu"), modifiers.take_flag("satfinite")
    modifiers.check_all_taken()
    format = FORMATS["tf32"]

    def function(a: Lanes) -> Lanes:
        result = _packed_value(a.astype(np.float64), format, mode, relu, finite)
        if mode != "rna":
            return result
        # Ties away from zero is an addition to the word, cut off: NaN comes out as the upper part of what it was. With
        # .satfinite the hardware takes a last place from infinity, and from NaN as well.
        upper = a.view(U32) & np.uint32(0xFFFFE000)
        return np.where(np.isnan(a), upper - np.uint32(0x2000) if finite else upper, result)

    return Operation((REGISTERS["f32"],), (U32,), function)


def _packed_value(value: Lanes, format: Format, mode: str, relu: bool, finite: bool) -> Lanes:
    """The words of `format` for float64 values."""
    if relu:
        value = np.where(value <= 0, 0.0, value)
    if format.name in ("f16", "bf16") and mode == "rn" and not finite:
        return to_register(value, format.name, mode).view(U16)
    rounded = round_to(value, format, mode)
    if finite:
        rounded = np.where(np.isinf(rounded), np.copysign(format.largest, rounded), rounded)
    return encode(rounded, format)


def _to_pair(modifiers: Modifiers, source: str, target: str) -> Operation:
    """cvt to two packed values: of two f32, the first one above; or of two packed ones."""
    element, dtype = _PAIRS[target]
    if element == "ue8m0":
        raise ValueError(f"{modifiers.opcode}: no conversion from {source} to {target}")
    mode = modifiers.take_required(("rn", "rz"), "rounding")
    relu, finite = modifiers.take_flag("relu"), modifiers.take_flag("satfinite")
    modifiers.check_all_taken()
    format = FORMATS[element]
    finite = finite or format.bits <= 8
    shift = 4 if element == "e2m1" else 8 if format.bits <= 8 else 16

    def join(low: Lanes, high: Lanes) -> Lanes:
        return low.astype(dtype) | (high.astype(dtype) << dtype.type(shift))

    def convert(value: Lanes) -> Lanes:
        return _packed_value(value.astype(np.float64), format, mode, relu, finite)

    if source == "f32":
        return Operation((REGISTERS["f32"],) * 2, (dtype,), in_blocks(lambda a, b: join(convert(b), convert(a))))
    if source in ("f16x2", "bf16x2"):

        def from_halves(a: Lanes) -> Lanes:
            low, high = (convert(decode(half, source.removesuffix("x2"))) for half in halves_of(a, source))
            return join(low, high)

        return Operation((U32,), (dtype,), from_halves)
    if source not in _PAIRS or target not in ("f16x2", "bf16x2"):
        raise ValueError(f"{modifiers.opcode}: no conversion from {source} to {target}")
    inner, word = _PAIRS[source]
    width = word.type(4 if inner == "e2m1" else 8)
    low_bits = word.type((1 << int(width)) - 1)
    return Operation(
        (word,),
        (dtype,),
        lambda a: join(*(convert(decode(part.astype(U8), inner)) for part in (a & low_bits, (a >> width) & low_bits))),
    )


def _pack_integers(modifiers: Modifiers) -> Operation:
    """cvt.pack: two numbers saturated to a narrow type and packed into the low bits.

    A third operand's low bits, where there is one, fill the rest.
    """
    third_type = modifiers.take_any(("b32",))
    modifiers.take_type(("s32",))
    name = modifiers.take_required(("u16", "s16", "u8", "s8", "u4", "s4", "u2", "s2"), "type")
    modifiers.take_required(("sat",), "modifier")
    modifiers.check_all_taken()
    width = int(name[1:])
    low, high = (0, (1 << width) - 1) if name.startswith("u") else (-(1 << width - 1), (1 << width - 1) - 1)
    mask, shift = np.uint32((1 << width) - 1), np.uint32(width)
    if (third_type is None) != (width == 16):
        raise ValueError(f"{modifiers.opcode}: the third operand goes with types below 16 bits")

    def function(a: Lanes, b: Lanes, *rest: Lanes) -> Lanes:
        upper, lower = (np.clip(value, np.int32(low), np.int32(high)).view(U32) & mask for value in (a, b))
        packed = (upper << shift) | lower
        return packed if not rest else packed | (rest[0] << np.uint32(2 * width))

    return Operation((S32, S32) if third_type is None else (S32, S32, U32), (U32,), function)


BUILDERS: Mapping[str, Callable[[Modifiers], Operation | None]] = {"mov": _move, "cvt": _convert}
