"""Kernel names shortened for tables, so that their distinguishing parts stay."""

from __future__ import annotations

import re

_PARTS = re.compile(r"\(anonymous namespace\)|<unnamed>|.", re.DOTALL)
_WITHOUT_BRACKETS = {"(anonymous namespace)": "{anonymous}", "<unnamed>": "{unnamed}"}


def shorten(name: str, width: int) -> str:
    """A demangled name in at most width characters (at least 8).

    What goes first: the return type and the parameters, then the inner template arguments, all template
    arguments, the namespaces; a name that is still too long loses its middle.
    """
    if len(name) <= width:
        return name
    bare = _without_parameters(name)
    for candidate in (bare, _without_templates(bare, 1), _without_templates(bare, 0)):
        if len(candidate) <= width:
            return candidate
    last = _without_templates(bare, 0).rpartition("::")[2]
    if len(last) <= width:
        return last
    head = (width - 1) // 2
    return f"{last[:head]}…{last[len(last) - (width - 1 - head) :]}"


def _without_parameters(name: str) -> str:
    """The function's qualified name with its template arguments."""
    text = name
    for word, stand_in in _WITHOUT_BRACKETS.items():
        text = text.replace(word, stand_in)
    depth = 0
    end = len(text)
    start = 0
    for position, character in enumerate(text):
        if character == "<":
            depth += 1
        elif character == ">" and text[position - 1 : position] != "-":
            depth -= 1
        elif depth == 0 and character == "(" and not text[:position].endswith("operator"):
            end = position
            break
        elif depth == 0 and character == " " and not text[:position].endswith("operator"):
            start = position + 1
    text = text[start:end] or text
    for word, stand_in in _WITHOUT_BRACKETS.items():
        text = text.replace(stand_in, word)
    return text


def _without_templates(name: str, kept: int) -> str:
    """Template arguments nested deeper than kept are left out and marked."""
    parts = []
    depth = 0
    for match in _PARTS.finditer(name):
        part = match.group()
        if part == "<":
            depth += 1
            if depth == kept + 1:
                parts.append("<…>")
        if depth <= kept:
            parts.append(part)
        if part == ">":
            depth = max(depth - 1, 0)
    return "".join(parts)
