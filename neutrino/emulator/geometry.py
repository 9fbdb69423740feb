"""Which threads a batch of blocks has, one array element a thread, and what their special registers say."""

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
    """``blocks`` thread blocks of the dimensions ``block``, block by block and warp by warp.

    Every block is filled up to whole warps: ``threads`` counts those that fill as well, ``real`` says which are not.
    """

    def __init__(self, block: Dimensions, blocks: int) -> None:
        self.block = block
        self.blocks = blocks
        self.block_threads = block[0] * block[1] * block[2]
        self.warps = -(-self.block_threads // WARP)
        self.stride = self.warps * WARP
        self.threads = self.stride * blocks
        self.whole = self.stride == self.block_threads

    @cached_property
    def in_block(self) -> NDArray[np.int64]:
        """The linear index of each thread in its block."""
        return np.tile(np.arange(self.stride, dtype=np.int64), self.blocks)

    @cached_property
    def block_of(self) -> NDArray[np.int64]:
        """The number of each thread's block in the batch."""
        return np.repeat(np.arange(self.blocks, dtype=np.int64), self.stride)

    @cached_property
    def real(self) -> NDArray[np.bool_]:
        """Which threads exist."""
        mask: NDArray[np.bool_] = self.in_block < self.block_threads
        return mask

    @cached_property
    def lane(self) -> NDArray[np.uint32]:
        """``%laneid``"""
        return (self.in_block % WARP).astype(np.uint32)

    @cached_property
    def registers(self) -> dict[str, Any]:
        """The special registers that depend on nothing but the shape, by name."""
        x, y, z = self.block
        t = self.in_block
        lane = self.lane
        below = (_ONE << lane) - _ONE
        only = _ONE << lane
        found: dict[str, Any] = {
            "tid.x": _uniform(x, t % x),
            "tid.y": _uniform(y, t // x % y),
            "tid.z": _uniform(z, t // (x * y)),
            "laneid": lane,
            "warpid": (t // WARP).astype(np.uint32),
            "nwarpid": np.uint32(self.warps),
            "lanemask_eq": only,
            "lanemask_lt": below,
            "lanemask_le": below | only,
            "lanemask_gt": ~(below | only),
            "lanemask_ge": ~below,
            "nsmid": np.uint32(MULTIPROCESSORS),
            "gridid": np.uint64(1),
        }
        for name, value in zip("xyz", self.block, strict=True):
            found[f"ntid.{name}"] = np.uint32(value)
            found[f"cluster_ctaid.{name}"] = np.uint32(0)
            found[f"cluster_nctaid.{name}"] = np.uint32(1)
        found["cluster_ctarank"] = np.uint32(0)
        found["cluster_nctarank"] = np.uint32(1)
        found["is_explicit_cluster"] = np.False_
        return found


def _uniform(extent: int, values: Array) -> Any:
    return np.uint32(0) if extent == 1 else values.astype(np.uint32)


@lru_cache(maxsize=64)
def shape(block: Dimensions, blocks: int) -> Shape:
    """A shape, kept from one launch to the next."""
    return Shape(block, blocks)


@lru_cache(maxsize=256)
def block_registers(block: Dimensions, blocks: int, grid: Dimensions, first: int) -> dict[str, Any]:
    """The special registers of a batch that starts with the block of that linear number."""
    numbers = np.arange(first, first + blocks, dtype=np.int64)
    x, y, _ = grid
    found: dict[str, Any] = {}
    columns = {
        "ctaid.x": numbers % x,
        "ctaid.y": numbers // x % y,
        "ctaid.z": numbers // (x * y),
        "smid": numbers % MULTIPROCESSORS,
    }
    for axis in "xyz":
        columns[f"clusterid.{axis}"] = columns[f"ctaid.{axis}"]
    stride = shape(block, blocks).stride
    for name, values in columns.items():
        same = bool((values == values[0]).all())
        found[name] = np.uint32(values[0]) if same else np.repeat(values.astype(np.uint32), stride)
    for axis, extent in zip("xyz", grid, strict=True):
        found[f"nctaid.{axis}"] = found[f"nclusterid.{axis}"] = np.uint32(extent)
    return found
