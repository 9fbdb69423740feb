"""The proofs that a twin rounds as its original does, by the names that manifests give them."""

from __future__ import annotations

from enum import Enum


class NumericsProof(Enum):
    """What shows that a twin rounds as its original does."""

    COUNTS = "counts"
    """The machine codes hold as many fused and unfused instructions of each kind."""
    NO_PAIR = "no-pair"
    """The text holds no product that could be fused with a sum, however often the assembler repeats its code."""
    PINNED = "pinned"
    """The twin's text says itself what is fused, as the original's does when it gives the same machine code."""
    LINES = "lines"
    """The same, but for products within divisions: sums that they may be fused with became the same instructions."""
