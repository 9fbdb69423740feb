"""Which accesses to buffers are to scratch memory: on processors that have no other way, up to gfx90a and gfx10.

The hardware or the caller puts the buffer's descriptor into s[0:3]; compilers copy it, and add the wave's offset.
"""

from __future__ import annotations

import re

from neutrino.gcn.analysis.flow_graph import FlowGraph
from neutrino.gcn.code import Instruction, is_call
from neutrino.gcn.isa.effects import effects_of
from neutrino.gcn.isa.memory import Space, access_of, operands_of
from neutrino.gcn.isa.registers import UnknownInstructionError, scalars_in

_ARCHITECTED = ("gfx94", "gfx95", "gfx11", "gfx12")
_WORDS = 4
_RANGE = re.compile(r"s(?:(\d+)|\[(\d+):(\d+)\])")
_SUMS = frozenset({"s_add_u32", "s_addc_u32"})
_COPIES = frozenset({"s_mov_b32", "s_mov_b64"})
_Words = dict[int, int]
"""Which word of the descriptor a scalar register has."""


def scratch_accesses(graph: FlowGraph, processor: str, generation: int, properties: int = 1) -> frozenset[int]:
    """Return the offsets of the instructions that access scratch memory as a buffer.

    graph: of the function. properties: ``kernel_code_properties`` of a kernel's descriptor. Copies of the buffer's
    descriptor in other scalar registers are followed on every way through the code; an access by one that is there on
    some of the ways alone counts as one to another buffer.
    """
    if processor.startswith(_ARCHITECTED) or not properties & 1 or not graph.blocks:
        return frozenset()
    rows = graph.function.instructions
    changes = [_change(row, generation) for row in rows]
    before: dict[int, _Words] = {0: {number: number for number in range(_WORDS)}}
    waiting = [0]
    while waiting:
        number = waiting.pop()
        block, words = graph.blocks[number], before[number]
        for index in range(block.begin, block.end):
            words = _after(rows[index], changes[index], words)
        for successor in graph.ways[number]:
            known = before.get(successor)
            shared = words if known is None else dict(known.items() & words.items())
            if shared != known:
                before[successor] = shared
                waiting.append(successor)
    found = set()
    for number, words in before.items():
        block = graph.blocks[number]
        for index in range(block.begin, block.end):
            row = rows[index]
            access = access_of(row)
            if access is not None and access.space is Space.BUFFER:
                numbers = _numbers(operands_of(row, access).base)
                if [words.get(register) for register in numbers] == list(range(_WORDS)):
                    found.add(row.offset)
            words = _after(row, changes[index], words)
    return frozenset(found)


def _change(row: Instruction, generation: int) -> frozenset[int]:
    """Return the scalar registers that an instruction writes."""
    if is_call(row):
        # What functions get in s[0:3] they leave there.
        return frozenset()
    try:
        return frozenset(scalars_in(effects_of(row.text, generation).writes))
    except UnknownInstructionError:
        return frozenset()


def _after(row: Instruction, written: frozenset[int], words: _Words) -> _Words:
    """Return which word of the descriptor scalar registers have after an instruction. written: those that it writes.
    words: as before it."""
    if not written:
        return words
    copied = _copied(row, words)
    if not copied and written.isdisjoint(words):
        return words
    return {number: word for number, word in words.items() if number not in written} | copied


def _copied(row: Instruction, words: _Words) -> dict[int, int]:
    """Return the words of the descriptor that an instruction writes, by their registers."""
    if row.mnemonic in _COPIES and len(row.operands) == 2:
        pairs = zip(_numbers(row.operands[0]), _numbers(row.operands[1]), strict=False)
        return {to: words[source] for to, source in pairs if source in words}
    if row.mnemonic in _SUMS:
        to, *sources = (_numbers(operand) for operand in row.operands)
        kept = next((words[source[0]] for source in sources if source and source[0] in words), None)
        return {to[0]: kept} if to and kept is not None else {}
    return {}


def _numbers(operand: str) -> list[int]:
    """Return the numbers of an operand's scalar registers; none of another operand."""
    match = _RANGE.fullmatch(operand)
    if match is None:
        return []
    return list(range(int(match[1] or match[2]), int(match[1] or match[3]) + 1))
