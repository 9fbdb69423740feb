"""What runs with one key leave for the next one: whether it is likely to ask for twins (instrumented kernels).

Then the patcher is imported while the program starts. That is so in the first run, and for programs that compile anew
each time they run, as those with XLA: some of their kernels differ from run to run.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

_ASKS = b"asks\n"


@dataclass(frozen=True)
class History:
    """Of a run. file: in the cache. is_first: whether no run with this key was before. asks: whether it may ask."""

    file: Path
    is_first: bool
    asks: bool

    @classmethod
    def begin(cls, file: Path) -> History:
        """Begin a run, which has asked for nothing so far. Raises OSError."""
        with contextlib.suppress(FileExistsError):
            file.touch(mode=0o600, exist_ok=False)
            return cls(file, is_first=True, asks=True)
        asks = file.read_bytes() == _ASKS
        if asks:
            file.write_bytes(b"")
        return cls(file, is_first=False, asks=asks)

    def asked(self) -> None:
        """Note that this run has asked for twins. What a first run asks for, the next one finds in the cache."""
        if not self.is_first:
            self.compiled()

    def compiled(self) -> None:
        """Note that the program has compiled kernels while it ran: the next run may compile others."""
        with contextlib.suppress(OSError):
            self.file.write_bytes(_ASKS)
