"""The list of what probes went to in one function, and of what they could not go to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

from neutrino.probing.ir.probe_set import Probe
from neutrino.ptx.analysis.locations import Locations
from neutrino.ptx.instrument.twin import LeftOut, Site
from neutrino.ptx.text.body import Statement
from neutrino.ptx.text.module import Module


class Shown(NamedTuple):
    """An instruction as manifests show it. line, text, source: as ``line``, ``instruction``, ``source`` of a Site."""

    line: int
    text: str
    source: str = ""

    @classmethod
    def of(cls, statement: Statement, module: Module, places: Locations) -> Shown:
        """A statement of a body of a module. places: the lines of the source."""
        source = places.place(statement.position) if places else None
        return cls(module.line(statement.start), " ".join(statement.text.split()), str(source) if source else "")


class SiteList:
    """In the order in which they were added. Lines and texts are made when the list is first asked for.

    function: the name of the one that they are in. module, places: its module and the lines of the source.
    left_out: instructions that probes match and do not go to.
    """

    def __init__(self, function: str, module: Module, places: Locations) -> None:
        self._function = function
        self._module = module
        self._places = places
        self._added: list[tuple[Statement | Shown, Sequence[Probe], int | None]] = []
        self.left_out: list[LeftOut] = []

    def __bool__(self) -> bool:
        return bool(self._added)

    def add(self, where: Statement | Shown, probes: Sequence[Probe], number: int | None = None) -> None:
        """Probes that went to an instruction. number: what SITE is there."""
        if probes:
            self._added.append((where, probes, number))

    def leave_out(self, shown: Shown, probes: Iterable[Probe], reason: str) -> None:
        """Probes that match an instruction and do not go there."""
        self.left_out += [
            LeftOut(probe.name, probe.tracepoint.text, shown.line, shown.text, shown.source, reason, self._function)
            for probe in probes
        ]

    @cached_property
    def sites(self) -> list[Site]:
        """All of them, by their lines."""
        found = []
        for where, probes, number in self._added:
            shown = where if isinstance(where, Shown) else Shown.of(where, self._module, self._places)
            found += [
                Site(probe.name, probe.tracepoint.text, shown.line, shown.text, number, shown.source, self._function)
                for probe in probes
            ]
        return sorted(found, key=lambda site: site.line)
