"""Edits of a text: replacements and insertions by position, which are applied all at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class Inserted:
    """Instructions, one per line, that go right before another one, or right after one."""

    lines: tuple[str, ...]
    is_after: bool

    @cached_property
    def text(self) -> str:
        """What stands in the text; "" for no instructions."""
        if not self.lines:
            return ""
        return "\n\t".join(("", *self.lines) if self.is_after else (*self.lines, ""))


@dataclass
class Edits:
    """Replacements and insertions in a module's text. Positions are those of the text without any edit.

    edits: (start, end, new text), in any order; an insertion has start == end. The new texts of edits at one start
    stand in the order of this list.
    """

    edits: list[tuple[int, int, str | Inserted]] = field(default_factory=list)

    def insert(self, at: int, text: str | Inserted) -> None:
        """Insert text before a position, after what was inserted there already."""
        if text if isinstance(text, str) else text.lines:
            self.edits.append((at, at, text))

    def insert_first(self, at: int, text: str | Inserted) -> None:
        """Insert text before a position, before what was inserted there already."""
        self.edits.insert(0, (at, at, text))

    def insert_before(self, at: int, lines: Sequence[str]) -> None:
        """Insert instructions, one per line, right before the instruction at a position."""
        self.insert(at, before(lines))

    def replace(self, start: int, end: int, text: str) -> None:
        """Replace the text from start to end."""
        self.edits.append((start, end, text))

    def apply(self, text: str, start: int, end: int) -> str:
        """Return the text from start to end with the edits, which must lie in it and not overlap."""
        pieces = []
        copied_to = start
        # Sorted by the start alone: the sort is stable, so that edits at one position keep their order.
        for begin, stop, new in sorted(self.edits, key=lambda edit: edit[0]):
            pieces += [text[copied_to:begin], new if isinstance(new, str) else new.text]
            copied_to = stop
        pieces.append(text[copied_to:end])
        return "".join(pieces)


def before(lines: Sequence[str]) -> Inserted:
    """Instructions that go right before another one."""
    return Inserted(tuple(lines), is_after=False)


def after(lines: Sequence[str]) -> Inserted:
    """Instructions that go right after another one."""
    return Inserted(tuple(lines), is_after=True)
