"""A program cut into basic blocks: where threads part, wait, or must act together, and what each block needs.

Control flow is made explicit first: an instruction that ends a block, or that a whole warp executes, and that has a
guard, is put after a hidden branch, so that only plain branches are conditional.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum

from neutrino.emulator.program import (
    Immediate,
    Instruction,
    Memory,
    Negated,
    Operand,
    Pair,
    Program,
    Register,
    Target,
    Vector,
)
from neutrino.emulator.text import Statement

Key = tuple[int, int, int]
"""Where threads are: (- call depth, function, block). Of those that can run, the lowest goes first."""


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

# Instructions of a warp (PTX ISA 9.7.9 and 9.7.13 to 9.7.15) → which operand is the member mask; None: all its threads.
_OF_A_WARP: dict[str, int | None] = {
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

# Where the first operand is no destination although it is a register.
_WITHOUT_DESTINATION = frozenset({"brx", "bar", "barrier", "call", "nanosleep", "setmaxnreg"})

# What threads wait with for memory that others write: a loop of them is a wait, not work.
_WAITING = frozenset({"volatile", "acquire", "relaxed", "atom", "test_wait", "try_wait", "nanosleep", "mmio"})


@dataclass
class Block:
    """Instructions that run from the first to the last. next: the block after it, -1 after the last.

    warp: the first instruction is one of a whole warp. mask: its member mask (None: all threads).
    waits: has an instruction that loops wait with. live_out: bit set of the registers read later.
    joined: falls into the next block, which starts with an instruction of a whole warp and has no other predecessor.
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
    """The blocks of one function; its entry is the first one."""

    program: Program
    blocks: list[Block] = field(default_factory=list)
    carry: Register | None = None


def is_of_warp(instruction: Instruction) -> bool:
    """Whether all threads of a member mask execute it together."""
    if instruction.parts[:2] == ("bar", "warp"):
        return True
    return instruction.name in _OF_A_WARP and "sync" in instruction.parts


def build_graph(program: Program) -> Graph:
    """Cut a program into blocks."""
    instructions, place = _lower(program)
    leaders = {0}
    labelled = set()
    for number, instruction in enumerate(instructions):
        for target in _targets(instruction):
            leaders.add(place[target.instruction])
            labelled.add(place[target.instruction])
        if _ending(instruction) is not None:
            leaders.add(number + 1)
        if is_of_warp(instruction):
            leaders.add(number)
    starts = sorted(leader for leader in leaders if leader < len(instructions))
    index = {start: number for number, start in enumerate(starts)}
    graph = Graph(program)
    for number, start in enumerate(starts):
        end = starts[number + 1] if number + 1 < len(starts) else len(instructions)
        block = Block(number, instructions[start:end])
        block.next = number + 1 if number + 1 < len(starts) else -1
        last = block.instructions[-1]
        ending = _ending(last)
        if ending is not None:
            block.ending = ending
            block.taken = tuple(index[place[target.instruction]] for target in _targets(last))
        first = block.instructions[0]
        if is_of_warp(first):
            block.warp = True
            if first.name == "bar":
                block.mask = first.operands[0] if first.operands else None
            elif _OF_A_WARP[first.name] is not None and first.operands:
                block.mask = first.operands[-1]
        block.waits = any(
            _WAITING.intersection(part.split("::")[0] for part in instruction.parts)
            for instruction in block.instructions
        )
        block.count = sum(not instruction.hidden for instruction in block.instructions)
        graph.blocks.append(block)
    for block in graph.blocks[:-1]:
        following = starts[block.index + 1]
        following_block = graph.blocks[block.index + 1]
        block.joined = (
            block.ending is Ending.NEXT
            and following_block.warp
            and is_for_all(following_block)
            and following not in labelled
        )
    _find_live(graph)
    return graph


