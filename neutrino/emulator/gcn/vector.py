"""Vector instructions that compute: one lane does not see another, but for DPP operands."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.emulator.gcn import floats
from neutrino.emulator.gcn.compiler import TYPES, Compiler, Lanes, flush, register, width
from neutrino.emulator.gcn.cross_lane import CROSS_LANE, compile_cross_lane, dpp_of
from neutrino.emulator.gcn.matrix import compile_matrix
from neutrino.emulator.gcn.numbering import M0
from neutrino.emulator.gcn.text import Parsed
from neutrino.emulator.gcn.vector_table import COMPARISONS, OPERATIONS, Operation, float_class
from neutrino.emulator.gcn.wave import Step, Wave

Array = npt.NDArray[Any]
Write = Callable[[Wave, Any], None]

_COMPARE = re.compile(r"v_cmp(x?)_(\w+?)_(u16|i16|f16|u32|i32|f32|u64|i64|f64)")
_CARRY = re.compile(r"v_(add|sub|subrev|addc|subb|subbrev)(?:_co)?(_ci)?_u32")
_PACKED_WORDS = {"v_pk_add_f32": "add_f32", "v_pk_mul_f32": "mul_f32", "v_pk_fma_f32": "fma_f32"}


def compile_vector(c: Compiler, ins: Parsed) -> Step:
    """Return the step of a vector instruction."""
    if ins.second is not None:
        return _dual(c, ins, ins.second)
    if ins.mnemonic.startswith(("v_mfma", "v_wmma", "v_smfmac", "v_swmmac")):
        return compile_matrix(c, ins)
    dpp = dpp_of(c, ins)
    if dpp is None:
        return _plain(c, ins, None)
    step = _plain(c, ins, dpp.operand)

    def permuted(wave: Wave) -> None:
        mask, full = wave.mask, wave.full
        wave.valid, enabled = dpp.lanes(mask)
        wave.mask, wave.full = enabled, False
        step(wave)
        # Unless the instruction has written EXEC.
        if wave.mask is enabled:
            wave.mask, wave.full = mask, full

    return permuted


def _dual(c: Compiler, ins: Parsed, second: Parsed) -> Step:
    """Return the step of two instructions that both read before one of them writes."""
    computes, writes = [], []
    for half in (Parsed(ins.text, ins.mnemonic, "", ins.operands, ins.modifiers), second):
        compute, write = _value(c, half, None)
        computes.append(compute)
        writes.append(write)
    (compute_x, compute_y), (write_x, write_y) = computes, writes

    def step(wave: Wave) -> None:
        x = compute_x(wave)
        # It may be a register, which the first half may write.
        y = np.array(compute_y(wave))
        write_x(wave, x)
        write_y(wave, y)

    return step


Wrap = Callable[[Lanes], Lanes]


def _plain(c: Compiler, ins: Parsed, wrap: Wrap | None) -> Step:
    name, o = ins.mnemonic, ins.operands
    if name in ("v_nop", "v_pipeflush"):
        return lambda wave: None
    if name in CROSS_LANE:
        return compile_cross_lane(c, ins)
    match = _COMPARE.fullmatch(name)
    if match or name.startswith(("v_cmp_class", "v_cmpx_class")):
        return _compare(c, ins, wrap)
    carry = _CARRY.fullmatch(name)
    if carry and ("_co" in name or carry[1] in ("addc", "subb", "subbrev")):
        return _carry(c, ins, carry[1], wrap)
    if name.startswith("v_pk_") and name not in ("v_pk_mov_b32",):
        return _packed(c, ins)
    special = _SPECIAL.get(name)
    if special is not None:
        return special(c, ins)
    if name == "v_swap_b32":
        x, y = c.vector(o[0], "b32"), c.vector(o[1], "b32")
        write_x, write_y = c.vector_out(o[0], "b32"), c.vector_out(o[1], "b32")

        def swap(wave: Wave) -> None:
            old = x(wave).copy()
            write_x(wave, y(wave))
            write_y(wave, old)

        return swap
    if ins.form == "_sdwa" and not name.startswith("v_cndmask"):
        return _subword(c, ins)
    compute, write = _value(c, ins, wrap)
    return lambda wave: write(wave, compute(wave))


def _operation(c: Compiler, name: str) -> Operation:
    operation = OPERATIONS.get(name[2:])
    if operation is None:
        raise c.unknown()
    return operation


def _value(c: Compiler, ins: Parsed, wrap: Wrap | None) -> tuple[Lanes, Write]:
    """Return the functions that compute an instruction's result, and write it."""
    name, o = ins.mnemonic, ins.operands
    if name in ("v_cndmask_b32", "v_cndmask_b16"):
        return _choice(c, ins, wrap)
    operation = _operation(c, name)
    sources = list(o[1:])
    kinds = list(operation.sources)
    if kinds[-1] == "+":
        kinds[-1] = operation.result
        sources.append(o[0])
    if len(sources) != len(kinds):
        raise c.unknown("number of operands")
    selected = ins.numbers("op_sel")
    reads = []
    for slot, (text, kind) in enumerate(zip(sources, kinds, strict=True)):
        half = selected[slot] if slot < len(selected) - 1 and width(kind) == 16 else 0
        read = c.vector(text, kind, half, slot)
        reads.append(wrap(read) if wrap is not None and slot == 0 else read)
    half = selected[-1] if len(selected) > len(o) - 1 and width(operation.result) == 16 else 0
    write = c.vector_out(o[0], operation.result, half)
    if any(kind[0] == "f" for kind in (*kinds, operation.result)):
        _check_rounding(c, operation)
    compute = _applied(operation.function, reads)
    return _modified(c, ins, operation.result, compute), write


