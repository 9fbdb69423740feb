"""Temporary files beside their targets while these are written: their names and locks, and finding abandoned ones.

A killed process leaves its file. A lock shows whether a file is still being written: it ends with the last process that
has the file open, even in another container. Between machines locks are less reliable, since a network file system may
keep them local. So a file's name identifies the running kernel that wrote it, and files of other kernels are never
removed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

_SUFFIX = ".neutrino-part"
"""A name is ``.TARGET.BOOT-RANDOM.neutrino-part``; BOOT is from ``_boot_id``."""
_LONGEST_TARGET = 200
"""Characters of the target's name in it, at most: Linux limits names to 255 bytes."""
_NAME = re.compile(r"\..+\.([0-9a-f]{8})-[^.]{8}\.neutrino-part", re.DOTALL)
_NO_BOOT_ID = "0" * 8
"""In the name of a file for which a lock says nothing."""
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
"""Errors of flock(2) on file systems without locks."""


@dataclass(frozen=True)
class Unfinished:
    """Files in a folder that a process left when it was killed.

    removed: those that were removed. left: those that may be abandoned, but that this process cannot safely remove.
    """

    removed: tuple[Path, ...]
    left: tuple[Path, ...]


def begin(target: Path) -> tuple[int, Path]:
    """Create an empty file beside target; return its descriptor and path. Raises OSError.

    It is locked as long as the descriptor, or a duplicate of it, is open: so others see that it is still being written.
    """
    boot = _boot_id()
    while True:
        descriptor, name = tempfile.mkstemp(
            prefix=f".{target.name[:_LONGEST_TARGET]}.{boot}-", suffix=_SUFFIX, dir=target.parent
        )
        try:
            if boot != _NO_BOOT_ID:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            # A file that was removed has no links.
            if os.fstat(descriptor).st_nlink:
                return descriptor, Path(name)
            # Before it was locked, another process took it for an abandoned file and removed it: try again.
        except OSError as error:
            Path(name).unlink(missing_ok=True)
            if error.errno not in _NO_LOCKS or boot == _NO_BOOT_ID:
                os.close(descriptor)
                raise
            # Without locks nobody can see whether it is still written, so its name must keep it from being removed.
            boot = _NO_BOOT_ID
        except BaseException:
            Path(name).unlink(missing_ok=True)
            os.close(descriptor)
            raise
        os.close(descriptor)


def find_unfinished(folder: Path, *, remove: bool) -> Unfinished:
    """Find the abandoned files in a folder; there are none in a folder that cannot be read.

    remove: whether to remove those that were certainly left by this user on this machine.
    """
    removed: list[Path] = []
    left: list[Path] = []
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False))
    except OSError:
        names = []
    for name in names:
        match = _NAME.fullmatch(name)
        if match is None:
            continue
        this_boot, writers_boot = _boot_id(), match[1]
        of_this_boot = writers_boot == this_boot != _NO_BOOT_ID
        # None if it is not abandoned.
        is_removed = _try_remove(folder / name, of_this_boot=of_this_boot, remove=remove)
        if is_removed is not None:
            (removed if is_removed else left).append(folder / name)
    return Unfinished(tuple(removed), tuple(left))


def _try_remove(path: Path, *, of_this_boot: bool, remove: bool) -> bool | None:
    """Remove a temporary file if it is certainly abandoned; return whether it was removed.

    None if it is still being written, has been finished, or is no regular file. of_this_boot: whether it was written
    since this machine was started, so that its lock can be relied on. remove: False only looks.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError:
        # Mostly a file of another user.
        return False
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # The process that writes it has it locked.
            return None
        except OSError:
            # Without locks nobody knows whether it is abandoned.
            return False
        # It may have been finished, and so renamed, before it was locked here.
        if not os.path.samestat(path.stat(follow_symlinks=False), status):
            return None
        # On another machine a process may be writing it whose lock is not visible here.
        if not remove or not of_this_boot or status.st_uid != os.geteuid():
            return False
        path.unlink()
    except FileNotFoundError:
        # Another process has finished or removed it meanwhile.
        return None
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _boot_id() -> str:
    """Return 8 hexadecimal digits that identify this boot of this machine; ``_NO_BOOT_ID`` if it cannot be read.

    They are in the names of unfinished files, since file locks only say something within one boot. All containers on
    the machine have the same ones, as they share its kernel, and so its locks.
    """
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text("ascii")[:8]
    except (OSError, UnicodeDecodeError):
        return _NO_BOOT_ID
    return text if re.fullmatch("[0-9a-f]{8}", text) else _NO_BOOT_ID
