"""What the commands do about the stream that they print on."""

from __future__ import annotations

import io
import sys


def print_anything() -> None:
    """Let stdout show what its encoding lacks, such as a file name that is not UTF-8, with escapes."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def visible(text: str) -> str:
    """Text of the program in which nothing moves the terminal's cursor: an argument may be a whole script."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)
