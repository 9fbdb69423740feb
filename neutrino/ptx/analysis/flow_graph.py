"""The control-flow graph of a body: its basic blocks, which come after which, and where threads leave it.

A block begins at a label, or after an instruction that ends a block (``opcodes.Flow``). A call ends none: the functions
that are called come back, or end the thread.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property
from typing import NamedTuple

from neutrino.ptx.isa.opcodes import Flow
from neutrino.ptx.text.body import Body


class FlowGraph:
    """The basic blocks of one body, numbered in text order from 0, where threads enter.

    starts: the index of the statement that each block begins with. successors: by block, the sorted numbers of those
    that may come next. One more block, the last and empty, is for threads that have left the body. Callers make sure
    that the functions that the body calls end no thread: such a call would be one more way to leave it.
    """

    def __init__(self, body: Body) -> None:
        self._body = body
        labels: dict[str, list[int]] = {}
        for label in body.labels:
            labels.setdefault(label.name, []).append(label.before)
        mnemonics = body.mnemonics
        ending = [index for index in body.controls if (decoded := mnemonics[index]) is not None and decoded.ends_block]
        following = (index + 1 for index in ending)
        self.starts = sorted({0, *following, *(label.before for label in body.labels)})
        numbers = {index: block for block, index in enumerate(self.starts)}
        # Where a branch by a table goes is not looked up: to any label.
        labelled_blocks = sorted({numbers[label.before] for label in body.labels})
        left_body, guarded = len(self.starts), body.guarded
        # Without an instruction that ends it, a block goes on into the next.
        self.successors = [[block + 1] for block in range(left_body)]
        self.successors.append([])
        for index in ending:
            # The instruction is the last one of its block, which is the one before the block after it.
            block = numbers[index + 1] - 1
            # Threads whose guard is false go on. What stops the launch (``trap``) has no other successor.
            after = {block + 1} if index in guarded else set()
            decoded = mnemonics[index]
            flow = decoded.flow if decoded is not None else None
            if flow is Flow.LEAVE:
                after.add(left_body)
            elif flow is Flow.JUMP:
                target = _target(body, index)
                # A name may have several labels, each in its braces.
                after.update([numbers[start] for start in labels[target]] if target in labels else labelled_blocks)
            self.successors[block] = sorted(after)

    def block(self, index: int) -> int:
        """The number of the block that a statement is in, by the statement's index in the body."""
        return bisect_right(self.starts, index) - 1

    @cached_property
    def _order(self) -> list[int]:
        return _postorder(self.successors)

    @cached_property
    def acyclic(self) -> set[int]:
        """The blocks that lie on no cycle."""
        return _acyclic(self.successors, self._order)

    @cached_property
    def dominators_of_end(self) -> set[int]:
        """The blocks on every way from the entry to where threads leave the body."""
        return _dominating(self.successors, self._order, len(self.starts))

    def once(self, index: int) -> bool:
        """Whether no thread executes a statement twice in one call of the body. index: of the statement in the body."""
        return self.block(index) in self.acyclic

    def always(self, index: int) -> bool:
        """Whether every thread that leaves the body has executed a statement, and once. index: of the statement."""
        block = self.block(index)
        return block in self.acyclic and block in self.dominators_of_end


def _target(body: Body, index: int) -> str | None:
    """The label that a branch (``bra``) names; None for a branch by a table (``brx``). index: of the statement."""
    decoded = body.mnemonics[index]
    if decoded is None or decoded.word != "bra":
        return None
    # "@%p bra.uni LABEL", without the semicolon: the label is the last word.
    words = body.code[body.ends[index - 1] if index else body.start : body.ends[index] - 1].split()
    return words[-1]


def _postorder(graph: list[list[int]]) -> list[int]:
    """The nodes that node 0 reaches, each after those that a depth-first search reaches from it.

    graph: the successors of each node. Written without recursion: bodies may have more blocks than Python has stack.
    """
    order: list[int] = []
    reached = {0}
    # The nodes from node 0 to the current one, each with its successors that are still to be visited.
    path = [(0, iter(graph[0]))]
    while path:
        node, remaining = path[-1]
        for successor in remaining:
            if successor not in reached:
                reached.add(successor)
                path.append((successor, iter(graph[successor])))
                break
        else:
            order.append(node)
            path.pop()
    return order


