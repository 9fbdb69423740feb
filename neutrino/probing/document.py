"""A probe file as TOML: its tables, where each key and character of them stands, and the faults found so far."""

from __future__ import annotations

import bisect
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from neutrino.errors import Diagnostic, ProbeError, Span
from neutrino.probing.nearest import nearest
from neutrino.probing.places import Place, find_places
from neutrino.probing.syntax import Fault

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_SIZE = 1 << 19
"""Characters of a probe file."""
MAX_KEY_PARTS = 32
"""Parts of a dotted key. ``tomllib`` takes the square of their number in time."""

_DEPTH = "is it a probe file? what stands deepest there is map.NAME.data.FIELD"
_COLON_KEY = re.compile(r"[{,]\s*(\"[^\"]*\"|[\w-]+)\s*$")
_COLON_WORK = 1 << 24
"""Characters read again and again after a mended ``:``, which a file of the documents' form never reaches."""
_SMART_QUOTE = re.compile("[\u2018\u2019\u201a\u201c\u201d\u201e\u00ab\u00bb]")
_OPEN_INLINE = re.compile(r"=\s*\{[^}\"]*(?:\"[^\"]*\"[^}\"]*)*$")
_KEYS = re.compile(r"\((?:'[^']*'(?:, |,)?)+\)")
_QUOTED = re.compile(r"'([^']*)'")
_TOML_POSITION = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)
_KEY_PART = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*"""
_LONG_KEY = re.compile(rf"(?<![\w-])(?:{_KEY_PART}){{{MAX_KEY_PARTS}}}", re.ASCII)

KeyPath = tuple[str, ...]
"""Keys from the top of the document to a value."""


class Document:
    """One probe file. text: as it was given; source: the same with line ends as ``\\n``.

    Offsets, here and wherever a document is passed, count characters of the source.

    Raises ProbeError for what is no TOML.
    """

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.text = text
        # tomllib reads CRLF as LF too.
        self.source = text.replace("\r\n", "\n")
        self.diagnostics: list[Diagnostic] = []
        self.errors = 0
        # Before mending, which replaces characters one by one.
        self._lines = self.source.split("\n")
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line) + 1)
        self.places: dict[KeyPath, Place] = {}
        if len(self.source) > MAX_SIZE:
            hint = "is it a probe file?"
            self._stop(0, "too-large", f"the file has {len(text)} characters, more than {MAX_SIZE}", hint)
        long_key = _LONG_KEY.search(self.source)
        if long_key:
            self._stop(long_key.start(), "nested-too-deeply", f"a key has more than {MAX_KEY_PARTS} parts", _DEPTH)
        self.tables: Mapping[str, Any] = self._parse()

    # Places

    def span(self, offset: int) -> Span:
        """Line and column of an offset in the source."""
        line = bisect.bisect_right(self._starts, offset, hi=len(self._lines)) - 1
        return Span(line + 1, offset - self._starts[line] + 1)

    def key(self, *path: str) -> int:
        """Offset of a key, or of the nearest enclosing one that stands in the file."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.places:
                return self.places[path[:length]].key
        return 0

    def value(self, *path: str) -> int:
        """Offset of the value of a key, or of what stands nearest."""
        return self.places[path].value if path in self.places else self.key(*path)

    def within(self, path: KeyPath, start: int) -> int:
        """Offset in the source of an offset in a text."""
        characters = self.places[path].characters
        return characters[min(start, len(characters) - 1)]

    # Faults

    def report(self, offset: int, code: str, message: str, hint: str = "", severity: str = "error") -> None:
        """Note a fault of this code at an offset of the source."""
        self.report_span(self.span(offset), code, message, hint, severity)

    def report_span(self, span: Span, code: str, message: str, hint: str = "", severity: str = "error") -> None:
        """Note a fault of this code at a line and column."""
        line = self._lines[span.line - 1]
        self.errors += severity == "error"
        message, hint = printable(message), printable(hint)
        self.diagnostics.append(Diagnostic(self.file, span.line, span.column, line, message, hint, severity, code))

    def warn(self, offset: int, code: str, message: str, hint: str = "") -> None:
        """Note what is accepted and should be written otherwise."""
        self.report(offset, code, message, hint, "warning")

    def fault(self, path: KeyPath, fault: Fault) -> None:
        """Note a fault inside a text."""
        self.report(self.within(path, fault.start), fault.code, fault.message, fault.hint)

    def unknown_key(self, path: KeyPath, known: Iterable[str]) -> None:
        """Note that a key is none of those known."""
        # With a hundred faults, further guesses are of no use and take time.
        guess = nearest(path[-1], known) if self.errors < _GUESSES else None
        hint = f"did you mean '{guess}'?" if guess else "known here: " + ", ".join(known)
        self.report(self.key(*path), "unknown-key", f"unknown key {shown_key(path[-1])}", hint)

    def missing(self, path: KeyPath, key: str, example: str) -> None:
        """Note that a table lacks a key."""
        name = ".".join(path)
        self.report(self.key(*path), "missing-key", f"[{shown_key(name)[1:-1]}] has no {key}", f"write {example}")

    def choice(
        self, path: KeyPath, value: object, known: Sequence[str], what: str, code: str, meant: str | None = None,
        *, misspelt: bool = True,
    ) -> str | None:
        """The value when it is one of the words known; else None, and a fault is noted.

        meant: the known word that another one stands for, where that is clear. misspelt: whether it may be one.
        """
        if isinstance(value, str) and value in known:
            return value
        guess = meant or (nearest(value, known) if isinstance(value, str) and misspelt else None)
        hint = f'did you mean "{guess}"?' if guess else "use " + listed(known)
        self.report(self.value(*path), code, f"{what} is {shown(value)}", hint)
        return None

    def sorted_diagnostics(self) -> list[Diagnostic]:
        """Faults and warnings in file order."""
        return sorted(self.diagnostics, key=lambda diagnostic: (diagnostic.line, diagnostic.column))

    # TOML

    def _stop(self, offset: int, code: str, message: str, hint: str = "") -> None:
        self.report(offset, code, message, hint)
        raise ProbeError(self.diagnostics[-1:])

    def _parse(self) -> dict[str, Any]:
        mended = 0
        while True:
            try:
                tables = tomllib.loads(self.source)
                self.places = find_places(self.source)
            except RecursionError:
                self._stop(0, "nested-too-deeply", "tables or arrays are nested too deeply", _DEPTH)
            except tomllib.TOMLDecodeError as error:
                message, offset = self._toml_fault(error)
                if mended * len(self.source) < _COLON_WORK and self._mend_colon(offset):
                    mended += 1
                    continue
                hint = self._toml_hint(message, offset)
                if self.source.startswith("\ufeff"):
                    offset, hint = 0, "the file begins with a byte order mark; save it without"
                self._stop(offset, "not-toml", f"not TOML: {message}", hint)
            except ValueError as error:
                # An integer of thousands of digits, which Python does not convert.
                self._stop(0, "not-toml", f"not TOML: {error}")
            else:
                return tables

    def _toml_fault(self, error: tomllib.TOMLDecodeError) -> tuple[str, int]:
        match = _TOML_POSITION.fullmatch(str(error))
        message = match.group(1) if match else str(error)
        # tomllib shows keys as a tuple of Python's.
        message = _KEYS.sub(lambda keys: "[" + ".".join(_QUOTED.findall(keys.group())) + "]", message)
        offset = len(self.source.rstrip())
        if match and match.group(2):
            offset = self._starts[int(match.group(2)) - 1] + int(match.group(3)) - 1
        return message[:1].lower() + message[1:], offset

    def _toml_hint(self, message: str, offset: int) -> str:
        start = self._starts[self.span(offset).line - 1]
        line = self.source[start : start + _LONG_MESSAGE].partition("\n")[0]
        if _SMART_QUOTE.match(self.source, offset):
            return "quotes are written \" or '"
        if _OPEN_INLINE.search(line) and offset >= start + line.find("{"):
            return "an inline table { … } stands in one line"
        if message.startswith("unclosed array"):
            return "an array ends with ]"
        if message.startswith("unclosed inline table"):
            return "an inline table ends with }"
        if message.startswith("expected ']'"):
            return "a table begins with [table.NAME]"
        if message.startswith("invalid value"):
            return "texts stand in quotes"
        if message.startswith(("illegal character '\\n'", "unterminated string")):
            return 'a text of several lines begins and ends with """'
        if message.startswith("expected '='"):
            return 'lines are key = value, or [table.NAME]'
        if message.startswith(("cannot declare", "cannot overwrite", "duplicate inline")):
            return "it stands twice: rename one of the two, or remove it"
        return ""

    def _mend_colon(self, offset: int) -> bool:
        """``{ "start": "u64" }``, as the documents wrote inline tables: taken as ``=``, with one warning."""
        before = self.source[self.source.rfind("\n", 0, offset) + 1 : offset]
        if not self.source.startswith(":", offset) or not _COLON_KEY.search(before):
            return False
        if not self.diagnostics:
            hint = 'TOML writes { start = "u64" }'
            self.warn(offset, "colon-for-equals", "':' in an inline table, read as '='", hint)
        self.source = self.source[:offset] + "=" + self.source[offset + 1 :]
        return True


def listed(words: Sequence[str]) -> str:
    """Words in quotes, of which one is to be taken."""
    quoted = [f'"{word}"' for word in words]
    return f"{', '.join(quoted[:-1])} or {quoted[-1]}" if len(quoted) > 1 else quoted[0]


def shown(value: object) -> str:
    """A value of the document as a message quotes it, never long."""
    if isinstance(value, str):
        return f'"{shown_key(value)[1:-1]}"'
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "an array"
    if isinstance(value, int) and value.bit_length() > _LONG_NUMBER:
        return "a number of many digits"
    return str(value).lower() if isinstance(value, bool) else str(value)


def shown_key(name: str) -> str:
    """A name from the document in quotes, without characters that a terminal would act on, never long."""
    return f"'{printable(name, _LONG_NAME)}'"


def printable(text: str, length: int = 300) -> str:
    """A text as messages show it: at most so long, without characters that a terminal would act on."""
    cut = text if len(text) <= length else f"{text[: length // 2]}…{text[-length // 2 :]}"
    return cut if cut.isprintable() else "".join(letter if letter.isprintable() else "\ufffd" for letter in cut)


_GUESSES = 100
_LONG_NUMBER = 256
_LONG_NAME = 100
_LONG_MESSAGE = 300
