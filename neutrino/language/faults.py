"""What can be wrong with a probe file in Python: the codes of its diagnostics, and how they are collected."""

from __future__ import annotations

import ast
import bisect
import itertools

from neutrino.errors import Diagnostic, Span
from neutrino.probing.document import printable

FAULTS: dict[str, str] = {
    "not-python": "text that is not Python",
    "python-statement": "a statement that probe files do not support",
    "python-expression": "an expression that probes do not support",
    "python-name": "a name that is not defined, or already in use",
    "python-type": "values of types that cannot be combined",
    "python-decorator": "an unknown decorator, or an unknown argument of one",
    "python-map": "a map without a valid layout",
    "python-call": "a call of something that is neither a helper nor a map",
}
"""Code → what is wrong."""


MOST = 1000
"""Faults of one file that are said. Each quotes its line, which may be the whole file."""


class LanguageError(Exception):
    """A construct that was reported and cannot be used."""


class TooManyFaultsError(Exception):
    """The last of ``MOST`` faults was reported."""


class Faults:
    """Collects what is wrong with one file. source: with ``\\n`` at the ends of its lines."""

    def __init__(self, file: str, source: str) -> None:
        self._file = file
        self._lines = source.split("\n")
        # Of lines that are not ASCII: the byte at which each character ends.
        self._ends: dict[int, list[int]] = {}
        self.found: list[Diagnostic] = []

    def span(self, node: ast.AST) -> Span:
        """Where a construct begins. Python counts columns in bytes of UTF-8."""
        line, offset = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        text = self._lines[line - 1] if line <= len(self._lines) else ""
        if text.isascii():
            return Span(line, offset + 1)
        if line not in self._ends:
            self._ends[line] = list(itertools.accumulate(len(letter.encode(errors="replace")) for letter in text))
        return Span(line, bisect.bisect_right(self._ends[line], offset) + 1)

    def shown(self, node: ast.AST) -> str:
        """A construct as messages quote it."""
        try:
            return printable(ast.unparse(node))
        except (ValueError, RecursionError):
            # Python writes no numbers of thousands of digits.
            return "…"

    def report(self, node: ast.AST | Span, code: str, message: str, hint: str = "") -> None:
        """Note a fault of one of ``FAULTS``. Raises TooManyFaultsError where it is the last one to be said."""
        span = node if isinstance(node, Span) else self.span(node)
        line = self._lines[span.line - 1] if 0 < span.line <= len(self._lines) else ""
        text, hint = printable(message), printable(hint)
        self.found.append(Diagnostic(self._file, span.line, span.column, line, text, hint, code=code))
        if len(self.found) == MOST:
            raise TooManyFaultsError

    def refuse(self, node: ast.AST, code: str, message: str, hint: str = "") -> LanguageError:
        """The same, as an error to raise."""
        self.report(node, code, message, hint)
        return LanguageError(message)
