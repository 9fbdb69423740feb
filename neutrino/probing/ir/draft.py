"""Probes in typed IR as a front end made them, not verified."""

from __future__ import annotations

from dataclasses import dataclass

from neutrino.errors import Diagnostic
from neutrino.maps.declaration import Map
from neutrino.probing.ir.operands import Register
from neutrino.probing.ir.probe_set import Probe


@dataclass(frozen=True)
class DraftProbes:
    """One file. Members are as of ``ProbeSet``; registers: local ones among them."""

    file: str
    source: str
    maps: tuple[Map, ...]
    registers: tuple[Register, ...]
    probes: tuple[Probe, ...]
    warnings: tuple[Diagnostic, ...] = ()
    analyze_hooks: tuple[str, ...] = ()
    callbacks: tuple[str, ...] = ()

    @property
    def platform(self) -> str:
        """What probe files call the target that runs them: NVIDIA's, until there is another."""
        return "cuda"
