"""``nvlink``: links relocatable cubins to one that the driver can load."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from neutrino.errors import ToolError
from neutrino.places import scratch_parent
from neutrino.toolchain.process import run_tool
from neutrino.toolchain.refusal import check_whole, classified

LINK_TIMEOUT = 120.0
"""Seconds that one ``nvlink`` may take; linking 201 kernels takes less than one second."""


@dataclass(frozen=True)
class Linker:
    """An ``nvlink``. version: (13, 0, 88). identity: differs between builds, for the cache key."""

    path: Path
    version: tuple[int, int, int]
    identity: str = field(compare=False)

    @property
    def name(self) -> str:
        """The linker's name and version for messages, such as ``nvlink 13.0.88``."""
        return "nvlink " + ".".join(map(str, self.version))

    def link(self, cubins: Sequence[bytes], arch: str, *, timeout: float = LINK_TIMEOUT) -> bytes:
        """Link relocatable cubins (made by ``ptxas -c``) into one that the driver can load.

        The cubins must be complete: nvlink 13.0 accepts a truncated one without an error. arch: such as ``sm_90a``.
        timeout: seconds. Raises AssemblyError when they cannot be linked, for example when none defines a function that
        is called; ToolError or OSError when the cause is the machine, not the cubins.
        """
        with tempfile.TemporaryDirectory(prefix="neutrino-", dir=scratch_parent()) as folder:
            inputs = [Path(folder) / f"unit{number}.cubin" for number in range(len(cubins))]
            for path, cubin in zip(inputs, cubins, strict=True):
                path.write_bytes(cubin)
            result = Path(folder) / "linked.cubin"
            try:
                run_tool([self.path, f"-arch={arch}", "-m64", *inputs, "-o", result], timeout=timeout)
            except ToolError as error:
                raise classified(error) from error
            linked = result.read_bytes()
        check_whole("nvlink", linked, folder)
        return linked
