"""Where each key and each character of a value stands in a TOML file; ``tomllib`` keeps no positions.

Only documents that ``tomllib`` has accepted are read here, so the scanner follows the grammar without
checking it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_BLANK = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
"""A key without quotes."""
_SCALAR = re.compile(r"[^,\]}#\n]+")
_PLAIN = re.compile(r"[^\\\"']+")
_CONTINUATION = re.compile(r"\\[ \t]*\n[ \t\n]*")
_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", "e": "\x1b"}
_ESCAPE_LENGTH = {"x": 4, "u": 6, "U": 10}


class Place(NamedTuple):
    """Offsets in the file, in characters, of a key and of its value.

    characters: for a string, the offset of each character of the decoded value and of the closing quote.
    """

    key: int
    value: int
    characters: tuple[int, ...] = ()


def find_places(source: str) -> dict[tuple[str, ...], Place]:
    """Path of keys → place, for every table header, key and element (by its index) of a valid TOML document.

    source: the document with ``\\n`` line ends. Of array tables the last element counts; a table that no header names
    stands where the first header inside it does.
    """
    scanner = _Scanner(source)
    scanner.document()
    return scanner.places


class _Scanner:
    def __init__(self, source: str) -> None:
        self.source = source
        self.position = 0
        self.places: dict[tuple[str, ...], Place] = {}

    def document(self) -> None:
        table: tuple[str, ...] = ()
        self._skip(_BLANK)
        while self.position < len(self.source):
            if self.source[self.position] == "[":
                brackets = 2 if self.source.startswith("[[", self.position) else 1
                self.position += brackets
                start = self._skip(_SPACE)
                table = self._keys()
                for length in range(1, len(table)):
                    self.places.setdefault(table[:length], Place(start, start))
                self.places[table] = Place(start, start)
                self._skip(_SPACE)
                self.position += brackets
            else:
                self._pair(table)
            self._skip(_BLANK)

    def _skip(self, pattern: re.Pattern[str]) -> int:
        match = pattern.match(self.source, self.position)
        if match:
            self.position = match.end()
        return self.position

    def _keys(self) -> tuple[str, ...]:
        keys = [self._key()]
        self._skip(_SPACE)
        while self.source.startswith(".", self.position):
            self.position += 1
            self._skip(_SPACE)
            keys.append(self._key())
            self._skip(_SPACE)
        return tuple(keys)

    def _key(self) -> str:
        if self.source[self.position] in "\"'":
            return self._string()[0]
        start = self.position
        return self.source[start : self._skip(BARE_KEY)]

    def _pair(self, table: tuple[str, ...]) -> None:
        key = self.position
        path = (*table, *self._keys())
        self.position += 1  # the '='
        self._skip(_SPACE)
        self._value(path, key)

    def _value(self, path: tuple[str, ...], key: int) -> None:
        start = self.position
        characters: tuple[int, ...] = ()
        opening = self.source[start]
        if opening in "\"'":
            characters = self._string()[1]
        elif opening == "[":
            self._sequence("]", path)
        elif opening == "{":
            self._sequence("}", path)
        else:
            self._skip(_SCALAR)
        self.places[path] = Place(key, start, characters)

    def _sequence(self, closing: str, path: tuple[str, ...]) -> None:
        self.position += 1
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
        self.position += 1

    def _string(self) -> tuple[str, tuple[int, ...]]:
        quote = self.source[self.position]
        literal = quote == "'"
        if self.source.startswith(quote * 3, self.position):
            quote *= 3
        self.position += len(quote)
        if len(quote) == 3 and self.source.startswith("\n", self.position):
            self.position += 1
        decoded: list[str] = []
        offsets: list[int] = []
        while not self._closes(quote):
            if self.source[self.position] == "\\" and not literal:
                self._escape(decoded, offsets)
            else:
                # At least the character here, which may be a quote that does not close.
                start = self.position
                plain = _PLAIN.match(self.source, start + 1)
                self.position = plain.end() if plain else start + 1
                decoded.append(self.source[start : self.position])
                offsets += range(start, self.position)
        offsets.append(self.position)
        self.position += len(quote)
        return "".join(decoded), tuple(offsets)

    def _closes(self, quote: str) -> bool:
        # Up to two quotes may stand right before the closing three and belong to the text.
        following = self.position + len(quote)
        return self.source.startswith(quote, self.position) and not (
            len(quote) == 3 and self.source.startswith(quote[0], following)
        )

    def _escape(self, decoded: list[str], offsets: list[int]) -> None:
        continuation = _CONTINUATION.match(self.source, self.position)
        if continuation:
            self.position = continuation.end()
            return
        offsets.append(self.position)
        letter = self.source[self.position + 1]
        length = _ESCAPE_LENGTH.get(letter, 2)
        if length > 2:
            decoded.append(chr(int(self.source[self.position + 2 : self.position + length], 16)))
        else:
            decoded.append(_ESCAPES.get(letter, letter))
        self.position += length
