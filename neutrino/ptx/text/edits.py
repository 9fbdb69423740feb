"""A text and what is changed in it: replacements and insertions by position, put in at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Edits:
    """Replacements and insertions in a module's text.

    found: start and end of what goes, and what comes in its place; of edits at one start the first stands first.
    """

    found: list[tuple[int, int, str]] = field(default_factory=list)

    def insert(self, at: int, text: str) -> None:
        """Insert text before a position, after what was inserted there already."""
        if text:
            self.found.append((at, at, text))

    def insert_first(self, at: int, text: str) -> None:
        """Put text in before a position, before what was put in there already."""
        self.found.insert(0, (at, at, text))

    def ahead_of(self, at: int, lines: Sequence[str]) -> None:
        """Put instructions in right before the one at a position."""
        self.insert(at, before(lines))

    def replace(self, start: int, end: int, text: str) -> None:
        """Put text in the place of what is from start to end."""
        self.found.append((start, end, text))

    def apply(self, text: str, start: int, end: int) -> str:
        """The text from start to end with the edits in it; those at one position keep their order."""
        pieces = []
        at = start
        for begin, stop, new in sorted(self.found, key=lambda edit: edit[0]):
            pieces += [text[at:begin], new]
            at = stop
        pieces.append(text[at:end])
        return "".join(pieces)


def before(lines: Sequence[str]) -> str:
    """Instructions as text that goes right before another instruction; "" for none."""
    return "\n\t".join([*lines, ""]) if lines else ""


def behind(lines: Sequence[str]) -> str:
    """Instructions as text that goes right after another instruction; "" for none."""
    return "\n\t" + "\n\t".join(lines) if lines else ""
