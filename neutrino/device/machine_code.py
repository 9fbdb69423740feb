"""Of which machine code twins (instrumented kernels) are made, where kernels come without PTX of their own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum

PROVEN: Mapping[str, frozenset[str]] = dict.fromkeys(("sm_90", "sm_90a"), frozenset({"block_sched", "gmem_bytes"}))
"""Architectures whose twins of machine code a GPU has run, with the originals' results: with one of these shipped
probes."""


class MachineCode(Enum):
    """``--machine-code``: whether twins are made of machine code, for architectures of which there is a table."""

    AUTO = "auto"
    """Of kernels without PTX of their own, where ``PROVEN`` has the architecture and the probes."""
    OFF = "off"
    """Never."""
    ONLY = "only"
    """Of all kernels, on every architecture, and none of PTX."""
    UNPROVEN = "unproven"
    """As AUTO, on every architecture and with all probes."""

    @property
    def is_on(self) -> bool:
        """Whether twins (copies with probes) of machine code may be made at all, whatever the architecture."""
        return self in (MachineCode.ONLY, MachineCode.UNPROVEN) or (self is MachineCode.AUTO and bool(PROVEN))

    @property
    def architectures(self) -> tuple[str, ...]:
        """Those for which alone twins (copies with probes) may be made of machine code; none: for all."""
        return tuple(sorted(PROVEN)) if self is MachineCode.AUTO else ()

    def for_probes(self, names: Collection[str]) -> MachineCode:
        """Return what this is in a run of probes: OFF where no GPU has shown twins (copies with probes) with them.

        names: of the run's probes, as the user gives them.
        """
        # Code of several probes together is other code.
        is_shown = len(set(names)) == 1 and any(set(names) <= shown for shown in PROVEN.values())
        return self if self is not MachineCode.AUTO or is_shown else MachineCode.OFF

    def takes(self, arch: str) -> bool:
        """Return whether twins (copies with probes) are made of machine code for an architecture, such as ``sm_90a``.
        """
        return self.is_on and (self is not MachineCode.AUTO or arch in PROVEN)
