"""Parses the text of a snippet: register declarations, ``SAVE`` and instructions, each with its offset in the text."""

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

_COMMENT_START = re.compile(r"//|/\*")
_COMMENT_START_AMD = re.compile(r"//|;|/\*")
_NOT_NEWLINE = re.compile(r"[^\n]")
# A line that begins like a statement: the semicolon of the statement before it is missing.
_NEXT_STATEMENT = re.compile(r"\n[^\S\n]*(?=SAVE\b|\.reg\b|@!?%|[a-z][a-z0-9_]*\.[a-z])")
_REG = re.compile(r"\.reg\s+(?P<type>\.\w+)\s+(?P<declarators>.+)", re.DOTALL)
_REG_NAME = re.compile(r"(%[A-Za-z_$][\w$]*)\s*(?:<\s*(\d{1,9})\s*>)?(?:\s*=\s*(.*))?", re.ASCII | re.DOTALL)
_INTEGER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|[1-9]\d*|0+)", re.ASCII)
_MAX_INTEGER_LENGTH = 68  # 64 binary digits, the prefix and a sign
_DECIMAL = re.compile(r"[+-]?(?:\d{1,400}(?:\.\d{0,400})?|\.\d{1,400})(?:[eE][+-]?\d{1,4})?", re.ASCII)
_INITIAL_HINTS = {
    "p": "write 0 or 1", "f": "write a number such as 1.5; of halves the bits, such as 0x3c00",
    **dict.fromkeys("bus", "write an integer that fits in it"),
}  # fmt: skip
_TYPED_SAVE = re.compile(r"SAVE\s*\.\s*(?P<type>[\w.]*)\s*\{(?P<operands>.*)\}", re.DOTALL)
_SAVE = re.compile(
    r"(?:@\s*(?P<negated>!?)\s*(?P<guard>%[^\s@!]+)\s+)?SAVE\s*\[(?P<map>[^\]]*)\]\s*\{(?P<operands>.*)\}", re.DOTALL
)


class Statement(NamedTuple):
    """One statement without its semicolon. start: offset in the snippet.

    Comments in the text are replaced by as many spaces, so that offsets in it are offsets in the snippet.
    """

    start: int
    text: str


class Declaration(NamedTuple):
    """``%name``, ``%name = initial`` or ``%name<count>``. start: offset in the snippet.

    number: the count, None without one. initial: the bits of the initial value as an unsigned number, None without one.
    """

    start: int
    name: str
    type: str
    number: int | None
    initial: int | None = None


class SaveCall(NamedTuple):
    """``SAVE [ map ] { operands }``. start, map_start and those of the operands are offsets in the snippet.

    guard: the predicate of ``@%p SAVE``. is_inverted: the guard is written ``@!%p``.
    """

    start: int
    map: str
    map_start: int
    operands: tuple[tuple[int, str], ...]
    guard: str | None = None
    is_inverted: bool = False


class Fault(NamedTuple):
    """An error at an offset of a text. code: as in ``errors.Diagnostic``."""

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


def split_lines(text: str) -> tuple[list[Statement], list[Fault]]:
    """Split a snippet in AMD's assembly into statements, one per line; comments may begin with ``;`` too."""
    blanked, faults = _without_comments(text, _COMMENT_START_AMD)
    statements = []
    start = 0  # of the line in the snippet
    for line in blanked.split("\n"):
        indent = len(line) - len(line.lstrip())
        if line.strip():
            statements.append(Statement(start + indent, line.strip()))
        start += len(line) + 1  # and the line end
    return statements, faults


