"""Launches of the kernels of ``tests/gcn/triton_amd.py``, and what they compute by NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.emulator.gcn.memory import Memory
from neutrino.emulator.gcn.object_file import Disassemble, LoadedObject

Array = npt.NDArray[Any]
WARPS = 4
"""Waves of a work-group, which Triton's compiler is told by default."""
_LDS = 64 << 10
_SEED = 5


@dataclass(frozen=True)
class Case:
    """A launch. grid: in work-groups. arguments: arrays are buffers. expected: what buffers have behind it, by the
    number of the argument. error: the greatest difference, relative to the greatest number; 0 for the same bits."""

    grid: tuple[int, int, int]
    arguments: tuple[Any, ...]
    expected: Mapping[int, Array]
    error: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """A launch that has run. buffers: behind it, by the number of the argument. instructions: of all waves."""

    buffers: dict[int, Array]
    instructions: int


def run_case(data: bytes, case: Case, disassemble: Disassemble, *, name: str = "", **options: Any) -> Outcome:
    """Run a kernel of a code object in the interpreter. name: of the kernel, for an object with several. options: of
    ``LoadedObject.run``."""
    memory = Memory(64 << 20)
    loaded = LoadedObject(data, memory, disassemble)
    kernel = loaded.kernels[name or next(iter(loaded.kernels))]
    places: dict[int, int] = {}
    packed = b""
    for number, argument in enumerate(case.arguments):
        if isinstance(argument, np.ndarray):
            places[number] = memory.put(argument)
            value = places[number].to_bytes(8, "little")
        else:
            value = argument.tobytes()
        packed += bytes(-len(packed) % len(value)) + value
    lanes = kernel.descriptor.lanes
    done = loaded.run(
        kernel.name, case.grid, (lanes * WARPS, 1, 1), packed, dynamic_lds=_LDS - kernel.descriptor.lds, **options
    )
    buffers = {}
    for number, place in places.items():
        before = case.arguments[number]
        raw = memory.read(place, before.nbytes)
        buffers[number] = np.frombuffer(raw, before.dtype).reshape(before.shape)
    return Outcome(buffers, done.instructions)


def worst_error(case: Case, outcome: Outcome) -> float:
    """Return the greatest difference from what is expected, relative to the greatest number; infinite where bits that
    must be the same differ, or a result is no number."""
    worst = 0.0
    for number, expected in case.expected.items():
        found = outcome.buffers[number]
        if case.error == 0:
            worst = max(worst, 0.0 if found.tobytes() == expected.astype(found.dtype).tobytes() else math.inf)
            continue
        if found.dtype == np.uint16:
            found = _of_bf16(found)
        difference = np.abs(found.astype(np.float64) - expected.astype(np.float64)).max()
        scale = max(float(np.abs(expected.astype(np.float64)).max()), 1e-30)
        worst = max(worst, math.inf if np.isnan(difference) else float(difference) / scale)
    return worst


def cases(processor: str) -> dict[str, Case]:
    """Return a case for each kernel, by its name."""
    return {name: make(np.random.default_rng(_SEED), processor) for name, make in _CASES.items()}


_CASES: dict[str, Callable[[np.random.Generator, str], Case]] = {}


def _case(make: Callable[[np.random.Generator, str], Case]) -> Callable[[np.random.Generator, str], Case]:
    """Register a function that makes a launch under its own name without underscores, which is that of the kernel."""
    _CASES[make.__name__.strip("_")] = make
    return make


def _normal(random: np.random.Generator, *shape: int) -> Array:
    """Return normally distributed random f32 numbers of a shape."""
    return random.standard_normal(shape).astype(np.float32)


def _to_bf16(values: Array) -> Array:
    """Return f32 numbers as bf16, in u16, rounded to nearest with halves upwards."""
    return (values.astype(np.float32).view(np.uint32) + np.uint32(0x8000) >> np.uint32(16)).astype(np.uint16)


def _of_bf16(values: Array) -> Array:
    """Return bf16 numbers, in u16, as f32."""
    return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)


@_case
def _axpy(random: np.random.Generator, processor: str) -> Case:
    """Make a launch of ``axpy``: y + 2 x."""
    y, x = _normal(random, 5000), _normal(random, 5000)
    return Case((5, 1, 1), (y, x, np.float32(2), np.int32(5000)), {0: y + 2 * x})


@_case
def _row_softmax(random: np.random.Generator, processor: str) -> Case:
    """Make a launch of ``row_softmax``: the softmax of each row."""
    x = _normal(random, 8, 1000)
    power = np.exp(x - x.max(1, keepdims=True))
    sizes = np.int32(1000), np.int32(1000)
    return Case((8, 1, 1), (np.zeros_like(x), x, *sizes), {0: power / power.sum(1, keepdims=True)}, 1e-6)


