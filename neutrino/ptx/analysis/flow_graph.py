"""The control-flow graph of a body: its basic blocks, which come after which, its loops, and where threads leave it.

A block begins at a label that some branch goes to, or after an instruction that ends a block (``opcodes.Flow``). A call
ends none: the functions that are called come back, or end the thread.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from neutrino.lazy import lazy
from neutrino.ptx.isa.instruction import REGISTER
from neutrino.ptx.isa.opcodes import Flow
from neutrino.ptx.text.body import Body, Label


def branch_labels(body: Body) -> dict[int, list[Label]]:
    """Where the branches of a body may go: by the index of each, the labels, in text order.

    A branch by a table (``brx.idx``) goes to the labels of its ``.branchtargets``. A name may have several labels, each
    in its braces, as in the waits for barriers that libraries write: the innermost around the branch counts. All labels
    count for a branch whose labels cannot be found.
    """
    named = _Labels(body)
    targets: dict[int, list[Label]] = {}
    for index in body.controls:
        decoded = body.mnemonics[index]
        if decoded is None or decoded.flow is not Flow.JUMP:
            continue
        # "@%p bra.uni LABEL", without the semicolon: the label, or that of the table, is the last word.
        name = body.code[body.ends[index - 1] if index else body.start : body.ends[index] - 1].split()[-1]
        position = body.ends[index]
        names = [name] if decoded.word == "bra" else _table(body, named.visible(name, position))
        found = [label for name in names for label in named.visible(name, position)]
        targets[index] = sorted(found, key=lambda label: label.start) if found else body.labels
    return targets


class _Labels:
    """The labels of a body by their names, and those of names that have several also by their scopes."""

    def __init__(self, body: Body) -> None:
        """Index the labels of a body (function text) by name, and those with the same name by their scope."""
        self._body = body
        self._by_name: dict[str, list[Label]] = {}
        for label in body.labels:
            self._by_name.setdefault(label.name, []).append(label)
        self._by_scope: dict[tuple[str, tuple[int, int]], list[Label]] = {}
        for labels in self._by_name.values():
            for label in labels if len(labels) > 1 else ():
                self._by_scope.setdefault((label.name, body.enclosing(label.start)), []).append(label)

    def visible(self, name: str, position: int) -> Sequence[Label]:
        """The labels that a name means at a position, by the scopes (braces) around it; all of that name if none is in
        scope."""
        labels = self._by_name.get(name, [])
        if len(labels) < 2:
            return labels
        scopes = self._body.scopes_around(position)
        return next((found for scope in scopes if (found := self._by_scope.get((name, scope)))), labels)


def _table(body: Body, labels: Sequence[Label]) -> list[str]:
    """The names of labels that an indirect branch (``brx.idx``) may go to: those of the ``.branchtargets`` directive.

    labels: those of the table, one of which stands before the directive.
    """
    for label in labels:
        directive, _, targets = body.statement(label.before).text.partition("branchtargets")
        if directive == ".":
            return [name.strip() for name in targets.split(",")]
    return []


class FlowGraph:
    """The basic blocks of one body, numbered in text order from 0, where threads enter.

    starts: the index of the statement that each block begins with. successors: by block, the sorted numbers of those
    that may come next. One more block, the last and empty, is for threads that have left the body. branches: as
    ``branch_labels`` gives them. Callers make sure that the functions that the body calls end no thread: such a call
    would be one more way to leave it.
    """

    def __init__(self, body: Body) -> None:
        """Divide a body (function text) into basic blocks, and find which may come after which."""
        self._body = body
        mnemonics = body.mnemonics
        self.branches = labels = branch_labels(body)
        targets = {label.before for found in labels.values() for label in found}
        ending = [index for index in body.controls if (decoded := mnemonics[index]) is not None and decoded.ends_block]
        following = (index + 1 for index in ending)
        self.starts = sorted({0, *following, *targets})
        numbers = {index: block for block, index in enumerate(self.starts)}
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
                after.update(numbers[label.before] for label in labels[index])
            self.successors[block] = sorted(after)

    @property
    def straight(self) -> int:
        """How many of the body's statements, from the first on, each thread executes exactly once, all threads alike.

        They end where the first basic block does, or with the first call, which may end threads or part them.
        """
        if not all(map((0).__ne__, (after for afters in self.successors for after in afters))):
            return 0
        return min([*self.starts[1:2], *self._body.calls, len(self._body)])

    def block(self, index: int) -> int:
        """The number of the block that a statement is in, by the statement's index in the body."""
        return bisect_right(self.starts, index) - 1

    @lazy
    def postorder(self) -> list[int]:
        """The reachable blocks in postorder: each after those that a depth-first search reaches from it."""
        return _postorder(self.successors)

    @lazy
    def acyclic(self) -> set[int]:
        """The reachable blocks that lie on no cycle, so that a thread executes them at most once."""
        return _acyclic(self.successors, self.postorder)

    @lazy
    def dominators(self) -> Mapping[int, int]:
        """The immediate dominator of each reachable block: the last other block that all ways to it lead through.

        The first block has itself.
        """
        return _dominators(self.successors, self.postorder)

    @lazy
    def dominators_of_end(self) -> set[int]:
        """The blocks on every way from the entry to where threads leave the body."""
        block, dominating = len(self.starts), set()
        while block in self.dominators and block:
            block = self.dominators[block]
            dominating.add(block)
        return dominating

    def last_instruction(self, block: int) -> int | None:
        """The index of the last instruction of a block in the body, None if it has none."""
        return self._first_instruction_of(reversed(self._statements(block)))

    def first_instruction(self, block: int) -> int | None:
        """The index of the first instruction of a block in the body, None if it has none."""
        return self._first_instruction_of(self._statements(block))

    def _statements(self, block: int) -> Sequence[int]:
        """The indices, in the body, of the statements of a block."""
        after = self.starts[block + 1] if block + 1 < len(self.starts) else len(self._body)
        return range(self.starts[block], after)

    def _first_instruction_of(self, indices: Iterable[int]) -> int | None:
        """The first of some statement indices that is an instruction's, not a directive's; None if none is."""
        return next((index for index in indices if self._body.mnemonics[index] is not None), None)

    def runs_once(self, index: int) -> bool:
        """Whether no thread executes a statement more than once in one call of the body. index: of the statement in the
        body."""
        return self.block(index) in self.acyclic

    def runs_always(self, index: int) -> bool:
        """Whether every thread that leaves the body has executed a statement exactly once. index: of the statement in
        the body."""
        block = self.block(index)
        return block in self.acyclic and block in self.dominators_of_end


