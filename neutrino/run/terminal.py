"""What the listener says on the terminal: that COMMAND never used a GPU, or where the trace of a killed process is.

The hook is not in a program that uses no GPU, and cannot say anything in one that is killed.
"""

from __future__ import annotations

import contextlib
import os

from neutrino.late_dataclass import dataclass
from neutrino.run.traces import RunTraces, has_ended


@dataclass(frozen=True)
class Terminal:
    """The terminal that was COMMAND's standard error when it started.

    path: of its device. identity: number of the device and inode of that file, and when that was last changed, which
    differs for a new terminal of the same name. The listener keeps no descriptor of it, and opens it when
    there is something to say: a copy of a pipe's end would keep the reader of the pipe waiting, and one of a terminal
    whoever waits for that to be closed.
    """

    path: str
    identity: tuple[int, int, int]

    @classmethod
    def of(cls, descriptor: int) -> Terminal | None:
        """Return the terminal of a descriptor; None if it is closed, or not a terminal with a path."""
        try:
            path = os.ttyname(descriptor)
            return cls(path, _identity(os.fstat(descriptor)))
        except OSError:
            return None

    def say(self, line: str) -> None:
        """Print a line, if the terminal is still there and takes it at once. Control characters are replaced by "?"."""
        line = "".join(letter if letter.isprintable() else "?" for letter in line)
        # It does not become this process's terminal. Its output may be stopped (Ctrl-S): then the line is lost.
        flags = os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
        with contextlib.suppress(OSError):
            descriptor = os.open(self.path, flags)
            try:
                if os.isatty(descriptor) and _identity(os.fstat(descriptor)) == self.identity:
                    os.write(descriptor, f"neutrino: {line}\n".encode())
            finally:
                os.close(descriptor)


@dataclass(frozen=True)
class Unused:
    """What it takes to say what nobody else can. terminal: where. traces: of the run."""

    terminal: Terminal
    traces: RunTraces

    @classmethod
    def watch(cls, traces: RunTraces) -> Unused | None:
        """Return what is needed to speak at COMMAND's end; None if standard error is no terminal. traces: of the run.
        """
        terminal = Terminal.of(2)
        return cls(terminal, traces) if terminal else None

    def say(self, *, was_called: bool) -> None:
        """Say that COMMAND used no GPU, or which traces are not complete, once all its processes have ended.

        was_called: whether one of them has called the listener.
        """
        # A process may have begun a trace although it could not call the listener.
        if not was_called and not self.traces.has_any():
            self.terminal.say(
                "nothing was recorded: COMMAND never used a GPU (no process of it was seen loading GPU code)"
            )
        for path in self.traces.find():
            if not has_ended(path):
                self.terminal.say(f"trace in {path}: its process was killed; its last launches may be missing")


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    """Return what tells a terminal from another one that has its path later."""
    return status.st_rdev, status.st_ino, status.st_ctime_ns