def split_statements(text: str) -> tuple[list[Statement], list[Fault]]:
    """Split a snippet in PTX into its statements, in order, and report missing semicolons and unclosed comments.

    Where a line begins like a new statement, the one before it ends, even without a semicolon.
    """
    blanked, faults = _without_comments(text, _COMMENT_START)
    statements = []
    # A piece has several statements if semicolons between them are missing.
    pieces = blanked.split(";")
    start = 0  # of the piece in the snippet; each next one begins after the semicolon
    for index, piece in enumerate(pieces):
        if not piece.strip():
            start += len(piece) + 1
            continue
        # Where statements without a semicolon end, as offsets in the piece.
        indent = len(piece) - len(piece.lstrip())
        # rstrip: a line break at the end of the piece ends no statement.
        line_breaks = (match.start() for match in _NEXT_STATEMENT.finditer(piece.rstrip()))
        # A line break before the first statement ends none.
        unterminated = [position for position in line_breaks if position > indent]
        is_last = index == len(pieces) - 1
        begin = 0
        for end in (*unterminated, len(piece)):
            part = piece[begin:end]
            # Only a piece as a whole ends at a semicolon, and the last one at the end of the snippet.
            has_semicolon = end == len(piece) and not is_last
            # A line with a comment of TOML is reported once, as no instruction.
            if not has_semicolon and not part.lstrip().startswith("#"):
                place = start + begin + len(part.rstrip())
                faults.append(Fault(place, "no-semicolon", "no ';' after the statement", "end it with ';'"))
            if part.strip():
                statements.append(Statement(start + begin + len(part) - len(part.lstrip()), part.strip()))
            begin = end
        start += len(piece) + 1
    return statements, faults


def _without_comments(text: str, comment_start: re.Pattern[str]) -> tuple[str, list[Fault]]:
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


def parse_declaration(statement: Statement) -> tuple[list[Declaration], list[Fault]]:
    """Parse a ``.reg`` statement, such as ``.reg .u64 %start, %count = 1;``, and return what it declares."""
    match = _REG.fullmatch(statement.text)
    if not match:
        return [], [Fault(statement.start, "declaration", "cannot read the declaration", "write '.reg .b64 %name;'")]
    type_name = match["type"].removeprefix(".")
    if type_name not in REGISTER_TYPES:
        hint = "use " + ", ".join(f".{name}" for name in REGISTER_TYPES)
        message = f"registers have no type '.{type_name}' in a probe"
        return [], [Fault(statement.start + match.start("type"), "declared-type", message, hint)]
    declarations = []
    faults = []
    for start, word in _list_items(match["declarators"], statement.start + match.start("declarators")):
        declaration, declaration_faults = _parse_declarator(start, word, type_name)
        faults += declaration_faults
        if declaration is not None:
            declarations.append(declaration)
    return declarations, faults


def _parse_declarator(start: int, word: str, type_name: str) -> tuple[Declaration | None, list[Fault]]:
    """Parse one item of a ``.reg`` statement: ``%name``, ``%name<count>`` or ``%name = initial``.

    start: offset of the word in the snippet. type_name: that the statement declares. With an invalid initial value
    there are both a declaration and a fault, so that uses of the register are not reported too.
    """
    match = _REG_NAME.fullmatch(" ".join(word.split()))
    if not match:
        hint = "names begin with '%', such as %elapsed"
        return None, [Fault(start, "register-name", f"'{word}' is no register name", hint)]
    name, count_digits, initial_text = match.groups()
    if len(name) > MAX_REGISTER_NAME:
        hint = f"names have at most {MAX_REGISTER_NAME} characters"
        return None, [Fault(start, "register-name", f"a register name of {len(name)} characters", hint)]
    if count_digits and not 0 < int(count_digits) <= MAX_REGISTERS:
        message = f"'{word}' does not declare 1 to {MAX_REGISTERS} registers"
        return None, [Fault(start, "register-count", message, f"write a number from 1 on, such as {name}<4>")]
    count = int(count_digits) if count_digits else None
    initial = None
    faults = []
    if initial_text is not None:
        after_sign = word.partition("=")[2]
        place = start + len(word) - len(after_sign.lstrip())
        if count is not None:
            hint = "declare each that has a first value by its own name"
            faults.append(Fault(place, "initial-value", f"one value for {count} registers", hint))
        else:
            initial = initial_bits(type_name, initial_text)
            if initial is None:
                message = f"'{initial_text}' is no value of a .{type_name} register"
                faults.append(Fault(place, "initial-value", message, _INITIAL_HINTS[type_name[0]]))
    return Declaration(start, name, type_name, count, initial), faults