def _check_rounding(c: Compiler, operation: Operation) -> None:
    if (operation.result in ("f64", "f16") and c.round64) or (operation.result == "f32" and c.round32):
        raise c.unknown(f"rounding mode {c.mode & 15:#x}")


def _applied(function: Callable[..., Any], reads: list[Lanes]) -> Lanes:
    if len(reads) == 1:
        (one,) = reads
        return lambda wave: function(one(wave))
    if len(reads) == 2:
        first, second = reads
        return lambda wave: function(first(wave), second(wave))
    first, second, third = reads
    return lambda wave: function(first(wave), second(wave), third(wave))


_OUTPUT = {"mul:2": 2.0, "mul:4": 4.0, "div:2": 0.5}


def _modified(c: Compiler, ins: Parsed, kind: str, compute: Lanes) -> Lanes:
    """Return a computation with what the instruction's modifiers do to its result, and without denormal numbers if
    the mode has none."""
    if kind[0] != "f":
        if "clamp" in ins.modifiers:
            return _saturated(c, ins, kind)
        return compute
    factor = next((value for name, value in _OUTPUT.items() if ins.modifiers.get(name[:3]) == name[4:]), None)
    if factor is not None:
        unscaled, by = compute, np.array(factor, TYPES[kind])[()]
        compute = lambda wave: unscaled(wave) * by  # noqa: E731
    if c.flush32 if kind == "f32" else c.flush16:
        unflushed = compute
        compute = lambda wave: flush(unflushed(wave))  # noqa: E731
    if "clamp" in ins.modifiers:
        unclamped, zero, one = compute, np.array(0, TYPES[kind])[()], np.array(1, TYPES[kind])[()]
        # A NaN becomes 0.
        compute = lambda wave: np.fmin(np.fmax(unclamped(wave), zero), one)  # noqa: E731
    return compute


def _saturated(c: Compiler, ins: Parsed, kind: str) -> Lanes:
    """Return a sum or a difference of integers that is cut at the limits of its type."""
    match = re.fullmatch(r"v_(add|sub|subrev)(?:_nc)?_([iu](?:16|32))", ins.mnemonic)
    if match is None:
        raise c.unknown("clamp")
    limits = np.iinfo(TYPES[kind])
    x, y = c.vector(ins.operands[1], kind), c.vector(ins.operands[2], kind)
    base = match[1]

    def compute(wave: Wave) -> Any:
        a, b = x(wave).astype(np.int64), y(wave).astype(np.int64)
        result = a + b if base == "add" else a - b if base == "sub" else b - a
        return np.clip(result, limits.min, limits.max).astype(TYPES[kind])

    return compute


