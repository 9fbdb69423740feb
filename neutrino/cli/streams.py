"""Output streams of the commands: encoding, control characters, colours, width."""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO

SOURCES = (".c", ".cc", ".cpp", ".cu", ".cuh", ".cxx", ".hip")
"""How names of sources of compiled programs end, which no command reads."""
_COLOURS = {"bold": "1", "red": "1;31", "green": "1;32", "magenta": "1;35", "cyan": "36", "dim": "2"}
"""ECMA-48, 8.3.117: select graphic rendition."""


def print_anything() -> None:
    """Make stdout print characters that its encoding lacks, such as of a file name that is not UTF-8, as escapes."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def escaped(text: str) -> str:
    """Return a text with control characters escaped, so that none of them reaches the terminal."""
    if text.isprintable():
        return text
    # Without the quotes that ascii() adds.
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def escaped_text(line: str) -> str:
    """Return a line of a text that may be indented by tabs, with all other control characters escaped."""
    return "\t".join(map(escaped, line.split("\t")))


def has_colours(stream: TextIO) -> bool:
    """Return whether a stream is a terminal with colours, and ``NO_COLOR`` (no-color.org) is not set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def width_of(stream: TextIO, default: int) -> int:
    """Return the width of a terminal in columns; ``default`` if the stream is no terminal or its width is unknown."""
    try:
        # Some terminals report 0.
        return os.get_terminal_size(stream.fileno()).columns or default
    except (OSError, ValueError):
        # OSError for what is no terminal, ValueError for a stream that is closed.
        return default


class Painter:
    """Colours text, or leaves it alone: ``bold``, ``red``, ``green``, ``magenta``, ``cyan``, ``dim``."""

    def __init__(self, colours: bool) -> None:
        """Prepare to colour text for the terminal. colours: False to leave it as it is."""
        self._colours = colours

    def paint(self, text: str, colour: str) -> str:
        """The text in a colour, where colours are shown."""
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if self._colours and text else text
