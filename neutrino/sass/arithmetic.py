"""Count the floating-point instructions of a kernel's machine code, and compare a twin's counts with the original's.

The assembler fuses an unrounded ``mul`` with its ``add`` only if nothing stands in between, so a probe can undo a
fusion and thereby change the low bits of a result. The counts of fused and unfused instructions show this.

Since sm_70 every instruction is 128 bits: bits 0..8 the operation, 9..11 which operand slots are registers,
immediates or constants, 16..23 the destination, 24..31 register A, 32..63 register or immediate B, 64..71
register C. The figures below are what ``ptxas`` 13.0 makes of every form of the instructions for eight architectures
from sm_75 to sm_120a, and ``nvdisasm`` 13.5 prints: ``tests/patch/test_numerics.py`` compares them with both. Where an
operation stands for another, it counts as what it computes, because
``ptxas`` picks either form to balance the pipes, differently in twin and original:

    HFMA2 a, b, -RZ        a product, exactly:  HMUL2
    HFMA2 a, 1, 1, c       a sum, exactly:      HADD2
    HFMA2 RZ, RZ, …        a constant or a copy: not arithmetic
    FADD, DADD, HADD2 with an operand -RZ, without .FTZ and .SAT: a copy, negation or conversion, not
    arithmetic FHADD, FHFMA           FADD and FFMA with f16 or bf16 operands: FADD, FFMA
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from neutrino.errors import FormatError

INSTRUCTION_SIZE = 16
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
# Blackwell gave the word of HFMA2.MMA to IADD.64. Of its chips only these have the paired f32 instructions; on sm_120
# the word of FMUL2 is UVIMNMX's.
_PAIRED = frozenset({100, 103})
_ABSENT_FROM_BLACKWELL = frozenset({_HFMA2_MMA})
_ABSENT_UNLESS_PAIRED = frozenset({_FADD2, _FFMA2, _FMUL2})

_OPERATION = np.uint64(0x1FF)
_FORM_REGISTER_B = 1
_FORM_IMMEDIATE_C = 2
_FORM_IMMEDIATE_B = 4
_RZ = np.uint64(255)
_BYTE = np.uint64(255)
# Bit numbers of the 128-bit instruction.
_NEGATE_A, _SATURATE, _FLUSH, _NEGATE_C, _BFLOAT, _NEGATE_B = 72, 77, 80, 84, 85, 63
_ONE_F16X2 = np.uint64(0x3C003C00)
_ONE_BF16X2 = np.uint64(0x3F803F80)

_Words = npt.NDArray[np.uint64]
_Mask = npt.NDArray[np.bool_]


def _bit(words: _Words, number: int) -> _Mask:
    mask: _Mask = (words >> np.uint64(number % 64)) & np.uint64(1) == 1
    return mask


def count_arithmetic(code: bytes, arch: str) -> dict[str, int]:
    """Counts, by mnemonic, of the additions, products and fused forms in a kernel's machine code; zeros are left out.

    code: the bytes of ``.text.<kernel>``. arch: ``sm_90a``; sm_75 and later.
    Raises FormatError when code is no whole number of instructions or arch has another encoding.
    """
    counted, counts = np.unique(_arithmetic(code, arch)[1], return_counts=True)
    total: dict[str, int] = {}
    for code_point, count in zip(counted.tolist(), counts.tolist(), strict=True):
        mnemonic = _MNEMONICS[code_point]
        total[mnemonic] = total.get(mnemonic, 0) + count
    return total


def arithmetic_at(code: bytes, arch: str) -> dict[int, str]:
    """What count_arithmetic counts, by the offset of the instruction in bytes."""
    places, found = _arithmetic(code, arch)
    return {
        place * INSTRUCTION_SIZE: _MNEMONICS[code_point]
        for place, code_point in zip(places.tolist(), found.tolist(), strict=True)
    }


def _arithmetic(code: bytes, arch: str) -> tuple[npt.NDArray[np.intp], _Words]:
    """The numbers of the instructions that count, and the operation that each counts as."""
    number = int("".join(character for character in arch if character.isdigit()) or 0)
    if number < FIRST_ARCHITECTURE:
        raise FormatError(f"machine code for {arch}", 0, "instruction encoding", arch or "unknown", "sm_75 or later")
    if len(code) % INSTRUCTION_SIZE:
        raise FormatError(f"machine code for {arch}", 0, "size", f"{len(code)} bytes", "a multiple of 16")
    words = np.frombuffer(code, "<u8").reshape(-1, 2)
    operation = words[:, 0] & _OPERATION
    absent = _ABSENT_FROM_BLACKWELL if number >= _BLACKWELL else frozenset()
    absent |= frozenset() if number in _PAIRED else _ABSENT_UNLESS_PAIRED
    chosen = np.isin(operation, np.array(sorted(_MNEMONICS.keys() - absent), np.uint64))
    low, high, operation = words[chosen, 0], words[chosen, 1], operation[chosen]
    form = (low >> np.uint64(9)) & np.uint64(7)
    register_a = (low >> np.uint64(24)) & _BYTE
    register_b = (low >> np.uint64(32)) & _BYTE
    immediate = low >> np.uint64(32)
    register_c = high & _BYTE

    half_fma = (operation == _HFMA2) | (operation == _HFMA2_MMA)
    zero_factor_b = np.where(
        form == _FORM_IMMEDIATE_C, register_c == _RZ, (form == _FORM_REGISTER_B) & (register_b == _RZ)
    )
    constant = half_fma & (register_a == _RZ) & zero_factor_b
    addend_is_register = np.isin(form, np.array([1, 4, 5, 6], np.uint64))
    product = half_fma & addend_is_register & (register_c == _RZ) & _bit(high, _NEGATE_C) & ~constant
    one = np.where(_bit(high, _BFLOAT), _ONE_BF16X2, _ONE_F16X2)
    half_sum = half_fma & (form == _FORM_IMMEDIATE_B) & (immediate == one) & ~product

    addition = (operation == _FADD) | (operation == _DADD) | (operation == _HADD2)
    zero_a = (register_a == _RZ) & _bit(high, _NEGATE_A)
    zero_b = (form == _FORM_REGISTER_B) & (register_b == _RZ) & _bit(low, _NEGATE_B)
    identity = addition & (zero_a | zero_b) & ~_bit(high, _SATURATE) & ~_bit(high, _FLUSH)

    operation = np.where(product, np.uint64(_HMUL2), np.where(half_sum, np.uint64(_HADD2), operation))
    counts = ~(constant | identity)
    return np.flatnonzero(chosen)[counts], operation[counts]


def compare(original: Mapping[str, int], twin: Mapping[str, int], own: Mapping[str, int]) -> str | None:
    """None if the twin computes the same as the original, else the counts that differ, in words.

    own: what the probe's private copies of products add. Twin less own must be the original, per mnemonic, except
    for two things that cannot hide a change:

    - The assembler may fold a private copy into a product that is there anyway, so of products any count from
      the original's to the original's plus own is accepted. To undo a fusion also adds a sum and takes away a
      fused instruction, and those counts must agree exactly.
    - Sums of a type of which neither code holds products or fused instructions may differ in number: there is
      nothing to fuse. The assembler repeats code, such as the way around a shuffle when a warp may have diverged.
    """
    differing = []
    for sums, products, fused in _FAMILIES:
        may_fuse = any(counts.get(name) for counts in (original, twin, own) for name in (products, fused))
        for mnemonic in (sums, products, fused) if may_fuse else ():
            before, after, added = original.get(mnemonic, 0), twin.get(mnemonic, 0), own.get(mnemonic, 0)
            least = before if mnemonic in PRODUCTS else before + added
            if not least <= after <= before + added:
                of_which = f" ({added} of them the probe's)" if added else ""
                differing.append(f"{mnemonic} {before} → {after}{of_which}")
    return ", ".join(differing) or None


def compare_kinds(original: Mapping[str, int], twin: Mapping[str, int], own: Mapping[str, int]) -> str | None:
    """None when the twin holds the kinds of arithmetic that the original and the probe have, else those that differ.

    For codes that are known to be fused alike, and may hold the same instructions more or less often.
    """
    differing = []
    for mnemonic in (name for family in _FAMILIES for name in family):
        before, after = original.get(mnemonic, 0), twin.get(mnemonic, 0)
        if (before and not after) or (after and not before and not own.get(mnemonic, 0)):
            differing.append(f"{mnemonic} {before} → {after}")
    return ", ".join(differing) or None
