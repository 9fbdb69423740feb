"""Products of small matrices that the lanes of a warp hold together (PTX ISA 9.7.15, mma.sync).

The order and the precision in which the hardware adds are not specified; for f32 sums of f16, bf16 and tf32, and for
m8n8k4, `accumulation` has what an H200 does. Elsewhere products are exact, their sum with the accumulator is taken in
float64 and rounded once; with f64 each product is added by one fma, in the order of k. These as well are the H200's
bits on all that was tried, but of f16 accumulators and of e4m3 and e5m2 that were operands of like magnitudes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neutrino.emulator.arithmetic import double
from neutrino.emulator.arithmetic.accumulation import chained_sum, cut_sum
from neutrino.emulator.arithmetic.formats import FORMATS, canonical, decode
from neutrino.emulator.arithmetic.operation import F16, S32, U8, U32, Lanes, Modifiers

Words = NDArray[np.uint32]
"""A matrix per warp as the lanes hold it: 32-bit words [warps, 32 lanes, words per lane]."""
Layout = NDArray[np.int64]
"""How a matrix is distributed over the 32 lanes of a warp: for each element of the matrix, its index among the elements
that the lanes hold, those of lane 0 first."""


@dataclass(frozen=True)
class MatrixOperation:
    """The computation of an `mma.sync`: d = a @ b + c of small matrices, which the 32 lanes of a warp hold together.

    a, b, c, d: the number of 32-bit words that each lane holds of the operand (for each f64 two, the lower first).
    function: (uint32[warps, 32, a], uint32[warps, 32, b], uint32[warps, 32, c]) -> uint32[warps, 32, d]; it computes
    one product per warp.
    """

    a: int
    b: int
    c: int
    d: int
    function: Callable[[Words, Words, Words], Words]


# The bits of an element of each type.
_BITS = {
    "f64": 64,
    "f32": 32,
    "s32": 32,
    "tf32": 32,
    "f16": 16,
    "bf16": 16,
    "e4m3": 8,
    "e5m2": 8,
    "s8": 8,
    "u8": 8,
    "s4": 4,
    "u4": 4,
    "b1": 1,
}
# The shapes for each type of a and b, from the table of 9.7.15.1.
_SHAPES: dict[str, tuple[str, ...]] = {
    "f16": ("m8n8k4", "m16n8k8", "m16n8k16"),
    "bf16": ("m16n8k8", "m16n8k16"),
    "tf32": ("m16n8k4", "m16n8k8"),
    "f64": ("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"),
    "e4m3": ("m16n8k16", "m16n8k32"),
    "e5m2": ("m16n8k16", "m16n8k32"),
    "s8": ("m8n8k16", "m16n8k16", "m16n8k32"),
    "u8": ("m8n8k16", "m16n8k16", "m16n8k32"),
    "s4": ("m8n8k32", "m16n8k32", "m16n8k64"),
    "u4": ("m8n8k32", "m16n8k32", "m16n8k64"),
    "b1": ("m8n8k128", "m16n8k128", "m16n8k256"),
}
# The types of the accumulators for each type of a and b.
_ACCUMULATORS: dict[str, tuple[str, ...]] = {
    "f16": ("f16", "f32"),
    "bf16": ("f32",),
    "tf32": ("f32",),
    "f64": ("f64",),
    "e4m3": ("f16", "f32"),
    "e5m2": ("f16", "f32"),
    **dict.fromkeys(("s8", "u8", "s4", "u4", "b1"), ("s32",)),
}
_MIXABLE = ({"e4m3", "e5m2"}, {"s8", "u8"}, {"s4", "u4"})


def _lane_index(lane: Lanes, index: Lanes, per_lane: int) -> Layout:
    """Return the position of element `index` of `lane` in the array of all lanes' elements, those of lane 0 first.

    per_lane: the number of elements that each lane holds.
    """
    return np.asarray(lane * per_lane + index, np.int64)


def _layout_a(m: int, k: int, bits: int) -> Layout:
    """Return the layout, [m, k], of the a matrix with elements of `bits` bits, for all shapes but m8n8k4 with f16.

    A layout has, for each element of the matrix, its position among the elements of all lanes (see `_lane_index`). As
    in the figures of PTX ISA 9.7.15.5, a group of four lanes ("groupID") holds a row, and "threadID_in_group" is the
    position of a lane's word in k. A word holds elements that are adjacent in k; rows from 8 on are in the odd words.
    """
    row, column = np.indices((m, k))
    # The elements of a word; an f64, which takes two words, counts as one.
    per_word = max(32 // bits, 1)
    # The words of four lanes are adjacent in k.
    word = column // (4 * per_word)
    if m == 16:
        word = 2 * word + row // 8
    lane = 4 * (row % 8) + column // per_word % 4
    return _lane_index(lane, word * per_word + column % per_word, m * k // 32)


def _layout_b(k: int, n: int, bits: int) -> Layout:
    """Return the layout, [k, n], of the b matrix with elements of `bits` bits: as `_layout_a`, but transposed."""
    row, column = np.indices((k, n))
    per_word = max(32 // bits, 1)
    lane = 4 * column + row // per_word % 4
    return _lane_index(lane, row // (4 * per_word) * per_word + row % per_word, k * n // 32)


def _layout_c(m: int, n: int) -> Layout:
    """Return the layout, [m, n], of accumulators: each element's position among those of all lanes (`_lane_index`).

    A group of four lanes holds a row, each lane two adjacent elements of it; rows from 8 on follow as further elements.
    """
    row, column = np.indices((m, n))
    return _lane_index(4 * (row % 8) + column // 2, 2 * (row // 8) + column % 2, m * n // 32)


# m8n8k4 with f16 (9.7.15.5.1) computes four independent products. Product p belongs to the "quad pair" p: lanes 4p to
# 4p + 3 and 4p + 16 to 4p + 19. The first axis of these layouts is the product.


def _quad_pair_lane(product: Lanes, row: Lanes) -> Lanes:
    """Return the lane that holds row (or column) `row`, 0 to 7, of a matrix of `product`, 0 to 3, in m8n8k4 with f16.

    The lanes of product p are 4p to 4p + 3, for the rows 0 to 3, and 4p + 16 to 4p + 19, for the rows 4 to 7.
    """
    return 4 * product + row % 4 + 16 * (row // 4)


def _layout_a_quad_pairs(by_row: bool) -> Layout:
    """Return the layout, [product, m, k] = [4, 8, 4], of a: lanes hold rows, or parts of columns if not `by_row`.

    m8n8k4 with f16 computes four products. Product p belongs to lanes 4p to 4p + 3 and 4p + 16 to 4p + 19, each of
    which holds four elements of a.
    """
    product, row, column = np.indices((4, 8, 4))
    if by_row:
        return _lane_index(_quad_pair_lane(product, row), column, 4)
    # A lane holds rows 0 to 3 of a column, and the lane 16 above it rows 4 to 7.
    return _lane_index(4 * product + column + 16 * (row // 4), row % 4, 4)


def _layout_b_quad_pairs(by_row: bool) -> Layout:
    """Return the layout, [product, k, n] = [4, 4, 8], of b: lanes hold parts of rows, or columns if not `by_row`.

    m8n8k4 with f16 computes four products. Product p belongs to lanes 4p to 4p + 3 and 4p + 16 to 4p + 19, each of
    which holds four elements of b.
    """
    product, row, column = np.indices((4, 4, 8))
    if by_row:
        # A lane holds columns 0 to 3 of a row, and the lane 16 above it columns 4 to 7.
        return _lane_index(4 * product + row + 16 * (column // 4), column % 4, 4)
    return _lane_index(_quad_pair_lane(product, column), row, 4)


def _layout_c_quad_pairs(name: str) -> Layout:
    """Return the layout, [product, m, n] = [4, 8, 8], of accumulators of the type `name` (f16 or f32).

    m8n8k4 with f16 computes four products. Product p belongs to lanes 4p to 4p + 3 and 4p + 16 to 4p + 19, each of
    which holds eight elements: with f16 a row.
    """
    product, row, column = np.indices((4, 8, 8))
    if name == "f16":
        return _lane_index(_quad_pair_lane(product, row), column, 8)
    # Element i of a lane is in row (lane & 1) + (i & 2), column (i & 4) + (lane & 2) + (i & 1); rows from 4 on are in
    # the upper half of the warp.
    lane = 4 * product + (row & 1) + (column & 2) + 16 * (row // 4)
    return _lane_index(lane, (row & 2) + (column & 4) + (column & 1), 8)


def _values(words: Words, name: str) -> Lanes:
    """Unpack fragments, the parts of a matrix that lanes hold, [warps, 32, words], with elements of the type `name`.

    Return float64 values [warps, elements of all lanes], which are exact: no type has more than float64's 53 bits.
    """
    # Only contiguous arrays can be viewed as another type.
    words = np.ascontiguousarray(words)
    warps = len(words)
    if name == "b1":
        bits = np.unpackbits(words.view(U8), bitorder="little")
        return bits.reshape(warps, -1).astype(np.float64)
    if name in ("s4", "u4"):
        # Each byte has two elements, the first one in its lower bits.
        pairs = words.view(U8).reshape(warps, -1)
        nibbles = np.stack((pairs & np.uint8(15), pairs >> np.uint8(4)), -1).reshape(warps, -1).astype(np.int8)
        # In two's complement, a nibble above 7 is negative.
        return (nibbles - np.int8(16) * (nibbles > 7) if name == "s4" else nibbles).astype(np.float64)
    if name in FORMATS and name not in ("f16", "f32"):
        # Floating-point formats that NumPy does not have.
        return decode(words.view(FORMATS[name].word), name).reshape(warps, -1).astype(np.float64)
    dtype = {"s8": "i1", "u8": "u1", "f16": "f2", "f32": "f4", "f64": "f8", "s32": "i4"}[name]
    return words.view(dtype).reshape(warps, -1).astype(np.float64)


def _round_to_accumulators(values: Lanes, name: str, saturate: bool) -> Lanes:
    """Return float64 values as accumulators of the type `name` (f16, f32, f64 or s32), of the same shape.

    saturate: s32 accumulators are clamped to their range (.satfinite) instead of wrapped around.
    """
    if name == "f64":
        return values
    if name == "f32":
        return canonical(values.astype(np.float32))
    if name == "f16":
        return canonical(values.astype(F16))
    # Sums of these products are integers of less than 53 bits, so exact.
    whole = values.astype(np.int64)
    if saturate:
        limits = np.iinfo(S32)
        whole = np.clip(whole, limits.min, limits.max)
    return whole.astype(S32)


def _multiply(a: Lanes, b: Lanes, c: Lanes, name: str, exclusive: bool) -> Lanes:
    """Return a @ b + c, all float64, for elements of the type `name`.

    Shapes: a [..., m, k], b [..., k, n], c and the result [..., m, n]. f64 sums are fused multiply-adds in the order of
    k, as on an H200; all others are plain float64 sums. exclusive: for single bits (0.0 or 1.0), take the exclusive or
    of two elements in place of their product.
    """
    if name == "f64":
        total = c
        for k in range(a.shape[-1]):
            total = double.multiply_add(a[..., :, k, None], b[..., None, k, :], total, "rn")
        return total
    products = a @ b
    if exclusive:
        # For bits x and y, x ^ y is x + y - 2xy.
        products = a.sum(-1)[..., :, None] + b.sum(-2)[..., None, :] - 2 * products
    return products + c


def build(opcode: str) -> MatrixOperation | None:
    """Build the computation of the `mma.sync` instruction `opcode`; None if it is another instruction.

    Raise ValueError for an unknown shape, type or modifier, or a combination that does not exist.
    """
    modifiers = Modifiers(opcode)
    if modifiers.mnemonic != "mma":
        return None
    for required in ("sync", "aligned"):
        modifiers.take_required((required,), "modifier")
    has_popc = modifiers.take_flag("popc")
    bit_operation = modifiers.take_any(("xor", "and"))
    saturate = modifiers.take_flag("satfinite")
    # The types come last, in the order d, a, b, c.
    c_type, b_type, a_type, d_type = (modifiers.take_type(_BITS) for _ in range(4))
    if a_type not in _SHAPES or (a_type != b_type and {a_type, b_type} not in _MIXABLE):
        raise ValueError(f"{opcode}: .{a_type} and .{b_type} do not go together")
    if c_type not in _ACCUMULATORS[a_type] or d_type not in _ACCUMULATORS[a_type]:
        raise ValueError(f"{opcode}: .{d_type} and .{c_type} are no accumulators for .{a_type}")
    if (a_type == "b1") != has_popc or (a_type == "b1") != (bit_operation is not None):
        raise ValueError(f"{opcode}: .b1 goes with .xor.popc or .and.popc")
    shape = modifiers.take_required(_SHAPES[a_type], "shape")
    order_a = modifiers.take_required(("row", "col"), "layout of a")
    order_b = modifiers.take_required(("row", "col"), "layout of b")
    modifiers.check_all_taken()

    # A shape is written like m16n8k4.
    m, n, k = (int(number) for number in shape.replace("n", " ").replace("k", " ")[1:].split())
    # This instruction of older hardware computes four products at once, each in eight lanes (a "quad pair").
    in_quad_pairs = shape == "m8n8k4" and a_type == "f16"
    # An H200 truncates the summands of these, see `accumulation`.
    truncates = a_type in ("f16", "bf16", "tf32") and d_type == "f32"
    if in_quad_pairs:
        layout_a = _layout_a_quad_pairs(by_row=order_a == "row")
        layout_b = _layout_b_quad_pairs(by_row=order_b == "row")
        layout_c, layout_d = _layout_c_quad_pairs(c_type), _layout_c_quad_pairs(d_type)
    else:
        if (order_a, order_b) != ("row", "col"):
            raise ValueError(f"{opcode}: .{shape} is .row.col only")
        layout_a, layout_b = _layout_a(m, k, _BITS[a_type]), _layout_b(k, n, _BITS[b_type])
        layout_c = layout_d = _layout_c(m, n)
    # For each element that the lanes hold of d, its index in the matrix.
    inverse_layout_d = np.argsort(layout_d, axis=None)

    def multiply_add(a: Words, b: Words, c: Words) -> Words:
        """Return the fragments of d = a * b + c; all are uint32[warps, 32, words per lane].

        The layouts say where the lanes hold each element of a matrix; so they turn the elements of all lanes into
        matrices, and the inverse layout of d does the opposite.
        """
        left = np.take(_values(a, a_type), layout_a, axis=1)
        right = np.take(_values(b, b_type), layout_b, axis=1)
        accumulator = np.take(_values(c, c_type), layout_c, axis=1)
        # The hardware adds in three ways: f16 of m8n8k4 one product after the other, f32 sums with truncated summands,
        # all others as if exact (f64 in the order of k).
        if in_quad_pairs:
            result = chained_sum(left, right, accumulator)
        elif truncates:
            result = cut_sum(left, right, accumulator)
        else:
            result = _multiply(left, right, accumulator, a_type, bit_operation == "xor")
        result = np.take(result.reshape(len(a), -1), inverse_layout_d, axis=1)
        fragments = np.ascontiguousarray(_round_to_accumulators(result, d_type, saturate))
        return fragments.view(U32).reshape(len(a), 32, -1)

    # 32 lanes with words of 32 bits.
    def words_per_lane(layout: Layout, name: str) -> int:
        """Return how many 32-bit words of a matrix each of the 32 lanes holds. name: the type of its elements."""
        return layout.size * _BITS[name] // (32 * 32)

    return MatrixOperation(
        words_per_lane(layout_a, a_type),
        words_per_lane(layout_b, b_type),
        words_per_lane(layout_c, c_type),
        words_per_lane(layout_d, d_type),
        multiply_add,
    )
