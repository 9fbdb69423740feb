"""Which registers are in use at a place of AMD's machine code: some way from there reads what they have there.

Registers of a lane keep what they have where the lane is inactive, so that a write to a VGPR ends nothing: what is read
anywhere after a place is in use there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from neutrino.gcn.analysis.flow_graph import FlowGraph
from neutrino.gcn.code import Function, Instructions
from neutrino.gcn.isa.effects import Effects, effects
from neutrino.gcn.isa.memory import access_of
from neutrino.gcn.isa.registers import (
    ALL_VECTORS,
    EVERYTHING,
    NAMED_SCALARS,
    SCC,
    VCC,
    VECTORS,
    UnknownInstructionError,
    vectors_in,
)

_LOADED = ALL_VECTORS | NAMED_SCALARS
_COME_LATE = ("s_memtime", "s_memrealtime", "s_sendmsg_rtn")
"""Beginnings of the names of what writes SGPRs as loads do, and accesses no memory."""


@dataclass(frozen=True, eq=False)
class Liveness:
    """Registers in use in a function. generation: of the processor, 9 to 12.

    Its methods take an instruction's offset, and raise UnknownInstructionError if the function has an instruction
    that is not known, where any way leads.
    """

    function: Function
    generation: int

    @cached_property
    def graph(self) -> FlowGraph:
        """The function's basic blocks, with which leads to which."""
        return FlowGraph(self.function)

    @cached_property
    def _rows(self) -> Instructions:
        """The function's instructions, which it may decode anew each time."""
        return self.function.instructions

    @cached_property
    def effects(self) -> dict[int, Effects]:
        """What each instruction does that some way leads to, by its index. Raises UnknownInstructionError."""
        texts = [row.text for row in self._rows]
        known = self._by_text
        reachable = [self.graph.blocks[number] for number in sorted(self.graph.reachable)]
        for index in (index for block in reachable for index in range(block.begin, block.end)):
            if texts[index] not in known:
                # It raises.
                effects(self._rows[index], self.generation)
        return {index: known[texts[index]] for block in reachable for index in range(block.begin, block.end)}

    @cached_property
    def _by_text(self) -> dict[str, Effects]:
        """What each instruction does that is known, by its text."""
        found, generation = {}, self.generation
        for text, row in self._rows.distinct.items():
            # Millions of times: a context of its own for each takes as long as the rest.
            try:  # noqa: SIM105
                found[text] = effects(row, generation)
            except UnknownInstructionError:
                pass
        return found

    @cached_property
    def named(self) -> int:
        """The registers that the function's own instructions read or write, without what called functions do.

        Those that no way leads to count too, as far as they are known: a jump by a register may lead there. Raises
        UnknownInstructionError.
        """
        if len(self._by_text) < len(self._rows.distinct):
            # Where some way leads to one that is not known this raises.
            _ = self.effects
        found = 0
        for row in self._by_text.values():
            found |= row.named
        return found

    def before(self, offset: int) -> int:
        """Return the registers whose values may still be read from an instruction on, as a set of ``isa.registers``."""
        graph = self.graph
        index = graph.index_at[offset]
        number = graph.block_of(index)
        block = graph.blocks[number]
        if index == block.begin and number in graph.reachable:
            return self._at_entry[number]
        if number not in self._in_blocks:
            live = self._behind(number)
            sets = []
            for place in range(block.end - 1, block.begin - 1, -1):
                live = self._through(place, live)
                sets.append(live)
            self._in_blocks[number] = sets[::-1]
        return self._in_blocks[number][index - block.begin]

    @cached_property
    def _in_blocks(self) -> dict[int, list[int]]:
        """For each of the function's instructions, by number of its block, the registers in use in front of it.

        Blocks are filled in when they are first asked for.
        """
        return {}

    def scc_live_at(self, offset: int) -> bool:
        """Return whether what SCC has in front of an instruction is read later."""
        return bool(self.before(offset) & SCC)

    def vcc_live_at(self, offset: int) -> bool:
        """Return whether what VCC has in front of an instruction is read later, either half of it."""
        return bool(self.before(offset) & VCC)

    def free_vectors_at(self, offset: int, count: int) -> list[int]:
        """Return the VGPRs that may be overwritten in front of an instruction, ascending: nothing reads them later, and
        no load is under way to them.

        count: of VGPRs that the kernel has; those that it never names are among the result.
        """
        return list(vectors_in(self.free_at(offset) & (1 << count) - 1 << VECTORS))

    def free_at(self, offset: int) -> int:
        """Return the registers that may be overwritten in front of an instruction, those included that the kernel does
        not have: nothing reads them later, and no load is under way to them."""
        return EVERYTHING & ~(self.before(offset) | self.under_way_at(offset))

    def under_way_at(self, offset: int) -> int:
        """Return the VGPRs and SGPRs that loads may be under way to in front of an instruction."""
        graph = self.graph
        index = graph.index_at[offset]
        number = graph.block_of(index)
        block = graph.blocks[number]
        if index == block.begin:
            return self._pending_at_entry.get(number, _LOADED)
        if number not in self._pending_in_blocks:
            pending = self._pending_at_entry.get(number, _LOADED)
            sets = [pending]
            for place in range(block.begin, block.end - 1):
                kept, added = self._pending_through(place)
                pending = pending & kept | added
                sets.append(pending)
            self._pending_in_blocks[number] = sets
        return self._pending_in_blocks[number][index - block.begin]

    @cached_property
    def _pending_in_blocks(self) -> dict[int, list[int]]:
        """For each of the function's instructions, by number of its block, what loads may be under way to in front of
        it. Blocks are filled in when they are first asked for."""
        return {}

    def _through(self, index: int, live: int) -> int:
        """Return the registers in use in front of an instruction. live: those in use after it."""
        row = self.effects.get(index)
        return EVERYTHING if row is None else live & ~row.replaces | row.reads

    def _behind(self, number: int) -> int:
        """Return what is in use at a block's end."""
        block = self.graph.blocks[number]
        live = EVERYTHING if block.leaves or number not in self.graph.reachable else 0
        for successor in block.successors:
            live |= self._at_entry[successor]
        return live

    @cached_property
    def _at_entry(self) -> dict[int, int]:
        """For each basic block, by its number, the registers in use at its beginning: read before they are overwritten.
        """
        graph = self.graph
        reads: dict[int, int] = {}
        replaces: dict[int, int] = {}
        for number in graph.reachable:
            block = graph.blocks[number]
            read = replaced = 0
            for index in range(block.end - 1, block.begin - 1, -1):
                row = self.effects[index]
                read = read & ~row.replaces | row.reads
                replaced |= row.replaces
            reads[number], replaces[number] = read, replaced
        live = dict.fromkeys(graph.reachable, 0)
        changed = True
        while changed:
            changed = False
            for number in sorted(graph.reachable, reverse=True):
                block = graph.blocks[number]
                after = EVERYTHING if block.leaves else 0
                for successor in block.successors:
                    after |= live[successor]
                at = after & ~replaces[number] | reads[number]
                if at != live[number]:
                    live[number], changed = at, True
        return live

    @cached_property
    def _pending_at_entry(self) -> dict[int, int]:
        """By a block's number, the registers that loads may be under way to at its beginning."""
        graph = self.graph
        pending = dict.fromkeys(graph.reachable, 0)
        if not self.function.is_kernel and 0 in pending:
            pending[0] = _LOADED
        through = {}
        for number in graph.reachable:
            kept, added = _LOADED, 0
            for index in range(graph.blocks[number].begin, graph.blocks[number].end):
                own_kept, own_added = self._pending_through(index)
                kept, added = kept & own_kept, added & own_kept | own_added
            through[number] = kept, added
        changed = True
        while changed:
            changed = False
            for number in sorted(graph.reachable):
                kept, added = through[number]
                state = pending[number] & kept | added
                for successor in graph.blocks[number].successors:
                    if state & ~pending[successor]:
                        pending[successor] |= state
                        changed = True
        return pending

    def _pending_through(self, index: int) -> tuple[int, int]:
        """Return of which registers loads that were under way in front of an instruction may still be after it, and to
        which others one is then.

        What reads or overwrites a register has waited for it: the compiler's code is right.
        """
        if index not in self.effects:
            return 0, _LOADED
        instruction = self._rows[index]
        found = self._pending_by_text.get(instruction.text)
        if found is None:
            row = self._by_text[instruction.text]
            is_late = access_of(instruction) is not None or instruction.mnemonic.startswith(_COME_LATE)
            found = self._pending_by_text[instruction.text] = (
                (0, _LOADED) if row.calls
                else (_LOADED, 0) if row.is_indexed
                else (_LOADED & ~(row.reads | row.writes), row.writes & _LOADED if is_late else 0)
            )  # fmt: skip
        return found

    @cached_property
    def _pending_by_text(self) -> dict[str, tuple[int, int]]:
        """What ``_pending_through`` has found, by the texts of instructions."""
        return {}
