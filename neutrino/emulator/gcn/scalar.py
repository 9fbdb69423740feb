"""Scalar instructions: numbers of a wave, branches, waits and what a wave asks the hardware for."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from neutrino.emulator.gcn.compiler import BARRIER, END, RELOAD, YIELD, Compiler
from neutrino.emulator.gcn.errors import GcnFaultError
from neutrino.emulator.gcn.memory import BASE
from neutrino.emulator.gcn.numbering import M0, VCC, WORD
from neutrino.emulator.gcn.scalar_arithmetic import SAVE_EXEC, compile_arithmetic, compile_comparison, compile_save_exec
from neutrino.emulator.gcn.text import Parsed
from neutrino.emulator.gcn.wave import Step, Wave

_NOTHING = frozenset(
    {
        "s_nop", "s_delay_alu", "s_sendmsg", "s_sendmsghalt", "s_setprio", "s_set_inst_prefetch_distance",
        "s_inst_prefetch", "s_code_end", "s_icache_inv", "s_dcache_inv", "s_dcache_wb", "s_dcache_wb_vol",
        "s_dcache_inv_vol", "s_gl1_inv", "s_ttracedata", "s_version", "s_barrier_signal", "s_waitcnt_depctr",
        "s_wait_alu", "s_wait_event", "s_wait_idle", "s_incperflevel", "s_decperflevel", "s_setkill",
        "s_prefetch_inst", "s_prefetch_data", "s_buffer_prefetch_data", "s_wait_xcnt", "s_sethalt",
    }
)  # fmt: skip
"""They change no register. (A wave that halts itself is one that traps: S_SETHALT only lets it stand.)"""


_HWREG = re.compile(r"hwreg\(([\w]+)(?:,\s*(\d+),\s*(\d+))?\)")
_LOADS = {
    "dword": 1, "dwordx2": 2, "dwordx4": 4, "dwordx8": 8, "dwordx16": 16, "b32": 1, "b64": 2, "b96": 3, "b128": 4,
    "b256": 8, "b512": 16, "dwordx3": 3,
}  # fmt: skip
_SMALL_LOADS = {"u8": (1, False), "i8": (1, True), "u16": (2, False), "i16": (2, True)}


def compile_scalar(c: Compiler, ins: Parsed, place: int, target: Callable[[], int], address: int) -> Step:
    """Return the function (a step) that executes a scalar instruction.

    place: its number in the program. target: gives the place that a branch leads to. address: of the instruction
    behind it, for what reads the program counter.
    """
    name, o = ins.mnemonic, ins.operands
    if name == "s_clause":
        length = (int(o[0], 0) & 0x3F) + 1

        def clause(wave: Wave) -> None:
            """Tell the checks, which alone care."""
            if wave.checks is not None:
                wave.checks.begin_clause(length)

        return clause
    if name in ("s_round_mode", "s_denorm_mode"):
        shift, value = 4 * (name == "s_denorm_mode"), int(o[0], 0) & 15

        def set_part(wave: Wave) -> int:
            """Write a part of MODE."""
            wave.mode = wave.mode & ~(15 << shift) | value << shift
            return RELOAD

        return set_part
    if name in _NOTHING:
        return _nothing
    if name.startswith(("s_waitcnt", "s_wait_")):
        return _wait(c, ins)
    if name in ("s_endpgm", "s_endpgm_saved", "s_endpgm_ordered_ps_done"):
        return lambda wave: END
    if name in ("s_barrier", "s_barrier_wait"):
        return lambda wave: BARRIER
    if name in ("s_sleep", "s_yield"):
        return lambda wave: YIELD
    if name == "s_trap":

        def trap(wave: Wave) -> None:
            """Raise GcnFaultError, as a wave does that traps."""
            raise GcnFaultError("trap", f"wave {wave.number} of work-group {wave.group.index} traps")

        return trap
    if name.startswith(("s_branch", "s_cbranch")):
        return _branch(c, name, target)
    if name.startswith(("s_load_", "s_buffer_load_", "s_scratch_load_")):
        return _load(c, ins)
    if name.startswith(("s_cmp", "s_bitcmp")):
        return compile_comparison(c, ins)
    if name in ("s_getpc_b64", "s_get_pc_i64"):
        write = c.scalar_out(o[0], 64)
        return lambda wave: write(wave, wave.base + address)
    if name in ("s_setpc_b64", "s_set_pc_i64"):
        read = c.scalar(o[0], 64)
        return lambda wave: _place(wave, read(wave))
    if name in ("s_swappc_b64", "s_swap_pc_i64"):
        read, write = c.scalar(o[1], 64), c.scalar_out(o[0], 64)

        def call(wave: Wave) -> int:
            """Jump to the address in a register pair, and leave that of the next instruction in another one."""
            to = read(wave)
            write(wave, wave.base + address)
            return _place(wave, to)

        return call
    if name in ("s_call_b64", "s_call_i64"):
        write = c.scalar_out(o[0], 64)

        def call_near(wave: Wave) -> int:
            """Jump to a fixed place, and leave the address of the next instruction in a register pair."""
            write(wave, wave.base + address)
            return target()

        return call_near
    if name in ("s_getreg_b32", "s_setreg_b32", "s_setreg_imm32_b32"):
        return _hardware_register(c, ins)
    if name in ("s_memtime", "s_memrealtime"):
        write = c.scalar_out(o[0], 64)
        c.issues.append(("smem", c.writes))
        epoch = 0 if name == "s_memtime" else 10**15
        return lambda wave: write(wave, wave.tick() + epoch)
    if name in ("s_sendmsg_rtn_b64", "s_sendmsg_rtn_b32"):
        return _message(c, ins)
    if name in ("s_set_gpr_idx_on", "s_set_gpr_idx_off", "s_set_gpr_idx_mode", "s_set_gpr_idx_idx"):
        return _index_mode(c, ins)
    if name == "s_cbranch_join":
        raise c.unknown()
    match = SAVE_EXEC.fullmatch(name)
    if match:
        return compile_save_exec(c, ins, match[1], int(match[2]))
    return compile_arithmetic(c, ins)


def _nothing(wave: Wave) -> None:
    """Execute an instruction that changes nothing that the emulator has."""
    return


def _place(wave: Wave, address: int) -> int:
    """Return the index in the program of the instruction at an address in memory."""
    return wave.place_of(address)


def _wait(c: Compiler, ins: Parsed) -> Step:
    """Return the function (a step) that executes a wait, which only the checks look at."""
    limits = wait_limits(c, ins)

    def wait(wave: Wave) -> None:
        """Tell the checks, if there are any, which operations are over behind this wait."""
        if wave.checks is not None:
            wave.checks.wait(limits)

    return wait


def wait_limits(c: Compiler, ins: Parsed) -> dict[str, int]:
    """Return how many operations of each counter may be under way behind a wait."""
    name, o = ins.mnemonic, ins.operands
    if name == "s_waitcnt":
        limits = {}
        for word in o:
            match = re.fullmatch(r"(\w+)\((\d+)\)", word)
            if match is None:
                if re.fullmatch(r"0(?:x0)?", word):
                    return {"vm": 0, "lgkm": 0, "exp": 0}
                raise c.unknown()
            limits[{"vmcnt": "vm", "lgkmcnt": "lgkm", "expcnt": "exp", "vscnt": "vs"}[match[1]]] = int(match[2])
        return limits
    value = int(o[-1], 0) if o else 0
    if name.startswith("s_waitcnt_"):
        return {{"vscnt": "vs", "vmcnt": "vm", "lgkmcnt": "lgkm", "expcnt": "exp"}[name[10:]]: value}
    match = re.fullmatch(r"s_wait_(load|store|ds|km|sample|bvh|exp|async|tensor)cnt(?:_ds(cnt))?", name)
    if match is None:
        raise c.unknown()
    counter = {"load": "vm", "store": "vs", "ds": "ds", "km": "km"}.get(match[1], match[1])
    if match[2]:
        return {counter: value >> 8 & 63, "ds": value & 63}
    return {counter: value}


def _branch(c: Compiler, name: str, target: Callable[[], int]) -> Step:
    """Return the function (a step) that executes a branch. target: gives the index of the instruction
    that it leads to."""
    if name == "s_branch":
        return lambda wave: target()
    conditions: dict[str, Callable[[Wave], bool]] = {
        "scc0": lambda wave: not wave.scc,
        "scc1": lambda wave: bool(wave.scc),
        "vccz": lambda wave: _vcc(wave) == 0,
        "vccnz": lambda wave: _vcc(wave) != 0,
        "execz": lambda wave: wave.execute() == 0,
        "execnz": lambda wave: wave.execute() != 0,
    }
    condition = conditions.get(name.removeprefix("s_cbranch_"))
    if condition is None:
        raise c.unknown()
    if "vcc" in name:
        c.scalar("vcc" if c.lanes == 64 else "vcc_lo", c.lanes)
    return lambda wave: target() if condition(wave) else None


def _vcc(wave: Wave) -> int:
    """Return VCC, the mask of lanes that comparisons write, as a number."""
    return wave.pair(VCC) if wave.lanes == 64 else wave.s[VCC]


def _load(c: Compiler, ins: Parsed) -> Step:
    """Return the function (a step) that executes a scalar load."""
    name, o = ins.mnemonic, ins.operands
    size = name.rpartition("_")[2]
    is_buffer = name.startswith("s_buffer")
    small = _SMALL_LOADS.get(size)
    count = 1 if small else _LOADS.get(size, 0)
    if not count or name.startswith("s_scratch"):
        raise c.unknown()
    for word in range(count):
        c.scalar_out(_nth(o[0], word))
    base = c.scalar(o[1] if not is_buffer else _first_pair(o[1]), 64)
    written = c.writes
    offset = ins.number("offset")
    extra = c.scalar(o[2]) if len(o) > 2 else None
    # A register's offset; an immediate one that is printed as an operand is signed on some processors.
    immediate = len(o) > 2 and re.fullmatch(r"-?(?:0x[0-9a-f]+|\d+)", o[2]) is not None
    constant = int(o[2], 0) if immediate else 0
    first = _first(o[0])
    records = c.scalar(_nth(o[1], 2)) if is_buffer else None
    c.issues.append(("smem", written))

    def load(wave: Wave) -> None:
        """Load words, or one small value, from memory to scalar registers; words beyond a buffer's end are 0."""
        at = offset + (constant if immediate else extra(wave) if extra is not None else 0)
        address = base(wave)
        memory = wave.memory
        if wave.watcher is not None:
            places = np.array([(address + at & (1 << 48) - 1) - BASE])
            wave.watcher(wave, "scalar load", None, memory.bytes, places, small[0] if small else 4 * count)
        if small:
            value = int.from_bytes(memory.read(address + at & (1 << 64) - 1, small[0]), "little", signed=small[1])
            wave.s[first] = value & WORD
            return
        if records is not None:
            address &= (1 << 48) - 1
            limit = records(wave)
            for word in range(count):
                inside = at + 4 * word + 4 <= limit
                wave.s[first + word] = memory.word((address + at + 4 * word) & ~3) if inside else 0
            return
        address = (address + at & (1 << 64) - 1) & ~3
        for word in range(count):
            wave.s[first + word] = memory.word(address + 4 * word)

    return load


