"""The text of one-liners, taken apart into clauses, and their parts into Python's syntax trees.

Quotes keep together what is between them: names of functions in positions, texts in statements.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from neutrino.language.faults import Faults, LanguageError
from neutrino.resources import shipped_probes

UNNAMED = "unnamed"
"""The name that the map ``@`` has in traces."""

_FILTER = re.compile(r"(?<=\s)/(?!/)")
_CLOSING = re.compile(r"/\s*\{")
_STRING = r"""'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*\""""
_MAP = re.compile(rf"{_STRING}|@([A-Za-z_]\w*)?", re.ASCII)
_COMPOUND = re.compile(r"\s*(if|for|while)\b")
_BRACKETS = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True)
class Clause:
    """Where the parts of a clause are in the text: each from its first character to after its last."""

    position: tuple[int, int]
    filter: tuple[int, int] | None
    statements: tuple[tuple[int, int], ...]


class ClauseText:
    """The text of one-liners. Faults are reported at its lines and columns."""

    def __init__(self, faults: Faults, text: str) -> None:
        """Prepare to divide the text of a one-liner into clauses. faults: where what is wrong with it is reported."""
        self.text = text
        self._faults = faults
        # As in Python's nodes: lines from 1, columns in bytes.
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self.example = f"write POSITION {{ STATEMENT }}, as in '{faults.words.load} {{ @bytes = sum(BYTES) }}'"

    def clauses(self) -> Iterator[Clause]:
        """Find the clauses (position, filter, body) of a one-liner. Raises LanguageError where one cannot be read,
        which is reported."""
        at = self._after_space(0)
        if at == len(self.text):
            raise self.refuse(0, "there is no probe", self.example)
        while at < len(self.text):
            if self.text[at] == "}":
                raise self.refuse(at, "'}' closes nothing", "each clause is POSITION { STATEMENT }")
            end = self._head(at)
            head = at, end
            if not self.text[slice(*head)].strip():
                raise self.refuse(at, "there is no position", self.example)
            brace, chosen = end, None
            if self.text[end] == "/":
                closing = _CLOSING.search(self.text, end + 1)
                if closing is None:
                    raise self.refuse(end, "the filter has no end", "write /EXPRESSION/ before the {")
                chosen, brace = (end + 1, closing.start()), closing.end() - 1
            statements, at = self._body(brace)
            at = self._after_space(at)
            yield Clause(head, chosen, statements)

    def _head(self, start: int) -> int:
        """Return where a clause's position ends: at its filter, which opens after a space, or at its body."""
        at = start
        while at < len(self.text):
            character = self.text[at]
            if character in "'\"":
                closing = self.text.find(character, at + 1)
                if closing < 0:
                    raise self.refuse(at, f"the {character} is not closed", f"write a {character} after the name")
                at = closing
            elif character == "{" or _FILTER.match(self.text, at):
                return at
            at += 1
        left = self.text[start:].strip()
        hint = f"for the shipped probe: -p {left}" if left in shipped_probes() else self.example
        raise self.refuse(start, f"'{left:.40}' has no statements", hint)

    def _after_space(self, at: int) -> int:
        """Return where the next clause begins: after spaces and semicolons."""
        while at < len(self.text) and (self.text[at].isspace() or self.text[at] == ";"):
            at += 1
        return at

    def _body(self, brace: int) -> tuple[tuple[tuple[int, int], ...], int]:
        """Return the statements between a brace and the one that closes it, and where the text goes on after that."""
        # What closes each bracket, and where it was opened.
        statements, expected, start = [], [("}", brace)], brace + 1
        at = brace
        while (at := at + 1) < len(self.text):
            character = self.text[at]
            if character in "'\"":
                string = re.compile(_STRING).match(self.text, at)
                if string is None:
                    raise self.refuse(at, f"the {character} is not closed", "a text ends in the line that it begins in")
                at = string.end() - 1
            elif character == "#":
                # A comment: up to the end of the line, which ends the statement.
                at = (self.text + "\n").find("\n", at) - 1
            elif character in _BRACKETS:
                expected.append((_BRACKETS[character], at))
            elif character in _BRACKETS.values():
                closing, opened = expected.pop()
                if character != closing:
                    hint = f"write a {closing} before the {character}"
                    raise self.refuse(opened, f"the {self.text[opened]} is not closed", hint)
                if not expected:
                    statements.append((start, at))
                    return tuple(statements), at + 1
            elif character in ";\n" and len(expected) == 1:
                # As in Python, everything up to the end of the line belongs to an if.
                if character == ";" and _COMPOUND.match(self.text, start):
                    continue
                statements.append((start, at))
                start = at + 1
        raise self.refuse(brace, "the { is not closed", "write a } at the end of the clause")

    def refuse(self, at: int, message: str, hint: str = "") -> LanguageError:
        """Report a fault at an offset of the text, and return the error for the caller to raise."""
        return self._faults.refuse(self.node_at(at), "one-liner", message, hint)

    def node_at(self, at: int) -> ast.AST:
        """Return a node of Python's syntax tree at an offset of the text, since faults are reported at nodes."""
        line, column = self._place(at)
        return ast.Pass(lineno=line, col_offset=column)

    def _place(self, at: int) -> tuple[int, int]:
        """Return the line of an offset, from 1, and its column in bytes."""
        line = sum(start <= at for start in self._line_starts)
        return line, len(self.text[self._line_starts[line - 1] : at].encode(errors="replace"))

    def parse(self, part: tuple[int, int], mode: str) -> ast.AST | None:
        """Return the syntax tree of a part of the text, with places in the whole text; None if it is empty.

        A name of a map gets an attribute ``map_name``. Raises LanguageError if it is not Python.
        """
        start, end = part
        start += len(self.text[start:end]) - len(self.text[start:end].lstrip())
        written = self.text[start:end].rstrip()
        if not written:
            return None
        names: dict[int, str] = {}

        def plain(match: re.Match[str]) -> str:
            """Replace ``@NAME`` by a name that Python reads, and note at which byte it stands."""
            if match[0][0] != "@":
                return match[0]
            names[len(written[: match.start()].encode())] = match[1] or UNNAMED
            return f"_{match[1] or ''}"

        text = _MAP.sub(plain, written)
        try:
            tree = ast.parse(text, mode=mode)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            offset = max((getattr(error, "offset", None) or 1) - 1, 0)
            # Without what Python takes it for, which is no help here.
            reason = (getattr(error, "msg", None) or str(error) or "nested too deeply").partition(". Maybe")[0]
            node = self.node_at(min(start + offset, end))
            hint = _hint(written, is_expression=mode == "eval")
            raise self._faults.refuse(node, "not-python", f"not Python: {reason}", hint) from None
        line, column = self._place(start)
        if any(_is_bitwise_chain(node, text) for node in ast.walk(tree)):
            hint = "write 'and' and 'or' between comparisons: & and | bind tighter than < and =="
            raise self._faults.refuse(self.node_at(start), "not-python", "a comparison with & or | in its middle", hint)
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.lineno == 1 and node.col_offset in names:
                node.map_name = names[node.col_offset]  # type: ignore[attr-defined]
            for lines, columns in (("lineno", "col_offset"), ("end_lineno", "end_col_offset")):
                if getattr(node, lines, None) is None:
                    continue
                if getattr(node, lines) == 1:
                    setattr(node, columns, getattr(node, columns) + column)
                setattr(node, lines, getattr(node, lines) + line - 1)
        return tree


