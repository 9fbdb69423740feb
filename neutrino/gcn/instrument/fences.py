"""Snippets at places of a function, with the wait states that they and the kernel around them need."""

from __future__ import annotations

from collections.abc import Sequence

from neutrino.gcn.analysis.flow_graph import FlowGraph
from neutrino.gcn.analysis.later_writes import LaterWrites
from neutrino.gcn.analysis.neighbours import Neighbours
from neutrino.gcn.instrument.hazard_facts import SGPRS
from neutrino.gcn.instrument.hazards import BEHIND, WINDOW, Undisturbed, depends_on_before, is_undisturbed, with_fences
from neutrino.gcn.instrument.machine import Machine
from neutrino.gcn.isa.registers import VCC


class Fences:
    """Of the function of a flow graph. start: where a wave begins to run it, if it is a kernel. named: the registers
    that the kernel and what it calls name, as a set of ``isa.registers``."""

    def __init__(self, graph: FlowGraph, machine: Machine, start: int = 0, named: int = VCC) -> None:
        """Find the ways through the function when they are first needed."""
        self._neighbours = Neighbours(graph, start)
        self._machine = machine
        self._named = named
        self._known: dict[tuple[str, ...], list[str] | None] = {}
        """Snippets that need the same wherever they are, with their fences; None for another one."""
        self._undisturbed: dict[tuple[tuple[str, ...], int], Undisturbed] = {}
        self._later = LaterWrites(graph, machine.generation)

    def around(
        self, offset: int, lines: Sequence[str], kept: int = 0, read_by_vectors: int = SGPRS
    ) -> list[str]:
        """Return a snippet, for the place in front of an instruction, with its fences.

        offset: the instruction's, or the code's size. kept: registers that other snippets write, which may be just
        before this one, as a set of ``isa.registers``. read_by_vectors: as for ``with_fences``.
        """
        key = tuple(lines)
        if key not in self._known:
            if depends_on_before(lines, self._machine):
                self._known[key] = None
            elif self._machine.generation <= 10:
                # Then nothing in it depends on anything else in it either.
                self._known[key] = list(lines)
            else:
                self._known[key] = with_fences([], lines, [], self._machine, is_start=True, named=self._named)
        known = self._known[key]
        if known is not None:
            return list(known)
        before = self._neighbours.before(offset, WINDOW)
        if self._machine.generation == 9 and before is not None and is_undisturbed(lines, before):
            alone = self._undisturbed.get((key, kept))
            if alone is None:
                alone = self._undisturbed[key, kept] = Undisturbed.of(lines, self._machine, kept)
            return alone.between(self._neighbours.after(offset, BEHIND) if alone.end.recent else [], self._machine)
        after = self._neighbours.after(offset, BEHIND)
        return with_fences(
            before, lines, after, self._machine, is_start=True, kept=kept, named=self._named,
            written_later=self._written_later(offset), read_by_vectors=read_by_vectors,
        )  # fmt: skip

    def at_start(self, offset: int, lines: Sequence[str], read_by_vectors: int = SGPRS) -> list[str]:
        """Return the code at a kernel's entry with its fences. offset: of the instruction that follows it.
        read_by_vectors: as for ``with_fences``."""
        after = self._neighbours.after(offset, BEHIND)
        return with_fences(
            [[]], lines, after, self._machine, is_start=True, named=self._named,
            written_later=self._written_later(offset), read_by_vectors=read_by_vectors,
        )  # fmt: skip

    def _written_later(self, offset: int) -> int:
        """Return the SGPRs that the kernel writes after a place, where that matters."""
        return self._later.behind(offset) & self._named if self._machine.generation == 12 else 0