@_case
def _rms_norm(random: np.random.Generator, processor: str) -> Case:
    """Make a launch of ``rms_norm``: rows of f16 divided by their root mean square, times weights."""
    x, weight = _normal(random, 2, 700).astype(np.float16), _normal(random, 700).astype(np.float16)
    wide = x.astype(np.float32)
    expected = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5) * weight.astype(np.float32)
    return Case((2, 1, 1), (np.zeros_like(x), x, weight, np.int32(700), np.float32(1e-5)), {0: expected}, 1e-3)


def _product(size: int, depth: int, a: Array, b: Array, wide_a: Array, wide_b: Array, kind: Any, error: float) -> Case:
    """Make a launch of a matrix product in one block. wide_a, wide_b: the numbers of a and b, for NumPy. kind: of the
    result."""
    sizes = (np.int32(size), np.int32(size), np.int32(depth))
    return Case((1, 1, 1), (np.zeros((size, size), kind), a, b, *sizes), {0: wide_a @ wide_b}, error)


@_case
def _product_f16(random: np.random.Generator, processor: str) -> Case:
    """Make a launch of a matrix product of f16."""
    a, b = _normal(random, 64, 64).astype(np.float16), _normal(random, 64, 64).astype(np.float16)
    return _product(64, 64, a, b, a.astype(np.float64), b.astype(np.float64), np.float32, 1e-6)


@_case
def _product_bf16(random: np.random.Generator, processor: str) -> Case:
    """Make a launch of a matrix product of bf16."""
    a, b = _to_bf16(_normal(random, 128, 128)), _to_bf16(_normal(random, 128, 128))
    return _product(128, 128, a, b, _of_bf16(a).astype(float), _of_bf16(b).astype(float), np.float32, 1e-6)


@_case
def _product_f32(random: np.random.Generator, processor: str) -> Case:
    """Make a launch of a matrix product of f32."""
    a, b = _normal(random, 32, 64), _normal(random, 64, 32)
    # Some processors multiply what is cut to fewer bits.
    return _product(32, 64, a, b, a.astype(float), b.astype(float), np.float32, 1e-2)


@_case
def _product_i8(random: np.random.Generator, processor: str) -> Case:
    """Make a launch of a matrix product of i8, with sums of i32."""
    a, b = (random.integers(-128, 128, shape).astype(np.int8) for shape in ((32, 64), (64, 32)))
    return _product(32, 64, a, b, a.astype(np.int32), b.astype(np.int32), np.int32, 0)


@_case
def _product_fp8(random: np.random.Generator, processor: str) -> Case:
    """Make a launch of a matrix product of 8-bit floats, which have another bias on gfx942."""
    bias = 8 if processor == "gfx942" else 7
    codes = []
    for _ in range(2):
        signs = random.integers(0, 2, (64, 64)).astype(np.uint8) << 7
        codes.append(random.integers(0x28, 0x48, (64, 64)).astype(np.uint8) | signs)
    wide = [
        (1 + (code & 7) / 8) * 2.0 ** ((code >> 3 & 15).astype(int) - bias) * np.where(code >> 7, -1, 1)
        for code in codes
    ]
    return _product(64, 64, *codes, *wide, np.float32, 1e-6)


@_case
def _attention(random: np.random.Generator, processor: str) -> Case:
    """Make a launch of ``attention``: causal attention of one head, in f16."""
    q, k, v = (_normal(random, 128, 64).astype(np.float16) for _ in range(3))
    score = q.astype(float) @ k.astype(float).T * 0.125
    score = np.where(np.tril(np.ones(score.shape, bool)), score, -np.inf)
    power = np.exp(score - score.max(1, keepdims=True))
    expected = power / power.sum(1, keepdims=True) @ v.astype(float)
    return Case((2, 1, 1), (np.zeros_like(q), q, k, v, np.float32(0.125), np.int32(128)), {0: expected}, 2e-3)


@_case
def _sum_all(random: np.random.Generator, processor: str) -> Case:
    """Make a launch of ``sum_all``: the sum of all elements, by atomic additions."""
    x = random.integers(-50, 50, 4000).astype(np.float32)
    # Whole numbers, so that the order does not matter.
    return Case((4, 1, 1), (np.zeros(1, np.float32), x, np.int32(4000)), {0: x.sum(keepdims=True)})


@_case
def _greatest(random: np.random.Generator, processor: str) -> Case:
    """Make a launch of ``greatest``: the index of each row's greatest element."""
    x = _normal(random, 4, 500)
    return Case((4, 1, 1), (np.zeros(4, np.int32), x, np.int32(500)), {0: x.argmax(1)})


