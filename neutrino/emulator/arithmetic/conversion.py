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
# Packed pairs that cvt converts: the format of each value, and the type of the register that holds both.
_PAIRS: Mapping[str, tuple[str, np.dtype[Any]]] = {
    "f16x2": ("f16", U32),
    "bf16x2": ("bf16", U32),
    "e4m3x2": ("e4m3", U16),
    "e5m2x2": ("e5m2", U16),
    "e2m3x2": ("e2m3", U16),
    "e3m2x2": ("e3m2", U16),
    "e2m1x2": ("e2m1", U8),
}


def _move(modifiers: Modifiers) -> Operation | None:
    """Build the operation of `mov` from one register to another.

    Return None for vectors and for types other than those of single registers (b128): their `mov` packs or unpacks
    several registers, which the code generator does itself.
    """
    if modifiers.take_any(("v2", "v4")) is not None:
        return None
    dtype = REGISTERS.get(modifiers.take_last())
    modifiers.check_all_taken()
    return None if dtype is None else from_expression((dtype,), dtype, "{0}")


def _integer_to_integer(source: np.dtype[Any], target: np.dtype[Any], saturating: bool) -> Operation:
    """Build the conversion between two integer types, clamped to the target's range (.sat) or truncated."""
    if not saturating:
        # NumPy keeps the low bits, and extends by the sign or by zeros as the source's type says; so does cvt.
        return from_expression((source,), target, f"{{0}}.astype(np.{target.name})")
    source_limits, target_limits = np.iinfo(source), np.iinfo(target)
    # The bounds of the clamping must be values of the source type.
    low, high = max(source_limits.min, target_limits.min), min(source_limits.max, target_limits.max)
    return from_expression(
        (source,), target, f"np.clip({{0}}, np.{source.name}({low}), np.{source.name}({high})).astype(np.{target.name})"
    )


def _float_to_integer(name: str, target: np.dtype[Any], mode: str, ftz: bool) -> Function:
    """Return the conversion of registers of the scalar type `name` to integers of type `target`.

    Values are rounded by `mode` ("rn", "rz", "rm", "rp") and clamped to the target's range. NaN becomes 0, or for f64
    and for 64-bit targets the word in which only the sign bit is set. ftz: subnormal f32 operands count as zero.
    """
    limits = np.iinfo(target)
    # The result for NaN, from the table in the PTX ISA's section on cvt.
    nan = 1 << (8 * target.itemsize - 1) if name == "f64" or target.itemsize == 8 else 0
    nan_word = np.array(nan, f"u{target.itemsize}").view(target)[()]
    low, high = float(limits.min), float(limits.max)

    def convert(a: Lanes) -> Lanes:
        """Round registers of the type `name` by `mode` to integers, clamped to the range of the type `target`.

        `low` and `high` are the bounds of that range, and `nan_word` is the result for NaN.
        """
        value = decode(a, name)
        if ftz and name == "f32":
            value = flush(value, name)
        rounded = to_integer(value.astype(np.float64), mode)
        # The largest 64-bit integers are no float64 values: float(limits.max) is one above them. So values equal to a
        # bound count as out of range; where the bound is exact, clamping does not change them.
        above, below, is_nan = rounded >= high, rounded <= low, np.isnan(rounded)
        # NumPy does not define the conversion of values out of range.
        in_range = np.where(above | below | is_nan, 0.0, rounded)
        result = in_range.astype(target)
        if above.any():
            result = np.where(above, target.type(limits.max), result)
        if below.any():
            result = np.where(below, target.type(limits.min), result)
        return np.where(is_nan, nan_word, result) if is_nan.any() else result

    return convert


def _halves_as_doubles(a: Lanes) -> tuple[Lanes, Lanes]:
    """Return 64-bit integers as two float64 values that add up to them exactly: the upper and the lower 32 bits.

    A single float64 has only 53 bits. The upper part has the integers' sign, the lower one is at least zero.
    """
    high = (a >> a.dtype.type(32)).astype(np.float64) * 2.0**32
    low = (a & a.dtype.type(0xFFFFFFFF)).astype(np.float64)
    return high, low


def _integer_to_double(a: Lanes, exact: bool) -> Lanes:
    """Return integers as float64, to be rounded to a narrower format.

    exact: no integer has more than 53 bits. Longer ones are rounded to odd (see `sum_to_odd`), so that rounding them
    again gives what the exact integer would.
    """
    if exact:
        return a.astype(np.float64)
    high, low = _halves_as_doubles(a)
    return sum_to_odd(high, low)


