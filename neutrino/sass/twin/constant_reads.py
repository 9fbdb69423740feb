"""Which constant banks instructions read: bank 4 has the addresses of a module's variables, bank 3 its constants.

From sm_70 on, an instruction has 16 bytes. Bits 9 to 11 of it are the form of its operands; two forms have a constant,
with its bank in bits 54 to 58 and its offset in bits 38 to 53. ``tests/sass/test_constant_reads.py`` compares with what
``nvdisasm`` prints.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neutrino.sass.fields import INSTRUCTION_BYTES

_FORMS = (3, 5)
_BAR = 0xB1D
"""A barrier whose numbers are immediate: of one of these forms, without a constant."""
_LDC = 0xB82
_INDIRECT = 1 << 27
"""Bit of the upper half of an instruction whose constant bank is at an address in a uniform register."""
_MOV_IMMEDIATE = 0x802
_LOOK_BACK = 128
"""Instructions above a load in which its register is looked for."""
_RZ = 0xFF


@dataclass(frozen=True)
class ConstantRead:
    """A constant that an instruction reads. place: of the instruction in the code, in bytes. bank: its number. offset:
    in the bank, in bytes; None where it is not known: where a register is added whose value is not, or where the
    instruction is not a plain load. by_register: whether a register is added; its value is then the number that an
    instruction above moved into it, which is how compilers load the addresses of the driver's functions."""

    place: int
    bank: int
    offset: int | None
    by_register: bool = False


def constant_reads(code: bytes | bytearray | memoryview) -> Iterator[ConstantRead]:
    """Yield the constants of banks other than 0 that instructions read. Bank 0 has a launch's parameters.

    code: a multiple of 16 bytes; what is left at the end is not read.
    """
    words = np.frombuffer(code, "<u8", len(code) // INSTRUCTION_BYTES * 2)
    low_words = words[::2]
    banks, forms = low_words >> np.uint64(54) & np.uint64(0x1F), low_words >> np.uint64(9) & np.uint64(7)
    reads = (banks > 0) & np.isin(forms, _FORMS) & (low_words & np.uint64(0xFFF) != _BAR)
    for index in np.flatnonzero(reads).tolist():
        yield _read(low_words, index, int(banks[index]), is_indirect=bool(int(words[2 * index + 1]) & _INDIRECT))


def _read(low_words: NDArray[np.uint64], index: int, bank: int, *, is_indirect: bool) -> ConstantRead:
    """Return what an instruction reads. low_words: of all instructions, the lower halves. index: of this one.
    is_indirect: whether it names a uniform register with the bank's address."""
    low = int(low_words[index])
    place, opcode, offset = index * INSTRUCTION_BYTES, low & 0xFFF, low >> 38 & 0xFFFF
    register = low >> 24 & 0xFF
    if opcode != _LDC:
        # Up to sm_89 operands of sums and moves, too.
        return ConstantRead(place, bank, None if is_indirect else offset)
    if register == _RZ:
        return ConstantRead(place, bank, offset)
    for above in reversed(low_words[max(index - _LOOK_BACK, 0) : index].tolist()):
        if above >> 16 & 0xFF == register and above & 0xFFF == _MOV_IMMEDIATE:
            return ConstantRead(place, bank, offset + (above >> 32) & 0xFFFF, by_register=True)
    return ConstantRead(place, bank, None, by_register=True)
