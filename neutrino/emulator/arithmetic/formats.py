"""The floating-point formats: decoding of words, and rounding and encoding of values (PTX ISA 5.2.2, 5.2.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from neutrino.emulator.arithmetic.operation import F16, F32, F64, U8, U16, U32, U64, Lanes
from neutrino.emulator.arithmetic.rounding import to_f32, to_f32_odd, to_integer


@dataclass(frozen=True)
class Format:
    """A binary floating-point format of at most 32 bits.

    precision: significant bits, including the implicit one. minimum: the exponent of the smallest normal number.
    largest: the largest finite value. nan: the word that a NaN is written as, None if the format has no NaN.
    infinity: whether the format has infinities. bits: the width of a word; low: unused bits at its lower end.
    """

    name: str
    precision: int
    minimum: int
    largest: float
    nan: int | None
    infinity: bool
    bits: int
    low: int = 0

    @property
    def word(self) -> np.dtype[Any]:
        """The unsigned type that holds a word."""
        return U8 if self.bits <= 8 else U16 if self.bits <= 16 else U32


FORMATS = {
    format.name: format
    for format in (
        Format("f16", 11, -14, 65504.0, 0x7FFF, True, 16),
        Format("bf16", 8, -126, float.fromhex("0x1.fep127"), 0x7FFF, True, 16),
        Format("f32", 24, -126, float.fromhex("0x1.fffffep127"), 0x7FFFFFFF, True, 32),
        Format("tf32", 11, -126, float.fromhex("0x1.ffcp127"), 0x7FFFE000, True, 32, low=13),
        Format("e4m3", 4, -6, 448.0, 0x7F, False, 8),
        Format("e5m2", 3, -14, 57344.0, 0x7F, True, 8),
        Format("e2m1", 2, 0, 6.0, None, False, 4),
        Format("e2m3", 4, 0, 7.5, None, False, 6),
        Format("e3m2", 3, -2, 28.0, None, False, 6),
    )
}

_SMALLEST_NORMAL = {"f16": np.float16(2.0**-14), "bf16": np.float32(2.0**-126), "f32": np.float32(2.0**-126)}


@cache
def _table(name: str) -> Lanes:
    """Return the float32 value of each word of a format of at most 8 bits, indexed by the word.

    It serves `decode`. Words that stand for no number give an infinity or NaN.
    """
    format = FORMATS[name]
    count = 1 << format.bits
    values = np.empty(count, F32)
    fraction_bits = format.precision - 1
    sign_bit = count >> 1
    for word in range(count):
        magnitude = word & (sign_bit - 1)
        exponent_field, fraction = magnitude >> fraction_bits, magnitude & ((1 << fraction_bits) - 1)
        # Subnormal numbers (exponent field 0) have the exponent of the smallest normal one, and no implicit bit.
        exponent = max(exponent_field, 1) - 1 + format.minimum
        implicit_bit = 1 << fraction_bits if exponent_field else 0
        value = (fraction + implicit_bit) * 2.0 ** (exponent - fraction_bits)
        if value > format.largest:
            # These words do not stand for numbers.
            value = np.inf if format.infinity and fraction == 0 else np.nan
        values[word] = -value if word & sign_bit else value
    values.setflags(write=False)
    return values


def decode(words: Lanes, name: str) -> Lanes:
    """Return the values of words in the format `name` (of `FORMATS`, or f64) as floats that NumPy can compute with.

    These are float32 values; f16, f32 and f64 words already are NumPy's floats, and are returned as they are.
    """
    if name in ("f16", "f32", "f64"):
        return words
    # bf16 is the upper 16 bits of float32, tf32 the upper 19.
    if name == "bf16":
        return (words.astype(U32) << np.uint32(16)).view(F32)
    if name == "tf32":
        return (words & np.uint32(0xFFFFE000)).view(F32)
    # Formats of 4 and 6 bits leave the upper bits of a byte unused.
    return _table(name)[words & np.uint8((1 << FORMATS[name].bits) - 1)]


def halves_of(word: Lanes, name: str) -> tuple[Lanes, Lanes]:
    """Split packed words of the type `name` into the low and the high values, each as in a register of its own.

    f32x2 words give float32 values and f16x2 words float16 values; others (bf16x2) give 16-bit words.
    """
    if name == "f32x2":
        return word.astype(U32).view(F32), (word >> np.uint64(32)).astype(U32).view(F32)
    dtype = F16 if name == "f16x2" else U16
    return word.astype(U16).view(dtype), (word >> np.uint32(16)).astype(U16).view(dtype)


def join_values(low: Lanes, high: Lanes) -> Lanes:
    """Pack two values of 16 bits, or of 32 bits, into words of twice that size."""
    if low.dtype.itemsize == 4:
        return low.view(U32).astype(U64) | (high.view(U32).astype(U64) << np.uint64(32))
    return low.view(U16).astype(U32) | (high.view(U16).astype(U32) << np.uint32(16))


def flush(value: Lanes, name: str) -> Lanes:
    """Return `value`, of the format `name`, with subnormal numbers replaced by zeros of the same sign (.ftz)."""
    small = np.abs(value) < _SMALLEST_NORMAL[name]
    return np.where(small, np.copysign(value.dtype.type(0), value), value) if small.any() else value


# A factor, a power of two, that moves the smallest normal number and those just below it well into the normal ones.
_LIFT = {"f16": 2.0**20, "f32": 2.0**64}


def flush_result(result: Lanes, name: str, exact: Callable[[], Lanes], mode: str) -> Lanes:
    """Flush `result`, f16 or f32 values (`name`) that were rounded by `mode`: subnormal ones become zero (.ftz).

    As on an H200, a result counts as subnormal if it is so when rounded with an unlimited exponent range. So some
    exact values just below the smallest normal number become zero although they round to it. exact: returns the
    results as float64, exact or rounded to odd; called only if some result is the smallest normal number, as it costs
    a second computation.
    """
    # Only the smallest normal number can be a subnormal value that was rounded up.
    at_smallest = np.abs(result) == _SMALLEST_NORMAL[name]
    if at_smallest.any():
        # Scaled up, the values round at full precision, as with an unlimited exponent range.
        lift = _LIFT[name]
        lifted = np.abs(to_register(exact() * lift, name, mode))
        subnormal = at_smallest & (lifted < result.dtype.type(float(_SMALLEST_NORMAL[name]) * lift))
        result = np.where(subnormal, np.copysign(result.dtype.type(0), result), result)
    return flush(result, name)


def round_to(value: Lanes, format: Format, mode: str) -> Lanes:
    """Round float64 values, which are exact or rounded to odd, to values of `format`, returned as float64.

    mode: one of "rn", "rz", "rm", "rp", and "rna" (to nearest, ties away from zero). Values beyond the largest of the
    format become infinite, or the largest if the mode rounds them towards zero.
    """
    # The exponent of the highest bit; frexp has mantissas from 0.5 to 1.
    exponent = np.frexp(value)[1] - 1
    # Scaled so that the last bit of the format is that of an integer. Subnormal numbers have fewer bits.
    shift = format.precision - 1 - np.maximum(exponent, format.minimum)
    rounded = np.ldexp(to_integer(np.ldexp(value, shift), mode), -shift)
    # Infinity and NaN stay, and values that became zero keep their sign.
    rounded = np.copysign(np.where(np.isfinite(value), rounded, value), value)
    overflow = np.isfinite(value) & (np.abs(rounded) > format.largest)
    if not overflow.any():
        return rounded
    # Rounding towards minus infinity is towards zero for positive values, and so on.
    towards_zero = {"rn": False, "rna": False, "rz": True, "rm": value > 0, "rp": value < 0}[mode]
    return np.where(overflow, np.copysign(np.where(towards_zero, format.largest, np.inf), value), rounded)


def encode(value: Lanes, format: Format) -> Lanes:
    """Return the words, in `format`, of float64 values that it can represent exactly.

    Infinities and NaN that the format does not have become its NaN, or its largest value if it has no NaN.
    """
    magnitude = np.abs(value)
    fraction_bits = format.precision - 1
    # Infinities and NaN count as zero at first; their words are filled in below.
    finite = np.where(magnitude <= format.largest, magnitude, 0.0)
    # frexp has mantissas from 0.5 to 1, so that the exponent of the highest bit is one less.
    exponent = np.where(finite == 0, format.minimum, np.maximum(np.frexp(finite)[1] - 1, format.minimum))
    # The significand's implicit bit adds one to the exponent field, so that subnormal numbers have field 0.
    exponent_field = (exponent - format.minimum).astype(np.int64) << fraction_bits
    word = exponent_field + np.ldexp(finite, fraction_bits - exponent).astype(np.int64)
    if format.infinity:
        # Infinity follows the word that has the largest exponent and all bits of the fraction set. The format without
        # infinity ends the recursion.
        largest = encode(np.float64(format.largest), _without_infinity(format)).astype(np.int64) >> format.low
        word = np.where(np.isinf(magnitude), (largest | ((1 << fraction_bits) - 1)) + 1, word)
    sign = np.signbit(value).astype(np.int64) << (format.bits - 1 - format.low)
    word = (word | sign) << format.low
    # Not "magnitude > largest", which is False for NaN.
    unrepresentable = np.isnan(value) if format.infinity else ~(magnitude <= format.largest)
    if unrepresentable.any():
        # Without NaN, the largest value: all bits below the sign.
        substitute = format.nan if format.nan is not None else (1 << (format.bits - 1)) - 1
        word = np.where(unrepresentable, np.int64(substitute), word)
    return word.astype(format.word)


@cache
def _without_infinity(format: Format) -> Format:
    """Return the same format without infinities and NaN, so that values out of range become its largest."""
    return Format(format.name, format.precision, format.minimum, format.largest, None, False, format.bits, format.low)


def to_bf16(value: Lanes) -> Lanes:
    """Round float32 values, or float64 values that are exact or rounded to odd, to the nearest bf16; return words.

    Ties go to even; NaN becomes 0x7FFF.
    """
    if value.dtype == F64:
        # Rounding to the nearest float32 first would round twice. Most values are rounded to bf16 in one step here: it
        # has 45 fraction bits less than float64, and adding just under half of the last place that stays (a full half
        # if that place is odd) rounds to nearest even.
        words = np.asarray(value).view(np.int64)
        odd = (words >> 45) & 1
        near = ((words + ((1 << 44) - 1) + odd) & ~((1 << 45) - 1)).view(np.float64)
        # Subnormal results have a higher last place. They (and NaN, which compares as False) take a slower way: after
        # rounding to odd in float32 the rounding below gives what the exact value would.
        magnitude = np.abs(value)
        normal = (magnitude >= _SMALLEST_NORMAL["bf16"]) | (magnitude == 0)
        value = near.astype(F32) if normal.all() else np.where(normal, near, to_f32_odd(value)).astype(F32)
    # The same addition, for the 16 bits that float32 has more. Values that were rounded above have zeros there, so that
    # it carries nothing into the bits that stay.
    word = np.asarray(value).view(U32)
    odd = (word >> np.uint32(16)) & np.uint32(1)
    near = ((word + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(U16)
    nan = np.isnan(value)
    return np.where(nan, np.uint16(0x7FFF), near) if nan.any() else near


def canonical(value: Lanes) -> Lanes:
    """Return float16 or float32 values with every NaN replaced by the one that the hardware writes as a result.

    That is 0x7FFF in f16 and 0x7FFFFFFF in f32, whatever NaN the operands had.
    """
    nan = np.isnan(value)
    if not nan.any():
        return value
    words = np.asarray(value).view(f"u{value.dtype.itemsize}")
    canonical_nan = words.dtype.type(FORMATS["f32" if value.dtype == F32 else "f16"].nan)
    return np.where(nan, canonical_nan, words).view(value.dtype)


def narrow_nan(result: Lanes, name: str, value: Lanes) -> Lanes:
    """Return `result` with the NaN that the hardware writes where a NaN is converted from f64 to f16 or bf16.

    value: the f64 operands. result: the registers of the type `name` (f16 or bf16) that they were converted to. Such a
    NaN has the sign of the f64 NaN and the upper bits of its payload, made quiet.
    """
    nan = np.isnan(value)
    if not nan.any():
        return result
    format = FORMATS[name]
    fraction_bits = format.precision - 1
    words = np.asarray(value).view(U64)
    # Bit 51, the highest bit of the 52-bit fraction, makes a NaN quiet.
    quiet = words | np.uint64(1 << 51)
    # The 15 bits below the sign: the upper bits of the fraction, and as many of the exponent, which are all set.
    magnitude = (quiet >> np.uint64(52 - fraction_bits)) & np.uint64((1 << 15) - 1)
    sign = words >> np.uint64(48) & np.uint64(0x8000)
    narrow = (magnitude | sign).astype(U16)
    return np.where(nan, narrow, np.asarray(result).view(U16)).view(result.dtype)


def to_register(value: Lanes, name: str, mode: str) -> Lanes:
    """Round float64 values, exact or rounded to odd, to registers of the type `name`: f16, bf16 or f32.

    mode: "rn", "rz", "rm" or "rp". f16 and f32 registers are NumPy floats, bf16 registers 16-bit words. NaN becomes the
    one that the hardware writes (see `canonical`).
    """
    if name == "f32":
        return canonical(to_f32(value, mode))
    if name == "f16" and mode == "rn":
        # NumPy rounds this conversion once, to nearest even.
        return canonical(value.astype(F16))
    if name == "bf16" and mode == "rn":
        return to_bf16(value)
    format = FORMATS[name]
    words = encode(round_to(np.asarray(value, F64), format, mode), format)
    return words.view(F16) if name == "f16" else words
