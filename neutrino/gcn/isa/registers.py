"""Sets of registers of AMD's processors, as bits of one number, and the registers that an operand names.

Scalar ones have the numbers by which machine code names them, vector ones follow: a set is ``1 << number`` of each.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

from neutrino.errors import NeutrinoError

VCC_LO, VCC_HI, TTMP, M0, EXEC_LO, EXEC_HI = 106, 107, 108, 124, 126, 127
SCC_NUMBER, MODE_NUMBER, FLAT_SCRATCH, XNACK_MASK = 128, 129, 130, 132
VECTORS = 256
"""The number of v0."""
VECTOR_COUNT = 1024
ACCUMULATORS = VECTORS + VECTOR_COUNT
"""The number of a0."""
_END = ACCUMULATORS + 256

SCC, MODE, VCC, EXEC, M0_SET = 1 << SCC_NUMBER, 1 << MODE_NUMBER, 3 << VCC_LO, 3 << EXEC_LO, 1 << M0
ALL_SCALARS = (1 << VECTORS) - 1
ALL_VECTORS = (1 << _END) - 1 ^ ALL_SCALARS
EVERYTHING = (1 << _END) - 1
NAMED_SCALARS = (1 << VCC_LO) - 1
"""s0 to s105."""


class UnknownInstructionError(NeutrinoError):
    """What an instruction reads and writes is not known."""


_WORDS = {
    "vcc": VCC, "vcc_lo": 1 << VCC_LO, "vcc_hi": 1 << VCC_HI, "exec": EXEC, "exec_lo": 1 << EXEC_LO,
    "exec_hi": 1 << EXEC_HI, "m0": M0_SET, "scc": SCC, "src_scc": SCC, "src_vccz": VCC, "vccz": VCC,
    "src_execz": EXEC, "execz": EXEC, "flat_scratch": 3 << FLAT_SCRATCH, "flat_scratch_lo": 1 << FLAT_SCRATCH,
    "flat_scratch_hi": 2 << FLAT_SCRATCH, "xnack_mask": 3 << XNACK_MASK, "xnack_mask_lo": 1 << XNACK_MASK,
    "xnack_mask_hi": 2 << XNACK_MASK, "src_lds_direct": M0_SET | EXEC, "lds_direct": M0_SET | EXEC,
    **dict.fromkeys(
        ("off", "null", "src_shared_base", "src_shared_limit", "src_private_base", "src_private_limit",
         "src_shared_base_lo", "src_shared_base_hi", "src_private_base_lo", "src_private_base_hi",
         "src_flat_scratch_base_lo", "src_flat_scratch_base_hi",
         "src_pops_exiting_wave_id", "abs", "neg", "sext", "lit", "l", "h"), 0,
    ),
}  # fmt: skip
"""Words of operands other than numbered registers → the registers that they stand for."""
_TOKEN = re.compile(r"(?<![\w.$])([a-z_][a-z_0-9]*)(?:\[(\d+)(?::(\d+))?\])?")
_NUMBERED = re.compile(r"(s|v|a|ttmp)(\d+)")
_FIRST = {"s": 0, "v": VECTORS, "a": ACCUMULATORS, "ttmp": TTMP}
_COUNTS = {"s": VCC_LO, "v": VECTOR_COUNT, "a": 256, "ttmp": 16}


@functools.lru_cache(maxsize=1 << 14)
def registers_of(operand: str) -> int:
    """Return the registers that an operand names, as LLVM prints it: ``v[0:1]``, ``-|v3|``, ``v7.l``, ``vcc``, ``1.0``.

    Raises UnknownInstructionError for one with an unknown word.
    """
    found = 0
    for match in _TOKEN.finditer(operand):
        word, first, last = match.groups()
        if first is None:
            if word in _WORDS:
                found |= _WORDS[word]
                continue
            numbered = _NUMBERED.fullmatch(word)
            if numbered is None:
                raise UnknownInstructionError(f"operand {operand}")
            word, first = numbered.groups()
        if word not in _FIRST:
            raise UnknownInstructionError(f"operand {operand}")
        low, high = int(first), int(last or first)
        if not low <= high < _COUNTS[word]:
            raise UnknownInstructionError(f"operand {operand}")
        found |= ((1 << high - low + 1) - 1) << _FIRST[word] + low
    return found


def scalars_in(registers: int) -> Iterator[int]:
    """Yield the numbers of the SGPRs s0 to s105 in a set, ascending."""
    return _bits(registers & NAMED_SCALARS)


def vectors_in(registers: int) -> Iterator[int]:
    """Yield the numbers of the VGPRs in a set, ascending."""
    return _bits((registers & ALL_VECTORS) >> VECTORS & (1 << VECTOR_COUNT) - 1)


def _bits(number: int) -> Iterator[int]:
    """Yield the numbers of a word's bits that are 1, ascending from 0."""
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest
