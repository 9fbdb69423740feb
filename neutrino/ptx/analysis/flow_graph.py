"""The control-flow graph of a body: its basic blocks, and which come after which.

A block begins at a label, or after an instruction that ends a block (``opcodes.Flow``). A call ends none: the functions
that are called come back, or end the thread.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property

from neutrino.ptx.isa.opcodes import Flow
from neutrino.ptx.text.body import Body


class FlowGraph:
    """Of one body, whose called functions end no thread.

    starts: the statement that each block begins with. successors: the numbers of the blocks that may come after each;
    after the last block comes the one where threads leave the body.
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
        # Where a branch by a table goes is not looked up.
        anywhere = sorted({numbers[label.before] for label in body.labels})
        count, guarded = len(self.starts), body.guarded
        self.successors = [[block + 1] for block in range(count)]
        self.successors.append([])
        for index in ending:
            block = numbers[index + 1] - 1
            after = {block + 1} if index in guarded else set()
            decoded = mnemonics[index]
            flow = decoded.flow if decoded is not None else None
            if flow is Flow.LEAVE:
                after.add(count)
            elif flow is Flow.JUMP:
                target = _target(body, index)
                # A name may have several labels, each in its braces.
                after.update([numbers[place] for place in labels[target]] if target in labels else anywhere)
            self.successors[block] = sorted(after)

    def block(self, index: int) -> int:
        """The number of the block that a statement is in."""
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
        """No thread executes a statement twice."""
        return self.block(index) in self.acyclic

    def always(self, index: int) -> bool:
        """Every thread that leaves the body has executed a statement, once."""
        block = self.block(index)
        return block in self.acyclic and block in self.dominators_of_end


def _target(body: Body, index: int) -> str | None:
    """The label that a branch names, None for one by a table."""
    decoded = body.mnemonics[index]
    if decoded is None or decoded.word != "bra":
        return None
    words = body.code[body.ends[index - 1] if index else body.start : body.ends[index] - 1].split()
    return words[-1]


def _postorder(graph: list[list[int]]) -> list[int]:
    """The nodes that node 0 reaches, in postorder."""
    order: list[int] = []
    seen = {0}
    path = [(0, iter(graph[0]))]
    while path:
        node, rest = path[-1]
        for other in rest:
            if other not in seen:
                seen.add(other)
                path.append((other, iter(graph[other])))
                break
        else:
            order.append(node)
            path.pop()
    return order


def _acyclic(graph: list[list[int]], order: list[int]) -> set[int]:
    """The nodes of an order that lie on no cycle: Kosaraju's components of one node that does not follow itself."""
    if all(after[0] > node for node, after in enumerate(graph) if after):
        return set(order)  # no way leads back: successors are sorted
    before: dict[int, list[int]] = {node: [] for node in order}
    for node in order:
        for other in graph[node]:
            before[other].append(node)
    found = set()
    seen: set[int] = set()
    for root in reversed(order):
        if root in seen:
            continue
        seen.add(root)
        component, at = [root], 0
        while at < len(component):
            new = [other for other in dict.fromkeys(before[component[at]]) if other not in seen]
            seen.update(new)
            component += new
            at += 1
        if len(component) == 1 and root not in graph[root]:
            found.add(root)
    return found


def _dominating(graph: list[list[int]], order: list[int], end: int) -> set[int]:
    """The nodes on every way from node 0 to the end; none where there is no way (Cooper, Harvey, Kennedy)."""
    number = {node: at for at, node in enumerate(order)}
    if end not in number:
        return set()
    before: dict[int, list[int]] = {node: [] for node in order}
    for node in order:
        for other in graph[node]:
            before[other].append(node)
    nearest = {0: 0}
    changed = True
    while changed:
        changed = False
        for node in reversed(order[:-1]):
            common = -1
            for other in before[node]:
                if other not in nearest:
                    continue
                if common < 0:
                    common = other
                while common != other:
                    if number[common] < number[other]:
                        common = nearest[common]
                    else:
                        other = nearest[other]
            if nearest.get(node) != common:
                nearest[node] = common
                changed = True
    found = set()
    while end != 0:
        end = nearest[end]
        found.add(end)
    return found
