"""What is around the instructions of a body, besides their opcodes, that patterns may ask for: source lines, as
``.loc`` directives (compiled with ``-lineinfo``) give them, marked ranges, and what calls call. And the places between
instructions where code of probes may go.

Ranges are marked in the source, ``// neutrino begin NAME`` and ``// neutrino end NAME``, in inline assembly. Compilers
keep its text, its comments too, at its place in the flow of control. So the marks cost no instruction, and a mark is
where its comment stands. What nvcc links has no comments any more: there a mark is a name that nothing uses, in a scope
of its own, ``{ .reg .b32 neutrino_begin_NAME; }``, as ``neutrino_mark.h`` writes it. An instruction lies in a range if
on all ways from the entry to it the last mark of that name is the one that begins the range.
"""

from __future__ import annotations

import fnmatch
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from typing import NamedTuple

from neutrino.lazy import lazy
from neutrino.probing.model import Pattern, SourceLines, Subject
from neutrino.ptx.analysis.flow_graph import Edge, FlowGraph, Loops, branch_labels
from neutrino.ptx.isa.opcodes import Flow
from neutrino.ptx.text.body import Body, Label
from neutrino.ptx.text.module import NOT_CODE, Module

_MARK = re.compile(
    r"(?://|/\*)[ \t]*neutrino[ \t]+(?P<side>begin|end)[ \t]+(?P<name>[\w.-]+)[ \t\r]*(?:\*/|$)"
    r"|\{\s*\.reg\s+\.b32\s+neutrino_(?P<code_side>begin|end)_(?P<code_name>\w+)\s*;\s*\}",
    re.ASCII | re.MULTILINE,
)
_CLOSED, _OPEN, _BOTH = 1, 2, 3
"""States of a range at a place, as bits; 0 where no thread comes to it."""


class Mark(NamedTuple):
    """A mark. position: of it in the module's text. text: the comment, also of one that is a name in the text."""

    position: int
    name: str
    is_begin: bool
    text: str


class Ranges:
    """The marked ranges of one body. marks: in text order."""

    def __init__(self, module: Module, body: Body) -> None:
        """Find the marks of ranges in a body: comments, or names, that say where a range begins or ends."""
        self._module = module
        self._body = body
        self.marks = _find_marks(module.text, body.start, body.end)
        self.names = sorted({mark.name for mark in self.marks})
        # By name, the results of `_states`.
        self._states_of: dict[str, tuple[list[int], list[int], str | None]] = {}

    def is_open(self, name: str, position: int) -> bool:
        """Whether the code at a position of the module's text lies in a marked range with a name, by all ways to it."""
        places, states, _ = self._states(name)
        at = bisect_right(places, position) - 1
        return at >= 0 and states[at] == _OPEN

    def fault(self, name: str) -> str | None:
        """What is wrong with the marks of a range, None if they are well-formed.

        They are where each mark begins the range where it is closed, or ends it where it is open, on every way to it;
        all ways to each place agree; and no thread leaves the body within the range.
        """
        return self._states(name)[2]

    def _states(self, name: str) -> tuple[list[int], list[int], str | None]:
        """Return where a marked range may begin or end, in text order, its state (open, closed) from each on, and the
        fault."""
        if name not in self._states_of:
            self._states_of[name] = self._follow(name)
        return self._states_of[name]

    @lazy
    def _cuts(self) -> list[int]:
        """The positions that divide the text into stretches without branches into or out of their middle, ascending.

        Finer than basic blocks: a mark may stand between two labels, or between a branch and a label.
        """
        body = self._body
        labels = (label.start for found in self._branches.values() for label in found)
        return sorted({body.start, *labels, *self._ending})

    @lazy
    def _branches(self) -> dict[int, list[Label]]:
        """By the index of each branch, the labels that it may go to."""
        return branch_labels(self._body)

    @lazy
    def _ending(self) -> dict[int, int]:
        """By the position after it, the index of each instruction that ends a basic block."""
        body = self._body
        decoded = ((index, body.mnemonics[index]) for index in body.controls)
        return {body.ends[index]: index for index, one in decoded if one is not None and one.ends_block}

    def _successors(self, number: int) -> Iterator[int]:
        """The numbers of the stretches of text that may be executed right after one; their count stands for the end of
        the thread."""
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
        """The number of the stretch of text (straight-line code, see ``_cuts``) that a position is in."""
        return bisect_right(self._cuts, position) - 1

    def _follow(self, name: str) -> tuple[list[int], list[int], str | None]:
        """Find where a marked range is open, by data flow over all ways through the body.

        Returns the places where it may begin or end, in text order, its state (open, closed) from each on, and the
        fault.
        """
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
        """Yield messages about what is wrong with a mark, a comment that begins or ends a range.

        state: whether the range is open or closed right before it, or both on different ways.
        """
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
        """Return a message about a fault in a body, with the line of the text that its position is in."""
        # A stretch begins right after the statement before it: what is meant is what comes next.
        text = self._module.text
        while position < self._body.end and text[position].isspace():
            position += 1
        return f"line {self._module.line(position)}: {what}"


