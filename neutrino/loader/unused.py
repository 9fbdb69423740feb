"""The line that says that COMMAND never used a GPU. The listener prints it, since the hook is not in such a program."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path


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
        """Print a line, if the terminal is still there and takes it at once."""
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
    """What it takes to say that nothing was recorded.

    terminal: where. tracedir: the folder of traces. before: what was in it when COMMAND started. A process may have
    begun a trace although it could not call the listener.
    """

    terminal: Terminal
    tracedir: Path
    before: frozenset[str]

    @classmethod
    def watch(cls, tracedir: Path) -> Unused | None:
        """Return what is needed at the end; None if standard error is no terminal. tracedir: absolute."""
        terminal = Terminal.of(2)
        return cls(terminal, tracedir, _names(tracedir)) if terminal else None

    def say(self) -> None:
        """Say it, unless there is a trace after all."""
        if _names(self.tracedir) <= self.before:
            self.terminal.say(
                "nothing was recorded: COMMAND never used a GPU (no process of it was seen loading GPU code)"
            )


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_rdev, status.st_ino, status.st_ctime_ns


def _names(folder: Path) -> frozenset[str]:
    """Return the names in a folder; none if it is not there."""
    try:
        return frozenset(path.name for path in folder.iterdir())
    except OSError:
        return frozenset()
