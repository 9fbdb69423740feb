"""Instructions that the same lanes execute, so that what counts them can stand in one place."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from neutrino.gcn.analysis.flow_graph import FlowGraph
from neutrino.gcn.analysis.placement import Placement
from neutrino.gcn.code import is_call
from neutrino.gcn.isa.effects import effects
from neutrino.gcn.isa.registers import EXEC


@dataclass(frozen=True, eq=False)
class ExecRegions:
    """The regions of the function of a flow graph: stretches of a basic block in which nothing writes EXEC and no
    function is called.

    A wave that executes one instruction of a region executes all of them, and the same lanes do. generation: of the
    processor, 9 to 12. entry: where the hardware begins to run it, by an offset: after the header of a kernel with
    preloaded arguments.
    """

    graph: FlowGraph
    generation: int
    entry: int = 0

    def head(self, offset: int) -> int:
        """Return where code goes that is to run once before an instruction's region, with its EXEC. offset: the
        instruction's.

        Raises UnknownInstructionError for a function with an instruction that is not known.
        """
        return self.heads[offset]

    @cached_property
    def heads(self) -> dict[int, int]:
        """What ``head`` returns for each instruction, by its offset. Raises as that."""
        rows = self.graph.function.instructions
        placement = Placement(self.graph.function)
        ends = {
            text for text, row in rows.distinct.items()
            if is_call(row) or effects(row, self.generation).writes & EXEC
        }  # fmt: skip
        heads: dict[int, int] = {}
        for block in self.graph.blocks:
            head = -1
            for row in rows[block.begin : block.end]:
                offset = row.offset
                if head < 0 or offset == self.entry:
                    head = placement.before(offset)
                heads[offset] = head
                if row.text in ends:
                    head = -1
        return heads
