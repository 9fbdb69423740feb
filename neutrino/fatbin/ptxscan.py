"""A quick scan of PTX text, without parsing it: whether it is PTX, its version and target, and its kernels' names.

Directives are searched for outside of comments and strings.
"""

from __future__ import annotations

import re

# _COMMENT also matches a comment without an end; _BLANK is white space, or a comment that has one.
_COMMENT = rb"//[^\n]*|/\*(?s:.*?)(?:\*/|\Z)"
# A string ends at its line's end at the latest, so that a stray quote cannot hide the rest of the text.
_OPAQUE = _COMMENT + rb'|"(?:[^"\\\n]|\\.)*"?'
_BLANK = rb"(?:\s|//[^\n]*\n|/\*(?:[^*]|\*(?!/))*\*/)"
_IDENTIFIER = rb"[A-Za-z_$%][\w$]*"

# A match of _OPAQUE (a comment or string) has no group 1. Every alternative begins with one of three characters, which
# lets the regex engine skip all others quickly.
_ENTRY = re.compile(_OPAQUE + rb"|\.entry" + _BLANK + rb"+(" + _IDENTIFIER + rb")")
_DIRECTIVE = b".entry"
_TARGET = re.compile(_OPAQUE + rb"|\.target" + _BLANK + rb"+(sm_\d+[a-z]?)\b")
_SPACE_OR_COMMENT = re.compile(rb"\s+|" + _COMMENT)
_VERSION = re.compile(rb"\.version\b")
_VERSION_NUMBER = re.compile(_OPAQUE + rb"|\.version" + _BLANK + rb"+(\d+\.\d+)\b")


def is_ptx(data: bytes | memoryview) -> bool:
    """Whether data begin with ``.version``, as PTX does; white space and comments may come before it."""
    position = 0
    while blank := _SPACE_OR_COMMENT.match(data, position):
        position = blank.end()
    return _VERSION.match(data, position) is not None


def ptx_target(text: bytes | memoryview) -> str:
    """Return the architecture of the first ``.target``, such as ``sm_90a``; empty when there is none."""
    # The pattern also matches comments and strings, without group 1, to skip them.
    return next((match[1].decode("ascii") for match in _TARGET.finditer(text) if match[1]), "")


def ptx_version(text: bytes | memoryview) -> tuple[int, int] | None:
    """Return the PTX ISA version of the first ``.version`` directive, 8.7 as (8, 7); None when there is none."""
    # The pattern also matches comments and strings, without group 1, to skip them.
    number = next((match[1] for match in _VERSION_NUMBER.finditer(text) if match[1]), None)
    if number is None:
        return None
    major, minor = number.split(b".")
    return int(major), int(minor)


def with_ptx_target(text: bytes, arch: str) -> bytes:
    """Replace the architecture in the first ``.target``; options after it, such as ``, debug``, are kept."""
    return _with_first(_TARGET, text, arch)


def with_ptx_version(text: bytes, version: tuple[int, int]) -> bytes:
    """Replace the number in the first ``.version`` directive of a PTX text."""
    return _with_first(_VERSION_NUMBER, text, f"{version[0]}.{version[1]}")


def _with_first(pattern: re.Pattern[bytes], text: bytes, replacement: str) -> bytes:
    """Replace group 1 of the first match that has one; text without such a match is returned unchanged.

    pattern: also matches comments and strings, without group 1, so that nothing inside of them is replaced.
    """
    for match in pattern.finditer(text):
        if match[1]:
            return text[: match.start(1)] + replacement.encode("ascii") + text[match.end(1) :]
    return text


def ptx_entries(text: bytes | memoryview) -> tuple[str, ...]:
    """Return the mangled names of the kernels (``.entry``) in PTX text, in order, without duplicates."""
    matches = _entries_outside_comments(bytes(text))
    if matches is None:
        # Comments and strings match without group 1.
        matches = [match for match in _ENTRY.finditer(text) if match[1]]
    return tuple(dict.fromkeys(match[1].decode("latin-1") for match in matches))


def _entries_outside_comments(text: bytes) -> list[re.Match[bytes]] | None:
    """Return the matches of ``.entry NAME`` if clearly none of them is in a comment or string, else None.

    This is faster than the full scan: only the line before each ``.entry`` is searched for quotes and ``//``. That is
    enough if the text has no ``/*``, since only such a comment spans several lines.
    """
    if b"/*" in text:
        return None
    matches = []
    checked_to = 0
    directive = text.find(_DIRECTIVE)
    while directive >= 0:
        # On a line with several directives, the part up to the last one was checked already.
        line = text[max(text.rfind(b"\n", checked_to, directive), checked_to) : directive]
        if b"//" in line or b'"' in line:
            return None
        if match := _ENTRY.match(text, directive):
            matches.append(match)
        checked_to = directive + len(_DIRECTIVE)
        directive = text.find(_DIRECTIVE, checked_to)
    return matches
