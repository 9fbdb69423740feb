"""Twins whose text is for another architecture than the machine code that runs."""

from __future__ import annotations

from dataclasses import dataclass

from neutrino.device.source import Source

NOT_SHOWN = "not proven to be the program that runs"
"""The start of the detail of a retargeted kernel for which nothing is proven or contradicted."""


@dataclass(frozen=True)
class Retargeting:
    """Twins whose text is for another architecture than the machine code that runs. target: ``sm_120 → sm_90``.

    own: the machine code states that it was compiled from this text. unproven: also accept kernels that are not proven
    to be the ones that run, unless they are proven not to be.
    """

    target: str
    own: bool = False
    unproven: bool = False

    @classmethod
    def of(cls, source: Source, *, unproven: bool) -> Retargeting | None:
        """The one of a source; None if its text is for the architecture that runs."""
        return cls(source.retargeted, source.own, unproven) if source.retargeted else None