def _integer_to_float(source: np.dtype[Any], name: str, mode: str) -> Function:
    """Return the conversion of integers of type `source` to registers of the scalar type `name`, rounded by `mode`.

    name: f16, bf16, f32 or f64. mode: "rn", "rz", "rm" or "rp".
    """
    dtype = REGISTERS[name]
    if name == "f64":
        if source.itemsize < 8:
            return lambda a: a.astype(dtype)
        return lambda a: _long_to_double(a, mode)
    # NumPy rounds once in these cases; wider integers it may round twice on the way to f16.
    if mode == "rn" and (name == "f32" or (name == "f16" and source.itemsize <= 2)):
        return lambda a: a.astype(dtype)
    return lambda a: to_register(_integer_to_double(a, exact=source.itemsize < 8), name, mode)


def _long_to_double(a: Lanes, mode: str) -> Lanes:
    """Return 64-bit integers as float64, rounded by `mode`: "rn", "rz", "rm" or "rp"."""
    near = a.astype(np.float64)
    if mode == "rn":
        return near
    # Correct the nearest value by one step if its error has the wrong direction. The error is exact: all of these are
    # integers, and high and near differ by little more than 2**32.
    high, low = _halves_as_doubles(a)
    error = (high - near) + low
    down = {"rm": error < 0, "rp": np.bool_(False), "rz": (error < 0) & (near > 0)}[mode]
    up = {"rm": np.bool_(False), "rp": error > 0, "rz": (error > 0) & (near < 0)}[mode]
    return np.where(down, np.nextafter(near, -np.inf), np.where(up, np.nextafter(near, np.inf), near))


def _convert(modifiers: Modifiers) -> Operation:
    """Build the operation of `cvt`, which converts between integer and floating-point types, and of `cvt.pack`.

    Raise ValueError for a conversion or modifiers that do not exist or are not supported.
    """
    if modifiers.take_flag("pack"):
        return _pack_integers(modifiers)
    # The types come last, the target's before the source's.
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
    # There are two kinds of rounding: to an integer (.rni …), and to the precision of the target (.rn …).
    integer_rounding = modifiers.take_any(_TO_INTEGER)
    integer_mode = None if integer_rounding is None else _TO_INTEGER[integer_rounding]
    mode, ftz = modifiers.take_any(MODES), modifiers.take_flag("ftz")
    relu, satfinite = modifiers.take_flag("relu"), modifiers.take_flag("satfinite")
    modifiers.check_all_taken()
    if satfinite and target == "f64":
        raise ValueError(f"{modifiers.opcode}: .satfinite is not for f64")
    if target in INTEGERS:
        if integer_mode is None:
            raise ValueError(f"{modifiers.opcode}: no rounding to integer, which is one of .rni, .rzi, .rmi, .rpi")
        return _scalar_operation(source, target, _float_to_integer(source, INTEGERS[target], integer_mode, ftz))
    # Conversions without a rounding to the target's precision are exact, so that any mode serves for them.
    if source in INTEGERS:
        function = _integer_to_float(INTEGERS[source], target, mode or "rn")
    else:
        function = _float_to_float(source, target, mode or "rn", integer_mode, ftz)
    function = _limit_results(function, target, saturating=saturating, relu=relu, satfinite=satfinite)
    return _scalar_operation(source, target, function)


def _scalar_operation(source: str, target: str, function: Function) -> Operation:
    """Return the operation of a function from registers of the scalar type `source` to those of the type `target`."""
    return Operation((REGISTERS[source],), (REGISTERS[target],), function)


def _limit_results(function: Function, name: str, *, saturating: bool, relu: bool, satfinite: bool) -> Function:
    """Wrap a function whose results are registers of the type `name`, to apply .sat, .relu and .satfinite to them."""
    if not (saturating or relu or satfinite):
        return function

    def apply(a: Lanes) -> Lanes:
        """Apply the wrapped function, then those modifiers that the instruction has, in this order.

        .satfinite replaces infinity by the largest finite value, .sat clamps to the range from 0 to 1, and .relu
        replaces negative values by 0.
        """
        result = function(a)
        if satfinite:
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


