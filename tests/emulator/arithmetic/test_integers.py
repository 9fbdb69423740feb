"""Integer and bit instructions against Python's integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.emulator.arithmetic.reference import run

TYPES = ("u16", "u32", "u64", "s16", "s32", "s64")


def _bits(name):
    return int(name[1:])


def _dtype(name):
    return np.dtype(("i" if name[0] == "s" else "u") + str(_bits(name) // 8))


def _wrap(value, name):
    """A Python integer as the type holds it."""
    value &= (1 << _bits(name)) - 1
    return value - (1 << _bits(name)) if name[0] == "s" and value >> (_bits(name) - 1) else value


def _limit(value, name):
    low, high = _range(name)
    return min(max(value, low), high)


def _range(name):
    return (-(1 << (_bits(name) - 1)), (1 << (_bits(name) - 1)) - 1) if name[0] == "s" else (0, (1 << _bits(name)) - 1)


def _numbers(name, seed, size=600):
    """Numbers of the type: its ends, small ones, and random ones of random length."""
    generator = np.random.default_rng(seed)
    low, high = _range(name)
    ends = [low, low + 1, high, high - 1, 0, 1, 2, 3, 31, 32, 33, 63, 64, 65, 255, 256, high // 2, low // 2]
    numbers = []
    for _ in range(size):
        length = int(generator.integers(1, _bits(name) + 1))
        random = int.from_bytes(generator.bytes(8), "little") & ((1 << length) - 1)
        numbers.append(int(generator.choice(ends)) if generator.random() < 0.3 else _wrap(random, name))
    return [_limit(number, name) for number in numbers]


def _check(opcode, names, result, function, **options):
    """The operation of operands of the types `names` is `function` of Python integers, wrapped to the type `result`."""
    lists = [_numbers(name, seed) for seed, name in enumerate(names)]
    got = run(opcode, *(np.array(values, _dtype(name)) for values, name in zip(lists, names, strict=True)), **options)
    for row, value in zip(zip(*lists, strict=True), got.tolist(), strict=True):
        wanted = _wrap(function(*row), result)
        assert value == wanted, f"{opcode}{row} gives {value}, not {wanted}"


def _quotient(a, b):
    return -1 if b == 0 else abs(a) // abs(b) * (-1 if (a < 0) != (b < 0) else 1)


def _remainder(a, b):
    return -1 if b == 0 else abs(a) % abs(b) * (-1 if a < 0 else 1)


@pytest.mark.parametrize("name", TYPES)
def test_arithmetic(name):
    two, three = [name] * 2, [name] * 3
    bits = _bits(name)
    _check(f"add.{name}", two, name, lambda a, b: a + b)
    _check(f"sub.{name}", two, name, lambda a, b: a - b)
    _check(f"mul.lo.{name}", two, name, lambda a, b: a * b)
    _check(f"mul.hi.{name}", two, name, lambda a, b: a * b >> bits)
    _check(f"mad.lo.{name}", three, name, lambda a, b, c: a * b + c)
    _check(f"mad.hi.{name}", three, name, lambda a, b, c: (a * b >> bits) + c)
    _check(f"sad.{name}", three, name, lambda a, b, c: abs(a - b) + c)
    _check(f"div.{name}", two, name, _quotient)
    _check(f"rem.{name}", two, name, _remainder)
    _check(f"min.{name}", two, name, min)
    _check(f"max.{name}", two, name, max)
    if bits < 64:
        wide = f"{name[0]}{2 * bits}"
        _check(f"mul.wide.{name}", two, wide, lambda a, b: a * b)
        _check(f"mad.wide.{name}", [*two, wide], wide, lambda a, b, c: a * b + c)
    if name[0] == "s":
        _check(f"neg.{name}", [name], name, lambda a: -a)
        _check(f"abs.{name}", [name], name, abs)


def test_saturated():
    _check("add.sat.s32", ["s32"] * 2, "s32", lambda a, b: _limit(a + b, "s32"))
    _check("sub.sat.s32", ["s32"] * 2, "s32", lambda a, b: _limit(a - b, "s32"))
    _check("mad.hi.sat.s32", ["s32"] * 3, "s32", lambda a, b, c: _limit((a * b >> 32) + c, "s32"))
    _check("min.relu.s32", ["s32"] * 2, "s32", lambda a, b: max(min(a, b), 0))
    _check("max.relu.s32", ["s32"] * 2, "s32", lambda a, b: max(a, b, 0))


def test_24_bits():
    def low(value, signed):
        value &= 0xFFFFFF
        return value - (1 << 24) if signed and value >> 23 else value

    for name in ("u32", "s32"):
        signed = name == "s32"

        def product(a, b, signed=signed):
            return low(a, signed) * low(b, signed)

        _check(f"mul24.lo.{name}", [name] * 2, name, product)
        _check(f"mul24.hi.{name}", [name] * 2, name, lambda a, b, product=product: product(a, b) >> 16)
        _check(f"mad24.lo.{name}", [name] * 3, name, lambda a, b, c, product=product: product(a, b) + c)
    _check("mad24.hi.sat.s32", ["s32"] * 3, "s32", lambda a, b, c: _limit((low(a, 1) * low(b, 1) >> 16) + c, "s32"))


@pytest.mark.parametrize("name", ["u16x2", "s16x2"])
def test_packed(name):
    half = name.removesuffix("x2")
    lists = [[_numbers(half, seed) for seed in seeds] for seeds in ((1, 2), (3, 4))]
    words = [
        np.array([(low & 0xFFFF) | (high & 0xFFFF) << 16 for low, high in zip(*pair, strict=True)], np.uint32)
        for pair in lists
    ]
    functions = {f"add.{name}": lambda a, b: a + b, f"min.{name}": min, f"max.{name}": max}
    if name == "s16x2":
        functions["max.relu.s16x2"] = lambda a, b: max(a, b, 0)
    for opcode, function in functions.items():
        got = run(opcode, *words)
        for place in range(2):
            for a, b, word in zip(lists[0][place], lists[1][place], got.tolist(), strict=True):
                assert _wrap(word >> 16 * place, half) == _wrap(function(a, b), half)


@settings(max_examples=200, deadline=None)
@given(*[st.integers(0, (1 << 128) - 1)] * 2, st.sampled_from(["u32", "s32", "u64"]))
def test_carries_add_up(a, b, name):
    """Sums and differences of 128 bits, a word at a time."""
    bits, dtype = _bits(name), _dtype(name)
    words = [[_wrap(value >> place, name) for place in range(0, 128, bits)] for value in (a, b)]
    for first, others, wanted in (("add", "addc", a + b), ("sub", "subc", a - b)):
        # After a difference the flag says that there was no borrow.
        flag = (wanted >> 128 != 0) == (first == "add")
        total, carry = 0, None
        for index, (x, y) in enumerate(zip(*words, strict=True)):
            operands = [np.array([x], dtype), np.array([y], dtype)]
            opcode = f"{first if carry is None else others}.cc.{name}"
            result, carry = run(opcode, *operands, *([] if carry is None else [carry]))
            total |= (int(result[0]) & ((1 << bits) - 1)) << bits * index
        assert total == wanted & ((1 << 128) - 1)
        assert bool(carry[0]) == flag


@settings(max_examples=200, deadline=None)
@given(*[st.integers(0, (1 << 32) - 1)] * 4)
def test_carry_of_a_difference_in_a_sum(a, b, c, d):
    """As a GPU: a difference leaves 1 without a borrow, and `subc` takes one off where the flag is 0."""
    a, b, c, d = (np.array([value], np.uint32) for value in (a, b, c, d))
    _, carry = run("sub.cc.u32", a, b)
    assert int(carry[0]) == (a[0] >= b[0])
    for opcode, operands, plain in (
        ("addc.u32", (c, d), int(c[0]) + int(d[0])),
        ("madc.lo.u32", (c, d, a), int(c[0]) * int(d[0]) + int(a[0])),
    ):
        assert int(run(opcode, *operands, carry)[0]) == (plain + int(carry[0])) % (1 << 32)
    total, carry = run("add.cc.u32", a, b)
    assert int(total[0]) + (int(carry[0]) << 32) == int(a[0]) + int(b[0])
    assert int(run("subc.u32", c, d, carry)[0]) == (int(c[0]) - int(d[0]) - 1 + int(carry[0])) % (1 << 32)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 64) - 1))
def test_long_product(a, b):
    """64 by 64 bits from 32-bit words, as compilers write it with mad.cc and madc."""
    x, y = ([np.array([value >> place & 0xFFFFFFFF], np.uint32) for place in (0, 32)] for value in (a, b))
    r0 = run("mul.lo.u32", x[0], y[0])
    r1 = run("mul.hi.u32", x[0], y[0])
    r1, carry = run("mad.lo.cc.u32", x[0], y[1], r1)
    r2 = run("madc.hi.u32", x[0], y[1], np.zeros(1, np.uint32), carry)
    r1, carry = run("mad.lo.cc.u32", x[1], y[0], r1)
    r2, carry = run("madc.hi.cc.u32", x[1], y[0], r2, carry)
    r3 = run("addc.u32", np.zeros(1, np.uint32), np.zeros(1, np.uint32), carry)
    r2, carry = run("mad.lo.cc.u32", x[1], y[1], r2)
    r3 = run("madc.hi.u32", x[1], y[1], r3, carry)
    assert sum(int(word[0]) << 32 * index for index, word in enumerate((r0, r1, r2, r3))) == a * b


def _bytes(value, signed, count=4, width=8):
    mask = (1 << width) - 1
    parts = [value >> width * index & mask for index in range(count)]
    return [part - (1 << width) if signed and part >> width - 1 else part for part in parts]


@pytest.mark.parametrize("a_type", ["u32", "s32"])
@pytest.mark.parametrize("b_type", ["u32", "s32"])
def test_dot_products(a_type, b_type):
    result = "u32" if a_type == b_type == "u32" else "s32"

    def four(a, b, c):
        return c + sum(x * y for x, y in zip(_bytes(a, a_type == "s32"), _bytes(b, b_type == "s32"), strict=True))

    _check(f"dp4a.{a_type}.{b_type}", [a_type, b_type, result], result, four)
    for part, first in (("lo", 0), ("hi", 2)):

        def two(a, b, c, first=first):
            halves = _bytes(a, a_type == "s32", 2, 16)
            return c + sum(x * y for x, y in zip(halves, _bytes(b, b_type == "s32")[first : first + 2], strict=True))

        _check(f"dp2a.{part}.{a_type}.{b_type}", [a_type, b_type, result], result, two)


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_logic_and_shifts(bits):
    name, signed = f"u{bits}", f"s{bits}"
    _check(f"and.b{bits}", [name] * 2, name, lambda a, b: a & b)
    _check(f"or.b{bits}", [name] * 2, name, lambda a, b: a | b)
    _check(f"xor.b{bits}", [name] * 2, name, lambda a, b: a ^ b)
    _check(f"not.b{bits}", [name], name, lambda a: ~a)
    _check(f"cnot.b{bits}", [name], name, lambda a: int(a == 0))
    _check(f"shl.b{bits}", [name, "u32"], name, lambda a, b: a << min(b, bits))
    _check(f"shr.b{bits}", [name, "u32"], name, lambda a, b: a >> min(b, bits))
    _check(f"shr.u{bits}", [name, "u32"], name, lambda a, b: a >> min(b, bits))
    _check(f"shr.s{bits}", [signed, "u32"], signed, lambda a, b: a >> min(b, bits))


def test_predicates():
    a = np.array([False, False, True, True])
    b = np.array([False, True, False, True])
    assert run("and.pred", a, b).tolist() == [False, False, False, True]
    assert run("or.pred", a, b).tolist() == [False, True, True, True]
    assert run("xor.pred", a, b).tolist() == [False, True, True, False]
    assert run("not.pred", a).tolist() == [True, True, False, False]
    assert run("mov.pred", a).tolist() == a.tolist()


def test_funnel_shifts():
    for mode, amount in (("clamp", lambda c: min(c, 32)), ("wrap", lambda c: c & 31)):
        _check(f"shf.l.{mode}.b32", ["u32"] * 3, "u32", lambda a, b, c, f=amount: ((b << 32 | a) << f(c)) >> 32)
        _check(f"shf.r.{mode}.b32", ["u32"] * 3, "u32", lambda a, b, c, f=amount: (b << 32 | a) >> f(c))


@pytest.mark.parametrize("table", [0x00, 0xFF, 0x80, 0xFE, 0x96, 0xE8, 0xCA, 0x1B])
def test_lookup(table):
    a, b, c = (np.array(_numbers("u32", seed), np.uint32) for seed in range(3))
    got, differs = run("lop3.or.b32", a, b, c, np.uint32(table), np.zeros(len(a), bool), destinations=2)
    np.testing.assert_array_equal(got, run("lop3.b32", a, b, c, np.uint32(table)) | np.zeros(len(a), np.uint32))
    for x, y, z, word, some in zip(*(v.tolist() for v in (a, b, c, got, differs)), strict=True):
        wanted = sum((table >> ((x >> i & 1) << 2 | (y >> i & 1) << 1 | (z >> i & 1)) & 1) << i for i in range(32))
        assert word == wanted
        assert some == (wanted != 0)


@pytest.mark.parametrize("bits", [32, 64])
def test_counts(bits):
    name, signed = f"u{bits}", f"s{bits}"
    none = 0xFFFFFFFF
    _check(f"popc.b{bits}", [name], "u32", lambda a: a.bit_count())
    _check(f"clz.b{bits}", [name], "u32", lambda a: bits - a.bit_length())
    _check(f"brev.b{bits}", [name], name, lambda a: int(f"{a:0{bits}b}"[::-1], 2))

    def length(a):
        return (a if a >= 0 else ~a).bit_length()

    for kind in (name, signed):
        _check(f"bfind.{kind}", [kind], "u32", lambda a: length(a) - 1)
        _check(f"bfind.shiftamt.{kind}", [kind], "u32", lambda a: bits - length(a) if length(a) else none)


@pytest.mark.parametrize("bits", [32, 64])
def test_fields(bits):
    """bfe and bfi, bit by bit as the manual's loop has it; of 64-bit words all of a place's and length's bits count."""

    def kept(amount):
        return amount & 255 if bits == 32 else min(amount, bits)

    def extract(a, position, length, signed):
        position, length, top = kept(position), kept(length), bits - 1
        word = a & ((1 << bits) - 1)
        sign = word >> min(position + length - 1, top) & 1 if signed and length else 0
        return sum((word >> position + i & 1 if i < length and position + i <= top else sign) << i for i in range(bits))

    def insert(a, b, position, length):
        position, length = kept(position), kept(length)
        for i in range(length):
            if position + i < bits:
                b = b & ~(1 << position + i) | (a >> i & 1) << position + i
        return b

    _check(f"bfe.u{bits}", [f"u{bits}", "u32", "u32"], f"u{bits}", lambda a, b, c: extract(a, b, c, False))
    _check(f"bfe.s{bits}", [f"s{bits}", "u32", "u32"], f"s{bits}", lambda a, b, c: extract(a, b, c, True))
    _check(f"bfi.b{bits}", [f"u{bits}", f"u{bits}", "u32", "u32"], f"u{bits}", insert)


