"""Texts of many twins, kept in a temporary file: those of an image with a thousand kernels would fill the memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import IO

from neutrino.late_dataclass import dataclass

_IN_MEMORY = 1 << 22
"""Bytes up to which no file is made: most images have one small kernel."""


class Spool:
    """A temporary file without a name, which is gone when nobody refers to it any more."""

    def __init__(self) -> None:
        """Begin without a file."""
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 (closed when unused)
        self._size = 0

    def put(self, data: bytes) -> Spooled:
        """Keep bytes; return where they are. Raises OSError when there is no room for them."""
        self._file.seek(self._size)
        try:
            self._file.write(data)
        except OSError as error:
            error.filename = tempfile.gettempdir()
            raise
        offset, self._size = self._size, self._size + len(data)
        return Spooled(self, offset, len(data))

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes that were kept. Raises OSError."""
        self._file.seek(offset)
        data = self._file.read(size)
        if len(data) != size:
            raise OSError(f"a temporary file has {len(data)} bytes at {offset}, not {size}")
        return data


@dataclass(frozen=True)
class Spooled:
    """Bytes in a ``Spool``: where they begin, and how many there are."""

    spool: Spool = field(repr=False)
    offset: int
    size: int

    def read(self) -> bytes:
        """Return the bytes. Raises OSError."""
        return self.spool.read(self.offset, self.size)


class SpooledFiles(Mapping[str, bytes]):
    """Files by name, each of which is read when it is asked for."""

    def __init__(self, files: Mapping[str, Spooled]) -> None:
        """files: where the bytes of each are."""
        self._files = files

    def __getitem__(self, name: str) -> bytes:
        """Return a file's bytes. Raises KeyError, OSError."""
        return self._files[name].read()

    def __iter__(self) -> Iterator[str]:
        """Return an iterator over the names."""
        return iter(self._files)

    def __len__(self) -> int:
        """Return how many files there are."""
        return len(self._files)
