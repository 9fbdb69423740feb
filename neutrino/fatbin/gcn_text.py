"""Whether a text is assembly for AMD's GPUs, as LLVM writes and reads it, and for which one: without parsing it."""

from __future__ import annotations

import re

_SEARCHED = 4096
"""The directive is one of the first of a text."""
# Lines of directives and comments, and blank ones, before the one that names the target.
_TARGET = re.compile(
    rb'(?:[ \t]*(?:[.;#/][^\n]*)?\r?\n)*[ \t]*\.amdgcn_target[ \t]+"[^"\n]*-(?:unknown)?-(?P<target>[A-Za-z][\w.:+-]*)"'
)


def gcn_target(data: bytes | memoryview) -> str | None:
    """Return the target id that a text is for, such as ``gfx942:sramecc+``; None if it is no such text."""
    match = _TARGET.match(data[:_SEARCHED])
    return match["target"].decode("ascii") if match else None
