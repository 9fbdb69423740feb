"""Writes a JSON document piece by piece, since it may be larger than memory; the text is that of
``json.dumps(value, indent=2)``."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

_STEP = "  "


class JsonWriter:
    """Writes one JSON value: objects and lists are begun and ended, and their members written in between."""

    def __init__(self, write: Callable[[str], object]) -> None:
        """Set up a writer of one JSON value. write: called with each piece of the text, in order."""
        self._write = write
        self._open: list[str] = []
        """The closing brackets of the objects and lists that have begun, outermost first."""
        self._is_empty = True
        """Whether the innermost one has no member yet."""
        self._key = ""
        """The next value's key with its colon, "" in a list."""

    def key(self, name: str) -> None:
        """Set the key of the value that is written next, within an object."""
        self._key = f"{json.dumps(name)}: "

    def begin_object(self) -> None:
        """Begin an object as the next value."""
        self._begin("{", "}")

    def begin_list(self) -> None:
        """Begin a list as the next value."""
        self._begin("[", "]")

    def end(self) -> None:
        """End the innermost object or list that has begun."""
        closing = self._open.pop()
        # As json.dumps, "{}" has no line break.
        self._write(closing if self._is_empty else self._new_line() + closing)
        # The one around it has what has just ended.
        self._is_empty = False

    def value(self, value: Any) -> None:
        """Write a whole value: None, a bool, number, string, or a dict or list of such. Keys of dicts are strings."""
        self._write(self._separator() + _text(value, self._new_line()))

    def _begin(self, opening: str, closing: str) -> None:
        """Begin an object or list as the next value. closing: the bracket that ends it."""
        self._write(self._separator() + opening)
        self._open.append(closing)
        self._is_empty = True

    def _separator(self) -> str:
        """Return the text between the last value and the next: a comma, a new line, and the key in an object.

        The caller writes a value after it: the key is used up, and the innermost object or list is no longer empty.
        """
        separator = ""
        # The whole document has nothing before it.
        if self._open:
            separator = self._new_line() if self._is_empty else f",{self._new_line()}"
        # A key is for one value.
        separator += self._key
        self._key = ""
        self._is_empty = False
        return separator

    def _new_line(self) -> str:
        """A line break and the indentation of members of the innermost object or list."""
        return "\n" + _STEP * len(self._open)


def _text(value: Any, new_line: str) -> str:
    """Return a value's text, indented. new_line: the line break and indentation at the value's depth.

    ``json.dumps`` with an indent is several times as slow, since it does not use the encoder in C then.
    """
    inner = new_line + _STEP
    # Empty dicts and lists have no line breaks: json.dumps writes them.
    if value and isinstance(value, dict):
        members = (f"{json.dumps(name)}: {_text(member, inner)}" for name, member in value.items())
        return f"{{{inner}{f',{inner}'.join(members)}{new_line}}}"
    if value and isinstance(value, list):
        return f"[{inner}{f',{inner}'.join([_text(member, inner) for member in value])}{new_line}]"
    return json.dumps(value)
