"""The source lines of a body's instructions, as its ``.loc`` directives (compiled with ``-lineinfo``) give them."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

from neutrino.probing.model import SourceLines
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
