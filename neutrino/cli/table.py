"""Tables of fixed width, for terminals and pipes alike: nothing is cut, nothing is folded."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

_GAP = "  "


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()) -> Iterator[str]:
    """The lines of a table, indented. right: the columns, by their heads, that are numbers."""
    cells = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    aligned = [name in right for name in head]
    for row in cells:
        parts = (
            text.rjust(width) if number else text.ljust(width)
            for text, width, number in zip(row, widths, aligned, strict=True)
        )
        yield (_GAP + _GAP.join(parts)).rstrip()


def count(number: int, word: str) -> str:
    """``1 image``, ``2 images``."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"
