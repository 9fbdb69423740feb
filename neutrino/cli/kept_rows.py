"""Rows of tables that may be larger than memory."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_IN_MEMORY = 4 << 20
"""Bytes of rows that are held in memory; more are in a temporary file without a name (TMPDIR)."""


class KeptRows:
    """Rows of a table that may be larger than memory: kept in the order in which they come, read any number of times.

    A row is a list of what JSON can say. Raises OSError when they cannot be kept.
    """

    def __init__(self) -> None:
        # It is gone with this object.
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY, "w+", encoding="ascii", prefix="neutrino-")  # noqa: SIM115
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[list[Any]]:
        self._file.seek(0)
        for line in self._file:
            yield json.loads(line)

    def add(self, row: list[Any]) -> None:
        """Append a row. Not while they are being read."""
        self._file.write(json.dumps(row) + "\n")
        self._count += 1


class Cells:
    """The rows of a table, made of kept rows each time that they are gone through."""

    def __init__(self, rows: KeptRows, cells: Callable[[list[Any]], Sequence[str]]) -> None:
        self._rows = rows
        self._cells = cells

    def __iter__(self) -> Iterator[Sequence[str]]:
        return map(self._cells, self._rows)
