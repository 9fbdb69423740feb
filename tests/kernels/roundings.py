"""Every rounding mode, and what becomes of values that few kernels meet; against exact fractions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np

from tests.kernels.floats import to_bf16
from tests.kernels.model import FIXTURES, Array, Case, Expected, blank, seeded

ROUNDINGS = FIXTURES / "hand" / "roundings.ptx"
CONVERSIONS = FIXTURES / "hand" / "conversions.ptx"
_TAGS = frozenset({"hand", "rounding"})
_NAN = 0x7FFFFFFF
"""The NaN that arithmetic gives (PTX ISA 9.7.3)."""


def cases() -> Iterator[Case]:
    """The kernels of roundings.ptx and conversions.ptx."""
    yield from (_roundings_f32(), _roundings_f64(), _odd_values(), _approximations())
    yield from (_float_to_integer(), _integer_to_float(), _integer_to_integer(), _float_to_float())


def _choose(low: np.floating, high: np.floating, mode: str, above_middle: int) -> np.floating:
    # Between two neighbours. above_middle: -1, 0 or 1, where the exact value lies.
    if mode == "m" or (mode == "z" and high > 0):
        return low
    if mode in ("p", "z"):
        return high
    if above_middle:
        return high if above_middle > 0 else low
    even = int(low.view(f"u{low.itemsize}")) & 1 == 0
    return low if even else high


def _sign(value: Fraction) -> int:
    return (value > 0) - (value < 0)


def _neighbours(guess: np.floating, below: Callable[[Fraction], int]) -> tuple[np.floating, np.floating]:
    # below(x): the sign of the exact value less x.
    kind = type(guess)
    while below(Fraction(float(guess))) < 0:
        guess = np.nextafter(guess, kind(-np.inf))
    while below(Fraction(float(np.nextafter(guess, kind(np.inf))))) >= 0:
        guess = np.nextafter(guess, kind(np.inf))
    return guess, np.nextafter(guess, kind(np.inf))


def rounded(value: Fraction, kind: type[np.floating], mode: str) -> np.floating:
    """A fraction as ``kind``, to nearest even (n), towards zero (z), down (m) or up (p). Within kind's range."""
    low, high = _neighbours(kind(float(value)), lambda x: _sign(value - x))
    if Fraction(float(low)) == value:
        return low
    middle = (Fraction(float(low)) + Fraction(float(high))) / 2
    return _choose(low, high, mode, _sign(value - middle))


def rounded_root(value: Fraction, kind: type[np.floating], mode: str) -> np.floating:
    """The same of the root of a fraction above zero."""
    low, high = _neighbours(kind(math.sqrt(value)), lambda x: _sign(value - x * x))
    if Fraction(float(low)) ** 2 == value:
        return low
    middle = (Fraction(float(low)) + Fraction(float(high))) / 2
    return _choose(low, high, mode, _sign(value - middle * middle))


def _numbers(name: str, count: int, kind: type[np.floating], spread: int) -> Array:
    random = seeded(name)
    scale = 2.0 ** random.integers(-spread, spread, (3, count))
    return (random.uniform(1, 2, (3, count)) * random.choice([-1, 1], (3, count)) * scale).astype(kind)


def _roundings_f32() -> Case:
    x, y, z = _numbers("roundings_f32", 384, np.float32, 8)
    want = np.empty((384, 20), np.float32)
    for row, *operands in zip(want, x.tolist(), y.tolist(), z.tolist(), strict=True):
        a, b, c = map(Fraction, operands)
        exact = [
            (a + b, "nz"), (a - b, "mp"), (a * b, "nzmp"), (a * b + c, "nzmp"), (a / b, "nzmp"),
        ]  # fmt: skip
        row[:16] = [rounded(value, np.float32, mode) for value, modes in exact for mode in modes]
        row[16:19] = [rounded_root(abs(a), np.float32, mode) for mode in "nmp"]
        row[19] = rounded(1 / b, np.float32, "z")
    return Case("roundings_f32", ROUNDINGS, "roundings_f32", (3, 1, 1), (128, 1, 1),
                (x, y, z, blank(want.shape, np.float32)), {3: Expected(want)}, tags=_TAGS)  # fmt: skip