def _float_to_float(source: str, target: str, mode: str, integer_mode: str | None, ftz: bool) -> Function:
    """Return the conversion of registers of the scalar type `source` to those of the type `target`, rounded by `mode`.

    integer_mode: the rounding to an integer (.rni …), for conversions within a type; None for none. From and to f64,
    and from bf16 to f32, NaN keeps its sign and as much of its payload as fits; otherwise, and with .ftz, it becomes
    canonical. (Constants that ptxas folds have a canonical NaN in more cases.)
    """

    def convert(a: Lanes) -> Lanes:
        """Convert registers of the scalar type `source` to `target`, by the fastest way that rounds only once.

        mode: the rounding to the precision of `target`. integer_mode: the rounding to an integer, None for none. ftz:
        subnormal f32 numbers become zero.
        """
        value = decode(a, source)
        # To f16 the hardware rounds subnormal operands as any others, even with .ftz: it shows in rm and rp.
        if ftz and source == "f32" and target != "f16":
            value = flush(value, source)
        if source == target:
            # Nothing to round to another precision.
            result = _round_to_integral(a, value, target, integer_mode)
            return canonical(result) if ftz else result
        if target == "f64":
            # Widen to f32 first, which is exact: with .ftz a NaN becomes the canonical one of f32, widened.
            value = value.astype(np.float32)
            return (canonical(value) if ftz else value).astype(F64)
        if source == "bf16" and target == "f32" and not ftz:
            # Decoded bf16 values are float32 already.
            return value
        if source == "f64" and target == "f32":
            result = to_f32(value, mode)
            return flush_result(result, target, lambda: value, mode) if ftz else result
        if target == "bf16" and mode == "rn" and value.dtype == np.float32:
            # Faster than by way of float64.
            return to_bf16(value)
        result = to_register(value.astype(np.float64), target, mode)
        if source == "f64":
            return narrow_nan(result, target, value)
        # From f16 no f32 is subnormal, but from bf16 some are.
        return flush(result, "f32") if ftz and target == "f32" else result

    return convert


def _round_to_integral(a: Lanes, value: Lanes, name: str, mode: str | None) -> Lanes:
    """Return registers of the scalar type `name` with integral values: `value` rounded by `mode`.

    a: the registers that `value`, perhaps flushed, was decoded from. With mode None, return registers with `value`.
    """
    if mode is None:
        # Other types than bf16 need no encoding: their registers hold the values themselves. (bf16 is never flushed.)
        return a if name == "bf16" else value
    rounded = to_integer(value, mode)
    if name == "bf16":
        return to_bf16(rounded)
    return settle_nan(rounded, a) if name == "f64" else canonical(rounded)


def _to_tf32(modifiers: Modifiers, source: str) -> Operation:
    """Build the operation of `cvt` from f32 to tf32, which is the upper 19 bits of an f32 word, the others being zero.

    The rounding is .rna (to nearest, ties away from zero), .rn or .rz. Raise ValueError if `source` is not f32.
    """
    if source != "f32":
        raise ValueError(f"{modifiers.opcode}: no conversion from {source} to tf32")
    mode = modifiers.take_required(("rna", "rn", "rz"), "rounding")
    relu, satfinite = modifiers.take_flag("relu"), modifiers.take_flag("satfinite")
    modifiers.check_all_taken()
    format = FORMATS["tf32"]

    def convert(a: Lanes) -> Lanes:
        """Convert f32 values to tf32 words, with the words that the hardware gives for NaN."""
        result = _convert_to_words(a.astype(np.float64), format, mode, relu, satfinite)
        if mode != "rna":
            return result
        # For rna the hardware adds to the word and truncates it, so that NaN keeps its upper part (19 of 32 bits). With
        # .satfinite it takes one unit in the last place from infinity, and from NaN as well.
        upper = a.view(U32) & np.uint32(0xFFFFE000)
        return np.where(np.isnan(a), upper - np.uint32(0x2000) if satfinite else upper, result)

    return Operation((REGISTERS["f32"],), (U32,), convert)


def _convert_to_words(value: Lanes, format: Format, mode: str, relu: bool, satfinite: bool) -> Lanes:
    """Return float64 values as words of `format` (unsigned integers), rounded by `mode`.

    mode: "rn", "rz", or "rna" (to nearest, ties away from zero). relu: negative values become 0. satfinite: values
    beyond the range become the largest finite ones.
    """
    if relu:
        value = np.where(value <= 0, 0.0, value)
    if format.name in ("f16", "bf16") and mode == "rn" and not satfinite:
        # A faster way to the same result.
        return to_register(value, format.name, mode).view(U16)
    rounded = round_to(value, format, mode)
    if satfinite:
        rounded = np.where(np.isinf(rounded), np.copysign(format.largest, rounded), rounded)
    return encode(rounded, format)


