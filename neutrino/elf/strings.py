"""String tables of ELF files."""

from __future__ import annotations

from neutrino.elf.cursor import Cursor

_MAX_NAMES = 16
"""How many times a string table's size all names together may take, names that share an offset counted once."""
_MAX_NAME_TABLE = 1 << 28
"""Bytes of a string table, which is copied: of real ones the largest take a tenth of it."""


class StringTable:
    """The strings of a string table.

    Names may overlap, so that a small table could hold many long ones: all of them together are bounded.
    """

    def __init__(self, cursor: Cursor, table: memoryview, field: str) -> None:
        if len(table) > _MAX_NAME_TABLE:
            raise cursor.error(f"table of {field}", f"{len(table)} bytes long", f"at most {_MAX_NAME_TABLE}", at=0)
        self._cursor = cursor
        self._table = bytes(table)
        self._field = field
        self._known: dict[int, str] = {}
        self._left = _MAX_NAMES * len(table)

    def at(self, offset: int) -> str:
        name = self._known.get(offset)
        if name is None:
            end = self._table.find(b"\0", offset)
            if end < 0:
                size = len(self._table)
                raise self._cursor.error(self._field, f"{offset:#x}", f"a string within {size:#x} bytes", at=0)
            self._left -= end - offset
            if self._left < 0:
                raise self._cursor.error(self._field, "of many long overlapping strings", "names", at=0)
            name = self._known[offset] = self._table[offset:end].decode("latin-1")
        return name
