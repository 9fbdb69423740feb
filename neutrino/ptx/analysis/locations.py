"""Which line of which source file each instruction of a body is from, by ``.loc`` and ``.file``.

A ``.loc`` holds for the instructions behind it up to the next one. Of inlined code it names the line of the inlined
function and where that was called; the calling line's own ``.loc`` stands further up (PTX ISA, "Debugging
Directives: .loc").
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

from neutrino.probing.model import SourceLines
from neutrino.ptx.text.module import Module
from neutrino.ptx.text.source import NOT_CODE

_LOC = re.compile(
    r"\.loc[ \t]+(\d+)[ \t]+(\d+)(?:[ \t]+(\d+))?"
    r"(?:\s*,\s*function_name\s+[\w$]+(?:\s*\+\s*\d+)?\s*,\s*inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?",
    re.ASCII,
)
_DEEPEST = 32
"""Calls that are followed outwards; a text may claim that a line was inlined into itself."""


@dataclass(frozen=True)
class SourcePlace:
    """A line of a source file, and where the function that it is in was inlined, from the inside out."""

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
    """Whether a path ends in name, at a ``/``."""
    return path == name or path.endswith("/" + name.lstrip("/"))


@dataclass(frozen=True)
class _Location:
    """One ``.loc``: file, line and column, and of which place it was inlined into."""

    at: tuple[int, int, int]
    inlined: tuple[int, int, int] | None


class Locations:
    """The line information of a body: of a module's text from start to end. Read when first asked for."""

    def __init__(self, module: Module, start: int, end: int) -> None:
        self._module = module
        self._start = start
        self._end = end
        self._places: dict[int, SourcePlace | None] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    @cached_property
    def _found(self) -> list[re.Match[str]]:
        return _directives(self._module.text, self._start, self._end)

    @cached_property
    def _starts(self) -> list[int]:
        return [match.start() for match in self._found]

    def place(self, position: int) -> SourcePlace | None:
        """What the instruction at a position of the text is from, None where the text does not say."""
        index = bisect_right(self._starts, position) - 1
        if index not in self._places:
            self._places[index] = self._place(index) if index >= 0 else None
        return self._places[index]

    def _place(self, index: int) -> SourcePlace | None:
        location = self._location(index)
        file, line, _ = location.at
        if not line:
            return None  # line 0: no line of the source (DWARF, 6.2.2)
        callers: list[tuple[str, int]] = []
        while location.inlined is not None and len(callers) < _DEEPEST:
            callers.append((self._file(location.inlined[0]), location.inlined[1]))
            before = self._inlining.get(location.inlined, ())
            index = bisect_right(before, index - 1) - 1
            if index < 0:
                break
            index = before[index]
            location = self._location(index)
        return SourcePlace(self._file(file), line, tuple(callers))

    @cached_property
    def _inlining(self) -> dict[tuple[int, int, int], list[int]]:
        # By their place, the numbers of the directives that inlined ones may refer to.
        found: dict[tuple[int, int, int], list[int]] = {}
        for index in range(len(self._found)):
            found.setdefault(self._location(index).at, []).append(index)
        return found

    def _location(self, index: int) -> _Location:
        file, line, column, *inlined = (int(group or 0) for group in self._found[index].groups())
        return _Location((file, line, column), tuple(inlined) if any(inlined) else None)  # type: ignore[arg-type]

    def _file(self, number: int) -> str:
        return self._module.source_files.get(number, f"file {number}")


def _directives(text: str, start: int, end: int) -> list[re.Match[str]]:
    """Every ``.loc`` of a stretch of text, those in comments and strings left out."""
    if text.find(".loc", start, end) < 0:
        return []
    found = list(_LOC.finditer(text, start, end))
    hidden = [match.span() for match in NOT_CODE.finditer(text, start, end)]
    if not hidden:
        return found
    starts = [opening for opening, _ in hidden]

    def is_code(position: int) -> bool:
        index = bisect_right(starts, position) - 1
        return index < 0 or position >= hidden[index][1]

    return [match for match in found if is_code(match.start())]
