"""Folders that last as long as a run: of its socket, of its temporary files, and of its cache where no other place is.

Each is locked by the processes that use it. So what a listener has left behind that was killed is found, and removed,
by a later run: nobody locks it any more.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path

_PREFIX = "neutrino-run-"
_MOST_LOOKED_AT = 1000
"""Entries of a folder with temporary files, which may be large."""


def make_run_folder(parent: Path) -> tuple[Path, int]:
    """Make a folder of this user's alone; return its path, and a descriptor that locks it while a process has it open.

    parent: a folder in which no other user can replace what is made. What earlier runs have left there is removed.
    Raises OSError.
    """
    remove_left(parent)
    # Its name says that the lock is not yet there.
    made = Path(tempfile.mkdtemp(prefix=".neutrino-", dir=parent))
    try:
        descriptor = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            # Shared: programs that remove old temporary files do not touch what is locked either way.
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            path = parent / (_PREFIX + made.name.removeprefix(".neutrino-"))
            made.rename(path)
        except BaseException:
            os.close(descriptor)
            raise
    except BaseException:
        with contextlib.suppress(OSError):
            made.rmdir()
        raise
    return path, descriptor


def remove_left(parent: Path) -> None:
    """Remove the folders of runs in parent that no process uses any more. Does nothing where that fails."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for _, entry in zip(range(_MOST_LOOKED_AT), entries, strict=False):
            if entry.name.startswith(_PREFIX):
                with contextlib.suppress(OSError):
                    _remove_if_left(Path(entry.path))


def _remove_if_left(path: Path) -> None:
    """Remove the folder of a run unless a process has it locked, or it is another user's. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            # Some process has it locked; or that cannot be found out, and it stays.
            if error.errno in (errno.EWOULDBLOCK, errno.ENOLCK):
                return
            raise
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(descriptor)
