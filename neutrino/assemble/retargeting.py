"""Twins whose text is for another architecture than the machine code that runs."""

from __future__ import annotations

from dataclasses import dataclass

NOT_SHOWN = "not proven to be the program that runs"
"""The start of the detail of a retargeted kernel for which nothing is proven or contradicted."""


@dataclass(frozen=True)
class Retargeting:
    """How twins are treated whose text is for another architecture than the machine code that runs.

    target: both architectures, as ``sm_120 → sm_90``. own: whether the machine code states that it was compiled from
    this text. unproven: whether to accept kernels that are neither proven nor disproven to be the ones that run.
    """

    target: str
    own: bool = False
    unproven: bool = False
