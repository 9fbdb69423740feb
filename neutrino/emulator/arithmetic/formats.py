"""The floating-point formats: what words mean, and values rounded and written into them (PTX ISA 5.2.2, 5.2.3)."""

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

    precision: significant bits, the hidden one included. minimum: exponent of the smallest normal number. largest: the
    largest finite value. nan: the word that NaN results are, None where the format has none. infinity: whether there is
    one. bits: width of the word; low: unused bits at its lower end.
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
    """The float32 value of each word of a format of at most 8 bits."""
    format = FORMATS[name]
    count = 1 << format.bits
    values = np.empty(count, F32)
    fraction = format.precision - 1
    half = count >> 1
    for word in range(count):
        magnitude = word & (half - 1)
        field, significand = magnitude >> fraction, magnitude & ((1 << fraction) - 1)
        exponent = max(field, 1) - 1 + format.minimum
        value = (significand + (1 << fraction if field else 0)) * 2.0 ** (exponent - fraction)
        if value > format.largest:
            value = np.inf if format.infinity and significand == 0 else np.nan
        values[word] = -value if word & half else value
    values.setflags(write=False)
    return values


def decode(words: Lanes, name: str) -> Lanes:
    """The values of words in the format `name`: f16, f32 and f64 stay as they are, all others give float32."""
    if name in ("f16", "f32", "f64"):
        return words
    if name == "bf16":
        return (words.astype(U32) << np.uint32(16)).view(F32)
    if name == "tf32":
        return (words & np.uint32(0xFFFFE000)).view(F32)
    return _table(name)[words & np.uint8((1 << FORMATS[name].bits) - 1)]


def halves_of(word: Lanes, name: str) -> tuple[Lanes, Lanes]:
    """The low and the high value of packed words, as the registers that would hold each."""
    if name == "f32x2":
        return word.astype(U32).view(F32), (word >> np.uint64(32)).astype(U32).view(F32)
    dtype = F16 if name == "f16x2" else U16
    return word.astype(U16).view(dtype), (word >> np.uint32(16)).astype(U16).view(dtype)


def join_values(low: Lanes, high: Lanes) -> Lanes:
    """The packed words of two registers of 16 bits, or of 32."""
    if low.dtype.itemsize == 4:
        return low.view(U32).astype(U64) | (high.view(U32).astype(U64) << np.uint64(32))
    return low.view(U16).astype(U32) | (high.view(U16).astype(U32) << np.uint32(16))


def flush(value: Lanes, name: str) -> Lanes:
    """`value`, of the format `name`, with zeros of the same sign for subnormal numbers (.ftz)."""
    small = np.abs(value) < _SMALLEST_NORMAL[name]
    return np.where(small, np.copysign(value.dtype.type(0), value), value) if small.any() else value


# A power of two that lifts the smallest normal number well into the normal ones.
_LIFT = {"f16": 2.0**20, "f32": 2.0**64}


def flush_result(result: Lanes, name: str, exact: Callable[[], Lanes], mode: str) -> Lanes:
    """`flush` of results of the type f16 or f32 that were rounded by `mode`.

    What counts as subnormal is the result rounded as if exponents had no lower end, as an H200 has it: so some of the
    exact values just below the smallest normal number, which round to it, still give zero. exact: gives the results as
    float64, exact or rounded to odd.
    """
    edge = np.abs(result) == _SMALLEST_NORMAL[name]
    if edge.any():
        lift = _LIFT[name]
        lifted = np.abs(to_register(exact() * lift, name, mode))
        low = edge & (lifted < result.dtype.type(float(_SMALLEST_NORMAL[name]) * lift))
        result = np.where(low, np.copysign(result.dtype.type(0), result), result)
    return flush(result, name)


def round_to(value: Lanes, format: Format, mode: str) -> Lanes:
    """float64 values, exact or rounded to odd, as float64 values that `format` holds, or infinities beyond its largest.

    mode: one of "rn", "rz", "rm", "rp", and "rna", to nearest with ties away from zero.
    """
    exponent = np.frexp(value)[1] - 1
    shift = format.precision - 1 - np.maximum(exponent, format.minimum)
    rounded = np.ldexp(to_integer(np.ldexp(value, shift), mode), -shift)
    rounded = np.copysign(np.where(np.isfinite(value), rounded, value), value)
    over = np.isfinite(value) & (np.abs(rounded) > format.largest)
    if not over.any():
        return rounded
    inwards = {"rn": False, "rna": False, "rz": True, "rm": value > 0, "rp": value < 0}[mode]
    return np.where(over, np.copysign(np.where(inwards, format.largest, np.inf), value), rounded)


