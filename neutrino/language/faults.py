"""What can be wrong with a probe file in Python: the codes of its diagnostics, and how they are collected."""

from __future__ import annotations

import ast

from neutrino.errors import Diagnostic, Span
from neutrino.probing.document import printable

FAULTS: dict[str, str] = {
    "not-python": "text that is not Python",
    "python-statement": "a statement that probe files do not have",
    "python-expression": "an expression that probes do not compute",
    "python-name": "a name that stands for nothing here",
    "python-type": "values of types that do not go together",
    "python-decorator": "a decorator, or an argument of one, that is not known",
    "python-map": "a map that cannot be laid out",
    "python-call": "a call of what is no helper and no map",
}
"""Code → what is wrong."""


class LanguageError(Exception):
    """A construct that was reported and cannot be used."""


class Faults:
    """Collects what is wrong with one file."""

    def __init__(self, file: str, source: str) -> None:
        self._file = file
        self._lines = source.split("\n")
        self.found: list[Diagnostic] = []

    def span(self, node: ast.AST) -> Span:
        """Where a construct begins."""
        line = getattr(node, "lineno", 1)
        before = self._lines[line - 1].encode()[: getattr(node, "col_offset", 0)] if line <= len(self._lines) else b""
        return Span(line, len(before.decode(errors="replace")) + 1)

    def report(self, node: ast.AST | Span, code: str, message: str, hint: str = "") -> None:
        """Note a fault of one of ``FAULTS``."""
        span = node if isinstance(node, Span) else self.span(node)
        line = self._lines[span.line - 1] if 0 < span.line <= len(self._lines) else ""
        text, hint = printable(message), printable(hint)
        self.found.append(Diagnostic(self._file, span.line, span.column, line, text, hint, code=code))

    def refuse(self, node: ast.AST, code: str, message: str, hint: str = "") -> LanguageError:
        """The same, as an error to raise."""
        self.report(node, code, message, hint)
        return LanguageError(message)
