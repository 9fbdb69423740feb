"""The store of cache entries by key, in a folder that only the user can write to.

An entry is ``twins/<first two hex digits>/<64 hex digits>.twins`` under the root. The hook reads these files itself, so
a file must never be incomplete: it is written under a temporary name and renamed. Beside an entry, in
``<64 hex digits>.needs``, the hook keeps how much memory the logs of its kernels wanted (``needs.h``).
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from neutrino.errors import FormatError
from neutrino.private_files import private_folder, read_private, write_private


class Cache:
    """Entries by key under a root folder, which the first write creates."""

    def __init__(self, root: Path) -> None:
        """Use a folder as a cache; the first write creates it."""
        self.root = root

    def entry_path(self, key: bytes) -> Path:
        """Return the path of the entry with a 32-byte key, whether it exists or not."""
        name = key.hex()
        return self.root / "twins" / name[:2] / f"{name}.twins"

    def write(self, key: bytes, entry: bytes) -> Path:
        """Store an entry and return its path. Raises OSError; no incomplete file is left then.

        key: 32 bytes. entry: the bytes that write_entry returns.
        """
        path = self.entry_path(key)
        for folder in (self.root, self.root / "twins", path.parent):
            private_folder(folder)
        # Whoever reads an entry checks its digest, and the program waits for this one.
        write_private(path, entry, at_once=False)
        return path

    def read(self, key: bytes) -> bytes | None:
        """Return the bytes of an entry, None if there is none with this 32-byte key.

        A damaged one is removed, and None is returned. Raises OSError when the folder cannot be read or belongs to
        another user.
        """
        # Imported here because it needs NumPy, which other users of this module need not wait for.
        from neutrino.twins.cache_entry import read_entry

        path = self.entry_path(key)
        data = read_private(path)
        if data is None:
            return None
        try:
            # An entry under the name of another key is damaged, too.
            if read_entry(data, str(path)).key == key:
                return data
        except FormatError:
            pass
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        return None