def _acyclic(graph: list[list[int]], order: list[int]) -> set[int]:
    """The nodes that node 0 reaches and that lie on no cycle.

    By Kosaraju's algorithm: those that make up a strongly connected component alone and are not their own successor.
    graph: the sorted successors of each node; order: its postorder.
    """
    # Where each node's first successor, so each successor, has a higher number, there is no cycle.
    if all(after[0] > node for node, after in enumerate(graph) if after):
        return set(order)
    predecessors: dict[int, list[int]] = {node: [] for node in order}
    for node in order:
        for successor in graph[node]:
            predecessors[successor].append(node)
    acyclic = set()
    assigned: set[int] = set()
    for root in reversed(order):
        if root in assigned:
            continue
        # The root's component: all that lead to it and are in no earlier component.
        assigned.add(root)
        component, next_member = [root], 0
        while next_member < len(component):
            candidates = dict.fromkeys(predecessors[component[next_member]])
            new = [node for node in candidates if node not in assigned]
            assigned.update(new)
            component += new
            next_member += 1
        if len(component) == 1 and root not in graph[root]:
            acyclic.add(root)
    return acyclic


def _dominating(graph: list[list[int]], order: list[int], end: int) -> set[int]:
    """The nodes, other than the end, on every path from node 0 to the end; none where there is no path.

    By the algorithm of Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm". graph: the successors of each
    node; order: its postorder.
    """
    number = {node: position for position, node in enumerate(order)}
    if end not in number:
        return set()
    predecessors: dict[int, list[int]] = {node: [] for node in order}
    for node in order:
        for successor in graph[node]:
            predecessors[successor].append(node)
    # The immediate dominator of each node that was processed.
    dominator = {0: 0}
    changed = True
    while changed:
        changed = False
        # In reverse postorder, without node 0, which is the last.
        for node in reversed(order[:-1]):
            # The nearest common dominator of the predecessors so far; -1 before the first.
            common = -1
            for predecessor in predecessors[node]:
                if predecessor not in dominator:
                    continue
                if common < 0:
                    common = predecessor
                # Up the tree from whichever of the two is farther from node 0, until they meet.
                while common != predecessor:
                    if number[common] < number[predecessor]:
                        common = dominator[common]
                    else:
                        predecessor = dominator[predecessor]
            if dominator.get(node) != common:
                dominator[node] = common
                changed = True
    dominating = set()
    while end != 0:
        end = dominator[end]
        dominating.add(end)
    return dominating


class End(NamedTuple):
    """Where threads leave a body. at: the position before which code goes. guard: ``@!%p`` as written, None without.

    shown: the instruction in one line, ``}`` where threads fall off the body.
    """

    at: int
    guard: str | None
    shown: str

    @property
    def is_exit(self) -> bool:
        """The thread ends here, in a called function too."""
        return self.shown.split()[-1].startswith("exit")


def all_ends(body: Body) -> tuple[End, ...]:
    """Every end of a body: its ``ret`` and ``exit`` in text order, then the closing brace if threads fall off it.

    At these, code that runs when a kernel or function ends is inserted.
    """
    leaving = map(body.statement, body.leaving)
    ends = [End(statement.start, statement.guard, " ".join(statement.text.split())) for statement in leaving]
    if _may_fall_off(body):
        # -1: before the closing brace.
        ends.append(End(body.end - 1, None, "}"))
    return tuple(ends)


def _may_fall_off(body: Body) -> bool:
    """Whether control may come to the closing brace: not when the last instruction always leads elsewhere."""
    # What follows the last semicolon counts as a statement; it is empty but for braces and labels. A branch may lead to
    # such a label.
    remainder = len(body) - 1
    is_labelled = any(label.before == remainder for label in body.labels)
    if remainder == 0 or body.mnemonics[remainder] is not None or is_labelled:
        return True
    last = body.statement(remainder - 1)
    return last.guard is not None or last.mnemonic is None or not last.mnemonic.ends_block
