"""Whole numbers and pairs of halves in registers, by instructions that compilers seldom write."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.kernels.model import FIXTURES, Array, Case, Expected, blank, seeded

PATH = FIXTURES / "hand" / "words.ptx"
RARE = FIXTURES / "hand" / "rare.ptx"
_TAGS = frozenset({"hand", "integer"})
_WORD, _LONG = (1 << 32) - 1, (1 << 64) - 1


def cases() -> Iterator[Case]:
    """The kernels of words.ptx and rare.ptx."""
    yield from (_carries(), _fields(), _choices(), _half_pairs(), _rare(), _packed())


def _split(value: int, words: int) -> list[int]:
    return [value >> 32 * place & _WORD for place in range(words)]


def _carries() -> Case:
    count = 600
    random = seeded("carries")
    # Words of all zeros and all ones, so that carries run through several.
    x, y = (np.where(random.random((count, 6)) < 0.5, random.choice([0, _WORD], (count, 6)),
                     random.integers(0, 1 << 32, (count, 6))).astype(np.uint32) for _ in range(2))  # fmt: skip
    want = []
    for left, right in zip(x.tolist(), y.tolist(), strict=True):
        a, b = (sum(word << 32 * place for place, word in enumerate(side)) for side in (left, right))
        product = (a & _LONG) * (b & _LONG)
        want.append([*_split(a + b, 6), *_split(a - b, 6), _WORD if a < b else 0, *_split(product, 4)])
    words = np.array(want, np.uint32)
    return Case("carries", PATH, "carries", (6, 1, 1), (100, 1, 1), (x, y, blank(words.shape, np.uint32)),
                {2: Expected(words)}, tags=_TAGS)  # fmt: skip


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (value >> bits - 1 << bits)


def _extract(a: int, at: int, length: int, bits: int, signed: bool) -> int:
    """bfe (PTX ISA 9.7.1.19), bit by bit."""
    sign = a >> min(at + length - 1, bits - 1) & 1 if signed and length else 0
    out = 0
    for place in range(bits):
        inside = place < length and at + place < bits
        out |= (a >> at + place & 1 if inside else sign) << place
    return out


def _insert(a: int, b: int, at: int, length: int, bits: int) -> int:
    """bfi (PTX ISA 9.7.1.20), bit by bit."""
    for place in range(length):
        if at + place < bits:
            b = b & ~(1 << at + place) | (a >> place & 1) << at + place
    return b


def _highest(value: int) -> int:
    return value.bit_length() - 1 & _WORD


def _bytes_of(value: int, signed: bool) -> list[int]:
    parts = [value >> 8 * place & 0xFF for place in range(4)]
    return [_signed(part, 8) for part in parts] if signed else parts


def _from_bytes(parts: list[int]) -> int:
    return sum(part << 8 * place for place, part in enumerate(parts))


def _field_row(a: int, b: int, i: int) -> tuple[list[int], list[int]]:
    at, length, wide = b & 63, b >> 26, a | b << 32
    both = [wide >> 8 * place & 0xFF for place in range(8)]
    turn, over = at & 31, min(at, 32)
    sign_length = min(at, 32)
    control = at & 3
    signed_a, signed_b = _signed(a, 32), _signed(b, 32)
    halves = _signed(a, 16), _signed(a >> 16, 16)
    narrow = [
        _extract(a, at, length, 32, False), _extract(a, at, length, 32, True), _insert(b, a, at, length, 32),
        _highest(a), _highest(a ^ (_WORD if a >> 31 else 0)), 31 - a.bit_length() + 1 & _WORD if a else _WORD,
        a ^ b ^ i, a & b | ~a & i,
        (wide << turn) >> 32, wide >> over,
        a << at if at < 32 else 0, signed_a >> min(at, 31),
        _from_bytes(both[control : control + 4]),
        _from_bytes([both[2 * (control & 1) + (place & 1)] for place in range(4)]),
        _from_bytes([both[max(place, control)] for place in range(4)]),
        i + abs(signed_a - signed_b), int(at == 0), _signed(a, sign_length) if sign_length else 0,
        ((1 << (length & 31)) - 1) << turn,
        i + halves[0] * (b & 0xFF) + halves[1] * (b >> 8 & 0xFF),
        i + sum(x * y for x, y in zip(_bytes_of(a, False), _bytes_of(b, True), strict=True)),
        _signed(a, 24) * _signed(b, 24),
    ]  # fmt: skip
    mirrored = int(f"{wide:064b}"[::-1], 2)
    shifted = _signed(wide, 64) >> at
    long = [
        _extract(wide, at, length, 64, True), _insert(wide, _LONG, at, length, 64), mirrored,
        64 - wide.bit_length() | wide.bit_count() << 32, shifted,
        (_signed(wide, 64) * _signed(mirrored, 64) >> 64) + shifted,
    ]  # fmt: skip
    return [value & _WORD for value in narrow], [value & _LONG for value in long]


def _fields() -> Case:
    count = 640
    random = seeded("fields")
    a, b = (random.integers(0, 1 << 32, (2, count)) >> random.integers(0, 32, (2, count))).astype(np.uint32)
    a[:4], b[2:6] = (0, _WORD, 1 << 31, 0), (0, 32, 31 | 32 << 26, 63 | 63 << 26)
    # The lengths of the fields sit in the upper six bits.
    b[6:] = b[6:] & 0x3FFFFFF | random.integers(0, 64, count - 6).astype(np.uint32) << 26
    rows = [_field_row(x, y, i) for i, (x, y) in enumerate(zip(a.tolist(), b.tolist(), strict=True))]
    narrow = np.array([row[0] for row in rows], np.uint32)
    long = np.array([row[1] for row in rows], np.uint64)
    want = np.concatenate([narrow.view(np.uint64), long], 1)
    return Case("fields", PATH, "fields", (10, 1, 1), (64, 1, 1), (a, b, blank(want.shape, np.uint64)),
                {2: Expected(want)}, tags=_TAGS)  # fmt: skip


def _choice_row(a: int, b: int) -> list[int]:
    x, y = _signed(a, 32), _signed(b, 32)
    less, both = x < y, (a > b) != (x < y)
    h0, h1, h2 = a & 0xFFFF, a >> 16, b & 0xFFFF
    s0, s2 = _signed(h0, 16), _signed(h2, 16)
    high = h0 * h2 >> 16
    h5 = (h0 * h2 & 0xFFFF) * h1 + high & 0xFFFF
    rest = abs(s0) % 37 * (1 if s0 >= 0 else -1)
    pair = min(s0, s2) & 0xFFFF | max(h1, h2) << 16
    row = [
        a if less else b + 1, _WORD if both else 7, a if x >= 0 else b, _WORD if x >= y and not both else 0,
        min(x, y), max(a, b), s0 * s2, (h0 * h2 + a) ^ (abs(x) - ~b & _WORD),
        pair if not less and both else pair ^ 0x00010001, h5 | (-high & 0xFFFF) << 16,
        rest & 0xFFFF | (_signed(h1, 16) >> 3 & 0xFFFF) << 16, max(min(x + y, (1 << 31) - 1), -(1 << 31)),
    ]  # fmt: skip
    return [value & _WORD for value in row]


def _choices() -> Case:
    count = 960
    random = seeded("choices")
    a, b = random.integers(0, 1 << 32, (2, count)).astype(np.uint32)
    b[::5] = a[::5]
    b[1::5] ^= 1 << 31
    a[2], b[3], a[4] = 1 << 31, 1 << 31, 0
    want = np.array([_choice_row(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)], np.uint32)
    return Case("choices", PATH, "choices", (20, 1, 1), (48, 1, 1), (a, b, blank(want.shape, np.uint32)),
                {2: Expected(want)}, tags=_TAGS)  # fmt: skip


def _bf16_of_double(values: Array) -> Array:
    # Rounded once, to eight bits, even; no subnormal results.
    fraction, exponent = np.frexp(values)
    rounded = np.ldexp(np.rint(np.ldexp(fraction, 8)), exponent - 8)
    return (rounded.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def _half_pairs() -> Case:
    count = 1024
    random = seeded("half_pairs")
    a, b = (random.uniform(0.25, 4, (2, count, 2)) * random.choice([-1, 1], (2, count, 2))).astype(np.float16)
    as_bf16 = [(side.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64) for side in (a, b)]
    fused = (a.astype(np.float64) * b + a).astype(np.float16)
    less = a < b
    columns = [
        a + b, np.where(fused > 0, fused, np.float16(0)), np.minimum(a, b), np.maximum(a, b),
        (a + b).clip(0, 1) + np.float16(0), -a, np.abs(b),
    ]  # fmt: skip
    words = [column.astype(np.float16).view(np.uint32)[:, 0] for column in columns]
    words.append((less[:, 0] | less[:, 1] << 1).astype(np.uint32))
    words.append(_bf16_of_double(as_bf16[0] * as_bf16[1] + as_bf16[1]).view(np.uint32)[:, 0])
    low = (a[:, 0] - b[:, 1]).view(np.uint16)
    high = _bf16_of_double(as_bf16[0][:, 1] * as_bf16[1][:, 0])
    words.append(low | high.astype(np.uint32) << 16)
    want = np.stack(words, 1)
    return Case("half_pairs", PATH, "half_pairs", (8, 1, 1), (128, 1, 1),
                (a, b, blank(want.shape, np.uint32)), {2: Expected(want)},
                tags=frozenset({"hand", "f16", "bf16"}))  # fmt: skip


def _rare() -> Case:
    count = 512
    a = seeded("rare").integers(0, 1 << 32, count, np.uint32)
    block = seeded("rare's block").integers(0, 1 << 32, 12, np.uint32)
    v = (a + a ^ a) + a
    taken = block[v & 11]
    # All that the kernel asks of clocks, multiprocessors and clusters of one block holds.
    want = np.stack([v, np.full(count, 31), taken, np.full(count, block[5] + block[7])], 1).astype(np.uint32)
    return Case("rare", RARE, "rare", (4, 1, 1), (128, 1, 1), (a, blank(want.shape, np.uint32), block.tobytes()),
                {1: Expected(want)}, tags=_TAGS)  # fmt: skip


def _clamped(value: int, low: int, high: int) -> int:
    return min(max(value, low), high)


def _nth_set(mask: int, base: int, nth: int) -> int:
    """fns with an offset above zero (PTX ISA 9.7.1.17)."""
    places = [place for place in range(base, 32) if mask >> place & 1]
    return places[nth - 1] if nth <= len(places) else _WORD


def _packed_row(a: int, b: int, i: int) -> list[int]:
    x, y = _signed(a, 32), _signed(b, 32)
    halves = [(a & 0xFFFF, b & 0xFFFF), (a >> 16, b >> 16)]
    row = [
        _clamped(x, -(1 << 15), (1 << 15) - 1) << 16 | _clamped(y, -(1 << 15), (1 << 15) - 1) & 0xFFFF,
        i << 16 | _clamped(x, 0, 255) << 8 | _clamped(y, 0, 255),
        sum((p + q & 0xFFFF) << 16 * place for place, (p, q) in enumerate(halves)),
        sum((min(_signed(p, 16), _signed(q, 16)) & 0xFFFF) << 16 * place for place, (p, q) in enumerate(halves)),
        sum(max(p, q) << 16 * place for place, (p, q) in enumerate(halves)),
        max(min(x, y), 0),
        i + _signed(a, 16) * _signed(b >> 16, 8) + _signed(a >> 16, 16) * _signed(b >> 24, 8),
        i + sum(p * q for p, q in zip(_bytes_of(a, False), _bytes_of(b, False), strict=True)),
        _nth_set(a, 3, 2),
    ]  # fmt: skip
    return [value & _WORD for value in row]


def _packed() -> Case:
    count = 640
    random = seeded("packed")
    a, b = (random.integers(0, 1 << 32, (2, count)) >> random.integers(0, 32, (2, count))).astype(np.uint32)
    a[::3] = ~a[::3]
    b[::4] = ~b[::4]
    rows = [_packed_row(x, y, i) for i, (x, y) in enumerate(zip(a.tolist(), b.tolist(), strict=True))]
    want = np.array(rows, np.uint32)
    return Case("packed", RARE, "packed", (10, 1, 1), (64, 1, 1), (a, b, blank(want.shape, np.uint32)),
                {2: Expected(want)}, tags=_TAGS)  # fmt: skip