@_case
def _running(random: np.random.Generator, processor: str) -> Case:
    """Make a launch of ``running``: running sums within blocks of 1024 elements."""
    x = random.integers(-50, 50, 2048).astype(np.float32)
    return Case((2, 1, 1), (np.zeros_like(x), x), {0: x.reshape(2, 1024).cumsum(1).reshape(-1)})


@_case
def _counts(random: np.random.Generator, processor: str) -> Case:
    """Make a launch of ``counts``: how often each of 64 numbers occurs."""
    x = random.integers(0, 64, 1024).astype(np.int32)
    return Case((4, 1, 1), (np.zeros(64, np.int32), x, np.int32(1024)), {0: np.bincount(x, minlength=64)})


@_case
def _in_order(random: np.random.Generator, processor: str) -> Case:
    """Make a launch of ``in_order``: blocks of 256 elements, sorted."""
    x = random.integers(-1000, 1000, 512).astype(np.int32)
    return Case((2, 1, 1), (np.zeros_like(x), x), {0: np.sort(x.reshape(2, 256), 1).reshape(-1)})


@_case
def _picked(random: np.random.Generator, processor: str) -> Case:
    """Make a launch of ``picked``: elements by their indices; zeros behind them."""
    x, index = _normal(random, 600), random.integers(0, 600, 900)
    expected = np.concatenate([x[index], np.zeros(124, np.float32)])
    return Case((2, 1, 1), (np.zeros(1024, np.float32), x, index, np.int32(900)), {0: expected})


@_case
def _embedding(random: np.random.Generator, processor: str) -> Case:
    """Make a launch of ``embedding``: rows by their indices."""
    rows, index = _normal(random, 20, 256), random.integers(0, 20, 6)
    return Case((6, 1, 1), (np.zeros((6, 256), np.float32), rows, index), {0: rows[index]})


@_case
def _locks(random: np.random.Generator, processor: str) -> Case:
    """Make a launch of ``locks``: blocks that add their row to one buffer under a lock, which is free behind it."""
    x = random.integers(-50, 50, (5, 128)).astype(np.float32)
    arguments = (np.zeros(128, np.float32), np.zeros(1, np.int32), x)
    return Case((5, 1, 1), arguments, {0: x.sum(0), 1: np.zeros(1, np.int32)})


@_case
def _extremes(random: np.random.Generator, processor: str) -> Case:
    """Make a launch of ``extremes``: atomic maxima, minima and exclusive ors, in 16 cells each."""
    x = random.integers(-1000, 1000, 500).astype(np.int32)
    out = np.zeros(48, np.int32)
    expected = out.copy()
    place = np.arange(500) % 16
    np.maximum.at(expected, place, x)
    np.minimum.at(expected, place + 16, x)
    np.bitwise_xor.at(expected, place + 32, x)
    return Case((2, 1, 1), (out, x, np.int32(500)), {0: expected})


@_case
def _flipped(random: np.random.Generator, processor: str) -> Case:
    """Make a launch of ``flipped``: a matrix, transposed."""
    x = _normal(random, 64, 128).astype(np.float16)
    return Case((1, 2, 1), (np.zeros((128, 64), np.float16), x, np.int32(64), np.int32(128)), {0: x.T})


@_case
def _spread(random: np.random.Generator, processor: str) -> Case:
    """Make a launch of ``spread``: the variance of each row."""
    x = _normal(random, 2, 2000)
    return Case((2, 1, 1), (np.zeros(2, np.float32), x, np.int32(2000)), {0: x.astype(float).var(1)}, 1e-5)


@_case
def _rotary(random: np.random.Generator, processor: str) -> Case:
    """Make a launch of ``rotary``: pairs of elements, rotated by angles (rotary position embedding)."""
    x, cosine, sine = _normal(random, 8, 128), _normal(random, 64), _normal(random, 64)
    a, b = x[:, :64], x[:, 64:]
    expected = np.concatenate([a * cosine - b * sine, a * sine + b * cosine], 1)
    return Case((8, 1, 1), (x, cosine, sine), {0: expected}, 1e-6)


