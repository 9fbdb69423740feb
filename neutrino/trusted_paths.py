"""Which paths no other user can change: from those, and only those, code and data of Neutrino are loaded.

Whoever can write to a folder can put another file in the place of one that is there, so that a path is only as good as
every folder that leads to it. On such a path nothing can change between a check and its use, but by this user or root.
The hook applies the same rule.
"""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

_MOST_LINKS = 40
"""As many links in a path as Linux follows."""


def why_not_trusted(path: Path, *, own_group: bool = False) -> str:
    """Return why another user could change what a path leads to, as a sentence; "" if none can.

    All folders from / on are looked at, those of links and of what they lead to, and the links: each must belong to
    root or to this user, and be writable by nobody else. Write permission that a list (ACL) gives is seen, as Linux
    shows it in the group's bits. In a folder with the sticky bit, as /tmp, others can make entries, but not replace
    those of this user or of root. So of a path that is not there (its last part, or more) only the folders are judged
    that are: whoever makes the rest must ask again.

    path: of a folder or a file; a relative one is of the current folder. own_group: whether write permission of the
    user's own group, in which nobody else is, is not another user's.
    """
    users = trusted_users()
    group = own_private_group() if own_group else None
    pending = [*reversed((path if path.is_absolute() else Path.cwd() / path).parts)]
    current, links = Path("/"), 0
    if fault := _fault(current, current.lstat(), users, group):
        return fault
    while pending:
        name = pending.pop()
        if name == "/":
            continue
        if name == "..":
            # The path so far holds no links.
            current = current.parent
            continue
        child = current / name
        try:
            status = child.lstat()
            target = child.readlink() if stat.S_ISLNK(status.st_mode) else None
        except OSError:
            # It is not there, or this user may not look at it, and so not use it either.
            return ""
        if fault := _fault(child, status, users, group):
            return fault
        if target is None:
            current = child
            continue
        links += 1
        if links > _MOST_LINKS:
            return f"{child} is one of too many links"
        pending += reversed(target.parts)
        current = Path("/") if target.is_absolute() else current
    return ""


def trusted_users() -> frozenset[int]:
    """Return the users whose files this process may rely on: itself, root, and whoever owns ``/``.

    The last can change everything, libc too. It is another than root where root has no number, in a user namespace.
    """
    return frozenset((0, os.geteuid(), os.lstat("/").st_uid))


def own_private_group() -> int | None:
    """Return the number of the user's own group, in which nobody else is; None if there is none.

    Systems that give each user a group of the same name and number set the umask to 0002, so that all that the user
    makes can be written by that group.
    """
    import grp

    user = os.geteuid()
    try:
        name = pwd.getpwuid(user).pw_name
        group = grp.getgrgid(user)
    except (KeyError, OSError):
        return None
    return group.gr_gid if group.gr_name == name and set(group.gr_mem) <= {name} else None


def user_name(number: int) -> str:
    """Return the name of a user, for messages."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def _fault(path: Path, status: os.stat_result, users: frozenset[int], group: int | None) -> str:
    """Return why a part of a path is not trusted, "" if it is. status: its own, not that of what a link leads to."""
    if status.st_uid not in users:
        what = "the link " if stat.S_ISLNK(status.st_mode) else ""
        return f"{what}{path} belongs to {user_name(status.st_uid)}"
    if stat.S_ISLNK(status.st_mode):
        return ""
    writable = status.st_mode & 0o022
    if writable & 0o020 and status.st_gid == group:
        writable &= ~0o020
    if writable and not (stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX):
        return f"{path} can be written by others (mode {status.st_mode & 0o777:o})"
    return ""
