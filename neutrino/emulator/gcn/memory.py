"""Global memory: one array, in which buffers lie between red zones that nothing may touch."""

from __future__ import annotations

import bisect
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.emulator.gcn.errors import GcnFaultError

Array = npt.NDArray[Any]

BASE = 0x7F00_0000_0000
"""Address of the array's first byte. Higher than any aperture's lower 32 bits and lower than the apertures."""
_RED_ZONE = 256
_ALIGNMENT = 256
_NEAR = 1 << 20
"""Bytes behind a buffer within which an access is said to have missed it."""


class Memory:
    """Global memory of ``capacity`` bytes, which take memory of this process as they are used.

    Buffers may be read and written within their bounds. What nobody wrote is ``fill``.
    """

    def __init__(self, capacity: int = 256 << 20, fill: int = 0xA5) -> None:
        """Set up empty global memory without buffers. capacity: bytes in all. fill: the byte that new buffers have."""
        self.bytes: npt.NDArray[np.uint8] = np.zeros(capacity, np.uint8)
        self._valid: npt.NDArray[np.bool_] = np.zeros(capacity, np.bool_)
        self._words = self.bytes.view(np.uint32)
        self._top = _RED_ZONE
        self._fill = fill
        self._begins: list[int] = []
        self._sizes: list[int] = []
        self.clock = 1000
        """Ticks of the clocks that kernels read: it grows with what is executed."""

    def allocate(self, size: int, alignment: int = _ALIGNMENT) -> int:
        """Return the address of a new buffer of ``size`` bytes."""
        begin = -(-self._top // alignment) * alignment
        end = begin + size
        if end + _RED_ZONE > self.bytes.size:
            raise GcnFaultError("memory", f"{size} bytes do not fit into {self.bytes.size}")
        self.bytes[begin:end] = self._fill
        self._valid[begin:end] = True
        self._top = end + _RED_ZONE
        self._begins.append(begin)
        self._sizes.append(size)
        return BASE + begin

    def put(self, values: Array | bytes, alignment: int = _ALIGNMENT) -> int:
        """Return the address of a new buffer with a copy of the values."""
        raw = np.frombuffer(values if isinstance(values, bytes) else np.ascontiguousarray(values).tobytes(), np.uint8)
        address = self.allocate(raw.size, alignment)
        self.write(address, raw)
        return address

    def write(self, address: int, values: Array | bytes) -> None:
        """Write values at an address, as the host does. Raises GcnFaultError outside buffers."""
        raw = np.frombuffer(values if isinstance(values, bytes) else np.ascontiguousarray(values).tobytes(), np.uint8)
        begin = self._range(address, raw.size)
        self.bytes[begin : begin + raw.size] = raw

    def read(self, address: int, size: int) -> bytes:
        """Return bytes from an address. Raises GcnFaultError outside buffers."""
        begin = self._range(address, size)
        return self.bytes[begin : begin + size].tobytes()

    def _range(self, address: int, size: int) -> int:
        """Return the place in ``bytes`` of an address. Raises GcnFaultError if the bytes from there on are not all in
        buffers."""
        begin = address - BASE
        if not 0 <= begin <= self.bytes.size - size or not self._valid[begin : begin + size].all():
            raise self._fault(address, size)
        return begin

    def _fault(self, address: int, size: int) -> GcnFaultError:
        """Return the error for an access that lies in no buffer, with the buffer in front of it."""
        text = f"{size} bytes at {address:#x} lie in no buffer"
        index = bisect.bisect_right(self._begins, address - BASE) - 1
        if index >= 0 and address - BASE < self._begins[index] + self._sizes[index] + _NEAR:
            begin, length = self._begins[index], self._sizes[index]
            text += f": {address - BASE - begin} bytes behind the begin of one of {length} bytes at {BASE + begin:#x}"
        return GcnFaultError("memory", text)

    def word(self, address: int) -> int:
        """Return 32 bits at an address, which must be a multiple of 4. Raises GcnFaultError outside buffers."""
        begin = address - BASE
        if not 0 <= begin < self.bytes.size or not (self._valid[begin] and self._valid[begin + 3]) or begin & 3:
            raise self._fault(address, 4)
        return int(self._words[begin >> 2])

    def offsets(self, addresses: Array, size: int) -> Array:
        """Return places in ``bytes`` of accesses of ``size`` bytes each. Raises GcnFaultError outside buffers."""
        places: Array = addresses.astype(np.int64) - BASE
        if places.size:
            inside = (places >= 0) & (places < self.bytes.size - size)
            if inside.all():
                inside = self._valid[places] & self._valid[places + (size - 1)]
            if not inside.all():
                raise self._fault(int(addresses[int(np.argmin(inside))]) & (1 << 64) - 1, size)
        return places
