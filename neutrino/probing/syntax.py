"""Parses ``SAVE`` in the text of a snippet, with its offset in the text; instructions are parsed by their target."""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_REGISTER_NAME = 200
"""Characters of a register's name. Assemblers promise some more; a prefix and a number join them."""

_NOT_NEWLINE = re.compile(r"[^\n]")
_TYPED_SAVE = re.compile(r"SAVE\s*\.\s*(?P<type>[\w.]*)\s*\{(?P<operands>.*)\}", re.DOTALL)
_SAVE_WORD = re.compile(r"SAVE\b")
_SAVE = r"SAVE\s*\[(?P<map>[^\]]*)\]\s*\{(?P<operands>.*)\}"

NO_GUARD = r"(?!)(?P<negated>)(?P<guard>)"
"""For ``is_save`` and ``parse_save``: a SAVE with a predicate before it is none."""


class Statement(NamedTuple):
    """One statement without its semicolon. start: offset in the snippet.

    Comments in the text are replaced by as many spaces, so that offsets in it are offsets in the snippet.
    """

    start: int
    text: str


class SaveCall(NamedTuple):
    """``SAVE [ map ] { operands }``. start, map_start and those of the operands are offsets in the snippet.

    guard: the predicate before it. is_inverted: it saves where that is false.
    """

    start: int
    map: str
    map_start: int
    operands: tuple[tuple[int, str], ...]
    guard: str | None = None
    is_inverted: bool = False


class Fault(NamedTuple):
    """An error at an offset of a text. code: see ``errors.Diagnostic``."""

    start: int
    code: str
    message: str
    hint: str = ""


class TypedSave(NamedTuple):
    """``SAVE.type { operands }``, of the older dialect. All starts are offsets in the snippet."""

    start: int
    type: str
    type_start: int
    operands: tuple[tuple[int, str], ...]


def without_comments(text: str, comment_start: re.Pattern[str]) -> tuple[str, list[Fault]]:
    """Replace comments by spaces, so that offsets stay the same; an unclosed comment is a fault and ends the text.

    comment_start: matches what begins a comment, which depends on the assembly language.
    """
    pieces = []
    position = 0  # up to which the text is in the pieces
    while match := comment_start.search(text, position):
        pieces.append(text[position : match.start()])
        is_block_comment = match.group() == "/*"
        if is_block_comment:
            end = text.find("*/", match.end())
            if end < 0:
                fault = Fault(match.start(), "open-comment", "comment without its end", "close it with '*/'")
                return "".join(pieces), [fault]
            end += len("*/")
        else:
            # A line comment ends with its line, or with the text.
            end = text.find("\n", match.end())
            end = len(text) if end < 0 else end
        # Line ends stay: they may end a statement whose semicolon is missing.
        pieces.append(_NOT_NEWLINE.sub(" ", text[match.start() : end]))
        position = end
    return "".join((*pieces, text[position:])), []


def is_save(text: str, guard: str) -> bool:
    """Return whether a statement of a probe is meant as a ``SAVE``, which appends a record to one of the probe's maps.

    guard: see ``target.Language.save_guard``.
    """
    return bool(_SAVE_WORD.match(text) or re.match(rf"{guard}\s+SAVE\s*\[", text))


def parse_save(statement: Statement, guard: str, saved: str) -> SaveCall | TypedSave | Fault:
    """Parse a ``SAVE`` statement, by which a probe appends a record to a map; of either dialect of probe files. Return
    why it cannot be parsed if so.

    guard: see ``target.Language.save_guard``. saved: what is saved, for hints.
    """
    # Offsets in the statement become offsets in the snippet.
    match = re.fullmatch(rf"(?:{guard}\s+)?{_SAVE}", statement.text, re.DOTALL)
    if match:
        operands = tuple(list_items(match["operands"], statement.start + match.start("operands")))
        name = match["map"].strip()
        map_start = statement.start + statement.text.index(name, match.start("map"))
        is_inverted = match["negated"] == "!"
        return SaveCall(statement.start, name, map_start, operands, match["guard"], is_inverted)
    match = _TYPED_SAVE.fullmatch(statement.text)
    if match:
        operands = tuple(list_items(match["operands"], statement.start + match.start("operands")))
        return TypedSave(statement.start, match["type"], statement.start + match.start("type"), operands)
    if statement.text.startswith("SAVE."):
        return Fault(statement.start, "save-form", "cannot read the SAVE", f"write 'SAVE.u64 {saved}'")
    return Fault(statement.start, "save-form", "cannot read the SAVE", f"write 'SAVE [ MAP ] {saved}'")


def list_items(text: str, start: int) -> list[tuple[int, str]]:
    """Split the text of operands at commas; return the offset and text of each item.

    start: offset of the text, added to theirs.
    """
    if not text.strip():
        return []
    items = []
    for word in text.split(","):
        indent = len(word) - len(word.lstrip())
        items.append((start + indent, word.strip()))
        start += len(word) + 1  # and the comma
    return items
