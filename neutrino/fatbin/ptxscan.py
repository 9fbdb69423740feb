"""What can be told from PTX text by a light scan: whether it is PTX, its target, and its kernels' names.

Nothing is parsed: comments and strings are skipped as wholes, directives are looked for in what is left.
"""

from __future__ import annotations

import re

_COMMENT = rb"//[^\n]*|/\*(?s:.*?)(?:\*/|\Z)"
# A string ends at its line's end at the latest, so that a stray quote cannot hide the rest of the text.
_OPAQUE = _COMMENT + rb'|"(?:[^"\\\n]|\\.)*"?'
_BLANK = rb"(?:\s|//[^\n]*\n|/\*(?:[^*]|\*(?!/))*\*/)"
_IDENTIFIER = rb"[A-Za-z_$%][\w$]*"

# Every branch begins with one of three characters, which lets the regex engine skip all others quickly.
_ENTRY = re.compile(_OPAQUE + rb"|\.entry" + _BLANK + rb"+(" + _IDENTIFIER + rb")")
_TARGET = re.compile(_OPAQUE + rb"|\.target" + _BLANK + rb"+(sm_\d+[a-z]?)\b")
_SPACE_OR_COMMENT = re.compile(rb"\s+|" + _COMMENT)
_VERSION = re.compile(rb"\.version\b")


def is_ptx(data: bytes | memoryview) -> bool:
    """Whether data begins as PTX does: with ``.version``, after white space and comments at most."""
    position = 0
    while blank := _SPACE_OR_COMMENT.match(data, position):
        position = blank.end()
    return _VERSION.match(data, position) is not None


def ptx_target(text: bytes | memoryview) -> str:
    """The architecture of the first ``.target``, as ``sm_90a``; empty when there is none."""
    return next((found[1].decode("ascii") for found in _TARGET.finditer(text) if found[1]), "")


def ptx_entries(text: bytes | memoryview) -> tuple[str, ...]:
    """Names of the kernels (``.entry``) of PTX text, mangled, in order, each once."""
    names = (found[1].decode("latin-1") for found in _ENTRY.finditer(text) if found[1])
    return tuple(dict.fromkeys(names))
