"""Whether a script that a trace names may run as this user.

A trace may come from a library that somebody else patched, or from another machine: the path in it does not show who
wrote the file that is there now.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from neutrino import trusted_paths


def why_not_trusted(script: str) -> str:
    """Return why a script must not run as this user, "" if it may. Raises OSError if it cannot be examined."""
    path = Path(script)
    # stat() follows links, to the file that would be run.
    status = path.stat()
    # Root (0) could change what runs as this user anyway.
    if status.st_uid not in (0, os.geteuid()):
        return f"it belongs to {trusted_paths.user_name(status.st_uid)}"
    if status.st_mode & stat.S_IWOTH:
        return "anybody may write to it"
    # The folder of a link, and that of the file that it leads to.
    for folder in dict.fromkeys((path.parent, path.resolve().parent)):
        # In a folder with the sticky bit, such as /tmp, only a file's owner can replace it.
        if folder.stat().st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
            return f"anybody may replace it, as anybody may write to {folder}"
    # The folders above these, and what groups may write.
    return trusted_paths.why_not_trusted(path.absolute(), own_group=True)
