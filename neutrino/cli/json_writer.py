"""A JSON document written while it is made, with the text of ``json.dumps(value, indent=2)``: a document may be larger
than memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

_STEP = "  "


class JsonWriter:
    """Writes one value, from its beginning to its end. write: called with one piece of the text after the other."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._open: list[str] = []
        """What ends each object and list that has begun, outermost first."""
        self._is_empty = True
        self._key = ""

    def key(self, name: str) -> None:
        """Name the next value, within an object."""
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
        self._write(closing if self._is_empty else self._line() + closing)
        self._is_empty = False

    def value(self, value: Any) -> None:
        """Write a whole value: None, a bool, number, string, or dict or list of such. Keys of dicts are strings."""
        self._write(self._before() + _text(value, self._line()))

    def _begin(self, opening: str, closing: str) -> None:
        self._write(self._before() + opening)
        self._open.append(closing)
        self._is_empty = True

    def _before(self) -> str:
        """What stands between the last value and the next."""
        before = (self._line() if self._is_empty else f",{self._line()}") if self._open else ""
        before += self._key
        self._key = ""
        self._is_empty = False
        return before

    def _line(self) -> str:
        return "\n" + _STEP * len(self._open)


def _text(value: Any, line: str) -> str:
    """A value's text. line: what begins a line at its depth. Python's own encoder is several times as slow with an
    indent, since it is not the one in C then."""
    inner = line + _STEP
    if value and isinstance(value, dict):
        members = (f"{json.dumps(name)}: {_text(member, inner)}" for name, member in value.items())
        return f"{{{inner}{f',{inner}'.join(members)}{line}}}"
    if value and isinstance(value, list):
        return f"[{inner}{f',{inner}'.join([_text(member, inner) for member in value])}{line}]"
    return json.dumps(value)