def _find_marks(text: str, start: int, end: int) -> list[Mark]:
    """Return the marks of ranges in a text from start to end: comments such as ``// neutrino begin NAME``."""
    if text.find("neutrino", start, end) < 0:
        return []
    found = list(_MARK.finditer(text, start, end))
    # What looks like a mark may be part of a string or of a longer comment.
    others = [match.span() for match in NOT_CODE.finditer(text, start, end)] if found else []
    begins = {first for first, _ in others}
    marks = []
    for match in found:
        if match["name"] is not None and match.start() in begins:
            marks.append(Mark(match.start(), match["name"], match["side"] == "begin", match[0].strip()))
        elif match["code_name"] is not None and not _is_within(match.start(), others):
            side, name = match["code_side"], match["code_name"]
            marks.append(Mark(match.start(), name, side == "begin", f"// neutrino {side} {name}"))
    return marks


def _is_within(position: int, stretches: list[tuple[int, int]]) -> bool:
    """Whether a position is in one of the stretches, which are in order, from begin to end."""
    at = bisect_right(stretches, position, key=lambda stretch: stretch[0]) - 1
    return at >= 0 and position < stretches[at][1]


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
        """Prepare to list the basic blocks, loop heads and back edges of a function body."""
        self._body = body
        self._graph = FlowGraph(body)
        self._loops = Loops(body, self._graph)
        # By the index of the statement that a block begins with, the first of its labels that branches name.
        self._labels: dict[int, Label] = {}
        for label in (label for found in self._graph.branches.values() for label in found):
            first = self._labels.setdefault(label.before, label)
            self._labels[label.before] = min(first, label, key=lambda one: one.start)

    def all(self) -> Iterator[Place]:
        """Yield the basic blocks, loop heads and back edges, those first at which code can be inserted."""
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
        """The place at the beginning of a block: after its labels, before its first instruction or the call that this
        is part of."""
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
        """The place on a way back to the head of a loop: before the branch, under its predicate, or where threads fall
        through."""
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


# Its groups: file, line and column, then those of the call that the line was inlined at.
_LOC = re.compile(
    r"\.loc[ \t]+(\d+)[ \t]+(\d+)(?:[ \t]+(\d+))?"
    r"(?:\s*,\s*function_name\s+[\w$]+(?:\s*\+\s*\d+)?\s*,\s*inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?",
    re.ASCII,
)
_MOST_CALLERS = 32
"""Inlined calls that are followed outwards at most; a text may claim that a line was inlined into itself."""


@dataclass(frozen=True)
class SourcePlace:
    """A line of a source file. callers: where its function was inlined, as (file, line), from the inside out."""

    file: str
    line: int
    callers: tuple[tuple[str, int], ...] = ()

    def is_in(self, lines: SourceLines) -> bool:
        """Whether the line itself is one of these; those that it was inlined into do not count."""
        return lines.first <= self.line <= lines.last and is_file(self.file, lines.file)

    def __str__(self) -> str:
        """``file.cu:42, inlined at main.cu:7``, without folders."""
        places = [(self.file, self.line), *self.callers]
        return ", inlined at ".join(f"{file.rpartition('/')[2]}:{line}" for file, line in places)


