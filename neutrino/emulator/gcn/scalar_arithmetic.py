"""Scalar instructions that compute numbers of a wave from others."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from neutrino.emulator.gcn import floats
from neutrino.emulator.gcn.compiler import Compiler, Scalar
from neutrino.emulator.gcn.numbering import WORD
from neutrino.emulator.gcn.text import Parsed
from neutrino.emulator.gcn.wave import Step, Wave


def _whole_quads(value: int, bits_wide: int) -> int:
    """Return a mask with all 4 bits of each quad of lanes set that has any of them set (S_WQM)."""
    result = 0
    for quad in range(0, bits_wide, 4):
        if value >> quad & 15:
            result |= 15 << quad
    return result


_UNARY: dict[str, Callable[[int, int], int]] = {
    "not": lambda x, n: ~x,
    "wqm": _whole_quads,
}
"""On 32 or 64 bits, with SCC for a result that is not 0."""

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
SAVE_EXEC = re.compile(r"s_(\w+?)(?:_saveexec|_wrexec)_b(32|64)")
_LOGICAL = re.compile(r"s_(\w+?)_b(32|64)")


def compile_comparison(c: Compiler, ins: Parsed) -> Step:
    """Return the function (a step) that executes a scalar comparison or bit test, whose result goes to
    SCC."""
    name, o = ins.mnemonic, ins.operands
    match = re.fullmatch(r"s_bitcmp([01])_b(32|64)", name)
    if match:
        value, bit = c.scalar(o[0], int(match[2])), c.scalar(o[1])
        wanted, limit = int(match[1]), int(match[2]) - 1

        def test(wave: Wave) -> None:
            """Set SCC to whether a bit has the value that is asked for."""
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
            """Return the constant that is compared with."""
            return number

    else:
        y = read(o[1], bits_wide)  # type: ignore[assignment]

    def compare(wave: Wave) -> None:
        """Set SCC to whether the condition holds for two scalar values."""
        wave.scc = int(condition(x(wave), y(wave)))

    return compare


def _compare_floats(c: Compiler, ins: Parsed, condition: str, bits_wide: int) -> Step:
    """Return the function (a step) that executes a scalar comparison of f32. condition: such as
    ``lt``, or ``nlt`` for its opposite, which holds for NaNs."""
    if bits_wide != 32:
        raise c.unknown()
    x, y = (_float(c, text) for text in ins.operands)

    def compare(wave: Wave) -> None:
        """Set SCC to whether the condition holds for two f32 values."""
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
    """Return the function for a scalar operand that is an f32."""
    read = c.scalar(text)
    return lambda wave: np.uint32(read(wave)).view(np.float32)


def compile_save_exec(c: Compiler, ins: Parsed, logic: str, bits_wide: int) -> Step:
    """Return the function (a step) that executes S_AND_SAVEEXEC_B64 and its like: EXEC, the mask of
    active lanes, is combined with an operand, and a register gets the old mask (of WREXEC the new one).

    logic: the operation, such as ``and``.
    """
    operation = _LOGIC.get(logic)
    if operation is None:
        raise c.unknown()
    o = ins.operands
    execution = "exec" if bits_wide == 64 else "exec_lo"
    read, old = c.scalar(o[1], bits_wide), c.scalar(execution, bits_wide)
    save, write = c.scalar_out(o[0], bits_wide), c.scalar_out(execution, bits_wide)
    every = (1 << bits_wide) - 1
    # S_ANDN1SAVE_EXEC and its like take EXEC as the second operand.
    is_write = "_wrexec" in ins.mnemonic

    def step(wave: Wave) -> None:
        """Combine EXEC with the operand, and set SCC to whether any lane is active."""
        before = old(wave)
        result = operation(read(wave), before) & every
        save(wave, result if is_write else before)
        write(wave, result)
        wave.scc = int(result != 0)

    return step


def compile_arithmetic(c: Compiler, ins: Parsed) -> Step:
    """Return the function (a step) that executes an instruction that computes a scalar register from others."""
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
            """Write a logical combination of two values, and set SCC to whether it is not 0."""
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
            """Write a logical function of a value, and set SCC to whether it is not 0."""
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
    if body == "abs_i32":
        signed, out = c.signed_scalar(o[1]), c.scalar_out(o[0])

        def absolute(wave: Wave) -> None:
            """Write the magnitude of a value, and set SCC to whether it is not 0."""
            value = abs(signed(wave)) & WORD
            out(wave, value)
            wave.scc = int(value != 0)

        return absolute
    if body in ("sext_i32_i8", "sext_i32_i16"):
        x, out = c.scalar(o[1]), c.scalar_out(o[0])
        sign = 0x80 if body.endswith("i8") else 0x8000
        return lambda wave: out(wave, ((x(wave) & 2 * sign - 1) ^ sign) - sign)
    match = re.fullmatch(r"bitset([01])_b(32|64)", body)
    if match:
        bit, old, out = c.scalar(o[1]), c.scalar(o[0], bits_wide), c.scalar_out(o[0], bits_wide)
        sets = match[1] == "1"

        def set_bit(wave: Wave) -> None:
            """Set or clear one bit of a register."""
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
            """Add a constant to a register, or multiply it by that; SCC is the overflow of a sum."""
            result = old(wave) + number if adds else old(wave) * number
            out(wave, result)
            if adds:
                wave.scc = int(not -(1 << 31) <= result < 1 << 31)

        return constant
    match = re.fullmatch(r"(add|sub|addc|subb|add_co|sub_co|add_co_ci|sub_co_ci)_([iu])32", body)
    if match:
        return _sum(c, ins, match[1], match[2])
    if body in _FLOAT_FUNCTIONS:
        return _float_arithmetic(c, ins)
    return _other_arithmetic(c, ins, base, kind, bits_wide)


def _sum(c: Compiler, ins: Parsed, base: str, kind: str) -> Step:
    """Return the function (a step) that executes a scalar sum or difference of 32 bits, with or
    without the carry in SCC.

    base: such as ``addc``. kind: ``i``, so that SCC gets the signed overflow, or ``u``, so that it gets the carry.
    """
    o = ins.operands
    read: Callable[[str], Scalar] = c.signed_scalar if kind == "i" else c.scalar
    x, y, out = read(o[1]), read(o[2]), c.scalar_out(o[0])
    with_carry = base in ("addc", "subb", "add_co_ci", "sub_co_ci")
    adds = base.startswith("add")

    def add(wave: Wave) -> None:
        """Write a sum or difference, and set SCC to the overflow or carry."""
        a, b, carry = x(wave), y(wave), wave.scc if with_carry else 0
        result = a + b + carry if adds else a - b - carry
        out(wave, result)
        if kind == "i":
            wave.scc = int(not -(1 << 31) <= result < 1 << 31)
        else:
            wave.scc = int(not 0 <= result <= WORD)

    return add


def _bit_scan(c: Compiler, ins: Parsed, base: str, bits_wide: int, signed: bool) -> Step:
    """Return the function (a step) that executes an instruction that counts the bits of a value, finds
    its first one, or the length of the run at its upper end. base: such as ``bcnt1``."""
    o = ins.operands
    x, out = c.scalar(o[1], bits_wide), c.scalar_out(o[0])
    every = (1 << bits_wide) - 1

    def scan(wave: Wave) -> None:
        """Write the count, or the place of the bit, -1 if there is none."""
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


_FLOAT_FUNCTIONS: dict[str, tuple[str, Callable[..., Any]]] = {
    "cvt_f32_i32": ("i", lambda x: x.astype(np.float32)),
    "cvt_f32_u32": ("u", lambda x: x.astype(np.float32)),
    "cvt_i32_f32": ("f", lambda x: floats.to_integer(x, np.int32)),
    "cvt_u32_f32": ("f", lambda x: floats.to_integer(x, np.uint32)),
    "cvt_f32_f16": ("h", lambda x: x.astype(np.float32)),
    "cvt_hi_f32_f16": ("H", lambda x: x.astype(np.float32)),
    "cvt_f16_f32": ("f", lambda x: x.astype(np.float16)),
    "ceil_f32": ("f", np.ceil),
    "floor_f32": ("f", np.floor),
    "trunc_f32": ("f", np.trunc),
    "rndne_f32": ("f", np.rint),
    "add_f32": ("ff", lambda a, b: a + b),
    "sub_f32": ("ff", lambda a, b: a - b),
    "mul_f32": ("ff", lambda a, b: a * b),
    "min_f32": ("ff", floats.minimum),
    "max_f32": ("ff", floats.maximum),
    "min_num_f32": ("ff", floats.minimum),
    "max_num_f32": ("ff", floats.maximum),
    "fmaak_f32": ("fff", floats.fma32),
    "fmamk_f32": ("fff", floats.fma32),
    "fmac_f32": ("ff+", floats.fma32),
}
"""Name → types of the operands (words as signed or unsigned numbers, floats, lower and upper halves as floats, the
result's old value), and function."""


def _float_arithmetic(c: Compiler, ins: Parsed) -> Step:
    """Return the function (a step) that executes an instruction on scalar floats, which gfx11.5 and later have.

    Raises UnknownInstructionError for others, and where MODE asks for other rounding or flushing.
    """
    o = ins.operands
    found = _FLOAT_FUNCTIONS.get(ins.mnemonic[2:])
    if found is None or c.round32 or c.flush32:
        raise c.unknown()
    types, function = found
    out = c.scalar_out(o[0])
    texts = (*o[1:], o[0]) if types.endswith("+") else o[1:]
    reads = [_typed(c, text, "f" if kind == "+" else kind) for text, kind in zip(texts, types, strict=True)]
    return lambda wave: out(wave, _bits(function(*(read(wave) for read in reads))))


def _typed(c: Compiler, text: str, kind: str) -> Callable[[Wave], Any]:
    """Return the function for a scalar operand as an array of one number. kind: ``i``, ``u``, ``f`` (f32), ``h`` or
    ``H`` (f16 in the lower or upper half)."""
    read = c.scalar(text)
    shift = 16 * (kind == "H")
    if kind in "hH":
        return lambda wave: np.array([read(wave) >> shift & 0xFFFF], np.uint16).view(np.float16)
    dtype = {"i": np.int32, "u": np.uint32, "f": np.float32}[kind]
    return lambda wave: np.array([read(wave)], np.uint32).view(dtype)


def _bits(value: Any) -> int:
    """Return the bits of the only element."""
    return int(value.view(f"u{value.dtype.itemsize}")[0])


def _other_arithmetic(c: Compiler, ins: Parsed, base: str, kind: str, bits_wide: int) -> Step:
    """Return the function (a step) that executes a shift, bit field, product, minimum, maximum or
    difference of scalars.

    base: the name without ``s_`` and type; kind: the type. Raises UnknownInstructionError for any other instruction.
    """
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
            """Write a value shifted by another one, and set SCC to whether it is not 0."""
            by = shift(wave) & bits_wide - 1
            result = (x(wave) << by if base == "lshl" else x(wave) >> by) & every
            out(wave, result)
            wave.scc = int(result != 0)

        return shift_by
    match = re.fullmatch(r"lshl([1-4])_add", base)
    if match:
        x, y, by = c.scalar(o[1]), c.scalar(o[2]), int(match[1])

        def shift_add(wave: Wave) -> None:
            """Write a shifted value plus another one, and set SCC to the carry."""
            result = (x(wave) << by) + y(wave)
            out(wave, result)
            wave.scc = int(result > WORD)

        return shift_add
    if base == "bfe":
        x, field = read(o[1], bits_wide), c.scalar(o[2])

        def extract(wave: Wave) -> None:
            """Write a bit field of a value, extended by its sign or by zeros, and set SCC to whether it is not 0."""
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
    if base in ("add_nc", "sub_nc"):
        x, y = c.scalar(o[1], bits_wide), c.scalar(o[2], bits_wide)
        adds = base.startswith("add")
        return lambda wave: out(wave, x(wave) + y(wave) if adds else x(wave) - y(wave))
    if base in ("min", "max"):
        x, y = read(o[1], bits_wide), read(o[2], bits_wide)
        choose = min if base == "min" else max

        def choice(wave: Wave) -> None:
            """Write the lesser or greater of two values, and set SCC to whether it is the first one."""
            a, b = x(wave), y(wave)
            out(wave, choose(a, b))
            wave.scc = int(a < b if base == "min" else a > b)

        return choice
    if base == "absdiff":
        x, y = c.signed_scalar(o[1]), c.signed_scalar(o[2])

        def difference(wave: Wave) -> None:
            """Write the distance of two values, and set SCC to whether it is not 0."""
            result = abs(x(wave) - y(wave)) & WORD
            out(wave, result)
            wave.scc = int(result != 0)

        return difference
    raise c.unknown()


def _signed16(text: str) -> int:
    """Return the number that a 16-bit literal stands for, as a signed one."""
    value = int(text, 0) & 0xFFFF
    return value - 0x10000 if value & 0x8000 else value


def _fixed(number: int) -> Scalar:
    """Return the function for a scalar operand that is always the same number."""
    return lambda wave: number
