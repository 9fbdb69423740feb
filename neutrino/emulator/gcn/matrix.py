"""Products of matrices: MFMA of CDNA, and WMMA of RDNA.

Sums are computed as doubles and rounded once; hardware rounds in between, in an order that AMD does not document.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from neutrino.emulator.gcn import floats
from neutrino.emulator.gcn.compiler import Compiler, constant, register
from neutrino.emulator.gcn.text import Parsed
from neutrino.emulator.gcn.wave import Step, Wave

Array = Any

_EIGHT_BITS = "fp8_fp8|fp8_bf8|bf8_fp8|bf8_bf8"
_MFMA = re.compile(
    rf"v_mfma_(f32|i32|f64)_(\d+)x(\d+)x(\d+)_?(bf16_1k|bf16|f16|f32|f64|xf32|i8|{_EIGHT_BITS}|f8f6f4)(?:_1k)?"
)
_WMMA = re.compile(rf"v_wmma_(f32|i32|f16|bf16)_16x16x16_(bf16|f16|iu8|{_EIGHT_BITS})")
_F8F6F4 = {0: "fp8", 1: "bf8"}
"""Formats of the operands of ``f8f6f4`` by the modifiers ``cbsz`` and ``blgp``; those of 6 and 4 bits are not known."""


def compile_matrix(c: Compiler, ins: Parsed) -> Step:
    """Return the function (a step) that executes a product of matrices."""
    match = _MFMA.fullmatch(ins.mnemonic)
    if match:
        return _mfma(c, ins, match)
    match = _WMMA.fullmatch(ins.mnemonic)
    if match:
        return _wmma(c, ins, match)
    raise c.unknown()


def _elements(rows: Array, kind: str) -> Array:
    """Return what lanes have in registers as numbers: lanes × elements. rows: registers × lanes, of u32."""
    words = np.ascontiguousarray(rows.T)
    if kind == "f16":
        return words.view(np.float16).astype(np.float64)
    if kind.startswith("bf16"):
        return floats.bf16_to_f32(words.view(np.uint16)).astype(np.float64)
    if kind in ("f32", "xf32"):
        return words.view(np.float32).astype(np.float64)
    if kind == "f64":
        return words.view(np.float64)
    if kind == "i8":
        return words.view(np.int8).astype(np.int64)
    if kind == "u8":
        return words.view(np.uint8).astype(np.int64)
    return floats.f8_to_f32(words.view(np.uint8), kind).astype(np.float64)


def _mfma(c: Compiler, ins: Parsed, match: re.Match[str]) -> Step:
    """Return the function (a step) that executes an MFMA matrix product, D = A·B + C. match: the
    name's parts.

    Raises UnknownInstructionError for shapes, types and modifiers that are not implemented.
    """
    result, m, n, k = match[1], int(match[2]), int(match[3]), int(match[4])
    o = ins.operands
    kinds = _kinds(c, ins, match[5])
    if match[5] != "f8f6f4" and any(ins.number(name) for name in ("cbsz", "abid", "blgp")):
        raise c.unknown("broadcasts and negations")
    words = 2 if result == "f64" else 1
    into = register(o[0])
    if into is None:
        raise c.unknown()
    # More results than one product has belong to several products.
    per_lane = into.size // words
    if (m, n) not in ((32, 32), (16, 16)) or per_lane != m * n // 64:
        raise c.unknown("several products at a time")
    groups = 64 // m
    if result == "f64":
        raise c.unknown("doubles")
    sources = []
    for text in o[1:3]:
        found = register(text)
        if found is None:
            raise c.unknown()
        sources.append((c.vector_registers(text, found.size, False), found.size))
    (first_a, count_a), (first_b, count_b) = sources
    addend = _addend(c, o[3], per_lane)
    c.vector_registers(o[0], per_lane, True)
    into_first = into.first
    lane = np.arange(64)
    # Of each result: its column is that of the lane, its row depends on the lane's group and the register.
    registers = np.arange(per_lane)[:, None]
    of_32 = 8 * (registers // 4) + 4 * (lane // 32) + registers % 4
    row = of_32 if m == 32 else 4 * (lane // 16) + registers
    column = np.broadcast_to(lane % n, row.shape)
    is_integer = result == "i32"

    def step(wave: Wave) -> None:
        """Multiply the matrices that a wave's registers hold, add C, and write the result, in all lanes."""
        a = _elements(wave.v[first_a : first_a + count_a], kinds[0])
        b = _elements(wave.v[first_b : first_b + count_b], kinds[1])
        each = k // groups
        a = a[:, :each].reshape(groups, m, each).transpose(1, 0, 2).reshape(m, k)
        b = b[:, :each].reshape(groups, n, each).transpose(1, 0, 2).reshape(n, k)
        product = (a @ b.T)[row, column]
        old = addend(wave)
        target = wave.v[into_first : into_first + per_lane]
        # EXEC does not matter.
        if is_integer:
            target[:] = (product + old.view(np.int32)).astype(np.int32).view(np.uint32)
        else:
            target[:] = (product + old.view(np.float32).astype(np.float64)).astype(np.float32).view(np.uint32)

    return step


