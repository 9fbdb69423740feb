"""Files and folders that only the user can read and write."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path

from neutrino.trusted_paths import why_not_trusted

_FOLDER_MODE = 0o700


def private_folder(path: Path, mode: int = _FOLDER_MODE) -> Path:
    """Create a folder, and its missing parents, unless it exists; return its path.

    mode: of the folder if it is created, whatever the umask. Its parents get 0700.

    Raises PermissionError when the path is not a folder of this user's, or another user could change it or a folder or
    link on the way to it.
    """
    _check(path)
    missing = [path]
    while not missing[-1].parent.is_dir() and missing[-1].parent != missing[-1]:
        missing.append(missing[-1].parent)
    for one in reversed(missing):
        with contextlib.suppress(FileExistsError):
            one.mkdir(mode=_FOLDER_MODE)
            one.chmod(mode if one == path else _FOLDER_MODE)
    # Made above, or at an earlier time: by whom, and with which others that can write to it, is what counts.
    _check(path)
    status = path.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise PermissionError(f"{path} is not a folder; remove it or set XDG_CACHE_HOME")
    if status.st_uid != os.geteuid():
        raise PermissionError(f"{path} belongs to user {status.st_uid}; set XDG_CACHE_HOME to a folder of your own")
    # Also of one with the sticky bit, where others could make what is not there yet.
    if status.st_mode & 0o022:
        raise PermissionError(f"{path} can be written by others (mode {status.st_mode & 0o777:o}); chmod 700 it")
    return path


def _check(path: Path) -> None:
    """Raise PermissionError if another user could change what a path leads to."""
    if reason := why_not_trusted(path):
        raise PermissionError(f"{reason}; set XDG_CACHE_HOME to a folder that only you can change")


def write_private(path: Path, data: bytes, mode: int = 0o600, *, at_once: bool = True) -> None:
    """Write a file, so that it is never incomplete: on an error it keeps its former content.

    mode: its permissions, whatever the umask. at_once: whether it is on disk when this returns; else it may be damaged
    if the machine crashes soon after.

    Raises OSError.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(data)
            file.flush()
            # On disk before the rename, so that a crash of the machine cannot leave an empty file.
            if at_once:
                os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(temporary).unlink()
        raise


def read_private(path: Path) -> bytes | None:
    """Return the content of a file that ``write_private`` wrote, None if it does not exist.

    Raises PermissionError when the file belongs to another user, OSError when it is no regular file or cannot be read.
    """
    try:
        # O_NONBLOCK: a named pipe would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            raise PermissionError(f"{path} belongs to another user; remove it or set XDG_CACHE_HOME")
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        return file.read()
