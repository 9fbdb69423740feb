"""The files of ``--save-temps``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Dump:
    """A folder for the output of each stage; without one nothing is written."""

    folder: Path | None = None

    def part(self, name: str) -> Dump:
        """Return a folder of that name in this one."""
        return Dump(self.folder / name if self.folder is not None else None)

    def write(self, name: str, data: bytes | str) -> None:
        """Write data to the file of that name in the folder of ``--save-temps``, if there is one. Raises OSError."""
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self.folder / name).write_bytes(data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data)
