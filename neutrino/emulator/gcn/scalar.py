"""Scalar instructions: numbers of a wave, branches, waits and what a wave asks the hardware for."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from neutrino.emulator.gcn.compiler import BARRIER, END, RELOAD, YIELD, Compiler, Scalar
from neutrino.emulator.gcn.errors import GcnFaultError
from neutrino.emulator.gcn.numbering import M0, VCC, WORD
from neutrino.emulator.gcn.text import Parsed
from neutrino.emulator.gcn.wave import Step, Wave

_NOTHING = frozenset(
    {
        "s_nop", "s_delay_alu", "s_clause", "s_sendmsg", "s_sendmsghalt", "s_setprio", "s_set_inst_prefetch_distance",
        "s_inst_prefetch", "s_code_end", "s_icache_inv", "s_dcache_inv", "s_dcache_wb", "s_dcache_wb_vol",
        "s_dcache_inv_vol", "s_gl1_inv", "s_ttracedata", "s_version", "s_barrier_signal", "s_waitcnt_depctr",
        "s_wait_alu", "s_wait_event", "s_wait_idle", "s_incperflevel", "s_decperflevel", "s_setkill",
        "s_prefetch_inst", "s_prefetch_data", "s_buffer_prefetch_data", "s_wait_xcnt", "s_sethalt",
    }
)  # fmt: skip
"""They change no register. (A wave that halts itself is one that traps: S_SETHALT only lets it stand.)"""


def _whole_quads(value: int, bits_wide: int) -> int:
    result = 0
    for quad in range(0, bits_wide, 4):
        if value >> quad & 15:
            result |= 15 << quad
    return result


_UNARY: dict[str, Callable[[int, int], int]] = {
    "not": lambda x, n: ~x,
    "wqm": _whole_quads,
    "brev": lambda x, n: int(f"{x:0{n}b}"[::-1], 2),
}
"""On 32 or 64 bits, with SCC for a result that is not 0. (S_BREV leaves SCC.)"""

_LOGIC: dict[str, Callable[[int, int], int]] = {
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "andn2": lambda x, y: x & ~y,
    "and_not1": lambda x, y: x & ~y,
    "orn2": lambda x, y: x | ~y,
    "or_not1": lambda x, y: x | ~y,
    "nand": lambda x, y: ~(x & y),
    "nor": lambda x, y: ~(x | y),
    "xnor": lambda x, y: ~(x ^ y),
    "andn1": lambda x, y: ~x & y,
    "and_not0": lambda x, y: ~x & y,
    "orn1": lambda x, y: ~x | y,
    "or_not0": lambda x, y: ~x | y,
}
_COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "eq": lambda x, y: x == y,
    "lg": lambda x, y: x != y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
}
_SAVEEXEC = re.compile(r"s_(\w+?)(?:_saveexec|_wrexec)_b(32|64)")
_LOGICAL = re.compile(r"s_(\w+?)_b(32|64)")
_HWREG = re.compile(r"hwreg\(([\w]+)(?:,\s*(\d+),\s*(\d+))?\)")
_LOADS = {
    "dword": 1, "dwordx2": 2, "dwordx4": 4, "dwordx8": 8, "dwordx16": 16, "b32": 1, "b64": 2, "b96": 3, "b128": 4,
    "b256": 8, "b512": 16, "dwordx3": 3,
}  # fmt: skip
_SMALL_LOADS = {"u8": (1, False), "i8": (1, True), "u16": (2, False), "i16": (2, True)}


def compile_scalar(c: Compiler, ins: Parsed, place: int, target: Callable[[], int], address: int) -> Step:
    """Return the step of a scalar instruction.

    place: its number in the program. target: gives the place that a branch leads to. address: of the instruction
    behind it, for what reads the program counter.
    """
    name, o = ins.mnemonic, ins.operands
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
            raise GcnFaultError("trap", f"wave {wave.number} of work-group {wave.group.index} traps")

        return trap
    if name.startswith(("s_branch", "s_cbranch")):
        return _branch(c, name, target)
    if name.startswith(("s_load_", "s_buffer_load_", "s_scratch_load_")):
        return _load(c, ins)
    if name.startswith(("s_cmp", "s_bitcmp")):
        return _compare(c, ins)
    if name in ("s_getpc_b64", "s_get_pc_i64"):
        write = c.scalar_out(o[0], 64)
        return lambda wave: write(wave, wave.base + address)
    if name in ("s_setpc_b64", "s_set_pc_i64"):
        read = c.scalar(o[0], 64)
        return lambda wave: _place(wave, read(wave))
    if name in ("s_swappc_b64", "s_swap_pc_i64"):
        read, write = c.scalar(o[1], 64), c.scalar_out(o[0], 64)

        def call(wave: Wave) -> int:
            to = read(wave)
            write(wave, wave.base + address)
            return _place(wave, to)

        return call
    if name in ("s_call_b64", "s_call_i64"):
        write = c.scalar_out(o[0], 64)

        def call_near(wave: Wave) -> int:
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
    match = _SAVEEXEC.fullmatch(name)
    if match:
        return _save_exec(c, ins, match[1], int(match[2]))
    return _arithmetic(c, ins)


def _nothing(wave: Wave) -> None:
    return None


def _place(wave: Wave, address: int) -> int:
    return wave.place_of(address)


def _wait(c: Compiler, ins: Parsed) -> Step:
    """Return the step of a wait, which only the checks look at."""
    limits = wait_limits(c, ins)

    def wait(wave: Wave) -> None:
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
    return wave.pair(VCC) if wave.lanes == 64 else wave.s[VCC]


def _load(c: Compiler, ins: Parsed) -> Step:
    """Return the step of a scalar load."""
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
        at = offset + (constant if immediate else extra(wave) if extra is not None else 0)
        address = base(wave)
        memory = wave.memory
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
    match = re.fullmatch(r"(s|ttmp)\[(\d+):\d+\]", text)
    return f"{match[1]}[{match[2]}:{int(match[2]) + 1}]" if match else text


def _compare(c: Compiler, ins: Parsed) -> Step:
    name, o = ins.mnemonic, ins.operands
    match = re.fullmatch(r"s_bitcmp([01])_b(32|64)", name)
    if match:
        value, bit = c.scalar(o[0], int(match[2])), c.scalar(o[1])
        wanted, limit = int(match[1]), int(match[2]) - 1

        def test(wave: Wave) -> None:
            wave.scc = int((value(wave) >> (bit(wave) & limit) & 1) == wanted)

        return test
    match = re.fullmatch(r"s_cmp(k?)_(\w+)_([iuf])(16|32|64)", name)
    if match is None:
        raise c.unknown()
    bits_wide = int(match[4])
    if match[3] == "f":
        return _compare_floats(c, ins, match[2], bits_wide)
    condition = _COMPARED.get(match[2])
    if condition is None:
        raise c.unknown()
    read = c.signed_scalar if match[3] == "i" else c.scalar
    x = read(o[0], bits_wide)
    if match[1]:
        number = int(o[1], 0) & 0xFFFF
        if match[3] == "i" and number & 0x8000:
            number -= 0x10000

        def y(wave: Wave) -> int:
            return number

    else:
        y = read(o[1], bits_wide)  # type: ignore[assignment]

    def compare(wave: Wave) -> None:
        wave.scc = int(condition(x(wave), y(wave)))

    return compare


def _compare_floats(c: Compiler, ins: Parsed, condition: str, bits_wide: int) -> Step:
    if bits_wide != 32:
        raise c.unknown()
    x, y = (_float(c, text) for text in ins.operands)

    def compare(wave: Wave) -> None:
        a, b = x(wave), y(wave)
        unordered = bool(np.isnan(a) or np.isnan(b))
        results = {
            "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b, "eq": a == b, "lg": a < b or a > b,
            "o": not unordered, "u": unordered, "neq": a != b, "nlt": not a < b, "nle": not a <= b,
            "ngt": not a > b, "nge": not a >= b, "nlg": not (a < b or a > b),
        }  # fmt: skip
        wave.scc = int(results[condition])

    return compare


def _float(c: Compiler, text: str) -> Callable[[Wave], Any]:
    read = c.scalar(text)
    return lambda wave: np.uint32(read(wave)).view(np.float32)


_REGISTERS = {"HW_REG_MODE", "HW_REG_WAVE_MODE"}


def _hardware_register(c: Compiler, ins: Parsed) -> Step:
    """Return the step of S_GETREG or S_SETREG."""
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
            wave.hardware[which] = wave.hardware[which] & ~(field << shift) | (read(wave) & field) << shift

        return set_scratch
    if which not in _REGISTERS:
        raise c.unknown(f"hardware register {which}")

    def set_mode(wave: Wave) -> int:
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
    """Return the step that lets M0 index vector registers, on gfx9."""
    name, o = ins.mnemonic, ins.operands
    if name == "s_set_gpr_idx_off":

        def off(wave: Wave) -> int:
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
        wave.s[M0] = wave.s[M0] & ~0xF0FF & WORD | read(wave) & 0xFF | mode << 12
        wave.index_mode = mode
        return RELOAD

    return on


def _save_exec(c: Compiler, ins: Parsed, logic: str, bits_wide: int) -> Step:
    operation = _LOGIC.get(logic)
    if operation is None:
        raise c.unknown()
    o = ins.operands
    execution = "exec" if bits_wide == 64 else "exec_lo"
    read, old = c.scalar(o[1], bits_wide), c.scalar(execution, bits_wide)
    save, write = c.scalar_out(o[0], bits_wide), c.scalar_out(execution, bits_wide)
    every = (1 << bits_wide) - 1
    # S_ANDN1_SAVEEXEC and its like take EXEC as the second operand.
    is_write = "_wrexec" in ins.mnemonic

    def step(wave: Wave) -> None:
        before = old(wave)
        result = operation(read(wave), before) & every
        save(wave, result if is_write else before)
        write(wave, result)
        wave.scc = int(result != 0)

    return step


def _arithmetic(c: Compiler, ins: Parsed) -> Step:
    """Return the step of an instruction that computes a scalar register from others."""
    name, o = ins.mnemonic, ins.operands
    body = name[2:]
    bits_wide = 64 if body.endswith(("64",)) else 32
    every = (1 << bits_wide) - 1
    base, _, kind = body.rpartition("_")

    match = _LOGICAL.fullmatch(name)
    if match and match[1] in _LOGIC:
        operation = _LOGIC[match[1]]
        x, y, out = c.scalar(o[1], bits_wide), c.scalar(o[2], bits_wide), c.scalar_out(o[0], bits_wide)

        def logical(wave: Wave) -> None:
            result = operation(x(wave), y(wave)) & every
            out(wave, result)
            wave.scc = int(result != 0)

        return logical
    if base == "mov":
        x, out = c.scalar(o[1], bits_wide), c.scalar_out(o[0], bits_wide)
        return lambda wave: out(wave, x(wave))
    if base == "movk":
        out, number = c.scalar_out(o[0]), _signed16(o[1])
        return lambda wave: out(wave, number)
    if base in ("cmov", "cmovk"):
        x = c.scalar(o[1], bits_wide) if base == "cmov" else _fixed(_signed16(o[1]))
        out = c.scalar_out(o[0], bits_wide)
        return lambda wave: out(wave, x(wave)) if wave.scc else None
    if base == "cselect":
        x, y, out = c.scalar(o[1], bits_wide), c.scalar(o[2], bits_wide), c.scalar_out(o[0], bits_wide)
        return lambda wave: out(wave, x(wave) if wave.scc else y(wave))
    if base in ("not", "wqm"):
        unary = _UNARY[base]
        x, out = c.scalar(o[1], bits_wide), c.scalar_out(o[0], bits_wide)

        def invert(wave: Wave) -> None:
            result = unary(x(wave), bits_wide) & every
            out(wave, result)
            wave.scc = int(result != 0)

        return invert
    if base == "brev":
        x, out = c.scalar(o[1], bits_wide), c.scalar_out(o[0], bits_wide)
        return lambda wave: out(wave, int(f"{x(wave):0{bits_wide}b}"[::-1], 2))
    match = re.fullmatch(r"(bcnt[01]|ff[01]|ctz|flbit|clz|cls)_(?:i32_)?([biu])(32|64)", body) or re.fullmatch(
        r"(flbit|cls)_i32()()", body
    )
    if match:
        return _bit_scan(c, ins, match[1], int(match[3] or 32), match[2] in ("i", ""))
    if base in ("sext_i32", "pack_ll_b32"):
        pass
    if body in ("sext_i32_i8", "sext_i32_i16"):
        x, out = c.scalar(o[1]), c.scalar_out(o[0])
        sign = 0x80 if body.endswith("i8") else 0x8000
        return lambda wave: out(wave, ((x(wave) & 2 * sign - 1) ^ sign) - sign)
    match = re.fullmatch(r"bitset([01])_b(32|64)", body)
    if match:
        bit, old, out = c.scalar(o[1]), c.scalar(o[0], bits_wide), c.scalar_out(o[0], bits_wide)
        sets = match[1] == "1"

        def set_bit(wave: Wave) -> None:
            one = 1 << (bit(wave) & bits_wide - 1)
            out(wave, old(wave) | one if sets else old(wave) & ~one)

        return set_bit
    match = re.fullmatch(r"pack_([lh])([lh])_b32_b16", body)
    if match:
        x, y, out = c.scalar(o[1]), c.scalar(o[2]), c.scalar_out(o[0])
        low, high = 16 * (match[1] == "h"), 16 * (match[2] == "h")
        return lambda wave: out(wave, x(wave) >> low & 0xFFFF | (y(wave) >> high & 0xFFFF) << 16)
    match = re.fullmatch(r"(add|mul)k_(?:co_)?i32", body)
    if match:
        old, out, number = c.signed_scalar(o[0]), c.scalar_out(o[0]), _signed16(o[1])
        adds = match[1] == "add"

        def constant(wave: Wave) -> None:
            result = old(wave) + number if adds else old(wave) * number
            out(wave, result)
            if adds:
                wave.scc = int(not -(1 << 31) <= result < 1 << 31)

        return constant
    match = re.fullmatch(r"(add|sub|addc|subb|add_co|sub_co|add_co_ci|sub_co_ci)_([iu])32", body)
    if match:
        return _sum(c, ins, match[1], match[2])
    if kind in ("f32", "f16") or body.startswith("cvt_"):
        return _float_arithmetic(c, ins)
    return _other_arithmetic(c, ins, base, kind, bits_wide)


def _sum(c: Compiler, ins: Parsed, base: str, kind: str) -> Step:
    o = ins.operands
    read: Callable[[str], Scalar] = c.signed_scalar if kind == "i" else c.scalar
    x, y, out = read(o[1]), read(o[2]), c.scalar_out(o[0])
    with_carry = base in ("addc", "subb", "add_co_ci", "sub_co_ci")
    adds = base.startswith("add")

    def add(wave: Wave) -> None:
        a, b, carry = x(wave), y(wave), wave.scc if with_carry else 0
        result = a + b + carry if adds else a - b - carry
        out(wave, result)
        if kind == "i":
            wave.scc = int(not -(1 << 31) <= result < 1 << 31)
        else:
            wave.scc = int(not 0 <= result <= WORD)

    return add


def _bit_scan(c: Compiler, ins: Parsed, base: str, bits_wide: int, signed: bool) -> Step:
    o = ins.operands
    x, out = c.scalar(o[1], bits_wide), c.scalar_out(o[0])
    every = (1 << bits_wide) - 1

    def scan(wave: Wave) -> None:
        value = x(wave)
        if base.startswith("bcnt"):
            count = (value if base == "bcnt1" else ~value & every).bit_count()
            out(wave, count)
            wave.scc = int(count != 0)
        elif base in ("ff1", "ctz", "ff0"):
            value = ~value & every if base == "ff0" else value
            out(wave, (value & -value).bit_length() - 1)
        elif base == "cls" or (base == "flbit" and signed):
            value = ~value & every if value >> bits_wide - 1 else value
            out(wave, bits_wide - value.bit_length() if value else -1)
        else:
            out(wave, bits_wide - value.bit_length() if value else -1)

    return scan


def _float_arithmetic(c: Compiler, ins: Parsed) -> Step:
    """Return the step of scalar floats (gfx11.5 and later)."""
    name, o = ins.mnemonic, ins.operands
    out = c.scalar_out(o[0])
    conversions: dict[str, Callable[[int], Any]] = {
        "s_cvt_f32_i32": lambda value: np.float32(value - (1 << 32) if value >> 31 else value),
        "s_cvt_f32_u32": np.float32,
    }
    if name in conversions:
        x, convert = c.scalar(o[1]), conversions[name]
        return lambda wave: out(wave, _bits(convert(x(wave))))
    binary: dict[str, Callable[[Any, Any], Any]] = {
        "s_add_f32": lambda a, b: a + b,
        "s_sub_f32": lambda a, b: a - b,
        "s_mul_f32": lambda a, b: a * b,
    }
    if name in binary and not c.round32:
        operation = binary[name]
        first, second = _float(c, o[1]), _float(c, o[2])
        return lambda wave: out(wave, _bits(operation(first(wave), second(wave))))
    raise c.unknown()


def _bits(value: Any) -> int:
    return int(np.float32(value).view(np.uint32))


def _other_arithmetic(c: Compiler, ins: Parsed, base: str, kind: str, bits_wide: int) -> Step:
    o = ins.operands
    if len(o) < 3:
        raise c.unknown()
    every = (1 << bits_wide) - 1
    signed = kind.startswith("i")
    read: Callable[[str, int], Scalar] = c.signed_scalar if signed else c.scalar
    out = c.scalar_out(o[0], bits_wide)
    if base in ("lshl", "lshr", "ashr"):
        x, shift = read(o[1], bits_wide), c.scalar(o[2])

        def shift_by(wave: Wave) -> None:
            by = shift(wave) & bits_wide - 1
            result = (x(wave) << by if base == "lshl" else x(wave) >> by) & every
            out(wave, result)
            wave.scc = int(result != 0)

        return shift_by
    match = re.fullmatch(r"lshl([1-4])_add", base)
    if match:
        x, y, by = c.scalar(o[1]), c.scalar(o[2]), int(match[1])

        def shift_add(wave: Wave) -> None:
            result = (x(wave) << by) + y(wave)
            out(wave, result)
            wave.scc = int(result > WORD)

        return shift_add
    if base == "bfe":
        x, field = read(o[1], bits_wide), c.scalar(o[2])

        def extract(wave: Wave) -> None:
            position, size = field(wave) & bits_wide - 1, field(wave) >> 16 & 0x7F
            result = (x(wave) >> position & (1 << size) - 1) if size else 0
            if signed and size and result >> size - 1 & 1:
                result -= 1 << size
            result &= every
            out(wave, result)
            wave.scc = int(result != 0)

        return extract
    if base == "bfm":
        x, shift = c.scalar(o[1]), c.scalar(o[2])
        return lambda wave: out(wave, ((1 << (x(wave) & bits_wide - 1)) - 1) << (shift(wave) & bits_wide - 1))
    if base in ("mul", "mul_hi"):
        x, y = read(o[1], bits_wide), read(o[2], bits_wide)
        by = 32 if base == "mul_hi" else 0
        return lambda wave: out(wave, x(wave) * y(wave) >> by)
    if base in ("add_nc", "sub_nc") or body_is_wide_sum(base, bits_wide):
        x, y = c.scalar(o[1], bits_wide), c.scalar(o[2], bits_wide)
        adds = base.startswith("add")
        return lambda wave: out(wave, x(wave) + y(wave) if adds else x(wave) - y(wave))
    if base in ("min", "max"):
        x, y = read(o[1], bits_wide), read(o[2], bits_wide)
        choose = min if base == "min" else max

        def choice(wave: Wave) -> None:
            a, b = x(wave), y(wave)
            out(wave, choose(a, b))
            wave.scc = int(a < b if base == "min" else a > b)

        return choice
    if base == "absdiff":
        x, y = c.signed_scalar(o[1]), c.signed_scalar(o[2])

        def difference(wave: Wave) -> None:
            result = abs(x(wave) - y(wave)) & WORD
            out(wave, result)
            wave.scc = int(result != 0)

        return difference
    raise c.unknown()


def body_is_wide_sum(base: str, bits_wide: int) -> bool:
    """Whether an instruction adds 64 bits, which leaves SCC."""
    return bits_wide == 64 and base in ("add", "sub")


def _signed16(text: str) -> int:
    value = int(text, 0) & 0xFFFF
    return value - 0x10000 if value & 0x8000 else value


def _fixed(number: int) -> Scalar:
    return lambda wave: number