def _first(text: str) -> int:
    """Return the number of the first register that an operand names."""
    from neutrino.emulator.gcn.compiler import register

    found = register(text)
    assert found is not None
    return found.first


def _nth(text: str, word: int) -> str:
    """Return the text of one word of a tuple of scalar registers."""
    match = re.fullmatch(r"(s|ttmp)\[(\d+):\d+\]", text)
    if match:
        return f"{match[1]}{int(match[2]) + word}"
    if text in ("vcc", "exec"):
        return text + ("_hi" if word else "_lo")
    return text


def _first_pair(text: str) -> str:
    """Return the text of the first two registers of a tuple such as ``s[4:7]``; other texts as they are."""
    match = re.fullmatch(r"(s|ttmp)\[(\d+):\d+\]", text)
    return f"{match[1]}[{match[2]}:{int(match[2]) + 1}]" if match else text


_REGISTERS = {"HW_REG_MODE", "HW_REG_WAVE_MODE"}


def _hardware_register(c: Compiler, ins: Parsed) -> Step:
    """Return the function (a step) that executes S_GETREG or S_SETREG."""
    name, o = ins.mnemonic, ins.operands
    is_read = name == "s_getreg_b32"
    match = _HWREG.fullmatch(o[1] if is_read else o[0])
    if match is None:
        raise c.unknown()
    which, shift, size = match[1], int(match[2] or 0), int(match[3] or 32)
    field = (1 << size) - 1
    if is_read:
        write = c.scalar_out(o[0])

        def get(wave: Wave) -> None:
            """Read a field of a hardware register to a scalar register."""
            if which in _REGISTERS:
                value = wave.mode
            elif "SHADER_CYCLES" in which:
                ticks = wave.tick()
                value = ticks >> 32 if which.endswith("_HI") else ticks if which.endswith("_LO") else ticks & 0xFFFFF
            elif which in wave.hardware:
                value = wave.hardware[which]
            else:
                raise c.unknown(f"hardware register {which}")
            write(wave, value >> shift & field)

        known = which in _REGISTERS or "SHADER_CYCLES" in which or which in HARDWARE_REGISTERS
        if not known:
            raise c.unknown(f"hardware register {which}")
        return get
    read = c.scalar(o[1] if name == "s_setreg_b32" else _nth(o[1], 0))
    if which in ("HW_REG_FLAT_SCR_LO", "HW_REG_FLAT_SCR_HI"):

        def set_scratch(wave: Wave) -> None:
            """Write a field of the register with scratch's address."""
            wave.hardware[which] = wave.hardware[which] & ~(field << shift) | (read(wave) & field) << shift

        return set_scratch
    if which not in _REGISTERS:
        raise c.unknown(f"hardware register {which}")

    def set_mode(wave: Wave) -> int:
        """Write a field of MODE: other steps of the same instructions are needed from here on."""
        wave.mode = wave.mode & ~(field << shift) | (read(wave) & field) << shift
        return RELOAD

    return set_mode


