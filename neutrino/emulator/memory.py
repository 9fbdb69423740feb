"""The address space: windows onto buffers, allocations in them with red zones between, poison in what is fresh."""

from __future__ import annotations

from bisect import bisect_right, insort
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neutrino.emulator.datatypes import Array

POISON = 0xA5
RED_ZONE = 256
ALIGNMENT = 256

# Where generic addresses lie. The low 32 bits of the bases are zero, so that a truncated generic address of shared
# memory is a shared one, as on the hardware.
SHARED_BASE = 0x0100_0000_0000
LOCAL_BASE = 0x0200_0000_0000
CONST_BASE = 0x0300_0000_0000
PARAM_BASE = 0x0400_0000_0000
FUNCTION_BASE = 0x0500_0000_0000
HEAP_BASE = 0x7F00_0000_0000
SPACE_SIZE = 0x0100_0000_0000
FUNCTION_STRIDE = 256


class Space(IntEnum):
    """State spaces (PTX ISA 5.1). GENERIC is never reported: such addresses are resolved first."""

    GENERIC = 0
    GLOBAL = 1
    CONST = 2
    SHARED = 3
    LOCAL = 4
    PARAM = 5


class OutOfMemoryError(MemoryError):
    """A window has no room for an allocation of that size."""


class Window:
    """``buffer``, one byte an element, seen by kernels from address ``base`` on. constant: kernels may not write it.

    Only allocations in it may be accessed.
    """

    def __init__(self, base: int, buffer: NDArray[np.uint8], *, constant: bool = False) -> None:
        self.base = base
        self.buffer = buffer
        self.end = base + buffer.size
        self.constant = constant
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._bounds: tuple[NDArray[np.uint64], NDArray[np.uint64]] | None = None
        self._views: dict[np.dtype[Any], Array] = {}
        self._free: list[tuple[int, int]] = [(base, self.end)]
        self._sizes: dict[int, int] = {}

    def view(self, dtype: np.dtype[Any]) -> Array:
        """The buffer as words of that type; the word at address a has index (a - base) / size."""
        found = self._views.get(dtype)
        if found is None:
            whole = self.buffer.size // dtype.itemsize * dtype.itemsize
            found = self._views[dtype] = self.buffer[:whole].view(dtype)
        return found

    def allow(self, address: int, size: int) -> None:
        """Mark bytes as valid. They must not touch others that are."""
        if size <= 0:
            return
        at = bisect_right(self._starts, address)
        self._starts.insert(at, address)
        self._ends.insert(at, address + size)
        self._bounds = None

    def forbid(self, address: int) -> None:
        """The bytes marked from this address on are valid no more. KeyError: none are."""
        at = bisect_right(self._starts, address) - 1
        if at < 0 or self._starts[at] != address:
            raise KeyError(address)
        del self._starts[at], self._ends[at]
        self._bounds = None

    def holds(self, low: int, high: int) -> bool:
        """Whether one allocation covers the addresses from low up to, but without, high."""
        at = bisect_right(self._starts, low) - 1
        return at >= 0 and high <= self._ends[at]

    def valid(self, addresses: NDArray[np.uint64], size: int) -> NDArray[np.bool_]:
        """Which of the addresses begin ``size`` bytes that one allocation covers."""
        if self._bounds is None:
            self._bounds = (np.array(self._starts, np.uint64), np.array(self._ends, np.uint64))
        starts, ends = self._bounds
        if not starts.size:
            return np.zeros(addresses.shape, np.bool_)
        at = np.searchsorted(starts, addresses, "right") - 1
        inside: NDArray[np.bool_] = (at >= 0) & (addresses + np.uint64(size) <= ends[at])
        return inside

    def allocate(self, size: int, alignment: int = ALIGNMENT) -> int:
        """Room for ``size`` bytes, a red zone after it, filled with poison. OutOfMemoryError: there is none."""
        alignment = max(alignment, ALIGNMENT)
        for at, (start, end) in enumerate(self._free):
            address = -(-start // alignment) * alignment
            stop = -(-(address + size + RED_ZONE) // ALIGNMENT) * ALIGNMENT
            if stop > end:
                continue
            self._free[at : at + 1] = [
                piece for piece in ((start, address), (stop, end)) if piece[1] - piece[0] >= ALIGNMENT
            ]
            self._sizes[address] = stop - address
            self.allow(address, size)
            self.buffer[address - self.base : stop - self.base] = POISON
            return address
        raise OutOfMemoryError(f"no room for {size} bytes")

    def free(self, address: int) -> None:
        """Give an allocation back. KeyError: there is none at this address."""
        size = self._sizes.pop(address)
        if size > RED_ZONE and self.holds(address, address + 1):
            self.forbid(address)
        insort(self._free, (address, address + size))
        merged: list[tuple[int, int]] = []
        for start, end in self._free:
            if merged and merged[-1][1] == start:
                merged[-1] = (merged[-1][0], end)
            else:
                merged.append((start, end))
        self._free = merged

    def allocation(self, address: int) -> tuple[int, int] | None:
        """(start, size) of the allocation that an address lies in."""
        at = bisect_right(self._starts, address) - 1
        if at < 0 or address >= self._ends[at]:
            return None
        return self._starts[at], self._ends[at] - self._starts[at]


class Memory:
    """All windows of a device."""

    def __init__(self) -> None:
        self.windows: list[Window] = []

    def add(self, window: Window) -> None:
        """Put a window into the address space. ValueError: another one or a fixed one lies there."""
        if window.base < FUNCTION_BASE and not window.constant:
            raise ValueError(f"addresses below {FUNCTION_BASE:#x} are taken")
        if any(window.base < other.end and other.base < window.end for other in self.windows):
            raise ValueError("windows overlap")
        self.windows.append(window)

    def find(self, address: int) -> Window | None:
        """The window around an address."""
        for window in self.windows:
            if window.base <= address < window.end:
                return window
        return None
