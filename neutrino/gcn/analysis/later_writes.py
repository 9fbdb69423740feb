"""Which SGPRs instructions of a function write after a place, on some way from there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from neutrino.gcn.analysis.flow_graph import FlowGraph
from neutrino.gcn.code import Instruction, is_call
from neutrino.gcn.isa.effects import effects_of
from neutrino.gcn.isa.memory import access_of
from neutrino.gcn.isa.registers import ALL_SCALARS, UnknownInstructionError


@dataclass(frozen=True, eq=False)
class LaterWrites:
    """Of one function. generation: of the processor."""

    graph: FlowGraph
    generation: int

    def behind(self, offset: int) -> int:
        """Return the SGPRs that the scalar or the vector unit writes from an instruction on, as a set of
        ``isa.registers``; those that loads write are left out. All where a function is called or left. offset: the
        instruction's, or the code's size."""
        graph = self.graph
        index = graph.index_at.get(offset)
        if index is None:
            return ALL_SCALARS
        number = graph.block_of(index)
        found = self._from_end(number)
        for place in range(index, graph.blocks[number].end):
            found |= self._written(graph.function.instructions[place])
        return found

    def _from_end(self, number: int) -> int:
        """Return what is written from a block's end on."""
        block = self.graph.blocks[number]
        found = ALL_SCALARS if block.leaves else 0
        for successor in block.successors:
            found |= self._from_beginning[successor]
        return found

    @cached_property
    def _from_beginning(self) -> list[int]:
        """By a block's number, what is written from its beginning on."""
        blocks, rows = self.graph.blocks, self.graph.function.instructions
        found = [0] * len(blocks)
        for number, block in enumerate(blocks):
            for row in rows[block.begin : block.end]:
                found[number] |= self._written(row)
            if block.leaves:
                found[number] = ALL_SCALARS
        changed = True
        while changed:
            changed = False
            for number in reversed(range(len(blocks))):
                more = found[number]
                for successor in blocks[number].successors:
                    more |= found[successor]
                if more != found[number]:
                    found[number], changed = more, True
        return found

    def _written(self, row: Instruction) -> int:
        """Return the SGPRs that an instruction writes, all for a call and for one that is not known."""
        if is_call(row):
            return ALL_SCALARS
        if row.mnemonic.startswith("s_") and access_of(row) is not None:
            return 0
        try:
            return effects_of(row.text, self.generation).writes & ALL_SCALARS
        except UnknownInstructionError:
            return ALL_SCALARS
