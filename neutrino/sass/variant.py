"""Whether PTX for another architecture is the same program as the machine code that runs.

It was compiled from the same source with another ``__CUDA_ARCH__``, on which the source may depend in any way. So the
PTX is assembled for the machine code's architecture, and the properties of each kernel are compared. That nothing
differs is no proof: the same counts may compute something else.
"""

from __future__ import annotations

import numpy as np

from neutrino.sass.arithmetic import compare, count_arithmetic
from neutrino.sass.cubin import CubinKernel
from neutrino.sass.fields import INSTRUCTION_BYTES

# Bits 0 to 11 of an instruction, since sm_70: opcode and form. The values were learned from what ptxas 13.0 generates
# for empty and for trapping kernels for sm_75 to sm_120.
_OPCODE = 0xFFF
_BPT = 0x95C
_EXIT = 0x94D
_BRA = 0x947
_NOP = 0x918
_ENDS = frozenset({_EXIT, _BRA, 0x547, 0x949, 0x94A, 0x950})
"""EXIT, BRA, BRA.U, BRX, JMP, RET."""
_STACK_POINTER = 1
"""The number of the register R1."""
_MOVES = frozenset({0xA02, 0x624, 0xB82})
"""MOV, IMAD.MOV and LDC from constant memory: every kernel's first instruction is one of them and sets R1."""
_ALWAYS = 7
"""The predicate PT (always true), in bits 12 to 14; bit 15 negates it."""


def difference(shipped: CubinKernel, assembled: CubinKernel, arch: str) -> str | None:
    """Compare two kernels of the same name, and return a message if they are clearly not the same program, else None.

    The source may depend on the architecture (``__CUDA_ARCH__``) in any way, so PTX for another one must not be used if
    anything here differs. That nothing differs is no proof. shipped: from the machine code that runs. assembled: from
    PTX of another architecture, assembled for the machine code's. arch: that architecture, such as ``sm_90a``.
    """
    shipped_parameters, assembled_parameters = _parameter_layout(shipped), _parameter_layout(assembled)
    if shipped_parameters != assembled_parameters:
        return f"parameters (offset, size) of the machine code {shipped_parameters}, of the PTX {assembled_parameters}"
    if shipped.shared != assembled.shared:
        return f"static shared memory of the machine code {shipped.shared} bytes, of the PTX {assembled.shared}"
    if shipped.required_threads != assembled.required_threads:
        return f".reqntid of the machine code {shipped.required_threads}, of the PTX {assembled.required_threads}"
    shipped_effect, assembled_effect = _effect(shipped.code), _effect(assembled.code)
    if shipped_effect != assembled_effect:
        return f"the machine code {shipped_effect}, the PTX {assembled_effect}"
    counts = compare(count_arithmetic(shipped.code, arch), count_arithmetic(assembled.code, arch), {})
    return None if counts is None else f"arithmetic of the machine code → of the PTX: {counts}"


def _parameter_layout(kernel: CubinKernel) -> list[tuple[int, int]]:
    """Return offset and size of each parameter of a kernel, to compare two kernels."""
    return [(offset, size) for _, offset, size in kernel.parameters]


def _effect(code: bytes) -> str:
    """Classify a kernel's machine code: it ``does nothing``, ``only traps`` or ``computes``.

    The first two are what nvcc generates for a kernel whose body ``__CUDA_ARCH__`` leaves out.
    """
    # The first 8 bytes of each instruction have all the bits that are needed.
    words = np.frombuffer(code[: len(code) // INSTRUCTION_BYTES * INSTRUCTION_BYTES], "<u8")[::2].tolist()
    opcodes = [word & _OPCODE for word in words]
    # After the last EXIT the assembler puts a BRA to itself, and NOPs up to the end.
    no_effect = {_EXIT, _BRA, _NOP}
    # Bits 16 to 23 are the destination register.
    if all(
        opcode in no_effect or (opcode in _MOVES and word >> 16 & 0xFF == _STACK_POINTER)
        for opcode, word in zip(opcodes, words, strict=True)
    ):
        return "does nothing"
    # It traps if an unconditional BPT (breakpoint or trap) comes before the first instruction that ends or leaves the
    # code. Calls, such as of vprintf for a message, return, so they are allowed before it.
    for opcode, word in zip(opcodes, words, strict=True):
        # Bits 12 to 15 are the predicate and its negation.
        if opcode == _BPT and word >> 12 & 0xF == _ALWAYS:
            return "only traps"
        if opcode in _ENDS:
            break
    return "computes"