def _lower(program: Program) -> tuple[list[Instruction], list[int]]:
    # The instructions with hidden branches put in; old index → new index.
    found: list[Instruction] = []
    place: list[int] = []
    for number, instruction in enumerate(program.instructions):
        place.append(len(found))
        apart = (_ending(instruction) is not None and instruction.name != "bra") or is_of_warp(instruction)
        if instruction.guard is not None and apart:
            skip = replace(
                instruction,
                parts=("bra",),
                operands=(Target("", number + 1),),
                negated=not instruction.negated,
                targets=(),
                hidden=True,
            )
            found += (skip, replace(instruction, guard=None))
        else:
            found.append(instruction)
    place.append(len(found))
    line = program.text.line
    end = Statement(line, "ret;", "ret", ())
    found.append(Instruction(end, found[-1].number if found else 0, ("ret",), (), hidden=True))
    return found, place


def _ending(instruction: Instruction) -> Ending | None:
    if instruction.parts[:2] == ("bar", "warp"):
        return None
    if instruction.parts[:2] == ("barrier", "cluster"):
        return Ending.CLUSTER_WAIT if "wait" in instruction.parts else None
    return _ENDINGS.get(instruction.name)


def _targets(instruction: Instruction) -> tuple[Target, ...]:
    if instruction.name == "bra":
        return tuple(operand for operand in instruction.operands if isinstance(operand, Target))
    return instruction.targets if instruction.name == "brx" else ()


def registers_of(operand: Operand) -> Iterator[Register]:
    """Every register that an operand names."""
    if isinstance(operand, Register):
        yield operand
    elif isinstance(operand, Negated):
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
    """Whether it reads or writes the condition code (PTX ISA 9.7.2)."""
    return "cc" in instruction.parts or instruction.name in ("addc", "subc", "madc")


def has_destination(instruction: Instruction) -> bool:
    """Whether its first operand is written by the instruction itself."""
    if instruction.name in _WITHOUT_DESTINATION or not instruction.operands:
        return False
    return isinstance(instruction.operands[0], Register | Pair | Vector)


def _effects(instruction: Instruction) -> tuple[int, int]:
    # Bit sets: registers read, registers certainly written.
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
        read |= 1 << instruction.guard.index | written
        written = 0
    return read, written


def _find_live(graph: Graph) -> None:
    program = graph.program
    results = 0
    for result in program.signature.results:
        if isinstance(result, Register):
            results |= 1 << result.index
    if any(uses_carry(instruction) for block in graph.blocks for instruction in block.instructions):
        program.registers.append("pred")
        graph.carry = Register(len(program.registers) - 1, "pred")
        results |= 1 << graph.carry.index
    effects = []
    for block in graph.blocks:
        read = written = 0
        for instruction in block.instructions:
            one_read, one_written = _effects(instruction)
            read |= one_read & ~written
            written |= one_written
        effects.append((read, written))
    successors = [
        [*block.taken, *([block.next] if block.next >= 0 and _falls(block) else [])] for block in graph.blocks
    ]
    predecessors: list[list[int]] = [[] for _ in graph.blocks]
    for block in graph.blocks:
        for successor in successors[block.index]:
            predecessors[successor].append(block.index)
    live_in = [0] * len(graph.blocks)
    always = 1 << graph.carry.index if graph.carry is not None else 0
    waiting = list(range(len(graph.blocks)))
    while waiting:
        index = waiting.pop()
        block = graph.blocks[index]
        out = always | (results if block.ending is Ending.RETURN else 0)
        for successor in successors[index]:
            out |= live_in[successor]
        block.live_out = out
        read, written = effects[index]
        entering = read | (out & ~written)
        if entering != live_in[index]:
            live_in[index] = entering
            waiting += predecessors[index]


def _falls(block: Block) -> bool:
    if block.ending in (Ending.RETURN, Ending.EXIT, Ending.TRAP, Ending.TABLE):
        return False
    return block.ending is not Ending.BRANCH or block.instructions[-1].guard is not None


def is_for_all(block: Block) -> bool:
    """Whether its first instruction is known to be one of all threads of a warp."""
    return constant_mask(block) in (-1, 0xFFFFFFFF)


def constant_mask(block: Block) -> int | None:
    """The member mask of a block's first instruction where it is known: -1 for all threads."""
    if not isinstance(block.mask, Immediate):
        return -1 if block.mask is None else None
    return block.mask.bits & 0xFFFFFFFF
