"""What the hardware gives a kernel in registers when a wave begins, and what it gives the kernel's twin.

Source: LLVM, "User Guide for AMDGPU Backend": "Kernel Descriptor", "Initial Kernel Execution State".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_WORD = struct.Struct("<I")
_HALF = struct.Struct("<H")
_RSRC3, _RSRC1, _RSRC2, _PROPERTIES, _PRELOAD = 44, 48, 52, 56, 58
"""Offsets of fields of a descriptor."""
_SCRATCH_OFFSET, _COUNT_SHIFT, _COUNT, _IDS_SHIFT, _INFO, _ITEMS_SHIFT = 1, 1, 31, 7, 1 << 10, 11
"""Bits of rsrc2: whether there is an SGPR with a wave's scratch memory; how many user SGPRs; numbers of the work-group
(3 bits); further SGPRs; numbers of work-items, for how many axes more than one (2 bits)."""
_MODE_SHIFT = 12
"""Bits of rsrc1: MODE."""
_ACCUMULATORS = 63
"""Bits of rsrc3: where accumulators begin, in 4 registers, less one."""
_USER = (
    ("private segment buffer", 0, 4), ("dispatch", 1, 2), ("queue", 2, 2), ("arguments", 3, 2), ("dispatch id", 4, 2),
    ("flat scratch", 5, 2), ("private segment size", 6, 1),
)  # fmt: skip
"""What user SGPRs have, in their order: name, bit of ``kernel_code_properties``, how many."""
_EMPTY = "nothing"
_PRELOAD_LENGTH = 0x7F
_MOST_USER = 16
_AXES = ("x", "y", "z")
PRELOAD_HEADER = 256
"""Bytes at the beginning of a kernel with preloaded arguments, after which the hardware begins to run it."""


@dataclass(frozen=True)
class EntryState:
    """A kernel's descriptor, as far as it says what registers have when a wave begins.

    descriptor: its 64 bytes. is_architected: whether numbers of work-groups are in registers of the trap handler
    (gfx12), and what an SGPR says of scratch memory is elsewhere (has_scratch_offset false).
    """

    descriptor: bytes
    is_architected: bool
    has_scratch_offset: bool

    @property
    def _rsrc2(self) -> int:
        """The word of the kernel's descriptor that says which SGPRs and VGPRs have numbers of work-groups and
        work-items."""
        return int(_WORD.unpack_from(self.descriptor, _RSRC2)[0])

    @property
    def mode(self) -> int:
        """The lower 8 bits of MODE: how floats are rounded, and which denormal ones are kept."""
        return int(_WORD.unpack_from(self.descriptor, _RSRC1)[0]) >> _MODE_SHIFT & 0xFF

    @property
    def _properties(self) -> int:
        """The bits of the kernel's descriptor that say which addresses user SGPRs have at the entry."""
        return int(_HALF.unpack_from(self.descriptor, _PROPERTIES)[0])

    @property
    def begins(self) -> int:
        """Where the code begins to run, in bytes from the kernel's beginning."""
        return PRELOAD_HEADER if _HALF.unpack_from(self.descriptor, _PRELOAD)[0] & _PRELOAD_LENGTH else 0

    @property
    def has_scratch_buffer(self) -> bool:
        """Whether SGPRs have the descriptor of a buffer with scratch memory."""
        return bool(self._properties & 1)

    @property
    def vector_boundary(self) -> int:
        """The number of the register at which accumulators begin, where these share one file with the VGPRs."""
        return 4 * ((int(_WORD.unpack_from(self.descriptor, _RSRC3)[0]) & _ACCUMULATORS) + 1)

    @property
    def axes(self) -> int:
        """Of how many axes VGPRs have the work-item's numbers, 1 to 3."""
        return 1 + min(self._rsrc2 >> _ITEMS_SHIFT & 3, 2)

    @property
    def scalars(self) -> dict[str, tuple[int, int]]:
        """SGPRs with values, by what they are: the first one's number, and how many."""
        found = {}
        at = 0
        for name, count in self._scalars():
            found[name] = at, count
            at += count
        return found

    def _scalars(self) -> Iterator[tuple[str, int]]:
        """Yield what SGPRs have, in order, and how many of them."""
        left = self._rsrc2 >> _COUNT_SHIFT & _COUNT
        for name, bit, count in _USER:
            if self._properties >> bit & 1:
                yield name, count
                left -= count
        preloaded = _HALF.unpack_from(self.descriptor, _PRELOAD)[0] & _PRELOAD_LENGTH
        if preloaded:
            yield "preloaded arguments", preloaded
        if left > preloaded:
            # Some of gfx11 want more of them than have values.
            yield _EMPTY, left - preloaded
        if not self.is_architected:
            for number, axis in enumerate(_AXES):
                if self._rsrc2 >> _IDS_SHIFT + number & 1:
                    yield f"group {axis}", 1
        if self._rsrc2 & _INFO:
            yield "group info", 1
        if self.has_scratch_offset and self._rsrc2 & _SCRATCH_OFFSET:
            yield "scratch offset", 1

    def for_twin(self) -> EntryState | None:
        """Return the state that a twin needs: with the address of the arguments, and all numbers of the work-group and
        of the work-item. None if user SGPRs do not suffice."""
        descriptor = bytearray(self.descriptor)
        rsrc2, properties = self._rsrc2, self._properties
        if not properties >> 3 & 1:
            count = rsrc2 >> _COUNT_SHIFT & _COUNT
            count += max(2 - self.scalars.get(_EMPTY, (0, 0))[1], 0)
            if count > _MOST_USER:
                return None
            properties |= 1 << 3
            rsrc2 = rsrc2 & ~(_COUNT << _COUNT_SHIFT) | count << _COUNT_SHIFT
        rsrc2 = rsrc2 & ~(3 << _ITEMS_SHIFT) | 7 << _IDS_SHIFT | 2 << _ITEMS_SHIFT
        _WORD.pack_into(descriptor, _RSRC2, rsrc2)
        _HALF.pack_into(descriptor, _PROPERTIES, properties)
        return EntryState(bytes(descriptor), self.is_architected, self.has_scratch_offset)

    def moves_from(self, twin: EntryState) -> list[tuple[int, int]]:
        """Return what brings SGPRs to where the kernel has them: to and from, in an order in which nothing is lost.

        twin: what ``for_twin`` returned, in which no value is below where the kernel has it.
        """
        places = twin.scalars
        return [
            (at + number, places[name][0] + number)
            for name, (at, count) in self.scalars.items()
            for number in range(count)
            if name != _EMPTY and places[name][0] != at
        ]