def _roundings_f64() -> Case:
    x, y, z = _numbers("roundings_f64", 288, np.float64, 20)
    want = np.empty((288, 12), np.float64)
    for row, *operands in zip(want, x.tolist(), y.tolist(), z.tolist(), strict=True):
        a, b, c = map(Fraction, operands)
        exact = [
            (a + b, "z"), (a - b, "m"), (a + b, "p"), (a * b, "zp"), (a * b + c, "nmz"), (a / b, "np"),
        ]  # fmt: skip
        row[:10] = [rounded(value, np.float64, mode) for value, modes in exact for mode in modes]
        row[10] = rounded_root(abs(a), np.float64, "m")
        row[11] = rounded(1 / b, np.float64, "z")
    return Case("roundings_f64", ROUNDINGS, "roundings_f64", (9, 1, 1), (32, 1, 1),
                (x, y, z, blank(want.shape, np.float64)), {3: Expected(want)}, tags=_TAGS | {"f64"})  # fmt: skip


def _flushed(x: Array) -> Array:
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)


def _canonical(x: Array) -> Array:
    words = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return np.where(np.isnan(x), np.uint32(_NAN), words).astype(np.uint32)


def _odd_pairs() -> tuple[Array, Array]:
    tiny = np.finfo(np.float32).tiny
    values = np.array([0.0, -0.0, 0.25, -0.75, 1.0, 1.5, 2.5, -3.5, 8388609.0, 3e38, -3e38, np.inf, -np.inf, np.nan,
                       tiny, -tiny, tiny / 2, -tiny / 4, 1e-45], np.float32)  # fmt: skip
    x, y = (side.reshape(-1) for side in np.meshgrid(values, values))
    # Which of two zeros is the smaller is not promised.
    zero = _flushed(x) == 0
    mixed = zero & (_flushed(y) == 0) & (np.signbit(x) != np.signbit(y))
    return np.resize(x[~mixed], 384), np.resize(y[~mixed], 384)


def _odd_values() -> Case:
    a, b = _odd_pairs()
    with np.errstate(all="ignore"):
        flushed_a, flushed_b = _flushed(a), _flushed(b)
        total = a + b
        saturated = np.where(np.isnan(total), 0, total.clip(0, 1))
        no_number = np.isnan(a) | np.isnan(b)
        floats = [
            _flushed(flushed_a + flushed_b), _flushed(flushed_a * flushed_b), a * np.float32(0.5),
            saturated + np.float32(0), np.fmin(a, b), np.fmax(a, b), np.minimum(a, b),
            np.fmax(flushed_a, flushed_b), np.copysign(b, a), np.where(np.isnan(a), 0, a.clip(0, 1)) + np.float32(0),
            np.where(np.isnan(a), 3, flushed_a), np.where(np.isnan(b), 5, np.rint(b)),
        ]  # fmt: skip
        less = a < b
        subnormal = (a != 0) & (np.abs(a) < np.finfo(np.float32).tiny)
        said = [less, no_number | (a >= b), ~no_number & ~less, np.isnan(a) | less, flushed_a == 0, subnormal,
                np.isfinite(a), ~no_number & (a != b)]  # fmt: skip
    words = [_canonical(column) for column in floats]
    words[8] = (b.view(np.uint32) & 0x7FFFFFFF) | (a.view(np.uint32) & 0x80000000)
    words.append(sum(bit.astype(np.uint32) << place for place, bit in enumerate(said)))
    want = np.stack(words, 1).astype(np.uint32)
    return Case("odd_values", ROUNDINGS, "odd_values", (6, 1, 1), (64, 1, 1), (a, b, blank(want.shape, np.uint32)),
                {2: Expected(want)}, tags=_TAGS)  # fmt: skip


def _approximations() -> Case:
    random = seeded("approximations")
    x = random.uniform(0.1, 100, 2000).astype(np.float32)
    y = random.uniform(-3, 3, 2000).astype(np.float32)
    a, b = x.astype(np.float64), y.astype(np.float64)
    want = np.stack([1 / a, np.sqrt(a), 1 / np.sqrt(a), np.log2(a), 2**b, np.sin(b), np.cos(b), b / a, b / a], 1)
    return Case("approximations", ROUNDINGS, "approximations", (20, 1, 1), (100, 1, 1),
                (x, y, blank(want.shape, np.float32), blank(2000, np.float32)),
                {2: Expected(want, exact=False, rtol=1e-6, atol=1e-6),
                 3: Expected(np.tanh(b), exact=False, rtol=6e-4, atol=1e-6)}, tags=_TAGS)  # fmt: skip


