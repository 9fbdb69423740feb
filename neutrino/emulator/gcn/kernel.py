"""Kernel descriptors, and the registers that a wave begins with (LLVM, "User Guide for AMDGPU Backend", "Kernel
Descriptor" and "Initial Kernel Execution State")."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from neutrino.emulator.gcn.access import SCRATCH_BASE
from neutrino.emulator.gcn.compiler import Compiler
from neutrino.emulator.gcn.errors import GcnError
from neutrino.emulator.gcn.numbering import EXEC, SGPRS, UPPER_HALVES, VGPRS
from neutrino.emulator.gcn.wave import Wave

DESCRIPTOR_SIZE = 64
_FIELDS = struct.Struct("<III4xq20xIIIHH4x")
_TTMP7, _TTMP8, _TTMP9 = 108 + 7, 108 + 8, 108 + 9
_PACKED_IDS = ("gfx90a", "gfx94", "gfx95", "gfx11", "gfx12", "gfx9-4")
"""Processors that pack the three numbers of a work-item in v0."""
_UNIFIED = ("gfx90a", "gfx94", "gfx95", "gfx9-4")
"""Processors whose accumulators are behind the other vector registers in one file."""
_DYNAMIC_STACK = 16 << 10
_SCALARS = 102
"""Scalar registers without a purpose of their own, at most."""
_ARCHITECTED_SCRATCH = ("gfx94", "gfx95", "gfx11", "gfx12", "gfx9-4")
PRELOAD_HEADER = 256
"""Bytes at a kernel's entry that processors jump over when they load arguments into registers themselves."""


@dataclass(frozen=True)
class Descriptor:
    """A kernel's descriptor. Sizes in bytes. entry: relative to the descriptor. mode: initial MODE."""

    lds: int
    scratch: int
    kernarg: int
    entry: int
    rsrc3: int
    rsrc1: int
    rsrc2: int
    properties: int
    preload_length: int
    preload_offset: int

    @property
    def mode(self) -> int:
        """Rounding and denormal numbers, as MODE has them."""
        return self.rsrc1 >> 12 & 0xFF

    @property
    def user_sgprs(self) -> int:
        """Scalar registers in front of the work-group's numbers."""
        return self.rsrc2 >> 1 & 31

    @property
    def stack(self) -> int:
        """Bytes of scratch of a lane, with what the runtime adds where the compiler did not know how much is needed."""
        return self.scratch + (_DYNAMIC_STACK if self.properties & 0x800 else 0)

    @property
    def lanes(self) -> int:
        """Lanes of a wave."""
        return 32 if self.properties & 0x400 else 64


def read_descriptor(data: bytes) -> Descriptor:
    """Read a descriptor of ``DESCRIPTOR_SIZE`` bytes."""
    lds, scratch, kernarg, entry, rsrc3, rsrc1, rsrc2, properties, preload = _FIELDS.unpack(data)
    return Descriptor(lds, scratch, kernarg, entry, rsrc3, rsrc1, rsrc2, properties, preload & 0x7F, preload >> 7)


