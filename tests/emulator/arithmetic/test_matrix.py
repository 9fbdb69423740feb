"""mma.sync against matrices spread over the lanes by the manual's formulas, an element at a time."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neutrino.emulator.arithmetic import find_matrix_operation, find_operation
from neutrino.emulator.arithmetic.accumulation import chained_sum, cut_sum
from tests.emulator.arithmetic.reference import rounded, run

BITS = {"f64": 64, "f32": 32, "s32": 32, "tf32": 32, "f16": 16, "bf16": 16, "e4m3": 8, "e5m2": 8}
BITS |= {"s8": 8, "u8": 8, "s4": 4, "u4": 4, "b1": 1}


def place_a(lane, i, m, k, bits):
    """Row and column of element i of a lane's fragment, PTX ISA 9.7.15.5, the formulas of each shape."""
    group, thread = lane >> 2, lane % 4
    if m == 8:
        per_lane = k // 4
        return group, thread * per_lane + i
    if bits >= 32:
        return group + 8 * (i % 2), thread + 4 * (i // 2)
    if bits == 16:
        return group + (8 if i in (2, 3, 6, 7) else 0), thread * 2 + (i & 1) + (8 if i >= 4 else 0)
    if bits == 8:
        return group + (8 if 4 <= i < 8 or i >= 12 else 0), thread * 4 + (i & 3) + (16 if i >= 8 else 0)
    if bits == 4:
        return group + (8 if 8 <= i < 16 or i >= 24 else 0), thread * 8 + (i & 7) + (32 if i >= 16 else 0)
    return group + (8 if 32 <= i < 64 or i >= 96 else 0), thread * 32 + (i & 31) + (128 if i >= 64 else 0)


def place_b(lane, i, m, k, bits):
    group, thread = lane >> 2, lane % 4
    if m == 8:
        return thread * (k // 4) + i, group
    if bits >= 32:
        return thread + 4 * i, group
    if bits == 16:
        return thread * 2 + (i & 1) + (8 if i >= 2 else 0), group
    if bits == 8:
        return thread * 4 + (i & 3) + (16 if i >= 4 else 0), group
    if bits == 4:
        return thread * 8 + (i & 7) + (32 if i >= 8 else 0), group
    return thread * 32 + (i & 31) + (128 if i >= 32 else 0), group


def place_c(lane, i):
    return (lane >> 2) + (8 if i >= 2 else 0), (lane % 4) * 2 + (i & 1)


def to_words(name, values):
    """The elements of each lane [..., n] as 32-bit words, the first element lowest."""
    if name == "b1":
        return np.packbits(values.astype(np.uint8), axis=-1, bitorder="little").view(np.uint32)
    if name in ("s4", "u4"):
        nibbles = values.astype(np.int64).astype(np.uint8) & 15
        return np.ascontiguousarray(nibbles[..., ::2] | nibbles[..., 1::2] << 4).view(np.uint32)
    if name in ("e4m3", "e5m2"):
        flat = values.astype(np.float32).reshape(-1)
        packed = run(f"cvt.rn.satfinite.{name}x2.f32", flat[1::2], flat[::2])
        return packed.view(np.uint32).reshape(*values.shape[:-1], -1)
    if name == "bf16":
        upper = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return np.ascontiguousarray(upper).view(np.uint32)
    dtype = {"f16": "f2", "tf32": "f4", "f32": "f4", "f64": "f8", "s8": "i1", "u8": "u1", "s32": "i4"}[name]
    return np.ascontiguousarray(values.astype(dtype)).view(np.uint32)


def from_words(name, words):
    dtype = {"f16": "f2", "f32": "f4", "f64": "f8", "s32": "i4"}[name]
    return np.ascontiguousarray(words).view(dtype)


def small_numbers(generator, name, shape):
    """Whole numbers that the type holds."""
    if name == "b1":
        return generator.integers(0, 2, shape)
    low, high = {"u8": (0, 256), "s8": (-128, 128), "u4": (0, 16), "s4": (-8, 8)}.get(name, (-6, 7))
    return generator.integers(low, high, shape)


def spread(matrices, place, count):
    """[warps, rows, columns] -> [warps, 32, count]."""
    result = np.empty((len(matrices), 32, count), matrices.dtype)
    for lane in range(32):
        for i in range(count):
            row, column = place(lane, i)
            result[:, lane, i] = matrices[:, row, column]
    return result


CASES = [
    *((shape, d, "f16", "f16") for shape in ("m16n8k8", "m16n8k16") for d in ("f16", "f32")),
    *((shape, "f32", "bf16", "bf16") for shape in ("m16n8k8", "m16n8k16")),
    *((shape, "f32", "tf32", "tf32") for shape in ("m16n8k4", "m16n8k8")),
    *((shape, "f64", "f64", "f64") for shape in ("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16")),
    *((shape, "f32", a, b) for shape in ("m16n8k16", "m16n8k32") for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")),
    *(
        (shape, "s32", a, b)
        for shape in ("m8n8k16", "m16n8k16", "m16n8k32")
        for a in ("s8", "u8")
        for b in ("s8", "u8")
    ),
    *(
        (shape, "s32", a, b)
        for shape in ("m8n8k32", "m16n8k32", "m16n8k64")
        for a in ("s4", "u4")
        for b in ("s4", "u4")
    ),
]


@pytest.mark.parametrize(("shape", "d", "a", "b"), CASES)
def test_products(shape, d, a, b):
    m, n, k = (int(part) for part in shape.replace("n", " ").replace("k", " ")[1:].split())
    generator = np.random.default_rng(1)
    left, right = small_numbers(generator, a, (3, m, k)), small_numbers(generator, b, (3, k, n))
    accumulator = generator.integers(-9, 10, (3, m, n))
    operation = find_matrix_operation(f"mma.sync.aligned.{shape}.row.col.{d}.{a}.{b}.{d}")
    a_words = to_words(a, spread(left, lambda lane, i: place_a(lane, i, m, k, BITS[a]), m * k // 32))
    b_words = to_words(b, spread(right, lambda lane, i: place_b(lane, i, m, k, BITS[b]), k * n // 32))
    c_words = to_words(d, spread(accumulator, place_c, m * n // 32))
    assert (operation.a, operation.b, operation.c) == (a_words.shape[2], b_words.shape[2], c_words.shape[2])
    got = operation.function(a_words, b_words, c_words)
    assert got.dtype == np.uint32
    assert got.shape == (3, 32, operation.d)
    wanted = spread(left @ right + accumulator, place_c, m * n // 32)
    np.testing.assert_array_equal(from_words(d, got), wanted)


@pytest.mark.parametrize("shape", ["m8n8k128", "m16n8k128", "m16n8k256"])
@pytest.mark.parametrize("bits", ["and", "xor"])
def test_single_bits(shape, bits):
    m, n, k = (int(part) for part in shape.replace("n", " ").replace("k", " ")[1:].split())
    generator = np.random.default_rng(2)
    left, right = generator.integers(0, 2, (2, m, k)), generator.integers(0, 2, (2, k, n))
    accumulator = generator.integers(-9, 10, (2, m, n))
    pairs = (left[:, :, None, :], right.transpose(0, 2, 1)[:, None, :, :])
    counts = (pairs[0] & pairs[1] if bits == "and" else pairs[0] ^ pairs[1]).sum(-1)
    operation = find_matrix_operation(f"mma.sync.aligned.{shape}.row.col.s32.b1.b1.s32.{bits}.popc")
    got = operation.function(
        to_words("b1", spread(left, lambda lane, i: place_a(lane, i, m, k, 1), m * k // 32)),
        to_words("b1", spread(right, lambda lane, i: place_b(lane, i, m, k, 1), k * n // 32)),
        to_words("s32", spread(accumulator, place_c, m * n // 32)),
    )
    np.testing.assert_array_equal(from_words("s32", got), spread(counts + accumulator, place_c, m * n // 32))


@pytest.mark.parametrize("order_a", ["row", "col"])
@pytest.mark.parametrize("order_b", ["row", "col"])
@pytest.mark.parametrize(("d", "c"), [("f16", "f16"), ("f32", "f32"), ("f32", "f16")])
def test_four_products_of_quad_pairs(order_a, order_b, d, c):
    generator = np.random.default_rng(3)
    left, right = generator.integers(-6, 7, (2, 4, 8, 4)), generator.integers(-6, 7, (2, 4, 4, 8))
    accumulator = generator.integers(-9, 10, (2, 4, 8, 8))

    def element_a(lane, i):
        high = 4 if lane >= 16 else 0
        return (lane % 4 + high, i) if order_a == "row" else (i % 4 + high, lane % 4)

    def element_b(lane, i):
        high = 4 if lane >= 16 else 0
        return (lane % 4, i + high) if order_b == "row" else (i, lane % 4 + high)

    def element_c(name):
        def halves(lane, i):
            return lane % 4 + (4 if lane >= 16 else 0), i

        def words(lane, i):
            return (lane & 1) + (i & 2) + (4 if lane >= 16 else 0), (i & 4) + (lane & 2) + (i & 1)

        return halves if name == "f16" else words

    def spread_pairs(matrices, place, count):
        result = np.empty((2, 32, count), matrices.dtype)
        for lane in range(32):
            for i in range(count):
                row, column = place(lane, i)
                result[:, lane, i] = matrices[:, lane % 16 // 4, row, column]
        return result

    operation = find_matrix_operation(f"mma.sync.aligned.m8n8k4.{order_a}.{order_b}.{d}.f16.f16.{c}")
    got = operation.function(
        to_words("f16", spread_pairs(left, element_a, 4)),
        to_words("f16", spread_pairs(right, element_b, 4)),
        to_words(c, spread_pairs(accumulator, element_c(c), 8)),
    )
    wanted = spread_pairs(left @ right + accumulator, element_c(d), 8)
    np.testing.assert_array_equal(from_words(d, got), wanted)


def test_integers_wrap_or_saturate():
    a, b = np.full((1, 32, 2), 0x7F7F7F7F, np.uint32), np.full((1, 32, 1), 0x7F7F7F7F, np.uint32)
    c = np.full((1, 32, 4), 0x7FFFFFFF, np.uint32)
    opcode = "mma.sync.aligned.m16n8k16.row.col{}.s32.s8.s8.s32"
    wrapped = find_matrix_operation(opcode.format("")).function(a, b, c)
    assert set(wrapped.view(np.int32).ravel().tolist()) == {0x7FFFFFFF + 16 * 127 * 127 - (1 << 32)}
    held = find_matrix_operation(opcode.format(".satfinite")).function(a, b, c)
    assert set(held.view(np.int32).ravel().tolist()) == {0x7FFFFFFF}


def test_sums_are_cut():
    """What tensor cores drop of a sum, and the canonical NaN."""
    a, b = np.zeros((1, 32, 2), np.float32), np.zeros((1, 32, 1), np.float32)
    c = np.full((1, 32, 4), np.float32(2.0**11), np.float32)
    operation = find_matrix_operation("mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32")

    def first(left, right):
        a[:, :, 0], b[:] = left, right
        with np.errstate(invalid="ignore"):
            return operation.function(a.view(np.uint32), b.view(np.uint32), c.view(np.uint32)).view(np.float32)[0, 0, 0]

    above = np.nextafter(np.float32(2.0**11), np.float32(np.inf))
    # Four products of 2**-14 are the last place of 2**11: each is two places below it, and still counts.
    assert first(1, 2.0**-14) == above
    assert first(1 + 2.0**-10, 2.0**-15) == 2.0**11
    # Below the 25th place none counts, however many there are.
    assert first(1.75, 2.0**-15) == 2.0**11
    assert first(-1, 2.0**-14) == 2.0**11 - 2.0**-12
    assert first(-1, 2.0**-15) == 2.0**11
    assert first(np.inf, 0).view(np.uint32) == 0x7FFFFFFF
    assert first(np.inf, 1) == np.inf


def _place(value):
    """The exponent of the highest bit of a number that is not zero."""
    return math.frexp(value)[1] - 1


def _as_tensor_cores_add(products, factors, start):
    """The sum of fractions cut off 25 places below the largest, factor by factor, and again at 24 bits."""
    places = [_place(x) + _place(y) for x, y in factors if x and y] + ([_place(start)] if start else [])
    if not places:
        return 0.0
    unit = Fraction(2) ** (max(places) - 25)
    total = sum(math.trunc(value / unit) for value in [*products, Fraction(start)]) * unit
    return rounded(total, "f32", "rz")


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(*[st.floats(-60000, 60000, width=16, allow_subnormal=False)] * 2), min_size=16, max_size=16),
    st.floats(-1e6, 1e6, width=32, allow_subnormal=False),
)
def test_one_sum(factors, start):
    a, b = (np.array([[row]], np.float64) for row in zip(*factors, strict=True))
    got = cut_sum(a, np.swapaxes(b, 1, 2), np.array([[[start]]], np.float64))[0, 0, 0]
    products = [Fraction(x) * Fraction(y) for x, y in factors]
    assert got == _as_tensor_cores_add(products, factors, start)
    chained = Fraction(0)
    for product in products:
        chained = Fraction(rounded(chained + product, "f32", "rn"))
    got = chained_sum(a, np.swapaxes(b, 1, 2), np.array([[[start]]], np.float64))[0, 0, 0]
    assert got == rounded(chained + Fraction(start), "f32", "rn")


@pytest.mark.parametrize(
    ("opcode", "what"),
    [
        ("mma.sync.aligned.m16n8k16.col.col.f32.f16.f16.f32", "row.col"),
        ("mma.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32", "shape"),
        ("mma.sync.aligned.m16n8k16.row.col.f16.bf16.bf16.f16", "accumulators"),
        ("mma.sync.aligned.m16n8k16.row.col.s32.s8.u4.s32", "together"),
        ("mma.sync.aligned.m16n8k128.row.col.s32.b1.b1.s32", "popc"),
        ("mma.sync.aligned.m16n8k16.row.col.kind.f32.f16.f16.f32", "kind"),
    ],
)
def test_unknown_forms_are_named(opcode, what):
    with pytest.raises(ValueError, match=what):
        find_matrix_operation(opcode)


def test_other_instructions_are_none():
    assert find_matrix_operation("add.f32") is None
    assert find_operation("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32") is None
