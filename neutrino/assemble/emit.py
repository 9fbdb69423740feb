"""The form in which twins are loaded into the driver."""

from __future__ import annotations

from enum import Enum


class Emit(Enum):
    """The form in which twins are loaded into the driver. The values are those of ``--emit`` and of manifests."""

    CODE = "sass"
    """Machine code."""
    TEXT = "ptx"
    """Text, which the driver compiles for its device."""
    BOTH = "both"
    """A container of both, from which the driver picks."""