_TO_WHOLE: dict[str, Callable[[float], int]] = {"n": round, "z": math.trunc, "m": math.floor, "p": math.ceil}
"""round() of Python takes halves to even, as .rni does."""


def to_integer(value: float, mode: str, bits: int, signed: bool, wide_source: bool) -> int:
    """cvt from a float to a whole number, clamped; NaN as PTX ISA 9.7.9.21 has it."""
    if math.isnan(value):
        return (1 << bits - 1) if wide_source or bits == 64 else 0
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    if math.isinf(value):
        return high if value > 0 else low
    return min(max(_TO_WHOLE[mode](value), low), high)


def _float_to_integer() -> Case:
    random = seeded("float_to_integer")
    edges = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 127.5, 128.0, -129.0, 255.5, 32767.5, -32769.0, 2.0**31, -(2.0**31),
             2.0**32, 2.0**63, -(2.0**63), 2.0**64, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3e38]  # fmt: skip
    rest = random.uniform(-2, 2, 384 - len(edges)) * 2.0 ** random.integers(-3, 66, 384 - len(edges))
    values = np.array([*edges, *rest]).astype(np.float32)
    kinds = [("n", 32, True, False), ("z", 32, False, False), ("m", 32, True, False), ("p", 32, True, False),
             ("z", 16, True, False), ("n", 8, False, False), ("z", 8, True, False), ("n", 32, True, True),
             ("n", 32, False, False)]  # fmt: skip
    wide = [("n", 64, True, False), ("p", 64, False, False), ("m", 64, True, True), ("z", 64, False, True)]
    numbers = values.tolist()
    narrow_want = [[to_integer(value, *kind) & 0xFFFFFFFF for kind in kinds] for value in numbers]
    wide_want = [[to_integer(value, *kind) & (1 << 64) - 1 for kind in wide] for value in numbers]
    return Case("float_to_integer", CONVERSIONS, "float_to_integer", (4, 1, 1), (96, 1, 1),
                (values, blank((384, 9), np.uint32), blank((384, 4), np.uint64)),
                {1: Expected(np.array(narrow_want, np.uint32)), 2: Expected(np.array(wide_want, np.uint64))},
                tags=_TAGS)  # fmt: skip


def _words(name: str, count: int) -> Array:
    random = seeded(name)
    values = random.integers(0, 1 << 64, count, np.uint64) >> random.integers(0, 63, count).astype(np.uint64)
    negative = np.where(random.random(count) < 0.4, ~values, values)
    negative[:8] = np.array([0, 1, (1 << 64) - 1, 1 << 63, (1 << 63) - 1, 1 << 31, (1 << 31) - 1, (1 << 24) + 1],
                            np.uint64)  # fmt: skip
    return negative


def _integer_to_float() -> Case:
    words = _words("integer_to_float", 384)
    single, double = np.empty((384, 8), np.float32), np.empty((384, 4))
    for place, word in enumerate(words.tolist()):
        signed = word - (word >> 63 << 64)
        low = word & 0xFFFFFFFF
        low_signed = low - (low >> 31 << 32)
        kinds = [(signed, mode) for mode in "nzmp"] + [(low, "n"), (low, "z"), (low_signed, "p"), (word, "n")]
        single[place] = [rounded(Fraction(value), np.float32, mode) for value, mode in kinds]
        wide = [(signed, "n"), (word, "m"), (signed, "p"), (low, "n")]
        double[place] = [rounded(Fraction(value), np.float64, mode) for value, mode in wide]
    return Case("integer_to_float", CONVERSIONS, "integer_to_float", (4, 1, 1), (96, 1, 1),
                (words, blank(single.shape, np.float32), blank(double.shape, np.float64)),
                {1: Expected(single), 2: Expected(double)}, tags=_TAGS)  # fmt: skip


