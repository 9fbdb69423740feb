"""Twins whose text is for another architecture than the machine code that runs."""

from __future__ import annotations

from dataclasses import dataclass

from neutrino.device.source import Source

NOT_SHOWN = "not shown to be the program that runs"
"""How the detail of a retargeted kernel begins that nothing speaks against, and nothing for."""


@dataclass(frozen=True)
class Retargeting:
    """Twins whose text is for another architecture than the machine code that runs. target: ``sm_120 → sm_90``.

    own: the machine code says that it was made of this text. unproven: kernels are taken that nothing shows to be the
    ones that run, unless something shows that they are not.
    """

    target: str
    own: bool = False
    unproven: bool = False

    @classmethod
    def of(cls, source: Source, *, unproven: bool) -> Retargeting | None:
        """That of a source; None where its text is for what runs."""
        return cls(source.retargeted, source.own, unproven) if source.retargeted else None
