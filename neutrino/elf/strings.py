"""String tables of ELF files."""

from __future__ import annotations

from neutrino.elf.cursor import Cursor

_MAX_NAMES = 16
"""Limit of the length of all names together, as a multiple of the table's size. Each offset counts once."""
_MAX_NAME_TABLE = 1 << 28
"""Largest size of a string table in bytes, because it is copied: the largest real ones take a tenth of this."""


class StringTable:
    """The strings of a string table, decoded when they are first used.

    Names may overlap, so a small table could yield many long ones: the length of all names together is limited.
    field: whose offsets are looked up (such as ``st_name``), for error messages.
    """

    def __init__(self, cursor: Cursor, table: memoryview, field: str) -> None:
        """Copy a string table. cursor: makes the errors. table: its content. field: whose offsets are looked up.

        Raises FormatError when the table is too large.
        """
        if len(table) > _MAX_NAME_TABLE:
            raise cursor.error(f"table of {field}", f"{len(table)} bytes long", f"at most {_MAX_NAME_TABLE}", at=0)
        self._cursor = cursor
        self._table = bytes(table)
        self._field = field
        self._decoded: dict[int, str] = {}
        """By offset."""
        self._bytes_left = _MAX_NAMES * len(table)
        """How long the names that have not been decoded yet may be, together."""

    def at(self, offset: int) -> str:
        """Return the NUL-terminated string at an offset.

        Raises FormatError when it leaves the table, and when all strings together exceed the limit.
        """
        name = self._decoded.get(offset)
        if name is None:
            # Errors name the beginning of the file, because it is not known here where the string's offset is stored.
            end = self._table.find(b"\0", offset)
            if end < 0:
                size = len(self._table)
                raise self._cursor.error(self._field, f"{offset:#x}", f"a string within {size:#x} bytes", at=0)
            self._bytes_left -= end - offset
            if self._bytes_left < 0:
                raise self._cursor.error(self._field, "of many long overlapping strings", "names", at=0)
            name = self._decoded[offset] = self._table[offset:end].decode("latin-1")
        return name