HARDWARE_REGISTERS = frozenset(
    {
        "HW_REG_HW_ID", "HW_REG_HW_ID1", "HW_REG_HW_ID2", "HW_REG_XCC_ID", "HW_REG_WAVE_HW_ID1", "HW_REG_WAVE_HW_ID2",
        "HW_REG_GPR_ALLOC", "HW_REG_LDS_ALLOC", "HW_REG_STATUS", "HW_REG_IB_STS2", "HW_REG_TRAPSTS",
        "HW_REG_FLAT_SCR_LO", "HW_REG_FLAT_SCR_HI", "HW_REG_WAVE_STATUS",
    }
)  # fmt: skip
"""Hardware registers that a wave has a value for."""


def _message(c: Compiler, ins: Parsed) -> Step:
    """Return the function (a step) that executes S_SENDMSG_RTN, which asks the hardware for a value:
    the time, or the doorbell."""
    o = ins.operands
    bits_wide = int(ins.mnemonic[-2:])
    write = c.scalar_out(o[0], bits_wide)
    c.issues.append(("message", c.writes))
    if "MSG_RTN_GET_REALTIME" in o[1]:
        return lambda wave: write(wave, wave.tick() + 10**15)
    if "MSG_RTN_GET_DOORBELL" in o[1]:
        return lambda wave: write(wave, 0)
    raise c.unknown()