def _choice(c: Compiler, ins: Parsed, wrap: Wrap | None) -> tuple[Lanes, Write]:
    o = ins.operands
    kind = ins.mnemonic[-3:]
    selected = ins.numbers("op_sel")
    halves = [selected[slot] if slot < len(selected) - 1 else 0 for slot in (0, 1)]
    x, y = c.vector(o[1], kind, halves[0], 0), c.vector(o[2], kind, halves[1], 1)
    if wrap is not None:
        x = wrap(x)
    if ins.form == "_sdwa":
        x, y = _selected(c, ins, o[1], kind, 0), _selected(c, ins, o[2], kind, 1)
        if (ins.modifiers.get("dst_sel") or "DWORD") != "DWORD":
            raise c.unknown("part of a result")
    mask = c.mask(o[3] if len(o) > 3 else "vcc" if c.lanes == 64 else "vcc_lo")
    half = selected[-1] if selected and kind == "b16" else 0
    return lambda wave: np.where(mask(wave), y(wave), x(wave)), c.vector_out(o[0], kind, half)


def _compare(c: Compiler, ins: Parsed, wrap: Wrap | None) -> Step:
    name, o = ins.mnemonic, ins.operands
    is_class = "_class_" in name
    match = _COMPARE.fullmatch(name)
    kind = name[-3:]
    sets_exec = name.startswith("v_cmpx")
    x_text, y_text = o[-2:]
    if is_class:
        function: Callable[[Any, Any], Any] = float_class
        second_kind = "u16" if kind == "f16" else "u32"
    else:
        if match is None or match[2] not in COMPARISONS:
            raise c.unknown()
        function = COMPARISONS[match[2]]
        second_kind = kind
    if ins.form == "_sdwa":
        x, y = _selected(c, ins, x_text, kind, 0), _selected(c, ins, y_text, second_kind, 1)
    else:
        selected = ins.numbers("op_sel")
        x = c.vector(x_text, kind, selected[0] if selected else 0, 0)
        y = c.vector(y_text, second_kind, selected[1] if len(selected) > 1 else 0, 1)
    if wrap is not None:
        x = wrap(x)
    execution = "exec" if c.lanes == 64 else "exec_lo"
    writes = []
    if len(o) > 2:
        writes.append(c.mask_out(o[0]))
    elif not sets_exec:
        writes.append(c.mask_out("vcc" if c.lanes == 64 else "vcc_lo"))
    if sets_exec:
        writes.append(c.mask_out(execution))

    def compare(wave: Wave) -> None:
        result = np.asarray(function(x(wave), y(wave))) & wave.mask
        for write in writes:
            write(wave, result)

    return compare


def _carry(c: Compiler, ins: Parsed, base: str, wrap: Wrap | None) -> Step:
    """Return the step of a sum or difference of words whose carries are a mask of the lanes."""
    o = ins.operands
    with_carry = base in ("addc", "subb", "subbrev") or "_ci_" in ins.mnemonic
    if ins.form == "_sdwa":
        x, y = _selected(c, ins, o[2], "u32", 0), _selected(c, ins, o[3], "u32", 1)
    else:
        x, y = c.vector(o[2], "u32", 0, 0), c.vector(o[3], "u32", 0, 1)
    if wrap is not None:
        x = wrap(x)
    carry = c.mask(o[4] if len(o) > 4 else "vcc" if c.lanes == 64 else "vcc_lo") if with_carry else None
    write, write_carry = c.vector_out(o[0], "u32"), c.mask_out(o[1])
    adds, reverses = base.startswith("add"), "rev" in base

    def step(wave: Wave) -> None:
        a, b = x(wave).astype(np.int64), y(wave).astype(np.int64)
        if reverses:
            a, b = b, a
        more = carry(wave).astype(np.int64) if carry is not None else 0
        result = a + b + more if adds else a - b - more
        write(wave, result.astype(np.uint32))
        write_carry(wave, ((result < 0) | (result > 0xFFFF_FFFF)) & wave.mask)

    return step


