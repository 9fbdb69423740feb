"""Vector instructions that compute: one lane does not see another, but for DPP operands."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.emulator.gcn.compiler import TYPES, Compiler, Lanes, register, width
from neutrino.emulator.gcn.cross_lane import CROSS_LANE, compile_cross_lane, dpp_of
from neutrino.emulator.gcn.matrix import compile_matrix
from neutrino.emulator.gcn.text import Parsed
from neutrino.emulator.gcn.vector_forms import FORMS
from neutrino.emulator.gcn.vector_results import Wrap, Write, applied, modified, rounded, word
from neutrino.emulator.gcn.vector_table import COMPARISONS, OPERATIONS, Operation, float_class
from neutrino.emulator.gcn.wave import Step, Wave

Array = npt.NDArray[Any]
_COMPARE = re.compile(r"v_cmp(x?)_(\w+?)_(u16|i16|f16|u32|i32|f32|u64|i64|f64)")
_CARRY = re.compile(r"v_(add|sub|subrev|addc|subb|subbrev)(?:_co)?(_ci)?_u32")
_PACKED_WORDS = {"v_pk_add_f32": "add_f32", "v_pk_mul_f32": "mul_f32", "v_pk_fma_f32": "fma_f32"}


def compile_vector(c: Compiler, ins: Parsed) -> Step:
    """Return the function (a step) that executes a vector instruction."""
    if ins.second is not None:
        return _dual(c, ins, ins.second)
    if ins.mnemonic.startswith(("v_mfma", "v_wmma", "v_smfmac", "v_swmmac")):
        return compile_matrix(c, ins)
    dpp = dpp_of(c, ins)
    if dpp is None:
        return _plain(c, ins, None)
    step = _plain(c, ins, dpp.operand)

    def permuted(wave: Wave) -> None:
        """Execute the instruction with a permuted first operand, in the lanes that the permutation lets it write."""
        mask, full = wave.mask, wave.full
        wave.valid, enabled = dpp.lanes(mask)
        wave.mask, wave.full = enabled, False
        step(wave)
        # Unless the instruction has written EXEC.
        if wave.mask is enabled:
            wave.mask, wave.full = mask, full

    return permuted


def _dual(c: Compiler, ins: Parsed, second: Parsed) -> Step:
    """Return the function (a step) that executes a dual instruction, two in one: both read before one of them writes.
    """
    computes, writes = [], []
    for half in (Parsed(ins.text, ins.mnemonic, "", ins.operands, ins.modifiers), second):
        compute, write = _value(c, half, None)
        computes.append(compute)
        writes.append(write)
    (compute_x, compute_y), (write_x, write_y) = computes, writes

    def step(wave: Wave) -> None:
        """Compute both results, then write both."""
        x = compute_x(wave)
        # It may be a register, which the first half may write.
        y = np.array(compute_y(wave))
        write_x(wave, x)
        write_y(wave, y)

    return step


def _plain(c: Compiler, ins: Parsed, wrap: Wrap | None) -> Step:
    """Return the function (a step) that executes a vector instruction that is no matrix product and no
    dual one.

    wrap: permutes the lanes of the first operand (DPP); None without that.
    """
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
    if name.startswith("v_s_"):
        return _of_scalars(c, ins)
    special = FORMS.get(name)
    if special is not None:
        return special(c, ins)
    if name == "v_swap_b32":
        x, y = c.vector(o[0], "b32"), c.vector(o[1], "b32")
        write_x, write_y = c.vector_out(o[0], "b32"), c.vector_out(o[1], "b32")

        def swap(wave: Wave) -> None:
            """Swap two registers in active lanes."""
            old = x(wave).copy()
            write_x(wave, y(wave))
            write_y(wave, old)

        return swap
    if ins.form == "_sdwa":
        return _subword(c, ins)
    compute, write = _value(c, ins, wrap)
    return lambda wave: write(wave, compute(wave))


def _of_scalars(c: Compiler, ins: Parsed) -> Step:
    """Return the function (a step) that executes an instruction on a scalar register that computes as vector ones do.
    """
    operation = OPERATIONS.get(ins.mnemonic[4:])
    if operation is None or len(operation.sources) != 1:
        raise c.unknown()
    read, write = c.vector(ins.operands[1], operation.sources[0]), c.scalar_out(ins.operands[0])
    compute = modified(c, ins, operation.result, applied(rounded(c, ins.mnemonic[4:], operation), [read]))

    def step(wave: Wave) -> None:
        """Compute one value, and write it to a scalar register."""
        value = np.atleast_1d(compute(wave))
        write(wave, int(value.view(f"u{value.dtype.itemsize}")[0]))

    return step


def _operation(c: Compiler, name: str) -> Operation:
    """Return the row of ``OPERATIONS`` for an instruction's name, ``v_…``. Raises UnknownInstructionError without one.
    """
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
    compute = applied(rounded(c, name[2:], operation), reads)
    return modified(c, ins, operation.result, compute), write


def _choice(c: Compiler, ins: Parsed, wrap: Wrap | None) -> tuple[Lanes, Write]:
    """Return the functions that compute and write a V_CNDMASK, which takes one of two values by a lane's bit in a mask.

    wrap: permutes the lanes of the first operand; None without that.
    """
    o = ins.operands
    kind = ins.mnemonic[-3:]
    selected = ins.numbers("op_sel")
    halves = [selected[slot] if slot < len(selected) - 1 else 0 for slot in (0, 1)]
    x, y = c.vector(o[1], kind, halves[0], 0), c.vector(o[2], kind, halves[1], 1)
    if wrap is not None:
        x = wrap(x)
    if ins.form == "_sdwa":
        x, y = _selected(c, ins, o[1], kind, 0), _selected(c, ins, o[2], kind, 1)
    mask = c.mask(o[3] if len(o) > 3 else "vcc" if c.lanes == 64 else "vcc_lo")
    half = selected[-1] if selected and kind == "b16" else 0
    return lambda wave: np.where(mask(wave), y(wave), x(wave)), c.vector_out(o[0], kind, half)


def _compare(c: Compiler, ins: Parsed, wrap: Wrap | None) -> Step:
    """Return the function (a step) that executes a vector comparison, whose result is a mask of lanes:
    it goes to a scalar register, VCC, or EXEC.

    wrap: permutes the lanes of the first operand; None without that.
    """
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
        """Compare in active lanes, and write the mask of those where the condition holds."""
        result = np.asarray(function(x(wave), y(wave))) & wave.mask
        for write in writes:
            write(wave, result)

    return compare


def _carry(c: Compiler, ins: Parsed, base: str, wrap: Wrap | None) -> Step:
    """Return the function (a step) that executes a sum or difference of words whose carries are a mask of the lanes."""
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
        """Write the sums or differences of active lanes, and the mask of lanes with a carry."""
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
        """Return the byte, half or word of the operand in each lane, extended, and with the sign that is asked for."""
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
    """Return the function (a step) that executes an SDWA instruction, which reads and writes bytes or halves of
    registers."""
    o = ins.operands
    if ins.mnemonic == "v_cndmask_b32":
        compute, _ = _choice(c, ins, None)
    else:
        operation = _operation(c, ins.mnemonic)
        kinds = list(operation.sources)
        if kinds[-1] == "+":
            kinds.pop()
        rows = enumerate(zip(o[1:], kinds, strict=True))
        reads = [_selected(c, ins, text, kind, slot) for slot, (text, kind) in rows]
        if len(operation.sources) > len(kinds):
            reads.append(c.vector(o[0], operation.result))
        compute = modified(c, ins, operation.result, applied(rounded(c, ins.mnemonic[2:], operation), reads))
    selection, unused = ins.modifiers.get("dst_sel", "DWORD"), ins.modifiers.get("dst_unused", "UNUSED_PAD")
    write = c.vector_out(o[0], "b32")
    old = c.vector(o[0], "b32") if unused == "UNUSED_PRESERVE" else None
    size = 32 if selection == "DWORD" else 8 if selection.startswith("BYTE") else 16
    place = 0 if selection == "DWORD" else int(selection[-1]) * size
    field = np.uint32(((1 << size) - 1) << place)

    def step(wave: Wave) -> None:
        """Compute the result, and write it to a byte or half of the register in active lanes."""
        value = np.atleast_1d(compute(wave))
        bits_ = value.view(f"u{value.dtype.itemsize}").astype(np.uint32)
        if size != 32:
            if unused == "UNUSED_SEXT":
                rest = np.int32(32 - size)
                signed = (bits_.view(np.int32) << rest) >> rest
                bits_ = signed.view(np.uint32) << np.uint32(place)
            else:
                bits_ = bits_ << np.uint32(place) & field
                if old is not None:
                    bits_ = old(wave) & ~field | bits_
        write(wave, bits_)

    return step


def _packed(c: Compiler, ins: Parsed) -> Step:
    """Return the function (a step) that executes a packed instruction, on both halves of registers or on two registers.
    """
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
    function = rounded(c, name.removeprefix("v_pk_"), operation)
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
                read = c.vector(word(text, which), source_kind)
            if slot < len(negative) and negative[slot]:
                read = c._negated(read, source_kind)
            reads.append(read)
        computes.append(modified(c, ins, kind, applied(function, reads)))
    first, second = computes
    if width(kind) == 16:
        write_low, write_high = c.vector_out(f"{o[0]}.l", kind), c.vector_out(f"{o[0]}.h", kind)
    else:
        write_low, write_high = c.vector_out(word(o[0], 0), kind), c.vector_out(word(o[0], 1), kind)

    def step(wave: Wave) -> None:
        """Compute the results of both halves, then write both."""
        # Both are computed before one is written.
        x, y = first(wave), second(wave)
        write_low(wave, x)
        write_high(wave, y)

    return step
