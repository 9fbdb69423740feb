"""A snippet's text taken apart: declarations, SAVE and instructions, each with its place in the text."""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

MAX_REGISTERS = 256
"""Registers that one ``%name<N>`` may declare: a thread has no more (PTX ISA 9.0, 11.4.3, ``.maxnreg``)."""

MAX_REGISTER_NAME = 200
"""Characters of a register's name. PTX promises 1 024 of an identifier; a prefix and a number join them."""

REGISTER_TYPES = (
    "pred", "b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", "f16", "f16x2", "f32", "f64",
)  # fmt: skip
"""Types that ``.reg`` takes in a probe, without the dot."""

_COMMENT = re.compile(r"//|/\*")
_COMMENT_AMD = re.compile(r"//|;|/\*")
_VISIBLE = re.compile(r"[^\n]")
_NEXT_STATEMENT = re.compile(r"\n[^\S\n]*(?=SAVE\b|\.reg\b|@!?%|[a-z][a-z0-9_]*\.[a-z])")
_REG = re.compile(r"\.reg\s+(\.\w+)\s+(.+)", re.DOTALL)
_REG_NAME = re.compile(r"(%[A-Za-z_$][\w$]*)\s*(?:<\s*(\d{1,9})\s*>)?(?:\s*=\s*(.*))?", re.ASCII | re.DOTALL)
_INTEGER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|[1-9]\d*|0+)", re.ASCII)
_LONGEST_INTEGER = 68  # 64 binary digits, the prefix and a sign
_DECIMAL = re.compile(r"[+-]?(?:\d{1,400}(?:\.\d{0,400})?|\.\d{1,400})(?:[eE][+-]?\d{1,4})?", re.ASCII)
_INITIAL_HINTS = {
    "p": "write 0 or 1", "f": "write a number such as 1.5; of halves the bits, such as 0x3c00",
    **dict.fromkeys("bus", "write an integer that fits in it"),
}  # fmt: skip
_TYPED_SAVE = re.compile(r"SAVE\s*\.\s*([\w.]*)\s*\{(.*)\}", re.DOTALL)
_SAVE = re.compile(r"(?:@\s*(!?)\s*(%[^\s@!]+)\s+)?SAVE\s*\[([^\]]*)\]\s*\{(.*)\}", re.DOTALL)


class Statement(NamedTuple):
    """One statement without comments and semicolon. start: offset in the snippet; text keeps its length."""

    start: int
    text: str


class Declaration(NamedTuple):
    """``%name``, ``%name = initial`` or ``%name<count>``. start: offset in the snippet.

    number: how many, None for a single one. initial: its first bits as an unsigned number, None where none is written.
    """

    start: int
    name: str
    type: str
    number: int | None
    initial: int | None = None


class SaveCall(NamedTuple):
    """``SAVE [ map ] { operands }``. Starts are offsets in the snippet.

    guard: the predicate of ``@%p SAVE``; is_inverted: as ``@!%p``.
    """

    start: int
    map: str
    map_start: int
    operands: tuple[tuple[int, str], ...]
    guard: str | None = None
    is_inverted: bool = False


class Fault(NamedTuple):
    """What is wrong at an offset of a text. code: as in ``errors.Diagnostic``."""

    start: int
    code: str
    message: str
    hint: str = ""


class TypedSave(NamedTuple):
    """``SAVE.type { operands }``, of the older dialect. Starts are offsets in the snippet."""

    start: int
    type: str
    type_start: int
    operands: tuple[tuple[int, str], ...]


def split_lines(text: str) -> tuple[list[Statement], list[Fault]]:
    """The statements of a snippet in AMD's assembly: one per line, with comments after ``;`` too."""
    blanked, faults = _without_comments(text, _COMMENT_AMD)
    statements = []
    start = 0
    for line in blanked.split("\n"):
        if line.strip():
            statements.append(Statement(start + len(line) - len(line.lstrip()), line.strip()))
        start += len(line) + 1
    return statements, faults


def split_statements(text: str) -> tuple[list[Statement], list[Fault]]:
    """The statements of a snippet in order, and the faults of its punctuation."""
    blanked, faults = _without_comments(text, _COMMENT)
    statements = []
    pieces = blanked.split(";")
    start = 0
    for index, piece in enumerate(pieces):
        if not piece.strip():
            start += len(piece) + 1
            continue
        first = len(piece) - len(piece.lstrip())
        breaks = (match.start() for match in _NEXT_STATEMENT.finditer(piece.rstrip()))
        ends = [position for position in breaks if position > first]
        if index == len(pieces) - 1 and piece.strip():
            ends.append(len(piece))
        begin = 0
        for end in dict.fromkeys([*ends, len(piece)]):
            # Comments of TOML are none here, which is said of them as statements.
            if (end < len(piece) or ends[-1:] == [end]) and not piece[begin:end].lstrip().startswith("#"):
                place = start + begin + len(piece[begin:end].rstrip())
                faults.append(Fault(place, "no-semicolon", "no ';' after the statement", "end it with ';'"))
            part = piece[begin:end]
            if part.strip():
                statements.append(Statement(start + begin + len(part) - len(part.lstrip()), part.strip()))
            begin = end
        start += len(piece) + 1
    return statements, faults