def _selected(c: Compiler, ins: Parsed, text: str, kind: str, slot: int) -> Lanes:
    """Return the function for an SDWA operand, of which a byte or a half is taken."""
    selection = ins.modifiers.get(f"src{slot}_sel", "DWORD")
    sign = False
    if text.startswith("sext("):
        text, sign = text[5:-1], True
    negative = text.startswith("-") and register(text[1:].strip("|")) is not None
    absolute = "|" in text
    plain = text.lstrip("-").strip("|") if negative or absolute else text
    raw = c.vector(plain, "b32", 0, slot)
    dtype = np.dtype(TYPES[kind])
    place = int(selection[-1]) if selection != "DWORD" else 0
    size = 32 if selection == "DWORD" else 8 if selection.startswith("BYTE") else 16

    def read(wave: Wave) -> Any:
        value = np.atleast_1d(raw(wave))
        if size != 32:
            value = value >> np.uint32(size * place)
            if sign:
                rest = np.int32(32 - size)
                value = ((value.view(np.int32) << rest) >> rest).view(np.uint32)
            else:
                value = value & np.uint32((1 << size) - 1)
        if dtype.itemsize == 2:
            value = value.astype(np.uint16)
        value = value.view(dtype)
        if absolute:
            value = np.abs(value)
        return -value if negative else value

    return read


def _subword(c: Compiler, ins: Parsed) -> Step:
    """Return the step of an SDWA form."""
    o = ins.operands
    operation = _operation(c, ins.mnemonic)
    kinds, texts = list(operation.sources), list(o[1:])
    if kinds[-1] == "+":
        kinds.pop()
    rows = enumerate(zip(texts, kinds, strict=True))
    reads = [_selected(c, ins, text, kind, slot) for slot, (text, kind) in rows]
    if len(operation.sources) > len(kinds):
        reads.append(c.vector(o[0], operation.result))
    compute = _modified(c, ins, operation.result, _applied(operation.function, reads))
    selection, unused = ins.modifiers.get("dst_sel", "DWORD"), ins.modifiers.get("dst_unused", "UNUSED_PAD")
    write = c.vector_out(o[0], "b32")
    old = c.vector(o[0], "b32") if unused == "UNUSED_PRESERVE" else None
    size = 32 if selection == "DWORD" else 8 if selection.startswith("BYTE") else 16
    place = 0 if selection == "DWORD" else int(selection[-1]) * size
    field = np.uint32(((1 << size) - 1) << place)

    def step(wave: Wave) -> None:
        value = np.atleast_1d(compute(wave))
        word = value.view(f"u{value.dtype.itemsize}").astype(np.uint32)
        if size != 32:
            if unused == "UNUSED_SEXT":
                rest = np.int32(32 - size)
                signed = (word.view(np.int32) << rest) >> rest
                word = signed.view(np.uint32) << np.uint32(place)
            else:
                word = word << np.uint32(place) & field
                if old is not None:
                    word = old(wave) & ~field | word
        write(wave, word)

    return step


def _packed(c: Compiler, ins: Parsed) -> Step:
    """Return the step of an instruction on both halves, or on two registers, at once."""
    name, o = ins.mnemonic, ins.operands
    low, high = ins.numbers("op_sel"), ins.numbers("op_sel_hi")
    negative_low, negative_high = ins.numbers("neg_lo"), ins.numbers("neg_hi")
    if name in _PACKED_WORDS:
        operation = OPERATIONS[_PACKED_WORDS[name]]
    else:
        base = name[5:]
        if base not in OPERATIONS or width(OPERATIONS[base].result) != 16:
            raise c.unknown()
        operation = OPERATIONS[base]
    kind = operation.result
    _check_rounding(c, operation)
    computes = []
    for part, (selected, negative) in enumerate(((low, negative_low), (high, negative_high))):
        reads = []
        texts = list(o[1:])
        kinds = list(operation.sources)
        if kinds[-1] == "+":
            kinds[-1] = kind
            texts.append(o[0])
        for slot, (text, source_kind) in enumerate(zip(texts, kinds, strict=True)):
            which = selected[slot] if slot < len(selected) else part
            if width(kind) == 16:
                read = c.vector(text, source_kind, which if register(text) is not None or "0x" in text else 0, slot)
            else:
                read = c.vector(_word(text, which), source_kind)
            if slot < len(negative) and negative[slot]:
                read = c._negated(read, source_kind)
            reads.append(read)
        computes.append(_modified(c, ins, kind, _applied(operation.function, reads)))
    first, second = computes
    if width(kind) == 16:
        write_low, write_high = c.vector_out(f"{o[0]}.l", kind), c.vector_out(f"{o[0]}.h", kind)
    else:
        write_low, write_high = c.vector_out(_word(o[0], 0), kind), c.vector_out(_word(o[0], 1), kind)

    def step(wave: Wave) -> None:
        # Both are computed before one is written.
        x, y = first(wave), second(wave)
        write_low(wave, x)
        write_high(wave, y)

    return step


