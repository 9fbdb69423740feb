"""Reads a file that the user names: a regular file, or a pipe that the shell has opened, such as ``<(…)``."""

from __future__ import annotations

import errno
import os
import select
import stat
from pathlib import Path

_PIPE_TIMEOUT = 10.0
"""Seconds to wait for the next data from a pipe."""
_CHUNK_SIZE = 1 << 16


def read_text_file(path: str | Path, max_bytes: int) -> bytes:
    """Return the first ``max_bytes`` bytes of a file, or all of a shorter one. Never blocks forever.

    Raises OSError if it cannot be read, also for named pipes and devices, and for a pipe without data for
    ``_PIPE_TIMEOUT`` seconds; ValueError for an invalid path, such as one with a NUL.
    """
    # O_NONBLOCK: otherwise opening a named pipe blocks until another process writes to it.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        # Of a directory, open() raises the usual error.
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            # closefd=False: it is closed below, in every case.
            with open(descriptor, "rb", closefd=False) as file:
                return file.read(max_bytes)
        # A pipe of the shell, /dev/fd/63, resolves to no name in the file system; a named pipe has one.
        if not stat.S_ISFIFO(mode) or Path(os.path.realpath(path)).exists():
            kind = "a named pipe" if stat.S_ISFIFO(mode) else "a device"
            raise OSError(errno.EINVAL, f"it is {kind}, expected a file")
        return _read_pipe(descriptor, max_bytes)
    finally:
        os.close(descriptor)


def _read_pipe(descriptor: int, max_bytes: int) -> bytes:
    """Read from a pipe until its end, at most ``max_bytes``. Raises OSError if no data comes for ``_PIPE_TIMEOUT``."""
    data = b""
    # Not select, which takes no descriptor above 1023.
    arriving = select.poll()
    arriving.register(descriptor, select.POLLIN)
    while len(data) < max_bytes:
        if not arriving.poll(1000 * _PIPE_TIMEOUT):
            raise OSError(errno.ETIMEDOUT, f"nothing came through the pipe for {_PIPE_TIMEOUT:g} s")
        chunk = os.read(descriptor, min(_CHUNK_SIZE, max_bytes - len(data)))
        if not chunk:
            break  # the writer has closed the pipe
        data += chunk
    return data
