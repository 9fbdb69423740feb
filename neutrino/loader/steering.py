"""Ask something of a running process that is traced: its hook looks at a file, ``control``, about twice a second."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from neutrino.abi.control_file import CONTROL, CONTROL_MAGIC, CONTROL_VERSION, Command, Recording
from neutrino.errors import NeutrinoError

if TYPE_CHECKING:
    import numpy as np

_WRITER = "neutrino-write"
"""The hook's thread that writes the trace: only its own table of descriptors has the file."""
_FILE_NAME = "control"
_PAUSE_S = 0.02


@dataclass(frozen=True)
class Answer:
    """What a process has said. off: why it records nothing now. pool_bytes: device memory for maps."""

    off: Recording
    pool_bytes: int


class Steered:
    """A process that is traced. pid: in this namespace. trace_dir: the folder of its trace, as the process names it."""

    def __init__(self, pid: int, file: int, trace_dir: Path, started: str) -> None:
        """Take over a process that records a trace, found by ``find``. file: descriptor of its control file. started:
        when the process began, to tell it from a later one of the same number."""
        self.pid = pid
        self.trace_dir = trace_dir
        self._file = file
        self._started = started

    def is_running(self) -> bool:
        """Return whether the process has not ended yet."""
        return _start_of(self.pid) == self._started

    def ask(self, command: Command, timeout: float) -> Answer:
        """Have a command done, and wait for that. timeout: seconds.

        Raises NeutrinoError if the process ends before, does not know the command, or takes longer.
        """
        until = time.monotonic() + timeout
        # One at a time: the file has room for one request.
        while not self._lock():
            self._wait(until, "another neutrino-ctl is talking to it")
        try:
            request = (int(self._read()["request"]) >> 8) + 1 << 8 | command
            member = CONTROL.dtype.fields
            assert member is not None
            os.pwrite(self._file, request.to_bytes(8, "little"), member["request"][1])
            while int(self._read()["answer"]) != request:
                self._wait(until, "its hook has not answered; a kernel may be running that a flush waits for"
                           if command is Command.FLUSH else "its hook has not answered")  # fmt: skip
            answer = self._read()
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        if not answer["is_understood"]:
            raise NeutrinoError(f"process {self.pid} runs another version of Neutrino, which cannot do that")
        return Answer(Recording(int(answer["off"]) & sum(Recording)), int(answer["pool_bytes"]))

    def _lock(self) -> bool:
        """Take the lock of the file, by which only one process asks at a time; return whether it was free."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _read(self) -> np.void:
        """Return the content of the file. Raises NeutrinoError if something else has been written there."""
        import numpy as np

        data = os.pread(self._file, CONTROL.size, 0)
        if len(data) < CONTROL.size or not data.startswith(CONTROL_MAGIC.rstrip(b"\0")):
            raise NeutrinoError(f"{self.trace_dir / _FILE_NAME}: damaged: process {self.pid} cannot be steered now")
        content: np.void = np.frombuffer(data, CONTROL.dtype)[0]
        if content["version"] != CONTROL_VERSION:
            raise NeutrinoError(f"process {self.pid} runs another version of Neutrino")
        return content

    def _wait(self, until: float, why: str) -> None:
        """Wait a moment. Raises NeutrinoError if the process has ended, or time is up."""
        # Another process may have its number by now.
        if not self.is_running():
            raise NeutrinoError(f"process {self.pid} has ended before it answered")
        if time.monotonic() >= until:
            raise NeutrinoError(f"process {self.pid}: {why}")
        time.sleep(_PAUSE_S)


@contextlib.contextmanager
def find(pid: int) -> Iterator[Steered]:
    """Find the file through which a running process with probes is steered, while the block runs.

    Raises NeutrinoError if there is no such process, it belongs to someone else, or it has no trace.
    """
    folder = Path(f"/proc/{pid}")
    started = _start_of(pid)
    if not started:
        raise NeutrinoError(f"there is no process {pid}")
    try:
        found = _open_control(folder)
    except PermissionError:
        owner = folder.stat().st_uid if folder.exists() else None
        whose = "may not be looked into" if owner == os.geteuid() else f"belongs to user {owner}"
        raise NeutrinoError(f"process {pid} {whose}: only its user can steer it") from None
    if found is None:
        raise NeutrinoError(
            f"process {pid} has no trace: it was not started with neutrino, or has not loaded GPU code yet, or may not "
            "have descriptors of its own"
        )
    file, path = found
    try:
        process = Steered(pid, file, path, started)
        # The number may be another process's by now, whose file this is not.
        if _start_of(pid) != started:
            raise NeutrinoError(f"process {pid} has ended")
        yield process
    finally:
        os.close(file)


def _open_control(process: Path) -> tuple[int, Path] | None:
    """Open the control file of a process by the descriptor that its writer thread holds; return it with the trace's
    folder.

    None if it has none. No other file can take its place, and it needs no path: the process may be in a container.
    """
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        # Also of a process without that thread: whose it is comes first.
        next((process / "fd").iterdir(), None)
        for thread in (process / "task").iterdir():
            if _name_of(thread) != _WRITER:
                continue
            for link in (thread / "fd").iterdir():
                found = _open_if_control(link, process)
                if found is not None:
                    return found
    return None


def _open_if_control(link: Path, process: Path) -> tuple[int, Path] | None:
    """Open a link in ``/proc/PID/fd`` if it is the process's control file, and return (descriptor, trace folder); else
    None.

    process: its folder in ``/proc``.
    """
    # Descriptors come and go.
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        target = link.readlink()
        if target.name.removesuffix(" (deleted)") != _FILE_NAME:
            return None
        # Not waiting, if it is none of ours: a pipe would.
        file = os.open(link, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        status = os.fstat(file)
        # Root must not be made to write elsewhere than that user could.
        is_own = stat.S_ISREG(status.st_mode) and status.st_uid == process.stat().st_uid
        if is_own and os.pread(file, len(CONTROL_MAGIC), 0) == CONTROL_MAGIC:
            return file, target.parent
        os.close(file)
    return None


def _name_of(thread: Path) -> str:
    """Return the name of a thread, "" if that has ended. thread: its folder in ``/proc``."""
    with contextlib.suppress(OSError):
        return (thread / "comm").read_text().rstrip("\n")
    return ""


def _start_of(pid: int) -> str:
    """When a process was started, in the kernel's ticks; "" if there is none, or it has ended and is waited for."""
    with contextlib.suppress(OSError):
        # After the program's name, which may have any character: state, and 19 numbers later the start.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        if fields[0] not in (b"Z", b"X"):
            return fields[19].decode()
    return ""