def _word(text: str, which: int) -> str:
    """Return the text of one of the two registers that an operand of 64 bits has; a constant is in both."""
    match = re.fullmatch(r"([vas])\[(\d+):(\d+)\]", text)
    if match:
        return f"{match[1]}{int(match[2]) + which}"
    if text in ("vcc", "exec"):
        return f"{text}_{'hi' if which else 'lo'}"
    return text


def _mix(c: Compiler, ins: Parsed) -> Step:
    """Return the step of V_FMA_MIX: operands of f32, or of the halves of registers."""
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
    compute = _applied(fma, reads)
    if ins.mnemonic.endswith("_f32"):
        clamped = _modified(c, ins, "f32", compute)
        write = c.vector_out(o[0], "f32")
        return lambda wave: write(wave, clamped(wave))
    half = int(ins.mnemonic.endswith("hi_f16"))
    # The other half keeps its value, on every processor.
    write = c.vector_out(f"{o[0]}.{'h' if half else 'l'}", "f16")
    clamped = _modified(c, ins, "f16", lambda wave: compute(wave).astype(np.float16))
    return lambda wave: write(wave, clamped(wave))


def _widened(narrow: Lanes) -> Lanes:
    return lambda wave: narrow(wave).astype(np.float32)


def _divide_scale(c: Compiler, ins: Parsed) -> Step:
    o = ins.operands
    kind = ins.mnemonic[-3:]
    a, denominator, numerator = (c.vector(text, kind) for text in o[2:5])
    write, write_mask = c.vector_out(o[0], kind), c.mask_out(o[1])

    def step(wave: Wave) -> None:
        result, flags = floats.divide_scale(a(wave), denominator(wave), numerator(wave))
        write(wave, result)
        write_mask(wave, np.broadcast_to(flags, (wave.lanes,)) & wave.mask)

    return step


def _divide_fmas(c: Compiler, ins: Parsed) -> Step:
    o = ins.operands
    kind = ins.mnemonic[-3:]
    a, b, addend = (c.vector(text, kind) for text in o[1:4])
    mask = c.mask("vcc" if c.lanes == 64 else "vcc_lo")
    write = c.vector_out(o[0], kind)
    power = 64 if kind == "f32" else 128

    def step(wave: Wave) -> None:
        x, y, z = a(wave), b(wave), addend(wave)
        scaled = mask(wave)
        result = floats.fma32(x, y, z) if kind == "f32" else floats.fma64(x, y, z)
        if scaled.any():
            # Quotients that were made too small, or too great, by that power.
            by = np.where(np.abs(z) >= 2, 2.0**power, 2.0**-power)
            if kind == "f32":
                exact = floats._odd_sum(x.astype(np.float64) * y, z.astype(np.float64))
                result = np.where(scaled, (exact * by).astype(np.float32), result)
            else:
                result = np.where(scaled, result * by, result)
        write(wave, result)

    return step


def _multiply_add_wide(c: Compiler, ins: Parsed) -> Step:
    """Return the step of V_MAD_U64_U32 and V_MAD_I64_I32."""
    o = ins.operands
    signed = "i64" in ins.mnemonic
    a, b = (c.vector(text, "i32" if signed else "u32") for text in o[2:4])
    addend = c.vector(o[4], "i64" if signed else "u64")
    write, write_mask = c.vector_out(o[0], "u64"), c.mask_out(o[1])
    wide: Any = np.int64 if signed else np.uint64

    def step(wave: Wave) -> None:
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
    """Return the step of V_MBCNT: bits of a mask that belong to lower lanes."""
    o = ins.operands
    source, addend, write = c.vector(o[1], "u32"), c.vector(o[2], "u32"), c.vector_out(o[0], "u32")
    first = 32 if "_hi_" in ins.mnemonic else 0
    below = np.array([(1 << min(max(lane - first, 0), 32)) - 1 for lane in range(c.lanes)], np.uint32)
    return lambda wave: write(wave, np.bitwise_count(source(wave) & below).astype(np.uint32) + addend(wave))


