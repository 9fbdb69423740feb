"""Vector instructions whose operands or results are of a kind of their own."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from neutrino.emulator.gcn import floats
from neutrino.emulator.gcn.compiler import Compiler, Lanes
from neutrino.emulator.gcn.numbering import M0
from neutrino.emulator.gcn.text import Parsed
from neutrino.emulator.gcn.vector_results import applied, check_rounding, modified, word
from neutrino.emulator.gcn.wave import Step, Wave


def _mix(c: Compiler, ins: Parsed) -> Step:
    """Return the function (a step) that executes V_FMA_MIX, a multiply-add of f32 operands and f16 halves of registers.
    """
    check_rounding(c)
    o = ins.operands
    low, high = ins.numbers("op_sel"), ins.numbers("op_sel_hi")
    reads = []
    for slot, text in enumerate(o[1:]):
        is_half = slot < len(high) and high[slot]
        if is_half:
            narrow = c.vector(text, "f16", low[slot] if slot < len(low) else 0)
            reads.append(_widened(narrow))
        else:
            reads.append(c.vector(text, "f32"))
    fma = floats.fma32 if "_fma_" in ins.mnemonic else lambda a, b, x: a * b + x
    compute = applied(fma, reads)
    if ins.mnemonic.endswith("_f32"):
        clamped = modified(c, ins, "f32", compute)
        write = c.vector_out(o[0], "f32")
        return lambda wave: write(wave, clamped(wave))
    half = int(ins.mnemonic.endswith("hi_f16"))
    # The other half keeps its value, on every processor.
    write = c.vector_out(f"{o[0]}.{'h' if half else 'l'}", "f16")
    clamped = modified(c, ins, "f16", lambda wave: compute(wave).astype(np.float16))
    return lambda wave: write(wave, clamped(wave))


def _widened(narrow: Lanes) -> Lanes:
    """Return the function for an f16 operand, as f32."""
    return lambda wave: narrow(wave).astype(np.float32)


def _divide_scale(c: Compiler, ins: Parsed) -> Step:
    """Return the function (a step) that executes V_DIV_SCALE, which scales an operand of a division
    and notes lanes whose quotient must be scaled back."""
    check_rounding(c)
    o = ins.operands
    kind = ins.mnemonic[-3:]
    a, denominator, numerator = (c.vector(text, kind) for text in o[2:5])
    write, write_mask = c.vector_out(o[0], kind), c.mask_out(o[1])

    def step(wave: Wave) -> None:
        """Write the scaled operand, and the mask of lanes to scale back."""
        result, flags = floats.divide_scale(a(wave), denominator(wave), numerator(wave))
        write(wave, result)
        write_mask(wave, np.broadcast_to(flags, (wave.lanes,)) & wave.mask)

    return step


def _divide_fmas(c: Compiler, ins: Parsed) -> Step:
    """Return the function (a step) that executes V_DIV_FMAS: a fused multiply-add, scaled by a power
    of 2 in the lanes of VCC."""
    check_rounding(c)
    o = ins.operands
    kind = ins.mnemonic[-3:]
    a, b, addend = (c.vector(text, kind) for text in o[1:4])
    mask = c.mask("vcc" if c.lanes == 64 else "vcc_lo")
    write = c.vector_out(o[0], kind)
    power = 64 if kind == "f32" else 128

    def step(wave: Wave) -> None:
        """Write the fused multiply-add of active lanes, scaled where VCC says so."""
        x, y, z = a(wave), b(wave), addend(wave)
        scaled = mask(wave)
        result = floats.fma32(x, y, z) if kind == "f32" else floats.fma64(x, y, z)
        if scaled.any():
            # Quotients that were made too small, or too great, by that power.
            by = np.where(np.abs(z) >= 2, 2.0**power, 2.0**-power)
            if kind == "f32":
                exact = floats.odd_sum(x.astype(np.float64) * y, z.astype(np.float64))
                result = np.where(scaled, (exact * by).astype(np.float32), result)
            else:
                result = np.where(scaled, result * by, result)
        write(wave, result)

    return step


def _multiply_add_wide(c: Compiler, ins: Parsed) -> Step:
    """Return the function (a step) that executes V_MAD_U64_U32 or V_MAD_I64_I32: a product of words plus 64 bits."""
    o = ins.operands
    signed = "i64" in ins.mnemonic
    a, b = (c.vector(text, "i32" if signed else "u32") for text in o[2:4])
    addend = c.vector(o[4], "i64" if signed else "u64")
    write, write_mask = c.vector_out(o[0], "u64"), c.mask_out(o[1])
    wide: Any = np.int64 if signed else np.uint64

    def step(wave: Wave) -> None:
        """Write 64-bit sums of a product and an addend, and the mask of lanes with an overflow."""
        product, z = a(wave).astype(wide) * b(wave).astype(wide), addend(wave)
        result = np.broadcast_to(product + z, (wave.lanes,))
        write(wave, result.view(np.uint64))
        if signed:
            flags = (product < 0) & (z < 0) & (result >= 0) | (product >= 0) & (z >= 0) & (result < 0)
        else:
            flags = result < z
        write_mask(wave, flags & wave.mask)

    return step


def _count_below(c: Compiler, ins: Parsed) -> Step:
    """Return the function (a step) that executes V_MBCNT, which counts the bits of a mask that belong to lower lanes.
    """
    o = ins.operands
    source, addend, write = c.vector(o[1], "u32"), c.vector(o[2], "u32"), c.vector_out(o[0], "u32")
    first = 32 if "_hi_" in ins.mnemonic else 0
    below = np.array([(1 << min(max(lane - first, 0), 32)) - 1 for lane in range(c.lanes)], np.uint32)
    return lambda wave: write(wave, np.bitwise_count(source(wave) & below).astype(np.uint32) + addend(wave))


def _move_pair(c: Compiler, ins: Parsed) -> Step:
    """Return the function (a step) that executes V_PK_MOV_B32, which moves any word of each of two pairs."""
    o = ins.operands
    # One choice for each result, as there is one source for each.
    selected = ins.numbers("op_sel") or (0, 0)
    first = c.vector(word(o[1], selected[0]), "b32")
    second = c.vector(word(o[2], selected[1]), "b32")
    write_low, write_high = c.vector_out(word(o[0], 0), "b32"), c.vector_out(word(o[0], 1), "b32")

    def step(wave: Wave) -> None:
        """Read both words, then write both."""
        x, y = np.array(first(wave)), np.array(second(wave))
        write_low(wave, x)
        write_high(wave, y)

    return step


def _truth_table(c: Compiler, ins: Parsed) -> Step:
    """Return the function (a step) that executes V_BITOP3, any bitwise function of three operands, by its truth table.
    """
    o = ins.operands
    kind = ins.mnemonic[-3:]
    a, b, x = (c.vector(text, kind) for text in o[1:4])
    write = c.vector_out(o[0], kind)
    table = ins.number("bitop3")

    def step(wave: Wave) -> None:
        """Write, bit by bit, the function of three operands that the table has."""
        p, q, r = a(wave), b(wave), x(wave)
        result = p & ~p
        for row in range(8):
            if table >> row & 1:
                # Bit 2 of a row's number is that of the first operand.
                result = result | (p if row & 4 else ~p) & (q if row & 2 else ~q) & (r if row & 1 else ~r)
        write(wave, result)

    return step


def _relative_move(c: Compiler, ins: Parsed) -> Step:
    """Return the function (a step) that executes V_MOVRELS or V_MOVRELD, whose register M0 counts from the named one.
    """
    o = ins.operands
    c.scalar("m0")
    if ins.mnemonic == "v_movrels_b32":
        first = c.vector_registers(o[1], 1, False)
        write = c.vector_out(o[0], "b32")
        return lambda wave: write(wave, wave.v[first + wave.s[M0]])
    source, into = c.vector(o[1], "b32"), c.vector_registers(o[0], 1, True)
    return lambda wave: np.copyto(wave.v[into + wave.s[M0]], source(wave), where=wave.mask)


def _dot(c: Compiler, ins: Parsed) -> Step:
    """Return the function (a step) that executes a dot product of bytes, or of halves, with a sum of words."""
    check_rounding(c)
    o, name = ins.operands, ins.mnemonic
    accumulates = len(o) == 3
    texts = (*o[1:3], o[0] if accumulates else o[3])
    if "f16" in name and name.startswith(("v_dot2_f32_f16", "v_dot2acc_f32_f16", "v_dot2c_f32_f16")):
        low = [c.vector(text, "f16", 0) for text in texts[:2]]
        high = [c.vector(text, "f16", 1) for text in texts[:2]]
        addend, write = c.vector(texts[2], "f32"), c.vector_out(o[0], "f32")

        def halves(wave: Wave) -> None:
            """Write the sum of the products of both halves and the addend."""
            products = [a(wave).astype(np.float64) * b(wave).astype(np.float64) for a, b in (low, high)]
            write(wave, (products[0] + products[1] + addend(wave).astype(np.float64)).astype(np.float32))

        return halves
    if not name.startswith(("v_dot4_i32_i8", "v_dot4_u32_u8", "v_dot4_i32_iu8", "v_dot4c_i32_i8")):
        raise c.unknown()
    signs = [True, True] if name.endswith("_i8") else [False, False]
    if name.endswith("_iu8"):
        flags = ins.numbers("neg_lo") or (0, 0)
        signs = [bool(flag) for flag in flags[:2]]
    a, b = (c.vector(text, "u32") for text in texts[:2])
    addend, write = c.vector(texts[2], "i32"), c.vector_out(o[0], "i32")

    def bytes_(wave: Wave) -> None:
        """Write the sum of the products of four bytes and the addend."""
        total = np.broadcast_to(addend(wave).astype(np.int64), (wave.lanes,)).copy()
        x, y = np.broadcast_to(a(wave), (wave.lanes,)), np.broadcast_to(b(wave), (wave.lanes,))
        for byte in range(4):
            parts = []
            for value, sign in ((x, signs[0]), (y, signs[1])):
                part = (value >> np.uint32(8 * byte)).astype(np.uint8)
                parts.append((part.view(np.int8) if sign else part).astype(np.int64))
            total += parts[0] * parts[1]
        if "clamp" in ins.modifiers:
            total = np.clip(total, -(1 << 31), (1 << 31) - 1)
        write(wave, total.astype(np.int32))

    return bytes_


def _from_f8(c: Compiler, ins: Parsed) -> Step:
    """Return the function (a step) that executes a conversion between f32 and 8-bit floats."""
    o, name = ins.operands, ins.mnemonic
    variant = "_fnuz" if c.processor in ("gfx940", "gfx941", "gfx942") else ""
    selected = ins.numbers("op_sel")
    match = re.fullmatch(r"v_cvt_(pk_)?f32_(fp8|bf8)", name)
    if match:
        kind = match[2] + variant
        source = c.vector(o[1], "u32")
        if match[1]:
            shift = np.uint32(16 if selected and selected[0] else 16 if o[1].endswith(".h") else 0)
            low, high = c.vector_out(word(o[0], 0), "f32"), c.vector_out(word(o[0], 1), "f32")

            def pair(wave: Wave) -> None:
                """Convert two 8-bit floats of a word to two registers of f32."""
                value = source(wave) >> shift
                low(wave, floats.f8_to_f32(value & np.uint32(0xFF), kind))
                high(wave, floats.f8_to_f32(value >> np.uint32(8) & np.uint32(0xFF), kind))

            return pair
        write = c.vector_out(o[0], "f32")
        selection = ins.modifiers.get("src0_sel")
        byte = int(selection[-1]) if selection else ins.number("byte_sel")
        if selected:
            byte = (selected[0] << 1 | selected[1]) if len(selected) > 1 else selected[0]
        at = np.uint32(8 * byte)
        return lambda wave: write(wave, floats.f8_to_f32(source(wave) >> at & np.uint32(0xFF), kind))
    match = re.fullmatch(r"v_cvt_pk_(fp8|bf8)_f32", name)
    if match is None:
        raise c.unknown()
    kind = match[1] + variant
    a, b = c.vector(o[1], "f32"), c.vector(o[2], "f32")
    half = selected[-1] if selected else 0
    text = o[0] if o[0].endswith((".l", ".h")) else f"{o[0]}.{'h' if half else 'l'}"
    write = c.vector_out(text, "u16")

    def pack(wave: Wave) -> None:
        """Convert two f32 to 8-bit floats in a half of a register."""
        low, high = floats.f32_to_f8(a(wave), kind), floats.f32_to_f8(b(wave), kind)
        write(wave, low.astype(np.uint16) | high.astype(np.uint16) << np.uint16(8))

    return pack


FORMS: dict[str, Callable[[Compiler, Parsed], Step]] = {
    "v_fma_mix_f32": _mix, "v_fma_mixlo_f16": _mix, "v_fma_mixhi_f16": _mix, "v_mad_mix_f32": _mix,
    "v_mad_mixlo_f16": _mix, "v_mad_mixhi_f16": _mix, "v_div_scale_f32": _divide_scale,
    "v_div_scale_f64": _divide_scale, "v_div_fmas_f32": _divide_fmas, "v_div_fmas_f64": _divide_fmas,
    "v_mad_u64_u32": _multiply_add_wide, "v_mad_i64_i32": _multiply_add_wide, "v_mad_co_u64_u32": _multiply_add_wide,
    "v_mad_co_i64_i32": _multiply_add_wide, "v_mbcnt_lo_u32_b32": _count_below, "v_mbcnt_hi_u32_b32": _count_below,
    "v_pk_mov_b32": _move_pair, "v_bitop3_b32": _truth_table, "v_bitop3_b16": _truth_table,
    "v_movrels_b32": _relative_move, "v_movreld_b32": _relative_move, "v_dot2_f32_f16": _dot, "v_dot2acc_f32_f16": _dot,
    "v_dot2c_f32_f16": _dot, "v_dot4_i32_i8": _dot, "v_dot4_u32_u8": _dot, "v_dot4_i32_iu8": _dot,
    "v_dot4c_i32_i8": _dot, "v_cvt_f32_fp8": _from_f8, "v_cvt_f32_bf8": _from_f8, "v_cvt_pk_f32_fp8": _from_f8,
    "v_cvt_pk_f32_bf8": _from_f8, "v_cvt_pk_fp8_f32": _from_f8, "v_cvt_pk_bf8_f32": _from_f8,
}  # fmt: skip
