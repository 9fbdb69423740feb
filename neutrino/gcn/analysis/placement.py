"""Where code may go in a function of AMD's machine code, and where it must stand instead of in between.

Nothing goes into a clause (``s_clause`` counts the instructions that follow it), between an instruction that reads the
program counter and the sums that make it an address, and where VGPRs are accessed by an index (``s_set_gpr_idx_on``),
which inserted vector instructions would be as well. All these stretches are straight: EXEC is the same throughout.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cached_property

from neutrino.gcn.code import Function

_LITERAL_AT = 4
_CLAUSE_LENGTH = 0x3F


@dataclass(frozen=True, eq=False)
class Placement:
    """The places of a function."""

    function: Function

    @cached_property
    def closed(self) -> tuple[tuple[int, int], ...]:
        """Stretches of the function into which no code may be inserted, as offsets of their begin and end. Ascending.
        """
        rows = self.function.instructions
        stretches = []
        indexed: int | None = None
        for index, row in enumerate(rows):
            if row.mnemonic == "s_clause" and row.operands:
                length = (int(row.operands[0], 0) & _CLAUSE_LENGTH) + 1
                last = rows[min(index + length, len(rows) - 1)]
                stretches.append((row.offset, last.end))
            elif row.mnemonic == "s_set_gpr_idx_on" and indexed is None:
                indexed = row.offset
            elif row.mnemonic == "s_set_gpr_idx_off" and indexed is not None:
                stretches.append((indexed, row.end))
                indexed = None
        if indexed is not None:
            stretches.append((indexed, len(self.function.code)))
        for literal in self.function.literals:
            high = literal.high - _LITERAL_AT
            ends = [row.end for row in rows if row.offset in (high, literal.low - _LITERAL_AT)]
            stretches.append((literal.get_pc, max(ends)))
        return tuple(_joined(sorted(stretches)))

    def before(self, offset: int) -> int:
        """Return where code goes that is to run before an instruction, as close as may be.

        offset: the instruction's.
        """
        stretch = self._stretch(offset)
        return offset if stretch is None else stretch[0]

    def after(self, offset: int) -> int:
        """Return where code goes that is to run after an instruction, as close as may be: before the instruction there.
        offset: the instruction's. It may be the code's size."""
        index = bisect_right(self._offsets, offset)
        end = self._offsets[index] if index < len(self._offsets) else len(self.function.code)
        stretch = self._stretch(end)
        return end if stretch is None else stretch[1]

    def _stretch(self, offset: int) -> tuple[int, int] | None:
        """Return the stretch, without room for inserted code, that has the place in front of an instruction inside it;
        None if none has."""
        index = bisect_left(self.closed, (offset,)) - 1
        if index >= 0 and self.closed[index][0] < offset < self.closed[index][1]:
            return self.closed[index]
        return None

    @cached_property
    def _offsets(self) -> list[int]:
        """The offsets in bytes of the function's instructions, ascending."""
        return [row.offset for row in self.function.instructions]


def _joined(stretches: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join stretches of code that overlap; they are in the order of their beginnings."""
    found: list[tuple[int, int]] = []
    for begin, end in stretches:
        if found and begin < found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found
