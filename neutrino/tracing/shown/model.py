"""Lines, tables and sections: what a report shows, before anything is written as text or as a page.

Nothing here is escaped or shortened. Names come from the program and may hold anything (markup, escape sequences,
line breaks): whoever renders escapes all texts, of ``Cell``, ``Name`` and ``Line`` alike, for its own medium. Names of
kernels stand as ``Name``, so that a narrow medium can shorten them and a page can say all of them in a tip.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from enum import Enum

from neutrino.late_dataclass import dataclass

Value = int | float | str | None
"""What a cell is to programs and for sorting; None where its text is all there is."""


@dataclass(frozen=True)
class Name:
    """A kernel's name in a line or cell. text: demangled, whole. kernel: its id in the trace; None of several."""

    text: str
    kernel: int | None = None


@dataclass(frozen=True)
class Line:
    """A line of text: pieces one after the other. indent: levels below its section's title, from 0.

    role: what it is: "text", "note" (what a reader must know), or "remedy" (what helps).
    """

    parts: tuple[str | Name, ...]
    indent: int = 0
    role: str = "text"

    @classmethod
    def of(cls, *parts: str | Name, indent: int = 0, role: str = "text") -> Line:
        """Return a line of these pieces."""
        return cls(parts, indent, role)

    @property
    def text(self) -> str:
        """The whole line, with whole names; not escaped."""
        return "".join(part.text if isinstance(part, Name) else part for part in self.parts)


class Kind(Enum):
    """What the cells of a column are."""

    NUMBER = "number"
    """Aligned right; ``value`` is the number."""
    TEXT = "text"
    """Aligned left."""
    NAME = "name"
    """Kernels' names: each cell has one."""
    BARS = "bars"
    """A small histogram as one text of block characters: not to be wrapped."""


@dataclass(frozen=True)
class Column:
    """title: its head, "" for none. unit: of the numbers, "" where they are counts or where it is not known."""

    title: str
    kind: Kind = Kind.NUMBER
    unit: str = ""


@dataclass(frozen=True)
class Cell:
    """text: as every view prints it (1,024 · 0.125 · <4); value: the same for sorting and for programs. name: in
    columns of names.
    """

    text: str
    value: Value = None
    name: Name | None = None

    @classmethod
    def named(cls, name: Name) -> Cell:
        """Return the cell of a kernel's name."""
        return cls(name.text, name.text, name)


@dataclass(frozen=True)
class Table:
    """A table that is to be shown whole: rows that were not chosen are in ``left_out`` alone.

    rows: one cell for each column. bars: the index of a column of numbers that is also drawn as bars, as long as the
    number is beside ``longest``. indent: as of a line. left_out: rows that there are besides, and more: the line that
    says so; None where none are left out.
    """

    name: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    indent: int = 0
    bars: int | None = None
    longest: int | float = 0
    left_out: int = 0
    more: Line | None = None


@dataclass(frozen=True)
class Section:
    """A part of a report. kind: "kernel", "map" (in a kernel's section), "empty" (maps of it to
    which nothing was saved), "overview" (many kernels at once, one section
    for each map), "benchmark", "not_probed", "findings".

    title: its first line; None for none. blocks: in this order. kernel: the id of that which it is of, None of none.
    name: of the map.
    """

    kind: str
    title: Line | None
    blocks: tuple[Line | Table | Section, ...] = ()
    kernel: int | None = None
    name: str = ""

    def lines(self) -> Iterator[Line]:
        """Yield the lines of this section and of those in it, titles included."""
        if self.title is not None:
            yield self.title
        for block in self.blocks:
            if isinstance(block, Section):
                yield from block.lines()
            elif isinstance(block, Line):
                yield block

    def tables(self) -> Iterator[Table]:
        """Yield the tables of this section and of those in it."""
        for block in self.blocks:
            if isinstance(block, Section):
                yield from block.tables()
            elif isinstance(block, Table):
                yield block


@dataclass(frozen=True)
class Heading:
    """What ran, where, when, and what share of it was seen.

    path: the trace's. command: as it was started, "" if that is not known. process: pid and host in words. started: in
    seconds since the epoch. devices: name and architecture of each. lines: sentences below, such as the coverage.
    """

    path: str
    command: str
    process: str
    started: float
    devices: tuple[str, ...]
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class ShownReport:
    """A trace's report. sections: in the order in which they are shown. notes: what a reader must know, last."""

    heading: Heading
    sections: tuple[Section, ...]
    notes: tuple[Line, ...] = ()

    def of_kind(self, kind: str) -> Iterator[Section]:
        """Yield the sections of a kind, in their order."""
        return (section for section in self.sections if section.kind == kind)


@dataclass(frozen=True)
class Choice:
    """How much is shown. chosen: the user named kernels (-k), which are then shown one by one, however many they are;
    all: leave nothing out (--all); has_rows: records are asked for (--rows), so that kernels are shown one by one;
    launches: of these alone (--launch).
    """

    chosen: bool = False
    all: bool = False
    has_rows: bool = False
    launches: range | None = field(default=None)


def counted(number: int, one: str, many: str) -> str:
    """Return a number with a noun. one: the singular, many: the plural."""
    return f"{number:,} {one if number == 1 else many}"


def joined(names: Sequence[Name], most: int) -> tuple[str | Name, ...]:
    """Return the first names as pieces of a line, with commas between them, and how many more there are."""
    parts: list[str | Name] = []
    for name in names[:most]:
        parts += [", ", name] if parts else [name]
    if len(names) > most:
        parts.append(f" and {len(names) - most:,} more")
    return tuple(parts)