def _move_pair(c: Compiler, ins: Parsed) -> Step:
    """Return the step of V_PK_MOV_B32: any word of each of two pairs."""
    o = ins.operands
    # One choice for each result, as there is one source for each.
    selected = ins.numbers("op_sel") or (0, 0)
    first = c.vector(_word(o[1], selected[0]), "b32")
    second = c.vector(_word(o[2], selected[1]), "b32")
    write_low, write_high = c.vector_out(_word(o[0], 0), "b32"), c.vector_out(_word(o[0], 1), "b32")

    def step(wave: Wave) -> None:
        x, y = np.array(first(wave)), np.array(second(wave))
        write_low(wave, x)
        write_high(wave, y)

    return step


def _truth_table(c: Compiler, ins: Parsed) -> Step:
    """Return the step of V_BITOP3: any function of three bits."""
    o = ins.operands
    kind = ins.mnemonic[-3:]
    a, b, x = (c.vector(text, kind) for text in o[1:4])
    write = c.vector_out(o[0], kind)
    table = ins.number("bitop3")

    def step(wave: Wave) -> None:
        p, q, r = a(wave), b(wave), x(wave)
        result = p & ~p
        for row in range(8):
            if table >> row & 1:
                # Bit 2 of a row's number is that of the first operand.
                result = result | (p if row & 4 else ~p) & (q if row & 2 else ~q) & (r if row & 1 else ~r)
        write(wave, result)

    return step


def _relative_move(c: Compiler, ins: Parsed) -> Step:
    """Return the step of V_MOVRELS and V_MOVRELD, whose register M0 counts from the named one."""
    o = ins.operands
    c.scalar("m0")
    if ins.mnemonic == "v_movrels_b32":
        first = c.vector_registers(o[1], 1, False)
        write = c.vector_out(o[0], "b32")
        return lambda wave: write(wave, wave.v[first + wave.s[M0]])
    source, into = c.vector(o[1], "b32"), c.vector_registers(o[0], 1, True)
    return lambda wave: np.copyto(wave.v[into + wave.s[M0]], source(wave), where=wave.mask)


def _dot(c: Compiler, ins: Parsed) -> Step:
    """Return the step of a dot product of bytes, or of halves, with a sum of words."""
    o, name = ins.operands, ins.mnemonic
    accumulates = len(o) == 3
    texts = (*o[1:3], o[0] if accumulates else o[3])
    if "f16" in name and name.startswith(("v_dot2_f32_f16", "v_dot2acc_f32_f16", "v_dot2c_f32_f16")):
        low = [c.vector(text, "f16", 0) for text in texts[:2]]
        high = [c.vector(text, "f16", 1) for text in texts[:2]]
        addend, write = c.vector(texts[2], "f32"), c.vector_out(o[0], "f32")

        def halves(wave: Wave) -> None:
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
    """Return the step of a conversion between f32 and 8-bit floats."""
    o, name = ins.operands, ins.mnemonic
    variant = "_fnuz" if c.processor in ("gfx940", "gfx941", "gfx942") else ""
    selected = ins.numbers("op_sel")
    match = re.fullmatch(r"v_cvt_(pk_)?f32_(fp8|bf8)", name)
    if match:
        kind = match[2] + variant
        source = c.vector(o[1], "u32")
        if match[1]:
            shift = np.uint32(16 if selected and selected[0] else 16 if o[1].endswith(".h") else 0)
            low, high = c.vector_out(_word(o[0], 0), "f32"), c.vector_out(_word(o[0], 1), "f32")

            def pair(wave: Wave) -> None:
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
        low, high = floats.f32_to_f8(a(wave), kind), floats.f32_to_f8(b(wave), kind)
        write(wave, low.astype(np.uint16) | high.astype(np.uint16) << np.uint16(8))

    return pack


_SPECIAL: dict[str, Callable[[Compiler, Parsed], Step]] = {
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
