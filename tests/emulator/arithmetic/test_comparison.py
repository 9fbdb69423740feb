"""Comparisons and selections against Python's own."""

from __future__ import annotations

import math
import operator

import numpy as np
import pytest

from tests.emulator.arithmetic import reference
from tests.emulator.arithmetic.reference import WORDS, run, value_of

ORDERED = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
COMBINE = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}


def _registers(words, name):
    return words if name == "bf16" else words.view(WORDS[name].replace("u", "f"))


def _truth(kind, a, b):
    unordered = math.isnan(a) or math.isnan(b)
    if kind == "num":
        return not unordered
    if kind == "nan":
        return unordered
    if kind in ORDERED:
        return not unordered and ORDERED[kind](a, b)
    return unordered or ORDERED[kind[:-1]](a, b)


FLOAT_KINDS = [*ORDERED, *(f"{kind}u" for kind in ORDERED), "num", "nan"]


@pytest.mark.parametrize("name", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("kind", FLOAT_KINDS)
def test_floats(kind, name):
    words = reference.operands(name, 2, 400, 1)
    words[1][::5] = words[0][::5]
    a, b = (_registers(array, name) for array in words)
    wanted = [_truth(kind, *(value_of(int(word), name) for word in row)) for row in zip(*words, strict=True)]
    assert run(f"setp.{kind}.{name}", a, b).tolist() == wanted
    mask = np.arange(400) % 3 == 0
    for word, function in COMBINE.items():
        p, q = run(f"setp.{kind}.{word}.{name}", a, b, mask, destinations=2)
        assert p.tolist() == [function(x, bool(c)) for x, c in zip(wanted, mask, strict=True)]
        assert q.tolist() == [function(not x, bool(c)) for x, c in zip(wanted, mask, strict=True)]
        np.testing.assert_array_equal(run(f"setp.{kind}.{word}.{name}", a, b, mask), p)
    assert run(f"set.{kind}.u32.{name}", a, b).tolist() == [0xFFFFFFFF if x else 0 for x in wanted]
    assert run(f"set.{kind}.s32.{name}", a, b).tolist() == [-1 if x else 0 for x in wanted]
    if name == "f32":
        assert run(f"set.{kind}.f32.f32", a, b).tolist() == [float(x) for x in wanted]


@pytest.mark.parametrize("name", ["u16", "s16", "u32", "s32", "u64", "s64", "b16", "b32", "b64"])
def test_integers(name):
    dtype = np.dtype(("i" if name[0] == "s" else "u") + str(int(name[1:]) // 8))
    generator = np.random.default_rng(2)
    a, b = (generator.integers(0, 256, 400 * dtype.itemsize, np.uint8).view(dtype) for _ in range(2))
    b[::5] = a[::5]
    kinds = dict(ORDERED)
    if name[0] == "u":
        kinds |= {"lo": operator.lt, "ls": operator.le, "hi": operator.gt, "hs": operator.ge}
    if name[0] == "b":
        kinds = {kind: ORDERED[kind] for kind in ("eq", "ne")}
    for kind, function in kinds.items():
        wanted = [function(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
        assert run(f"setp.{kind}.{name}", a, b).tolist() == wanted
        assert run(f"set.{kind}.u32.{name}", a, b).tolist() == [0xFFFFFFFF if x else 0 for x in wanted]


def test_subnormal_operands_compared_as_zero():
    tiny = np.array([1e-40, -1e-40, 2.0**-127], np.float32)
    zero = np.zeros(3, np.float32)
    assert run("setp.eq.f32", tiny, zero).tolist() == [False] * 3
    assert run("setp.eq.ftz.f32", tiny, zero).tolist() == [True] * 3
    assert run("setp.ne.ftz.f32", np.full(1, 2.0**-126, np.float32), np.zeros(1, np.float32)).tolist() == [True]
    assert run("setp.gt.ftz.f16", np.full(1, 2.0**-15, np.float16), np.zeros(1, np.float16)).tolist() == [False]


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_packed(name):
    low, high = (reference.operands(name, 2, 300, seed) for seed in (3, 4))
    packed = [x.astype(np.uint32) | y.astype(np.uint32) << np.uint32(16) for x, y in zip(low, high, strict=True)]
    p, q = run(f"setp.ltu.{name}x2", *packed, destinations=2)
    first = run(f"setp.ltu.{name}", *(_registers(words, name) for words in low))
    second = run(f"setp.ltu.{name}", *(_registers(words, name) for words in high))
    np.testing.assert_array_equal(p, first)
    np.testing.assert_array_equal(q, second)
    one = {"f16": 0x3C00, "bf16": 0x3F80}[name]
    got = run(f"set.ltu.{name}x2.{name}x2", *packed)
    np.testing.assert_array_equal(got, (first * np.uint32(one)) | (second * np.uint32(one)) << np.uint32(16))
    masks = run(f"set.ltu.u32.{name}x2", *packed)
    np.testing.assert_array_equal(masks, (first * np.uint32(0xFFFF)) | (second * np.uint32(0xFFFF)) << np.uint32(16))


@pytest.mark.parametrize("name", ["b16", "u32", "s64", "b64", "f32", "f64", "f16"])
def test_selection(name):
    size = int(name[1:]) // 8
    dtype = np.dtype({"f": "f", "s": "i"}.get(name[0], "u") + str(size))
    a, b = np.arange(8).astype(dtype), np.arange(8, 16).astype(dtype)
    mask = np.arange(8) % 3 == 1
    assert run(f"selp.{name}", a, b, mask).tolist() == [x if c else y for x, y, c in zip(a, b, mask, strict=True)]


def test_selection_by_sign():
    a, b = np.arange(6, dtype=np.uint32), np.arange(6, 12, dtype=np.uint32)
    by = np.array([0.0, -0.0, 1.0, -1.0, np.nan, -1e-40], np.float32)
    assert run("slct.u32.f32", a, b, by).tolist() == [0, 1, 2, 9, 10, 11]
    assert run("slct.ftz.u32.f32", a, b, by).tolist() == [0, 1, 2, 9, 10, 5]
    whole = np.array([0, 1, -1, 5, -5, 7], np.int32)
    assert run("slct.b32.s32", a, b, whole).tolist() == [0, 1, 8, 3, 10, 5]
