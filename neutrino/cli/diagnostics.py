"""Faults in probe files, printed as compilers do: place and message, the line with the word marked, a hint."""

from __future__ import annotations

import contextlib
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

from neutrino.cli.streams import Painter, has_colours, visible, width_of

if TYPE_CHECKING:
    from neutrino.errors import Diagnostic

_WORD = re.compile(r"[%@!.+-]?[\w$][\w$.:]*|\"[^\"]*\"|'[^']*'")
_TAB = "    "
_WIDTH = 160
"""Columns of a source line that are shown without a terminal, since lines may be of any length."""
_MOST = 100
"""Faults and warnings that are printed at most."""
_CONTEXT = 24
"""Columns before the fault that are shown of a line that is too long."""


def print_diagnostics(diagnostics: Iterable[Diagnostic], stream: TextIO | None = None) -> None:
    """Print faults and warnings, in colours on a terminal. stream: stderr by default; errors of writing are ignored."""
    diagnostics = list(diagnostics)
    shown = _first(diagnostics)
    stream = sys.stderr if stream is None else stream
    # A closed stderr is None, which print() would take for stdout.
    if stream is None:
        return
    with contextlib.suppress(OSError):
        for line in lines(shown, colours=has_colours(stream), width=width_of(stream, _WIDTH)):
            print(line, file=stream)
        if len(shown) < len(diagnostics):
            more = len(diagnostics) - len(shown)
            print(f"… {more:,} more (neutrino-probe check --json lists all)", file=stream)


def _first(diagnostics: list[Diagnostic]) -> list[Diagnostic]:
    """Those that are printed, in their order; if there are too many, warnings are dropped first."""
    if len(diagnostics) <= _MOST:
        return diagnostics
    ranked = sorted(range(len(diagnostics)), key=lambda index: diagnostics[index].severity != "error")
    return [diagnostics[index] for index in sorted(ranked[:_MOST])]


def lines(diagnostics: Iterable[Diagnostic], *, colours: bool = False, width: int = _WIDTH) -> Iterator[str]:
    """What is printed of each, line by line. width: columns that source lines are cut to."""
    for diagnostic in diagnostics:
        yield from _one(diagnostic, Painter(colours), width)


def document(diagnostic: Diagnostic) -> dict[str, Any]:
    """The fault's object in JSON documents. Line 0 means the file as a whole."""
    return {
        "file": diagnostic.file,
        "line": diagnostic.line,
        "column": diagnostic.column,
        "severity": diagnostic.severity,
        "code": diagnostic.code,
        "message": diagnostic.message,
        "hint": diagnostic.hint,
        "source": diagnostic.source,
    }


def _one(diagnostic: Diagnostic, painter: Painter, width: int) -> Iterator[str]:
    place = f"{diagnostic.file}:{diagnostic.line}:{diagnostic.column}:" if diagnostic.line else f"{diagnostic.file}:"
    severity = painter.paint(f"{diagnostic.severity}:", "red" if diagnostic.severity == "error" else "magenta")
    code = f" [{diagnostic.code}]" if diagnostic.code else ""
    place = painter.paint(visible(place), "bold")
    yield f"{place} {severity} {visible(diagnostic.message)}{code}"
    if diagnostic.line and diagnostic.source.strip():
        gutter = f"{diagnostic.line:5d} | "
        text, marks = _marked(diagnostic.source, diagnostic.column - 1, max(width - len(gutter), 2 * _CONTEXT))
        yield f"{gutter}{text}".rstrip()
        indent = " " * (len(gutter) - 2)
        yield f"{indent}| {' ' * (len(marks) - len(marks.lstrip()))}{painter.paint(marks.lstrip(), 'green')}"
    if diagnostic.hint:
        yield f"  hint: {visible(diagnostic.hint)}"


def _marked(source: str, position: int, width: int) -> tuple[str, str]:
    """The line as it is shown, and the marks under the word at a position; both in at most width columns."""
    position = max(0, min(position, len(source)))
    word = _WORD.match(source, position)
    end = word.end() if word else position + 1
    first = 0
    # A long line is shown from a little before the fault on, with its indentation gone.
    if position > width or _columns(source[: min(end + 8, position + width)]) > width:
        first = max(0, position - _CONTEXT)
    pieces, columns = ["…"] if first else [], 1 if first else 0
    before = columns
    marked = 0
    for index in range(first, min(len(source), first + 4 * width)):
        shown = _shown(source[index])
        size = _columns(source[index])
        if columns + size > width - 1 and index + 1 < len(source):
            pieces.append("…")
            break
        pieces.append(shown)
        columns += size
        if index < position:
            before = columns
        elif index < end:
            marked += size
    return "".join(pieces), " " * before + "^" + "~" * (marked - 1)


def _shown(character: str) -> str:
    return _TAB if character == "\t" else visible(character)


def _columns(text: str) -> int:
    """Columns that a terminal gives to the text as it is shown."""
    return sum(_columns_of(character) for shown in map(_shown, text) for character in shown)


def _columns_of(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
