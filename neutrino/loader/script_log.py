"""``analyze.log``: what the scripts of a trace print, up to a limit; one line at its end counts what was dropped."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import select
import stat
import struct
import subprocess
import termios
import time
from pathlib import Path

LIMIT = 16 << 20
"""Bytes that a trace's log takes, but for the line at its end."""
_PIECE = 1 << 20
_LINE = re.compile(rb"\nneutrino: ([0-9]{1,18}) more bytes were printed and dropped\n\Z")
_LONGEST_LINE = 128
_PAUSE_S = 0.2


class ScriptLog:
    """The log of a trace, open for what one script prints. Raises OSError."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(
            path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600
        )
        try:
            if not stat.S_ISREG(os.fstat(self._file).st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            self._dropped = self._take_line()
            self._read, self.write = os.pipe()
            with contextlib.suppress(OSError):
                fcntl.fcntl(self.write, fcntl.F_SETPIPE_SZ, _PIECE)
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> ScriptLog:
        """Its ``write`` is the descriptor to print to."""
        return self

    def __exit__(self, *_: object) -> None:
        # What the script left in the pipe when it was ended.
        self._drain(self._waiting())
        self._say()
        self._close_write()
        os.close(self._read)
        os.close(self._file)

    def follow(self, child: subprocess.Popen[bytes], limit: float) -> int:
        """Take what child prints until it ends; its status. What it leaves running can print no more afterwards.

        Raises subprocess.TimeoutExpired when that takes longer than limit, in seconds.
        """
        self._close_write()
        end = time.monotonic() + limit
        printed = select.poll()
        printed.register(self._read, select.POLLIN)
        while (left := end - time.monotonic()) > 0:
            # Asked before the pipe is looked at: what it printed is in there when it has ended.
            status = child.poll()
            if status is not None:
                self._drain(self._waiting())
                return status
            if printed.poll(1000 * min(left, _PAUSE_S)) and not self._take(_PIECE):
                return child.wait(max(0.0, end - time.monotonic()))
        raise subprocess.TimeoutExpired(child.args, limit)

    def _close_write(self) -> None:
        if self.write >= 0:
            os.close(self.write)
            self.write = -1

    def _waiting(self) -> int:
        return int(struct.unpack("i", fcntl.ioctl(self._read, termios.FIONREAD, bytes(4)))[0])

    def _drain(self, size: int) -> None:
        while size > 0 and (taken := self._take(min(size, _PIECE))):
            size -= taken

    def _take(self, most: int) -> int:
        """Move what is in the pipe, that much at most, to the file, or drop it; how much that was, 0 at the end."""
        data = os.read(self._read, most)
        kept = 0
        # A disk that is full, or a limit on sizes of files: the script is not to notice.
        with contextlib.suppress(OSError):
            room = max(0, LIMIT - os.fstat(self._file).st_size)
            while kept < min(len(data), room):
                kept += os.write(self._file, data[kept:room])
        self._dropped += len(data) - kept
        return len(data)

    def _take_line(self) -> int:
        """Cut off the line that an earlier script's output has left; how many bytes it counts."""
        size = os.fstat(self._file).st_size
        begin = max(0, size - _LONGEST_LINE)
        found = _LINE.search(os.pread(self._file, _LONGEST_LINE, begin))
        if not found:
            return 0
        os.ftruncate(self._file, begin + found.start())
        return int(found[1])

    def _say(self) -> None:
        if self._dropped:
            line = f"\nneutrino: {self._dropped} more bytes were printed and dropped\n"
            with contextlib.suppress(OSError):
                os.write(self._file, line.encode())
