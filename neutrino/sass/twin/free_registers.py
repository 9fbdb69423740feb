"""What of a kernel's registers probe code may use without anything of the kernel's being lost.

General registers are taken above those that the kernel has, uniform ones among those that its section never names. At a
kernel's entry and in threads that end nothing of its predicates is needed any more, so any can be taken there, but for
those that an instruction of unknown duration might still write.
"""

from __future__ import annotations

import numpy as np

from neutrino.errors import MachineCodeError
from neutrino.sass.decoder import Code
from neutrino.sass.fields import NO_BARRIER
from neutrino.sass.instruction import RegisterFile
from neutrino.sass.twin.probe_code import Registers

UNCOUNTED = 2
"""Registers that ``ptxas`` adds to those that it uses, from sm_70 on; without them a launch fails."""
_ALIGNMENT = 4
"""Of the first register, for operands of four."""
_PREDICATES = 7


def free_registers(code: Code, count: int, kernel: str) -> Registers:
    """Return what probe code may use.

    code: all of the kernel's section, its functions included. count: of registers, as the cubin states it. kernel: its
    mangled name. Raises MachineCodeError where the code has an instruction that the table lacks.
    """
    if len(code.unknown):
        at = int(code.unknown[0])
        raise MachineCodeError(kernel, f"has an instruction at {at:#x} that the table of sm_90 lacks")
    general = _named(code, RegisterFile.GENERAL)
    uniform = _named(code, RegisterFile.UNIFORM)
    base = max(count - UNCOUNTED, max(general, default=-1) + 1)
    predicates = _named(code, RegisterFile.PREDICATE)
    late = int(np.bitwise_or.reduce(code.writes[RegisterFile.PREDICATE][code.write_barrier != NO_BARRIER], initial=0))
    return Registers(
        -(-base // _ALIGNMENT) * _ALIGNMENT,
        (*(one for one in range(_PREDICATES) if one not in predicates),
         *(one for one in sorted(predicates) if not late >> one & 1)),
        tuple(one for one in range(code.zero_uniform - 1, -1, -1) if one not in uniform),
        frozenset(predicates),
    )  # fmt: skip


def _named(code: Code, file: RegisterFile) -> set[int]:
    """Return the numbers of a file's registers that any instruction reads or writes."""
    masks = np.bitwise_or.reduce(code.reads[file] | code.writes[file], axis=0, initial=0)
    return {64 * column + bit for column, mask in enumerate(np.atleast_1d(masks).tolist())
            for bit in range(64) if mask >> bit & 1}  # fmt: skip
