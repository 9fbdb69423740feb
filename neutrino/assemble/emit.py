"""The form in which twins are loaded into the driver."""

from __future__ import annotations

from enum import Enum


class Emit(Enum):
    """The form in which twins are loaded into the driver. Targets name them (``Target.forms``)."""

    CODE = "code"
    """Machine code."""
    TEXT = "text"
    """Text, which the driver compiles for its device."""
    BOTH = "both"
    """A container of both, from which the driver picks."""