def is_file(path: str, name: str) -> bool:
    """Whether a path is ``name`` or ends in ``/name``."""
    return path == name or path.endswith("/" + name.lstrip("/"))


@dataclass(frozen=True)
class _Location:
    """One ``.loc``. place: number of its file, line, column. inlined_at: the place of the call that it was inlined at,
    None if it was not inlined."""

    place: tuple[int, int, int]
    inlined_at: tuple[int, int, int] | None


class Locations:
    """The source lines of a body's instructions, as its ``.loc`` directives (compiled with ``-lineinfo``) give them.

    start, end: of the body in the module's text. The directives are read when first asked for. False if there are none.
    """

    def __init__(self, module: Module, start: int, end: int) -> None:
        """Prepare to read the ``.loc`` directives from start to end of a module's text."""
        self._module = module
        self._start = start
        self._end = end
        # The results of `_place`, by the directive's index among those of the body.
        self._places: dict[int, SourcePlace | None] = {}

    def __bool__(self) -> bool:
        """Whether the text has line information for this body."""
        return bool(self._directives)

    @lazy
    def _directives(self) -> list[re.Match[str]]:
        """The ``.loc`` directives of the body, in text order."""
        return _find_locations(self._module.text, self._start, self._end)

    @lazy
    def _starts(self) -> list[int]:
        """The positions of the directives, ascending."""
        return [match.start() for match in self._directives]

    def place(self, position: int) -> SourcePlace | None:
        """The source line of the instruction at a position of the module's text, None where the text does not say."""
        # A directive holds for all instructions up to the next one, so the last one before the position counts; -1
        # where none is.
        index = bisect_right(self._starts, position) - 1
        if index not in self._places:
            self._places[index] = self._place(index) if index >= 0 else None
        return self._places[index]

    def _place(self, index: int) -> SourcePlace | None:
        """The source line that the index-th directive gives, with the lines that it was inlined at."""
        location = self._location(index)
        file, line, _ = location.place
        if not line:
            return None  # line 0: no line of the source (DWARF, 6.2.2)
        callers: list[tuple[str, int]] = []
        while location.inlined_at is not None and len(callers) < _MOST_CALLERS:
            caller_file, caller_line, _ = location.inlined_at
            callers.append((self._file(caller_file), caller_line))
            # The call may itself be in inlined code. Where that was inlined is in the last directive before this one
            # that gives the call's place as its own.
            candidates = self._by_place.get(location.inlined_at, ())
            earlier = bisect_right(candidates, index - 1) - 1
            if earlier < 0:
                break
            index = candidates[earlier]
            location = self._location(index)
        return SourcePlace(self._file(file), line, tuple(callers))

    @lazy
    def _by_place(self) -> dict[tuple[int, int, int], list[int]]:
        """By place (file number, line, column), which ``.loc`` directives give it, by their numbers in text order."""
        numbers: dict[tuple[int, int, int], list[int]] = {}
        for index in range(len(self._directives)):
            numbers.setdefault(self._location(index).place, []).append(index)
        return numbers

    def _location(self, index: int) -> _Location:
        """Decode the index-th directive. Its column may be missing, and all three numbers of ``inlined_at``."""
        file, line, column, *inlined_at = (int(group or 0) for group in self._directives[index].groups())
        return _Location((file, line, column), tuple(inlined_at) if any(inlined_at) else None)  # type: ignore[arg-type]

    def _file(self, number: int) -> str:
        """The path of a source file by its number in the module."""
        return self._module.source_files.get(number, f"file {number}")


