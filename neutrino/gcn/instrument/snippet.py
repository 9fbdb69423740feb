"""The code of one snippet: statements that compute, and saves."""

from __future__ import annotations

from collections.abc import Iterable

from neutrino.abi.levels import Level
from neutrino.gcn.instrument.compute import Computing
from neutrino.gcn.instrument.saves import Saving
from neutrino.gcn.instrument.surroundings import Surroundings
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.ir.structured import Save


class SnippetCode(Computing):
    """A snippet with saves."""

    def __init__(self, here: Surroundings, vectors: Iterable[str], probes: ProbeSet, level: Level) -> None:
        """vectors: as for ``Computing``. level: the probe's."""
        super().__init__(here, vectors)
        self._saving = Saving(self, probes.maps, level)

    def save(self, statement: Save) -> None:
        """Save values to a map."""
        self._saving.save(statement)
