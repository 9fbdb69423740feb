"""Files and folders that only the user can read and write, and the cache folder, where Neutrino keeps them."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path

from neutrino.errors import NeutrinoError

_FOLDER_MODE = 0o700


def cache_root() -> Path:
    """Return the path of Neutrino's cache folder, which need not exist: in XDG_CACHE_HOME, else in ``~/.cache``.

    Raises NeutrinoError for a user without a home folder.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        # The XDG specification says that relative paths are to be ignored.
        return (Path(base) if base.startswith("/") else Path.home().absolute() / ".cache") / "neutrino"
    except RuntimeError:
        raise NeutrinoError("this user has no home folder to keep the cache in; set XDG_CACHE_HOME") from None


def private_folder(path: Path, mode: int = _FOLDER_MODE) -> Path:
    """Create a folder, and its missing parents, unless it exists; return its path.

    mode: of the folder if it is created, whatever the umask. Its parents get 0700.

    Raises PermissionError when the path is not a folder, belongs to another user, is another user's link, or can be
    written by others.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=_FOLDER_MODE)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=_FOLDER_MODE)
        path.chmod(mode)
    status = path.lstat()
    # A link of the user's own is followed.
    if stat.S_ISLNK(status.st_mode) and status.st_uid == os.getuid():
        status = path.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise PermissionError(f"{path} is not a folder; remove it or set XDG_CACHE_HOME")
    if status.st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to user {status.st_uid}; set XDG_CACHE_HOME to a folder of your own")
    # Write permission of the group or of others.
    if status.st_mode & 0o022:
        raise PermissionError(f"{path} can be written by others (mode {status.st_mode & 0o777:o}); chmod 700 it")
    return path


def unsafe_parent(path: Path) -> str:
    """Return why other users could replace what is made in a folder, "" if they cannot or it does not exist.

    The hook applies the same rule to the folder of the traces (``files.c``).
    """
    try:
        link = path.lstat()
        status = path.stat()
    except OSError:
        return ""
    trusted = (os.geteuid(), 0)
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in trusted:
        return "it is another user's link"
    if status.st_uid not in trusted:
        return f"it belongs to user {status.st_uid}; give a folder of your own"
    # In a folder with the sticky bit, as /tmp, others cannot rename what is the user's.
    if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
        return "others can write there; chmod go-w it, or give another folder"
    return ""


def write_private(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a file, so that it is never incomplete: on an error it keeps its former content.

    mode: its permissions, whatever the umask.

    Raises OSError.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(data)
            file.flush()
            # On disk before the rename, so that a crash of the machine cannot leave an empty file.
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
        if status.st_uid != os.getuid():
            raise PermissionError(f"{path} belongs to another user; remove it or set XDG_CACHE_HOME")
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        return file.read()
