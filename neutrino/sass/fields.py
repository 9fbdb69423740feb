"""Fields of an instruction of sm_70 and up, 128 bits, that are in the same place in all of them.

Bits 105 to 125 control when an instruction is issued. NVIDIA documents none of this; ``docs/machine-code.md`` says how
it is known.
"""

from __future__ import annotations

from dataclasses import dataclass

INSTRUCTION_BYTES = 16
"""Bytes of one instruction."""
ALWAYS = 7
"""The number of the predicate that is always true, PT and UPT."""
NO_BARRIER = 7
"""As a scoreboard's number: none is taken."""
SCOREBOARDS = 6
"""Scoreboards that a warp has."""


@dataclass(frozen=True)
class Field:
    """A field of an instruction: its lowest bit, and how many bits it has."""

    low: int
    bits: int

    def get(self, word: int) -> int:
        """Return the field's value in an instruction."""
        return word >> self.low & (1 << self.bits) - 1

    def put(self, word: int, value: int) -> int:
        """Return the instruction with another value of the field."""
        mask = (1 << self.bits) - 1
        return word & ~(mask << self.low) | (value & mask) << self.low


OPCODE, GUARD, NEGATED = Field(0, 12), Field(12, 3), Field(15, 1)
STALL, NO_YIELD = Field(105, 4), Field(109, 1)
WRITE_BARRIER, READ_BARRIER = Field(110, 3), Field(113, 3)
WAIT, REUSE = Field(116, SCOREBOARDS), Field(122, 4)
