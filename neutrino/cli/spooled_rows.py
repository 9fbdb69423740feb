"""Rows of tables that may be larger than memory."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_IN_MEMORY = 4 << 20
"""Bytes of rows that are held in memory; more are in a temporary file without a name (TMPDIR)."""


class SpooledRows:
    """Rows of a table that may be larger than memory: appended one by one, read in that order any number of times.

    A row is a list of values that JSON can represent. Raises OSError when the temporary file cannot be written.
    """

    def __init__(self) -> None:
        """Begin an empty table, which may grow larger than memory."""
        # Without a name, so that it is deleted with this object, even if the process is killed.
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY, "w+", encoding="ascii", prefix="neutrino-")  # noqa: SIM115
        self._count = 0

    def __len__(self) -> int:
        """The number of rows."""
        return self._count

    def __iter__(self) -> Iterator[list[Any]]:
        """Yield the rows in the order in which they were added."""
        self._file.seek(0)
        for line in self._file:
            yield json.loads(line)

    def add(self, row: list[Any]) -> None:
        """Append a row. Must not be called while the rows are being iterated over."""
        self._file.write(json.dumps(row) + "\n")
        self._count += 1


class MappedRows:
    """The cells of a table, computed from spooled rows by a function each time that they are iterated over."""

    def __init__(self, rows: SpooledRows, cells: Callable[[list[Any]], Sequence[str]]) -> None:
        """Set up the cells of a table. rows: the table. cells: gives the cells of a row of it."""
        self._rows = rows
        self._cells = cells

    def __iter__(self) -> Iterator[Sequence[str]]:
        """Yield each row as table cells."""
        return map(self._cells, self._rows)
