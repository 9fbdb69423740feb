"""Where a report is printed: as wide as the terminal, or without an end."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from neutrino.cli.streams import Painter
from neutrino.cli.table import stripped

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_PIPED_WIDTH = 10_000
"""Characters of a line that is no terminal's: nothing is wrapped."""
_DUMB_WIDTH = 80
"""Characters of a line of a terminal that does not say how many."""
_GAP = "  "
"""Between columns."""
NARROW = re.compile("[ -\u02ff–…→≤≥▁-█]*")
"""A text of characters that take one column: European letters, and signs that reports have."""
_RICH = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
"""Variables by which rich may take for a terminal what is none, or the other way round."""


class ReportConsole:
    """Collects what is printed. Lines and tables that fit are written here, and rich wraps those that do not: most
    reports need not wait for its import, and look the same.

    width: of the console, in characters.
    """

    def __init__(self) -> None:
        """Find out about stdout: a terminal has a width and bold text, and so has COLUMNS a width."""
        is_terminal = sys.stdout is not None and sys.stdout.isatty()
        term = os.environ.get("TERM", "").lower()
        is_dumb = is_terminal and term in ("dumb", "unknown")
        has_styles = is_terminal and not is_dumb
        # As rich: a dumb terminal has 80 columns, unless both of these say what it has.
        is_known = all(os.environ.get(name, "").isdigit() for name in ("COLUMNS", "LINES"))
        self.width = _DUMB_WIDTH if is_dumb and not is_known else _width(is_terminal)
        self._paint = Painter(has_styles).paint
        self._is_plain = not any(os.environ.get(name) for name in _RICH)
        self._console: Console | None = None
        self._parts: list[str] = []

    def print(self, text: str = "", *, is_bold: bool = False, wraps: bool = True) -> None:
        """Print a line. text: without control characters. wraps: whether it is broken where the console ends."""
        if self._is_plain and (not wraps or _length(text) <= self.width):
            self._parts.append((self._paint(text, "bold") if is_bold else text) + "\n")
        else:
            self._print_rich(text, "bold" if is_bold else None, wraps=wraps)

    def print_indented(self, text: str, indent: int) -> None:
        """Print a line of which all parts begin after so many blanks when it is broken."""
        if self._is_plain and _length(text) + indent <= self.width:
            self._parts.append(" " * indent + text + "\n")
            return
        from rich.padding import Padding
        from rich.text import Text

        self._print_rich(Padding(Text(text), (0, 0, 0, indent)))

    def print_table(
        self, head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool], unbroken: int | None = None
    ) -> None:
        """Print a table, its cells broken where the console is too narrow.

        head: a title for each column. rows: of as many cells. right: which columns are aligned right. unbroken: the
        column whose cells are not broken.
        """
        widths = [max(map(_length, column)) for column in zip(head, *rows, strict=True)]
        if not self._is_plain or sum(widths) + len(_GAP) * len(widths) > self.width:
            self._print_rich(_rich_table(head, rows, right, unbroken))
            return
        for number, row in enumerate((head, *rows)):
            line = _GAP.join(map(_justified, row, widths, right)).rstrip()
            self._parts.append((line if number else self._paint(line, "bold")) + "\n")

    def text(self) -> str:
        """All that was printed, without blanks at the ends of lines and without empty lines at its end."""
        return stripped("".join(self._parts))

    def _print_rich(self, what: RenderableType, style: str | None = None, *, wraps: bool = True) -> None:
        """Have rich print something."""
        if self._console is None:
            from rich.console import Console

            self._console = Console(markup=False, highlight=False, emoji=False, width=self.width)
        # Captured, since rich itself would exit the process on a closed pipe (| head).
        with self._console.capture() as captured:
            self._console.print(what, style=style, soft_wrap=None if wraps else True)
        self._parts.append(captured.get())


def _width(is_terminal: bool) -> int:
    """Return the width of the console in characters."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns):
        return int(columns)
    if not is_terminal and not columns:
        return _PIPED_WIDTH
    # Of stdin first, as rich does.
    for descriptor in (0, 1, 2):
        try:
            if found := os.get_terminal_size(descriptor).columns:
                return found
        except OSError:
            continue
    return _DUMB_WIDTH


def _length(text: str) -> int:
    """Return how many columns of a terminal a text takes: East Asian characters take two."""
    if text.isascii() or NARROW.fullmatch(text):
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _justified(text: str, width: int, is_right: bool) -> str:
    """Return a cell with blanks on the left or on the right, so that it fills its column."""
    text = text.rstrip()
    blanks = " " * (width - _length(text))
    return blanks + text if is_right else text + blanks


def _rich_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool], unbroken: int | None
) -> RenderableType:
    """Return a table that rich fits into the console."""
    from rich.table import Table

    grid = Table(box=None, pad_edge=False, padding=(0, len(_GAP), 0, 0))
    for number, (title, is_right) in enumerate(zip(head, right, strict=True)):
        grid.add_column(
            title, justify="right" if is_right else "left", overflow="fold" if number != unbroken else "ellipsis",
            no_wrap=number == unbroken,
        )  # fmt: skip
    for row in rows:
        grid.add_row(*row)
    return grid
