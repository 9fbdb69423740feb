"""Large traces and logs, made as the hook would leave them, whose figures are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from neutrino.maps.declaration import Map
from neutrino.maps.log_reading import LOG_CONTROL, GroupLayout
from neutrino.tracing.views import Geometry, MapView
from tests.tracing.trace_writer import BLOCK_SCHED, TraceWriter, fill_regions

BLOCKS, MULTIPROCESSORS, RESIDENT = 1_000_000, 132, 8
LANES, CHUNK = 32, 4096
SITES = 8
WARPS = 1 << 16
_STRIDES = {"linear": 4, "stride": 256}
_BASE = 0x7F00_0000_0000
_SPAN = 1 << 30
"""Bytes of memory that the accesses are in."""


def schedule_of(blocks: int, warps: int = 1) -> Any:
    """Return the records of ``block_sched`` of a launch, as many blocks at once as fit: ``[block][warp]``."""
    random = np.random.default_rng(1)
    rows = np.zeros((blocks, warps), BLOCK_SCHED.dtype)
    turns = np.arange(blocks) // (MULTIPROCESSORS * RESIDENT)
    rows["start"] = (10**9 + turns * 20_000 + random.integers(0, 3000, blocks))[:, None]
    rows["elapsed"] = random.integers(12_000, 17_000, rows.shape)
    rows["cuid"] = (np.arange(blocks) % MULTIPROCESSORS)[:, None]
    return rows


def write_schedule(path: Path) -> None:
    """Write a trace of one launch of a million blocks of a warp."""
    writer = TraceWriter(path)
    writer.kernel(1, "gemm", maps=[BLOCK_SCHED])
    regions = fill_regions([BLOCK_SCHED], 1, {"BlockSched": schedule_of(BLOCKS)}, blocks=BLOCKS)
    writer.launch(1, (BLOCKS, 1, 1), (LANES, 1, 1), regions)
    writer.write()


def log_of(entry: Map, pattern: str, accesses: int, warps: int = WARPS, apart: int = 0) -> MapView:
    """Return a log of a launch's accesses, as groups of the lanes of a warp.

    entry: the map ``GlobalAccesses`` of ``dmat``. pattern: linear, stride or random. accesses: of lanes, at least.
    apart: by how much the clocks of one block's multiprocessor and the next one's differ.
    """
    layout = GroupLayout.of(entry.fields, entry.size)
    assert layout is not None
    area = 8 * LANES if pattern == "random" else 0
    size = layout.head + area
    per = (CHUNK - 16) // size
    chunks = -(-accesses // LANES // per)
    region = np.zeros(LOG_CONTROL + chunks * CHUNK, np.uint8)
    region[:8].view("<u8")[0] = chunks * CHUNK // 32
    all_chunks = region[LOG_CONTROL:].reshape(chunks, CHUNK)
    heads = all_chunks[:, :16].view("<u4")
    heads[:, 0], heads[:, 1], heads[:, 3] = np.arange(chunks) % warps, layout.shape, CHUNK // 32
    groups = all_chunks[:, 16 : 16 + per * size].reshape(chunks, per, size)

    def put(offset: int, values: Any, kind: str) -> None:
        """Write a value into each group."""
        raw = np.ascontiguousarray(np.broadcast_to(values, (chunks, per)).astype(kind))[..., None].view(np.uint8)
        groups[:, :, offset : offset + raw.shape[-1]] = raw

    numbers = np.arange(chunks * per).reshape(chunks, per)
    offsets: Any = entry.dtype.fields
    put(0, 0xFFFFFFFF, "<u4")
    put(4, 3 if area else 0, "<u4")
    put(8, numbers[0], "<u4")
    put(layout.strides[0], _STRIDES.get(pattern, 0), "<i4")
    put(layout.record + offsets["address"][1], _BASE + numbers * LANES * 4 % _SPAN, "<u8")
    clocks = numbers // 100 + (np.arange(chunks) % warps // 8 * apart)[:, None]
    put(layout.record + offsets["clock"][1], clocks, "<u8")
    put(layout.record + offsets["site"][1], numbers % SITES, "<u4")
    put(layout.record + offsets["bytes"][1], 4, "<u2")
    if area:
        random = np.random.default_rng(2)
        for first in range(0, chunks, 1 << 12):
            part = groups[first : first + (1 << 12)]
            values = _BASE + random.integers(0, _SPAN // 4, (*part.shape[:2], LANES)).astype("<u8") * 4
            part[:, :, layout.head :] = values.view(np.uint8).reshape(*part.shape[:2], area)
    return MapView(entry, Geometry(warps // 8, 256, LANES), region, None)
