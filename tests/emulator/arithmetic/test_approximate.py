"""The approximations: within the manual's bounds of the exact value, and its results for special operands."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from tests.emulator.arithmetic import reference
from tests.emulator.arithmetic.reference import rounded, run, value_of, word_of

INF, NAN = math.inf, math.nan
FUNCTIONS = {
    "rcp": lambda value: 1 / value if value else math.copysign(INF, value),
    "sqrt": lambda value: math.sqrt(value) if value >= 0 else NAN,
    "rsqrt": lambda value: NAN if value < 0 else 1 / math.sqrt(value) if value else math.copysign(INF, value),
    "sin": math.sin,
    "cos": math.cos,
    "lg2": lambda value: math.log2(value) if value > 0 else NAN if value < 0 else -INF,
    "ex2": lambda value: 2.0**value if value < 1024 else INF,
    "tanh": math.tanh,
}
# The manual's tables of special operands: -infinity, -0, +0, +infinity. Subnormal operands with .ftz are as their zero.
SPECIAL = {
    "rcp": (-0.0, -INF, INF, 0.0),
    "sqrt": (NAN, -0.0, 0.0, INF),
    "rsqrt": (NAN, -INF, INF, 0.0),
    "sin": (NAN, -0.0, 0.0, NAN),
    "cos": (NAN, 1.0, 1.0, NAN),
    "lg2": (NAN, -INF, -INF, INF),
    "ex2": (0.0, 1.0, 1.0, INF),
    "tanh": (-1.0, -0.0, 0.0, 1.0),
}
FORMS = [(kind, "f32") for kind in FUNCTIONS] + [("ex2", "f16"), ("tanh", "f16"), ("tanh", "bf16")]


def _registers(words, name):
    return words if name == "bf16" else words.view({"f16": "f2", "f32": "f4"}[name])


@pytest.mark.parametrize(("kind", "name"), FORMS)
def test_near_the_exact_value(kind, name):
    words = reference.operands(name, 1, 2000, 1)[0]
    values = [value_of(int(word), name) for word in words]
    got = np.asarray(run(f"{kind}.approx.{name}", _registers(words, name)))
    results = [value_of(int(word), name) for word in got.view(words.dtype)]
    largest = float(reference.PARAMETERS[name][2])
    smallest = 2.0 ** (reference.PARAMETERS[name][1] - reference.PARAMETERS[name][0] + 1)
    for value, result in zip(values, results, strict=True):
        if not math.isfinite(value):
            continue
        wanted = FUNCTIONS[kind](value)
        if math.isnan(wanted):
            assert math.isnan(result)
        elif abs(wanted) > largest:
            assert result == math.copysign(INF, wanted) or abs(result) == largest
        else:
            # One rounding, and what the host's own function may be off.
            assert abs(result - wanted) <= max(abs(wanted) * 2.0 ** (1 - reference.PARAMETERS[name][0]), smallest)


@pytest.mark.parametrize(("kind", "name"), FORMS)
def test_special_operands(kind, name):
    words = np.array([word_of(value, name) for value in (-INF, -0.0, 0.0, INF, NAN)], reference.WORDS[name])
    got = np.asarray(run(f"{kind}.approx.{name}", _registers(words, name))).view(words.dtype).tolist()
    assert got == [word_of(value, name) for value in (*SPECIAL[kind], NAN)]
    if name == "f32":
        tiny = np.array([-1e-40, 1e-40], np.float32)
        flushed = run(f"{kind}.approx.ftz.f32", tiny).view(np.uint32).tolist()
        assert flushed == [word_of(value, name) for value in SPECIAL[kind][1:3]]


def test_subnormal_results():
    a = np.array([-126.5, -149, -151], np.float32)
    assert run("ex2.approx.f32", a).tolist() == [float(np.float32(2.0**-126.5)), 2.0**-149, 0]
    assert run("ex2.approx.ftz.f32", a).tolist() == [0, 0, 0]
    assert run("lg2.approx.f32", np.array([2.0**-140], np.float32)).tolist() == [-140]


@pytest.mark.parametrize("form", ["approx", "full"])
def test_quotients(form):
    words = reference.operands("f32", 2, 3000, 2)
    a, b = (array.view(np.float32) for array in words)
    got = run(f"div.{form}.f32", a, b).tolist()
    for x, y, result in zip(a.tolist(), b.tolist(), got, strict=True):
        if math.isnan(x) or math.isnan(y):
            assert math.isnan(result)
        elif form == "approx" and 2.0**126 < abs(y) < INF:
            # The manual: zero, and NaN for an infinite dividend.
            assert math.isnan(result) if math.isinf(x) else result == 0
        elif math.isfinite(x) and math.isfinite(y) and y != 0:
            assert result == rounded(Fraction(x) / Fraction(y), "f32", "rn")
    assert run(f"div.{form}.ftz.f32", np.array([1.0], np.float32), np.array([1e-40], np.float32)).tolist() == [INF]


def test_double_forms_keep_the_upper_half():
    a = np.array([3.0, -7.0, 1e-310, 0.0, INF])
    got = run("rcp.approx.ftz.f64", a)
    assert not (got.view(np.uint64) & np.uint64(0xFFFFFFFF)).any()
    np.testing.assert_allclose(got[:2], 1 / a[:2], rtol=2.0**-20)
    assert got[2:].tolist() == [INF, INF, 0]
    root = run("rsqrt.approx.ftz.f64", np.abs(a[:2]))
    np.testing.assert_allclose(root, 1 / np.sqrt(np.abs(a[:2])), rtol=2.0**-20)


def test_packed():
    low = np.array([0.5, -1, 3], np.float16)
    words = low.view(np.uint16).astype(np.uint32) * np.uint32(0x10001)
    for kind in ("ex2", "tanh"):
        got = run(f"{kind}.approx.f16x2", words)
        one = run(f"{kind}.approx.f16", low).view(np.uint16).astype(np.uint32)
        assert got.tolist() == (one * np.uint32(0x10001)).tolist()
