"""The proofs that a twin rounds as its original does, by their names in manifests."""

from __future__ import annotations

from enum import Enum


class NumericsProof(Enum):
    """What proves that a twin rounds as its original does."""

    COUNTS = "counts"
    """Both machine codes have equal counts of fused and unfused instructions of each kind."""
    NO_PAIR = "no-pair"
    """The text has no product that could be fused with a sum, however often the assembler repeats its code."""
    PINNED = "pinned"
    """The twin is written with explicit FMA, and the original, written alike, assembles to the original's code."""
    LINES = "lines"
    """As ``PINNED``, and sums that may be fused with a product within a division became the same instructions."""