_READS = frozenset({"atom", "ld", "ldmatrix", "ldu", "mbarrier", "multimem", "suld", "tex", "tld4", "wmma"})
"""Opcodes, by their first part, whose results may depend on what other threads write."""
_FIXED_SPACES = frozenset({"const", "param"})
"""State spaces that no thread of the launch writes."""


def may_wait(body: Body) -> bool:
    """Whether a kernel may have a loop in which a thread waits for threads of another block.

    That is, whether how long it stays in some loop depends on what it reads from memory. True also for what cannot be
    told: calls, and instructions that are unknown.
    """
    decoded = body.mnemonics
    if any(one.word == "call" or one.row is None for one in body.opcodes):
        return True
    graph = FlowGraph(body)
    # The instructions that decide whether a thread goes on in a loop.
    cyclic = {*graph.postorder} - graph.acyclic
    deciding = [index for index in body.controls if graph.block(index) in cyclic]
    if not deciding:
        return False
    # Which registers depend on which, in any order of execution.
    uses: dict[str, set[str]] = {}
    pending: list[str] = []
    for index, one in enumerate(decoded):
        instruction = body.statement(index).instruction if one is not None else None
        if one is None or instruction is None:
            continue
        written = instruction.written
        if one.word in _READS and one.state_space not in _FIXED_SPACES:
            pending += written
        for name in _registers((*instruction.sources, instruction.predicate or "")):
            uses.setdefault(name, set()).update(written)
    # The registers whose values depend on what was read.
    read: set[str] = set()
    while pending:
        name = pending.pop()
        if name not in read:
            read.add(name)
            pending += uses.get(name, ())
    for index in deciding:
        instruction = body.statement(index).instruction
        if instruction and not read.isdisjoint(_registers((*instruction.operands, instruction.predicate or ""))):
            return True
    return False


