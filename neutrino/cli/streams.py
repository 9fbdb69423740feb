"""What the commands do about the streams that they print on."""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO

_COLOURS = {"bold": "1", "red": "1;31", "green": "1;32", "magenta": "1;35", "cyan": "36", "dim": "2"}
"""ECMA-48, 8.3.117: select graphic rendition."""


def print_anything() -> None:
    """Let stdout show what its encoding lacks, such as a file name that is not UTF-8, with escapes."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def visible(text: str) -> str:
    """Text of the program in which nothing moves the terminal's cursor: an argument may be a whole script."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def has_colours(stream: TextIO) -> bool:
    """A terminal that shows colours, and nobody who asked for none (``NO_COLOR``, no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def width_of(stream: TextIO, otherwise: int) -> int:
    """Columns of the terminal that stream is; of anything else what is given."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or otherwise
    except (OSError, ValueError):
        return otherwise


class Painter:
    """Colours text, or leaves it alone: ``bold``, ``red``, ``green``, ``magenta``, ``cyan``, ``dim``."""

    def __init__(self, colours: bool) -> None:
        self._colours = colours

    def paint(self, text: str, colour: str) -> str:
        """The text between the terminal's codes for a colour and for none."""
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if self._colours and text else text
