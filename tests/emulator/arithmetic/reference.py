"""What IEEE 754 and the PTX ISA say, computed one number at a time with Python's integers and fractions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from neutrino.emulator.arithmetic import find_operation

# name: significant bits, exponent of the smallest normal number, largest finite value, word of a NaN result.
PARAMETERS: dict[str, tuple[int, int, Fraction, int]] = {
    "f16": (11, -14, Fraction(65504), 0x7FFF),
    "bf16": (8, -126, Fraction((2**8 - 1) * 2**120), 0x7FFF),
    "f32": (24, -126, Fraction((2**24 - 1) * 2**104), 0x7FFFFFFF),
    # What .ftz looks at: f32 with exponents without a lower end.
    "f32.ftz": (24, -100000, Fraction((2**24 - 1) * 2**104), 0x7FFFFFFF),
    "f64": (53, -1022, Fraction((2**53 - 1) * 2**971), 0xFFF8000000000000),
    "tf32": (11, -126, Fraction((2**11 - 1) * 2**117), 0x7FFFE000),
    "e4m3": (4, -6, Fraction(448), 0x7F),
    "e5m2": (3, -14, Fraction(57344), 0x7F),
    "e2m1": (2, 0, Fraction(6), 0x7),
    "e2m3": (4, 0, Fraction(15, 2), 0x1F),
    "e3m2": (3, -2, Fraction(28), 0x1F),
}
WORDS = {"f16": "u2", "bf16": "u2", "f32": "u4", "f64": "u8"}


def run(opcode: str, *operands: Any, destinations: int = 1, sources: int = 0) -> Any:
    """The operation's result for arrays (or scalars) of its types; its promises about types are checked."""
    operation = find_operation(opcode, destinations, sources)
    assert operation is not None, opcode
    arrays = []
    for operand, dtype in zip(operands, operation.inputs, strict=True):
        value = operand if isinstance(operand, np.generic) else np.asarray(operand)
        assert value.dtype == dtype, (opcode, value.dtype, dtype)
        arrays.append(value)
    with np.errstate(all="ignore"):
        result = operation.function(*arrays)
    results = result if len(operation.outputs) > 1 else (result,)
    for value, dtype in zip(results, operation.outputs, strict=True):
        assert value.dtype == dtype, (opcode, value.dtype, dtype)
    if operation.expression is not None:
        with np.errstate(all="ignore"):
            text = operation.expression.format(*(f"values[{index}]" for index in range(len(arrays))))
            again = eval(text, {"np": np, "values": arrays})
        np.testing.assert_array_equal(again, result)
        assert again.dtype == operation.outputs[0]
    return result


def value_of(word: int, name: str) -> float:
    """The value of a word of f16, bf16, f32 or f64."""
    if name == "bf16":
        return float(np.uint32(word << 16).view(np.float32))
    return float(np.dtype(WORDS[name]).type(word).view(WORDS[name].replace("u", "f")))


def word_of(value: float, name: str) -> int:
    """The word of a value that the format holds; its result NaN for NaN."""
    if math.isnan(value):
        return PARAMETERS[name][3]
    if name == "bf16":
        return int(np.float32(value).view(np.uint32)) >> 16
    return int(np.dtype(WORDS[name].replace("u", "f")).type(value).view(WORDS[name]))


def rounded(value: Fraction, name: str, mode: str, zero: float = 0.0) -> float:
    """`value` in the format `name`; `zero`: what an exact zero is. An infinity beyond the largest value."""
    if value == 0:
        return zero
    precision, minimum, largest, _ = PARAMETERS[name]
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    quantum = Fraction(2) ** (max(exponent, minimum) - precision + 1)
    below = magnitude // quantum
    rest = magnitude - below * quantum
    half = quantum / 2
    outwards = {
        "rn": rest > half or (rest == half and below % 2 == 1),
        "rna": rest >= half,
        "rz": False,
        "rm": rest > 0 and value < 0,
        "rp": rest > 0 and value > 0,
    }[mode]
    result = (below + outwards) * quantum
    sign = -1.0 if value < 0 else 1.0
    if result > largest:
        inwards = mode == "rz" or (mode == "rm" and value > 0) or (mode == "rp" and value < 0)
        return math.copysign(float(largest) if inwards else math.inf, sign)
    return math.copysign(float(result), sign)


def _sum_zero(a: float, b: float, mode: str) -> float:
    """The zero that a + b is where it is exactly zero."""
    if a == 0 and b == 0 and math.copysign(1, a) == math.copysign(1, b):
        return a
    return -0.0 if mode == "rm" else 0.0


def add(a: float, b: float, name: str, mode: str) -> float:
    if not (math.isfinite(a) and math.isfinite(b)):
        return a + b
    return rounded(Fraction(a) + Fraction(b), name, mode, _sum_zero(a, b, mode))


