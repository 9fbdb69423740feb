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


def _logic(modifiers: Modifiers) -> Operation:
    """Build the operation of `and`, `or`, `xor` or `not`, of predicates or words."""
    name = modifiers.take_type(("pred", "b16", "b32", "b64"))
    modifiers.check_all_taken()
    dtype = BOOL if name == "pred" else BITS[name]
    count = 1 if modifiers.mnemonic == "not" else 2
    return from_expression((dtype,) * count, dtype, _LOGIC[modifiers.mnemonic])


def _logical_not(modifiers: Modifiers) -> Operation:
    """Build the operation of `cnot`: 1 for a word that is zero, else 0."""
    dtype = BITS[modifiers.take_type(("b16", "b32", "b64"))]
    modifiers.check_all_taken()
    return from_expression((dtype,), dtype, f"({{0}} == 0).astype(np.{dtype.name})")


def _lookup(a: Lanes, b: Lanes, c: Lanes, table: Lanes) -> Lanes:
    """Return, for each bit of the 32-bit words a, b, c, the bit of an 8-bit truth table that these three bits select.

    The three bits, a's highest, form the index of the table's bit (0 is its lowest). `table` is the same in all lanes,
    as PTX requires a constant.
    """
    # Without lanes there is no table to read, and no result that depends on it.
    truth_table = int(np.asarray(table).reshape(-1)[0]) if np.size(table) else 0
    result = np.zeros(np.broadcast(a, b, c).shape, np.uint32)
    # Each row of the table is a combination of three bits: set the result where a, b, c have it and its entry is 1.
    for row in range(8):
        if truth_table >> row & 1:
            result = result | ((a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c))
    return result


_PREDICATE_LOGIC: Mapping[str, Callable[[Lanes, Lanes], Lanes]] = {"or": np.logical_or, "and": np.logical_and}


def _lop3(modifiers: Modifiers) -> Operation:
    """Build the operation of `lop3`: any logical function of three words, given by its truth table (fourth operand).

    With .and or .or it has a second result, the predicate (result != 0) combined with a predicate operand.
    """
    modifiers.take_type(("b32",))
    name = modifiers.take_any(_PREDICATE_LOGIC)
    modifiers.check_all_taken()
    if name is None:
        return Operation((U32,) * 4, (U32,), _lookup)
    combine = _PREDICATE_LOGIC[name]

    def lookup_and_combine(a: Lanes, b: Lanes, c: Lanes, table: Lanes, predicate: Lanes) -> tuple[Lanes, Lanes]:
        """Return the word from the truth table, and the predicate (word != 0) combined with `predicate`."""
        result = _lookup(a, b, c, table)
        return result, combine(result != 0, predicate)

    return Operation((U32,) * 4 + (BOOL,), (U32, BOOL), lookup_and_combine)


_SHIFT_RIGHT_TYPES = ("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64")


def _shift(modifiers: Modifiers) -> Operation:
    """Build the operation of `shl` or `shr`; for signed types `shr` fills with copies of the sign bit.

    A shift amount above the width counts as the width: all bits are shifted out.
    """
    if modifiers.mnemonic == "shl":
        dtype: np.dtype[Any] = BITS[modifiers.take_type(("b16", "b32", "b64"))]
        symbol = "<<"
    else:
        dtype = {**BITS, **INTEGERS}[modifiers.take_type(_SHIFT_RIGHT_TYPES)]
        symbol = ">>"
    modifiers.check_all_taken()
    # For these types NumPy's own shift does that: it gives 0 for amounts of at least the width.
    if dtype in (U32, U64):
        return from_expression((dtype, U32), dtype, f"{{0}} {symbol} {{1}}")
    width = 8 * dtype.itemsize
    # For others the amount is made a value of their own type, as NumPy might convert both operands to a wider type.
    # Limited to the width it fits; a shift by the width gives 0, or copies of the sign bit.
    return from_expression(
        (dtype, U32), dtype, f"{{0}} {symbol} np.minimum({{1}}, np.uint32({width})).astype(np.{dtype.name})"
    )


def _funnel_shift(modifiers: Modifiers) -> Operation:
    """Build the operation of `shf` (funnel shift): shift the 64-bit word b:a (b is the high half), take 32 bits of it.

    These are the upper half after a left shift, the lower half after a right shift. The shift amount counts modulo 32
    with .wrap, and as 32 if it is larger with .clamp.
    """
    modifiers.take_type(("b32",))
    left = modifiers.take_required(("l", "r"), "direction") == "l"
    wrap = modifiers.take_required(("clamp", "wrap"), "mode") == "wrap"
    modifiers.check_all_taken()

    def shift(a: Lanes, b: Lanes, amount: Lanes) -> Lanes:
        """Shift b:a left (if `left`) or right, and return the upper or the lower half; by at most 32, or modulo 32."""
        count = (amount & np.uint32(31) if wrap else np.minimum(amount, np.uint32(32))).astype(U64)
        word = a.astype(U64) | (b.astype(U64) << np.uint64(32))
        return ((word << count) >> np.uint64(32) if left else word >> count).astype(U32)

    return Operation((U32, U32, U32), (U32,), shift)