def bits_of(type_name: str) -> int:
    """Return the width in bits of one of ``REGISTER_TYPES``; 1 for ``pred``."""
    return {"pred": 1, "f16x2": 32}.get(type_name) or int(type_name[1:])  # all others are a letter and the width


def initial_bits(type_name: str, word: str) -> int | None:
    """Return the bits of a register's initial value as an unsigned number; None if ``word`` is no value of its type.

    Integers are decimal, ``0x`` or ``0b``, with an optional sign. For ``f32`` and ``f64`` the value is decimal, or its
    bits as ``0f3F800000``. For ``f16`` and ``f16x2`` it is the bits, as an integer.
    """
    if type_name in ("f32", "f64"):
        return _float_bits(type_name, word)
    # Longer integers fit no type, and Python does not convert thousands of digits.
    if not _INTEGER.fullmatch(word) or len(word) > _MAX_INTEGER_LENGTH:
        return None
    value = int(word, 0)  # 0: with its prefix
    bits = bits_of(type_name)
    if type_name == "pred":
        return value if value in (0, 1) else None
    if not literal_fits(bits, signed=type_name.startswith("s"), text=word, value=value):
        return None
    return value % (1 << bits)  # two's complement of a negative value


def literal_fits(bits: int, signed: bool, text: str, value: int) -> bool:
    """Return whether an integer literal fits a type of that many bits. text: the literal, of which value is the value.

    Unsigned types also accept negative numbers: -1 means all bits set. Signed types accept values above their maximum
    in hexadecimal, octal or binary only, where the literal gives the bit pattern.
    """
    if not -(1 << (bits - 1)) <= value < 1 << bits:
        return False
    digits = text.lstrip("+-")
    # Others begin with 0x, 0b or, in octal, 0; a single 0 is decimal.
    is_decimal = len(digits) == 1 or not digits.startswith("0")
    return not signed or value < 1 << (bits - 1) or not is_decimal


def _float_bits(type_name: str, word: str) -> int | None:
    """Return the IEEE 754 bits of an ``f32`` or ``f64`` literal, decimal or ``0f3F800000``; None if it is none."""
    pack_format, digits, prefix = (">f", 8, "f") if type_name == "f32" else (">d", 16, "d")
    if re.fullmatch(rf"0[{prefix}{prefix.upper()}][0-9a-fA-F]{{{digits}}}", word):
        return int(word[2:], 16)
    if not _DECIMAL.fullmatch(word):
        return None
    try:
        return int.from_bytes(struct.pack(pack_format, float(word)), "big")
    except OverflowError:
        return None  # a number above the greatest float


def parse_save(statement: Statement) -> SaveCall | TypedSave | Fault:
    """Parse a ``SAVE`` statement of either dialect, or return why it cannot be parsed."""
    # Offsets in the statement become offsets in the snippet.
    match = _SAVE.fullmatch(statement.text)
    if match:
        operands = tuple(_list_items(match["operands"], statement.start + match.start("operands")))
        name = match["map"].strip()
        map_start = statement.start + statement.text.index(name, match.start("map"))
        is_inverted = match["negated"] == "!"
        return SaveCall(statement.start, name, map_start, operands, match["guard"], is_inverted)
    match = _TYPED_SAVE.fullmatch(statement.text)
    if match:
        operands = tuple(_list_items(match["operands"], statement.start + match.start("operands")))
        return TypedSave(statement.start, match["type"], statement.start + match.start("type"), operands)
    if statement.text.startswith("SAVE."):
        return Fault(statement.start, "save-form", "cannot read the SAVE", "write 'SAVE.u64 { %a, %b };'")
    return Fault(statement.start, "save-form", "cannot read the SAVE", "write 'SAVE [ MAP ] { %a, %b };'")


def _list_items(text: str, start: int) -> list[tuple[int, str]]:
    """Split at commas; return the offset and text of each item. start: offset of the text, added to theirs."""
    if not text.strip():
        return []
    items = []
    for word in text.split(","):
        indent = len(word) - len(word.lstrip())
        items.append((start + indent, word.strip()))
        start += len(word) + 1  # and the comma
    return items