def _without_comments(text: str, opening: re.Pattern[str]) -> tuple[str, list[Fault]]:
    """The text with comments as spaces, up to one that never ends."""
    pieces = []
    position = 0
    while match := opening.search(text, position):
        pieces.append(text[position : match.start()])
        if match.group() == "/*":
            end = text.find("*/", match.end())
            if end < 0:
                fault = Fault(match.start(), "open-comment", "comment without its end", "close it with '*/'")
                return "".join(pieces), [fault]
            end += 2
        else:
            end = text.find("\n", match.end())
            end = len(text) if end < 0 else end
        pieces.append(_VISIBLE.sub(" ", text[match.start() : end]))
        position = end
    return "".join((*pieces, text[position:])), []


def parse_declaration(statement: Statement) -> tuple[list[Declaration], list[Fault]]:
    """The registers that a ``.reg`` statement declares."""
    match = _REG.fullmatch(statement.text)
    if not match:
        return [], [Fault(statement.start, "declaration", "cannot read the declaration", "write '.reg .b64 %name;'")]
    kind = match.group(1)[1:]
    if kind not in REGISTER_TYPES:
        hint = "use " + ", ".join(f".{name}" for name in REGISTER_TYPES)
        message = f"registers have no type '.{kind}' in a probe"
        return [], [Fault(statement.start + match.start(1), "declared-type", message, hint)]
    declarations = []
    faults = []
    for start, word in _list_items(match.group(2), statement.start + match.start(2)):
        name = _REG_NAME.fullmatch(" ".join(word.split()))
        if not name:
            hint = "names begin with '%', such as %elapsed"
            faults.append(Fault(start, "register-name", f"'{word}' is no register name", hint))
        elif len(name.group(1)) > MAX_REGISTER_NAME:
            hint = f"names have at most {MAX_REGISTER_NAME} characters"
            faults.append(Fault(start, "register-name", f"a register name of {len(name.group(1))} characters", hint))
        elif name.group(2) and not 0 < int(name.group(2)) <= MAX_REGISTERS:
            message = f"'{word}' does not declare 1 to {MAX_REGISTERS} registers"
            hint = f"write a number from 1 on, such as {name.group(1)}<4>"
            faults.append(Fault(start, "register-count", message, hint))
        else:
            count = int(name.group(2)) if name.group(2) else None
            initial = None
            if name.group(3) is not None:
                place = start + len(word) - len(word.partition("=")[2].lstrip())
                if count is not None:
                    hint = "declare each that has a first value by its own name"
                    faults.append(Fault(place, "initial-value", f"one value for {count} registers", hint))
                else:
                    initial = initial_bits(kind, name.group(3))
                    if initial is None:
                        message = f"'{name.group(3)}' is no value of a .{kind} register"
                        faults.append(Fault(place, "initial-value", message, _INITIAL_HINTS[kind[0]]))
            declarations.append(Declaration(start, name.group(1), kind, count, initial))
    return declarations, faults


def bits_of(kind: str) -> int:
    """Bits of a register of one of ``REGISTER_TYPES``."""
    return {"pred": 1, "f16x2": 32}.get(kind) or int(kind[1:])


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
    bits = bits_of(kind)
    if kind == "pred":
        return value if value in (0, 1) else None
    return value % (1 << bits) if literal_fits(bits, kind[0] == "s", word, value) else None


def literal_fits(bits: int, signed: bool, text: str, value: int) -> bool:
    """Whether an integer literal fits a type of so many bits. value: of the literal.

    Unsigned types also accept negative numbers: -1 means all bits set. Signed types accept values above their maximum
    in hexadecimal, octal or binary only, where the literal gives the bit pattern.
    """
    if not -(1 << (bits - 1)) <= value < 1 << bits:
        return False
    digits = text.lstrip("+-")
    is_decimal = len(digits) == 1 or not digits.startswith("0")
    return not signed or value < 1 << (bits - 1) or not is_decimal


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


def parse_save(statement: Statement) -> SaveCall | TypedSave | Fault:
    """A ``SAVE`` statement taken apart."""
    match = _SAVE.fullmatch(statement.text)
    if match:
        operands = tuple(_list_items(match.group(4), statement.start + match.start(4)))
        name = match.group(3).strip()
        place = statement.start + statement.text.index(name, match.start(3))
        return SaveCall(statement.start, name, place, operands, match.group(2), match.group(1) == "!")
    match = _TYPED_SAVE.fullmatch(statement.text)
    if match:
        operands = tuple(_list_items(match.group(2), statement.start + match.start(2)))
        return TypedSave(statement.start, match.group(1), statement.start + match.start(1), operands)
    if statement.text.startswith("SAVE."):
        return Fault(statement.start, "save-form", "cannot read the SAVE", "write 'SAVE.u64 { %a, %b };'")
    return Fault(statement.start, "save-form", "cannot read the SAVE", "write 'SAVE [ MAP ] { %a, %b };'")


def _list_items(text: str, start: int) -> list[tuple[int, str]]:
    if not text.strip():
        return []
    items = []
    for word in text.split(","):
        items.append((start + len(word) - len(word.lstrip()), word.strip()))
        start += len(word) + 1
    return items
