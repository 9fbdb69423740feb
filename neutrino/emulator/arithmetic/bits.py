"""Logic and shift (PTX ISA 9.7.8), and the integer instructions that look at single bits (9.7.1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from neutrino.emulator.arithmetic.operation import (
    BITS,
    BOOL,
    INTEGERS,
    S32,
    U32,
    U64,
    Lanes,
    Modifiers,
    Operation,
    from_expression,
)

_LOGIC = {"and": "{0} & {1}", "or": "{0} | {1}", "xor": "{0} ^ {1}", "not": "~{0}"}


def _logic(words: Modifiers) -> Operation:
    """and, or, xor, not."""
    name = words.type(("pred", "b16", "b32", "b64"))
    words.finish()
    dtype = BOOL if name == "pred" else BITS[name]
    count = 1 if words.mnemonic == "not" else 2
    return from_expression((dtype,) * count, dtype, _LOGIC[words.mnemonic])


def _logical_not(words: Modifiers) -> Operation:
    """cnot."""
    dtype = BITS[words.type(("b16", "b32", "b64"))]
    words.finish()
    return from_expression((dtype,), dtype, f"({{0}} == 0).astype(np.{dtype.name})")


def _lookup(a: Lanes, b: Lanes, c: Lanes, table: Lanes) -> Lanes:
    """Bit by bit, the bit of the 8-bit `table` that a, b, c select; `table` is the same in all lanes."""
    chosen = int(np.asarray(table).reshape(-1)[0]) if np.size(table) else 0
    result = np.zeros(np.broadcast(a, b, c).shape, np.uint32)
    for row in range(8):
        if chosen >> row & 1:
            result = result | ((a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c))
    return result


_PREDICATE_LOGIC: Mapping[str, Callable[[Lanes, Lanes], Lanes]] = {"or": np.logical_or, "and": np.logical_and}


def _lop3(words: Modifiers) -> Operation:
    """lop3; with .and or .or also the predicate (d != 0) BoolOp q."""
    words.type(("b32",))
    name = words.choose(_PREDICATE_LOGIC)
    words.finish()
    if name is None:
        return Operation((U32,) * 4, (U32,), _lookup)
    combine = _PREDICATE_LOGIC[name]

    def function(a: Lanes, b: Lanes, c: Lanes, table: Lanes, predicate: Lanes) -> tuple[Lanes, Lanes]:
        result = _lookup(a, b, c, table)
        return result, combine(result != 0, predicate)

    return Operation((U32,) * 4 + (BOOL,), (U32, BOOL), function)


def _shift(words: Modifiers) -> Operation:
    """shl, shr: amounts above the width count as the width."""
    if words.mnemonic == "shl":
        dtype: np.dtype[Any] = BITS[words.type(("b16", "b32", "b64"))]
        symbol = "<<"
    else:
        dtype = {**BITS, **INTEGERS}[words.type(("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64"))]
        symbol = ">>"
    words.finish()
    # NumPy's own shift is defined for every amount that fits its type, and does just this.
    if dtype in (U32, U64):
        return from_expression((dtype, U32), dtype, f"{{0}} {symbol} {{1}}")
    width = 8 * dtype.itemsize
    return from_expression(
        (dtype, U32), dtype, f"{{0}} {symbol} np.minimum({{1}}, np.uint32({width})).astype(np.{dtype.name})"
    )


def _funnel_shift(words: Modifiers) -> Operation:
    """shf: 32 bits of the 64-bit word whose high half is b and whose low half is a."""
    words.type(("b32",))
    left = words.require(("l", "r"), "direction") == "l"
    wrap = words.require(("clamp", "wrap"), "mode") == "wrap"
    words.finish()

    def function(a: Lanes, b: Lanes, amount: Lanes) -> Lanes:
        count = (amount & np.uint32(31) if wrap else np.minimum(amount, np.uint32(32))).astype(U64)
        word = a.astype(U64) | (b.astype(U64) << np.uint64(32))
        return ((word << count) >> np.uint64(32) if left else word >> count).astype(U32)

    return Operation((U32, U32, U32), (U32,), function)


def _ones(count: Lanes) -> Lanes:
    """64-bit words with the lowest `count` bits set, for counts of any size."""
    return np.where(count >= np.uint64(64), ~np.uint64(0), (np.uint64(1) << count) - np.uint64(1))


def _field_mask(dtype: np.dtype[Any]) -> Lanes:
    """The bits of a field's place and length that count (PTX ISA 9.7.1: those of 0 to 255).

    Of 64-bit words all do: the compiler makes several instructions of these, which hold larger numbers at the width.
    """
    return np.uint32(255 if dtype.itemsize == 4 else 0xFFFFFFFF)


def _extract(words: Modifiers) -> Operation:
    """bfe."""
    dtype = INTEGERS[words.type(("u32", "u64", "s32", "s64"))]
    words.finish()
    width = np.uint64(8 * dtype.itemsize)
    kept = _field_mask(dtype)
    unsigned = np.dtype(f"u{dtype.itemsize}")

    def function(a: Lanes, position: Lanes, length: Lanes) -> Lanes:
        start, count = (position & kept).astype(U64), (length & kept).astype(U64)
        word = a.view(unsigned).astype(U64)
        mask = _ones(np.minimum(count, width - np.minimum(start, width)))
        field = (word >> start) & mask
        if dtype.kind == "i":
            top = np.minimum(start + np.maximum(count, np.uint64(1)) - np.uint64(1), width - np.uint64(1))
            negative = ((word >> top) & np.uint64(1) != 0) & (count > 0)
            field = np.where(negative, field | ~mask, field)
        return field.astype(unsigned).view(dtype)

    return Operation((dtype, U32, U32), (dtype,), function)


def _insert(words: Modifiers) -> Operation:
    """bfi."""
    dtype = BITS[words.type(("b32", "b64"))]
    words.finish()
    kept = _field_mask(dtype)

    def function(a: Lanes, b: Lanes, position: Lanes, length: Lanes) -> Lanes:
        start, count = (position & kept).astype(U64), (length & kept).astype(U64)
        mask = _ones(count) << start
        return ((b.astype(U64) & ~mask) | ((a.astype(U64) << start) & mask)).astype(dtype)

    return Operation((dtype, dtype, U32, U32), (dtype,), function)


def population_count(word: Lanes) -> Lanes:
    """The number of bits that are set in unsigned words, as 32-bit words."""
    if hasattr(np, "bitwise_count"):
        return np.bitwise_count(word).astype(U32)
    # NumPy before 2.0: sums of neighbouring fields, each step twice as wide.
    bits = word.astype(U64)
    bits = bits - ((bits >> np.uint64(1)) & np.uint64(0x5555555555555555))
    bits = (bits & np.uint64(0x3333333333333333)) + ((bits >> np.uint64(2)) & np.uint64(0x3333333333333333))
    bits = (bits + (bits >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return ((bits * np.uint64(0x0101010101010101)) >> np.uint64(56)).astype(U32)


def bit_length(word: Lanes) -> Lanes:
    """One more than the position of the highest bit that is set in unsigned words; 0 for 0. 32-bit words."""
    bits = word.astype(U64)
    for shift in (1, 2, 4, 8, 16, 32):
        bits = bits | (bits >> np.uint64(shift))
    return population_count(bits)


def _count(words: Modifiers) -> Operation:
    """popc, clz."""
    dtype = BITS[words.type(("b32", "b64"))]
    words.finish()
    if words.mnemonic == "popc":
        return Operation((dtype,), (U32,), population_count)
    width = np.uint32(8 * dtype.itemsize)
    return Operation((dtype,), (U32,), lambda a: width - bit_length(a))


def _find(words: Modifiers) -> Operation:
    """bfind: the highest bit that is set, or for a negative number the highest that is not; all ones for none."""
    dtype = INTEGERS[words.type(("u32", "u64", "s32", "s64"))]
    shift_amount = words.flag("shiftamt")
    words.finish()
    unsigned = np.dtype(f"u{dtype.itemsize}")
    top = np.uint32(8 * dtype.itemsize - 1)

    def function(a: Lanes) -> Lanes:
        magnitude = np.where(a < 0, ~a, a) if dtype.kind == "i" else np.asarray(a)
        length = bit_length(magnitude.view(unsigned))
        position = length - np.uint32(1)
        return np.where(length == 0, position, top - position) if shift_amount else position

    return Operation((dtype,), (U32,), function)


_SWAPS = (
    (1, 0x5555555555555555),
    (2, 0x3333333333333333),
    (4, 0x0F0F0F0F0F0F0F0F),
    (8, 0x00FF00FF00FF00FF),
    (16, 0x0000FFFF0000FFFF),
)


def _reverse(words: Modifiers) -> Operation:
    """brev."""
    dtype = BITS[words.type(("b32", "b64"))]
    words.finish()

    def function(a: Lanes) -> Lanes:
        word = a.astype(U64)
        for distance, mask in _SWAPS:
            shift, field = np.uint64(distance), np.uint64(mask)
            word = ((word >> shift) & field) | ((word & field) << shift)
        if dtype == U64:
            word = (word >> np.uint64(32)) | (word << np.uint64(32))
        return word.astype(dtype)

    return Operation((dtype,), (dtype,), function)


def _find_nth(words: Modifiers) -> Operation:
    """fns: the position of the n-th bit that is set, counted from a base, upwards or downwards."""
    words.type(("b32",))
    words.finish()

    def function(mask: Lanes, base: Lanes, offset: Lanes) -> Lanes:
        mask, base, offset = np.broadcast_arrays(mask, base, offset)
        left = np.maximum(np.abs(offset.astype(np.int64)), 1)
        step = np.where(offset < 0, -1, 1)
        position = base.astype(np.int64)
        result = np.full(mask.shape, 0xFFFFFFFF, U32)
        for _ in range(32):
            inside = (position >= 0) & (position < 32)
            bit = inside & ((mask >> (np.where(inside, position, 0).astype(U32))) & np.uint32(1) != 0)
            left = left - bit
            result = np.where(bit & (left == 0), position.astype(U32), result)
            position = np.where(offset == 0, 32, position + step)
        return result

    return Operation((U32, U32, S32), (U32,), function)


def _mask(words: Modifiers) -> Operation:
    """bmsk: ones from bit a on, b of them."""
    words.type(("b32",))
    clamp = words.require(("clamp", "wrap"), "mode") == "clamp"
    words.finish()

    def function(position: Lanes, length: Lanes) -> Lanes:
        start, count = (position & np.uint32(31)).astype(U64), (length & np.uint32(31)).astype(U64)
        if clamp:
            start = np.where(position >= 32, np.uint64(32), start)
            count = np.where(length >= 32, np.uint64(32), count)
        return (_ones(count) << start).astype(U32)

    return Operation((U32, U32), (U32,), function)


def _extend(words: Modifiers) -> Operation:
    """szext: the lowest b bits of a, sign- or zero-extended."""
    signed = words.type(("u32", "s32")) == "s32"
    clamp = words.require(("clamp", "wrap"), "mode") == "clamp"
    words.finish()
    dtype = S32 if signed else U32

    def function(a: Lanes, length: Lanes) -> Lanes:
        count = (length & np.uint32(31)).astype(U64)
        if clamp:
            count = np.where(length >= 32, np.uint64(32), count)
        word = a.view(U32).astype(U64)
        mask = _ones(count)
        field = word & mask
        if signed:
            sign = np.where(count > 0, (word >> (np.maximum(count, np.uint64(1)) - np.uint64(1))) & np.uint64(1), 0)
            field = np.where(sign != 0, field | ~mask, field)
        return field.astype(U32).view(dtype)

    return Operation((dtype, U32), (dtype,), function)


# PTX ISA 9.7.9, prmt, the table of its special modes: for each value of the two lowest bits of the selector the source
# byte of each byte of the result, written as the four nibbles of a selector of the generic mode.
_PERMUTE_MODES = {
    "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
    "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
    "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
    "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
    "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
    "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
}


def _permute_bytes(a: Lanes, b: Lanes, selector: Lanes) -> Lanes:
    """Each byte of the result is that of b:a that its nibble of `selector` names; with bit 3, copies of its sign."""
    if np.ndim(selector) == 0:
        return _permute_bytes_alike(a, b, int(selector))
    source = a.astype(U64) | (b.astype(U64) << np.uint64(32))
    result: Any = np.uint32(0)
    for index in range(4):
        nibble = selector >> np.uint32(4 * index)
        byte = (source >> ((nibble & np.uint32(7)) << np.uint32(3)).astype(U64)).astype(U32) & np.uint32(0xFF)
        sign = (byte >> np.uint32(7)) * np.uint32(0xFF)
        result = result | (np.where((nibble & np.uint32(8)) != 0, sign, byte) << np.uint32(8 * index))
    return result


def _permute_bytes_alike(a: Lanes, b: Lanes, selector: int) -> Lanes:
    """`_permute_bytes` where all lanes have the same selector."""
    result: Any = np.uint32(0)
    for index in range(4):
        nibble = selector >> 4 * index & 15
        word = b if nibble & 4 else a
        byte = (word >> np.uint32(8 * (nibble & 3))) & np.uint32(0xFF)
        if nibble & 8:
            byte = (byte >> np.uint32(7)) * np.uint32(0xFF)
        result = result | (byte << np.uint32(8 * index))
    return result


def _permute(words: Modifiers) -> Operation:
    """prmt."""
    mode = words.choose(_PERMUTE_MODES)
    words.type(("b32",))
    words.finish()
    if mode is None:
        return Operation((U32, U32, U32), (U32,), _permute_bytes)
    selectors = np.array(_PERMUTE_MODES[mode], U32)
    return Operation((U32, U32, U32), (U32,), lambda a, b, mode: _permute_bytes(a, b, selectors[mode & np.uint32(3)]))


BUILDERS: Mapping[str, Callable[[Modifiers], Operation]] = {
    "and": _logic,
    "or": _logic,
    "xor": _logic,
    "not": _logic,
    "cnot": _logical_not,
    "lop3": _lop3,
    "shl": _shift,
    "shr": _shift,
    "shf": _funnel_shift,
    "bfe": _extract,
    "bfi": _insert,
    "popc": _count,
    "clz": _count,
    "bfind": _find,
    "brev": _reverse,
    "fns": _find_nth,
    "bmsk": _mask,
    "szext": _extend,
    "prmt": _permute,
}
