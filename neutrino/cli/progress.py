"""One line on stderr, on a terminal only, that shows what a long run is working on."""

from __future__ import annotations

import os
import sys
import time

from neutrino.cli.streams import visible

_AFTER_S = 0.7
_EVERY_S = 0.1


class Progress:
    """Shows the latest text once the work takes long. name: of the command. Without a terminal nothing is shown."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._next = time.monotonic() + _AFTER_S
        self._shown = False

    def show(self, text: str) -> None:
        """Replace the line, unless it was replaced a moment ago."""
        if not self._is_terminal or time.monotonic() < self._next:
            return
        width = _width() - 1
        line = f"{self._name}: {visible(text)}"
        sys.stderr.write(f"\r\x1b[K{line if len(line) <= width else line[: width - 1] + '…'}")
        sys.stderr.flush()
        self._shown = True
        self._next = time.monotonic() + _EVERY_S

    def clear(self) -> None:
        """Remove the line, before anything else is printed."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._shown = False


def _width() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except OSError:
        return 80
