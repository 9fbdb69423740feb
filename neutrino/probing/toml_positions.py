"""Finds the position of each key and of each character of a value in a TOML file: ``tomllib`` reports none.

The scanner reads only documents that ``tomllib`` has accepted, so it follows the grammar without checking it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# Between statements, and between the elements of an array: space, line ends and comments.
_BLANK = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
"""A key without quotes."""
_SCALAR = re.compile(r"[^,\]}#\n]+")
_UNESCAPED = re.compile(r"[^\\\"']+")
_CONTINUATION = re.compile(r"\\[ \t]*\n[ \t\n]*")
_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", "e": "\x1b"}
_ESCAPE_LENGTH = {"x": 4, "u": 6, "U": 10}
"""Letter of an escape with hexadecimal digits → its characters, from the backslash."""


class Place(NamedTuple):
    """Offsets in the file, in characters, of a key and of its value.

    characters: for a string, the offset of each character of the decoded value and of the closing quote.
    """

    key: int
    value: int
    characters: tuple[int, ...] = ()


def find_places(source: str) -> dict[tuple[str, ...], Place]:
    """Return the place of every table header, key and array element of a valid TOML document, by its path of keys.

    They are where faults are reported. An element's last key is its index. source: the document with ``\\n`` line ends.
    Of an array of tables (``[[name]]``) the last table is returned. A table without a header of its own (``a`` in
    ``[a.b]``) has the place of the first header inside it.
    """
    scanner = _Scanner(source)
    scanner.document()
    return scanner.places


class _Scanner:
    """Scans a document from start to end.

    position: offset of the next character to read. places: those found so far, by their paths of keys.
    """

    def __init__(self, source: str) -> None:
        """Prepare to scan a TOML document for the places of its keys. source: the text of the document."""
        self.source = source
        self.position = 0
        self.places: dict[tuple[str, ...], Place] = {}

    def document(self) -> None:
        """Scan the whole TOML document and note the places of all table headers and keys."""
        table: tuple[str, ...] = ()
        self._skip(_BLANK)
        while self.position < len(self.source):
            if self.source[self.position] == "[":
                # [[name]] is an array of tables; there are as many brackets after the name as before it.
                brackets = 2 if self.source.startswith("[[", self.position) else 1
                self.position += brackets
                start = self._skip(_SPACE)
                table = self._keys()
                # The tables around it, unless they have a place already. A table has no value of its own to point at.
                for length in range(1, len(table)):
                    self.places.setdefault(table[:length], Place(start, start))
                self.places[table] = Place(start, start)
                self._skip(_SPACE)
                self.position += brackets
            else:
                self._pair(table)
            self._skip(_BLANK)

    def _skip(self, pattern: re.Pattern[str]) -> int:
        """Move past the text that a pattern matches at the current position, and return the new one; stay if it does
        not match."""
        match = pattern.match(self.source, self.position)
        if match:
            self.position = match.end()
        return self.position

    def _keys(self) -> tuple[str, ...]:
        """Read a dotted key and the space after it; return its parts."""
        keys = [self._key()]
        self._skip(_SPACE)
        while self.source.startswith(".", self.position):
            self.position += 1
            self._skip(_SPACE)
            keys.append(self._key())
            self._skip(_SPACE)
        return tuple(keys)

    def _key(self) -> str:
        """Read one part of a dotted key, bare or quoted, and return it."""
        if self.source[self.position] in "\"'":
            key, _ = self._string()
            return key
        start = self.position
        return self.source[start : self._skip(BARE_KEY)]

    def _pair(self, table: tuple[str, ...]) -> None:
        """Read ``key = value`` and note its place. table: the path of the table that contains it."""
        key = self.position
        path = (*table, *self._keys())
        self.position += 1  # the '='
        self._skip(_SPACE)
        self._value(path, key)

    def _value(self, path: tuple[str, ...], key: int) -> None:
        """Read a value of any type and note its place. path: of its keys. key: offset of the last one."""
        start = self.position
        characters: tuple[int, ...] = ()  # only a string has any
        opening = self.source[start]
        if opening in "\"'":
            _, characters = self._string()
        elif opening == "[":
            self._sequence("]", path)
        elif opening == "{":
            self._sequence("}", path)
        else:
            self._skip(_SCALAR)
        self.places[path] = Place(key, start, characters)

    def _sequence(self, closing: str, path: tuple[str, ...]) -> None:
        """Read an array (closing: ``]``) or an inline table (``}``), with all values inside. path: of its keys."""
        self.position += 1  # the opening bracket
        index = 0
        self._skip(_BLANK)
        while self.source[self.position] != closing:
            if closing == "}":
                self._pair(path)
            else:
                self._value((*path, str(index)), self.position)
            index += 1
            self._skip(_BLANK)
            if self.source[self.position] == ",":
                self.position += 1
                self._skip(_BLANK)
        self.position += 1  # the closing bracket

    def _string(self) -> tuple[str, tuple[int, ...]]:
        """Read a string of any kind; return it decoded, and the offset of each character and of the closing quote."""
        quote = self.source[self.position]
        is_literal = quote == "'"  # without escapes
        if self.source.startswith(quote * 3, self.position):
            quote *= 3
        self.position += len(quote)
        # A newline right after triple quotes is not part of the string.
        if len(quote) == 3 and self.source.startswith("\n", self.position):
            self.position += 1
        decoded: list[str] = []
        offsets: list[int] = []
        while not self._closes(quote):
            if self.source[self.position] == "\\" and not is_literal:
                self._escape(decoded, offsets)
            else:
                # At least one character, which may be a quote that does not close the string, and all that follow up to
                # a quote or backslash.
                start = self.position
                unescaped = _UNESCAPED.match(self.source, start + 1)
                self.position = unescaped.end() if unescaped else start + 1
                decoded.append(self.source[start : self.position])
                offsets += range(start, self.position)
        offsets.append(self.position)
        self.position += len(quote)
        return "".join(decoded), tuple(offsets)

    def _closes(self, quote: str) -> bool:
        """Return whether the string that one or three quotes have opened ends at the current position."""
        # Of four or five quotes in a row, the last three close the string; those before them belong to it.
        following = self.position + len(quote)
        return self.source.startswith(quote, self.position) and not (
            len(quote) == 3 and self.source.startswith(quote[0], following)
        )

    def _escape(self, decoded: list[str], offsets: list[int]) -> None:
        """Read a backslash escape, and append its character and offset.

        A line continuation, a backslash at the end of a line, has no character: it and the blanks after it are skipped.
        """
        continuation = _CONTINUATION.match(self.source, self.position)
        if continuation:
            self.position = continuation.end()
            return
        offsets.append(self.position)
        letter = self.source[self.position + 1]
        if letter in _ESCAPE_LENGTH:
            length = _ESCAPE_LENGTH[letter]
            hexadecimal_digits = self.source[self.position + 2 : self.position + length]
            decoded.append(chr(int(hexadecimal_digits, 16)))
        else:
            length = 2
            decoded.append(_ESCAPES.get(letter, letter))  # a quote and a backslash stand for themselves
        self.position += length
