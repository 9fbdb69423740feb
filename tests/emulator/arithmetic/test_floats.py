"""Float arithmetic against fractions rounded exactly, and against the C library's fma."""

from __future__ import annotations

import ctypes
import ctypes.util
import math
import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.emulator.arithmetic import reference
from tests.emulator.arithmetic.reference import WORDS, assert_words, run, value_of, word_of

MODES = ("rn", "rz", "rm", "rp")
BINARY = {"add": reference.add, "mul": reference.multiply, "div": reference.divide}


def _registers(words, name):
    return words if name == "bf16" else words.view(WORDS[name].replace("u", "f"))


def _expect_nan(opcode, word, words, name):
    """f64 results keep an operand that is NaN, made quiet: b before a, and c between them; of a quotient a before b."""
    if name == "f64" and math.isnan(value_of(word, name)):
        order = words if opcode.startswith("div") else [*words[1:], words[0]]
        for given_word in order:
            if math.isnan(value_of(given_word, name)):
                return given_word | 1 << 51
    return word


def _check(opcode, name, function, count, size, seed):
    given_words = reference.operands(name, count, size, seed)
    got = run(opcode, *(_registers(words, name) for words in given_words))
    expected = []
    for index in range(size):
        words = [int(array[index]) for array in given_words]
        values = [value_of(word, name) for word in words]
        expected.append(_expect_nan(opcode, word_of(function(*values), name), words, name))
    assert_words(got, expected, given_words, opcode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["f32", "f64"])
@pytest.mark.parametrize("kind", ["add", "sub", "mul", "div", "fma", "rcp", "sqrt"])
def test_rounded_in_every_direction(kind, name, mode):
    function = {
        "add": lambda a, b: reference.add(a, b, name, mode),
        "sub": lambda a, b: reference.add(a, -b, name, mode),
        "mul": lambda a, b: reference.multiply(a, b, name, mode),
        "div": lambda a, b: reference.divide(a, b, name, mode),
        "fma": lambda a, b, c: reference.multiply_add(a, b, c, name, mode),
        "rcp": lambda a: reference.divide(1.0, a, name, mode),
        "sqrt": lambda a: reference.square_root(a, name, mode),
    }[kind]
    count = {"fma": 3, "rcp": 1, "sqrt": 1}.get(kind, 2)
    _check(f"{kind}.{mode}.{name}", name, function, count, 300 if kind == "sqrt" else 2000, 1)


@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize("kind", ["add", "sub", "mul", "fma"])
def test_half_precision(kind, name):
    function = {
        "add": lambda a, b: reference.add(a, b, name, "rn"),
        "sub": lambda a, b: reference.add(a, -b, name, "rn"),
        "mul": lambda a, b: reference.multiply(a, b, name, "rn"),
        "fma": lambda a, b, c: reference.multiply_add(a, b, c, name, "rn"),
    }[kind]
    _check(f"{kind}.rn.{name}", name, function, 3 if kind == "fma" else 2, 6000, 2)


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in ("add", "sub", "mul", "fma", "min", "max") for name in ("f16", "bf16")]
    + [(kind, "f32") for kind in ("add", "sub", "mul", "fma")],
)
def test_packed_is_twice_the_scalar(kind, name):
    count = 3 if kind == "fma" else 2
    modifier = "" if kind in ("min", "max") else ".rn"
    low, high = (reference.operands(name, count, 500, seed) for seed in (3, 4))
    bits = 8 * low[0].dtype.itemsize
    wide = np.dtype(f"u{bits // 4}")
    packed = [x.astype(wide) | (y.astype(wide) << wide.type(bits)) for x, y in zip(low, high, strict=True)]
    got = run(f"{kind}{modifier}.{name}x2", *packed)
    for part, words in ((got, low), (got >> wide.type(bits), high)):
        scalar = run(f"{kind}{modifier}.{name}", *(_registers(word, name) for word in words))
        np.testing.assert_array_equal(part.astype(words[0].dtype), np.asarray(scalar).view(words[0].dtype))


_LIBRARY = ctypes.CDLL(ctypes.util.find_library("m"))
_LIBRARY.fma.restype = ctypes.c_double
_LIBRARY.fma.argtypes = [ctypes.c_double] * 3
_LIBRARY.fmaf.restype = ctypes.c_float
_LIBRARY.fmaf.argtypes = [ctypes.c_float] * 3


@settings(max_examples=400, deadline=None)
@given(*[st.floats(allow_nan=False)] * 3)
def test_fma_is_the_c_librarys(a, b, c):
    got = run("fma.rn.f64", *(np.array([value]) for value in (a, b, c)))[0]
    wanted = _LIBRARY.fma(a, b, c)
    assert math.isnan(got) == math.isnan(wanted)
    if not math.isnan(wanted):
        assert struct.pack("<d", got) == struct.pack("<d", wanted)


