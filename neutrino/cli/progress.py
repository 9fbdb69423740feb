"""One line on stderr, on a terminal only, that shows what a long run is working on."""

from __future__ import annotations

import os
import sys
import time

from neutrino.cli.streams import escaped

_FIRST_AFTER_S = 0.7
"""Seconds without a line, so that short runs show none."""
_INTERVAL_S = 0.1
"""Seconds between two texts, so that showing them takes no time."""
_ESTIMATED_AFTER_S = 3
"""Seconds of work after which the rest is estimated."""


class Progress:
    """Shows what a long run works on, in one line on stderr. Without a terminal nothing is shown."""

    def __init__(self, name: str) -> None:
        """Set up a line that shows progress. name: of the command. Nothing is shown in the first ``_FIRST_AFTER_S``
        seconds."""
        self._name = name
        # With stderr closed, sys.stderr is None.
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty()
        # From when on the next text may be shown.
        self._next = time.monotonic() + _FIRST_AFTER_S
        # Whether the line is on the terminal.
        self._shown = False

    def show(self, text: str) -> None:
        """Show a text in the line of progress, unless another was shown less than ``_INTERVAL_S`` seconds ago."""
        if not self._is_terminal or time.monotonic() < self._next:
            return
        # Terminals may begin a new line after a character in the last column.
        width = _width() - 1
        line = f"{self._name}: {escaped(text)}"
        # To the beginning of the line, and erase it (ECMA-48: EL).
        sys.stderr.write(f"\r\x1b[K{line if len(line) <= width else line[: width - 1] + '…'}")
        sys.stderr.flush()
        self._shown = True
        self._next = time.monotonic() + _INTERVAL_S

    def clear(self) -> None:
        """Remove the progress line from the terminal, before anything else is printed."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._shown = False


class TimeLeft:
    """Shows how many of the parts of one piece of work are done, and from some on about how long the others take."""

    def __init__(self, progress: Progress, name: str, parts: str) -> None:
        """Prepare to show. name: of the work. parts: what is counted, in the plural."""
        self._progress, self._name, self._parts = progress, name, parts
        self._start: float | None = None

    def show(self, done: int, total: int) -> None:
        """Show that so many parts are done, of how many. First called before the first of them."""
        now = time.monotonic()
        if self._start is None:
            self._start = now
        text = f"{done:,} of {total:,} {self._parts}"
        passed = now - self._start
        if done and passed > _ESTIMATED_AFTER_S:
            text += f", about {_in_words(passed / done * (total - done))} left"
        # Last: of a narrow terminal's line the end is cut off.
        self._progress.show(f"{text}: {self._name}")


def _in_words(seconds: float) -> str:
    """Return a time in seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def _width() -> int:
    """Return the width of the terminal in columns, 80 if it is unknown."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except OSError:
        return 80
