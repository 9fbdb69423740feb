"""Sections of a report as lines of text that are not wrapped, for terminals and pipes alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from neutrino.cli.streams import escaped
from neutrino.cli.table import table as aligned
from neutrino.tracing.shown.model import Cell, Kind, Line, Name, Section, Table

INDENT = "  "
"""Of a level."""


def section_lines(section: Section, label: Callable[[str], str]) -> Sequence[str]:
    """Return a section as lines of text that are not wrapped. label: shortens a kernel's name."""
    lines = [_text(section.title, label)] if section.title is not None else []
    for block in section.blocks:
        if isinstance(block, Table):
            head = [escaped(column.title) for column in block.columns]
            rows = [[cell_text(cell, label=label) for cell in row] for row in block.rows]
            right = {column.title for column in block.columns if column.kind is Kind.NUMBER}
            # The lines of a table are indented by one level.
            lines += (f"{INDENT * block.indent}{line[len(INDENT) :]}" for line in aligned(head, rows, right))
            if block.more is not None:
                lines.append(_text(block.more, label))
        elif isinstance(block, Line):
            lines.append(_text(block, label))
    return lines


def _text(line: Line, label: Callable[[str], str]) -> str:
    """Return a line as text, with its indent. label: shortens a kernel's name."""
    parts = (label(part.text) if isinstance(part, Name) else part for part in line.parts)
    return f"{INDENT * line.indent}{''.join(parts)}"


def cell_text(cell: Cell, label: Callable[[str], str]) -> str:
    """Return the text of a table's cell. label: shortens a kernel's name."""
    return escaped(label(cell.name.text) if cell.name is not None else cell.text)
