"""How often a thread comes by a place of a body, as far as its branches tell.

The text is cut into blocks at labels and behind branches and ends. A thread comes twice by what lies on a cycle alone;
and every thread that ends has come by the blocks that dominate the end.
"""

from __future__ import annotations

import re
from bisect import bisect_right

from neutrino.ptx.analysis.matching import instructions_named
from neutrino.ptx.text.body import Body

_LEAVES = ("bra", "brx", "ret", "exit", "trap")
_TARGET = re.compile(r"\s+([\w$%]+)\s*\Z", re.ASCII)


class Passes:
    """Of one body, whose called functions end no thread."""

    def __init__(self, body: Body) -> None:
        labels: dict[str, list[int]] = {}
        for name, start, _ in body.labels:
            labels.setdefault(name, []).append(start)
        leaving = list(instructions_named(_LEAVES).finditer(body.code, body.start, body.end))
        behind = [body.code.find(";", match.start("opcode")) + 1 for match in leaving]
        places = {place for found in labels.values() for place in found}
        self._starts = sorted({body.start, *behind, *places})
        count = len(self._starts)
        # Behind the last block comes the one where threads end.
        follow = [{block + 1} for block in range(count)]
        for match, end in zip(leaving, behind, strict=True):
            block = self._block(match.start("opcode"))
            if match["guard"] is None:
                follow[block].clear()
            word = match["opcode"].partition(".")[0]
            if word in {"ret", "exit"}:
                follow[block].add(count)
            elif word != "trap":
                target = _TARGET.match(body.code, match.end("opcode"), end - 1) if word == "bra" else None
                # Where a branch by a table goes is not looked up; a name may have several labels, each in its braces.
                found = labels.get(target[1], places) if target else places
                follow[block].update(self._block(place) for place in found)
        graph = [sorted(blocks) for blocks in [*follow, set()]]
        order = _postorder(graph)
        self._once = _acyclic(graph, order)
        self._always = _dominating(graph, order, count) & self._once

    def _block(self, position: int) -> int:
        return bisect_right(self._starts, position) - 1

    def once(self, position: int) -> bool:
        """No thread comes by there twice."""
        return self._block(position) in self._once

    def always(self, position: int) -> bool:
        """Every thread that ends has come by there, once."""
        return self._block(position) in self._always


def _postorder(graph: list[list[int]]) -> list[int]:
    """The nodes that node 0 reaches, each behind those that were found from it."""
    order: list[int] = []
    seen = {0}
    path = [(0, iter(graph[0]))]
    while path:
        node, rest = path[-1]
        new = next((other for other in rest if other not in seen), None)
        if new is None:
            order.append(node)
            path.pop()
        else:
            seen.add(new)
            path.append((new, iter(graph[new])))
    return order


def _acyclic(graph: list[list[int]], order: list[int]) -> set[int]:
    """The nodes of an order that lie on no cycle: Kosaraju's components of one node that does not follow itself."""
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
