"""Conditions of a tracepoint joined by ``&``, ``|``, ``!`` and parentheses, as alternatives of words.

    condition = conjunction { "|" conjunction }
    conjunction = part { [ "&" ] part }
    part = "!" part | "(" condition ")" | word

What the words mean is not known here. The result is the disjunctive normal form, so that each alternative can be
matched by its opcode: ``(a | b) & !(c | d)`` becomes ``a !c !d`` and ``b !c !d``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from neutrino.late_dataclass import dataclass

MAX_ALTERNATIVES = 256
"""Alternatives that a condition may come to."""
MAX_DEPTH = 32
"""Parentheses and negations within each other."""

_NAMING = ("func:", "call:")
_OPERATORS = "()&|!"
_WORD = re.compile(r"[^\s()&|]+")
# What ends the name of a function, after the spaces before it: an operator, or a word that begins another condition.
_AFTER_NAME = re.compile(
    r"\s*(?:$|[|)]|&(?=\s)|&$|(?<=\s)(?:!|@|(?:func|call|range|file):|[^\s:|!()]+:\d+(?:-\d+)?(?=[\s)|&]|$)))"
)
_IS_CONDITION = re.compile(
    r"(?:^|[\s(!|])&|&(?:\s|$)|(?:^|[\s|!])\(|!\s*(?:@|(?:func|call|range|file):|[^\s|&!]*[.]|!)"
)


@dataclass(frozen=True)
class Literal:
    """A word of an alternative, and whether it is negated. start: its offset in the text."""

    start: int
    text: str
    is_negated: bool = False


class ConditionError(Exception):
    """A fault in a condition, at an offset of the text."""

    def __init__(self, start: int, message: str, hint: str = "") -> None:
        """Make the error of a faulty condition. start: the offset. hint: what to write instead, "" without one."""
        super().__init__(message)
        self.start = start
        self.message = message
        self.hint = hint


def is_condition(text: str) -> bool:
    """Return whether a text has operators beyond ``|`` and ``!word``, and not only in the name of a function."""
    without_names = text
    for word in _NAMING:
        while (start := without_names.find(word)) >= 0:
            end = _name_end(without_names, start + len(word))
            # Of equal length, so that nothing before or after joins.
            without_names = without_names[:start] + "_" * (end - start) + without_names[end:]
    negates_name = re.search(r"!\s*(?:func|call):", text)
    return bool(negates_name or _IS_CONDITION.search(without_names))


def alternatives(text: str) -> list[list[Literal]]:
    """Parse a tracepoint's condition and return its alternatives (disjunctive normal form): each the words that must
    all hold.

    Raises ConditionError.
    """
    return _Parser(text).whole()


# A condition in disjunctive normal form.
_Form = list[list[Literal]]


class _Parser:
    """Reads a condition from left to right. _tokens: the operators and words that are left; the last one is empty."""

    def __init__(self, text: str) -> None:
        """Prepare to parse a condition of a tracepoint. text: the condition."""
        self._tokens = [*_tokens(text), Literal(len(text), "")]
        self._depth = 0

    def whole(self) -> _Form:
        """Parse the whole text of a condition; return its alternatives, each the words that must all hold. Raises
        ConditionError."""
        form = self._either(negated=False)
        token = self._tokens[0]
        if token.text:
            raise ConditionError(token.start, f"'{token.text}' closes nothing", "remove it, or open it with '('")
        return form

    def _either(self, *, negated: bool) -> _Form:
        """Parse ``a | b``; negated: return its negation, ``!a & !b``."""
        form = self._both(negated=negated)
        while self._tokens[0].text == "|":
            bar = self._tokens.pop(0)
            other = self._both(negated=negated)
            form = _joined(form, other, bar) if negated else _added(form, other, bar)
        return form

    def _both(self, *, negated: bool) -> _Form:
        """Parse ``a & b`` or ``a b``; negated: return its negation, ``!a | !b``."""
        form = self._part(negated=negated)
        while self._tokens[0].text not in {"", "|", ")"}:
            token = self._tokens[0]
            if token.text == "&":
                self._tokens.pop(0)
            other = self._part(negated=negated)
            form = _added(form, other, token) if negated else _joined(form, other, token)
        return form

    def _part(self, *, negated: bool) -> _Form:
        """Parse a word, ``!`` with what it negates, or parentheses; negated: return the negation."""
        token = self._tokens.pop(0)
        if token.text not in {"(", "!"}:
            if not token.text or token.text in _OPERATORS:
                what = f"before '{token.text}'" if token.text else "at the end"
                hint = 'as in load & !volatile, with one "&"' if token.text == "&" else "as in load & !volatile"
                raise ConditionError(token.start, f"a pattern is missing {what}", hint)
            return [[Literal(token.start, token.text, negated)]]
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ConditionError(token.start, f"more than {MAX_DEPTH} levels of parentheses", "join patterns by '|'")
        if token.text == "!":
            form = self._part(negated=not negated)
        else:
            form = self._either(negated=negated)
            if self._tokens[0].text != ")":
                raise ConditionError(token.start, "'(' is not closed", "write ')' after the last pattern in it")
            self._tokens.pop(0)
        self._depth -= 1
        return form


def _added(one: _Form, other: _Form, token: Literal) -> _Form:
    """Return the disjunction (or) of two conditions, each given as alternatives.

    token: the operator, for the fault of too many alternatives.
    """
    _check_count(len(one) + len(other), token)
    return one + other


def _joined(one: _Form, other: _Form, token: Literal) -> _Form:
    """Return the conjunction (and) of two conditions, each given as alternatives. token: see ``_added``."""
    _check_count(len(one) * len(other), token)
    return [first + second for first in one for second in other]


def _check_count(count: int, token: Literal) -> None:
    """Raise ConditionError for a condition with too many alternatives. token: the operator that makes so many."""
    if count > MAX_ALTERNATIVES:
        message = f"this comes to {count} alternatives, more than {MAX_ALTERNATIVES}"
        raise ConditionError(token.start, message, 'a class such as "memory" stands for many instructions')


def _tokens(text: str) -> Iterator[Literal]:
    """Yield the operators and words of a condition. A name in ``func:`` or ``call:`` may have spaces and brackets."""
    position = 0
    while position < len(text):
        if text[position].isspace():
            position += 1
        elif text[position] in _OPERATORS:
            yield Literal(position, text[position])
            position += 1
        else:
            if text.startswith(_NAMING, position):
                end = _name_end(text, text.index(":", position) + 1)
            else:
                match = _WORD.match(text, position)
                # Neither a space nor an operator: at least one character.
                end = match.end() if match else position + 1
            yield Literal(position, text[position:end])
            position = end


def _name_end(text: str, start: int) -> int:
    """Return where the name of a function ends that starts at an offset of a condition, without the spaces after it."""
    depth = 0
    position = start
    while position < len(text):
        character = text[position]
        if depth == 0 and _AFTER_NAME.match(text, position):
            break
        if character in "(<[":
            depth += 1
        elif character in ")>]":
            depth = max(depth - 1, 0)
        elif character == "|":
            break
        position += 1
    return position
