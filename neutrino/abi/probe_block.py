"""The probe block: the data of a launch that a twin (instrumented kernel) reads. It is the twin's last parameter,
passed by value, 8-byte aligned.

::

    0             u32 warps_per_block     warps of one block, partial ones counted
    4             u32 warp_capacity       warps that this launch's regions have room for
    8             u32 zero                0, which the assembler does not know
    12            u32 copy_mask           copies of a sum's record in this launch, less one
    16            u64 cell                device address of a u64 that is added to all addresses of maps; 0: none
    24 + 16·m     u64 records             device address of map m's records
    32 + 16·m     u64 counts              device address of map m's counts, 0 without counts; of a log instead
    32 + 16·m     u32 units               for chunks
    36 + 16·m     u32 first units         of each warp's first chunk, which take no atomic; 0: none has its own, as in
                                          graphs, where a kernel may run again with the same memory
    24 + 16·maps  u64 address[variables]  device addresses of the original's module variables; or, in kernels for AMD's
                                          GPUs, u32 blocks of the grid in x, y and z, and threads of a block likewise

A launch in a graph has the same parameters in each replay. There the maps' addresses are offsets, and the cell holds
where this replay's memory begins.
"""

from __future__ import annotations

BLOCK_HEADER = 24
"""Bytes of the probe block before the first map."""
BLOCK_WARPS_PER_BLOCK, BLOCK_WARP_CAPACITY, BLOCK_ZERO, BLOCK_COPY_MASK, BLOCK_CELL = 0, 4, 8, 12, 16
"""Offsets of the members of that header."""
BLOCK_PER_MAP = 16
BLOCK_LOG_UNITS, BLOCK_LOG_FIRST = 8, 12
"""Offsets of the words of a log, in those of a map."""
BLOCK_PER_VARIABLE = 8
BLOCK_EXTENTS = 24
"""Bytes of the extents of a launch."""
MAX_MAPS = 64
"""Maps of a run."""


def block_size(maps: int, variables: int) -> int:
    """Return the size in bytes of a probe block: the launch's data that a twin (instrumented kernel) reads, such as the
    addresses of its maps. It is passed as the twin's last parameter.

    maps: number of maps of the run. variables: number of module variables that the kernel uses.
    """
    return BLOCK_HEADER + BLOCK_PER_MAP * maps + BLOCK_PER_VARIABLE * variables
