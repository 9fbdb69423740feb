"""Places between the instructions of a body where code of probes may go: the beginnings of basic blocks, the heads and
back edges of loops, and the marks of ranges."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import NamedTuple

from neutrino.probing.model import Subject
from neutrino.ptx.analysis.flow_graph import Edge, FlowGraph, Loops
from neutrino.ptx.text.body import Body, Label

_BY_TABLE = "a branch by a table, which may go elsewhere, too"
_SEVERAL_ENTRIES = "the loop has several entries (it is irreducible), so it has no head and no back edge"


class Place(NamedTuple):
    """A place in the flow graph. subjects: what it is.

    position: where code goes, in the module's text. at: the position that it is shown by, as of an instruction. text:
    how it is shown. guard: the predicate as written under which threads pass it, None if all do. before: the index of
    the statement in the body that it is right before, None elsewhere. obstacle: why no code can go there, "" if it can.
    """

    subjects: Set[Subject]
    position: int
    at: int
    text: str
    guard: str | None = None
    before: int | None = None
    obstacle: str = ""


def flow_places(body: Body) -> list[Place]:
    """The basic blocks, loop heads and back edges of a body, in text order."""
    # Where a block is a branch back alone, its beginning is before that.
    return sorted(_FlowPlaces(body).all(), key=lambda place: (place.position, Subject.BACK_EDGE in place.subjects))


class _FlowPlaces:
    """Lists the places in the flow graph of a body."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._graph = FlowGraph(body)
        self._loops = Loops(body, self._graph)
        # By the index of the statement that a block begins with, the first of its labels that branches name.
        self._labels: dict[int, Label] = {}
        for label in (label for found in self._graph.branches.values() for label in found):
            first = self._labels.setdefault(label.before, label)
            self._labels[label.before] = min(first, label, key=lambda one: one.start)

    def all(self) -> Iterator[Place]:
        """Yield the places, those first that code can go to."""
        heads = set(self._loops.heads)
        for block in range(len(self._graph.starts)):
            # Nothing runs in a block without instructions, such as one of directives.
            subjects = {Subject.BLOCK} if self._graph.first_instruction(block) is not None else set()
            if block in heads:
                subjects.add(Subject.LOOP_HEAD)
            if subjects:
                yield self._beginning(block, subjects)
        for edge in self._loops.back_edges:
            yield self._back_edge(edge, _BY_TABLE if edge.by_table else "")
        for block in sorted({edge.end for edge in self._loops.irreducible}):
            yield self._beginning(block, {Subject.LOOP_HEAD}, _SEVERAL_ENTRIES)
        for edge in self._loops.irreducible:
            yield self._back_edge(edge, _SEVERAL_ENTRIES)

    def _beginning(self, block: int, subjects: Set[Subject], obstacle: str = "") -> Place:
        """The beginning of a block: after its labels, before its first instruction or the call that this is part of."""
        body, start = self._body, self._graph.starts[block]
        index = self._graph.first_instruction(block)
        label = f"{self._labels[start].name}:" if start in self._labels else ""
        if index is None:
            position = body.ends[self._graph.starts[block + 1] - 1]
            return Place(subjects, position, position, label, obstacle=obstacle)
        statement = body.statement(index)
        sequence = body.call_sequence(statement.position)
        text = " ".join([label, *statement.text.split()]).strip()
        if sequence is not None:
            return Place(subjects, sequence[0], statement.position, text, obstacle=obstacle)
        return Place(subjects, statement.start, statement.position, text, None, index, obstacle)

    def _back_edge(self, edge: Edge, obstacle: str) -> Place:
        """A way back to the head of a loop: before the branch, under its predicate, or where threads fall through."""
        body, start = self._body, self._graph.starts[edge.end]
        if edge.branch is not None:
            statement = body.statement(edge.branch)
            text = " ".join(statement.text.split())
            at, subjects = statement.position, {Subject.BACK_EDGE}
            return Place(subjects, statement.start, at, text, statement.guard, edge.branch, obstacle)
        # What falls through comes before the labels of the block; what branches there does not.
        position = min(label.start for label in body.labels if label.before == start)
        text = f"falls through to {self._labels[start].name}"
        return Place({Subject.BACK_EDGE}, position, position, text, obstacle=obstacle)
