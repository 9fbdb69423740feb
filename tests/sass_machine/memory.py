"""Memory of an interpreted kernel: ranges that lanes may touch, in a buffer; all else is a fault."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class MemoryFaultError(Exception):
    """An access outside of what was allocated, or not aligned."""


class Memory:
    """A buffer from an address on, of which ranges may be touched."""

    def __init__(self, base: int, size: int) -> None:
        self.base = base
        self.bytes = np.full(-(-size // 16) * 16, 0xA5, np.uint8)
        self._words = self.bytes.view(np.uint32)
        self._halves = self.bytes.view(np.uint16)
        self._starts = np.zeros(0, np.uint64)
        self._ends = np.zeros(0, np.uint64)

    def allow(self, address: int, size: int) -> None:
        """Let lanes touch a range."""
        ranges = sorted([*zip(self._starts.tolist(), self._ends.tolist(), strict=True), (address, address + size)])
        self._starts = np.array([start for start, _ in ranges], np.uint64)
        self._ends = np.array([end for _, end in ranges], np.uint64)

    def write(self, address: int, data: bytes | NDArray) -> None:
        """Put bytes into memory, from the host."""
        content = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data.reshape(-1).view(np.uint8)
        self.bytes[address - self.base : address - self.base + len(content)] = content

    def read(self, address: int, size: int) -> bytes:
        """Bytes of memory, for the host."""
        return self.bytes[address - self.base : address - self.base + size].tobytes()

    def holds(self, address: int) -> bool:
        """Whether lanes may touch a byte."""
        at = int(np.searchsorted(self._starts, np.uint64(address), "right")) - 1
        return at >= 0 and address < int(self._ends[at])

    def _offsets(self, addresses: NDArray[np.uint64], size: int, what: str) -> NDArray[np.int64]:
        at = np.searchsorted(self._starts, addresses, "right").astype(np.int64) - 1
        ends = self._ends[np.maximum(at, 0)] if len(self._ends) else np.zeros(len(addresses), np.uint64)
        wrong = (at < 0) | (addresses + np.uint64(size) > ends) | (addresses % np.uint64(size) != 0)
        if wrong.any():
            address = int(addresses[wrong][0])
            raise MemoryFaultError(f"{size} bytes at {address:#x} of {what} memory are not allocated, or not aligned")
        return (addresses - np.uint64(self.base)).astype(np.int64)

    def load(self, addresses: NDArray[np.uint64], size: int, what: str) -> list[NDArray[np.uint32]]:
        """What is at addresses, in words of 32 bits; bytes and halves with zeros above."""
        at = self._offsets(addresses, size, what)
        if size == 1:
            return [self.bytes[at].astype(np.uint32)]
        if size == 2:
            return [self._halves[at >> 1].astype(np.uint32)]
        return [self._words[(at >> 2) + word] for word in range(size // 4)]

    def store(self, addresses: NDArray[np.uint64], size: int, values: list[NDArray[np.uint32]], what: str) -> None:
        """Put words at addresses."""
        at = self._offsets(addresses, size, what)
        if size == 1:
            self.bytes[at] = values[0].astype(np.uint8)
        elif size == 2:
            self._halves[at >> 1] = values[0].astype(np.uint16)
        else:
            for word in range(size // 4):
                self._words[(at >> 2) + word] = values[word]