@settings(max_examples=400, deadline=None)
@given(st.floats(width=32, allow_nan=False), st.floats(width=32, allow_nan=False), st.integers(-30, 30))
def test_fma_f32_near_ties_is_the_c_librarys(a, b, exponent):
    # An addend a few bits below the product's last kept one makes the first rounding end on a tie.
    c = float(np.float32(math.ldexp(1.0, exponent))) if exponent else 0.0
    got = run("fma.rn.f32", *(np.array([value], np.float32) for value in (a, b, c)))[0]
    wanted = _LIBRARY.fmaf(a, b, c)
    assert math.isnan(got) == math.isnan(wanted)
    if not math.isnan(wanted):
        assert struct.pack("<f", got) == struct.pack("<f", wanted)


def test_fma_f32_with_double_rounding():
    # 1 + 2**-24 would be a tie; the addend's far bit breaks it either way.
    a = np.full(2, 1 + 2.0**-12, np.float32)
    b = np.full(2, 1 + 2.0**-12, np.float32)
    c = np.array([2.0**-80, -(2.0**-80)], np.float32)
    exact = Fraction(1 + 2.0**-12) ** 2
    for index in range(2):
        wanted = reference.rounded(exact + Fraction(float(c[index])), "f32", "rn")
        assert float(run("fma.rn.f32", a, b, c)[index]) == wanted
    assert run("fma.rn.f32", a, b, c)[0] != run("fma.rn.f32", a, b, c)[1]


def _flush(value, name):
    smallest = 2.0**-14 if name == "f16" else 2.0**-126
    return math.copysign(0.0, value) if abs(value) < smallest else value


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["add", "mul", "fma", "div"])
def test_flushed_and_saturated(kind, mode):
    plain = {
        "add": lambda *values: reference.add(*values, "f32.ftz", mode),
        "mul": lambda *values: reference.multiply(*values, "f32.ftz", mode),
        "fma": lambda *values: reference.multiply_add(*values, "f32.ftz", mode),
        "div": lambda *values: reference.divide(*values, "f32.ftz", mode),
    }[kind]

    def flushed(*values):
        return _flush(plain(*(_flush(value, "f32") for value in values)), "f32")

    def saturated(*values):
        value = flushed(*values)
        return min(value, 1.0) if value > 0 else 0.0

    count = 3 if kind == "fma" else 2
    _check(f"{kind}.{mode}.ftz.f32", "f32", flushed, count, 1500, 5)
    if kind != "div":
        _check(f"{kind}.{mode}.ftz.sat.f32", "f32", saturated, count, 1500, 6)


def test_flushed_just_below_the_smallest_normal_number():
    # (1 - 2**-13) (1 + 2**-13) rounds to 1 at any exponent, (1 - 2**-12) (1 + 2**-12) only where a bit is missing.
    near, far = (np.array([(1 - step) * 2.0**-63], np.float32) for step in (2.0**-13, 2.0**-12))
    other, another = (np.array([(1 + step) * 2.0**-63], np.float32) for step in (2.0**-13, 2.0**-12))
    assert run("mul.rn.ftz.f32", near, other).tolist() == [2.0**-126]
    assert run("mul.rn.f32", far, another).tolist() == [2.0**-126]
    assert run("mul.rn.ftz.f32", far, another).tolist() == [0]
    assert run("fma.rn.ftz.f32", far, another, np.zeros(1, np.float32)).tolist() == [0]


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_fma_relu(name):
    def function(a, b, c):
        value = reference.multiply_add(a, b, c, name, "rn")
        return 0.0 if value <= 0 else value

    _check(f"fma.rn.relu.{name}", name, function, 3, 2000, 7)


def _least(a, b, propagate):
    if math.isnan(a) or math.isnan(b):
        return math.nan if propagate or (math.isnan(a) and math.isnan(b)) else b if math.isnan(a) else a
    if a == b == 0:
        return a if math.copysign(1, a) < 0 else b
    return min(a, b)


def _greatest(a, b, propagate):
    result = _least(-a, -b, propagate)
    return -result


