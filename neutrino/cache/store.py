"""The content-addressed store of twins, in a folder that belongs to the user alone.

An entry is ``twins/<first two hex digits>/<64 hex digits>.twins`` under the root. The hook reads these files
itself, so a name, once there, always holds a whole entry: it is written aside, synchronised and renamed.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from neutrino.device.kind import DeviceKind
from neutrino.errors import FormatError
from neutrino.private_files import private_folder, read_private, write_private

_PATCHER = (
    "ptx/**/*.py", "elf/*.py", "fatbin/*.py", "probing/*.py", "sass/*.py", "assemble/**/*.py", "patch/*.py",
    "device/*.py", "toolchain/*.py", "ahead/relocatable.py", "cache/entry.py", "errors.py", "private_files.py",
)  # fmt: skip


def run_key(
    probes: str, selection: str, assembler: str, version: str, device: DeviceKind = DeviceKind.GPU
) -> bytes:
    """The 32 bytes that stand for a run's settings: two digests, the assembler's identity, Neutrino's version."""
    parts = ("neutrino", version, probes, selection, assembler, device.value)
    return hashlib.sha256(b"".join(len(part.encode()).to_bytes(8, "little") + part.encode() for part in parts)).digest()


def patcher_identity() -> str:
    """SHA-256, in hex, over the sources that decide what a twin is.

    A checkout changes more often than its version: twins of the code of yesterday are not those of today.
    """
    package = Path(__file__).resolve().parents[1]
    paths = [path for part in _PATCHER for path in package.glob(part)]
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(f"{path.relative_to(package)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def image_key(run: bytes, arch: str, image: bytes) -> bytes:
    """The 32-byte key of an image's entry: SHA-256 over the run's key, the device's ``sm_90``, the image."""
    digest = hashlib.sha256(run)
    digest.update(arch.encode())
    digest.update(image)
    return digest.digest()


class Cache:
    """Entries by key under a root folder, which is made at the first write."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def entry_path(self, key: bytes) -> Path:
        """Where the entry of a 32-byte key lies, whether it is there or not."""
        name = key.hex()
        return self.root / "twins" / name[:2] / f"{name}.twins"

    def write(self, key: bytes, entry: bytes) -> Path:
        """Store an entry and return its path. Raises OSError: nothing is left behind then."""
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
