"""Which lanes and threads are at a site, and which block's they are."""

from __future__ import annotations

from neutrino.gcn.analysis.branch_decisions import By, Decision, comparison
from neutrino.gcn.instrument.code import Code, Mask, Value, Vector
from neutrino.gcn.instrument.surroundings import Surroundings
from neutrino.ir.operands import Constant, Special


def lanes(code: Code) -> Value:
    """Append code for LANES, the lanes that execute the probed instruction: a u64, also with waves of 32; return
    where it is."""
    place = code.scalar(2)
    if code.machine.wave == 64:
        code.emit(f"s_mov_b64 {place.text}, exec")
    else:
        code.emit(f"s_mov_b32 {place.word(0)}, exec_lo", f"s_mov_b32 {place.word(1)}, 0")
    return place


def leader(code: Code) -> Mask:
    """Append code for LEADER: whether a lane is the lowest of those that execute the probed instruction; return the
    mask."""
    machine, place = code.machine, code.mask()
    and_not = "s_andn2" if machine.is_old else "s_and_not1"
    code.emit(f"{machine.add} {place.word(0)}, {machine.exec.removesuffix('_lo')}_lo, -1")
    if machine.wave == 64:
        code.emit(f"{machine.add_carry} {place.word(1)}, exec_hi, -1")
    code.emit(f"{and_not}_{machine.mask} {place.text}, {machine.exec}, {place.text}")
    return place


def predicate(code: Code, decision: Decision | None) -> Mask:
    """Append code for PRED: which active lanes go where a branch leads; all of them of another instruction. Return the
    mask. It reads SCC and VCC, and changes SCC.

    decision: the branch's, None without one.
    """
    machine, place = code.machine, code.mask()
    kind, execute = machine.mask, machine.exec
    if decision is None:
        code.emit(f"s_mov_{kind} {place.text}, {execute}")
        return place
    if decision.by in (By.SCC, By.VCC):
        if decision.by is By.VCC:
            code.emit("s_cmp_lg_u64 vcc, 0" if machine.wave == 64 else "s_cmp_lg_u32 vcc_lo, 0")
        code.emit(f"s_cselect_{kind} {place.text}, {execute}, 0" if decision.is_taken
                  else f"s_cselect_{kind} {place.text}, 0, {execute}")  # fmt: skip
        return place
    if decision.by is By.ALL:
        code.emit(f"s_mov_{kind} {place.text}, {execute if decision.is_taken else 0}")
        return place
    stays = decision.lanes
    if decision.by is By.COMPARISON:
        stays = place.text
        code.emit(comparison(decision.place, stays, machine.generation))
    # The lanes that the branch is taken by: those that stay, or those that leave.
    is_and = decision.is_taken != decision.is_inverted
    code.emit(f"{f's_and_{kind}' if is_and else machine.and_not} {place.text}, {execute}, {stays}")
    return place


def of_leader(code: Code, number: int) -> Vector:
    """Return a u64 that is a number of up to 32 bits in the lowest lane, and 0 in the others."""
    place = code.vector(2)
    with code.scope():
        lowest = leader(code)
        text = str(number)
        if number > _MOST_INLINE:
            # gfx9 takes no literal together with a mask.
            text = place.word(1)
            code.emit(f"v_mov_b32_e32 {text}, {number:#x}")
        code.emit(f"v_cndmask_b32_e64 {place.word(0)}, 0, {text}, {lowest.text}", f"v_mov_b32_e32 {place.word(1)}, 0")
    return place


_MOST_INLINE = 64
"""The greatest number that every instruction may have as an operand."""


def thread(surroundings: Surroundings) -> Value:
    """Append code for THREAD, the thread's linear number in its block; return where it is.

    A wave's lanes are threads with consecutive numbers.
    """
    code = surroundings.code
    machine = code.machine
    place = code.vector()
    code.emit(*machine.lane(place.text))
    shift = machine.wave.bit_length() - 1
    wave = surroundings.special(Special.WARP)
    if isinstance(wave, Constant):
        if wave.bits:
            code.emit(f"v_or_b32_e32 {place.text}, {wave.bits << shift:#x}, {place.text}")
        return place
    code.emit(f"v_lshl_or_b32 {place.text}, {wave.text}, {shift}, {place.text}")
    code.release(wave)
    return place


def block(surroundings: Surroundings) -> Value:
    """Append code for BLOCK, the block's linear number in the grid (x counts fastest), a u64; return where it is."""
    code = surroundings.code
    machine = code.machine
    x, y, z = (surroundings.special(each) for each in (Special.CTAID_X, Special.CTAID_Y, Special.CTAID_Z))
    place = code.scalar(2)
    low, high = place.word(0), place.word(1)
    width, height = surroundings.grid_blocks(0), surroundings.grid_blocks(1)
    row = code.scalar()
    code.emit(
        f"s_mov_b32 {row.text}, {_text(z)}",
        f"s_mul_i32 {row.text}, {row.text}, {_text(height)}",
        f"{machine.add} {row.text}, {row.text}, {_text(y)}",
        f"s_mul_hi_u32 {high}, {row.text}, {_text(width)}",
        f"s_mul_i32 {low}, {row.text}, {_text(width)}",
        f"{machine.add} {low}, {low}, {_text(x)}",
        f"{machine.add_carry} {high}, {high}, 0",
    )
    code.release(row, *(each for each in (x, y, z, width, height) if not isinstance(each, Constant)))
    return place


def _text(value: Value) -> str:
    """Return a value that is the same in all lanes as an operand in assembly."""
    return f"{value.bits:#x}" if isinstance(value, Constant) else value.text
