"""What can be wrong with a probe file in Python: the codes of its diagnostics, and how they are collected."""

from __future__ import annotations

import ast
import bisect
import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager

from neutrino.errors import Diagnostic, Span
from neutrino.probing.document import printable
from neutrino.probing.target import Words

FAULTS: dict[str, str] = {
    "not-python": "text that is not Python",
    "python-statement": "a statement that probe files do not support",
    "python-expression": "an expression that probes do not support",
    "python-name": "a name that is not defined, or already in use",
    "python-type": "values of types that cannot be combined",
    "python-decorator": "an unknown decorator, or an unknown argument of one",
    "python-map": "a map without a valid layout",
    "python-call": "a call of something that cannot be called, or with other values than it takes",
    "python-define": "a value of `-D` that no constant of the file takes",
}
"""Code → what is wrong."""


_QUOTES = re.compile(r"[rRuU]?(?P<quotes>\"\"\"|\'\'\'|\"|\')")
"""How a string literal begins."""
MAX_FAULTS = 1000
"""Faults that are reported of one file. Each quotes its line, which may be the whole file."""


class LanguageError(Exception):
    """A construct that cannot be used; the fault was reported when this was raised."""


class TooManyFaultsError(Exception):
    """``MAX_FAULTS`` faults were reported; the file is not read any further."""


class Faults:
    """Collects the faults of one file. source: its text, with ``\\n`` at the ends of lines. diagnostics: the faults.

    words: of the target that the file's probes are for, which tracepoints are made of and hints name.
    """

    def __init__(self, file: str, source: str, words: Words) -> None:
        """Begin to collect the faults of one probe file. file: its path. source: its text. words: what is said of the
        target's assembly in hints."""
        self.words = words
        self._file = file
        self._lines = source.split("\n")
        # Line number → the byte offset (UTF-8) at which each of its characters ends; only lines that are not ASCII.
        self._character_ends: dict[int, list[int]] = {}
        self.diagnostics: list[Diagnostic] = []
        self._reported: set[Diagnostic] = set()
        self._is_silent = False

    def span(self, node: ast.AST) -> Span:
        """Return the line and column, both from 1, where a construct begins; 1, 1 for a node without a place.

        Python's nodes have columns in bytes of UTF-8, diagnostics in characters.
        """
        line, offset = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        text = self._lines[line - 1] if line <= len(self._lines) else ""
        if text.isascii():
            # One byte per character.
            return Span(line, offset + 1)
        if line not in self._character_ends:
            sizes = (len(character.encode(errors="replace")) for character in text)
            self._character_ends[line] = list(itertools.accumulate(sizes))
        # As many characters are before the construct as end at or before its offset.
        return Span(line, bisect.bisect_right(self._character_ends[line], offset) + 1)

    def within(self, node: ast.expr, offset: int) -> Span:
        """Return the place in the file of a character of a string literal, or of the literal if it is not written
        plainly.

        Plainly is as one literal, in one line and without escapes. offset: in the string.
        """
        span = self.span(node)
        line = self._lines[span.line - 1] if 0 < span.line <= len(self._lines) else ""
        value = node.value if isinstance(node, ast.Constant) else None
        match = _QUOTES.match(line, span.column - 1)
        if not isinstance(value, str) or match is None:
            return span
        start = match.end()
        is_plain = line.startswith(value + match["quotes"], start) and "\\" not in value
        return Span(span.line, start + offset + 1) if is_plain else span

    def quote(self, node: ast.AST) -> str:
        """Return a construct's text, shortened for a message; ``…`` if it cannot be written out."""
        try:
            return printable(ast.unparse(node))
        except (ValueError, RecursionError):
            # Python refuses to write integers of thousands of digits, and deeply nested expressions.
            return "…"

    @contextmanager
    def unreported(self) -> Iterator[None]:
        """While the context is open, report no faults: of code that is left out only the type counts."""
        before, self._is_silent = self._is_silent, True
        try:
            yield
        finally:
            self._is_silent = before

    def report(self, node: ast.AST | Span, code: str, message: str, hint: str = "") -> None:
        """Add a fault to ``diagnostics``. code: a key of ``FAULTS``. hint: how to mend it.

        Raises TooManyFaultsError once there are ``MAX_FAULTS``.
        """
        if self._is_silent:
            return
        span = node if isinstance(node, Span) else self.span(node)
        line = self._lines[span.line - 1] if 0 < span.line <= len(self._lines) else ""
        text, hint = printable(message), printable(hint)
        fault = Diagnostic(self._file, span.line, span.column, line, text, hint, code=code)
        # The body of a loop that is unrolled, or of a function that is called twice, is read several times.
        if fault in self._reported:
            return
        self._reported.add(fault)
        self.diagnostics.append(fault)
        if len(self.diagnostics) == MAX_FAULTS:
            raise TooManyFaultsError

    def refuse(self, node: ast.AST, code: str, message: str, hint: str = "") -> LanguageError:
        """Report a fault, as ``report`` does, and return the error for the caller to raise."""
        self.report(node, code, message, hint)
        return LanguageError(message)
