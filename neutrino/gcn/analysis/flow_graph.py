"""Basic blocks of a function of AMD's machine code."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from neutrino.gcn.code import ENDS, Function, Instruction, is_call

_RETURN = "s[30:31]"
"""Where a caller leaves the address to return to."""
_LEAVES = frozenset({*ENDS, "s_setpc_b64", "s_branch"})


@dataclass(frozen=True, slots=True)
class Block:
    """Instructions that run one after the other. begin, end: their indices in the function, the end excluded.
    successors: blocks by their numbers. leaves: whether the wave goes elsewhere from its end, by a return or past the
    function's end; not when it ends."""

    begin: int
    end: int
    successors: tuple[int, ...]
    leaves: bool


@dataclass(frozen=True, eq=False)
class FlowGraph:
    """The blocks of a function, in the order of their places. A call of another function ends none."""

    function: Function

    @cached_property
    def index_at(self) -> dict[int, int]:
        """The index of each of the function's instructions, by its offset in bytes."""
        return self.function.instructions.index_at

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The function's basic blocks in the order of the code, those included that nothing leads to."""
        rows = self.function.instructions
        # A jump may lead to a place whose address is made here.
        made = (literal.target - self.function.address for literal in self.function.literals)
        heads = {0, *(self.index_at[offset] for offset in made if offset in self.index_at)}
        for row in rows.branches:
            target = _branch_target(row)
            if target is not None:
                heads.add(self.index_at[row.offset] + 1)
                if target in self.index_at:
                    heads.add(self.index_at[target])
        heads.update(index + 1 for index in rows.named(*_LEAVES))
        begins = sorted(head for head in heads if head < len(rows))
        number = {begin: place for place, begin in enumerate(begins)}
        blocks = []
        for begin, end in zip(begins, [*begins[1:], len(rows)], strict=True):
            last = rows[end - 1]
            successors = []
            leaves = last.mnemonic == "s_setpc_b64"
            target = _branch_target(last)
            if target is not None:
                if target in self.index_at:
                    successors.append(number[self.index_at[target]])
                else:
                    leaves = True
            if last.mnemonic not in _LEAVES:
                if end in number:
                    successors.append(number[end])
                else:
                    leaves = True
            blocks.append(Block(begin, end, tuple(dict.fromkeys(successors)), leaves))
        return tuple(blocks)

    @cached_property
    def reachable(self) -> frozenset[int]:
        """Numbers of the blocks that some way from the function's beginning leads to."""
        seen: set[int] = set()
        waiting = [0] if self.blocks else []
        while waiting:
            number = waiting.pop()
            if number not in seen:
                seen.add(number)
                waiting += self.blocks[number].successors
        return frozenset(seen)

    @cached_property
    def ways(self) -> tuple[tuple[int, ...], ...]:
        """For each block, by its number, the blocks that may run after it: its successors, and after a jump by a
        register all blocks whose addresses the function makes, of which it may be to any."""
        made = {literal.target - self.function.address for literal in self.function.literals}
        heads = {self.block_of(self.index_at[offset]) for offset in made if offset in self.index_at}
        found = []
        for block in self.blocks:
            last = self.function.instructions[block.end - 1]
            is_jump = last.mnemonic == "s_setpc_b64" and (self.function.is_kernel or last.operands != (_RETURN,))
            found.append((*block.successors, *sorted(heads - {*block.successors})) if is_jump else block.successors)
        return tuple(found)

    def block_of(self, index: int) -> int:
        """Return the number of the block that has an instruction. index: the instruction's."""
        return self._block_numbers[index]

    @cached_property
    def _block_numbers(self) -> list[int]:
        """For each instruction, in the order of the code, the number of the basic block that has it."""
        numbers: list[int] = []
        for number, block in enumerate(self.blocks):
            numbers += [number] * (block.end - block.begin)
        return numbers


def _branch_target(instruction: Instruction) -> int | None:
    """Return where a branch within a function leads, None for what is none."""
    return None if is_call(instruction) else instruction.target