@_case
def _dropped(random: np.random.Generator, processor: str) -> Case:
    """Make a launch of ``dropped``: dropout by random numbers of Philox, which are computed here, too."""
    x = _normal(random, 1000)
    # Philox, ten rounds: the number of the element, and the seed as the key.
    c = [np.arange(1000, dtype=np.uint64), *(np.zeros(1000, np.uint64) for _ in range(3))]
    key, word = [np.uint64(7), np.uint64(0)], np.uint64(0xFFFFFFFF)
    for _ in range(10):
        first, second = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        shift = np.uint64(32)
        c = [second >> shift ^ c[1] ^ key[0], second & word, first >> shift ^ c[3] ^ key[1], first & word]
        key = [key[0] + np.uint64(0x9E3779B9) & word, key[1] + np.uint64(0xBB67AE85) & word]
    number = c[0].astype(np.uint32).view(np.int32)
    uniform = np.where(number < 0, -number - 1, number) * np.float32(4.6566127342e-10)
    expected = np.where(uniform > np.float32(0.3), x / (np.float32(1) - np.float32(0.3)), 0)
    return Case((2, 1, 1), (np.zeros_like(x), x, np.int32(7), np.float32(0.3), np.int32(1000)), {0: expected}, 1e-6)


@_case
def _gelu(random: np.random.Generator, processor: str) -> Case:
    """Make a launch of ``gelu``: the Gaussian error linear unit, in bf16."""
    x = _to_bf16(_normal(random, 1000))
    wide = _of_bf16(x)
    expected = 0.5 * wide * (1 + np.array([math.erf(value * 0.70710678) for value in wide]))
    return Case((2, 1, 1), (np.zeros_like(x), x, np.int32(1000)), {0: expected}, 4e-3)


@_case
def _curves(random: np.random.Generator, processor: str) -> Case:
    """Make a launch of ``curves``: sines, cosines, logarithms and roots of f32."""
    x = np.abs(_normal(random, 1000)) + np.float32(0.1)
    wide = x.astype(float)
    expected = np.sin(wide) * np.cos(wide) + np.log(wide) / np.sqrt(wide)
    return Case((4, 1, 1), (np.zeros_like(x), x, np.int32(1000)), {0: expected}, 1e-6)


@_case
def _doubles(random: np.random.Generator, processor: str) -> Case:
    """Make a launch of ``doubles``: quotients, roots and floors of f64."""
    x, y = random.random(1000) * 9, random.random(1000) + 0.5
    expected = x / y - np.floor(x) * np.sqrt(x)
    return Case((4, 1, 1), (np.zeros_like(x), x, y, np.int32(1000)), {0: expected}, 1e-15)


@_case
def _longs(random: np.random.Generator, processor: str) -> Case:
    """Make a launch of ``longs``: quotients, remainders, high products and shifts of 64-bit integers."""
    x, y = random.integers(-(2**60), 2**60, 1000), random.integers(1, 2**40, 1000)
    results = []
    for a, b in zip(x.tolist(), y.tolist(), strict=True):
        quotient = abs(a) // b * (1 if a >= 0 else -1)
        high = (a % (1 << 64)) * b >> 64
        bits = (quotient ^ (a - quotient * b) ^ high ^ a << 3) % (1 << 64)
        results.append(bits)
    expected = np.array(results, np.uint64).view(np.int64)
    return Case((4, 1, 1), (np.zeros_like(x), x, y, np.int32(1000)), {0: expected})


@_case
def _narrowed(random: np.random.Generator, processor: str) -> Case:
    """Make a launch of ``narrowed``: blocks of 512 elements quantized to i8, and their scales."""
    x = _normal(random, 1000)
    most = np.array([np.abs(x[:512]).max() / np.float32(127), np.abs(x[512:]).max() / np.float32(127)])
    arguments = (np.zeros(1024, np.int8), np.zeros(2, np.float32), x, np.int32(1000))
    expected = np.zeros(1024, np.int8)
    expected[:1000] = np.trunc(x / np.repeat(most, 512)[:1000]).astype(np.int8)
    # The last block is as long as the others.
    return Case((2, 1, 1), arguments, {0: expected, 1: most})


@_case
def _entropy(random: np.random.Generator, processor: str) -> Case:
    """Make a launch of ``entropy``: the cross entropy of each row and its label."""
    x, label = _to_bf16(_normal(random, 4, 1000)), random.integers(0, 1000, 4)
    wide = _of_bf16(x).astype(float)
    expected = np.log(np.exp(wide).sum(1)) - wide[np.arange(4), label]
    return Case((4, 1, 1), (np.zeros(4, np.float32), x, label, np.int32(1000)), {0: expected}, 1e-6)


@_case
def _branches(random: np.random.Generator, processor: str) -> Case:
    """Make a launch of ``branches``: blocks that go other ways, by a number of steps of each."""
    steps, at = random.integers(1, 30, 6).astype(np.int32), np.arange(6 * 128, dtype=np.int32).reshape(6, 128)
    total = np.where(steps > 10, steps * (steps - 1) // 2, -1)[:, None] * at
    return Case((6, 1, 1), (np.zeros(6 * 128, np.int32), steps, np.int32(6 * 128)), {0: total.reshape(-1)})
