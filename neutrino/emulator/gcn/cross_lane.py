"""Vector instructions whose lanes see other lanes, and DPP operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.emulator.gcn.compiler import Compiler, Lanes
from neutrino.emulator.gcn.text import Parsed
from neutrino.emulator.gcn.wave import Step, Wave

Array = npt.NDArray[Any]
_ROW = 16
_CONTROLS = (
    "quad_perm", "row_shl", "row_shr", "row_ror", "wave_shl", "wave_shr", "wave_rol", "wave_ror", "row_mirror",
    "row_half_mirror", "row_bcast", "row_share", "row_newbcast", "row_xmask", "dpp8",
)  # fmt: skip

CROSS_LANE = frozenset(
    {
        "v_readlane_b32", "v_readfirstlane_b32", "v_writelane_b32", "v_permlane16_b32", "v_permlanex16_b32",
        "v_permlane16_swap_b32", "v_permlane32_swap_b32", "v_permlane64_b32",
    }
)  # fmt: skip


class Dpp:
    """A permutation of a source's lanes. source: the lane that each lane reads. valid: whether there is one. enabled:
    lanes of the rows and banks that are written. zero: whether a lane without a source reads 0, instead of not being
    written. fetches_inactive: whether lanes outside EXEC may be read."""

    def __init__(self, source: Array, valid: Array, enabled: Array, zero: bool, fetches_inactive: bool) -> None:
        """Set up the permutation of an operand's lanes. Parameters: see the class."""
        self.source, self.valid, self.enabled = source, valid, enabled
        self.zero, self.fetches_inactive = zero, fetches_inactive

    def lanes(self, mask: Array) -> tuple[Array, Array]:
        """Return the lanes whose source may be read, and those that are written. mask: EXEC."""
        valid = self.valid if self.fetches_inactive else self.valid & mask[self.source]
        written = mask & self.enabled
        return valid, written if self.zero else written & valid

    def operand(self, read: Lanes) -> Lanes:
        """Return the function for an operand with permuted lanes."""
        source = self.source

        def permuted(wave: Wave) -> Any:
            """Return the operand's values, each lane with that of its source lane, or 0 where that may not be read."""
            value = np.broadcast_to(read(wave), (wave.lanes,))[source]
            return np.where(wave.valid, value, value.dtype.type(0))

        return permuted


