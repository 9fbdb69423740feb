"""The list of what probes went to in one function, and of what they could not go to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from neutrino.probing.ir.probe_set import Probe
from neutrino.ptx.instrument.twin import LeftOut, Site


class Shown(NamedTuple):
    """An instruction as manifests show it. line, text, source: as ``line``, ``instruction``, ``source`` of a Site."""

    line: int
    text: str
    source: str = ""


class SiteList:
    """sites, left_out: in the order in which they were told. function: the name of the one that they are in."""

    def __init__(self, function: str) -> None:
        self._function = function
        self.sites: list[Site] = []
        self.left_out: list[LeftOut] = []

    def add(self, shown: Shown, probes: Iterable[Probe], number: int | None = None) -> None:
        """Probes that went to an instruction. number: what SITE is there."""
        self.sites += [
            Site(probe.name, probe.tracepoint.text, shown.line, shown.text, number, shown.source, self._function)
            for probe in probes
        ]

    def leave_out(self, shown: Shown, probes: Iterable[Probe], reason: str) -> None:
        """Probes that match an instruction and do not go there."""
        self.left_out += [
            LeftOut(probe.name, probe.tracepoint.text, shown.line, shown.text, shown.source, reason, self._function)
            for probe in probes
        ]