def test_masks_and_extensions():
    for mode, amount in (("clamp", lambda value: min(value, 32)), ("wrap", lambda value: value & 31)):

        def mask(a, b, amount=amount):
            return sum(1 << i for i in range(32) if amount(a) <= i < amount(a) + amount(b))

        def extend(a, b, amount=amount):
            count = amount(b)
            kept = a & ((1 << count) - 1)
            return kept - (1 << count) if count and kept >> count - 1 else kept

        _check(f"bmsk.{mode}.b32", ["u32"] * 2, "u32", mask)
        _check(f"szext.{mode}.s32", ["s32", "u32"], "s32", extend)
        _check(f"szext.{mode}.u32", ["u32"] * 2, "u32", lambda a, b, f=amount: a & ((1 << f(b)) - 1))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, (1 << 32) - 1), st.integers(0, 31), st.integers(-33, 33))
def test_nth_bit(mask, base, offset):
    if offset == 0:
        wanted = base if mask >> base & 1 else 0xFFFFFFFF
    else:
        places = range(base, 32) if offset > 0 else range(base, -1, -1)
        found = [place for place in places if mask >> place & 1]
        wanted = found[abs(offset) - 1] if len(found) >= abs(offset) else 0xFFFFFFFF
    operands = (np.array([mask], np.uint32), np.array([base], np.uint32), np.array([offset], np.int32))
    assert run("fns.b32", *operands).tolist() == [wanted]


