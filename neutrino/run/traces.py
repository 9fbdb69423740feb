"""The traces of one run of ``neutrino``: those whose first event names it."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import BinaryIO

from neutrino.late_dataclass import dataclass

_LONGEST_EVENT = 1 << 16
"""Bytes of the first line of events.jsonl, which the hook cuts at less."""


def new_run() -> str:
    """Return a random name for a run of ``neutrino``, which no other run has."""
    return os.urandom(16).hex()


@dataclass(frozen=True)
class RunTraces:
    """Where the traces of a run are found.

    tracedir: their folder, absolute. run: its name, as ``new_run`` gives it. earlier: what was in the folder before.
    """

    tracedir: Path
    run: str
    earlier: frozenset[str]

    @classmethod
    def before(cls, tracedir: Path, run: str) -> RunTraces:
        """Return the traces of a run that has not begun yet. tracedir: absolute."""
        return cls(tracedir, run, frozenset(_names(tracedir)))

    def has_any(self) -> bool:
        """Return whether a trace was begun, in this run or another at the same time."""
        return not _names(self.tracedir) <= self.earlier

    def find_unnamed(self) -> list[Path]:
        """Return the trace directories, made since the run began, whose first event is missing: of this run, or of
        another at the same time.
        """
        made = (self.tracedir / name for name in sorted(_names(self.tracedir) - self.earlier))
        return [path for path in made if _is_own_empty(path / "events.jsonl")]

    def find(self) -> list[Path]:
        """Return the trace directories that there are by now, in the order in which their processes started."""
        found = []
        for name in _names(self.tracedir) - self.earlier:
            process = _first_event(self.tracedir / name / "events.jsonl")
            if process.get("run") == self.run:
                began = process.get("monotonic_ns")
                found.append((began if isinstance(began, int) else 0, name))
        return [self.tracedir / name for _, name in sorted(found)]


def _names(folder: Path) -> set[str]:
    """Return the names in a folder; none if it is not there."""
    try:
        return {path.name for path in folder.iterdir()}
    except OSError:
        return set()


def has_ended(trace: Path) -> bool:
    """Return whether a process has ended its trace: an event says so, which only notes may follow."""
    try:
        with _open_own(trace / "events.jsonl") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LONGEST_EVENT))
            last = file.read(_LONGEST_EVENT).splitlines()
            while last and (kind := json.loads(last.pop()).get("event")) in ("note", "end"):
                if kind == "end":
                    return True
            return False
    except (OSError, ValueError, RecursionError, AttributeError):
        return False


def _is_own_empty(path: Path) -> bool:
    """Return whether a trace of this user's has no event."""
    try:
        with _open_own(path) as file:
            return not file.read(1)
    except OSError:
        return False


def _first_event(path: Path) -> dict[str, object]:
    """Return the first event of a trace of this user's; empty if there is none that can be read."""
    try:
        with _open_own(path) as file:
            event = json.loads(file.readline(_LONGEST_EVENT))
    except (OSError, ValueError, RecursionError):
        return {}
    return event if isinstance(event, dict) else {}


def _open_own(path: Path) -> BinaryIO:
    """Open a file of this user's. Raises OSError for anything else that may be there: others may share the folder."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        file.close()
        raise PermissionError(errno.EACCES, "not a file of this user's", str(path))
    return file
