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
# For each element of a matrix its place among the elements that the 32 lanes hold, the first lane's first.
Layout = NDArray[np.int64]


@dataclass(frozen=True)
class MatrixOperation:
    """What an `mma.sync` computes.

    a, b, c, d: 32-bit words that each lane holds of the operand (two, the lower first, for each f64).
    function: (uint32[warps, 32, a], uint32[warps, 32, b], uint32[warps, 32, c]) -> uint32[warps, 32, d].
    """

    a: int
    b: int
    c: int
    d: int
    function: Callable[[Words, Words, Words], Words]


# Bits of an element of each type.
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
# The shapes of each type of a and b, from the table of 9.7.15.1.
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
# The types of the accumulators that go with them.
_ACCUMULATORS: dict[str, tuple[str, ...]] = {
    "f16": ("f16", "f32"),
    "bf16": ("f32",),
    "tf32": ("f32",),
    "f64": ("f64",),
    "e4m3": ("f16", "f32"),
    "e5m2": ("f16", "f32"),
    **dict.fromkeys(("s8", "u8", "s4", "u4", "b1"), ("s32",)),
}
_SAME_KIND = ({"e4m3", "e5m2"}, {"s8", "u8"}, {"s4", "u4"})


def _place(lane: Lanes, index: Lanes, held: int) -> Layout:
    return np.asarray(lane * held + index, np.int64)


