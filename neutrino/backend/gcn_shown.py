"""The text of one twin of AMD's, for people: the kernel before and after probing."""

from __future__ import annotations

from neutrino.backend.gcn_source import CodeObjectSource
from neutrino.backend.gcn_values import GcnKernel
from neutrino.backend.gcn_writing import write_twins
from neutrino.backend.protocol import ShownTwin
from neutrino.errors import NeutrinoError


def show(source: CodeObjectSource, kernel: GcnKernel) -> ShownTwin:
    """Write a planned twin. source: the code object that the kernel is in. Raises NeutrinoError if it has none."""
    code = write_twins(source, [kernel], parts=True)
    if not code.twins:
        _, why = code.refused[kernel.name]
        raise NeutrinoError(f"{kernel.name}: {why}")
    (twin,) = code.twins
    return ShownTwin(twin, twin.probed, twin.parts, twin.added)
