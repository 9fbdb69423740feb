"""Tables with aligned columns, for terminals and pipes alike: no cell is cut or wrapped."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence

_GAP = "  "


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[str] = ()) -> Iterator[str]:
    """Yield the lines of a table, indented; the first is the head.

    rows: iterated over twice, first to find the columns' widths, so it is no iterator. right: heads of the columns to
    align right; the others are aligned left.
    """
    widths = list(map(len, head))
    for row in rows:
        widths = [max(width, len(text)) for width, text in zip(widths, row, strict=True)]
    align_right = [name in right for name in head]
    for row in itertools.chain([head], rows):
        parts = (
            text.rjust(width) if is_right else text.ljust(width)
            for text, width, is_right in zip(row, widths, align_right, strict=True)
        )
        # A last cell that is aligned left ends in padding.
        yield (_GAP + _GAP.join(parts)).rstrip()


def counted(number: int, word: str) -> str:
    """Return a number with a noun, in the plural but for 1: ``1 image``, ``2,000 images``."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def stripped(text: str) -> str:
    """Return a text without blanks at the ends of lines, where tables have them, and without empty lines at its end."""
    return "\n".join(line.rstrip() for line in text.splitlines()).rstrip("\n")
