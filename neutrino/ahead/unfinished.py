"""Copies that are being written beside their targets: their names and locks, and how abandoned ones are found.

A process that is killed leaves its copy. Whether one is still written shows in the lock on it, which ends with the
last process that has it open, in whatever container that runs. Between machines locks say less (a file system may keep
them to itself), so the name identifies the running kernel, and copies of another one are never removed.
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
_NAME = re.compile(r"\..+\.([0-9a-f]{8})-[^.]{8}\.neutrino-part", re.DOTALL)
_NO_KERNEL = "0" * 8
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
"""Errors of flock(2) on file systems without locks."""


@dataclass(frozen=True)
class Unfinished:
    """Copies in a folder that a process left when it was killed.

    removed: the copies that were removed. left: copies that may be abandoned, but that this process cannot safely
    remove.
    """

    removed: tuple[Path, ...]
    left: tuple[Path, ...]


def begin(target: Path) -> tuple[int, Path]:
    """A new, empty file beside target, locked as long as its descriptor or a copy of that is open. Raises OSError."""
    kernel = _running_kernel()
    while True:
        descriptor, name = tempfile.mkstemp(
            prefix=f".{target.name[:200]}.{kernel}-", suffix=_SUFFIX, dir=target.parent
        )
        try:
            if kernel != _NO_KERNEL:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:
                return descriptor, Path(name)
            # Somebody took it for one that was left, in the moment before it was locked.
        except OSError as error:
            Path(name).unlink(missing_ok=True)
            if error.errno not in _NO_LOCKS or kernel == _NO_KERNEL:
                os.close(descriptor)
                raise
            # Whether it is still written is not known, so it must not be removed.
            kernel = _NO_KERNEL
        except BaseException:
            Path(name).unlink(missing_ok=True)
            os.close(descriptor)
            raise
        os.close(descriptor)


def find_unfinished(folder: Path, *, remove: bool) -> Unfinished:
    """The abandoned copies in a folder. remove: remove those that this machine certainly left.

    None are found in a folder that cannot be read.
    """
    removed: list[Path] = []
    left: list[Path] = []
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False))
    except OSError:
        names = []
    for match in filter(None, map(_NAME.fullmatch, names)):
        path = folder / match[0]
        verdict = _settle(path, of_this_kernel=match[1] == _running_kernel() != _NO_KERNEL, remove=remove)
        if verdict is not None:
            (removed if verdict else left).append(path)
    return Unfinished(tuple(removed), tuple(left))


def _settle(path: Path, *, of_this_kernel: bool, remove: bool) -> bool | None:
    """Whether the copy was removed; None if it is still being written, or is not a copy."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError:
        # Another user's.
        return False
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        except OSError:
            return False
        # Meanwhile it may have been finished, which gave it another name.
        if not os.path.samestat(path.stat(follow_symlinks=False), status):
            return None
        if not remove or not of_this_kernel or status.st_uid != os.geteuid():
            return False
        path.unlink()
    except FileNotFoundError:
        return None
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _running_kernel() -> str:
    """An identifier of this boot of this machine, the same in all its containers."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text("ascii")[:8]
    except (OSError, UnicodeDecodeError):
        return _NO_KERNEL
    return text if re.fullmatch("[0-9a-f]{8}", text) else _NO_KERNEL
