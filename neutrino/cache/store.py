"""The content-addressed store of twins, in a folder that belongs to the user alone.

An entry is ``twins/<first two hex digits>/<64 hex digits>.twins`` under the root. The hook reads these files
itself, so a name, once there, always holds a whole entry: it is written aside, synchronised and renamed.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from neutrino.errors import FormatError
from neutrino.private_files import private_folder, read_private, write_private


class Cache:
    """Entries by key under a root folder, which the first write creates."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def entry_path(self, key: bytes) -> Path:
        """Where the entry of a 32-byte key lies, whether it is there or not."""
        name = key.hex()
        return self.root / "twins" / name[:2] / f"{name}.twins"

    def write(self, key: bytes, entry: bytes) -> Path:
        """Store an entry and return its path. Raises OSError, and leaves no unfinished file then."""
        path = self.entry_path(key)
        for folder in (self.root, self.root / "twins", path.parent):
            private_folder(folder)
        write_private(path, entry)
        return path

    def read(self, key: bytes) -> bytes | None:
        """A verified entry, or None when there is none. One that is damaged is removed and counts as none.

        Raises OSError when the folder cannot be read or is not this user's.
        """
        from neutrino.cache.entry import read_entry

        path = self.entry_path(key)
        data = read_private(path)
        if data is None:
            return None
        try:
            if read_entry(data, str(path)).key == key:
                return data
        except FormatError:
            pass
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        return None