def _integer_to_integer() -> Case:
    words = _words("integer_to_integer", 384)
    signed, low = words.view(np.int64), words.astype(np.uint32)
    low_signed = low.view(np.int32)
    narrow = [low_signed.clip(-128, 127), low_signed.clip(0, 65535), signed.clip(-(1 << 31), (1 << 31) - 1),
              signed.clip(0, (1 << 32) - 1), low.clip(0, 255), low.astype(np.int8)]  # fmt: skip
    wide = [words.astype(np.int16).astype(np.int64).view(np.uint64),
            words.clip(0, (1 << 63) - 1), words & np.uint64(0xFF)]  # fmt: skip
    halves = np.stack([column.astype(np.int64).astype(np.uint32) for column in narrow], 1)
    want = np.concatenate([halves.view(np.uint64), np.stack(wide, 1)], 1)
    return Case("integer_to_integer", CONVERSIONS, "integer_to_integer", (4, 1, 1), (96, 1, 1),
                (words, blank(want.shape, np.uint64)), {1: Expected(want)}, tags=_TAGS)  # fmt: skip


def to_fp8(values: Array, exponent_bits: int) -> Array:
    """e4m3 or e5m2 to nearest even, too large ones to the largest (FP8 Formats for Deep Learning, arXiv 2209.05433)."""
    mantissa_bits = 7 - exponent_bits
    bias = (1 << exponent_bits - 1) - 1
    # e4m3 has no infinity and one NaN; e5m2 keeps the whole last exponent for them.
    codes = np.arange(0x7F if exponent_bits == 4 else 0x7C)
    exponent, fraction = codes >> mantissa_bits, codes & (1 << mantissa_bits) - 1
    whole = np.where(exponent > 0, (1 << mantissa_bits) + fraction, fraction)
    table = whole * 2.0 ** (np.maximum(exponent, 1) - bias - mantissa_bits)
    size = np.minimum(np.abs(values.astype(np.float64)), table[-1])
    low = np.searchsorted(table, size, side="right") - 1
    high = np.minimum(low + 1, len(table) - 1)
    middle = (table[low] + table[high]) / 2
    up = (size > middle) | ((size == middle) & (low & 1 == 1))
    return (np.where(up, high, low) | np.signbit(values) << 7).astype(np.uint16)


def _float_to_float() -> Case:
    random = seeded("float_to_float")
    count = 384
    d = random.uniform(1, 2, count) * 2.0 ** random.integers(-26, 15, count) * random.choice([-1, 1], count)
    # Middles between neighbours of each format.
    d[:6] = (1 + 2.0**-24, 1 + 3 * 2.0**-24, 1 + 2.0**-11, 1 + 3 * 2.0**-9, 1.0625, 1.1875)
    single = np.array([[rounded(Fraction(value), np.float32, mode) for mode in "nzmp"] for value in d.tolist()])
    a, b = single[:, 0], -single[:, 1]
    half, cut = a.astype(np.float16), np.array([rounded(Fraction(v), np.float16, "z") for v in a.tolist()])
    pair = half.view(np.uint16).astype(np.uint32) << 16 | b.astype(np.float16).view(np.uint16)
    relu = to_bf16(np.maximum(a, 0)).astype(np.uint32) << 16 | to_bf16(np.maximum(b, 0))
    tf32 = a.view(np.uint32) + 0x1000 & 0xFFFFE000
    sixteen = [half.view(np.uint16), cut.view(np.uint16), to_bf16(a), (a.view(np.uint32) >> 16).astype(np.uint16),
               to_fp8(a, 4) << 8 | to_fp8(b, 4), to_fp8(b, 5) << 8 | to_fp8(a, 5)]  # fmt: skip
    words = [pair, relu, tf32, cut.astype(np.float32).view(np.uint32)]
    want = np.concatenate([np.stack(sixteen, 1).view(np.uint32), np.stack(words, 1)], 1)
    return Case("float_to_float", CONVERSIONS, "float_to_float", (4, 1, 1), (96, 1, 1),
                (d, blank(single.shape, np.float32), blank(want.shape, np.uint32)),
                {1: Expected(single.astype(np.float32)), 2: Expected(want)},
                tags=_TAGS | {"f16", "bf16", "fp8"})  # fmt: skip
