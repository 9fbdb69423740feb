"""What a light scan of PTX text finds: whether it is PTX, its target, and its kernels' names.

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
_DIRECTIVE = b".entry"
_TARGET = re.compile(_OPAQUE + rb"|\.target" + _BLANK + rb"+(sm_\d+[a-z]?)\b")
_SPACE_OR_COMMENT = re.compile(rb"\s+|" + _COMMENT)
_VERSION = re.compile(rb"\.version\b")
_VERSION_NUMBER = re.compile(_OPAQUE + rb"|\.version" + _BLANK + rb"+(\d+\.\d+)\b")


def is_ptx(data: bytes | memoryview) -> bool:
    """Whether data begins as PTX does: with ``.version``, after white space and comments at most."""
    position = 0
    while blank := _SPACE_OR_COMMENT.match(data, position):
        position = blank.end()
    return _VERSION.match(data, position) is not None


def ptx_target(text: bytes | memoryview) -> str:
    """The architecture of the first ``.target``, as ``sm_90a``; empty when there is none."""
    return next((found[1].decode("ascii") for found in _TARGET.finditer(text) if found[1]), "")


def ptx_version(text: bytes | memoryview) -> tuple[int, int] | None:
    """The first ``.version``, (8, 7) of 8.7; None when there is none."""
    found = next((found[1] for found in _VERSION_NUMBER.finditer(text) if found[1]), None)
    if found is None:
        return None
    major, minor = found.split(b".")
    return int(major), int(minor)


def with_ptx_target(text: bytes, arch: str) -> bytes:
    """The text with arch in its first ``.target``; what else stands there, as ``, debug``, stays."""
    return _with_first(_TARGET, text, arch)


def with_ptx_version(text: bytes, version: tuple[int, int]) -> bytes:
    """The text with another ``.version``."""
    return _with_first(_VERSION_NUMBER, text, f"{version[0]}.{version[1]}")


def _with_first(pattern: re.Pattern[bytes], text: bytes, word: str) -> bytes:
    for found in pattern.finditer(text):
        if found[1]:
            return text[: found.start(1)] + word.encode("ascii") + text[found.end(1) :]
    return text


def ptx_entries(text: bytes | memoryview) -> tuple[str, ...]:
    """Names of the kernels (``.entry``) of PTX text, mangled, in order, each once."""
    found = _plain_entries(bytes(text))
    if found is None:
        found = [entry for entry in _ENTRY.finditer(text) if entry[1]]
    return tuple(dict.fromkeys(entry[1].decode("latin-1") for entry in found))


def _plain_entries(text: bytes) -> list[re.Match[bytes]] | None:
    """The entries of text in which no comment or string can be around them, which is soon seen; else None.

    Only a comment of several lines reaches into a line from outside of it.
    """
    if b"/*" in text:
        return None
    entries = []
    seen = 0
    place = text.find(_DIRECTIVE)
    while place >= 0:
        # What is before the last directive on the same line has been looked at.
        line = text[max(text.rfind(b"\n", seen, place), seen) : place]
        if b"//" in line or b'"' in line:
            return None
        if entry := _ENTRY.match(text, place):
            entries.append(entry)
        seen = place + len(_DIRECTIVE)
        place = text.find(_DIRECTIVE, seen)
    return entries
