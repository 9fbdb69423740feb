"""The file in which worker processes collect cache entries: a library's together are larger than the memory may be."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable
from multiprocessing import reduction
from pathlib import Path
from typing import IO, Any

from neutrino.patched_files.large_files import write_at
from neutrino.patched_files.workers import Slots

_BLOCK = 1 << 18
"""Bytes that are copied at once."""
Range = tuple[int, int]
"""Where an entry is in the file: offset and size in bytes."""


class EntrySpool:
    """A file without a name, to which this process and its workers append entries. It is gone when all have ended."""

    def __init__(self, folder: Path | None, descriptor: int | None = None, turn: Slots | None = None) -> None:
        """folder: where the file is to be; None is the usual temporary folder. descriptor, turn: of the file that
        another process has opened, for a worker. Raises OSError."""
        self._folder = folder
        # Python does not close a descriptor that it was given by another process.
        self._file: IO[bytes] = (
            tempfile.TemporaryFile(dir=folder, prefix=".neutrino-")  # noqa: SIM115 (``close`` closes it)
            if descriptor is None
            else os.fdopen(descriptor, "r+b")
        )
        self._turn = turn or Slots(1)

    @property
    def turn(self) -> Slots:
        """What only one of the processes has at a time, in a ``with``: while it appends an entry, or for other work
        that is short and takes much memory."""
        return self._turn

    def __reduce__(self) -> tuple[Any, ...]:
        """Say how a worker that does not share this process's descriptors gets the file: while it is started."""
        return _of_worker, (self._folder, reduction.DupFd(self._file.fileno()), self._turn)

    def append(self, write: Callable[[IO[bytes]], None]) -> Range:
        """Append an entry, and return where it is.

        write: writes it to an empty file. Raises what that raises, and OSError; then nothing that counts is appended.
        """
        with tempfile.TemporaryFile(dir=self._folder, prefix=".neutrino-") as own:
            write(own)
            size = own.seek(0, os.SEEK_END)
            own.seek(0)
            with self._turn:
                begin = at = os.fstat(self._file.fileno()).st_size
                while block := own.read(_BLOCK):
                    write_at(self._file.fileno(), at, block)
                    at += len(block)
            return begin, size

    def entries(self, ranges: list[Range]) -> list[memoryview]:
        """Return entries as views of the mapped file."""
        if not ranges:
            # An empty file cannot be mapped.
            return []
        view = memoryview(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))
        return [view[offset : offset + size] for offset, size in ranges]

    def close(self) -> None:
        """Close the file, which views of it outlive."""
        self._file.close()
        self._turn.close()


def _of_worker(folder: Path | None, descriptor: Any, turn: Slots) -> EntrySpool:
    """Return a worker's ``EntrySpool``. descriptor: as it was sent."""
    return EntrySpool(folder, descriptor.detach(), turn)
