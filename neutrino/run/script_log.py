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
"""Bytes of output that a trace's log holds, at most; the line that counts dropped bytes is not included."""
_CHUNK = 1 << 20
"""Bytes that are moved at once, at most, and the size of the pipe."""
_DROPPED_LINE = re.compile(rb"\nneutrino: ([0-9]{1,18}) more bytes were printed and dropped\n\Z")
_LONGEST_LINE = 128
"""Bytes at the end of the log that the line above may take, or more."""
_POLL_INTERVAL_S = 0.2


class ScriptLog:
    """The file ``analyze.log`` of a trace, open for the output of one script.

    read, write: a pipe, so that the output can be limited; the script prints to write, which is -1 once it is closed
    here. file: descriptor of the log. dropped: bytes that this and earlier scripts have printed beyond the limit.
    """

    def __init__(self, path: Path) -> None:
        """Open the log for appending, and a pipe for the output. Raises OSError, also if path is no regular file."""
        # O_NOFOLLOW, O_NONBLOCK: path may be a link, or a pipe without a reader, that a script has put there.
        self._file = os.open(
            path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600
        )
        try:
            if not stat.S_ISREG(os.fstat(self._file).st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            self._dropped = self._remove_dropped_line()
            self._read, self.write = os.pipe()
            # Linux may refuse a pipe of this size; a smaller one is slower.
            with contextlib.suppress(OSError):
                fcntl.fcntl(self.write, fcntl.F_SETPIPE_SZ, _CHUNK)
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> ScriptLog:
        """Return the log; leaving the block closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Log what is left in the pipe, and close everything."""
        # Output is left in the pipe if the script was ended. Only what is there now: a process that the script has left
        # running could print forever.
        self._drain(self._bytes_in_pipe())
        self._append_dropped_line()
        self._close_write()
        os.close(self._read)
        os.close(self._file)

    def follow(self, child: subprocess.Popen[bytes], limit: float) -> int:
        """Log what a script prints until it ends, and return its exit status. child: its process, printing to write.

        limit: seconds, after which subprocess.TimeoutExpired is raised. Processes that child leaves running cannot add
        to the log afterwards.
        """
        # Only the child and its descendants have the writing end, so that the pipe ends when they do.
        self._close_write()
        deadline = time.monotonic() + limit
        output = select.poll()
        output.register(self._read, select.POLLIN)
        while (remaining := deadline - time.monotonic()) > 0:
            # The status first: if the child has ended, all of its output is in the pipe.
            status = child.poll()
            if status is not None:
                self._drain(self._bytes_in_pipe())
                return status
            if output.poll(1000 * min(remaining, _POLL_INTERVAL_S)) and not self._move(_CHUNK):
                # The child has closed its output, and runs on.
                return child.wait(max(0.0, deadline - time.monotonic()))
        raise subprocess.TimeoutExpired(child.args, limit)

    def _close_write(self) -> None:
        """Close this process's end of the pipe for writing, once."""
        if self.write >= 0:
            os.close(self.write)
            self.write = -1

    def _bytes_in_pipe(self) -> int:
        """Return how many bytes of a script's output wait in the pipe to be read."""
        (count,) = struct.unpack("i", fcntl.ioctl(self._read, termios.FIONREAD, bytes(struct.calcsize("i"))))
        return int(count)

    def _drain(self, size: int) -> None:
        """Move size bytes from the pipe to the log, or all if there are fewer."""
        while size > 0 and (count := self._move(min(size, _CHUNK))):
            size -= count

    def _move(self, size: int) -> int:
        """Move up to size bytes from the pipe to the log, and drop what exceeds the limit.

        Return how many bytes were read; 0 at the end of the pipe.
        """
        data = os.read(self._read, size)
        written = 0
        # The script must not fail because the log cannot be written: a full disk, a limit on file sizes.
        with contextlib.suppress(OSError):
            available = max(0, LIMIT - os.fstat(self._file).st_size)
            while written < min(len(data), available):
                written += os.write(self._file, data[written:available])
        self._dropped += len(data) - written
        return len(data)

    def _remove_dropped_line(self) -> int:
        """Cut off the line about dropped bytes that an earlier script has left; return how many bytes it counts."""
        # Only the end of the file is searched; begin: where that starts.
        size = os.fstat(self._file).st_size
        begin = max(0, size - _LONGEST_LINE)
        match = _DROPPED_LINE.search(os.pread(self._file, _LONGEST_LINE, begin))
        if not match:
            return 0
        os.ftruncate(self._file, begin + match.start())
        return int(match[1])

    def _append_dropped_line(self) -> None:
        """End the log with a line that counts the dropped bytes, if there are any."""
        if self._dropped:
            line = f"\nneutrino: {self._dropped} more bytes were printed and dropped\n"
            with contextlib.suppress(OSError):
                os.write(self._file, line.encode())
