"""Faults in probe files, printed as compilers do: place and message, the line with the word marked, a hint."""

from __future__ import annotations

import contextlib
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

from neutrino.cli.streams import Painter, escaped, has_colours, width_of

if TYPE_CHECKING:
    from neutrino.errors import Diagnostic

_WORD = re.compile(r"[%@!.+-]?[\w$][\w$.:]*|\"[^\"]*\"|'[^']*'")
_TAB = "    "
"""What a tab is printed as."""
_ROOM_AFTER_WORD = 8
"""Columns after a marked word that are shown too, if the line goes on."""
_WIDTH = 160
"""Columns of a source line that are shown without a terminal, since lines may be of any length."""
_MAX_PRINTED = 100
"""Faults and warnings that are printed."""
_CONTEXT = 24
"""Columns before the fault that are shown of a line that is too long."""


def print_diagnostics(diagnostics: Iterable[Diagnostic], stream: TextIO | None = None) -> None:
    """Print at most ``_MAX_PRINTED`` faults and warnings, in colours on a terminal.

    stream: where to, stderr by default; write errors are ignored.
    """
    diagnostics = list(diagnostics)
    shown = _limit(diagnostics)
    stream = sys.stderr if stream is None else stream
    # With stderr closed, sys.stderr is None, and print(file=None) would write to stdout.
    if stream is None:
        return
    with contextlib.suppress(OSError):
        for line in lines(shown, colours=has_colours(stream), width=width_of(stream, _WIDTH)):
            print(line, file=stream)
        if len(shown) < len(diagnostics):
            more = len(diagnostics) - len(shown)
            print(f"… {more:,} more (neutrino-probe check --json lists all)", file=stream)


def _limit(diagnostics: list[Diagnostic]) -> list[Diagnostic]:
    """Return at most ``_MAX_PRINTED`` diagnostics, in their order. Warnings are left out before errors."""
    if len(diagnostics) <= _MAX_PRINTED:
        return diagnostics
    # False sorts before True, and sorted() keeps the order of equals.
    errors_first = sorted(range(len(diagnostics)), key=lambda index: diagnostics[index].severity != "error")
    return [diagnostics[index] for index in sorted(errors_first[:_MAX_PRINTED])]


def lines(diagnostics: Iterable[Diagnostic], *, colours: bool = False, width: int = _WIDTH) -> Iterator[str]:
    """Yield the text of diagnostics, line by line. width: columns that source lines are cut to."""
    for diagnostic in diagnostics:
        yield from _format(diagnostic, Painter(colours), width)


def document(diagnostic: Diagnostic) -> dict[str, Any]:
    """Return a diagnostic's object in JSON documents. Line 0 means the file as a whole."""
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


def _format(diagnostic: Diagnostic, painter: Painter, width: int) -> Iterator[str]:
    """Yield the lines of one diagnostic, as compilers print them.

    They have this form::

        file:3:7: error: message [code]
            3 | the source line, cut to ``width`` columns with the number
              |     ^~~
          hint: what to write instead
    """
    # Line 0 means the file as a whole.
    place = f"{diagnostic.file}:{diagnostic.line}:{diagnostic.column}:" if diagnostic.line else f"{diagnostic.file}:"
    severity = painter.paint(f"{diagnostic.severity}:", "red" if diagnostic.severity == "error" else "magenta")
    code = f" [{diagnostic.code}]" if diagnostic.code else ""
    place = painter.paint(escaped(place), "bold")
    yield f"{place} {severity} {escaped(diagnostic.message)}{code}"
    if diagnostic.line and diagnostic.source.strip():
        gutter = f"{diagnostic.line:5d} | "
        # At least what is shown before the fault and as much after it, on however narrow a terminal.
        text, marks = _marked(diagnostic.source, diagnostic.column - 1, max(width - len(gutter), 2 * _CONTEXT))
        yield f"{gutter}{text}".rstrip()
        # The bar is below the gutter's.
        indent = " " * (len(gutter) - 2)
        yield f"{indent}| {' ' * (len(marks) - len(marks.lstrip()))}{painter.paint(marks.lstrip(), 'green')}"
    if diagnostic.hint:
        yield f"  hint: {escaped(diagnostic.hint)}"


def _marked(source: str, position: int, width: int) -> tuple[str, str]:
    """Return a source line as it is printed, and the line of marks below it: ``^~~`` under the word at a position.

    position: of the fault, in characters from 0. Both lines have at most ``width`` columns; ``…`` stands for what is
    cut off.
    """
    # The fault may be at the end of the line, where something is missing; without a word one column is marked.
    position = max(0, min(position, len(source)))
    word = _WORD.match(source, position)
    end = word.end() if word else position + 1
    first = 0
    # A long line is shown from a little before the fault on, if the word and what follows it would not fit otherwise.
    # No more than position + width is measured, since a word may be of any length.
    if position > width or _columns(source[: min(end + _ROOM_AFTER_WORD, position + width)]) > width:
        first = max(0, position - _CONTEXT)

    # The "…" for what is left out before takes one column.
    pieces, columns = (["…"], 1) if first else ([], 0)
    columns_before_word = columns
    marked_columns = 0
    # Combining characters take no columns, so the number of characters is limited too.
    for index in range(first, min(len(source), first + 4 * width)):
        size = _columns(source[index])
        # One column is kept for the "…" at the end, but for the last character.
        if columns + size > width - 1 and index + 1 < len(source):
            pieces.append("…")
            break
        pieces.append(_printed(source[index]))
        columns += size
        if index < position:
            columns_before_word = columns
        elif index < end:
            marked_columns += size
    # The ^ is the first of the marked columns.
    return "".join(pieces), " " * columns_before_word + "^" + "~" * (marked_columns - 1)


def _printed(character: str) -> str:
    """A character as it is printed: a tab as blanks, control characters escaped."""
    return _TAB if character == "\t" else escaped(character)


def _columns(text: str) -> int:
    """Return how many columns of a terminal a text takes as it is printed (tabs and control characters replaced)."""
    return sum(_terminal_columns(character) for printed in map(_printed, text) for character in printed)


def _terminal_columns(character: str) -> int:
    """Return 0 for a combining character, 2 for a wide one (East Asian), else 1."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
