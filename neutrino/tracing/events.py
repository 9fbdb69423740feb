"""``events.jsonl``: one JSON object per line, appended during the run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neutrino.errors import TraceError


@dataclass(frozen=True)
class Events:
    """The events of a trace in order. truncated: the last line was cut off, since the process was killed meanwhile."""

    rows: tuple[dict[str, Any], ...]
    truncated: bool

    def of(self, kind: str) -> tuple[dict[str, Any], ...]:
        """Return the events of one kind: ``process``, ``device``, ``image``, ``kernel``, ``note``, ``end`` …"""
        return tuple(row for row in self.rows if row["event"] == kind)


def read_events(path: Path) -> Events:
    """Read ``events.jsonl``. Raises TraceError, with file and line, for a line that is not an event."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from error
    # Every complete line ends with a newline, so text after the last newline is an incomplete line.
    incomplete = lines.pop()
    rows = [_row(path, number, line) for number, line in enumerate(lines, 1)]
    return Events(tuple(rows), bool(incomplete.strip()))


def member(row: dict[str, Any], name: str, type_: type[Any], path: Path) -> Any:
    """Return a member that an event must have. path: of the events, for errors.

    Raises TraceError when it is missing or of another type.
    """
    value = row.get(name)
    # JSON's true is no number, but bool is a subclass of int. No member that must exist is a bool.
    if not isinstance(value, type_) or isinstance(value, bool):
        raise TraceError(f"{path}: event {row['event']!r}: {name} is {value!r}, expected {type_.__name__}")
    return value


def _row(path: Path, number: int, line: bytes) -> dict[str, Any]:
    """Parse one line into an event. Raises TraceError with the line's number if it is none."""
    try:
        row = json.loads(line)
    # RecursionError for lists in lists, thousands of them.
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: line {number}: not JSON: {error}") from error
    if not isinstance(row, dict) or not isinstance(row.get("event"), str):
        raise TraceError(f"{path}: line {number}: not an event, expected an object with 'event'")
    return row
