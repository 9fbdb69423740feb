"""``events.jsonl``: one JSON object per line, appended during the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neutrino.errors import TraceError
from neutrino.late_dataclass import dataclass
from neutrino.tracing.files import parse_json, read_file


@dataclass(frozen=True)
class Events:
    """The events of a trace in order. truncated: the last line was cut off, since the process was killed meanwhile."""

    rows: tuple[dict[str, Any], ...]
    truncated: bool

    def of(self, kind: str) -> tuple[dict[str, Any], ...]:
        """Return the events of one kind, in order: ``process``, ``device``, ``image``, ``kernel``,
        ``note``, ``end`` …
        """
        return tuple(row for row in self.rows if row["event"] == kind)


def read_events(path: Path, faults: list[str] | None = None) -> Events:
    """Read ``events.jsonl``.

    faults: gets a sentence for each line that is not an event; without it TraceError is raised, with file and line.
    """
    lines = read_file(path, inside=1).split(b"\n")
    # Every complete line ends with a newline, so text after the last newline is an incomplete line.
    incomplete = lines.pop()
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(_row(path, number, line))
        except TraceError as error:
            if faults is None:
                raise
            faults.append(str(error))
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
        row = parse_json(line)
    # RecursionError for lists in lists, thousands of them.
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: line {number}: not JSON: {error}") from error
    if not isinstance(row, dict) or not isinstance(row.get("event"), str):
        raise TraceError(f"{path}: line {number}: not an event, expected an object with 'event'")
    if type(row.get("time_ns", 0)) is not int:
        raise TraceError(f"{path}: line {number}: time_ns is {row['time_ns']!r}, expected an integer")
    return row
