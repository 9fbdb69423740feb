"""A snippet's text taken apart: declarations, SAVE and instructions, each with its place in the text."""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_REGISTERS = 256
"""Registers that one ``%name<N>`` may declare: a thread has no more (PTX ISA 9.0, 11.4.3, ``.maxnreg``)."""

REGISTER_TYPES = (
    "pred", "b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", "f16", "f16x2", "f32", "f64",
)  # fmt: skip
"""Types that ``.reg`` takes in a probe, without the dot."""

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_NEXT_STATEMENT = re.compile(r"\n\s*(?=SAVE\b|\.reg\b|@!?%|[a-z][a-z0-9_]*\.[a-z])")
_REG = re.compile(r"\.reg\s+(\.\w+)\s+(.+)", re.DOTALL)
_REG_NAME = re.compile(r"(%[A-Za-z_$][\w$]*)\s*(?:<\s*(\d+)\s*>)?")
_SAVE = re.compile(r"SAVE\s*\[\s*([^\]\s]*)\s*\]\s*\{(.*)\}", re.DOTALL)


@dataclass(frozen=True)
class Statement:
    """One statement without comments and semicolon. start: offset in the snippet; text keeps its length."""

    start: int
    text: str


@dataclass(frozen=True)
class Declaration:
    """``%name`` or ``%name<count>``. count: None for a single register. start: offset in the snippet."""

    start: int
    name: str
    type: str
    count: int | None


@dataclass(frozen=True)
class SaveCall:
    """``SAVE [ map ] { operands }``. Starts are offsets in the snippet."""

    start: int
    map: str
    map_start: int
    operands: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Fault:
    """What is wrong at an offset of the snippet."""

    start: int
    message: str
    hint: str = ""


def split_statements(text: str) -> tuple[list[Statement], list[Fault]]:
    """The statements of a snippet in order, and the faults of its punctuation."""
    faults = []
    blanked = _COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)
    opening = blanked.find("/*")
    if opening >= 0:
        faults.append(Fault(opening, "comment without its end", "close it with '*/'"))
        blanked = blanked[:opening]
    statements = []
    pieces = blanked.split(";")
    start = 0
    for index, piece in enumerate(pieces):
        breaks = [match.start() for match in _NEXT_STATEMENT.finditer(piece.rstrip())]
        ends = [position for position in breaks if piece[:position].strip()]
        if index == len(pieces) - 1 and piece.strip():
            ends.append(len(piece))
        begin = 0
        for end in dict.fromkeys([*ends, len(piece)]):
            if end in ends:
                faults.append(
                    Fault(start + len(piece[:end].rstrip()), "no ';' after the statement", "end it with ';'")
                )
            part = piece[begin:end]
            if part.strip():
                statements.append(Statement(start + begin + len(part) - len(part.lstrip()), part.strip()))
            begin = end
        start += len(piece) + 1
    return statements, faults


def parse_declaration(statement: Statement) -> tuple[list[Declaration], list[Fault]]:
    """The registers that a ``.reg`` statement declares."""
    match = _REG.fullmatch(statement.text)
    if not match:
        return [], [Fault(statement.start, "cannot read the declaration", "write '.reg .b64 %name;'")]
    kind = match.group(1)[1:]
    if kind not in REGISTER_TYPES:
        hint = "use " + ", ".join(f".{name}" for name in REGISTER_TYPES)
        message = f"registers have no type '.{kind}' in a probe"
        return [], [Fault(statement.start + match.start(1), message, hint)]
    declarations = []
    faults = []
    for start, word in _list_items(match.group(2), statement.start + match.start(2)):
        name = _REG_NAME.fullmatch(word)
        if not name:
            hint = "names begin with '%', such as %elapsed"
            faults.append(Fault(start, f"'{word}' is no register name", hint))
        elif name.group(2) and not 0 < int(name.group(2)) <= MAX_REGISTERS:
            faults.append(Fault(start, f"'{word}' does not declare 1 to {MAX_REGISTERS} registers"))
        else:
            count = int(name.group(2)) if name.group(2) else None
            declarations.append(Declaration(start, name.group(1), kind, count))
    return declarations, faults


def parse_save(statement: Statement) -> SaveCall | Fault:
    """A ``SAVE`` statement taken apart."""
    match = _SAVE.fullmatch(statement.text)
    if match:
        operands = tuple(_list_items(match.group(2), statement.start + match.start(2)))
        return SaveCall(statement.start, match.group(1), statement.start + match.start(1), operands)
    if statement.text.startswith("SAVE."):
        return Fault(
            statement.start,
            "a SAVE of the older dialect, without a map",
            "declare a [map.NAME] and write 'SAVE [ NAME ] { … };'",
        )
    return Fault(statement.start, "cannot read the SAVE", "write 'SAVE [ MAP ] { %a, %b };'")


def _list_items(text: str, start: int) -> list[tuple[int, str]]:
    if not text.strip():
        return []
    items = []
    for word in text.split(","):
        items.append((start + len(word) - len(word.lstrip()), word.strip()))
        start += len(word) + 1
    return items
