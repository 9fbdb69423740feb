"""What the arithmetic instructions are tried on: the same words wherever they are made.

Special values against each other, random bits, values near each other, and values of few significant bits and of
middling size. No generator of NumPy's is used, so that no version of it can change them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

Words = np.ndarray[Any, np.dtype[np.uint64]]

TUPLES = 2048
"""Input tuples of each instruction; a thread computes one."""
_SPECIAL, _RANDOM, _NEAR = 1024, 384, 384

# Bits of a value, of its exponent and of its fraction.
_FLOATS = {"f16": (16, 5, 10), "bf16": (16, 8, 7), "f32": (32, 8, 23), "f64": (64, 11, 52)}
_NARROW = {"e4m3": 8, "e5m2": 8}
_PACKED = {
    "f16x2": "f16", "bf16x2": "bf16", "u16x2": "u16", "s16x2": "s16", "e4m3x2": "e4m3", "e5m2x2": "e5m2",
}  # fmt: skip
_OTHERS = {"pred": 1, "amount": 32, "tf32": 32}
_AMOUNTS = (0, 1, 2, 7, 8, 15, 16, 17, 24, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256, 257, 0x80000000, 0xFFFFFFFF)


def bits_of(name: str) -> int:
    """Return the width in bits of a PTX type, of ``pred`` (1), or of ``amount``: a .u32 that counts bits or names one.
    """
    if name in _PACKED:
        return 2 * bits_of(_PACKED[name])
    if name in _FLOATS:
        return _FLOATS[name][0]
    return _NARROW.get(name) or _OTHERS.get(name) or int(name[1:])


def random_words(size: int, *key: object) -> Words:
    """``size`` words of 64 pseudo-random bits; the same for the same key on every machine."""
    start = int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8], "little")
    # Splitmix64.
    word = np.uint64(start) + np.arange(1, size + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


def is_float(name: str) -> bool:
    """Whether a PTX type is a scalar floating-point type that registers hold as it is."""
    return name in _FLOATS


def float_type(name: str) -> tuple[int, int, int]:
    """Return the bits of a value, of its exponent and of its fraction, for a floating-point type (``is_float``)."""
    return _FLOATS[name]


@cache
def _specials(name: str) -> Words:
    """The special values of a PTX type, bits in the lowest places: zero, limits, infinities, NaN, powers of two and
    neighbours.
    """
    if name in _FLOATS:
        return _special_floats(name)
    if name == "amount":
        return np.array(_AMOUNTS, np.uint64)
    bits = bits_of(name)
    if bits <= 8:
        return np.arange(1 << bits, dtype=np.uint64)
    top, mask = 1 << bits - 1, (1 << bits) - 1
    values = [0, 1, 2, 3, 7, 10, 255, 256, top - 1, top, top + 1, mask, mask - 1, mask - 2, mask - 9]
    values += [1 << bits // 2, (1 << bits // 2) - 1, (1 << bits // 2) + 1, mask // 3, mask // 5, mask ^ (mask // 5)]
    values += [1 << 24, (1 << 24) + 1, (1 << 24) - 1, 0x123456789ABCDEF0, mask - (1 << 24) - 1]
    return np.unique(np.array([value & mask for value in values], np.uint64))


def _special_floats(name: str) -> Words:
    """Special values of a floating-point type, each with both signs."""
    bits, _, fraction = _FLOATS[name]
    sign = 1 << bits - 1
    infinity = (sign - 1) >> fraction << fraction
    one, quiet = _word(name, 1.0), 1 << fraction - 1
    positive = [0, 1, 2, (1 << fraction) - 1, 1 << fraction, (1 << fraction) + 1, quiet]
    positive += [infinity - 1, infinity - 2, infinity, infinity | quiet, sign - 1, infinity | 1, infinity | quiet | 5]
    positive += [one, one + 1, one - 1]
    positive += [_word(name, value) for value in (0.25, 0.5, 1.5, 2.0, 2.5, 3.0, 3.5, 127.5, 255.0, 448.0, 464.0)]
    if name in ("f32", "f64"):
        wholes = (2.0**15, 2.0**16, 2.0**23 + 1, 2.0**24, 2.0**31, 2.0**32, 2.0**52, 2.0**53, 2.0**63, 2.0**64)
        positive += [_word(name, value) for value in (*wholes, 65504.0, 65519.0, 65520.0, 57344.0, 61440.0)]
        positive += [_word(name, 2.0**power) for power in (-10, -14, -24, -25, -126)]
        positive += [_word(name, value) - 1 for value in (0.5, 1.5, 2.0**31, 2.0**63)]
    return np.array([word | flag for word in positive for flag in (0, sign)], np.uint64)


def _word(name: str, value: float) -> int:
    """The bits of a value in a floating-point type; bf16 cuts off what it cannot hold."""
    if name == "bf16":
        return int(np.float32(value).view(np.uint32)) >> 16
    bits = _FLOATS[name][0]
    return int(np.array(value, f"f{bits // 8}").view(f"u{bits // 8}"))


def _masked(words: Words, bits: int) -> Words:
    """Words of which only the lowest ``bits`` bits are left."""
    return words & np.uint64((1 << bits) - 1)


def _moderate(name: str, size: int, *key: object) -> Words:
    """Pseudo-random values of middling size, ``size`` of them, with few significant bits: sums and conversions of them
    hit halfway cases. key: another one gives others.
    """
    noise, choice = random_words(size, name, "moderate", *key), random_words(size, name, "choice", *key)
    if name == "amount":
        return noise % np.uint64(70)
    bits = bits_of(name)
    if name not in _FLOATS:
        small = _masked(noise, bits) >> (choice % np.uint64(bits))
        return _masked(np.where(choice >> np.uint64(60) < 8, small, np.uint64(0) - small), bits)
    _, exponent, fraction = _FLOATS[name]
    bias = (1 << exponent - 1) - 1
    low, high = (-30, 20) if not key or key[0] == 0 else (-4, 66)
    power = (choice % np.uint64(high - low + 1)).astype(np.int64) + low + bias
    field = np.clip(power, 0, 2 * bias).astype(np.uint64)
    # As many of the fraction's upper bits as another random number says: halfway cases of narrower types.
    dropped = (choice >> np.uint64(32)) % np.uint64(fraction + 1)
    kept = _masked(noise, fraction) >> dropped << dropped
    return (noise >> np.uint64(63) << np.uint64(bits - 1)) | (field << np.uint64(fraction)) | kept


def _near(name: str, base: Words, *key: object) -> Words:
    """Return words (bit patterns of a type) a few steps away from those of ``base``, some with the other sign."""
    bits = bits_of(name)
    noise = random_words(base.size, name, "near", *key)
    moved = base + noise % np.uint64(7) - np.uint64(3)
    flip = (noise >> np.uint64(63)) << np.uint64(bits - 1) if name in _FLOATS else np.uint64(0)
    return _masked(moved ^ flip, bits)


def _minus_product(name: str, a: Words, b: Words) -> Words:
    """Return about -(a * b) as words of a floating-point type, so that a fused multiply-add with it cancels."""
    bits, _, _ = _FLOATS[name]
    if name == "bf16":
        x, y = ((word << np.uint64(16)).astype(np.uint32).view(np.float32) for word in (a, b))
        return (-(x * y)).view(np.uint32).astype(np.uint64) >> np.uint64(16)
    x, y = (word.astype(f"u{bits // 8}").view(f"f{bits // 8}") for word in (a, b))
    return (-(x * y)).view(f"u{bits // 8}").astype(np.uint64)


def _scalars(types: Sequence[str], salt: int) -> list[Words]:
    """Return test operands of an instruction, an array of TUPLES words for each of its types.

    Special values against each other, random bits, values near each other, middling values. salt: another one gives
    others.
    """
    specials = [_specials(name) for name in types]
    first, second = specials[0].size, specials[min(1, len(types) - 1)].size
    # A stride through all pairs of special values; where there are no pairs, through the values.
    walk = np.arange(_SPECIAL, dtype=np.int64) * 7919 % (first * (second if len(types) > 1 else 1))
    columns: list[Words] = []
    for place, name in enumerate(types):
        values = specials[place]
        if place > 1:
            index = (random_words(_SPECIAL, "pick", place, salt) % np.uint64(values.size)).astype(np.int64)
        else:
            index = walk % first if place == 0 else walk // first
        random = _masked(random_words(_RANDOM, "bits", name, place, salt), bits_of(name))
        middling = _moderate(name, TUPLES - _SPECIAL - _RANDOM - _NEAR, salt, place)
        if place == 0 or name != types[0]:
            near = _moderate(name, _NEAR, 1 - salt % 2, place)
        elif place == 2 and name in _FLOATS:
            near = _near(
                name, _minus_product(name, *(column[_SPECIAL + _RANDOM :][:_NEAR] for column in columns)), salt
            )
        else:
            near = _near(name, columns[0][_SPECIAL + _RANDOM :][:_NEAR], place, salt)
        columns.append(np.concatenate([values[index], random, near, middling]))
    return columns


@cache
def operands(types: tuple[str, ...]) -> Words:
    """Return the test operands for an instruction with operands of these PTX types: uint64 [operands, TUPLES], cached,
    read-only.

    Each word is in the lowest bits.
    """
    with np.errstate(all="ignore"):
        columns = _scalars([_PACKED.get(name, name) for name in types], 0)
        if any(name in _PACKED for name in types):
            upper = _scalars([_PACKED.get(name, name) for name in types], 1)
            # Turned, so that special values meet others in the two halves.
            columns = [
                low | (np.roll(high, 5) << np.uint64(bits_of(_PACKED[name]))) if name in _PACKED else low
                for name, low, high in zip(types, columns, upper, strict=True)
            ]
    words = np.stack(columns)
    words.setflags(write=False)
    return words


def _e4m3(noise: Words) -> Words:
    """Return random 8-bit floating-point numbers of format e4m3 with magnitudes from 1/8 to below 4. noise: random
    bits."""
    return (noise & np.uint64(0x87)) | ((np.uint64(4) + (noise >> np.uint64(8)) % np.uint64(5)) << np.uint64(3))


def _e5m2(noise: Words) -> Words:
    """Return random 8-bit floating-point numbers of format e5m2 with magnitudes from 1/8 to below 4. noise: random
    bits."""
    return (noise & np.uint64(0x83)) | ((np.uint64(12) + (noise >> np.uint64(8)) % np.uint64(5)) << np.uint64(2))


# Words of the numbers 0 to 4.
_WHOLE_NARROW = {"e4m3": (0x00, 0x38, 0x40, 0x44, 0x48), "e5m2": (0x00, 0x3C, 0x40, 0x42, 0x44)}
_RANDOM_NARROW: dict[str, Callable[[Words], Words]] = {"e4m3": _e4m3, "e5m2": _e5m2}


def fragments(name: str, words: int, warps: int, whole: bool, key: str) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Return test elements of a matrix as lanes hold them, uint32 [warps, 32, words]: whole numbers from -4 to 4, or
    random ones.

    Random integers are of all sizes; random numbers of floating point lie between -2 and 2 and fill the fraction.
    """
    total = warps * 32 * words
    bits = {"b1": 1, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "tf32": 32}.get(name) or bits_of(name)
    if name in ("b1", "s4", "u4", "s8", "u8", "s32"):
        noise = random_words(total, "fragment", name, whole, key)
        return noise.astype(np.uint32).reshape(warps, 32, words)
    noise = random_words(total * 32 // bits, "fragment", name, whole, key)
    if name in _NARROW:
        if whole:
            table = np.array(_WHOLE_NARROW[name], np.uint64)
            found = table[(noise % np.uint64(5)).astype(np.int64)] | (noise >> np.uint64(63) << np.uint64(7))
        else:
            found = _RANDOM_NARROW[name](noise)
        return found.astype(np.uint8).view(np.uint32).reshape(warps, 32, words)
    wide = (noise % np.uint64(9) if whole else noise).astype(np.float64)
    values = wide - 4.0 if whole else wide * 2.0**-62 - 2.0
    if name in ("bf16", "tf32"):
        kept = 16 if name == "bf16" else 13
        raw = values.astype(np.float32).view(np.uint32) >> np.uint32(kept)
        held = raw.astype(np.uint16) if name == "bf16" else raw << np.uint32(kept)
    else:
        held = values.astype(f"f{bits // 8}")
    return np.ascontiguousarray(held).view(np.uint32).reshape(warps, 32, words)