def _kinds(c: Compiler, ins: Parsed, text: str) -> tuple[str, str]:
    """Return the element types of matrices A and B. text: the types in the instruction's name."""
    if text == "f8f6f4":
        formats = [_F8F6F4.get(ins.number(name)) for name in ("cbsz", "blgp")]
        if None in formats:
            raise c.unknown("formats of 6 and 4 bits")
        return str(formats[0]), str(formats[1])
    if "fp8" in text or "bf8" in text:
        variant = "_fnuz" if c.processor in ("gfx940", "gfx941", "gfx942") else ""
        first, _, second = text.partition("_")
        return first + variant, second + variant
    return text, text


def _addend(c: Compiler, text: str, count: int) -> Any:
    """Return the function for matrix C as u32 words ``[register][lane]``: a constant, or ``count`` registers."""
    value = constant(text, "f32")
    if value is not None:
        fixed = np.full((count, c.lanes), value, np.uint32)
        return lambda wave: fixed
    first = c.vector_registers(text, count, False)
    return lambda wave: wave.v[first : first + count]


def _wmma(c: Compiler, ins: Parsed, match: re.Match[str]) -> Step:
    """Return the function (a step) that executes a WMMA matrix product, D = A·B + C of 16×16. match:
    the name's parts.

    Raises UnknownInstructionError for types and modifiers that are not implemented.
    """
    result, o = match[1], ins.operands
    if result not in ("f32", "i32"):
        raise c.unknown()
    if any(name in ins.modifiers for name in ("op_sel", "op_sel_hi", "neg_hi")) or (
        "neg_lo" in ins.modifiers and result != "i32"
    ):
        raise c.unknown("modifiers")
    if match[2] == "iu8":
        signs = ins.numbers("neg_lo") or (0, 0, 0)
        kinds = tuple("i8" if sign else "u8" for sign in signs[:2])
    else:
        kinds = _kinds(c, ins, match[2])
    per_lane = 256 // c.lanes
    sources = []
    for text in o[1:3]:
        found = register(text)
        if found is None:
            raise c.unknown()
        sources.append((c.vector_registers(text, found.size, False), found.size))
    (first_a, count_a), (first_b, count_b) = sources
    addend = _addend(c, o[3], per_lane)
    into = c.vector_registers(o[0], per_lane, True)
    lane, registers = np.arange(c.lanes), np.arange(per_lane)[:, None]
    # gfx11: each lane has a whole row of A, as lane ± 16; gfx12: a part of it.
    parts = 1 if c.generation == 11 else c.lanes // 16
    of_gfx11 = registers * (c.lanes // 16) + lane // 16
    row = of_gfx11 if parts == 1 else per_lane * (lane // 16) + registers
    column = np.broadcast_to(lane % 16, row.shape)
    is_integer = result == "i32"
    clamps = "clamp" in ins.modifiers
    each = 16 // parts

    def arranged(values: Array) -> Array:
        """Return a matrix, 16×16, from what lanes hold of it."""
        return values[: 16 * parts, :each].reshape(parts, 16, each).transpose(1, 0, 2).reshape(16, 16)

    def step(wave: Wave) -> None:
        """Multiply the matrices that a wave's registers hold, add C, and write the result, in all lanes."""
        a = arranged(_elements(wave.v[first_a : first_a + count_a], kinds[0]))
        b = arranged(_elements(wave.v[first_b : first_b + count_b], kinds[1]))
        product = (a @ b.T)[row, column]
        old = addend(wave)
        if is_integer:
            total = product + old.view(np.int32)
            if clamps:
                total = np.clip(total, -(1 << 31), (1 << 31) - 1)
            wave.v[into : into + per_lane] = total.astype(np.int32).view(np.uint32)
        else:
            total = (product + old.view(np.float32).astype(np.float64)).astype(np.float32)
            wave.v[into : into + per_lane] = total.view(np.uint32)

    return step