def _index_mode(c: Compiler, ins: Parsed) -> Step:
    """Return the function (a step) that executes S_SET_GPR_IDX_ON or _OFF: whether M0 indexes vector registers, on
    gfx9."""
    name, o = ins.mnemonic, ins.operands
    if name == "s_set_gpr_idx_off":

        def off(wave: Wave) -> int:
            """End the indexing of vector registers by M0: other steps of the same instructions are needed from here on.
            """
            wave.index_mode = 0
            return RELOAD

        return off
    if name != "s_set_gpr_idx_on":
        raise c.unknown()
    read = c.scalar(o[0])
    flags = {"SRC0": 1, "SRC1": 2, "SRC2": 4, "DST": 8}
    words = re.findall(r"SRC[012]|DST", ins.text)
    mode = sum(flags[word] for word in words)
    if not words and o[1:] and re.fullmatch(r"0x[0-9a-f]+|\d+", o[1]):
        mode = int(o[1], 0)

    def on(wave: Wave) -> int:
        """Let M0 index operands, by an index from a register: other steps of the same instructions are needed from here
        on."""
        wave.s[M0] = wave.s[M0] & ~0xF0FF & WORD | read(wave) & 0xFF | mode << 12
        wave.index_mode = mode
        return RELOAD

    return on