def _to_pair(modifiers: Modifiers, source: str, target: str) -> Operation:
    """Build the operation of `cvt` to two packed values of the type `target`.

    The source is two f32 registers, of which the first becomes the upper value, or one register with two packed values.
    Raise ValueError if there is no conversion between these types.
    """
    element, dtype = _PAIRS[target]
    mode = modifiers.take_required(("rn", "rz"), "rounding")
    relu, satfinite = modifiers.take_flag("relu"), modifiers.take_flag("satfinite")
    modifiers.check_all_taken()
    format = FORMATS[element]
    # Conversions to formats of 8 bits and less always saturate; PTX requires .satfinite there.
    satfinite = satfinite or format.bits <= 8
    # Where the upper value begins. Values of 6 bits fill a byte each.
    shift = 4 if element == "e2m1" else 8 if format.bits <= 8 else 16

    def join(low: Lanes, high: Lanes) -> Lanes:
        """Pack two words of the narrow format into one register, the second above the first."""
        return low.astype(dtype) | (high.astype(dtype) << dtype.type(shift))

    def convert(value: Lanes) -> Lanes:
        """Convert floating-point values to words of the narrow format."""
        return _convert_to_words(value.astype(np.float64), format, mode, relu, satfinite)

    if source == "f32":
        # The first register becomes the upper value.
        return Operation((REGISTERS["f32"],) * 2, (dtype,), in_blocks(lambda a, b: join(convert(b), convert(a))))
    if source in ("f16x2", "bf16x2"):

        def from_halves(a: Lanes) -> Lanes:
            """Convert registers with two packed f16 or bf16 values."""
            low, high = (convert(decode(half, source.removesuffix("x2"))) for half in halves_of(a, source))
            return join(low, high)

        return Operation((U32,), (dtype,), from_halves)
    # Between narrow formats there is no conversion.
    if source not in _PAIRS or target not in ("f16x2", "bf16x2"):
        raise ValueError(f"{modifiers.opcode}: no conversion from {source} to {target}")
    source_element, source_dtype = _PAIRS[source]
    width = source_dtype.type(4 if source_element == "e2m1" else 8)
    element_mask = source_dtype.type((1 << int(width)) - 1)

    def from_narrow(a: Lanes) -> Lanes:
        """Convert registers with two packed values of a narrow format to f16x2 or bf16x2."""
        low, high = (a & element_mask).astype(U8), ((a >> width) & element_mask).astype(U8)
        return join(convert(decode(low, source_element)), convert(decode(high, source_element)))

    return Operation((source_dtype,), (dtype,), from_narrow)


def _pack_integers(modifiers: Modifiers) -> Operation:
    """Build the operation of `cvt.pack`: two s32 integers clamped to a narrow type and packed, the second one lowest.

    Types below 16 bits have a third operand, whose low bits fill the upper part of the word. So a sequence of these
    instructions packs as many integers as fit a word. Raise ValueError if this operand is missing or superfluous.
    """
    third_type = modifiers.take_any(("b32",))
    modifiers.take_type(("s32",))
    name = modifiers.take_required(("u16", "s16", "u8", "s8", "u4", "s4", "u2", "s2"), "type")
    modifiers.take_required(("sat",), "modifier")
    modifiers.check_all_taken()
    width = int(name[1:])
    # The range of the narrow type.
    low, high = (0, (1 << width) - 1) if name.startswith("u") else (-(1 << width - 1), (1 << width - 1) - 1)
    mask, shift = np.uint32((1 << width) - 1), np.uint32(width)
    if (third_type is None) != (width == 16):
        raise ValueError(f"{modifiers.opcode}: the third operand goes with types below 16 bits")

    def pack(a: Lanes, b: Lanes, c: Lanes | None = None) -> Lanes:
        """Clamp a and b to `width` bits, and pack them: b lowest, then a, then the low bits of c, if it is given."""
        upper, lower = (np.clip(value, np.int32(low), np.int32(high)).view(U32) & mask for value in (a, b))
        packed = (upper << shift) | lower
        return packed if c is None else packed | (c << np.uint32(2 * width))

    return Operation((S32, S32) if third_type is None else (S32, S32, U32), (U32,), pack)


BUILDERS: Mapping[str, Callable[[Modifiers], Operation | None]] = {"mov": _move, "cvt": _convert}
