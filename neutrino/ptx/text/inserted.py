"""Code to insert, as values: instructions, labels, scopes and declarations; and edits of a text, where it becomes text.

Inserted code is printed once, by ``Inserted.text``. Whatever asks what it does asks the values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from typing import NamedTuple, Protocol, TypeAlias

from neutrino.ptx.isa.instruction import Instruction


class Line(Protocol):
    """What inserted code consists of."""

    @property
    def text(self) -> str:
        """The text in PTX: one line or more, without the last end of a line."""
        ...

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """The instructions that the line consists of, in order; for a label, a scope or a declaration none."""
        ...

    @property
    def opcodes(self) -> tuple[str, ...]:
        """The opcodes of the line's instructions, in order; for a label, a scope or a declaration none."""
        ...


Lines: TypeAlias = list[Line]
"""Code that grows while it is written."""


class Label(NamedTuple):
    """A label. name: without the colon."""

    name: str

    @property
    def text(self) -> str:
        """The label as a line of PTX, such as ``NAME:``."""
        return f"{self.name}:"

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """The instructions that this line consists of: none, since a label is no instruction."""
        return ()

    @property
    def opcodes(self) -> tuple[str, ...]:
        """The opcodes of this line's instructions: none, since a label is no instruction."""
        return ()


class Scope(Enum):
    """Where a scope of names begins or ends. Labels within are local to it."""

    OPEN = "{"
    CLOSE = "}"

    @property
    def text(self) -> str:
        """The brace that opens or closes the scope."""
        return self.value

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """The instructions that this line consists of: none, since a brace is no instruction."""
        return ()

    @property
    def opcodes(self) -> tuple[str, ...]:
        """The opcodes of this line's instructions: none, since a brace is no instruction."""
        return ()


class Declaration(NamedTuple):
    """A declaration of registers, or of a variable in memory.

    space: ``reg`` or ``local``. type: without its dot. size: how many registers with numbered names, or elements
    of a variable; 0 for a single register. align: of a variable, in bytes.
    """

    space: str
    type: str
    name: str
    size: int = 0
    align: int = 0

    @property
    def text(self) -> str:
        """The declaration as PTX text, such as ``.reg .b32 %r<5>;``."""
        if self.space == "reg":
            return f".reg .{self.type} {self.name}{f'<{self.size}>' if self.size else ''};"
        return f".{self.space} .align {self.align} .{self.type} {self.name}[{self.size}];"

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """The instructions that this line consists of: none, since a declaration is no instruction."""
        return ()

    @property
    def opcodes(self) -> tuple[str, ...]:
        """The opcodes of this line's instructions: none, since a declaration is no instruction."""
        return ()


_new = tuple.__new__  # what ``Instruction`` does, without a call of Python in between


def op(opcode: str, *operands: str, when: str = "") -> Instruction:
    """Return an instruction to insert. when: the predicate under which it executes, ``%p`` or ``!%p``; "" for all
    threads."""
    if not when:
        return _new(Instruction, (None, False, opcode, operands))
    if when[0] == "!":
        return _new(Instruction, (when[1:], True, opcode, operands))
    return _new(Instruction, (when, False, opcode, operands))


def mem(base: str, offset: int = 0) -> str:
    """Return the operand for the memory at an address plus an offset in bytes, such as ``[%rd1+8]``."""
    return f"[{base}+{offset}]" if offset else f"[{base}]"


def vector(*elements: str) -> str:
    """Return the operand for several registers side by side, such as ``{%r1, %r2}``."""
    return f"{{{', '.join(elements)}}}"


def branches(lines: Iterable[Line]) -> bool:
    """Return whether code holds a branch, after which the lanes of a warp need not run together."""
    return any(opcode.startswith("bra") for line in lines for opcode in line.opcodes)


class Inserted:
    """Code that goes right before an instruction, or right after one. It is printed once, wherever it goes."""

    __slots__ = ("_opcodes", "_text", "is_after", "lines")

    def __init__(self, lines: Iterable[Line], *, is_after: bool) -> None:
        """Make a piece of code to insert. is_after: it goes right after an instruction, so that a line break comes
        before it."""
        self.lines = tuple(lines)
        self.is_after = is_after
        self._text: str | None = None
        self._opcodes: list[str] | None = None

    @property
    def text(self) -> str:
        """The code as it stands in the text; "" if there are no lines."""
        if self._text is None:
            lines = [line.text for line in self.lines]
            self._text = "\n\t".join(["", *lines] if self.is_after else [*lines, ""]) if lines else ""
        return self._text

    @property
    def opcodes(self) -> list[str]:
        """The opcodes of the code's instructions, in their order."""
        if self._opcodes is None:
            self._opcodes = opcodes = []
            for line in self.lines:
                if type(line) is Instruction:  # most are, and this is faster
                    opcodes.append(line.opcode)
                else:
                    opcodes += line.opcodes
        return self._opcodes


@dataclass
class Edits:
    """Replacements and insertions in a module's text. Positions are those of the text without any edit.

    edits: (start, end, new text), in any order; an insertion has start == end. The new texts of edits at one start
    stand in the order of this list.
    """

    edits: list[tuple[int, int, str | Inserted]] = field(default_factory=list)

    def insert(self, at: int, text: str | Inserted) -> None:
        """Insert text before a position of the original text, after what was inserted there already."""
        if text if isinstance(text, str) else text.lines:
            self.edits.append((at, at, text))

    def insert_first(self, at: int, text: str | Inserted) -> None:
        """Insert text before a position of the original text, before what was inserted there already."""
        self.edits.insert(0, (at, at, text))

    def insert_before(self, at: int, lines: Sequence[Line]) -> None:
        """Insert instructions, one per line, right before the instruction at a position."""
        self.insert(at, before(lines))

    def replace(self, start: int, end: int, text: str) -> None:
        """Have the original text from start to end replaced by another."""
        self.edits.append((start, end, text))

    def inserted_opcodes(self) -> Iterator[str]:
        """Yield the opcode of each instruction that is inserted."""
        return chain.from_iterable(new.opcodes for _, _, new in self.edits if not isinstance(new, str))

    def apply(self, text: str, start: int, end: int) -> str:
        """Return the text from start to end with the edits, which must lie in it and not overlap."""
        pieces = []
        copied_to = start
        # Sorted by the start alone: the sort is stable, so that edits at one position keep their order.
        for begin, stop, new in sorted(self.edits, key=lambda edit: edit[0]):
            pieces += [text[copied_to:begin], new if isinstance(new, str) else new.text]
            copied_to = stop
        pieces.append(text[copied_to:end])
        return "".join(pieces)


def before(lines: Sequence[Line]) -> Inserted:
    """Make code that is inserted right before an instruction, with line breaks that fit."""
    return Inserted(lines, is_after=False)


def after(lines: Sequence[Line]) -> Inserted:
    """Make code that is inserted right after an instruction, with line breaks that fit."""
    return Inserted(lines, is_after=True)
