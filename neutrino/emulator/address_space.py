"""The address space: windows onto buffers, and allocations in them, poisoned and separated by red zones."""

from __future__ import annotations

from bisect import bisect_right, insort
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neutrino.emulator.datatypes import Array

POISON = 0xA5
"""The value of every byte of a fresh allocation."""
RED_ZONE = 256
"""Bytes after each allocation that no access may touch."""
ALIGNMENT = 256

# The generic addresses of each state space. The low 32 bits of the bases are zero, so that a truncated generic address
# of shared memory is a shared one, as on the hardware.
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
    """A part of the address space: kernels see ``buffer``, an array of bytes, from address ``base`` to ``end``.

    Kernels may access only the address ranges in it that are valid: allocations, and what ``allow`` adds. constant:
    kernels may not write it.
    """

    def __init__(self, base: int, buffer: NDArray[np.uint8], *, constant: bool = False) -> None:
        """Make a window (a part of the address space) of which nothing is allocated or valid yet.

        base: the address of the first byte. buffer: its bytes, as kernels see them. constant: kernels may not write it.
        """
        self.base = base
        self.buffer = buffer
        self.end = base + buffer.size
        self.constant = constant
        # The valid ranges: the addresses where they start, sorted, and those after their last bytes.
        self._starts: list[int] = []
        self._ends: list[int] = []
        # The same as arrays, for ``valid``: a cache. None when the lists have changed since it was made.
        self._bounds: tuple[NDArray[np.uint64], NDArray[np.uint64]] | None = None
        # Word type → ``buffer`` as words of that type, made when first accessed.
        self._views: dict[np.dtype[Any], Array] = {}
        # The free ranges (start, end), sorted; and by address the size of each allocation with its red zone.
        self._free: list[tuple[int, int]] = [(base, self.end)]
        self._sizes: dict[int, int] = {}

    def view(self, dtype: np.dtype[Any]) -> Array:
        """Return the buffer as an array of ``dtype``: the word at address ``a`` has the index (a - base) / itemsize."""
        view = self._views.get(dtype)
        if view is None:
            # Without the bytes at the end that do not fill a word.
            size = self.buffer.size // dtype.itemsize * dtype.itemsize
            view = self._views[dtype] = self.buffer[:size].view(dtype)
        return view

    def allow(self, address: int, size: int) -> None:
        """Make ``size`` bytes from ``address`` on valid: kernels may access them. No size, no effect.

        The range must not touch another valid one.
        """
        if size <= 0:
            return
        index = bisect_right(self._starts, address)
        self._starts.insert(index, address)
        self._ends.insert(index, address + size)
        self._bounds = None  # made again from the lists when next needed

    def forbid(self, address: int) -> None:
        """Undo ``allow``: make the whole valid range that begins at ``address`` invalid.

        Raises KeyError if no range begins there.
        """
        # The last range that begins at the address or before it.
        index = bisect_right(self._starts, address) - 1
        if index < 0 or self._starts[index] != address:
            raise KeyError(address)
        del self._starts[index], self._ends[index]
        self._bounds = None  # made again from the lists when next needed

    def holds(self, low: int, high: int) -> bool:
        """Whether the addresses from ``low`` to ``high`` (exclusive) are inside one valid range."""
        index = bisect_right(self._starts, low) - 1
        return index >= 0 and high <= self._ends[index]

    def valid(self, addresses: NDArray[np.uint64], size: int) -> NDArray[np.bool_]:
        """Return for each address whether ``size`` bytes from it on are inside one valid range."""
        if self._bounds is None:
            self._bounds = (np.array(self._starts, np.uint64), np.array(self._ends, np.uint64))
        starts, ends = self._bounds
        if not starts.size:
            return np.zeros(addresses.shape, np.bool_)
        # Of each address, the last range that begins there or before; -1 for none, which would index the last one.
        index = np.searchsorted(starts, addresses, "right") - 1
        inside: NDArray[np.bool_] = (index >= 0) & (addresses + np.uint64(size) <= ends[index])
        return inside

    def allocate(self, size: int, alignment: int = ALIGNMENT) -> int:
        """Allocate ``size`` bytes, filled with poison, with a red zone after them, and return their address.

        alignment: of the address; at least ALIGNMENT. Raises OutOfMemoryError if no free range is large enough.
        """
        alignment = max(alignment, ALIGNMENT)
        for index, (start, end) in enumerate(self._free):
            # Both rounded up: the address, and the end of the red zone.
            address = -(-start // alignment) * alignment
            stop = -(-(address + size + RED_ZONE) // ALIGNMENT) * ALIGNMENT
            if stop > end:
                continue
            # What is left of the free range before and after the allocation. Less than ALIGNMENT is of no use.
            remainders = ((start, address), (stop, end))
            self._free[index : index + 1] = [(low, high) for low, high in remainders if high - low >= ALIGNMENT]
            self._sizes[address] = stop - address
            self.allow(address, size)
            self.buffer[address - self.base : stop - self.base] = POISON
            return address
        raise OutOfMemoryError(f"no room for {size} bytes")

    def free(self, address: int) -> None:
        """Free the allocation at ``address``, and merge adjacent free ranges. Raises KeyError if there is none."""
        size = self._sizes.pop(address)  # with the red zone
        # An allocation of zero bytes has no valid range.
        if size > RED_ZONE and self.holds(address, address + 1):
            self.forbid(address)
        insort(self._free, (address, address + size))
        # Ranges that touch become one, so that a large allocation finds room again.
        merged: list[tuple[int, int]] = []
        for start, end in self._free:
            if merged and merged[-1][1] == start:
                merged[-1] = (merged[-1][0], end)
            else:
                merged.append((start, end))
        self._free = merged

    def allocation(self, address: int) -> tuple[int, int] | None:
        """Return (start, size) of the valid range that contains an address, None if there is none."""
        index = bisect_right(self._starts, address) - 1
        if index < 0 or address >= self._ends[index]:
            return None
        return self._starts[index], self._ends[index] - self._starts[index]


class Memory:
    """The address space of a device: all its windows."""

    def __init__(self) -> None:
        self.windows: list[Window] = []

    def add(self, window: Window) -> None:
        """Add a window to the address space.

        Raises ValueError if it overlaps another one, or the fixed addresses of shared memory, functions and so on.
        """
        # The one window there is constant memory, at its own fixed address.
        if window.base < FUNCTION_BASE and not window.constant:
            raise ValueError(f"addresses below {FUNCTION_BASE:#x} are taken")
        if any(window.base < other.end and other.base < window.end for other in self.windows):
            raise ValueError("windows overlap")
        self.windows.append(window)

    def find(self, address: int) -> Window | None:
        """Return the window that contains an address, None if there is none."""
        for window in self.windows:
            if window.base <= address < window.end:
                return window
        return None