def _chosen(a, b, nibbles):
    source = (b << 32 | a).to_bytes(8, "little")
    result = 0
    for index, nibble in enumerate(nibbles):
        byte = source[nibble & 7]
        result |= (0xFF * (byte >> 7) if nibble & 8 else byte) << 8 * index
    return result


# Rows of the manual's tables, the highest byte first.
@pytest.mark.parametrize(
    ("mode", "rows"),
    [
        ("f4e", ("3210", "4321", "5432", "6543")),
        ("b4e", ("5670", "6701", "7012", "0123")),
        ("rc8", ("0000", "1111", "2222", "3333")),
        ("ecl", ("3210", "3211", "3222", "3333")),
        ("ecr", ("0000", "1110", "2210", "3210")),
        ("rc16", ("1010", "3232", "1010", "3232")),
    ],
)
def test_permute_modes(mode, rows):
    _check(
        f"prmt.b32.{mode}", ["u32"] * 3, "u32", lambda a, b, c: _chosen(a, b, [int(x) for x in reversed(rows[c & 3])])
    )


def test_permute():
    _check("prmt.b32", ["u32"] * 3, "u32", lambda a, b, c: _chosen(a, b, [c >> 4 * i & 15 for i in range(4)]))
    a, b = (np.array(_numbers("u32", seed), np.uint32) for seed in (1, 2))
    assert run("prmt.b32", a, b, np.uint32(0x3210)).tolist() == a.tolist()
    assert run("prmt.b32", a, b, np.uint32(0x7654)).tolist() == b.tolist()
