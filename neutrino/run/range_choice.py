"""Which ranges of the program's code are probed: ``--range DOMAIN@NAME``, as ``--nvtx-include`` of Nsight Compute."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from neutrino.errors import NeutrinoError

MOST_RANGES = 64
"""Ranges that may be given: csrc/image/ranges.c has a bit for each."""
INJECTION = "NVTX_INJECTION64_PATH"
"""The variable by which NVTX finds the library that its calls go to."""
OWN_INJECTION = "NEUTRINO_NVTX"
"""What it was set to: an earlier run's value is none of another tool."""
_BETWEEN_PATTERNS, _BETWEEN_PARTS, _ANY_TEXT = "\x1e", "\x1f", "\x01"
_PUSHED_ONLY, _PUSHED_OR_STARTED = "/", "-"
_OF_STACKS = "/[],+"


class Scope(enum.Enum):
    """For whose launches a range counts that a thread pushes: its own, or those of the process."""

    THREAD = "thread"
    PROCESS = "process"


def pattern(text: str) -> str:
    """Return a range of ``--range`` as the hook reads it: its kind, its domain and its name.

    text: ``NAME`` for NVTX's default domain, ``DOMAIN@NAME``; ``*`` stands for any text, a ``/`` at the end chooses
    only ranges that are pushed, and ``\\`` takes the next character as it is. Raises NeutrinoError for what Nsight
    Compute has beyond that, and what has no name.
    """
    parts, kind, escaped = [""], _PUSHED_OR_STARTED, False
    if text.startswith("regex:"):
        raise NeutrinoError(f"--range {text}: regular expressions are not known here; * stands for any text")
    for place, character in enumerate(text):
        if ord(character) < 0x20 or ord(character) == 0x7F:
            raise NeutrinoError(f"--range {text!r}: the name of a range has no control characters here")
        if escaped or character not in f"\\@*{_OF_STACKS}":
            parts[-1] += character
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == "@" and len(parts) == 1:
            parts.append("")
        elif character == "*":
            parts[-1] += _ANY_TEXT
        elif character == "/" and place == len(text) - 1:
            kind = _PUSHED_ONLY
        elif character == "@":
            raise NeutrinoError(f"--range {text}: a second @; write \\@ if the name has it")
        elif character == ",":
            raise NeutrinoError(f"--range {text}: give --range once for each range; write \\, if the name has it")
        else:
            raise NeutrinoError(
                f"--range {text}: ranges within ranges ({character}) are not known here, only one name; write "
                f"\\{character} if the name has it"
            )
    domain, name = ("", *parts) if len(parts) == 1 else parts
    if escaped or not name:
        raise NeutrinoError(f"--range {text}: that names no range; write NAME or DOMAIN@NAME")
    return _BETWEEN_PARTS.join((kind, domain, name))


def patterns(texts: Sequence[str]) -> str | None:
    """Return several ranges as the hook reads them; None without one. Raises NeutrinoError as ``pattern``."""
    if len(texts) > MOST_RANGES:
        raise NeutrinoError(f"--range: at most {MOST_RANGES} can be given")
    return _BETWEEN_PATTERNS.join(map(pattern, texts)) or None
