"""Whether PTX of another architecture is the program that runs as machine code.

It was compiled from the same source with another ``__CUDA_ARCH__``, so it may hold anything that the program's authors
wanted there. What can be compared is compared, kernel by kernel, with the PTX assembled for the machine code's
architecture. That nothing differs is no proof: the same counts may compute something else.
"""

from __future__ import annotations

import numpy as np

from neutrino.sass.arithmetic import INSTRUCTION_SIZE, compare, count_arithmetic
from neutrino.sass.cubin import CubinKernel

# Bits 0 to 11 of an instruction, since sm_70: learned from what ptxas 13.0 makes of empty and of trapping kernels for
# sm_75 to sm_120.
_OPERATION = 0xFFF
_BPT = 0x95C
_EXIT = 0x94D
_BRA = 0x947
_NOP = 0x918
_ENDS = frozenset({_EXIT, _BRA, 0x547, 0x949, 0x94A, 0x950})
"""EXIT, BRA, BRA.U, BRX, JMP, RET."""
_STACK_POINTER = 1
_MOVES = frozenset({0xA02, 0x624, 0xB82})
"""MOV, IMAD.MOV and LDC from constant memory: to R1, the stack pointer, by every kernel's first instruction."""
_ALWAYS = 7
"""The predicate PT, in bits 12 to 14; bit 15 negates it."""


def difference(shipped: CubinKernel, assembled: CubinKernel, arch: str) -> str | None:
    """What shows that two kernels of one name are not one program, for people; None when nothing does.

    shipped: the machine code that runs. assembled: the other text, for the same architecture.
    """
    ours, theirs = _layout(shipped), _layout(assembled)
    if ours != theirs:
        return f"parameters (offset, size) of the machine code {ours}, of the PTX {theirs}"
    if shipped.shared != assembled.shared:
        return f"static shared memory of the machine code {shipped.shared} bytes, of the PTX {assembled.shared}"
    if shipped.required_threads != assembled.required_threads:
        return f".reqntid of the machine code {shipped.required_threads}, of the PTX {assembled.required_threads}"
    ours_body, theirs_body = _body(shipped.code), _body(assembled.code)
    if ours_body != theirs_body:
        return f"the machine code {ours_body}, the PTX {theirs_body}"
    counts = compare(count_arithmetic(shipped.code, arch), count_arithmetic(assembled.code, arch), {})
    return None if counts is None else f"arithmetic of the machine code → of the PTX: {counts}"


def _layout(kernel: CubinKernel) -> list[tuple[int, int]]:
    return [(offset, size) for _, offset, size in kernel.parameters]


def _body(code: bytes) -> str:
    """``does nothing``, ``only traps`` or ``computes``: what nvcc compiles where ``__CUDA_ARCH__`` leaves a kernel out
    is one of the first two."""
    words = np.frombuffer(code[: len(code) // INSTRUCTION_SIZE * INSTRUCTION_SIZE], "<u8")[::2].tolist()
    operations = [word & _OPERATION for word in words]
    idle = {_EXIT, _BRA, _NOP}
    if all(
        operation in idle or (operation in _MOVES and word >> 16 & 0xFF == _STACK_POINTER)
        for operation, word in zip(operations, words, strict=True)
    ):
        return "does nothing"
    for operation, word in zip(operations, words, strict=True):
        if operation == _BPT and word >> 12 & 0xF == _ALWAYS:
            return "only traps"
        # Calls, as of vprintf for a message, come back.
        if operation in _ENDS:
            break
    return "computes"