def registers_of(descriptor: Descriptor, processor: str) -> int:
    """Return the registers that a kernel's waves have, as bits."""
    is_gfx9 = processor.startswith("gfx9")
    is_unified = processor.startswith(_UNIFIED)
    granule = 8 if is_unified or (not is_gfx9 and descriptor.lanes == 32) else 4
    vectors = ((descriptor.rsrc1 & 0x3F) + 1) * granule
    accumulators = vectors if processor == "gfx908" else 0
    if is_unified:
        offset = ((descriptor.rsrc3 & 0x3F) + 1) * 4
        accumulators = max(0, vectors - offset)
        vectors = min(vectors, offset)
    scalars = ((descriptor.rsrc1 >> 6 & 15) // 2 + 1) * 16 if is_gfx9 else _SCALARS
    rows = (1 << min(vectors, 256)) - 1 | (1 << min(accumulators, 256)) - 1 << 256
    named = (1 << SGPRS) - 1 >> _SCALARS << _SCALARS
    return rows | rows << UPPER_HALVES | ((1 << min(scalars, _SCALARS)) - 1 | named) << VGPRS


@dataclass(frozen=True)
class Dispatch:
    """What the waves of a launch have in common. grid: in work-groups. block: in work-items. kernarg, packet, queue:
    addresses; packet is that of the AQL packet."""

    processor: str
    descriptor: Descriptor
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    kernarg: int
    packet: int
    queue: int


def packet_of(grid: tuple[int, int, int], block: tuple[int, int, int], descriptor: Descriptor, kernarg: int) -> bytes:
    """Return the AQL packet of a launch (HSA, "AQL kernel dispatch packet")."""
    items = [count * size for count, size in zip(grid, block, strict=True)]
    return struct.pack(
        "<HHHHHHIIIIIQQQQ", 2, 3, *block, 0, *items, descriptor.stack, descriptor.lds, 0, kernarg, 0, 0
    )


def hardware_identity(processor: str, group: int, number: int) -> dict[str, int]:
    """Return the hardware registers of a wave by name: which compute unit it runs on is made up.

    group: the linear number of its work-group. number: of the wave in it.
    """
    unit, engine = group % 8, group // 8 % 4
    old = number % 10 | number % 4 << 4 | unit << 8 | engine << 13
    new = number % 20 | number % 4 << 8 | unit << 10 | engine << 18
    return {
        "HW_REG_HW_ID": new if processor.startswith(("gfx10", "gfx11", "gfx12")) else old, "HW_REG_XCC_ID": group % 6,
        "HW_REG_HW_ID1": new, "HW_REG_WAVE_HW_ID1": new, "HW_REG_HW_ID2": 0, "HW_REG_WAVE_HW_ID2": 0,
        "HW_REG_GPR_ALLOC": 0, "HW_REG_LDS_ALLOC": 0, "HW_REG_STATUS": 0, "HW_REG_IB_STS2": 0, "HW_REG_TRAPSTS": 0,
        "HW_REG_FLAT_SCR_LO": 0, "HW_REG_FLAT_SCR_HI": 0, "HW_REG_WAVE_STATUS": 0,
    }  # fmt: skip


def set_up(wave: Wave, dispatch: Dispatch, poison: np.random.Generator) -> int:
    """Write the registers that a wave begins with; the others get numbers that mean nothing.

    Returns the registers that have a value, as bits.
    """
    descriptor, processor = dispatch.descriptor, dispatch.processor
    lanes, group = wave.lanes, wave.group
    wave.v[:] = poison.integers(0, 1 << 32, (VGPRS, lanes), np.uint32)
    wave.s = poison.integers(0, 1 << 32, SGPRS).tolist()
    wave.mode = descriptor.mode
    at = 0
    properties = descriptor.properties
    scratch_bytes = descriptor.stack * lanes
    wave.scratch_base = SCRATCH_BASE + wave.number * scratch_bytes

    def put(*values: int) -> None:
        """Write the next scalar registers."""
        nonlocal at
        for value in values:
            wave.s[at] = value & 0xFFFF_FFFF
            at += 1

    def put_pair(value: int) -> None:
        """Write 64 bits to the next two scalar registers."""
        put(value, value >> 32)

    architected = processor.startswith(_ARCHITECTED_SCRATCH)
    if properties & 1:
        put(SCRATCH_BASE, SCRATCH_BASE >> 32 | 1 << 31, 0xFFFF_FFFF, 0)
    if properties & 2:
        put_pair(dispatch.packet)
    if properties & 4:
        put_pair(dispatch.queue)
    if properties & 8:
        put_pair(dispatch.kernarg)
    if properties & 16:
        put_pair(1)
    if properties & 32:
        put_pair(SCRATCH_BASE)
    if properties & 64:
        put(descriptor.stack)
    if descriptor.preload_length:
        first = dispatch.kernarg + 4 * descriptor.preload_offset
        put(*(wave.memory.word(first + 4 * word) for word in range(descriptor.preload_length)))
    if at > descriptor.user_sgprs:
        raise GcnError(f"the descriptor names {at} user SGPRs, but has {descriptor.user_sgprs}")
    at = descriptor.user_sgprs
    x, y, z = group.index
    new_ids = Compiler(processor, lanes, 0).generation >= 12
    if not new_ids:
        for bit, value in ((7, x), (8, y), (9, z)):
            if descriptor.rsrc2 >> bit & 1:
                put(value)
        if descriptor.rsrc2 >> 10 & 1:
            put(0)
        if descriptor.rsrc2 & 1 and not architected:
            put(wave.number * scratch_bytes)
    defined = (1 << at) - 1 << VGPRS
    for register in (EXEC, EXEC + 1):
        defined |= 1 << VGPRS + register
    if new_ids:
        wave.s[_TTMP9], wave.s[_TTMP7] = x, y & 0xFFFF | z << 16
        wave.s[_TTMP8] = wave.number << 25
        defined |= 7 << VGPRS + _TTMP7
    # Flat scratch and XNACK belong to every wave.
    defined |= 15 << VGPRS + 102
    width, height, depth = dispatch.block
    item = wave.number * lanes + np.arange(lanes, dtype=np.uint32)
    inside = item < width * height * depth
    ids = (item % width, item // width % height, item // (width * height))
    if processor.startswith(_PACKED_IDS):
        wave.v[0] = ids[0] | ids[1] << 10 | ids[2] << 20
        defined |= 1 | 1 << UPPER_HALVES
    else:
        for axis in range(1 + (descriptor.rsrc2 >> 11 & 3)):
            wave.v[axis] = ids[axis]
            defined |= (1 | 1 << UPPER_HALVES) << axis
    execute = int(np.flatnonzero(inside).size)
    wave.s[EXEC], wave.s[EXEC + 1] = (1 << execute) - 1 & 0xFFFF_FFFF, (1 << execute) - 1 >> 32
    wave.set_exec()
    linear = x + dispatch.grid[0] * (y + dispatch.grid[1] * z)
    wave.hardware = hardware_identity(processor, linear, wave.number)
    wave.scc = 0
    return defined