def dpp_of(c: Compiler, ins: Parsed) -> Dpp | None:
    """Return the permutation of an instruction's first source, None without one."""
    control = next((name for name in _CONTROLS if name in ins.modifiers), None)
    if control is None:
        if "dpp" in ins.form:
            raise c.unknown("DPP control")
        return None
    lane = np.arange(c.lanes)
    row, place = lane // _ROW, lane % _ROW
    valid = np.ones(c.lanes, bool)
    fetches_inactive = ins.number("fi") == 1
    if control in ("quad_perm", "dpp8"):
        chosen = np.array(ins.numbers(control))
        size = chosen.size
        source = lane // size * size + chosen[lane % size]
        if control == "dpp8":
            return Dpp(source, valid, valid, True, fetches_inactive)
    elif control == "row_mirror":
        source = row * _ROW + 15 - place
    elif control == "row_half_mirror":
        source = row * _ROW + place // 8 * 8 + 7 - place % 8
    elif control == "row_bcast":
        which = ins.number("row_bcast")
        if which == 15:
            source, valid = row * _ROW - 1, row > 0
        else:
            source, valid = np.full(c.lanes, 31), row > 1
    else:
        amount = ins.number(control)
        if control == "row_shl":
            source, valid = lane + amount, place + amount < _ROW
        elif control == "row_shr":
            source, valid = lane - amount, place >= amount
        elif control == "row_ror":
            source = row * _ROW + (place - amount) % _ROW
        elif control in ("row_share", "row_newbcast"):
            source = row * _ROW + amount
        elif control == "row_xmask":
            source = row * _ROW + (place ^ amount)
        elif control == "wave_shl":
            source, valid = lane + 1, lane + 1 < c.lanes
        elif control == "wave_shr":
            source, valid = lane - 1, lane >= 1
        elif control == "wave_rol":
            source = (lane + 1) % c.lanes
        else:
            source = (lane - 1) % c.lanes
    rows, banks = ins.number("row_mask", 15), ins.number("bank_mask", 15)
    enabled = (rows >> row & 1 & banks >> place // 4 & 1).astype(bool)
    # LLVM prints bound_ctrl:1 for some processors and bound_ctrl:0 for the same bit on others.
    zero = "bound_ctrl" in ins.modifiers
    return Dpp(np.clip(source, 0, c.lanes - 1), valid, enabled, zero, fetches_inactive)


def compile_cross_lane(c: Compiler, ins: Parsed) -> Step:
    """Return the function (a step) that executes an instruction whose lanes see other lanes (one of ``CROSS_LANE``)."""
    name, o = ins.mnemonic, ins.operands
    if name == "v_readfirstlane_b32":
        source, out = c.vector(o[1], "b32"), c.scalar_out(o[0])

        def first(wave: Wave) -> None:
            """Write the lowest active lane's value to a scalar register."""
            # Lane 0 if EXEC is 0.
            out(wave, int(np.broadcast_to(source(wave), (wave.lanes,))[int(np.argmax(wave.mask))]))

        return first
    if name == "v_readlane_b32":
        source, lane, out = c.vector(o[1], "b32"), c.scalar(o[2]), c.scalar_out(o[0])
        return lambda wave: out(wave, int(source(wave)[lane(wave) % wave.lanes]))
    if name == "v_writelane_b32":
        register = c.vector_registers(o[0], 1, True)
        value, lane = c.scalar(o[1]), c.scalar(o[2])

        def write(wave: Wave) -> None:
            """Write a scalar value to one lane of a vector register."""
            wave.v[register, lane(wave) % wave.lanes] = value(wave)

        return write
    if name in ("v_permlane16_b32", "v_permlanex16_b32"):
        return _permute_rows(c, ins)
    lanes = np.arange(c.lanes)
    if name == "v_permlane64_b32":
        source, into = c.vector(o[1], "b32"), c.vector_out(o[0], "b32")
        return lambda wave: into(wave, np.roll(source(wave), 32) if wave.lanes == 64 else source(wave))
    size = 16 if name == "v_permlane16_swap_b32" else 32
    upper = lanes // size % 2 == 1
    x, y = c.vector_registers(o[0], 1, True), c.vector_registers(o[1], 1, True)
    c.vector_registers(o[0], 1, False)
    c.vector_registers(o[1], 1, False)
    down = np.maximum(lanes - size, 0)
    up = np.minimum(lanes + size, c.lanes - 1)

    def swap(wave: Wave) -> None:
        """Swap rows of 16 or 32 lanes between two registers."""
        # The upper rows of the first register and the lower ones of the second.
        old_x, old_y = wave.v[x].copy(), wave.v[y].copy()
        np.copyto(wave.v[x], np.where(upper, old_y[down], old_x), where=wave.mask)
        np.copyto(wave.v[y], np.where(upper, old_y, old_x[up]), where=wave.mask)

    return swap


def _permute_rows(c: Compiler, ins: Parsed) -> Step:
    """Return the function (a step) that executes V_PERMLANE16 and V_PERMLANEX16: a lane gets the value
    of any lane of its own row of 16 lanes, or of the next row."""
    o = ins.operands
    source, low, high = c.vector(o[1], "b32"), c.scalar(o[2]), c.scalar(o[3])
    into = c.vector_out(o[0], "b32")
    lanes = np.arange(c.lanes)
    row, place = lanes // _ROW, lanes % _ROW
    base = (row ^ 1 if ins.mnemonic == "v_permlanex16_b32" else row) * _ROW
    flags = ins.numbers("op_sel")
    fetches_inactive, zero = bool(flags and flags[0]), bool(len(flags) > 1 and flags[1])

    def step(wave: Wave) -> None:
        """Give lanes the values of other lanes of a row, by 4 bits a lane of two scalar operands."""
        chosen = high(wave) << 32 | low(wave)
        table = np.array([chosen >> 4 * lane & 15 for lane in range(_ROW)])
        at = base + table[place]
        value = source(wave)[at]
        mask, full = wave.mask, wave.full
        if not fetches_inactive:
            valid = mask[at]
            if zero:
                value = np.where(valid, value, np.uint32(0))
            else:
                wave.mask, wave.full = mask & valid, False
        into(wave, value)
        wave.mask, wave.full = mask, full

    return step
