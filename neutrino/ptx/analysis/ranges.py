"""Ranges that are marked in the source: ``// neutrino begin NAME`` and ``// neutrino end NAME``, in inline assembly.

Compilers keep the text of inline assembly, its comments too, at its place in the flow of control. So the marks cost no
instruction, and a mark is where its comment stands. An instruction lies in a range if on all ways from the entry to it
the last mark of that name is the one that begins the range.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from neutrino.ptx.analysis.flow_graph import branch_labels
from neutrino.ptx.isa.opcodes import Flow
from neutrino.ptx.text.body import Body, Label
from neutrino.ptx.text.module import NOT_CODE, Module

_MARK = re.compile(
    r"(?://|/\*)[ \t]*neutrino[ \t]+(?P<side>begin|end)[ \t]+(?P<name>[\w.-]+)[ \t\r]*(?:\*/|$)",
    re.ASCII | re.MULTILINE,
)
_CLOSED, _OPEN, _BOTH = 1, 2, 3
"""States of a range at a place, as bits; 0 where no thread comes to it."""


class Mark(NamedTuple):
    """A mark. position: of its comment in the module's text. text: the comment."""

    position: int
    name: str
    is_begin: bool
    text: str


class Ranges:
    """The marked ranges of one body. marks: in text order."""

    def __init__(self, module: Module, body: Body) -> None:
        self._module = module
        self._body = body
        self.marks = _find_marks(module.text, body.start, body.end)
        self.names = sorted({mark.name for mark in self.marks})
        # By name, the results of `_states`.
        self._states_of: dict[str, tuple[list[int], list[int], str | None]] = {}

    def is_open(self, name: str, position: int) -> bool:
        """Whether the code at a position of the module's text lies in a range."""
        places, states, _ = self._states(name)
        at = bisect_right(places, position) - 1
        return at >= 0 and states[at] == _OPEN

    def fault(self, name: str) -> str | None:
        """What is wrong with the marks of a range, None if they are well-formed.

        They are where each begins or ends the range that is closed or open on every way to it, all ways to each place
        agree, and no thread leaves the body within the range.
        """
        return self._states(name)[2]

    def _states(self, name: str) -> tuple[list[int], list[int], str | None]:
        """The places where the state of a range may change, in text order, its state from each on, and the fault."""
        if name not in self._states_of:
            self._states_of[name] = self._follow(name)
        return self._states_of[name]

    @cached_property
    def _cuts(self) -> list[int]:
        """Where stretches of text begin that only their beginning leads into, and only their end out of.

        Finer than basic blocks: a mark may stand between two labels, or between a branch and a label.
        """
        body = self._body
        labels = (label.start for found in self._branches.values() for label in found)
        return sorted({body.start, *labels, *self._ending})

    @cached_property
    def _branches(self) -> dict[int, list[Label]]:
        return branch_labels(self._body)

    @cached_property
    def _ending(self) -> dict[int, int]:
        """By the position after it, the index of each instruction that ends a basic block."""
        body = self._body
        decoded = ((index, body.mnemonics[index]) for index in body.controls)
        return {body.ends[index]: index for index, one in decoded if one is not None and one.ends_block}

    def _successors(self, number: int) -> Iterator[int]:
        """The numbers of the stretches that may come after one; that of the last and one more where threads leave."""
        left = len(self._cuts)
        index = self._ending.get(self._cuts[number + 1] if number + 1 < left else -1)
        decoded = self._body.mnemonics[index] if index is not None else None
        if index is None or decoded is None or self._body.is_guarded(index):
            yield number + 1
        if index is not None and decoded is not None and decoded.flow is Flow.JUMP:
            yield from {self._stretch(label.start) for label in self._branches[index]}
        elif decoded is not None and decoded.flow is Flow.LEAVE:
            yield left

    def _stretch(self, position: int) -> int:
        return bisect_right(self._cuts, position) - 1

    def _follow(self, name: str) -> tuple[list[int], list[int], str | None]:
        """Follow the ways through the body; as ``_states``."""
        marks: dict[int, list[Mark]] = {}
        for mark in self.marks:
            if mark.name == name:
                marks.setdefault(self._stretch(mark.position), []).append(mark)
        left = len(self._cuts)
        entering = [_CLOSED, *([0] * left)]
        pending = [0]
        while pending:
            number = pending.pop()
            leaving = entering[number]
            if number in marks:
                leaving = _OPEN if marks[number][-1].is_begin else _CLOSED
            for successor in self._successors(number):
                if entering[successor] | leaving != entering[successor]:
                    entering[successor] |= leaving
                    if successor < left:
                        pending.append(successor)
        places: list[int] = []
        states: list[int] = []
        faults: list[str] = []
        for number, (cut, state) in enumerate(zip(self._cuts, entering, strict=False)):
            places.append(cut)
            states.append(state)
            if state == _BOTH:
                faults.append(self._described(cut, f"some ways to this place are in the range {name}, others are not"))
            for mark in marks.get(number, ()):
                faults += self._misplaced(mark, state)
                # Where no thread comes the range is neither open nor closed.
                state = state and (_OPEN if mark.is_begin else _CLOSED)
                places.append(mark.position)
                states.append(state)
            if state & _OPEN and left in self._successors(number):
                at = self._cuts[number + 1] - 1 if number + 1 < left else self._body.end - 1
                faults.append(self._described(at, f"threads leave the function within the range {name}"))
        return places, states, next(iter(faults), None)

    def _misplaced(self, mark: Mark, state: int) -> Iterator[str]:
        """What is wrong with a mark before which a range has a state."""
        body = self._body
        statement = body.statement(body.index_at(mark.position))
        if statement.start < mark.position or body.call_sequence(mark.position) is not None:
            what = f"a mark of the range {mark.name} stands within an instruction or a call"
            yield self._described(mark.position, what)
        if state == _OPEN and mark.is_begin:
            yield self._described(mark.position, f"the range {mark.name} begins, and has begun already")
        elif state == _CLOSED and not mark.is_begin:
            yield self._described(mark.position, f"the range {mark.name} ends, and has not begun")

    def _described(self, position: int, what: str) -> str:
        # A stretch begins right after the statement before it: what is meant is what comes next.
        text = self._module.text
        while position < self._body.end and text[position].isspace():
            position += 1
        return f"line {self._module.line(position)}: {what}"


def _find_marks(text: str, start: int, end: int) -> list[Mark]:
    """The marks in the comments of a text from start to end."""
    if text.find("neutrino", start, end) < 0:
        return []
    found = {match.start(): match for match in _MARK.finditer(text, start, end)}
    # What looks like a comment may be part of a string or of a longer comment.
    comments = (match.start() for match in NOT_CODE.finditer(text, start, end)) if found else ()
    return [
        Mark(position, match["name"], match["side"] == "begin", match[0].strip())
        for position in comments
        if (match := found.get(position)) is not None
    ]
