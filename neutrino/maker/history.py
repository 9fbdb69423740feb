"""What runs with one key leave for the next one: whether it is likely to ask for twins (instrumented kernels).

Then the patcher is imported while the program starts. That is so in the first run, and for programs that compile anew
each time they run, as those with XLA: some of their kernels differ from run to run. These are also made as soon as they
are compiled, from the start on.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

_LARGEST = 4096
"""Bytes of a request that are kept."""


@dataclass(frozen=True)
class History:
    """Of a run. file: in the cache. is_first: whether no run with this key was before. request: the head of a request
    of the last run, if this one is likely to ask, too; b"" if not, or if that is not known.
    """

    file: Path
    is_first: bool
    request: bytes = b""

    @property
    def asks(self) -> bool:
        """Whether this run of the program will probably ask for twins (kernels with probes), by what earlier runs did.
        """
        return self.is_first or bool(self.request)

    @classmethod
    def begin(cls, file: Path) -> History:
        """Begin a run, which has asked for nothing so far. Raises OSError."""
        with contextlib.suppress(FileExistsError):
            file.touch(mode=0o600, exist_ok=False)
            return cls(file, is_first=True)
        with file.open("rb+", buffering=0) as opened:
            request = opened.read(_LARGEST)
            opened.truncate(0)
        return cls(file, is_first=False, request=request)

    def asked(self, request: bytes) -> None:
        """Note that this run has asked for twins. What a first run asks for, the next one finds in the cache."""
        if not self.is_first:
            self.compiled(request)

    def compiled(self, request: bytes) -> None:
        """Note that the program has compiled kernels while it ran: the next run may compile others."""
        with contextlib.suppress(OSError):
            self.file.write_bytes(request)