def encode(value: Lanes, format: Format) -> Lanes:
    """The words of float64 values that `format` holds, and of infinities and NaN where it has them.

    What it has no word for becomes its NaN, or for lack of one its largest value.
    """
    magnitude = np.abs(value)
    fraction = format.precision - 1
    finite = np.where(magnitude <= format.largest, magnitude, 0.0)
    exponent = np.where(finite == 0, format.minimum, np.maximum(np.frexp(finite)[1] - 1, format.minimum))
    word = ((exponent - format.minimum).astype(np.int64) << fraction) + np.ldexp(finite, fraction - exponent).astype(
        np.int64
    )
    if format.infinity:
        top = encode(np.float64(format.largest), _without_infinity(format)).astype(np.int64) >> format.low
        word = np.where(np.isinf(magnitude), (top | ((1 << fraction) - 1)) + 1, word)
    sign = np.signbit(value).astype(np.int64) << (format.bits - 1 - format.low)
    word = (word | sign) << format.low
    without = np.isnan(value) if format.infinity else ~(magnitude <= format.largest)
    if without.any():
        missing = format.nan if format.nan is not None else (1 << (format.bits - 1)) - 1
        word = np.where(without, np.int64(missing), word)
    return word.astype(format.word)


@cache
def _without_infinity(format: Format) -> Format:
    return Format(format.name, format.precision, format.minimum, format.largest, None, False, format.bits, format.low)


def to_bf16(value: Lanes) -> Lanes:
    """The bf16 words nearest to float32 values, or to float64 values that are exact or rounded to odd."""
    if value.dtype == F64:
        # Adding half of the last place carries into it as rounding does, but for subnormal results.
        words = np.asarray(value).view(np.int64)
        odd = (words >> 45) & 1
        near = ((words + ((1 << 44) - 1) + odd) & ~((1 << 45) - 1)).view(np.float64)
        magnitude = np.abs(value)
        plain = (magnitude >= _SMALLEST_NORMAL["bf16"]) | (magnitude == 0)
        value = near.astype(F32) if plain.all() else np.where(plain, near, to_f32_odd(value)).astype(F32)
    word = np.asarray(value).view(U32)
    odd = (word >> np.uint32(16)) & np.uint32(1)
    near = ((word + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(U16)
    nan = np.isnan(value)
    return np.where(nan, np.uint16(0x7FFF), near) if nan.any() else near


def canonical(value: Lanes) -> Lanes:
    """`value` with the NaN that the hardware writes in float16 and float32 results in place of every other."""
    nan = np.isnan(value)
    if not nan.any():
        return value
    words = np.asarray(value).view(f"u{value.dtype.itemsize}")
    largest = words.dtype.type(FORMATS["f32" if value.dtype == F32 else "f16"].nan)
    return np.where(nan, largest, words).view(value.dtype)


def narrow_nan(result: Lanes, name: str, value: Lanes) -> Lanes:
    """`result`, words or values of f16 or bf16, where `value` of f64 is NaN: its sign and upper payload, made quiet."""
    nan = np.isnan(value)
    if not nan.any():
        return result
    format = FORMATS[name]
    fraction = format.precision - 1
    words = np.asarray(value).view(U64)
    kept = ((words | np.uint64(1 << 51)) >> np.uint64(52 - fraction)) & np.uint64((1 << 15) - 1)
    narrow = (kept | (words >> np.uint64(48) & np.uint64(0x8000))).astype(U16)
    return np.where(nan, narrow, np.asarray(result).view(U16)).view(result.dtype)


def to_register(value: Lanes, name: str, mode: str) -> Lanes:
    """float64 values, exact or rounded to odd, rounded to registers of the type f16, bf16 or f32; NaN is canonical."""
    if name == "f32":
        return canonical(to_f32(value, mode))
    if name == "f16" and mode == "rn":
        return canonical(value.astype(F16))
    if name == "bf16" and mode == "rn":
        return to_bf16(value)
    format = FORMATS[name]
    words = encode(round_to(np.asarray(value, F64), format, mode), format)
    return words.view(F16) if name == "f16" else words
