"""The folder for what root's children of other users must be able to read: the auditing module.

LD_AUDIT passes from a process to its children. If a child cannot read the module, the dynamic loader says so on its
stderr. Only root starts children of other users that keep the variable: a set-user-id program, by which anybody else
would do so, ignores and removes it. So all others have the module in their own cache, which nobody else can read.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from neutrino.private_files import private_folder

_PARENTS = (Path("/var/cache"), Path("/run"))
"""Where root's folder can be: root's alone to change, for everybody to read, and not emptied by age as /tmp is."""


def shared_folder() -> Path | None:
    """Return a folder that every user can read and only root can change; None for other users, or if there is none."""
    if os.geteuid() != 0:
        return None
    for parent in _PARENTS:
        folder = parent / "neutrino"
        if not is_shared(parent):
            continue
        try:
            private_folder(folder, 0o755)
        except OSError:
            # A read-only file system, or something else of that name.
            continue
        if is_shared(folder):
            return folder
    return None


def is_shared(folder: Path) -> bool:
    """Whether every user can search a folder and load libraries from it, and none but its owner can change it.

    That holds for all folders above it, too; they belong to root or to this user.
    """
    try:
        path = folder.resolve(strict=True)
        if os.statvfs(path).f_flag & os.ST_NOEXEC:
            return False
        rows = [one.stat() for one in (path, *path.parents)]
    except OSError:
        return False
    return all(
        # Search permission for others, and no write permission for the group or others, not even with the sticky bit:
        # what is removed from /tmp by age may be made again by another user.
        stat.S_ISDIR(row.st_mode) and row.st_uid in (0, os.geteuid()) and row.st_mode & 0o023 == 0o001
        for row in rows
    )
