"""A probe file as TOML: its tables, the position of each key and character, and the faults reported so far."""

from __future__ import annotations

import bisect
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from neutrino.errors import Diagnostic, ProbeError, Span
from neutrino.probing.nearest import nearest
from neutrino.probing.syntax import Fault
from neutrino.probing.toml_positions import Place, find_places

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_SIZE = 1 << 19
"""Characters of a probe file."""
MAX_KEY_PARTS = 32
"""Parts of a dotted key. ``tomllib`` takes time in the square of their number."""
_MAX_GUESSES = 100
"""Faults after which unknown keys are no longer compared with known ones."""
_MAX_NUMBER_BITS = 256
_MAX_NAME_LENGTH = 100
_MAX_LINE_LENGTH = 300

_DEPTH_HINT = "is it a probe file? what stands deepest there is map.NAME.data.FIELD"
# A key of an inline table, up to the ":" that is written instead of "=".
_COLON_KEY = re.compile(r"[{,]\s*(\"[^\"]*\"|[\w-]+)\s*$")
_MAX_COLON_WORK = 1 << 24
"""Characters parsed for all replaced ``:`` together, as each one has the file parsed again."""
_SMART_QUOTE = re.compile("[\u2018\u2019\u201a\u201c\u201d\u201e\u00ab\u00bb]")
# A line that opens an inline table and does not close it.
_OPEN_INLINE = re.compile(r"=\s*\{[^}\"]*(?:\"[^\"]*\"[^}\"]*)*$")
# The position and the filter of a one-liner, and the brace of its body.
_ONE_LINER = re.compile(r"\s*[A-Za-z*\"'][^\n={]*(?:/[^\n{]*/\s*)?\{")
# A tuple of keys as tomllib's messages have it, and one key of it.
_KEYS = re.compile(r"\((?:'[^']*'(?:, |,)?)+\)")
_QUOTED = re.compile(r"'([^']*)'")
# A message of tomllib: text, line, column.
_TOML_POSITION = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)
_KEY_PART = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*"""
_LONG_KEY = re.compile(rf"(?<![\w-])(?:{_KEY_PART}){{{MAX_KEY_PARTS}}}", re.ASCII)

KeyPath = tuple[str, ...]
"""Keys from the top of the document to a value."""


class Document:
    """One probe file. text: as it was read; source: the same with ``\\n`` line ends.

    tables: the parsed document. places: where its keys and values are. diagnostics: those reported so far; errors: how
    many of them are errors.

    Offsets, here and wherever a document is passed, count characters of the source.

    Raises ProbeError if the text is not valid TOML or too large.
    """

    def __init__(self, file: str, text: str) -> None:
        """Parse a file. file: its path, for messages. text: what is in it."""
        self.file = file
        # Editors on Windows write a byte order mark.
        self.text = text.removeprefix("\ufeff")
        # tomllib reads CRLF as LF too.
        self.source = self.text.replace("\r\n", "\n")
        self.diagnostics: list[Diagnostic] = []
        self.errors = 0
        # Lines as written: parsing may replace characters of the source (_replace_colon), but keeps all offsets.
        self._lines = self.source.split("\n")
        # The offset of the first character of each line; one more than there are lines.
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line) + 1)
        self.places: dict[KeyPath, Place] = {}
        if len(self.source) > MAX_SIZE:
            hint = "is it a probe file?"
            self._stop(0, "too-large", f"the file has {len(self.source)} characters, more than {MAX_SIZE}", hint)
        long_key = _LONG_KEY.search(self.source)
        if long_key:
            message = f"a key has more than {MAX_KEY_PARTS} parts"
            self._stop(long_key.start(), "nested-too-deeply", message, _DEPTH_HINT)
        self.tables: Mapping[str, Any] = self._parse()

    # Places

    def span(self, offset: int) -> Span:
        """Return line and column, both from 1, of an offset in the source."""
        # hi: what is at or after the end belongs to the last line.
        index = bisect.bisect_right(self._starts, offset, hi=len(self._lines)) - 1
        return Span(index + 1, offset - self._starts[index] + 1)

    def key(self, *path: str) -> int:
        """Return the offset of a key in the file, where faults are reported; else that of the innermost table around
        it, or 0."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.places:
                return self.places[path[:length]].key
        return 0

    def value(self, *path: str) -> int:
        """Return the offset of a key's value; if the file does not contain it, as ``key``."""
        return self.places[path].value if path in self.places else self.key(*path)

    def within(self, path: KeyPath, start: int) -> int:
        """Convert an offset in a string value, such as a snippet, to an offset in the source.

        path: of the string's key. start: the offset in the decoded string, which is shorter than it is written if it
        has escapes.
        """
        characters = self.places[path].characters
        # The last one is the closing quote, for faults at the end of the string.
        return characters[min(start, len(characters) - 1)]

    # Faults

    def report(self, offset: int, code: str, message: str, hint: str = "", severity: str = "error") -> None:
        """Add a diagnostic at an offset of the source. code: see ``faults.FAULTS``. severity: error or warning."""
        self.report_span(self.span(offset), code, message, hint, severity)

    def report_span(self, span: Span, code: str, message: str, hint: str = "", severity: str = "error") -> None:
        """Add a diagnostic at a line and column; the other parameters are those of ``report``."""
        line = self._lines[span.line - 1]
        if severity == "error":
            self.errors += 1
        message, hint = printable(message), printable(hint)
        self.diagnostics.append(Diagnostic(self.file, span.line, span.column, line, message, hint, severity, code))

    def warn(self, offset: int, code: str, message: str, hint: str = "") -> None:
        """Add a warning: the file is accepted, but should be written differently."""
        self.report(offset, code, message, hint, "warning")

    def fault(self, path: KeyPath, fault: Fault) -> None:
        """Report an error inside the string value of a key, such as a snippet of a probe."""
        self.report(self.within(path, fault.start), fault.code, fault.message, fault.hint)

    def unknown_key(self, path: KeyPath, known: Iterable[str]) -> None:
        """Report a key that is not one of the known ones, with a hint. path: to the key from the top of the document.
        """
        # Comparing is slow, and nobody needs a hint for each of hundreds of faults.
        guess = nearest(path[-1], known) if self.errors < _MAX_GUESSES else None
        hint = f"did you mean '{guess}'?" if guess else "known here: " + ", ".join(known)
        self.report(self.key(*path), "unknown-key", f"unknown key {shown_key(path[-1])}", hint)

    def missing(self, path: KeyPath, key: str, example: str) -> None:
        """Report that a table lacks a key. path: of the table. example: of how to write the key."""
        name = ".".join(path)
        self.report(self.key(*path), "missing-key", f"[{shown_name(name)}] has no {key}", f"write {example}")

    def choice(
        self,
        path: KeyPath,
        value: object,
        known: Sequence[str],
        subject: str,
        code: str,
        synonym: str | None = None,
        *,
        may_be_misspelt: bool = True,
    ) -> str | None:
        """Return the value of a key if it is one of the known words; else report it and return None.

        path: of the key, where the fault is reported under a code of ``faults.FAULTS``. subject: begins the message, as
        in ``level is "grid"``. synonym: the known word for this value, for the hint. may_be_misspelt: whether the hint
        may name the most similar known word.
        """
        if isinstance(value, str) and value in known:
            return value
        guess = synonym
        if not guess and isinstance(value, str) and may_be_misspelt:
            guess = nearest(value, known)
        hint = f'did you mean "{guess}"?' if guess else "use " + listed(known)
        self.report(self.value(*path), code, f"{subject} is {shown(value)}", hint)
        return None

    def sorted_diagnostics(self) -> list[Diagnostic]:
        """Return errors and warnings in file order."""
        return sorted(self.diagnostics, key=lambda diagnostic: (diagnostic.line, diagnostic.column))

    # TOML

    def _stop(self, offset: int, code: str, message: str, hint: str = "") -> None:
        """Raise ProbeError with this error alone, without warnings before it, since the file cannot be read any
        further."""
        self.report(offset, code, message, hint)
        raise ProbeError(self.diagnostics[-1:])

    def _parse(self) -> dict[str, Any]:
        """Parse the source, find the places of its keys, and return its tables. Raises ProbeError if it is not TOML.

        Inline tables with ``:`` for ``=`` are accepted: each time one stops the parser, that colon is replaced and
        parsing starts again.
        """
        replaced = 0  # colons so far
        while True:
            try:
                tables = tomllib.loads(self.source)
                self.places = find_places(self.source)
            except RecursionError:
                self._stop(0, "nested-too-deeply", "tables or arrays are nested too deeply", _DEPTH_HINT)
            except tomllib.TOMLDecodeError as error:
                message, offset = self._toml_fault(error)
                if replaced * len(self.source) < _MAX_COLON_WORK and self._replace_colon(offset):
                    replaced += 1
                    continue
                hint = self._toml_hint(message, offset)
                if _ONE_LINER.match(self.source):
                    hint = f'that is a one-liner, which has no file form: neutrino -e "$(cat {self.file})"'
                self._stop(offset, "not-toml", f"not TOML: {message}", hint)
            except ValueError as error:
                # An integer of thousands of digits, which Python does not convert.
                self._stop(0, "not-toml", f"not TOML: {error}")
            else:
                return tables

    def _toml_fault(self, error: tomllib.TOMLDecodeError) -> tuple[str, int]:
        """Return the message of an error of ``tomllib`` and its offset; that of the end if it has no position.

        The message is without the position and begins with a small letter, to follow "not TOML: ".
        """
        match = _TOML_POSITION.fullmatch(str(error))
        message, line, column = match.groups() if match else (str(error), None, None)
        # tomllib writes keys as a Python tuple: ('map', 'Loads') becomes [map.Loads].
        message = _KEYS.sub(lambda keys: "[" + ".".join(_QUOTED.findall(keys.group())) + "]", message)
        offset = len(self.source.rstrip())
        if line and column:
            offset = self._starts[int(line) - 1] + int(column) - 1
        return message[:1].lower() + message[1:], offset

    def _toml_hint(self, message: str, offset: int) -> str:
        """Return a hint for an error of ``tomllib`` from its message and the source there; ``""`` without one.

        message, offset: from ``_toml_fault``. What the source shows comes first: the message of tomllib says only what
        it expected.
        """
        start = self._starts[self.span(offset).line - 1]
        # Cut: _OPEN_INLINE takes long on very long lines.
        line = self.source[start : start + _MAX_LINE_LENGTH].partition("\n")[0]
        if _SMART_QUOTE.match(self.source, offset):
            return "quotes are written \" or '"
        # An inline table that the line opens and does not close, and the error is inside it.
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
            return 'write " at the end of the text, or begin and end one of several lines with """'
        if message.startswith("expected '='"):
            return "lines are key = value, or [table.NAME]"
        if message.startswith(("cannot declare", "cannot overwrite", "duplicate inline")):
            return "it stands twice: rename one of the two, or remove it"
        return ""

    def _replace_colon(self, offset: int) -> bool:
        """Replace the ``:`` at an offset by ``=`` if it follows a key of an inline table; return whether it did.

        Older documentation writes inline tables as ``{ "start": "u64" }``. Only the first one gets a warning.
        """
        line_before = self.source[self.source.rfind("\n", 0, offset) + 1 : offset]
        if not self.source.startswith(":", offset) or not _COLON_KEY.search(line_before):
            return False
        # Nothing else is reported before the file is parsed.
        if not self.diagnostics:
            hint = 'TOML writes { start = "u64" }'
            self.warn(offset, "colon-for-equals", "':' in an inline table, read as '='", hint)
        self.source = self.source[:offset] + "=" + self.source[offset + 1 :]
        return True


