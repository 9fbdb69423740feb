"""Files of a trace, which may be something else than files: whoever opens a FIFO would wait for a writer."""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.errors import TraceError

Array = npt.NDArray[Any]
_KINDS = {
    stat.S_IFIFO: "a FIFO", stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}  # fmt: skip


def map_file(path: Path) -> Array:
    """Map a file read-only and return its bytes as uint8. Raises TraceError when it cannot be read."""
    try:
        descriptor = _open(path)
        try:
            if not os.fstat(descriptor).st_size:
                # An empty file cannot be mapped.
                return np.empty(0, np.uint8)
            return np.frombuffer(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ), np.uint8)
        finally:
            os.close(descriptor)
    except (OSError, ValueError, OverflowError) as error:
        raise TraceError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def read_file(path: Path) -> bytes:
    """Return what is in a file. Raises TraceError when it cannot be read, or is larger than the memory."""
    try:
        with os.fdopen(_open(path), "rb") as file:
            return file.read()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (MemoryError, OverflowError) as error:
        raise TraceError(f"{path}: cannot be read: there is not enough memory for it") from error


def _open(path: Path) -> int:
    """Return a descriptor of a regular file. Raises OSError, and TraceError for what is no such file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind != stat.S_IFREG:
        os.close(descriptor)
        raise TraceError(f"{path}: cannot be read: it is {_KINDS.get(kind, 'no file')}")
    return descriptor
