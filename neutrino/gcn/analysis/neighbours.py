"""The instructions that may run just before and just after a place of AMD's machine code, way by way."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from neutrino.gcn.analysis.flow_graph import FlowGraph
from neutrino.gcn.code import Function, Instruction, is_call

_MOST_WAYS = 32
Ways = list[list[Instruction]]


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Of the function of a flow graph. start: where a wave begins in it, behind the header of a kernel that has one."""

    graph: FlowGraph
    start: int = 0

    @property
    def function(self) -> Function:
        """The function."""
        return self.graph.function

    @cached_property
    def _has_calls(self) -> bool:
        """Whether the function calls others."""
        return any(map(is_call, self.function.instructions))

    @cached_property
    def _predecessors(self) -> list[list[int]]:
        """By a block's number, those that lead to it."""
        found: list[list[int]] = [[] for _ in self.graph.blocks]
        for number, block in enumerate(self.graph.blocks):
            for successor in block.successors:
                found[successor].append(number)
        return found

    def before(self, offset: int, count: int) -> Ways | None:
        """Return the ways that lead to the place in front of an instruction, each with up to ``count`` instructions;
        one that is shorter is from a wave's beginning. None if some are not known, or there are too many.

        offset: the instruction's, or the code's size.
        """
        rows, graph = self.function.instructions, self.graph
        index = graph.index_at.get(offset, len(rows))
        found: Ways = []
        # A block, and the index behind the instructions of it that are on the way.
        number = graph.block_of(index) if index < len(rows) else len(graph.blocks) - 1
        waiting: list[tuple[int, int, list[Instruction]]] = [(number, index, [])]
        while waiting:
            if len(waiting) + len(found) > _MOST_WAYS:
                return None
            number, index, way = waiting.pop()
            begin = max(graph.blocks[number].begin, index - (count - len(way)))
            more = rows[begin:index]
            if self._has_calls and any(map(is_call, more)):
                return None
            way, index = [*more, *way], begin
            if len(way) >= count:
                found.append(way)
                continue
            leading = self._predecessors[number]
            if index == graph.index_at.get(self.start):
                if not self.function.is_kernel:
                    return None
                found.append(way)
            elif not leading:
                # A jump by a register may lead here, or nothing does.
                return None
            waiting += [(each, graph.blocks[each].end, way) for each in leading]
        return found

    def after(self, offset: int, count: int) -> Ways | None:
        """Return the ways from the place in front of an instruction on, each with up to ``count`` instructions; one
        that is shorter ends the wave, or leaves the function. None if there are too many."""
        rows, graph = self.function.instructions, self.graph
        found: Ways = []
        waiting: list[tuple[int, list[Instruction]]] = [(graph.index_at.get(offset, len(rows)), [])]
        while waiting:
            if len(waiting) + len(found) > _MOST_WAYS:
                return None
            index, way = waiting.pop()
            if index >= len(rows):
                found.append(way)
                continue
            block = graph.blocks[graph.block_of(index)]
            way = [*way, *rows[index : min(block.end, index + count - len(way))]]
            if len(way) >= count or not block.successors:
                found.append(way)
            else:
                waiting += [(graph.blocks[each].begin, way) for each in block.successors]
        return found
