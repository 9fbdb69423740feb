"""Functions as control-flow graphs of basic blocks, with the registers that are live between them.

Control flow is made explicit first: a guarded instruction that ends a block, or that is warp-wide, is put after a
hidden branch, so that only plain branches are conditional. Warp-wide instructions start a block, where threads can wait
for the others of their warp.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum

from neutrino.emulator.resolution import Instruction, Program
from neutrino.emulator.resolved_operands import Immediate, Memory, Negated, Operand, Pair, Register, Sum, Target, Vector
from neutrino.emulator.text import Statement

Key = tuple[int, int, int]
"""Where threads are: (negative call depth, function, block). The lowest key with runnable threads goes first."""


class Ending(Enum):
    """How a block is left."""

    NEXT = "falls into the next block"
    BRANCH = "bra"
    TABLE = "brx.idx"
    RETURN = "ret"
    EXIT = "exit"
    TRAP = "trap"
    CALL = "call"
    BARRIER = "bar"
    CLUSTER_WAIT = "barrier.cluster.wait"


_ENDINGS = {
    "bra": Ending.BRANCH,
    "brx": Ending.TABLE,
    "ret": Ending.RETURN,
    "exit": Ending.EXIT,
    "trap": Ending.TRAP,
    "call": Ending.CALL,
    "bar": Ending.BARRIER,
    "barrier": Ending.BARRIER,
}

# Warp-wide instructions (PTX ISA 9.7.9 and 9.7.13 to 9.7.15) → the index of the operand that is the member mask;
# None: all threads of the warp.
_WARP_WIDE: dict[str, int | None] = {
    "shfl": -1,
    "vote": -1,
    "match": -1,
    "redux": -1,
    "elect": -1,
    "mma": None,
    "wmma": None,
    "ldmatrix": None,
    "stmatrix": None,
    "movmatrix": None,
}

# Instructions whose first operand is no destination although it may be a register.
_WITHOUT_DESTINATION = frozenset({"brx", "bar", "barrier", "call", "nanosleep", "setmaxnreg"})

# Parts of the opcodes with which a loop polls memory until other threads write it: such a loop is a wait, not work.
_POLLING = frozenset({"volatile", "acquire", "relaxed", "atom", "test_wait", "try_wait", "nanosleep", "mmio"})


@dataclass
class Block:
    """A basic block: instructions that run from the first to the last.

    index: its place in the function's list of blocks. ending: how threads leave it. taken: the indices of the blocks
    that a branch or table at its end may go to. next: the index of the block after it, -1 after the last.
    warp: the first instruction is warp-wide. mask: its member mask (None: all threads).
    waits: has an instruction that loops poll memory with. live_out: the registers that are live at the end, as a bit
    set by register index. joined: falls into the next block, which starts with a warp-wide instruction of all threads
    and has no other predecessor, so that whole warps may run both as one. count: instructions, without those that the
    lowering added.
    """

    index: int
    instructions: list[Instruction]
    ending: Ending = Ending.NEXT
    taken: tuple[int, ...] = ()
    next: int = -1
    warp: bool = False
    mask: Operand | None = None
    waits: bool = False
    live_out: int = 0
    joined: bool = False
    count: int = 0


@dataclass
class Graph:
    """The control-flow graph of one function; its entry is the first block. carry: the register of the carry flag."""

    program: Program
    blocks: list[Block] = field(default_factory=list)
    carry: Register | None = None


def is_of_warp(instruction: Instruction) -> bool:
    """Return whether the threads of a member mask execute the instruction together, as one warp-wide operation."""
    if instruction.parts[:2] == ("bar", "warp"):
        return True
    return instruction.name in _WARP_WIDE and "sync" in instruction.parts


def build_graph(program: Program) -> Graph:
    """Cut a function into basic blocks, and compute the registers that are live at the end of each.

    Branches are made explicit first (see `_lower`), which adds instructions: `new_index` has the new index of each.
    """
    instructions, new_index = _lower(program)

    # A block starts at the entry, at each branch target, after each control transfer, and at warp-wide instructions.
    leaders = {0}
    branch_targets = set()
    for number, instruction in enumerate(instructions):
        for target in _branch_targets(instruction):
            leaders.add(new_index[target.instruction])
            branch_targets.add(new_index[target.instruction])
        if _ending(instruction) is not None:
            leaders.add(number + 1)
        if is_of_warp(instruction):
            leaders.add(number)
    # No block follows the last instruction.
    starts = sorted(leader for leader in leaders if leader < len(instructions))
    block_at = {start: number for number, start in enumerate(starts)}

    graph = Graph(program)
    for number, start in enumerate(starts):
        end = starts[number + 1] if number + 1 < len(starts) else len(instructions)
        block = Block(number, instructions[start:end])
        block.next = number + 1 if number + 1 < len(starts) else -1
        _describe_block(block)
        targets = _branch_targets(block.instructions[-1])
        block.taken = tuple(block_at[new_index[target.instruction]] for target in targets)
        graph.blocks.append(block)

    # Pairs of blocks that only a warp-wide instruction separates; the last block has none after it.
    for block in graph.blocks[:-1]:
        following = graph.blocks[block.index + 1]
        block.joined = (
            block.ending is Ending.NEXT
            and following.warp
            and is_for_all(following)
            and starts[following.index] not in branch_targets
        )
    _compute_liveness(graph)
    return graph


def _describe_block(block: Block) -> None:
    """Set the fields of a block that depend on its instructions alone: ending, warp, mask, waits and count."""
    block.ending = _ending(block.instructions[-1]) or Ending.NEXT
    # Warp-wide instructions are always the first of a block.
    first = block.instructions[0]
    if is_of_warp(first):
        block.warp = True
        if first.name == "bar":
            # bar.warp.sync has its member mask alone.
            block.mask = first.operands[0] if first.operands else None
        elif _WARP_WIDE[first.name] is not None and first.operands:
            # The member mask comes last.
            block.mask = first.operands[-1]
    block.waits = any(
        # Parts like "acquire::cta" count by what precedes the colons.
        _POLLING.intersection(part.split("::")[0] for part in instruction.parts)
        for instruction in block.instructions
    )
    block.count = sum(not instruction.hidden for instruction in block.instructions)


def _lower(program: Program) -> tuple[list[Instruction], list[int]]:
    """Return the instructions of a function with explicit control flow, and the new index of each old one.

    A guarded instruction that is warp-wide, or that ends a block other than by `bra`, becomes unguarded, after a hidden
    branch with the opposite guard that skips it. A hidden `ret` follows the last instruction. Hidden instructions do
    not count as executed.
    """
    lowered: list[Instruction] = []
    new_index: list[int] = []
    for number, instruction in enumerate(program.instructions):
        new_index.append(len(lowered))
        ends_block = _ending(instruction) is not None and instruction.name != "bra"
        if instruction.guard is not None and (ends_block or is_of_warp(instruction)):
            skip = replace(
                instruction,
                parts=("bra",),
                # Targets count the old instructions, as those of all other branches.
                operands=(Target("", number + 1),),
                negated=not instruction.negated,
                targets=(),
                hidden=True,
            )
            lowered += (skip, replace(instruction, guard=None))
        else:
            lowered.append(instruction)
    # Labels after the last instruction refer to the hidden return.
    new_index.append(len(lowered))
    # It has the place of the function in the text, and the number of the last statement, as it has none of its own.
    end = Statement(program.text.line, "ret;", "ret", ())
    lowered.append(Instruction(end, lowered[-1].number if lowered else 0, ("ret",), (), hidden=True))
    return lowered, new_index


def _ending(instruction: Instruction) -> Ending | None:
    """Return how an instruction ends a block; None if it does not."""
    if instruction.parts[:2] == ("bar", "warp"):
        # No barrier of the thread block, but a warp-wide instruction.
        return None
    if instruction.parts[:2] == ("barrier", "cluster"):
        # Its arrive does not wait, so that the block goes on.
        return Ending.CLUSTER_WAIT if "wait" in instruction.parts else None
    return _ENDINGS.get(instruction.name)


def _branch_targets(instruction: Instruction) -> tuple[Target, ...]:
    """Return the labels that a `bra` or `brx.idx` may jump to; none for other instructions."""
    if instruction.name == "bra":
        return tuple(operand for operand in instruction.operands if isinstance(operand, Target))
    return instruction.targets if instruction.name == "brx" else ()


def registers_of(operand: Operand) -> Iterator[Register]:
    """Yield every register that an operand names, also inside addresses and vectors; none for constants and labels."""
    if isinstance(operand, Register):
        yield operand
    elif isinstance(operand, Negated | Sum):
        yield operand.register
    elif isinstance(operand, Memory):
        yield from registers_of(operand.base)
    elif isinstance(operand, Pair):
        yield from registers_of(operand.first)
        yield from registers_of(operand.second)
    elif isinstance(operand, Vector):
        for element in operand.elements:
            yield from registers_of(element)


def uses_carry(instruction: Instruction) -> bool:
    """Return whether an instruction reads or writes the condition code (PTX ISA 9.7.2)."""
    return "cc" in instruction.parts or instruction.name in ("addc", "subc", "madc")


def has_destination(instruction: Instruction) -> bool:
    """Return whether an instruction writes its first operand, which is then a register or several."""
    if instruction.name in _WITHOUT_DESTINATION or not instruction.operands:
        return False
    return isinstance(instruction.operands[0], Register | Pair | Vector)


def _effects(instruction: Instruction) -> tuple[int, int]:
    """Return the registers that an instruction reads and those that it certainly writes, as bit sets by index.

    Under a guard the destination may keep its old value, so that it counts as read and not as written.
    """
    read = written = 0
    operands = instruction.operands
    if has_destination(instruction):
        for register in registers_of(operands[0]):
            written |= 1 << register.index
        operands = operands[1:]
    for operand in operands:
        for register in registers_of(operand):
            read |= 1 << register.index
    if instruction.guard is not None:
        # The guard is a register that is read, too.
        read |= 1 << instruction.guard.index | written
        written = 0
    return read, written


def _block_effects(block: Block) -> tuple[int, int]:
    """Return the registers that a block reads before it writes them, and those that it certainly writes.

    Both are bit sets by register index. They are the "use" and "def" sets of the liveness analysis.
    """
    block_read = block_written = 0
    for instruction in block.instructions:
        read, written = _effects(instruction)
        block_read |= read & ~block_written
        block_written |= written
    return block_read, block_written


def _compute_liveness(graph: Graph) -> None:
    """Set the live-out registers of each block, by backward data-flow analysis with a worklist.

    Generated code keeps registers in local variables, and writes back to the register file only those that are live.
    If the function uses the carry flag, it gets a predicate register for it, which counts as live everywhere.
    """
    program = graph.program
    # The registers that hold the function's results are live where it returns.
    results = 0
    for result in program.signature.results:
        if isinstance(result, Register):
            results |= 1 << result.index
    always_live = 0
    if any(uses_carry(instruction) for block in graph.blocks for instruction in block.instructions):
        program.registers.append("pred")
        graph.carry = Register(len(program.registers) - 1, "pred")
        always_live = 1 << graph.carry.index

    effects = [_block_effects(block) for block in graph.blocks]

    # The edges of the graph.
    successors = [
        [*block.taken, *([block.next] if block.next >= 0 and _falls_through(block) else [])] for block in graph.blocks
    ]
    predecessors: list[list[int]] = [[] for _ in graph.blocks]
    for block in graph.blocks:
        for successor in successors[block.index]:
            predecessors[successor].append(block.index)

    # Iterate until no block's live-in registers change. They are those that the block reads first, and those that are
    # live at its end and not written in it.
    live_in = [0] * len(graph.blocks)
    worklist = list(range(len(graph.blocks)))
    while worklist:
        index = worklist.pop()
        block = graph.blocks[index]
        live_out = always_live | (results if block.ending is Ending.RETURN else 0)
        for successor in successors[index]:
            live_out |= live_in[successor]
        block.live_out = live_out
        read, written = effects[index]
        new_live_in = read | (live_out & ~written)
        if new_live_in != live_in[index]:
            live_in[index] = new_live_in
            worklist += predecessors[index]


def _falls_through(block: Block) -> bool:
    """Return whether control may go from the end of a block to the block after it."""
    if block.ending in (Ending.RETURN, Ending.EXIT, Ending.TRAP, Ending.TABLE):
        return False
    # A branch falls through where its guard is false. Calls and barriers resume in the block after theirs.
    return block.ending is not Ending.BRANCH or block.instructions[-1].guard is not None


def is_for_all(block: Block) -> bool:
    """Return whether the member mask of a block's first instruction is known to have all threads of the warp."""
    return constant_mask(block) in (-1, 0xFFFFFFFF)


def constant_mask(block: Block) -> int | None:
    """Return the member mask of a block's first instruction: -1 if it has none (all threads), None if not constant.

    A constant is returned as an unsigned 32-bit word.
    """
    if not isinstance(block.mask, Immediate):
        return -1 if block.mask is None else None
    return block.mask.bits & 0xFFFFFFFF