def _find_locations(text: str, start: int, end: int) -> list[re.Match[str]]:
    """The ``.loc`` directives of a text from start to end, without those in comments and strings, in text order.

    text: as written, since in a module's ``code`` the directives are blanked, too.
    """
    if text.find(".loc", start, end) < 0:
        return []
    matches = list(_LOC.finditer(text, start, end))
    not_code = [match.span() for match in NOT_CODE.finditer(text, start, end)]
    if not not_code:
        return matches
    starts = [span_start for span_start, _ in not_code]

    def is_code(position: int) -> bool:
        """Whether a position is not in a comment or string: by the last one that begins at or before it."""
        # The last comment or string that begins at the position or before, -1 without one.
        index = bisect_right(starts, position) - 1
        return index < 0 or position >= not_code[index][1]

    return [match for match in matches if is_code(match.start())]


def asks_for_lines(pattern: Pattern) -> bool:
    """Whether a pattern names source lines that instructions must be on, or must not."""
    return bool(pattern.lines or pattern.not_lines)


def asks_for_surroundings(pattern: Pattern) -> bool:
    """Whether more than opcode and guard decides if a pattern matches an instruction."""
    named = pattern.callees or pattern.not_callees or pattern.ranges or pattern.not_ranges
    return asks_for_lines(pattern) or bool(named)


class Surroundings:
    """What is around the instructions and places of one body: source lines, ranges, and what calls call.

    is_called: returns whether a function, by its mangled name, has a name as written in a tracepoint.
    """

    def __init__(
        self, module: Module, body: Body, places: Locations, is_called: Callable[[str, str], bool]
    ) -> None:
        """Prepare to check conditions on source lines, ranges and callees at places of one body.

        places: the source lines of its instructions. is_called: see the class.
        """
        self._body = body
        self.places = places
        self._is_called = is_called
        self.ranges = Ranges(module, body)

    @lazy
    def _callees(self) -> dict[int, str]:
        """By the index of each direct call in the body, the mangled name of the function."""
        body = self._body
        called = ((body.index_at(start), name, body.declaration(name, start)) for name, start, _ in body.called)
        return {index: name for index, name, declared in called if declared is None or declared.space != "reg"}

    def meets(self, pattern: Pattern, position: int, at: int, index: int | None) -> bool:
        """Whether a pattern's conditions on source lines, callees and marked ranges hold at an instruction or place.

        position: where code would go. at: of the instruction whose line counts. index: of the instruction in the body,
        None for a place.
        """
        if asks_for_lines(pattern):
            place = self.places.place(at)
            # Code without a known line is on none.
            if pattern.lines is not None and (place is None or not place.is_in(pattern.lines)):
                return False
            if place is not None and any(place.is_in(lines) for lines in pattern.not_lines):
                return False
        if pattern.callees or pattern.not_callees:
            callee = self._callees.get(index) if index is not None else None
            if not all(callee is not None and self._is_called(callee, name) for name in pattern.callees):
                return False
            if callee is not None and any(self._is_called(callee, name) for name in pattern.not_callees):
                return False
        # The marks of a range as a tracepoint are found otherwise.
        if pattern.subject is not Subject.RANGE and not all(self._is_within(name, position) for name in pattern.ranges):
            return False
        return not any(self._is_within(name, position) for name in pattern.not_ranges)

    def _is_within(self, name: str, position: int) -> bool:
        """Whether a position lies within a range with a name, which may be a glob."""
        return any(self.ranges.is_open(known, position) for known in fnmatch.filter(self.ranges.names, name))


class CallSequences:
    """Finds the call that an instruction belongs to: with its arguments and results it counts as one instruction."""

    def __init__(self, body: Body) -> None:
        """Find the calls of a body."""
        self._body = body
        # Positions of the call instructions in the module's text, ascending.
        self._calls = [body.statement(index).position for index in body.calls]

    def call_position(self, at: int) -> int:
        """The position of the call instruction that an instruction belongs to as a move of an argument or result; else
        its own.

        at: the instruction's position in the module's text. See ``Body.call_sequences``.
        """
        # (start, end) of a call with the stores of its arguments and the loads of its results.
        sequence = self._body.call_sequence(at)
        if sequence is None:
            return at
        sequence_start, _ = sequence
        # A sequence has one call, which is the first at its start or after.
        return next(call for call in self._calls if call >= sequence_start)