def _layout_a(m: int, k: int, bits: int) -> Layout:
    """[m, k]: a group of four lanes holds a row; a word holds neighbours in k; the rows from 8 on are the odd words.

    The figures of 9.7.15.5 for all shapes but m8n8k4 with f16: "groupID" is the row, "threadID_in_group" the word's
    place in k.
    """
    row, column = np.indices((m, k))
    each = max(32 // bits, 1)
    word = column // (4 * each)
    if m == 16:
        word = 2 * word + row // 8
    lane = 4 * (row % 8) + column // each % 4
    return _place(lane, word * each + column % each, m * k // 32)


def _layout_b(k: int, n: int, bits: int) -> Layout:
    """[k, n]: as `a`, transposed, with eight columns."""
    row, column = np.indices((k, n))
    each = max(32 // bits, 1)
    lane = 4 * column + row // each % 4
    return _place(lane, row // (4 * each) * each + row % each, k * n // 32)


def _layout_c(m: int, n: int) -> Layout:
    """[m, n]: a group of four lanes holds a row, each two neighbours of it; rows 8 on come after."""
    row, column = np.indices((m, n))
    return _place(4 * (row % 8) + column // 2, 2 * (row // 8) + column % 2, m * n // 32)


# m8n8k4 with f16 (9.7.15.5.1): four products side by side; lanes 4p to 4p + 3 and those 16 on hold the one numbered p.


def _quad_pair_lane(matrix: Lanes, row: Lanes) -> Lanes:
    """The lane that holds row (or column) 0 to 7 of a matrix."""
    return 4 * matrix + row % 4 + 16 * (row // 4)


def _layout_a_pairs(by_row: bool) -> Layout:
    """[4, 8, 4]."""
    matrix, row, column = np.indices((4, 8, 4))
    if by_row:
        return _place(_quad_pair_lane(matrix, row), column, 4)
    return _place(4 * matrix + column + 16 * (row // 4), row % 4, 4)


def _layout_b_pairs(by_row: bool) -> Layout:
    """[4, 4, 8]."""
    matrix, row, column = np.indices((4, 4, 8))
    if by_row:
        return _place(4 * matrix + row + 16 * (column // 4), column % 4, 4)
    return _place(_quad_pair_lane(matrix, column), row, 4)


def _layout_c_pairs(name: str) -> Layout:
    """[4, 8, 8], for accumulators of f16 and of f32."""
    matrix, row, column = np.indices((4, 8, 8))
    if name == "f16":
        return _place(_quad_pair_lane(matrix, row), column, 8)
    # Row (lane & 1) + (i & 2), column (i & 4) + (lane & 2) + (i & 1), of element i.
    lane = 4 * matrix + (row & 1) + (column & 2) + 16 * (row // 4)
    return _place(lane, (row & 2) + (column & 4) + (column & 1), 8)


def _values(words: Words, name: str) -> Lanes:
    """The elements in the words [warps, 32, n], as float64 [warps, 32 * n * elements in a word] ."""
    words = np.ascontiguousarray(words)
    warps = len(words)
    if name == "b1":
        bits = np.unpackbits(words.view(U8), bitorder="little")
        return bits.reshape(warps, -1).astype(np.float64)
    if name in ("s4", "u4"):
        pairs = words.view(U8).reshape(warps, -1)
        nibbles = np.stack((pairs & np.uint8(15), pairs >> np.uint8(4)), -1).reshape(warps, -1).astype(np.int8)
        return (nibbles - np.int8(16) * (nibbles > 7) if name == "s4" else nibbles).astype(np.float64)
    if name in FORMATS and name not in ("f16", "f32"):
        return decode(words.view(FORMATS[name].word), name).reshape(warps, -1).astype(np.float64)
    dtype = {"s8": "i1", "u8": "u1", "f16": "f2", "f32": "f4", "f64": "f8", "s32": "i4"}[name]
    return words.view(dtype).reshape(warps, -1).astype(np.float64)


def _write(values: Lanes, name: str, saturate: bool) -> Lanes:
    """The accumulators [warps, n] of the type `name` for float64 values."""
    if name == "f64":
        return values
    if name == "f32":
        return canonical(values.astype(np.float32))
    if name == "f16":
        return canonical(values.astype(F16))
    whole = values.astype(np.int64)
    if saturate:
        limits = np.iinfo(S32)
        whole = np.clip(whole, limits.min, limits.max)
    return whole.astype(S32)


def _multiply(a: Lanes, b: Lanes, c: Lanes, name: str, exclusive: bool) -> Lanes:
    """a @ b + c, of float64 [..., m, k], [..., k, n], [..., m, n]."""
    if name == "f64":
        total = c
        for k in range(a.shape[-1]):
            total = double.multiply_add(a[..., :, k, None], b[..., None, k, :], total, "rn")
        return total
    products = a @ b
    if exclusive:
        # Of bits x and y, x ^ y is x + y - 2xy.
        products = a.sum(-1)[..., :, None] + b.sum(-2)[..., None, :] - 2 * products
    return products + c


def build(opcode: str) -> MatrixOperation | None:
    """The operation of `opcode`; None where it is no `mma`; ValueError, naming it, for what is not known of one."""
    modifiers = Modifiers(opcode)
    if modifiers.mnemonic != "mma":
        return None
    for word in ("sync", "aligned"):
        modifiers.take_required((word,), "modifier")
    population = modifiers.take_flag("popc")
    bits_by = modifiers.take_any(("xor", "and"))
    saturate = modifiers.take_flag("satfinite")
    c_type, b_type, a_type, d_type = (modifiers.take_type(_BITS) for _ in range(4))
    if a_type not in _SHAPES or (a_type != b_type and {a_type, b_type} not in _SAME_KIND):
        raise ValueError(f"{opcode}: .{a_type} and .{b_type} do not go together")
    if c_type not in _ACCUMULATORS[a_type] or d_type not in _ACCUMULATORS[a_type]:
        raise ValueError(f"{opcode}: .{d_type} and .{c_type} are no accumulators for .{a_type}")
    if (a_type == "b1") != population or (a_type == "b1") != (bits_by is not None):
        raise ValueError(f"{opcode}: .b1 goes with .xor.popc or .and.popc")
    shape = modifiers.take_required(_SHAPES[a_type], "shape")
    order_a = modifiers.take_required(("row", "col"), "layout of a")
    order_b = modifiers.take_required(("row", "col"), "layout of b")
    modifiers.check_all_taken()
    m, n, k = (int(number) for number in shape.replace("n", " ").replace("k", " ")[1:].split())
    by_pairs = shape == "m8n8k4" and a_type == "f16"
    cut = a_type in ("f16", "bf16", "tf32") and d_type == "f32"
    if by_pairs:
        layouts = (_layout_a_pairs(order_a == "row"), _layout_b_pairs(order_b == "row"))
        layout_c, layout_d = _layout_c_pairs(c_type), _layout_c_pairs(d_type)
    else:
        if (order_a, order_b) != ("row", "col"):
            raise ValueError(f"{opcode}: .{shape} is .row.col only")
        layouts = (_layout_a(m, k, _BITS[a_type]), _layout_b(k, n, _BITS[b_type]))
        layout_c = layout_d = _layout_c(m, n)
    layout_a, layout_b = layouts
    # Where in the lanes' elements each of the matrix goes.
    back = np.argsort(layout_d, axis=None)

    def function(a: Words, b: Words, c: Words) -> Words:
        left = np.take(_values(a, a_type), layout_a, axis=1)
        right = np.take(_values(b, b_type), layout_b, axis=1)
        accumulator = np.take(_values(c, c_type), layout_c, axis=1)
        if by_pairs:
            result = chained_sum(left, right, accumulator)
        elif cut:
            result = cut_sum(left, right, accumulator)
        else:
            result = _multiply(left, right, accumulator, a_type, bits_by == "xor")
        result = result.reshape(len(a), -1)
        held = np.ascontiguousarray(_write(np.take(result, back, axis=1), d_type, saturate))
        return held.view(U32).reshape(len(a), 32, -1)

    def count(layout: Layout, name: str) -> int:
        return layout.size * _BITS[name] // (32 * 32)

    return MatrixOperation(
        count(layout_a, a_type), count(layout_b, b_type), count(layout_c, c_type), count(layout_d, d_type), function
    )
