"""Snippets at places of a function, with the wait states that they and the kernel around them need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from neutrino.gcn.analysis.neighbours import Neighbours
from neutrino.gcn.code import Function
from neutrino.gcn.instrument.code import Place, Vector
from neutrino.gcn.instrument.hazards import BEHIND, WINDOW, with_fences
from neutrino.gcn.instrument.machine import Machine
from neutrino.gcn.isa.registers import VECTORS


class Fences:
    """Of one function. start: where a wave begins to run it, if it is a kernel."""

    def __init__(self, function: Function, machine: Machine, start: int = 0) -> None:
        """Find the ways through the function when they are first needed."""
        self._neighbours = Neighbours(function, start)
        self._machine = machine

    def around(self, offset: int, lines: Sequence[str], kept: Iterable[Place] = ()) -> list[str]:
        """Return a snippet, for the place in front of an instruction, with its fences.

        offset: the instruction's, or the code's size. kept: registers that other snippets write, which may be just
        before this one.
        """
        before = self._neighbours.before(offset, WINDOW)
        after = self._neighbours.after(offset, BEHIND)
        return with_fences(before, lines, after, self._machine, is_start=True, kept=_registers(kept))

    def at_start(self, offset: int, lines: Sequence[str]) -> list[str]:
        """Return the code at a kernel's entry with its fences. offset: of the instruction that follows it."""
        return with_fences([[]], lines, self._neighbours.after(offset, BEHIND), self._machine, is_start=True)


def _registers(places: Iterable[Place]) -> int:
    """Return registers as a set of ``isa.registers``."""
    found = 0
    for place in places:
        first = place.first + (VECTORS if isinstance(place, Vector) else 0)
        found |= (1 << place.words) - 1 << first
    return found
