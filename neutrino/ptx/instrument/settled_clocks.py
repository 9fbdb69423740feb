"""Clocks after barriers: what makes a warp wait at a barrier before it reads one.

``bar.sync`` becomes ``BAR.SYNC.DEFER_BLOCKING``: a warp goes on with arithmetic, and only stops at an instruction that
the barrier must precede, such as a load. ptxas does not count a read of a clock as one. So on an H200 a clock read
after a barrier showed 2 cycles where the warp waited for 30,000, and 67 after sixteen multiplications. ``pmevent``,
which counts an event for profilers and does nothing else, is such an instruction: with it right before the clock, the
times were right after all forms of barriers, also with arithmetic between. ``bench/clocks.py`` measures it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence

from neutrino.ptx.analysis.flow_graph import FlowGraph
from neutrino.ptx.text.body import Body
from neutrino.ptx.text.inserted import Edits, Inserted, Label, Line, Scope, op

_CLOCKS = ("%clock", "%globaltimer")
"""How the names of the registers that are clocks begin."""
_BARRIERS = frozenset({"bar", "barrier"})
_NO_BARRIER = frozenset({"warp", "arrive"})
"""Parts of their opcodes that do not have warps wait for each other."""
_SETTLING: Line = op("pmevent", "0")


def settle_clocks(body: Body, edits: Edits, is_clear: Callable[[int], bool], *, is_kernel: bool) -> None:
    """Put an instruction that waits for barriers before inserted code that reads a clock, where one may be pending.

    Called when all code is written, since code reads clocks in many ways: helpers, and users' own assembly. Where that
    code stands between a product and a sum, which ptxas fuses only if nothing of the kind is between, the instruction
    goes further up. edits: of the body. is_clear: whether it may stand at a position. is_kernel: no barrier is pending
    where the body begins.
    """
    barriers = {
        mnemonic for mnemonic in body.opcodes
        if mnemonic.word in _BARRIERS and _NO_BARRIER.isdisjoint(mnemonic.parts)
    }  # fmt: skip
    pending = {*body.where(barriers), *body.calls}
    if is_kernel and not pending:
        return
    # By the statement that the code goes before or after, the edits with clocks.
    readers: defaultdict[int, list[int]] = defaultdict(list)
    for number, (begin, _, new) in enumerate(edits.edits):
        if isinstance(new, Inserted) and any(clock in new.text for clock in _CLOCKS):
            # After a statement: twice its index and 1; before it, twice its index.
            index = bisect_right(body.ends, begin)
            readers[2 * index - 1 if new.is_after and index else 2 * index].append(number)
    if not readers:
        return
    graph = FlowGraph(body)
    # In the order of execution within a block: a barrier stands between the code before it and that after it.
    events = sorted([(2 * index + 0.5, -1) for index in pending]
                    + [(at, number) for at, numbers in readers.items() for number in numbers])  # fmt: skip
    of_block: defaultdict[int, list[int]] = defaultdict(list)
    for at, number in events:
        of_block[graph.block(int(at) // 2)].append(number)
    skipped = {
        number: place for numbers in readers.values() for number in numbers
        if (place := _place_after_branch(edits.edits[number][2])) is not None
    }  # fmt: skip
    for number in _unsettled(graph, of_block, skipped.keys(), is_kernel=is_kernel):
        begin, end, new = edits.edits[number]
        if number in skipped and isinstance(new, Inserted):
            lines = (*new.lines[: skipped[number]], _SETTLING, *new.lines[skipped[number] :])
            edits.edits[number] = (begin, end, Inserted(lines, is_after=new.is_after))
            continue
        above = None if is_clear(begin) else _clear_above(body, graph, begin, pending, is_clear)
        if above is not None:
            edits.insert_before(above, [_SETTLING])
        elif isinstance(new, Inserted):
            edits.edits[number] = (begin, end, Inserted((_SETTLING, *new.lines), is_after=new.is_after))


def _place_after_branch(new: str | Inserted) -> int | None:
    """Return the place among inserted lines right after a branch over all lines that read clocks; None without one."""
    if isinstance(new, str):
        return None
    readers = [place for place, line in enumerate(new.lines) if any(clock in line.text for clock in _CLOCKS)]
    for place, line in enumerate(new.lines[: readers[0]]):
        for instruction in line.instructions:
            if instruction.opcode == "bra" and _label_after(new.lines, place, instruction.operands[0]) > readers[-1]:
                return place + 1
    return None


def _label_after(lines: Sequence[Line], place: int, name: str) -> int:
    """Return the place of a label that stands after a branch to it, in the braces around that; -1 if none does."""
    depth = 0
    for at in range(place + 1, len(lines)):
        line = lines[at]
        depth += (line is Scope.OPEN) - (line is Scope.CLOSE)
        if depth < 0:
            break
        if depth == 0 and isinstance(line, Label) and line.name == name:
            return at
    return -1


def _clear_above(
    body: Body, graph: FlowGraph, position: int, pending: set[int], is_clear: Callable[[int], bool]
) -> int | None:
    """Return the last clear position above one, in its block and after what may leave a barrier pending; None without.

    pending: the statements that may, by index.
    """
    index = bisect_right(body.ends, position) - 1
    first = graph.starts[graph.block(max(index, 0))]
    while index >= first and index not in pending:
        start = body.statement(index).start
        if is_clear(start):
            return start
        index -= 1
    return None


def _unsettled(
    graph: FlowGraph, of_block: dict[int, list[int]], skipped: Collection[int], *, is_kernel: bool
) -> list[int]:  # fmt: skip
    """Return the numbers of the edits with clocks at which a barrier may be pending.

    of_block: by block, in order, the numbers of edits with clocks, and -1 for each barrier. Once such an edit waits for
    the barrier, none is pending after it, unless it is one of those whose clocks a branch may skip.
    """
    # Whether a barrier is pending where a block begins. It only ever becomes true.
    pending = [False] * len(graph.successors)
    pending[0] = not is_kernel
    work = list(range(len(graph.starts)))
    while work:
        block = work.pop()
        events = [number for number in of_block.get(block, ()) if number not in skipped]
        if not (events[-1] < 0 if events else pending[block]):
            continue
        for successor in graph.successors[block]:
            if not pending[successor]:
                pending[successor] = True
                work.append(successor)
    found = []
    for block, events in of_block.items():
        is_pending = pending[block]
        for number in events:
            if number >= 0 and is_pending:
                found.append(number)
            is_pending = number < 0 or (is_pending and number in skipped)
    return found
