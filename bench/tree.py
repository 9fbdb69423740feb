"""Which sources a result was made from."""

from __future__ import annotations

import hashlib
from pathlib import Path

_FOLDERS = ("bench", "neutrino", "probes", "tools")
_SUFFIXES = {".c", ".cu", ".cuh", ".h", ".map", ".py", ".toml"}
_LEFT_OUT = {"__pycache__", "generated", "lib", "results"}


def tree_hash(root: Path) -> str:
    """SHA-256, in hex, over path and contents of every source file that can change a result.

    It does not ask git, which the machine with the GPU may not have: generated files and results are left out
    by the name of their folder.
    """
    digest = hashlib.sha256()
    paths = [path for folder in _FOLDERS for path in (root / folder).rglob("*") if path.suffix in _SUFFIXES]
    for path in sorted(paths, key=lambda path: path.relative_to(root).as_posix()):
        name = path.relative_to(root)
        if path.is_file() and not _LEFT_OUT.intersection(name.parts):
            digest.update(f"{name.as_posix()}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