def _registers(operands: Iterable[str]) -> Iterator[str]:
    """Yield the names of all registers in some operands."""
    return (name for operand in operands for name in REGISTER.findall(operand))


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


def _dominators(graph: list[list[int]], order: list[int]) -> dict[int, int]:
    """The immediate dominator of each node that node 0 reaches; node 0 is its own.

    By the algorithm of Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm". graph: the successors of each
    node; order: its postorder.
    """
    number = {node: position for position, node in enumerate(order)}
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
    return dominator


class Edge(NamedTuple):
    """A way from one basic block into another. branch: the index of the branch in the body, None where threads fall
    through. by_table: the branch may go to other blocks, too (``brx.idx``)."""

    start: int
    end: int
    branch: int | None
    by_table: bool = False


class Loops:
    """The natural loops of a body. graph: its flow graph.

    heads: the blocks that back edges go to. back_edges: those whose end dominates their start, in text order.
    irreducible: edges that close a cycle with several entries: it has no head, and they are no back edges.
    """

    def __init__(self, body: Body, graph: FlowGraph) -> None:
        """Find the loops of a body. graph: its flow graph."""
        self._body = body
        self._graph = graph
        self.back_edges: list[Edge] = []
        self.irreducible: list[Edge] = []
        number = {block: position for position, block in enumerate(graph.postorder)}
        # The last block is for threads that have left the body.
        for start in sorted(number.keys() - {len(graph.starts)}):
            for edge in self._edges(start):
                # Each cycle has an edge that goes back in the postorder; others cannot go to a dominator.
                if edge.end in number and number[edge.end] >= number[start]:
                    (self.back_edges if self._dominates(edge.end, start) else self.irreducible).append(edge)
        self.heads = sorted({edge.end for edge in self.back_edges})

    def _edges(self, start: int) -> Iterator[Edge]:
        """The edges from a block to other blocks, without those out of the body."""
        body, graph = self._body, self._graph
        index = graph.last_instruction(start)
        decoded = body.mnemonics[index] if index is not None else None
        if index is not None and decoded is not None and decoded.flow is Flow.JUMP:
            by_table = decoded.word != "bra"
            for end in dict.fromkeys(graph.block(label.before) for label in graph.branches[index]):
                yield Edge(start, end, index, by_table)
        if decoded is None or not decoded.ends_block or index in body.guarded:
            yield Edge(start, start + 1, None)

    def _dominates(self, block: int, other: int) -> bool:
        """Whether every way from the function's entry to the block ``other`` leads through ``block``."""
        dominators = self._graph.dominators
        while other != block and dominators[other] != other:
            other = dominators[other]
        return other == block


class End(NamedTuple):
    """Where threads leave a body. at: the position before which code goes. guard: ``@!%p`` as written, None without.

    shown: the instruction in one line, ``}`` where threads fall off the body.
    """

    at: int
    guard: str | None
    shown: str

    @property
    def is_exit(self) -> bool:
        """Whether the thread itself ends here (``exit``), in a called function too, rather than return to a caller."""
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
    """Whether control may come to the closing brace of a body: not when its last instruction always leads elsewhere."""
    # What follows the last semicolon counts as a statement; it is empty but for braces and labels. A branch may lead to
    # such a label.
    remainder = len(body) - 1
    is_labelled = any(label.before == remainder for label in body.labels)
    if remainder == 0 or body.mnemonics[remainder] is not None or is_labelled:
        return True
    last = body.statement(remainder - 1)
    return last.guard is not None or last.mnemonic is None or not last.mnemonic.ends_block
