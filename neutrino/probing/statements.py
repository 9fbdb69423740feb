"""A snippet's text taken apart: declarations, SAVE and instructions, each with its place in the text."""

from __future__ import annotations

import re
import struct
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
_REG_NAME = re.compile(r"(%[A-Za-z_$][\w$]*)\s*(?:<\s*(\d{1,9})\s*>)?(?:\s*=\s*(.*))?", re.ASCII | re.DOTALL)
_INTEGER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|[1-9]\d*|0+)", re.ASCII)
_LONGEST_INTEGER = 68  # 64 binary digits, the prefix and a sign
_DECIMAL = re.compile(r"[+-]?(?:\d{1,400}(?:\.\d{0,400})?|\.\d{1,400})(?:[eE][+-]?\d{1,4})?", re.ASCII)
_INITIAL_HINTS = {
    "p": "write 0 or 1", "f": "write a number such as 1.5; of halves the bits, such as 0x3c00",
    **dict.fromkeys("bus", "write an integer that fits in it"),
}  # fmt: skip
_SAVE = re.compile(r"SAVE\s*\[\s*([^\]\s]*)\s*\]\s*\{(.*)\}", re.DOTALL)


@dataclass(frozen=True)
class Statement:
    """One statement without comments and semicolon. start: offset in the snippet; text keeps its length."""

    start: int
    text: str


@dataclass(frozen=True)
class Declaration:
    """``%name``, ``%name = initial`` or ``%name<count>``. start: offset in the snippet.

    count: None for a single register. initial: its first bits as an unsigned number, None where none is written.
    """

    start: int
    name: str
    type: str
    count: int | None
    initial: int | None = None


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
    code: str = ""


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
            initial = None
            if name.group(3) is not None:
                place = start + name.start(3)
                if count is not None:
                    hint = "declare each that has a first value by its own name"
                    faults.append(Fault(place, f"one value for {count} registers", hint, "initial-value"))
                    continue
                initial = initial_bits(kind, name.group(3))
                if initial is None:
                    message = f"'{name.group(3)}' is no value of a .{kind} register"
                    faults.append(Fault(place, message, _INITIAL_HINTS[kind[0]], "initial-value"))
                    continue
            declarations.append(Declaration(start, name.group(1), kind, count, initial))
    return declarations, faults


def initial_bits(kind: str, word: str) -> int | None:
    """The bits of a register of a type whose value is written so, as an unsigned number; None: it is no such value.

    Integers are decimal, ``0x`` or ``0b``, with a sign; those of ``f32`` and ``f64`` decimal, or their bits as
    ``0f3F800000``. Of ``f16`` and ``f16x2`` the bits are written, as an integer.
    """
    if kind in ("f32", "f64"):
        return _float_bits(kind, word)
    match = _INTEGER.fullmatch(word)
    if not match or len(word) > _LONGEST_INTEGER:
        return None
    value = int(word, 0)
    bits = {"pred": 1, "f16x2": 32}.get(kind) or int(kind[1:])
    lowest = -(1 << (bits - 1)) if kind[0] in "sb" else 0
    highest = (1 << (bits - 1)) - 1 if kind[0] == "s" else (1 << bits) - 1
    return value % (1 << bits) if lowest <= value <= highest else None


def _float_bits(kind: str, word: str) -> int | None:
    form, digits, prefix = (">f", 8, "f") if kind == "f32" else (">d", 16, "d")
    if re.fullmatch(rf"0[{prefix}{prefix.upper()}][0-9a-fA-F]{{{digits}}}", word):
        return int(word[2:], 16)
    if not _DECIMAL.fullmatch(word):
        return None
    try:
        return int.from_bytes(struct.pack(form, float(word)), "big")
    except OverflowError:
        return None


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
