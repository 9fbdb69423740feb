"""The bytes of a file that somebody names: a regular file, or a pipe that the shell holds open, such as ``<(…)``."""

from __future__ import annotations

import errno
import os
import select
import stat
from pathlib import Path

_PATIENCE = 10.0
"""Seconds that whoever writes into a pipe may be silent."""
_PIECE = 1 << 16


def read_text_file(path: str | Path, most: int) -> bytes:
    """The file's first bytes, most of them at most. Never waits for ever.

    Raises OSError for what cannot be read: also for named pipes and devices, and a pipe that stays silent; ValueError
    for a path that is none.
    """
    # A named pipe that nobody writes into would hold open() up.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            with open(descriptor, "rb", closefd=False) as file:
                return file.read(most)
        # What /dev/fd/63 leads to has no name in the file system, a named pipe has.
        if not stat.S_ISFIFO(mode) or Path(os.path.realpath(path)).exists():
            what = "a named pipe" if stat.S_ISFIFO(mode) else "a device"
            raise OSError(errno.EINVAL, f"it is {what}, expected a file")
        return _read_pipe(descriptor, most)
    finally:
        os.close(descriptor)


def _read_pipe(descriptor: int, most: int) -> bytes:
    data = b""
    while len(data) < most:
        if not select.select([descriptor], [], [], _PATIENCE)[0]:
            raise OSError(errno.ETIMEDOUT, f"nothing came through the pipe for {_PATIENCE:g} s")
        piece = os.read(descriptor, min(_PIECE, most - len(data)))
        if not piece:
            break
        data += piece
    return data
