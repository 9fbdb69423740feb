"""What is around the instructions of a body, besides their opcodes, that patterns may ask for: source lines, as
``.loc`` directives (compiled with ``-lineinfo``) give them, marked ranges, and what calls call."""

from __future__ import annotations

import fnmatch
import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from neutrino.probing.model import Pattern, SourceLines, Subject
from neutrino.ptx.analysis.ranges import Ranges
from neutrino.ptx.text.body import Body
from neutrino.ptx.text.module import NOT_CODE, Module

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
        self._module = module
        self._start = start
        self._end = end
        # The results of `_place`, by the directive's index among those of the body.
        self._places: dict[int, SourcePlace | None] = {}

    def __bool__(self) -> bool:
        return bool(self._directives)

    @cached_property
    def _directives(self) -> list[re.Match[str]]:
        return _find_locations(self._module.text, self._start, self._end)

    @cached_property
    def _starts(self) -> list[int]:
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

    @cached_property
    def _by_place(self) -> dict[tuple[int, int, int], list[int]]:
        """The numbers of the directives that give each place, ascending."""
        numbers: dict[tuple[int, int, int], list[int]] = {}
        for index in range(len(self._directives)):
            numbers.setdefault(self._location(index).place, []).append(index)
        return numbers

    def _location(self, index: int) -> _Location:
        """Decode the index-th directive. Its column may be missing, and all three numbers of ``inlined_at``."""
        file, line, column, *inlined_at = (int(group or 0) for group in self._directives[index].groups())
        return _Location((file, line, column), tuple(inlined_at) if any(inlined_at) else None)  # type: ignore[arg-type]

    def _file(self, number: int) -> str:
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
        self._body = body
        self.places = places
        self._is_called = is_called
        self.ranges = Ranges(module, body)

    @cached_property
    def _callees(self) -> dict[int, str]:
        """By the index of each direct call in the body, the mangled name of the function."""
        body = self._body
        called = ((body.index_at(start), name, body.declaration(name, start)) for name, start, _ in body.called)
        return {index: name for index, name, declared in called if declared is None or declared.space != "reg"}

    def meets(self, pattern: Pattern, position: int, at: int, index: int | None) -> bool:
        """Whether a pattern's conditions hold. position: where code would go; at: of the instruction whose line counts;
        index: of the instruction in the body, None for a place."""
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
        return any(self.ranges.is_open(known, position) for known in fnmatch.filter(self.ranges.names, name))