def _low_bits(count: Lanes) -> Lanes:
    """Return 64-bit words with the lowest `count` bits set; all bits for counts of 64 and more."""
    return np.where(count >= np.uint64(64), ~np.uint64(0), (np.uint64(1) << count) - np.uint64(1))


def _field_operand_mask(dtype: np.dtype[Any]) -> Lanes:
    """Return the mask of the bits that count in the position and length operands of bfe and bfi on words of `dtype`.

    For 32-bit words these are the lowest eight (PTX ISA 9.7.1: values of 0 to 255). For 64-bit words all of them do:
    the compiler expands the instruction into several, which limit larger values to the width.
    """
    return np.uint32(255 if dtype.itemsize == 4 else 0xFFFFFFFF)


def _extract(modifiers: Modifiers) -> Operation:
    """Build the operation of `bfe`: `length` bits of a from `position` upwards, sign-extended for signed types.

    If a signed field ends beyond the word, the word's highest bit is its sign.
    """
    dtype = INTEGERS[modifiers.take_type(("u32", "u64", "s32", "s64"))]
    modifiers.check_all_taken()
    width = np.uint64(8 * dtype.itemsize)
    operand_mask = _field_operand_mask(dtype)
    unsigned = np.dtype(f"u{dtype.itemsize}")

    def extract(a: Lanes, position: Lanes, length: Lanes) -> Lanes:
        """Return `length` bits of a from `position` upwards, extended by their sign or by zeros to the type `dtype`.

        The field ends with the word (of `width` bits) if it would reach beyond it. `operand_mask` selects the bits of
        position and length that count.
        """
        start, count = (position & operand_mask).astype(U64), (length & operand_mask).astype(U64)
        word = a.view(unsigned).astype(U64)
        mask = _low_bits(np.minimum(count, width - np.minimum(start, width)))
        field = (word >> start) & mask
        if dtype.kind == "i":
            # An empty field is 0 and has no sign; its count of 0 must not wrap around.
            sign_position = np.minimum(start + np.maximum(count, np.uint64(1)) - np.uint64(1), width - np.uint64(1))
            negative = ((word >> sign_position) & np.uint64(1) != 0) & (count > 0)
            field = np.where(negative, field | ~mask, field)
        return field.astype(unsigned).view(dtype)

    return Operation((dtype, U32, U32), (dtype,), extract)


def _insert(modifiers: Modifiers) -> Operation:
    """Build the operation of `bfi`: b with `length` bits from `position` upwards replaced by the lowest bits of a."""
    dtype = BITS[modifiers.take_type(("b32", "b64"))]
    modifiers.check_all_taken()
    operand_mask = _field_operand_mask(dtype)

    def insert(a: Lanes, b: Lanes, position: Lanes, length: Lanes) -> Lanes:
        """Return b with the lowest `length` bits of a in place of its own from `position` upwards.

        Computed in 64 bits; bits beyond the word are cut off at the end.
        """
        start, count = (position & operand_mask).astype(U64), (length & operand_mask).astype(U64)
        mask = _low_bits(count) << start
        return ((b.astype(U64) & ~mask) | ((a.astype(U64) << start) & mask)).astype(dtype)

    return Operation((dtype, dtype, U32, U32), (dtype,), insert)


