"""What of a kernel's registers probe code may use without anything of the kernel's being lost.

General registers are taken above those that the kernel has, uniform ones among those that its section never names. At a
kernel's entry and in threads that end nothing of its predicates is needed any more, so any can be taken there, but for
those that an instruction of unknown duration might still write.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neutrino.errors import MachineCodeError
from neutrino.sass.decoder import Code
from neutrino.sass.encoding import Form
from neutrino.sass.fields import NO_BARRIER
from neutrino.sass.instruction import Latency, RegisterFile
from neutrino.sass.twin.hazards import COPY, OTHERS, kind, required
from neutrino.sass.twin.probe_code import Registers

UNCOUNTED = 2
"""Registers that ``ptxas`` adds to those that it uses, from sm_70 on; without them a launch fails."""
_ALIGNMENT = 4
"""Of the first register, for operands of four."""
_PREDICATES = 7
_AT_ONCE = 5
"""Cycles that the branch to a trampoline leaves."""
_STACK = 1
"""The register with the stack's address."""
MOVED_LEAST = 24
"""Registers that a warp keeps at least where they are moved between warps (``setmaxnreg`` of PTX)."""
PRESERVED, PRESERVED_UNIFORM = 22, 36
"""From these registers on, ``ptxas`` keeps values over calls of the driver's functions: R22, UR36."""
_ASYNCHRONOUS = "GMMA"
"""Part of the names of matrix products that go on after they were issued."""


def free_registers(code: Code, count: int, kernel: str, *, calls: bool = False) -> Registers:
    """Return what probe code may use.

    code: all of the kernel's section, its functions included. count: of registers, as the cubin states it. kernel: its
    mangled name. calls: whether it calls a function of the driver that returns. Raises MachineCodeError where the code
    has an instruction that the table lacks.
    """
    if len(code.unknown):
        at = int(code.unknown[0])
        raise MachineCodeError(kernel, f"has an instruction at {at:#x} that the table of sm_{code.sm} lacks")
    general = _named(code, RegisterFile.GENERAL)
    uniform = _named(code, RegisterFile.UNIFORM)
    base = max(count - UNCOUNTED, max(general, default=-1) + 1)
    first_uniform = 0
    if calls:
        base, first_uniform = max(base, PRESERVED), PRESERVED_UNIFORM
    predicates = _named(code, RegisterFile.PREDICATE)
    slow = code.having(lambda form: form is not None and form.latency is Latency.VARIABLE and form.name[:6] != COPY)
    slow |= code.write_barrier != NO_BARRIER
    late = int(np.bitwise_or.reduce(code.writes[RegisterFile.PREDICATE][slow], initial=0))
    return Registers(
        -(-base // _ALIGNMENT) * _ALIGNMENT,
        (*(one for one in range(_PREDICATES) if one not in predicates),
         *(one for one in sorted(predicates) if not late >> one & 1)),
        tuple(one for one in range(code.zero_uniform - 1, first_uniform - 1, -1) if one not in uniform),
        frozenset(predicates),
    )  # fmt: skip


@dataclass(frozen=True)
class Reusable:
    """The kernel's own registers that code may use at its first instruction and where a thread ends. settled: once all
    scoreboards and every result of a fixed latency have been waited for. at_once: those of them that may be written
    before."""

    settled: tuple[int, ...]
    at_once: frozenset[int]


def reusable_registers(code: Code, count: int) -> Reusable:
    """Return which of a kernel's own registers code may use.

    Not those that an instruction of variable latency reads or writes without a scoreboard, nor those of matrix products
    that are not waited for by scoreboards, nor the stack's address. Of a kernel that moves registers between warps only
    those that each warp always has. Parameters: of ``free_registers``.
    """
    late = code.having(lambda form: form is not None and form.latency is Latency.VARIABLE)
    odd = code.having(lambda form: form is None or form.latency is Latency.UNKNOWN or _ASYNCHRONOUS in form.name)
    writes, reads = code.writes[RegisterFile.GENERAL], code.reads[RegisterFile.GENERAL]
    unwaited = code.write_barrier == NO_BARRIER
    # That of a scoreboard for reading alone may end before the result is there.
    taken = np.bitwise_or.reduce(writes[(late | (code.read_barrier != NO_BARRIER)) & unwaited], axis=0, initial=0)
    taken |= np.bitwise_or.reduce(reads[late & unwaited & (code.read_barrier == NO_BARRIER)], axis=0, initial=0)
    taken |= np.bitwise_or.reduce((writes | reads)[odd], axis=0, initial=0)
    most = min(count - UNCOUNTED, MOVED_LEAST) if moves_registers(code) else count - UNCOUNTED
    slow = late | odd | (code.write_barrier != NO_BARRIER) | (code.read_barrier != NO_BARRIER)
    slow |= code.having(lambda form: form is not None and _cycles(form, code.sm) > _AT_ONCE)
    touched = np.bitwise_or.reduce((writes | reads)[slow], axis=0, initial=0)
    settled = tuple(one for one in range(most) if one != _STACK and not _has(taken, one))
    return Reusable(settled, frozenset(one for one in settled if not _has(touched, one)))


def _has(mask: NDArray[np.uint64], register: int) -> bool:
    """Return whether a mask of general registers has one."""
    return bool(int(mask[register // 64]) >> register % 64 & 1)


def _cycles(form: Form, sm: int) -> int:
    """Return after how many cycles a result may be used in every way. sm: of the architecture."""
    cycles = required(sm)(kind(form.name), "R", OTHERS, 0)
    return _AT_ONCE + 1 if cycles is None else cycles


def moves_registers(code: Code) -> bool:
    """Return whether a kernel moves registers between its warps."""
    return any(form is not None and form.name.startswith("USETMAXREG") for form in code.forms)


def _named(code: Code, file: RegisterFile) -> set[int]:
    """Return the numbers of a file's registers that any instruction reads or writes."""
    masks = np.bitwise_or.reduce(code.reads[file] | code.writes[file], axis=0, initial=0)
    return {64 * column + bit for column, mask in enumerate(np.atleast_1d(masks).tolist())
            for bit in range(64) if mask >> bit & 1}  # fmt: skip