def _is_bitwise_chain(node: ast.AST, text: str) -> bool:
    """Return whether a comparison is one such as ``x < 4 & y == 0``, which Python reads as ``x < (4 & y) == 0``.

    text: in which it stands; one with these parentheses is meant so.
    """
    if not isinstance(node, ast.Compare):
        return False
    lines = text.split("\n")
    return any(
        isinstance(part, ast.BinOp)
        and isinstance(part.op, (ast.BitAnd, ast.BitOr))
        and not lines[part.lineno - 1].encode()[: part.col_offset].rstrip().endswith(b"(")
        for part in node.comparators[:-1]
    )


def _hint(written: str, *, is_expression: bool) -> str:
    """Return a hint how to write in Python what is written in another language, such as ``&&``; "" for anything else.

    is_expression: whether it stands where a value is needed.
    """
    if "&&" in written or "||" in written:
        return "write 'and' and 'or'"
    if re.search(r"@\s*['\"]|@\w+-\w+\s*(?:\[|=)", written, re.ASCII):
        return "the name of a map has letters, digits and underscores"
    if re.search(r"\)\s*,\s*@", written):
        return "statements have a ; between them"
    if re.search(r"\$\w", written):
        return "variables are written without a $"
    if is_expression and re.search(r"(?<![=!<>])=(?!=)", written):
        return "write == to compare"
    if re.search(r"!(?!=)", written):
        return "write 'not'"
    if re.search(r"(?<![\w.])\d+(?:\.\d+)?(?:[num]?s|[kKMG]i?B?|B)\b", written, re.ASCII):
        return "numbers have no units; times of clocks are in cycles"
    if "++" in written:
        return "write @name = count()"
    if _COMPOUND.match(written):
        return "write it in one line, as in if CONDITION: STATEMENT; longer probes go in a .py file"
    if re.search(r"\)\s*if\b", written):
        return "write if CONDITION: STATEMENT, or a filter: POSITION /CONDITION/ { … }"
    if is_expression and re.search(r"\b(?:and|or|not)\s*$", written):
        return "the condition ends too early"
    return "statements have a ; between them" if re.search(r"\)\s*[@\w]", written) else ""


def map_of(node: ast.stmt) -> tuple[str | None, ast.expr | None]:
    """Return the name of the map that a statement is about, None if it is about none, and its key if it has one."""
    target: ast.expr | None = None
    if isinstance(node, (ast.Expr, ast.AugAssign, ast.AnnAssign)):
        target = node.value if isinstance(node, ast.Expr) else node.target
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        (target,) = node.targets
    key = None
    if isinstance(target, ast.Subscript):
        key = target.slice
        target = target.value
    name = getattr(target, "map_name", None)
    return (name, key) if isinstance(name, str) else (None, None)