def population_count(word: Lanes) -> Lanes:
    """Return the number of set bits in unsigned words of any width, as 32-bit words."""
    if hasattr(np, "bitwise_count"):
        return np.bitwise_count(word).astype(U32)
    # NumPy before 2.0: add adjacent fields in parallel, fields of 1, 2 and 4 bits; the product adds up the bytes in its
    # highest byte.
    bits = word.astype(U64)
    bits = bits - ((bits >> np.uint64(1)) & np.uint64(0x5555555555555555))
    bits = (bits & np.uint64(0x3333333333333333)) + ((bits >> np.uint64(2)) & np.uint64(0x3333333333333333))
    bits = (bits + (bits >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return ((bits * np.uint64(0x0101010101010101)) >> np.uint64(56)).astype(U32)


def bit_length(word: Lanes) -> Lanes:
    """Return one more than the position of the highest set bit of unsigned words, 0 for 0, as 32-bit words."""
    bits = word.astype(U64)
    # Set all bits below the highest one.
    for shift in (1, 2, 4, 8, 16, 32):
        bits = bits | (bits >> np.uint64(shift))
    return population_count(bits)


def _count(modifiers: Modifiers) -> Operation:
    """Build the operation of `popc` (number of set bits) or `clz` (number of leading zeros)."""
    dtype = BITS[modifiers.take_type(("b32", "b64"))]
    modifiers.check_all_taken()
    if modifiers.mnemonic == "popc":
        return Operation((dtype,), (U32,), population_count)
    width = np.uint32(8 * dtype.itemsize)
    return Operation((dtype,), (U32,), lambda a: width - bit_length(a))


def _find(modifiers: Modifiers) -> Operation:
    """Build the operation of `bfind`: the position of the highest set bit, or of the highest zero bit if negative.

    With .shiftamt it is the left shift that brings this bit to the top. Without such a bit it is 0xFFFFFFFF.
    """
    dtype = INTEGERS[modifiers.take_type(("u32", "u64", "s32", "s64"))]
    shift_amount = modifiers.take_flag("shiftamt")
    modifiers.check_all_taken()
    unsigned = np.dtype(f"u{dtype.itemsize}")
    top = np.uint32(8 * dtype.itemsize - 1)

    def find(a: Lanes) -> Lanes:
        """Return the position of the highest significant bit, or with .shiftamt its distance from the top bit.

        For negative numbers that is the highest zero bit. Without such a bit return 0xFFFFFFFF.
        """
        magnitude = np.where(a < 0, ~a, a) if dtype.kind == "i" else np.asarray(a)
        length = bit_length(magnitude.view(unsigned))
        # Wraps around to 0xFFFFFFFF for a length of 0.
        position = length - np.uint32(1)
        return np.where(length == 0, position, top - position) if shift_amount else position

    return Operation((dtype,), (U32,), find)


# Steps that reverse the bits of a 32-bit word: swap adjacent fields of so many bits. The mask selects the lower fields.
_SWAPS = (
    (1, 0x5555555555555555),
    (2, 0x3333333333333333),
    (4, 0x0F0F0F0F0F0F0F0F),
    (8, 0x00FF00FF00FF00FF),
    (16, 0x0000FFFF0000FFFF),
)


def _reverse(modifiers: Modifiers) -> Operation:
    """Build the operation of `brev`: the bits of a word in reverse order."""
    dtype = BITS[modifiers.take_type(("b32", "b64"))]
    modifiers.check_all_taken()

    def reverse(a: Lanes) -> Lanes:
        """Return the words with their bits in reverse order, by swapping fields of 1, 2, 4, 8, 16 (and 32) bits."""
        word = a.astype(U64)
        # The mask selects the lower one of each two adjacent fields, and the distance is their width.
        for distance, mask in _SWAPS:
            shift, field = np.uint64(distance), np.uint64(mask)
            word = ((word >> shift) & field) | ((word & field) << shift)
        if dtype == U64:
            word = (word >> np.uint64(32)) | (word << np.uint64(32))
        return word.astype(dtype)

    return Operation((dtype,), (dtype,), reverse)


def _find_nth(modifiers: Modifiers) -> Operation:
    """Build the operation of `fns`: the position of the n-th set bit of a mask, counted from a base position.

    A positive n counts upwards, a negative one downwards. An n of 0 tests the bit at the base alone. Without such a bit
    the result is 0xFFFFFFFF.
    """
    modifiers.take_type(("b32",))
    modifiers.check_all_taken()

    def find_nth(mask: Lanes, base: Lanes, n: Lanes) -> Lanes:
        """Return the position of the n-th set bit of 32-bit masks, counted from `base`; 0xFFFFFFFF if there is none."""
        mask, base, n = np.broadcast_arrays(mask, base, n)
        # With n = 0 the bit at the base has to be set: one bit to find, too.
        remaining = np.maximum(np.abs(n.astype(np.int64)), 1)
        step = np.where(n < 0, -1, 1)
        position = base.astype(np.int64)
        result = np.full(mask.shape, 0xFFFFFFFF, U32)
        for _ in range(32):
            inside = (position >= 0) & (position < 32)
            # A shift by a position outside of the mask is not defined; such lanes test bit 0 and ignore it.
            is_set = inside & ((mask >> (np.where(inside, position, 0).astype(U32))) & np.uint32(1) != 0)
            remaining = remaining - is_set
            result = np.where(is_set & (remaining == 0), position.astype(U32), result)
            # With n = 0 the search ends here: go to a position outside of the mask.
            position = np.where(n == 0, 32, position + step)
        return result

    return Operation((U32, U32, S32), (U32,), find_nth)


def _mask(modifiers: Modifiers) -> Operation:
    """Build the operation of `bmsk`: a 32-bit word with `length` set bits from `position` upwards.

    Operands above 31 count modulo 32 with .wrap, and as 32 with .clamp.
    """
    modifiers.take_type(("b32",))
    clamp = modifiers.take_required(("clamp", "wrap"), "mode") == "clamp"
    modifiers.check_all_taken()

    def make_mask(position: Lanes, length: Lanes) -> Lanes:
        """Return 32-bit words with `length` set bits from `position` upwards, as far as they fit the word."""
        # .wrap: operands count modulo 32.
        start, count = (position & np.uint32(31)).astype(U64), (length & np.uint32(31)).astype(U64)
        if clamp:
            # Operands below 32 are the same in both modes.
            start = np.where(position >= 32, np.uint64(32), start)
            count = np.where(length >= 32, np.uint64(32), count)
        return (_low_bits(count) << start).astype(U32)

    return Operation((U32, U32), (U32,), make_mask)


def _extend(modifiers: Modifiers) -> Operation:
    """Build the operation of `szext`: the lowest `length` bits of a, sign-extended (s32) or zero-extended (u32).

    A length above 31 counts modulo 32 with .wrap, and as 32 with .clamp.
    """
    signed = modifiers.take_type(("u32", "s32")) == "s32"
    clamp = modifiers.take_required(("clamp", "wrap"), "mode") == "clamp"
    modifiers.check_all_taken()
    dtype = S32 if signed else U32

    def extend(a: Lanes, length: Lanes) -> Lanes:
        """Return the lowest `length` bits of a, extended to 32 bits by their sign if `signed`, else by zeros.

        A length above 31 counts as 32 if `clamp` (the mode .clamp), else modulo 32 (the mode .wrap).
        """
        count = (length & np.uint32(31)).astype(U64)
        if clamp:
            # Smaller lengths are the same in both modes.
            count = np.where(length >= 32, np.uint64(32), count)
        word = a.view(U32).astype(U64)
        mask = _low_bits(count)
        field = word & mask
        if signed:
            # The sign is the field's highest bit. An empty field has none, and its count of 0 must not wrap around.
            sign = np.where(count > 0, (word >> (np.maximum(count, np.uint64(1)) - np.uint64(1))) & np.uint64(1), 0)
            field = np.where(sign != 0, field | ~mask, field)
        return field.astype(U32).view(dtype)

    return Operation((dtype, U32), (dtype,), extend)


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
    """Return 32-bit words whose bytes are picked from the eight bytes of b:a (b is the high word).

    Nibble i of `selector` picks byte i of the result: its lower three bits are the index of the source byte; with bit 3
    the result is eight copies of that byte's sign bit.
    """
    if np.ndim(selector) == 0:
        # One selector for all lanes.
        return _permute_bytes_uniformly(a, b, int(selector))
    source = a.astype(U64) | (b.astype(U64) << np.uint64(32))
    result: Any = np.uint32(0)
    for index in range(4):
        nibble = selector >> np.uint32(4 * index)
        # The shift by 3 turns the index of a byte into that of its lowest bit.
        byte = (source >> ((nibble & np.uint32(7)) << np.uint32(3)).astype(U64)).astype(U32) & np.uint32(0xFF)
        sign = (byte >> np.uint32(7)) * np.uint32(0xFF)
        result = result | (np.where((nibble & np.uint32(8)) != 0, sign, byte) << np.uint32(8 * index))
    return result


def _permute_bytes_uniformly(a: Lanes, b: Lanes, selector: int) -> Lanes:
    """Return the same as `_permute_bytes`, faster, if all lanes have the same selector.

    Nibble i of `selector` picks byte i of the result: bit 2 picks the word b instead of a, bits 0 and 1 the byte in it;
    with bit 3 the result is eight copies of that byte's sign bit.
    """
    result: Any = np.uint32(0)
    for index in range(4):
        nibble = selector >> 4 * index & 15
        # The bytes of a have the indices 0 to 3, those of b 4 to 7.
        word = b if nibble & 4 else a
        byte = (word >> np.uint32(8 * (nibble & 3))) & np.uint32(0xFF)
        if nibble & 8:
            byte = (byte >> np.uint32(7)) * np.uint32(0xFF)
        result = result | (byte << np.uint32(8 * index))
    return result


def _permute(modifiers: Modifiers) -> Operation:
    """Build the operation of `prmt`: a permutation of the bytes of two words, by a selector or in a special mode.

    In a special mode the third operand, modulo 4, picks one of the mode's selectors.
    """
    mode = modifiers.take_any(_PERMUTE_MODES)
    modifiers.take_type(("b32",))
    modifiers.check_all_taken()
    if mode is None:
        return Operation((U32, U32, U32), (U32,), _permute_bytes)
    selectors = np.array(_PERMUTE_MODES[mode], U32)
    return Operation((U32, U32, U32), (U32,), lambda a, b, c: _permute_bytes(a, b, selectors[c & np.uint32(3)]))


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
