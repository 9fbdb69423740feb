"""The instructions that trampolines add: branches, NOPs, and the control bits of both, of sm_70 and up.

NVIDIA documents none of this. What is used here was found by changing one field of what ``ptxas`` emits and reading it
with ``nvdisasm``, and ran on an H200 (``docs/machine-code.md``).
"""

from __future__ import annotations

from neutrino.sass.fields import (
    ALWAYS,
    GUARD,
    INSTRUCTION_BYTES,
    NEGATED,
    NO_BARRIER,
    NO_YIELD,
    OPCODE,
    READ_BARRIER,
    STALL,
    WAIT,
    WRITE_BARRIER,
    Field,
)

LONGEST_STALL = 15
"""Cycles that an instruction can be held back."""
_MOST_YIELDING_STALL = 11
"""Above, and for 0, the bit that says "no yield" does not exist."""
CONDITION, CONDITION_NEGATED = Field(87, 3), Field(90, 1)
"""A second predicate of branches and EXITs: only lanes in which both it and the guard hold branch, or end."""
_BRANCH, _NOP = 0x947, 0x918
_BRANCH_HIGH = 0x3800000
"""Bits 64 and up of a branch: its condition, the predicate PT."""
_BRANCH_STALL = 5
_LOW_OFFSET = Field(16, 8)
_HIGH_OFFSET = Field(34, 48)
_SPLIT_FROM = 90
"""The architecture from which on a branch has the lowest bits of its distance apart."""


def control(stall: int, wait: int = 0) -> int:
    """Return the control bits of an instruction without scoreboards. stall: cycles until the next one is issued. wait:
    a bit for each scoreboard that is waited for."""
    word = WRITE_BARRIER.put(READ_BARRIER.put(0, NO_BARRIER), NO_BARRIER)
    word = NO_YIELD.put(STALL.put(word, stall), int(1 <= stall <= _MOST_YIELDING_STALL))
    return WAIT.put(word, wait)


def with_stall(word: int, stall: int) -> int:
    """Return an instruction with another stall. stall: cycles until the next one is issued, 1 to 15."""
    word = STALL.put(word, stall)
    return word if stall <= _MOST_YIELDING_STALL else NO_YIELD.put(word, 0)


def guarded(word: int, predicate: int, *, negated: bool) -> int:
    """Return an instruction under another guard. predicate: its number, 7 for always."""
    return NEGATED.put(GUARD.put(word, predicate), int(negated))


def nop() -> int:
    """Return the instruction that does nothing, as ``ptxas`` fills code with it."""
    return _NOP | ALWAYS << 12 | control(stall=0)


def branch(place: int, target: int, sm: int, wait: int = 0) -> int:
    """Return a branch that is always taken. place, target: in the code, in bytes. sm: of the architecture, as 90. wait:
    scoreboards.

    Raises ValueError for a target that is not at an instruction, or too far.
    """
    distance = target - place - INSTRUCTION_BYTES
    if distance % INSTRUCTION_BYTES or not -(1 << 31) <= distance < 1 << 31:
        raise ValueError(f"no branch goes {distance} bytes far")
    offset = distance // 4
    word = _BRANCH | ALWAYS << 12 | _BRANCH_HIGH << 64 | control(_BRANCH_STALL, wait)
    if sm < _SPLIT_FROM:
        return _HIGH_OFFSET.put(word, offset)
    return _HIGH_OFFSET.put(_LOW_OFFSET.put(word, offset & 0xFF), offset >> 8)


def moved_branch(word: int, place: int, target: int, sm: int) -> int:
    """Return a branch as it is at another place, to the same target. place, target, sm, errors: of ``branch``."""
    distance = branch(place, target, sm)
    for field in (_HIGH_OFFSET, _LOW_OFFSET) if sm >= _SPLIT_FROM else (_HIGH_OFFSET,):
        word = field.put(word, field.get(distance))
    return word


def plain_target(word: int, place: int, sm: int) -> int | None:
    """Return where a branch goes that its guard and its condition alone decide about; None for another instruction.
    place, sm: as of ``branch``."""
    word = CONDITION_NEGATED.put(CONDITION.put(guarded(word, ALWAYS, negated=False), ALWAYS), 0)
    return branch_target(word, place, sm)


def branch_target(word: int, place: int, sm: int) -> int | None:
    """Return where a branch goes that is always taken, in bytes; None for another instruction. sm: as of ``branch``."""
    if OPCODE.get(word) != _BRANCH or GUARD.get(word) != ALWAYS or NEGATED.get(word):
        return None
    if word >> 82 & 0x7FFFFF != _BRANCH_HIGH >> 18:
        return None
    offset, bits = _HIGH_OFFSET.get(word), _HIGH_OFFSET.bits
    if sm >= _SPLIT_FROM:
        offset, bits = _LOW_OFFSET.get(word) | offset << _LOW_OFFSET.bits, bits + _LOW_OFFSET.bits
    if offset >> bits - 1:
        offset -= 1 << bits
    return place + INSTRUCTION_BYTES + 4 * offset