def listed(words: Sequence[str]) -> str:
    """Return words as a list of alternatives: ``"a", "b" or "c"``."""
    quoted = [f'"{word}"' for word in words]
    return f"{', '.join(quoted[:-1])} or {quoted[-1]}" if len(quoted) > 1 else quoted[0]


def shown(value: object) -> str:
    """Return a value of the document as messages quote it, shortened if it is long."""
    if isinstance(value, str):
        return f'"{shown_name(value)}"'
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "an array"
    if isinstance(value, int) and value.bit_length() > _MAX_NUMBER_BITS:
        # Python raises ValueError when it has to write thousands of digits.
        return "a number of many digits"
    return str(value).lower() if isinstance(value, bool) else str(value)


def shown_name(name: str) -> str:
    """Return a name from the document for a message, shortened and without control characters."""
    return printable(name, _MAX_NAME_LENGTH)


def shown_key(name: str) -> str:
    """Return a name as ``shown_name``, in single quotes."""
    return f"'{shown_name(name)}'"


def printable(text: str, length: int = 300) -> str:
    """Return a text for a message of one line.

    Of a text longer than ``length`` only both ends are returned. Characters that cannot be printed, such as control
    characters and newlines, are replaced by U+FFFD.
    """
    short = text if len(text) <= length else f"{text[: length // 2]}…{text[-length // 2 :]}"
    if short.isprintable():
        return short
    return "".join(character if character.isprintable() else "\ufffd" for character in short)