@pytest.mark.parametrize("name", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize(("kind", "function"), [("min", _least), ("max", _greatest)])
def test_minimum_and_maximum(kind, function, name):
    _check(f"{kind}.{name}", name, lambda a, b: function(a, b, False), 2, 2000, 8)
    if name == "f64":
        return
    _check(f"{kind}.NaN.{name}", name, lambda a, b: function(a, b, True), 2, 2000, 9)

    def by_magnitude(a, b):
        result = function(abs(a), abs(b), True)
        return math.copysign(result, math.copysign(1, a) * math.copysign(1, b))

    _check(f"{kind}.NaN.xorsign.abs.{name}", name, by_magnitude, 2, 2000, 10)


@pytest.mark.parametrize(("kind", "function"), [("min", _least), ("max", _greatest)])
def test_minimum_of_three(kind, function):
    words = reference.operands("f32", 3, 1000, 11)
    got = run(f"{kind}.f32", *(array.view(np.float32) for array in words), sources=3)
    expected = []
    for row in zip(*words, strict=True):
        a, b, c = (value_of(int(word), "f32") for word in row)
        expected.append(word_of(function(function(a, b, False), c, False), "f32"))
    assert_words(got, expected, words, kind)


@pytest.mark.parametrize("name", ["f16", "bf16", "f32", "f64"])
def test_signs(name):
    words = reference.operands(name, 2, 1000, 12)
    a, b = (_registers(array, name) for array in words)
    word = np.dtype(WORDS[name])
    top = word.type(1 << (8 * word.itemsize - 1))
    for kind, plain in (("abs", words[0] & ~top), ("neg", words[0] ^ top)):
        nan = np.array([math.isnan(value_of(int(given_word), name)) for given_word in words[0]])
        assert nan.any()
        nan_words = words[0] | word.type(1 << 51) if name == "f64" else word.type(reference.PARAMETERS[name][3])
        wanted = np.where(nan, nan_words, plain)
        np.testing.assert_array_equal(np.asarray(run(f"{kind}.{name}", a)).view(word), wanted)
    if name in ("f32", "f64"):
        joined = (words[1] & ~top) | (words[0] & top)
        np.testing.assert_array_equal(np.asarray(run(f"copysign.{name}", a, b)).view(word), joined)


@pytest.mark.parametrize("name", ["f32", "f64"])
def test_kinds_of_numbers(name):
    words = reference.operands(name, 1, 1000, 13)[0]
    smallest = 2.0 ** reference.PARAMETERS[name][1]
    tests = {
        "finite": math.isfinite,
        "infinite": math.isinf,
        "number": lambda value: not math.isnan(value),
        "notanumber": math.isnan,
        "normal": lambda value: math.isfinite(value) and (value == 0 or abs(value) >= smallest),
        "subnormal": lambda value: 0 < abs(value) < smallest,
    }
    for kind, function in tests.items():
        got = run(f"testp.{kind}.{name}", _registers(words, name))
        assert got.tolist() == [function(value_of(int(word), name)) for word in words]


@pytest.mark.parametrize("narrow", ["f16", "bf16"])
def test_first_operands_in_half_precision(narrow):
    a, b = reference.operands(narrow, 2, 1000, 14)
    c = reference.operands("f32", 1, 1000, 15)[0]
    got = run(f"fma.rz.f32.{narrow}", _registers(a, narrow), _registers(b, narrow), c.view(np.float32))
    expected = [
        word_of(
            reference.multiply_add(
                value_of(int(x), narrow), value_of(int(y), narrow), value_of(int(z), "f32"), "f32", "rz"
            ),
            "f32",
        )
        for x, y, z in zip(a, b, c, strict=True)
    ]
    assert_words(got, expected, (a, b, c), narrow)


def test_scalars_of_immediates():
    assert run("add.rn.f32", np.array([1, 2], np.float32), np.float32(0.5)).tolist() == [1.5, 2.5]
    assert float(run("fma.rn.f32", np.float32(3), np.float32(4), np.float32(5))) == 17
    assert float(run("fma.rz.f64", np.float64(3), np.float64(4), np.float64(5))) == 17
    below, above = (float(run(f"div.{mode}.f64", np.float64(1), np.float64(3))) for mode in ("rm", "rp"))
    assert np.nextafter(below, 1) == above


@pytest.mark.parametrize("opcode", ["fma.rn.f64", "fma.rz.f32", "cvt.rn.satfinite.e4m3x2.f32"])
def test_many_lanes_are_as_few(opcode):
    dtype = np.float64 if opcode.endswith("f64") else np.float32
    count = 2 if opcode.startswith("cvt") else 3
    arrays = [np.random.default_rng(seed).standard_normal(10001).astype(dtype) for seed in range(count)]
    arrays[-1] = dtype(0.75)
    whole = run(opcode, *arrays)
    few = [run(opcode, *(x[start : start + 100] if x.ndim else x for x in arrays)) for start in range(0, 10001, 100)]
    np.testing.assert_array_equal(whole, np.concatenate(few))
