"""The threads of a batch of thread blocks, and their special registers as arrays with one element per thread."""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neutrino.emulator.datatypes import Array

WARP = 32
MULTIPROCESSORS = 132

Dimensions = tuple[int, int, int]
_ONE = np.uint32(1)


class Shape:
    """The threads of ``blocks`` thread blocks of the dimensions ``block``, block by block and warp by warp.

    Every block is padded to whole warps. block: its dimensions in threads. blocks: their number. block_threads: threads
    per block, without the padding. warps: per block. stride: threads per block, with the padding. threads: in all
    blocks, with it. whole: there is no padding.
    """

    def __init__(self, block: Dimensions, blocks: int) -> None:
        """block: dimensions of a block in threads. blocks: number of blocks."""
        self.block = block
        self.blocks = blocks
        self.block_threads = block[0] * block[1] * block[2]
        # Rounded up.
        self.warps = -(-self.block_threads // WARP)
        self.stride = self.warps * WARP
        self.threads = self.stride * blocks
        self.whole = self.stride == self.block_threads

    @cached_property
    def in_block(self) -> NDArray[np.int64]:
        """The linear index of each thread within its block."""
        return np.tile(np.arange(self.stride, dtype=np.int64), self.blocks)

    @cached_property
    def block_of(self) -> NDArray[np.int64]:
        """The index of each thread's block within the batch."""
        return np.repeat(np.arange(self.blocks, dtype=np.int64), self.stride)

    @cached_property
    def real(self) -> NDArray[np.bool_]:
        """Mask of the threads that are no padding."""
        mask: NDArray[np.bool_] = self.in_block < self.block_threads
        return mask

    @cached_property
    def lane(self) -> NDArray[np.uint32]:
        """``%laneid``"""
        return (self.in_block % WARP).astype(np.uint32)

    @cached_property
    def registers(self) -> dict[str, Any]:
        """The special registers that depend on nothing but the shape, by name without ``%``.

        Values are arrays with one element per thread, or scalars if they are the same in all threads. A cluster is one
        block.
        """
        x, y, z = self.block
        index = self.in_block
        lane = self.lane
        # Masks with one bit per lane of a warp.
        lower_lanes = (_ONE << lane) - _ONE
        own_lane = _ONE << lane
        registers: dict[str, Any] = {
            "tid.x": _thread_index(x, index % x),
            "tid.y": _thread_index(y, index // x % y),
            "tid.z": _thread_index(z, index // (x * y)),
            "laneid": lane,
            "warpid": (index // WARP).astype(np.uint32),
            "nwarpid": np.uint32(self.warps),
            "lanemask_eq": own_lane,
            "lanemask_lt": lower_lanes,
            "lanemask_le": lower_lanes | own_lane,
            "lanemask_gt": ~(lower_lanes | own_lane),
            "lanemask_ge": ~lower_lanes,
            "nsmid": np.uint32(MULTIPROCESSORS),
            "gridid": np.uint64(1),
        }
        for axis, extent in zip("xyz", self.block, strict=True):
            registers[f"ntid.{axis}"] = np.uint32(extent)
            registers[f"cluster_ctaid.{axis}"] = np.uint32(0)
            registers[f"cluster_nctaid.{axis}"] = np.uint32(1)
        # Each block is the only one of its cluster.
        registers["cluster_ctarank"] = np.uint32(0)
        registers["cluster_nctarank"] = np.uint32(1)
        registers["is_explicit_cluster"] = np.False_
        return registers


def _thread_index(extent: int, values: Array) -> Any:
    """Return thread indices along an axis of the block: a scalar 0 if the block has one thread along it."""
    return np.uint32(0) if extent == 1 else values.astype(np.uint32)


@lru_cache(maxsize=64)
def shape(block: Dimensions, blocks: int) -> Shape:
    """Return how the threads of ``blocks`` thread blocks are arranged that run together, cached from one launch to the
    next.
    """
    return Shape(block, blocks)


@lru_cache(maxsize=256)
def block_registers(block: Dimensions, blocks: int, grid: Dimensions, first: int) -> dict[str, Any]:
    """Return the special registers that depend on a batch's blocks, by name without ``%``.

    first: the linear index in the grid of the first of the batch's `blocks`. Values are arrays with one element per
    thread, or scalars if they are the same in all threads.
    """
    block_numbers = np.arange(first, first + blocks, dtype=np.int64)
    x, y, _ = grid
    per_block = {
        "ctaid.x": block_numbers % x,
        "ctaid.y": block_numbers // x % y,
        "ctaid.z": block_numbers // (x * y),
        # Blocks go to the multiprocessors in turns.
        "smid": block_numbers % MULTIPROCESSORS,
    }
    # A cluster is one block.
    for axis in "xyz":
        per_block[f"clusterid.{axis}"] = per_block[f"ctaid.{axis}"]
    stride = shape(block, blocks).stride
    registers: dict[str, Any] = {}
    for name, values in per_block.items():
        uniform = bool((values == values[0]).all())
        registers[name] = np.uint32(values[0]) if uniform else np.repeat(values.astype(np.uint32), stride)
    for axis, extent in zip("xyz", grid, strict=True):
        registers[f"nctaid.{axis}"] = registers[f"nclusterid.{axis}"] = np.uint32(extent)
    return registers
