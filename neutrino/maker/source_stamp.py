"""Whether the files of this package have changed, without reading them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


@cache
def package_stamp(package: Path = _PACKAGE) -> str:
    """Return a hash, in hex, of path, size and times of each Python source of the package: another one if any changes.

    The time of the last change of the inode is one of them, which no program can set. Raises OSError.
    """
    rows = sorted(_rows(str(package)))
    return hashlib.sha256(f"{package}\0{rows}".encode()).hexdigest()


def _rows(folder: str) -> Iterator[tuple[str, int, int, int]]:
    """Yield path, size in bytes, and both times in ns of each Python source in a folder, and in those below it."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                status = entry.stat()
                yield entry.path, status.st_size, status.st_mtime_ns, status.st_ctime_ns
            elif entry.is_dir() and entry.name != "__pycache__":
                yield from _rows(entry.path)
