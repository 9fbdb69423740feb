"""Count the floating-point instructions of a kernel's machine code, and compare a twin's counts with the original's.

The assembler fuses an unrounded ``mul`` with its ``add`` only if nothing stands in between, so a probe can undo a
fusion and thereby change the low bits of a result. The counts of fused and unfused instructions show this.

Since sm_70 every instruction is 128 bits: bits 0..8 the opcode, 9..11 the form (which operand slots are registers,
immediates or constants), 16..23 the destination, 24..31 register A, 32..63 register or immediate B, 64..71
register C. The numbers below are what ``ptxas`` 13.0 generates for every form of the instructions for eight
architectures from sm_75 to sm_120a, and ``nvdisasm`` 13.5 prints: ``tests/maker/test_numerics.py`` compares them with
both. ``ptxas`` may use one instruction in place of another to balance the pipes, differently in twin and original. So
an instruction counts as what it computes:

    HFMA2 a, b, -RZ        a product, exactly: counts as HMUL2
    HFMA2 a, 1, 1, c       a sum, exactly: counts as HADD2
    HFMA2 RZ, RZ, …        a constant or a copy: not counted
    FADD, DADD, HADD2      with an operand -RZ, without .FTZ and .SAT: a copy, negation or conversion, not counted
    FHADD, FHFMA           FADD and FFMA with f16 or bf16 operands: count as FADD, FFMA
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from neutrino.errors import FormatError
from neutrino.sass.fields import INSTRUCTION_BYTES

FIRST_ARCHITECTURE = 75
"""The oldest that was checked; before Volta, three 64-bit instructions shared one control word."""

_FADD, _FFMA, _FMUL = 0x021, 0x023, 0x020
_DADD, _DFMA, _DMUL = 0x029, 0x02B, 0x028
_HADD2, _HFMA2, _HFMA2_MMA, _HMUL2 = 0x030, 0x031, 0x035, 0x032
_FADD2, _FFMA2, _FMUL2 = 0x04B, 0x049, 0x04A

_MNEMONICS = {
    _FADD: "FADD", _FFMA: "FFMA", _FMUL: "FMUL", _DADD: "DADD", _DFMA: "DFMA", _DMUL: "DMUL",
    _HADD2: "HADD2", _HFMA2: "HFMA2", _HFMA2_MMA: "HFMA2", _HMUL2: "HMUL2",
    _FADD2: "FADD2", _FFMA2: "FFMA2", _FMUL2: "FMUL2",
}  # fmt: skip
_FAMILIES = (
    ("FADD", "FMUL", "FFMA"), ("DADD", "DMUL", "DFMA"), ("HADD2", "HMUL2", "HFMA2"), ("FADD2", "FMUL2", "FFMA2"),
)  # fmt: skip
"""Sum, product and fused form of each operand type."""
SUMS, PRODUCTS, FUSED = (frozenset(names) for names in zip(*_FAMILIES, strict=True))
_BLACKWELL = 100
# Blackwell uses the opcode of HFMA2.MMA for IADD.64. Of its chips only these have the paired f32 instructions; on
# sm_120 the opcode of FMUL2 is that of UVIMNMX.
_PAIRED = frozenset({100, 103})
_ABSENT_FROM_BLACKWELL = frozenset({_HFMA2_MMA})
_ABSENT_UNLESS_PAIRED = frozenset({_FADD2, _FFMA2, _FMUL2})

_OPCODE = np.uint64(0x1FF)
# Values of the form, bits 9 to 11: which operands are registers and which are immediates.
_FORM_REGISTER_B = 1
_FORM_IMMEDIATE_C = 2
_FORM_IMMEDIATE_B = 4
_FORMS_REGISTER_C = np.array([1, 4, 5, 6], np.uint64)
_RZ = np.uint64(255)
_BYTE = np.uint64(255)
# Bit numbers of the 128-bit instruction.
_NEGATE_A, _SATURATE, _FLUSH, _NEGATE_C, _BFLOAT, _NEGATE_B = 72, 77, 80, 84, 85, 63
# Two numbers 1.0, as an immediate.
_ONE_F16X2 = np.uint64(0x3C003C00)
_ONE_BF16X2 = np.uint64(0x3F803F80)

_Words = npt.NDArray[np.uint64]
_Mask = npt.NDArray[np.bool_]


def _bit(words: _Words, number: int) -> _Mask:
    """Test one bit of each instruction. words: the 64-bit halves that contain it. number: of the bit, from 0 to 127."""
    mask: _Mask = (words >> np.uint64(number % 64)) & np.uint64(1) == 1
    return mask


def count_arithmetic(code: bytes, arch: str) -> dict[str, int]:
    """Count the floating-point additions, products and fused multiply-adds in a kernel's machine code, by mnemonic.

    Equal counts show that a twin (instrumented kernel) fuses the same operations as its original (``compare``).
    code: the bytes of ``.text.<kernel>``. arch: such as ``sm_90a``; sm_75 and later. Counts of zero are left out.
    Raises FormatError when the code is not a whole number of instructions, or for an older architecture.
    """
    _, opcodes = _arithmetic(code, arch)
    distinct_opcodes, occurrences = np.unique(opcodes, return_counts=True)
    counts: dict[str, int] = {}
    for opcode, count in zip(distinct_opcodes.tolist(), occurrences.tolist(), strict=True):
        # Several opcodes may have the same mnemonic.
        mnemonic = _MNEMONICS[opcode]
        counts[mnemonic] = counts.get(mnemonic, 0) + count
    return counts


def arithmetic_at(code: bytes, arch: str) -> dict[int, str]:
    """Return the mnemonic of each floating-point addition, product and fused multiply-add in a kernel's machine code.

    With a line table (``sass_lines``) this shows which PTX each comes from. The keys are offsets of instructions in
    bytes. Parameters and errors are those of count_arithmetic.
    """
    indices, opcodes = _arithmetic(code, arch)
    return {
        index * INSTRUCTION_BYTES: _MNEMONICS[opcode]
        for index, opcode in zip(indices.tolist(), opcodes.tolist(), strict=True)
    }


def _arithmetic(code: bytes, arch: str) -> tuple[npt.NDArray[np.intp], _Words]:
    """Find the floating-point additions, products and fused multiply-adds in machine code.

    code: the bytes of ``.text.<kernel>``. arch: such as ``sm_90a``. Returns the indices of these instructions, from 0,
    and the opcode that each counts as. The assembler may use one instruction in place of another, differently in twin
    and original: so an HFMA2 that computes a product or a sum counts as one, and constants and copies do not count.
    Raises FormatError when the code is not a whole number of instructions, or for an architecture before sm_75.
    """
    # 0 for an unknown architecture, which is empty.
    arch_number = int("".join(character for character in arch if character.isdigit()) or 0)
    if arch_number < FIRST_ARCHITECTURE:
        raise FormatError(f"machine code for {arch}", 0, "instruction encoding", arch or "unknown", "sm_75 or later")
    if len(code) % INSTRUCTION_BYTES:
        raise FormatError(f"machine code for {arch}", 0, "size", f"{len(code)} bytes", "a multiple of 16")

    # Select the candidates by opcode. Some opcodes mean other instructions on some architectures.
    # Each row of words is one instruction: its low and its high half.
    words = np.frombuffer(code, "<u8").reshape(-1, 2)
    opcode = words[:, 0] & _OPCODE
    absent = _ABSENT_FROM_BLACKWELL if arch_number >= _BLACKWELL else frozenset()
    absent |= frozenset() if arch_number in _PAIRED else _ABSENT_UNLESS_PAIRED
    selected = np.isin(opcode, np.array(sorted(_MNEMONICS.keys() - absent), np.uint64))
    low, high, opcode = words[selected, 0], words[selected, 1], opcode[selected]

    # Decode their operands. RZ is the register that is always zero.
    # The bit positions are those that the docstring of this module lists.
    form = (low >> np.uint64(9)) & np.uint64(7)
    register_a = (low >> np.uint64(24)) & _BYTE
    register_b = (low >> np.uint64(32)) & _BYTE
    immediate_b = low >> np.uint64(32)
    register_c = high & _BYTE

    # HFMA2 RZ, RZ, c is a constant or a copy. With an immediate C, which takes the bits of B, B is in those of C.
    is_half_fma = (opcode == _HFMA2) | (opcode == _HFMA2_MMA)
    b_is_zero = np.where(form == _FORM_IMMEDIATE_C, register_c == _RZ, (form == _FORM_REGISTER_B) & (register_b == _RZ))
    is_constant = is_half_fma & (register_a == _RZ) & b_is_zero

    # HFMA2 a, b, -RZ is a product, and HFMA2 a, 1, 1, c a sum.
    c_is_register = np.isin(form, _FORMS_REGISTER_C)
    is_product = is_half_fma & c_is_register & (register_c == _RZ) & _bit(high, _NEGATE_C) & ~is_constant
    one = np.where(_bit(high, _BFLOAT), _ONE_BF16X2, _ONE_F16X2)
    is_sum = is_half_fma & (form == _FORM_IMMEDIATE_B) & (immediate_b == one) & ~is_product

    # An addition of -RZ is a copy, unless it saturates or flushes denormals.
    is_addition = (opcode == _FADD) | (opcode == _DADD) | (opcode == _HADD2)
    adds_to_zero = (register_a == _RZ) & _bit(high, _NEGATE_A)
    adds_zero = (form == _FORM_REGISTER_B) & (register_b == _RZ) & _bit(low, _NEGATE_B)
    is_copy = is_addition & (adds_to_zero | adds_zero) & ~_bit(high, _SATURATE) & ~_bit(high, _FLUSH)

    counted_as = np.where(is_product, np.uint64(_HMUL2), np.where(is_sum, np.uint64(_HADD2), opcode))
    is_counted = ~(is_constant | is_copy)
    return np.flatnonzero(selected)[is_counted], counted_as[is_counted]


def compare(original: Mapping[str, int], twin: Mapping[str, int], probe_counts: Mapping[str, int]) -> str | None:
    """Compare the arithmetic of a kernel and its twin (the instrumented copy), whose results must not differ.

    A probe between a product and a sum can keep the assembler from fusing them, which changes the rounding. original,
    twin: results of count_arithmetic. probe_counts: those of the twin's instructions that the probe added: private
    copies of products of the kernel. Returns None if kernel and twin compute the same, else a message with the counts
    that differ. Without the probe's, the counts must be equal for each mnemonic, except in three cases that cannot hide
    a change:

    - The assembler may merge a private copy with an equal product of the kernel. So the number of products may be
      anything from the original's to the original's plus the probe's. If a fusion were undone, there would also be one
      more sum and one less fused instruction, and these counts must be exact.
    - For an operand type of which neither code has products or fused instructions, the number of sums is not compared:
      there is nothing to fuse. It may differ because the assembler duplicates code, such as the path around a shuffle
      for a warp that may have diverged.
    - Of an operand type of which the kernel has nothing at all, all that the twin has is the probe's, of which the
      assembler may duplicate code, too. Only kinds that the probe has not are reported.
    """
    differences = []
    for sums, products, fused in _FAMILIES:
        if not any(original.get(name) for name in (sums, products, fused)):
            strange = [name for name in (sums, products, fused) if twin.get(name) and not probe_counts.get(name)]
            if any(probe_counts.get(name) for name in (sums, products, fused)) and not strange:
                continue
        may_fuse = any(counts.get(name) for counts in (original, twin, probe_counts) for name in (products, fused))
        if not may_fuse:
            continue
        for mnemonic in (sums, products, fused):
            before, after, added = original.get(mnemonic, 0), twin.get(mnemonic, 0), probe_counts.get(mnemonic, 0)
            # Any of the probe's products may have been merged with one of the kernel's.
            least = before if mnemonic in PRODUCTS else before + added
            if not least <= after <= before + added:
                of_which = f" ({added} of them the probe's)" if added else ""
                differences.append(f"{mnemonic} {before} → {after}{of_which}")
    return ", ".join(differences) or None


def compare_kinds(original: Mapping[str, int], twin: Mapping[str, int], probe_counts: Mapping[str, int]) -> str | None:
    """Compare which mnemonics a kernel and its twin (the instrumented copy) use, but not how often.

    This is for code that is known to be fused in the same way, but may have an instruction a different number of times.
    original, twin, probe_counts: counts by mnemonic of the kernel, the twin, and the twin's instructions that the probe
    added. Returns None if the twin uses the mnemonics of the kernel and the probe, else a message with those that
    differ.
    """
    differences = []
    for mnemonic in (name for family in _FAMILIES for name in family):
        before, after = original.get(mnemonic, 0), twin.get(mnemonic, 0)
        is_lost = before > 0 and after == 0
        is_new = before == 0 and after > 0 and not probe_counts.get(mnemonic, 0)
        if is_lost or is_new:
            differences.append(f"{mnemonic} {before} → {after}")
    return ", ".join(differences) or None
