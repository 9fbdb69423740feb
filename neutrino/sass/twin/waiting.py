"""Whether threads of a kernel may wait for other blocks, by its machine code: then all may have to run at once.

A thread that waits goes round in a loop until memory that it reads there has changed. So a loop is none in which it
waits if one of the branches by which it is left is decided by nothing that was read in the loop: neither by such values
themselves, nor by what was written where one decided between two ways through the loop. That branch leaves the loop
after as many rounds, whatever other blocks do. Smaller loops within, which do without that branch, are looked at in the
same way. Whatever cannot be told counts as waiting.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from neutrino.sass.decoder import Code
from neutrino.sass.encoding import Form
from neutrino.sass.fields import INSTRUCTION_BYTES, OPCODE
from neutrino.sass.instruction import Flow, Memory
from neutrino.sass.twin.hazards import columns_of

_FIXED = frozenset({Memory.NONE, Memory.CONSTANT})
"""What no thread of the launch writes."""
_FROM_ELSEWHERE = ("B2R", "BMOV")
"""How opcodes begin whose results come from where registers are not followed: barriers."""
_OF_CLUSTERS = ("UCGABAR", "STAS", "REDAS", "MAPA", "ELECT_CLUSTER", "ACQBULK", "PREEXIT")
"""How opcodes begin by which blocks or launches wait for each other."""
_PARTING = frozenset({Flow.BRANCH, Flow.CALL, Flow.RETURN, Flow.EXIT})
"""What may go on elsewhere, or not at all."""
_OF_LANES = ("VOTE", "MATCH", "SHFL", "REDUX", "WARPSYNC")
"""How opcodes begin that tell of other lanes of the warp."""
_END = -1
"""In place of an instruction: where a loop has ended."""
_MOVES = (0x802, 0x882)
"""Opcodes of MOV and UMOV with an immediate, which is in the 32 bits from ``_IMMEDIATE`` on."""
_IMMEDIATE = 32
_NEAR = 32
"""Instructions before a call among which its return address is looked for."""


def may_wait(code: Code, *, aborts: bool = False) -> bool:
    """Return whether a kernel may have a loop in which a thread waits for threads of another block.

    code: all of its section. aborts: whether calls by a register call nothing but what ends the launch. True also for
    calls of which it is not known where they go and come back, other indirect branches, and instructions that the table
    lacks, as far as they may ever be executed.
    """
    flow = _Flow(code, aborts=aborts)
    return not flow.is_known or any(flow.may_wait_in(loop) for loop in flow.loops(flow.successors.keys()))


def _reads_memory(form: Form | None) -> bool:
    """Whether what an instruction writes may come from memory, or from where registers are not followed."""
    return form is not None and (
        form.memory not in _FIXED or form.flow is Flow.BARRIER or form.name.startswith(_FROM_ELSEWHERE)
    )


def _goes_straight_on(form: Form | None) -> bool:
    """Whether the next instruction comes after one, and no other."""
    return form is not None and form.flow not in _PARTING and not form.name.startswith(_OF_CLUSTERS)


@dataclass
class _Called:
    """What the code of a function that is called does. reads, writes: masks of registers. reads_memory: whether."""

    reads: int = 0
    writes: int = 0
    reads_memory: bool = False


class _Flow:
    """The flow of control. successors: of each instruction that may be executed, by number; after a call the function's
    first instruction and the next one, after a return none. is_known: whether they are all known."""

    def __init__(self, code: Code, *, aborts: bool) -> None:
        self.columns = columns_of(code)
        self.successors: dict[int, tuple[int, ...]] = {}
        self.is_known = True
        self._calls: dict[int, int] = {}
        self._called: dict[int, _Called] = {}
        targets: dict[int, int] = {}
        for index, target in code.targets().items():
            if not target % INSTRUCTION_BYTES and 0 <= target < len(code) * INSTRUCTION_BYTES:
                targets[index] = target // INSTRUCTION_BYTES
        self._reads_memory: list[bool] = code.having(_reads_memory).tolist()
        stops: list[int] = [*np.flatnonzero(~code.having(_goes_straight_on)).tolist(), len(code)]
        # Of those instructions after which others may come than the next one alone: which.
        self._jumps: dict[int, tuple[int, ...]] = {}
        pending = [0]
        while pending and self.is_known:
            begin = pending.pop()
            if begin in self.successors:
                continue
            index = stops[bisect.bisect_left(stops, begin)]
            self.successors.update(zip(range(begin, index), zip(range(begin + 1, index + 1)), strict=True))
            if index in self.successors:
                continue
            form = self.columns.forms[index] if index < len(code) else None
            if form is None or form.name.startswith(_OF_CLUSTERS):
                self.is_known = False
                break
            self.successors[index] = self._jumps[index] = tuple(self._after(index, form, targets, aborts=aborts))
            pending += self.successors[index]
        self._ends = sorted(self._jumps)
        self._entered = {0, *(one for some in self._jumps.values() for one in some)}
        # A function that comes back is only entered by calls.
        for node in self._reached(0) if self.is_known else ():
            form = self.columns.forms[node]
            self.is_known &= form is not None and form.flow is not Flow.RETURN
        for target in {*self._calls.values()} if self.is_known else ():
            self._called[target] = self._summary(target)

    def decides(self, index: int) -> bool:
        """Whether an instruction decides which one comes next."""
        form = self.columns.forms[index]
        return form is not None and form.flow in (Flow.BRANCH, Flow.EXIT) and bool(self.columns.reads[index])

    def _after(self, index: int, form: Form, targets: dict[int, int], *, aborts: bool) -> Iterator[int]:
        """Yield the instructions that may come after one; the next one also where a condition always holds."""
        # A condition is a register that it reads.
        is_conditional = bool(self.columns.guards[index])
        if form.flow is Flow.CALL:
            if index not in targets:
                self.is_known &= aborts
                if is_conditional:
                    yield index + 1
                return
            self.is_known &= self._comes_back(index)
            self._calls[index] = targets[index]
            yield targets[index]
            yield index + 1
        elif form.flow is Flow.RETURN:
            if is_conditional:
                yield index + 1
        elif form.flow is Flow.BRANCH:
            self.is_known &= index in targets
            if index in targets:
                yield targets[index]
            if self.columns.reads[index]:
                yield index + 1
        elif form.flow is not Flow.EXIT or self.columns.reads[index]:
            yield index + 1

    def _comes_back(self, index: int) -> bool:
        """Whether a function that is called goes on with the instruction after the call: its place was put into a
        register just before."""
        place = (index + 1) * INSTRUCTION_BYTES
        return any(
            low & (1 << OPCODE.bits) - 1 in _MOVES and low >> _IMMEDIATE & 0xFFFFFFFF == place
            for low in self.columns.low[max(index - _NEAR, 0) : index]
        )

    def _reached(self, start: int, *, calls: bool = False) -> set[int]:
        """Return the instructions that are reached from one, within its function; calls: also those that it calls."""
        reached: set[int] = set()
        pending = [start]
        while pending:
            node = pending.pop()
            if node not in reached:
                # Up to the next one after which others may come.
                last = self._ends[bisect.bisect_left(self._ends, node)]
                reached.update(range(node, last + 1))
                pending += self.successors[last][1 if last in self._calls and not calls else 0 :]
        return reached

    def _summary(self, target: int) -> _Called:
        """Return what a function does, with those that it calls."""
        called = _Called()
        for node in self._reached(target, calls=True):
            called.reads |= self.columns.reads[node]
            called.writes |= self.columns.writes[node]
            called.reads_memory |= self._reads_memory[node]
        return called

    def loops(self, nodes: Collection[int]) -> list[set[int]]:
        """Return the largest loops among these instructions: sets of which each is reached from each, by more than
        nothing."""
        runs = {run[0]: run for run in self._runs(nodes)}
        graph = {first: [one for one in self.successors[run[-1]] if one in runs] for first, run in runs.items()}
        return [{node for first in firsts for node in runs[first]} for firsts in _components(graph)]

    def _runs(self, nodes: Collection[int]) -> list[range]:
        """Return those of these instructions that may be in a loop, as runs that are entered at their beginning alone,
        and gone through to their end."""
        # On its way back to where it began, a loop passes by each of its instructions by a branch back.
        back = sorted(
            (one, node) for node, after in self._jumps.items() if node in nodes
            for one in after if one <= node and one in nodes
        )  # fmt: skip
        runs: list[range] = []
        stop = 0
        for begin, end in back:
            first, is_begun = max(begin, stop), False
            for node in range(first, end + 1):
                if node not in nodes:
                    is_begun = False
                    continue
                if is_begun and node not in self._entered:
                    runs[-1] = range(runs[-1].start, node + 1)
                else:
                    runs.append(range(node, node + 1))
                is_begun = node not in self._jumps
            stop = max(stop, end + 1)
        return runs

    def may_wait_in(self, loop: set[int]) -> bool:
        """Whether a thread may wait for another block in a loop, or in one within it."""
        if not any(self._reads_memory[node] or (node in self._calls and self._calls_reader(node)) for node in loop):
            return False
        leaving = {node for node in loop if self.decides(node) and self._leaves(node, loop)}
        firm = leaving - self._undecided(loop)
        return not firm or any(self.may_wait_in(part) for part in self.loops(loop - firm))

    def _leaves(self, node: int, loop: set[int]) -> bool:
        """Whether a branch may leave a loop, or end the thread."""
        form = self.columns.forms[node]
        return any(one not in loop for one in self.successors[node]) or (form is not None and form.flow is Flow.EXIT)

    def _calls_reader(self, node: int) -> bool:
        """Whether a call is of a function that reads memory."""
        return self._called[self._calls[node]].reads_memory

    def _undecided(self, loop: set[int]) -> set[int]:
        """Return the branches of a loop that what was read in the loop may decide."""
        within = {node: [one for one in self.successors[node] if one in loop] for node in loop}
        # What is written there may depend on such branches.
        dependent: set[int] = set()
        ends: dict[int, int] | None = None
        while True:
            masks = self._read_in(within, dependent)
            undecided = {node for node in loop if self.decides(node) and self.columns.reads[node] & masks[node]}
            more = set(dependent)
            if undecided:
                more |= {node for node in loop if self._asks_lanes(node)}
            for node in undecided:
                if len(within[node]) > 1:
                    ends = _joins(within, self._ways_out(loop)) if ends is None else ends
                    more |= _until(within, node, ends[node])
            if more == dependent:
                return undecided
            dependent = more

    def _ways_out(self, loop: set[int]) -> set[int]:
        """Return the branches by which a loop may be left."""
        return {node for node in loop if self._leaves(node, loop) and node not in self._calls}

    def _asks_lanes(self, node: int) -> bool:
        """Whether what an instruction writes depends on which lanes of the warp are there, or on their registers."""
        form = self.columns.forms[node]
        return form is not None and form.name.startswith(_OF_LANES)

    def _read_in(self, within: Mapping[int, Sequence[int]], dependent: set[int]) -> dict[int, int]:
        """Return by instruction of a loop the mask of the registers whose values may depend on what was read in the
        loop, before it is executed. within: the next instructions in the loop. dependent: those whose execution
        depends on it."""
        masks = dict.fromkeys(within, 0)
        pending = sorted(within, reverse=True)
        while pending:
            index = pending.pop()
            mask, writes = masks[index], self.columns.writes[index]
            if index in dependent or self._reads_memory[index] or self.columns.reads[index] & mask:
                mask |= writes
            elif not self.columns.guards[index]:
                mask &= ~writes
            if index in self._calls:
                called = self._called[self._calls[index]]
                if index in dependent or called.reads_memory or (called.reads | self.columns.reads[index]) & mask:
                    mask |= called.writes
            for after in within[index]:
                if mask & ~masks[after]:
                    masks[after] |= mask
                    pending.append(after)
        return masks


def _until(within: Mapping[int, Sequence[int]], branch: int, end: int) -> set[int]:
    """Return the instructions of a loop that are reached after a branch, before all ways have come to one."""
    found: set[int] = set()
    pending = [one for one in within[branch] if one != end]
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending += [one for one in within[node] if one != end]
    return found


def _joins(within: Mapping[int, Sequence[int]], ways_out: set[int]) -> dict[int, int]:
    """Return by instruction of a loop the one to which all ways from it come, the loop's end included; -1 if that is
    the end alone: its immediate postdominator. ways_out: the instructions by which the loop is left."""
    before: dict[int, list[int]] = {node: [] for node in within}
    for node, after in within.items():
        for one in after:
            before[one].append(node)
    # From the end backwards, in the order in which a depth-first search has done with them.
    done: list[int] = []
    seen = {_END}
    stack = [(_END, iter(sorted(ways_out)))]
    while stack:
        node, others = stack[-1]
        fresh = next((other for other in others if other not in seen), None)
        if fresh is None:
            stack.pop()
            done.append(node)
        else:
            seen.add(fresh)
            stack.append((fresh, iter(before[fresh])))
    rank = {node: number for number, node in enumerate(done)}
    found = {_END: _END}
    changed = True
    while changed:
        changed = False
        for node in reversed(done[:-1]):
            join: int | None = None
            for one in [*within[node], *([_END] if node in ways_out else [])]:
                if one not in found:
                    continue
                other = one if join is None else join
                while other != one:
                    if rank[other] < rank[one]:
                        other = found[other]
                    else:
                        one = found[one]
                join = other
            if join is not None and found.get(node) != join:
                found[node] = join
                changed = True
    return {node: found.get(node, _END) for node in within}


def _components(successors: Mapping[int, Sequence[int]]) -> Iterator[set[int]]:
    """Yield the strongly connected components of a graph, but for nodes that are not reached from themselves."""
    number: dict[int, int] = {}
    lowest: dict[int, int] = {}
    path: list[int] = []
    on_path: set[int] = set()
    for root in successors:
        if root in number:
            continue
        stack = [(root, iter(successors[root]))]
        number[root] = lowest[root] = len(number)
        path.append(root)
        on_path.add(root)
        while stack:
            node, others = stack[-1]
            for one in others:
                if one not in number:
                    number[one] = lowest[one] = len(number)
                    path.append(one)
                    on_path.add(one)
                    stack.append((one, iter(successors[one])))
                    break
                if one in on_path:
                    lowest[node] = min(lowest[node], number[one])
            else:
                stack.pop()
                if stack:
                    lowest[stack[-1][0]] = min(lowest[stack[-1][0]], lowest[node])
                if lowest[node] == number[node]:
                    component: set[int] = set()
                    while node not in component:
                        component.add(path.pop())
                    on_path -= component
                    if len(component) > 1 or node in successors[node]:
                        yield component
