"""Instruction words of sm_70 and up: 128 bits, of which bits 105 to 125 control when an instruction is issued.

NVIDIA documents none of this. What is used here was found by changing one field of what ``ptxas`` emits and reading it
with ``nvdisasm``, and ran on an H200 (``docs/machine-code.md``).
"""

from __future__ import annotations

from dataclasses import dataclass

WORD_BITS = 128
ALWAYS = 7
"""The predicate PT: always true. As a barrier's number: none."""
NO_BARRIER = 7
_MOST_YIELDING_STALL = 11
"""Above, and for 0, the bit that says "no yield" does not exist."""


@dataclass(frozen=True)
class Field:
    """A field of an instruction word: its lowest bit, and how many bits it has."""

    low: int
    bits: int

    def get(self, word: int) -> int:
        """Return the field's value in a word."""
        return word >> self.low & (1 << self.bits) - 1

    def put(self, word: int, value: int) -> int:
        """Return the word with another value of the field."""
        mask = (1 << self.bits) - 1
        return word & ~(mask << self.low) | (value & mask) << self.low


OPCODE, GUARD, NEGATED = Field(0, 12), Field(12, 3), Field(15, 1)
STALL, NO_YIELD = Field(105, 4), Field(109, 1)
WRITE_BARRIER, READ_BARRIER = Field(110, 3), Field(113, 3)
WAIT, REUSE = Field(116, 6), Field(122, 4)

_BRANCH, _NOP = 0x947, 0x918
_BRANCH_HIGH = 0x3800000
"""Bits 64 and up of a branch: its condition, the predicate PT."""
_BRANCH_STALL = 5
_OFFSET_BITS = 56
_LOW_OFFSET = Field(16, 8)
_HIGH_OFFSET = Field(34, 48)
_INSTRUCTION_BYTES = 16


def control(stall: int, wait: int = 0) -> int:
    """Return the control bits of an instruction without scoreboards. stall: cycles until the next one is issued. wait:
    a bit for each scoreboard that is waited for."""
    word = WRITE_BARRIER.put(READ_BARRIER.put(0, NO_BARRIER), NO_BARRIER)
    word = NO_YIELD.put(STALL.put(word, stall), int(1 <= stall <= _MOST_YIELDING_STALL))
    return WAIT.put(word, wait)


def nop() -> int:
    """Return the instruction that does nothing, as ``ptxas`` fills code with it."""
    return _NOP | ALWAYS << 12 | control(stall=0)


def branch(place: int, target: int, wait: int = 0) -> int:
    """Return a branch of sm_90 and up that is always taken. place, target: in the code, in bytes. wait: scoreboards.

    Raises ValueError for a target that is not at an instruction, or too far.
    """
    distance = target - place - _INSTRUCTION_BYTES
    if distance % _INSTRUCTION_BYTES or not -(1 << 31) <= distance < 1 << 31:
        raise ValueError(f"no branch goes {distance} bytes far")
    offset = distance // 4 & (1 << _OFFSET_BITS) - 1
    word = _BRANCH | ALWAYS << 12 | _BRANCH_HIGH << 64 | control(_BRANCH_STALL, wait)
    return _HIGH_OFFSET.put(_LOW_OFFSET.put(word, offset & 0xFF), offset >> 8)


def branch_target(word: int, place: int) -> int | None:
    """Return where a branch of sm_90 and up goes that is always taken, in bytes; None for another instruction."""
    if OPCODE.get(word) != _BRANCH or GUARD.get(word) != ALWAYS or NEGATED.get(word):
        return None
    if word >> 82 & 0x7FFFFF != _BRANCH_HIGH >> 18:
        return None
    offset = _LOW_OFFSET.get(word) | _HIGH_OFFSET.get(word) << 8
    if offset >> _OFFSET_BITS - 1:
        offset -= 1 << _OFFSET_BITS
    return place + _INSTRUCTION_BYTES + 4 * offset
