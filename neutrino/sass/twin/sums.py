"""Sums of constants, kept in registers while a kernel runs: what sets them at its entry, what adds to them at accesses.

Two registers hold a sum, one more holds 1 for all of them. An addition of 64 bits is one instruction then, a product of
1 and the constant with the sum added, and needs no predicate for a carry: nearly half of PyTorch's kernels leave none.
"""

from __future__ import annotations

from collections.abc import Mapping

from neutrino.errors import MachineCodeError
from neutrino.sass.encoding import Form
from neutrino.sass.fields import ALWAYS, GUARD, NEGATED, STALL, Field
from neutrino.sass.instruction import RegisterFile
from neutrino.sass.twin import control

_ZERO = 255
_DESTINATION, _ADDRESS, _SOURCE = Field(16, 8), Field(24, 8), Field(32, 8)
_IMMEDIATE, _ADDEND, _LOAD_OFFSET = Field(32, 32), Field(64, 8), Field(40, 24)
_MOVE = 0x0000000000000F00_0000000000007802
"""MOV of a constant, without control bits."""
_MULTIPLY_ADD = 0x00000000078E0000_0000000000007825
"""IMAD.WIDE.U32 of a register, a constant and two registers, without control bits."""
_STALL = 2


def idle(stall: int, wait: int = 0) -> int:
    """Return an instruction that does nothing but wait: for cycles and scoreboards."""
    return control.nop() & (1 << STALL.low) - 1 | control.control(stall, wait)


def set_sums(initial: Mapping[int, int], one: int) -> tuple[int, ...]:
    """Return the code that sets sums. initial: by the first register of each, its value of 64 bits. one: the register
    that gets 1."""
    if not initial:
        return ()
    values = {one: 1}
    for register, value in initial.items():
        values |= {register: value & 0xFFFFFFFF, register + 1: value >> 32}
    return tuple(
        _IMMEDIATE.put(_DESTINATION.put(_MOVE | control.control(_STALL), register), value)
        for register, value in values.items()
    )


def add_to_sum(register: int, one: int, amount: int, guard: tuple[int, int], name: str) -> int:
    """Return the instruction that adds a constant to a sum.

    register: the first of the sum's. one: that holds 1. guard: number of the predicate under which it does, and 1 if it
    is negated. name: the kernel's. Raises MachineCodeError for a constant of more than 32 bits.
    """
    if not 0 <= amount < 1 << 32:
        raise MachineCodeError(name, f"the probe's code adds {amount}, which takes more than 32 bits")
    word = _MULTIPLY_ADD | control.control(_STALL)
    for where, number in ((_DESTINATION, register), (_ADDRESS, one), (_IMMEDIATE, amount), (_ADDEND, register)):
        word = where.put(word, number)
    predicate, negated = guard
    return control.guarded(word, predicate, negated=bool(negated))


def guard_of(form: Form, word: int, place: int, name: str) -> tuple[int, int]:
    """Return the guard of an access, number and 1 if it is negated, for the code that counts the lanes that execute it.

    place: of the access in the code, in bytes. name: the kernel's. Raises MachineCodeError where the guard, or another
    predicate that decides about the access, is not one of the lanes alone.
    """
    guard = GUARD.get(word), NEGATED.get(word)
    if form.guard is not RegisterFile.PREDICATE and guard != (ALWAYS, 0):
        raise MachineCodeError(name, f"has {form.name} at {place:#x} under a predicate of the uniform datapath")
    for one in form.places:
        number = one.field.get(word)
        number = ALWAYS - number if one.field.inverted else number
        decides = one.reads and one.field.file in (RegisterFile.PREDICATE, RegisterFile.UNIFORM_PREDICATE)
        if decides and number != ALWAYS:
            raise MachineCodeError(name, f"has {form.name} at {place:#x} under a second predicate")
    return guard
