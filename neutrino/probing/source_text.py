"""The source of a probe file, in which the verifier looks up where a word is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from neutrino.errors import Span

_SEARCH_LINES = 64
"""Lines from the start of a statement in which its words are searched for."""


class SourceText:
    """The lines of a probe file."""

    def __init__(self, source: str) -> None:
        """Prepare to find words in the text of a probe file. source: the text."""
        self._lines = source.replace("\r\n", "\n").split("\n")
        # A tracepoint is looked up once for each of its words, and one that is made of constants is nowhere.
        self._found: dict[tuple[str, Span], Span] = {}

    def line(self, number: int) -> str:
        """Return a line by its number, from 1; ``""`` after the last line."""
        return self._lines[number - 1] if number <= len(self._lines) else ""

    def locate(self, word: str, start: Span) -> Span:
        """Return where a whole word first occurs at or after ``start``; ``start`` itself if it is not found.

        A word is whole if it is not part of a longer name: ``%a`` is not found in ``%ab``, nor ``a`` in ``%a``. At most
        ``_SEARCH_LINES`` lines are searched.
        """
        if (word, start) not in self._found:
            self._found[word, start] = self._search(word, start)
        return self._found[word, start]

    def _search(self, word: str, start: Span) -> Span:
        """Return where a word stands at a place or some lines after it; the place itself if it is not found."""
        for line in range(start.line, min(start.line + _SEARCH_LINES, len(self._lines)) + 1):
            text = self._lines[line - 1]
            # Columns count from 1, indices from 0; only the first line is searched from a column on.
            index = text.find(word, start.column - 1 if line == start.line else 0)
            while index >= 0:
                end = index + len(word)
                following = text[end : end + 1]  # "" at the end of the line
                extends_left = index > 0 and word[:1].isalnum() and (
                    text[index - 1].isalnum() or text[index - 1] in "_%$."
                )
                extends_right = word[-1:].isalnum() and (following.isalnum() or following in {"_", "$"})
                if not extends_left and not extends_right:
                    return Span(line, index + 1)
                index = text.find(word, index + 1)
        return start

    def locate_each(self, words: Iterable[str], start: Span) -> Iterator[Span]:
        """Yield where each word occurs; each search begins after the word before, as one may occur twice.

        For a word that is not found, it yields where its search began. start: at something before the words, such as
        their opcode.
        """
        for word in words:
            place = self.locate(word, start)
            # Equal only if the word was not found: each search begins at an opcode, a space or a comma.
            if place != start:
                start = Span(place.line, place.column + len(word))
            yield place

    def locate_character(self, character: str, start: Span) -> Span:
        """Return where a character first occurs at or after ``start``.

        The result is ``start`` itself if the file writes the character as an escape (``\\u00e9``).
        """
        for line in range(start.line, min(start.line + _SEARCH_LINES, len(self._lines)) + 1):
            index = self._lines[line - 1].find(character, start.column - 1 if line == start.line else 0)
            if index >= 0:
                return Span(line, index + 1)
        return start
