"""Files and folders that belong to the user alone, and where Neutrino keeps them."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from neutrino.errors import NeutrinoError

_FOLDER_MODE = 0o700


def cache_root() -> Path:
    """Neutrino's folder under XDG_CACHE_HOME; it need not exist. Raises NeutrinoError for a user without a home."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(base) if base.startswith("/") else Path.home().absolute() / ".cache") / "neutrino"
    except RuntimeError:
        raise NeutrinoError("this user has no home folder to keep the cache in; set XDG_CACHE_HOME") from None


def private_folder(path: Path) -> Path:
    """Make path and what is missing above it, 0700, and return it.

    Raises PermissionError when path is not a folder of this user, is a link, or others may write into it.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=_FOLDER_MODE)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=_FOLDER_MODE)
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode) and status.st_uid == os.getuid():
        status = path.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise PermissionError(f"{path} is not a folder; remove it or set XDG_CACHE_HOME")
    if status.st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to user {status.st_uid}; set XDG_CACHE_HOME to a folder of your own")
    if status.st_mode & 0o022:
        raise PermissionError(f"{path} can be written by others (mode {status.st_mode & 0o777:o}); chmod 700 it")
    return path


def write_private(path: Path, data: bytes) -> None:
    """Write data to path, 0600, so that path holds all of it or what it held before. Raises OSError."""
    descriptor, aside = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(aside).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(aside).unlink()
        raise


def read_private(path: Path) -> bytes | None:
    """What write_private wrote, or None when there is nothing. Raises PermissionError when another user made it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        if os.fstat(descriptor).st_uid != os.getuid():
            raise PermissionError(f"{path} belongs to another user; remove it or set XDG_CACHE_HOME")
        return file.read()