def multiply(a: float, b: float, name: str, mode: str) -> float:
    if not (math.isfinite(a) and math.isfinite(b)):
        return a * b
    return rounded(Fraction(a) * Fraction(b), name, mode, math.copysign(0.0, math.copysign(1, a) * math.copysign(1, b)))


def multiply_add(a: float, b: float, c: float, name: str, mode: str) -> float:
    if not (math.isfinite(a) and math.isfinite(b)):
        return a * b + c
    if not math.isfinite(c):
        return c
    product = Fraction(a) * Fraction(b)
    sign = math.copysign(1, a) * math.copysign(1, b)
    zero = _sum_zero(math.copysign(0.0, sign), c, mode) if product == 0 and c == 0 else -0.0 if mode == "rm" else 0.0
    return rounded(product + Fraction(c), name, mode, zero)


def divide(a: float, b: float, name: str, mode: str) -> float:
    if math.isnan(a) or math.isnan(b) or (a == 0 and b == 0) or (math.isinf(a) and math.isinf(b)):
        return math.nan
    sign = math.copysign(1, a) * math.copysign(1, b)
    if math.isinf(a) or b == 0:
        return math.copysign(math.inf, sign)
    if math.isinf(b) or a == 0:
        return math.copysign(0.0, sign)
    return rounded(Fraction(a) / Fraction(b), name, mode)


def square_root(a: float, name: str, mode: str) -> float:
    if math.isnan(a) or a < 0:
        return math.nan
    if a == 0 or math.isinf(a):
        return a
    value = Fraction(a)
    places = 1200
    whole = math.isqrt((value.numerator << 2 * places) // value.denominator)
    root = Fraction(whole, 1 << places)
    if root * root != value:
        root += Fraction(1, 1 << places + 1)
    return rounded(root, name, mode)


_SPECIAL_BITS = {
    "f16": (0, 1, 2, 0x3FF, 0x400, 0x401, 0x3BFF, 0x3C00, 0x3C01, 0x7BFF, 0x7BFE, 0x7C00, 0x7E01),
    "bf16": (0, 1, 2, 0x7F, 0x80, 0x81, 0x3F7F, 0x3F80, 0x3F81, 0x7F7F, 0x7F7E, 0x7F80, 0x7FC1),
    "f32": tuple(
        int(word, 16)
        for word in [
            "0",
            "1",
            "2",
            "7FFFFF",
            "800000",
            "800001",
            "3F7FFFFF",
            "3F800000",
            "3F800001",
            "7F7FFFFF",
            "7F7FFFFE",
            "7F800000",
            "7FC00001",
        ]
    ),
    "f64": (
        *(0, 1, 2, (1 << 52) - 1, 1 << 52, (1 << 52) + 1, 0x3FEFFFFFFFFFFFFF, 0x3FF0000000000000, 0x3FF0000000000001),
        *(0x7FEFFFFFFFFFFFFF, 0x7FEFFFFFFFFFFFFE, 0x7FF0000000000000, 0x7FF8000000000001),
    ),
}


def operands(name: str, count: int, size: int, seed: int) -> list[Any]:
    """`count` arrays of `size` words of the format: special values against each other, random words, numbers near 1.

    Few significant bits and exponents that are near make ties; many bits and exponents far apart make sticky bits.
    """
    generator = np.random.default_rng(seed)
    word = np.dtype(WORDS[name])
    bits, precision = 8 * word.itemsize, PARAMETERS[name][0]
    top = word.type(1 << (bits - 1))
    special = np.array(_SPECIAL_BITS[name], word)
    special = np.concatenate([special, special | top])
    one = special[list(_SPECIAL_BITS[name]).index(word_of(1.0, name))]
    arrays = []
    for _ in range(count):
        random = np.frombuffer(generator.bytes(size * word.itemsize), word)
        near = (random >> word.type(bits - precision)) + one - word.type(1 << (precision - 2))
        spread = generator.integers(-2 * precision, 2 * precision, size).astype(f"i{word.itemsize}").view(word)
        near = (near + (spread << word.type(precision - 1))) | (random & top)
        kept = generator.integers(0, precision, size).astype(word)
        few = (near >> kept) << kept
        choice = generator.integers(0, 6, size)
        picked = special[generator.integers(0, len(special), size)]
        arrays.append(np.choose(choice, [picked, random, near, near, few, few]).astype(word))
    return arrays


def assert_words(got: Any, expected: Sequence[int], operands: Sequence[Any], what: str) -> None:
    """Fails with the first operands, in hexadecimal, whose result is not the expected word."""
    words = [int(word) for word in np.asarray(got).view(f"u{np.asarray(got).dtype.itemsize}").reshape(-1)]
    assert len(words) == len(expected)
    for index, (word, wanted) in enumerate(zip(words, expected, strict=True)):
        if word != wanted:
            given = ", ".join(hex(int(operand[index])) for operand in operands)
            raise AssertionError(f"{what}({given}) gives {word:#x}, not {wanted:#x}")
