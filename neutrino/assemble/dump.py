"""What ``--save-temps`` keeps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from neutrino.assemble.manifest import site_rows
from neutrino.cache.entry import KernelEntry
from neutrino.ptx.instrument.twin import TwinKernel


class Dump:
    """A folder that gets what each stage made; nothing is kept without one."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def write(self, name: str, data: bytes | str) -> None:
        """A file of that name. Raises OSError when it cannot be written."""
        if self._folder is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self._folder / name).write_bytes(data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data)

    def sites(self, twins: Sequence[TwinKernel]) -> None:
        """What the probes matched."""
        self.write("sites.json", json.dumps({twin.name: site_rows(twin) for twin in twins}, indent=1))

    def kernels(self, entries: Iterable[KernelEntry]) -> None:
        """What became of each kernel."""
        self.write("kernels.txt", "".join(
            f"{entry.name}: {entry.reason.word}{': ' if entry.detail else ''}{entry.detail}\n" for entry in entries
        ))  # fmt: skip
