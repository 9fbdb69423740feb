"""cvt against exact rounding, over every word of the narrow formats."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from tests.emulator.arithmetic import reference
from tests.emulator.arithmetic.reference import PARAMETERS, WORDS, assert_words, rounded, run, value_of, word_of

MODES = ("rn", "rz", "rm", "rp")
INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")


def _dtype(name):
    return np.dtype(("i" if name[0] == "s" else "u") + str(int(name[1:]) // 8))


def _registers(words, name):
    return words if name == "bf16" else words.view(WORDS[name].replace("u", "f"))


def _narrow_nan(word, name):
    """What a NaN of f64 becomes: its sign and the upper part of its payload, made quiet."""
    bits, fraction = 8 * np.dtype(WORDS[name]).itemsize, PARAMETERS[name][0] - 1
    exponent = ((1 << bits - 1) - 1) >> fraction << fraction
    return word >> 63 << bits - 1 | exponent | 1 << fraction - 1 | (word & (1 << 52) - 1) >> 52 - fraction


def _narrow(value, name, mode):
    """A float64 value in the format, as the word that a conversion writes."""
    if math.isnan(value) or math.isinf(value):
        return word_of(value, name)
    return word_of(rounded(Fraction(value), name, mode, math.copysign(0.0, value)), name)


def _sources(name, seed):
    """Words of the format: all of them where there are few, else special and random ones and those near narrow ties."""
    if name in ("f16", "bf16"):
        return np.arange(1 << 16, dtype=np.uint16)
    words = reference.operands(name, 1, 3000, seed)[0]
    # Halfway between two bf16, two f16 and (of f64) two f32 numbers, and their neighbours.
    precision = PARAMETERS[name][0]
    near = []
    for kept in (8, 11, 24):
        if kept < precision:
            cut = words[:600] >> words.dtype.type(precision - kept - 1) << words.dtype.type(precision - kept - 1)
            near += [cut, cut + words.dtype.type(1), cut - words.dtype.type(1)]
    return np.concatenate([words, *near])


@pytest.mark.parametrize(
    ("source", "target", "mode"),
    [("f32", "f16", "rn"), ("f32", "f16", "rz"), ("f32", "bf16", "rn"), ("f32", "bf16", "rz"), ("f64", "f16", "rn")]
    + [("f64", "bf16", "rn"), ("f64", "f16", "rp")]
    + [("f64", "f32", mode) for mode in MODES],
)
def test_narrower_floats(source, target, mode):
    words = _sources(source, 1)
    got = run(f"cvt.{mode}.{target}.{source}", _registers(words, source))
    expected = [
        _narrow_nan(int(word), target)
        if source == "f64" and math.isnan(value_of(int(word), source))
        else _narrow(value_of(int(word), source), target, mode)
        for word in words
    ]
    assert_words(got, expected, [words], f"{mode}.{target}.{source}")


@pytest.mark.parametrize(
    ("source", "target"), [("f16", "f32"), ("f16", "f64"), ("bf16", "f32"), ("f32", "f64"), ("bf16", "f64")]
)
def test_wider_floats(source, target):
    words = _sources(source, 2)
    got = run(f"cvt.{target}.{source}", _registers(words, source))
    values = [value_of(int(word), source) for word in words]
    for value, result in zip(values, np.asarray(got).tolist(), strict=True):
        assert (math.isnan(value) and math.isnan(result)) or (value, math.copysign(1, value)) == (
            result,
            math.copysign(1, result),
        )


@pytest.mark.parametrize("target", ["f16", "bf16"])
@pytest.mark.parametrize("modifier", ["relu", "satfinite"])
def test_relu_and_finite(target, modifier):
    source = "f32"
    words = _sources(source, 3)
    got = run(f"cvt.rn.{modifier}.{target}.{source}", _registers(words, source))
    largest = float(PARAMETERS[target][2])
    expected = []
    for word in words:
        value = value_of(int(word), source)
        wanted = _narrow(value, target, "rn")
        if modifier == "relu" and value <= 0:
            wanted = 0
        if modifier == "satfinite" and math.isinf(value_of(wanted, target)):
            wanted = word_of(math.copysign(largest, value), target)
        expected.append(wanted)
    assert_words(got, expected, [words], modifier)


def _whole(value, mode):
    return {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}[mode](Fraction(value))


@pytest.mark.parametrize("target", INTEGERS)
@pytest.mark.parametrize("source", ["f16", "bf16", "f32", "f64"])
def test_floats_to_integers(source, target):
    words = reference.operands(source, 1, 800, 4)[0]
    limits = np.iinfo(_dtype(target))
    edges = [limits.min, limits.max, limits.max / 2, 0.5, 1.5, 2.5, -0.5, -1.5, limits.max + 0.5, limits.min - 0.5]
    kind = "f4" if source == "bf16" else WORDS[source].replace("u", "f")
    with np.errstate(over="ignore"):
        values = np.array(edges).astype(kind)
    values = np.concatenate([values, np.nextafter(values, values.dtype.type(0)), np.nextafter(values, -values)])
    extra = (values.view("u4") >> 16).astype("u2") if source == "bf16" else values.view(WORDS[source])
    words = np.concatenate([words, extra])
    bits = 8 * _dtype(target).itemsize
    nan = 1 << (bits - 1) if source == "f64" or bits == 64 else 0
    for mode in ("rni", "rzi", "rmi", "rpi"):
        got = run(f"cvt.{mode}.{target}.{source}", _registers(words, source))
        expected = []
        for word in words:
            value = value_of(int(word), source)
            if math.isnan(value):
                expected.append(nan)
            elif math.isinf(value):
                expected.append((limits.max if value > 0 else limits.min) & ((1 << bits) - 1))
            else:
                expected.append(min(max(_whole(value, mode), limits.min), limits.max) & ((1 << bits) - 1))
        assert_words(got, expected, [words], f"{mode}.{target}.{source}")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("target", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("source", INTEGERS)
def test_integers_to_floats(source, target, mode):
    dtype = _dtype(source)
    generator = np.random.default_rng(5)
    numbers = generator.integers(0, 256, 300 * dtype.itemsize, np.uint8).view(dtype)
    shift = generator.integers(0, 8 * dtype.itemsize, 300).astype(dtype)
    limits = np.iinfo(dtype)
    numbers = np.concatenate([numbers >> shift, np.array([limits.min, limits.max, 0, 1, limits.max - 1], dtype)])
    near = []
    for kept in (8, 11, 24, 53):
        if kept + 2 < 8 * dtype.itemsize:
            tie = (1 << kept + 1) + 1
            near += [tie + delta for delta in (-1, 0, 1)] + [tie * 2 + delta for delta in (-1, 0, 1)]
            near += [(limits.max >> 1 << 1) - (1 << 8 * dtype.itemsize - kept - 3)]
    numbers = np.concatenate([numbers, np.array([min(value, limits.max) for value in near], dtype)])
    got = run(f"cvt.{mode}.{target}.{source}", numbers)
    expected = [word_of(rounded(Fraction(value), target, mode), target) for value in numbers.tolist()]
    assert_words(got, expected, [numbers.astype(object)], f"{mode}.{target}.{source}")


@pytest.mark.parametrize(("source", "target"), list(itertools.product(INTEGERS, INTEGERS)))
def test_integers_to_integers(source, target):
    numbers = np.random.default_rng(6).integers(0, 256, 2400, np.uint8).view(_dtype(source))
    limits = np.iinfo(_dtype(target))
    bits = 8 * _dtype(target).itemsize
    got = run(f"cvt.{target}.{source}", numbers)
    assert [value & ((1 << bits) - 1) for value in got.tolist()] == [
        value & ((1 << bits) - 1) for value in numbers.tolist()
    ]
    held = run(f"cvt.sat.{target}.{source}", numbers)
    assert held.tolist() == [min(max(value, limits.min), limits.max) for value in numbers.tolist()]


@pytest.mark.parametrize("name", ["f16", "f32", "f64"])
def test_whole_floats(name):
    words = _sources(name, 7)
    for mode in ("rni", "rzi", "rmi", "rpi"):
        got = np.asarray(run(f"cvt.{mode}.{name}.{name}", _registers(words, name))).tolist()
        for word, result in zip(words, got, strict=True):
            value = value_of(int(word), name)
            if math.isnan(value) or math.isinf(value):
                assert result == value or math.isnan(result)
            else:
                assert result == _whole(value, mode)
                assert math.copysign(1, result) == math.copysign(1, value)


def test_saturated_and_flushed():
    a = np.array([2.5, -1, 0.25, np.nan, np.inf, -np.inf, 1e-40, -1e-40, -0.0], np.float32)
    tiny = np.float32(1e-40)
    assert run("cvt.sat.f32.f32", a).tolist() == [1, 0, 0.25, 0, 1, 0, float(tiny), 0, 0]
    assert run("cvt.ftz.sat.f32.f32", a).tolist() == [1, 0, 0.25, 0, 1, 0, 0, 0, 0]
    assert run("cvt.ftz.f64.f32", a)[6:].tolist() == [0, 0, 0]
    assert run("cvt.rpi.ftz.s32.f32", a)[6:].tolist() == [0, 0, 0]
    assert run("cvt.rpi.s32.f32", a)[6:].tolist() == [1, 0, 0]
    # .ftz is for f32 alone: the subnormal numbers of f16 are normal there.
    assert run("cvt.ftz.f32.f16", np.array([2.0**-24, -(2.0**-20)], np.float16)).tolist() == [2.0**-24, -(2.0**-20)]
    assert run("cvt.rpi.ftz.s32.f16", np.array([2.0**-24], np.float16)).tolist() == [1]
    assert run("cvt.ftz.f32.bf16", np.array([0x0001, 0x8001], np.uint16)).view(np.uint32).tolist() == [0, 1 << 31]
    # The hardware rounds subnormal f32 to f16 with .ftz too.
    assert run("cvt.rp.ftz.f16.f32", a)[6:].view(np.uint16).tolist() == [1, 1 << 15, 1 << 15]
    assert run("cvt.rn.ftz.f32.f64", np.array([1e-40, 1e-30])).tolist() == [0, float(np.float32(1e-30))]


SMALL = {"e4m3": 8, "e5m2": 8, "e2m3": 6, "e3m2": 6, "e2m1": 4}


def _value_of_small(word, name):
    """The value of a word of a narrow format, from its fields: sign, exponent, fraction."""
    bits = SMALL[name]
    fraction = PARAMETERS[name][0] - 1
    field = word >> fraction & ((1 << bits - 1 - fraction) - 1)
    part = word & ((1 << fraction) - 1)
    sign = -1 if word >> bits - 1 & 1 else 1
    top = (1 << bits - 1 - fraction) - 1
    if name == "e5m2" and field == top:
        return math.nan if part else sign * math.inf
    if name == "e4m3" and field == top and part == 7:
        return math.nan
    minimum = PARAMETERS[name][1]
    significand = Fraction(part, 1 << fraction) + (1 if field else 0)
    return math.copysign(float(significand * Fraction(2) ** (minimum + max(field, 1) - 1)), sign)


@pytest.mark.parametrize("name", SMALL)
def test_narrow_formats_are_read(name):
    step = 4 if name == "e2m1" else 8
    words = np.arange(1 << SMALL[name])
    other = words[::-1]
    packed = (words | other << step).astype(np.uint8 if step == 4 else np.uint16)
    got = run(f"cvt.rn.f16x2.{name}x2", packed)
    for word, low, high in zip(got.tolist(), words.tolist(), other.tolist(), strict=True):
        for part, source in ((word & 0xFFFF, low), (word >> 16, high)):
            value = _value_of_small(source, name)
            assert part == word_of(value, "f16"), (name, source)


@pytest.mark.parametrize("name", SMALL)
def test_narrow_formats_are_written(name):
    """Every f16 number of at most 7 significant bits, so every tie, and the f16 numbers beside each."""
    words = np.arange(1 << 15, dtype=np.uint16)
    values = words[np.isin(words & 15, (0, 1, 15))].view(np.float16).astype(np.float32)
    got = run(f"cvt.rn.satfinite.{name}x2.f32", values, -values).astype(np.uint32)
    step = 4 if name == "e2m1" else 8
    largest = PARAMETERS[name][2]
    table = {}
    for word in range(1 << SMALL[name]):
        table.setdefault((_value_of_small(word, name), word >> SMALL[name] - 1), word)
    for value, word in zip(values.tolist(), got.tolist(), strict=True):
        for part, source in ((word >> step, value), (word & ((1 << step) - 1), -value)):
            if math.isnan(source):
                assert part == PARAMETERS[name][3]
                continue
            sign = math.copysign(1, source) < 0
            if math.isinf(source):
                wanted = math.copysign(float(largest), source)
            else:
                wanted = rounded(Fraction(source), name, "rn", source)
                wanted = math.copysign(min(abs(wanted), float(largest)), source)
            assert part == table[(wanted, int(sign))], (name, source)


@pytest.mark.parametrize("target", ["f16", "bf16"])
@pytest.mark.parametrize("mode", ["rn", "rz"])
def test_pairs(target, mode):
    a, b = (_sources("f32", seed) for seed in (8, 9))
    got = run(f"cvt.{mode}.{target}x2.f32", a.view(np.float32), b.view(np.float32))
    expected = [
        _narrow(value_of(int(x), "f32"), target, mode) << 16 | _narrow(value_of(int(y), "f32"), target, mode)
        for x, y in zip(a, b, strict=True)
    ]
    assert_words(got, expected, (a, b), target)


@pytest.mark.parametrize("mode", ["rna", "rn", "rz"])
def test_tf32(mode):
    words = _sources("f32", 10)
    got = run(f"cvt.{mode}.tf32.f32", words.view(np.float32))
    expected = []
    for word in words:
        value = value_of(int(word), "f32")
        if not math.isnan(value) and not math.isinf(value):
            value = rounded(Fraction(value), "tf32", mode, value)
        elif math.isnan(value):
            expected.append(int(word) & 0xFFFFE000 if mode == "rna" else PARAMETERS["tf32"][3])
            continue
        expected.append(word_of(value, "f32"))
    assert_words(got, expected, [words], mode)
    assert not (np.asarray(got) & np.uint32(0x1FFF)).any()


@pytest.mark.parametrize(("name", "bits"), [("s8", 8), ("u8", 8), ("s4", 4), ("u4", 4), ("s2", 2), ("u2", 2)])
def test_packed_integers(name, bits):
    a, b = (np.random.default_rng(seed).integers(-300, 300, 500).astype(np.int32) for seed in (1, 2))
    c = np.arange(500, dtype=np.uint32) * np.uint32(0x01234567)
    low, high = (0, (1 << bits) - 1) if name[0] == "u" else (-(1 << bits - 1), (1 << bits - 1) - 1)
    got = run(f"cvt.pack.sat.{name}.s32.b32", a, b, c)
    for x, y, z, word in zip(a.tolist(), b.tolist(), c.tolist(), got.tolist(), strict=True):
        upper, lower = (min(max(value, low), high) & ((1 << bits) - 1) for value in (x, y))
        assert word == (z << 2 * bits | upper << bits | lower) & 0xFFFFFFFF
    got = run("cvt.pack.sat.u16.s32", a * 1000, b * 1000)
    assert got.tolist() == [
        min(max(x * 1000, 0), 65535) << 16 | min(max(y * 1000, 0), 65535)
        for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]
