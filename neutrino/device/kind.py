"""What runs a program's kernels: a GPU with its vendor's driver, or the embedded device."""

from __future__ import annotations

from enum import Enum


class DeviceKind(Enum):
    """Decides which image of a container runs, and in which form twins are loaded into the driver."""

    GPU = "gpu"
    """Machine code, or PTX that the driver compiles. Twins are cubins."""
    EMBEDDED = "embedded"
    """PTX only, on the CPU, with the stand-in driver. Twins are PTX text."""


CODE_ALONE: frozenset[DeviceKind] = frozenset()
"""Devices for which some target makes twins of machine code that comes without a text. A run tells the hook, which asks
for no twins of such images else. It is here since the start of a run imports no target."""
