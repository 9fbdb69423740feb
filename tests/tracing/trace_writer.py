"""Builds a trace directory as the hook and the patcher write it, from the layouts alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from neutrino.abi.launches import (
    LAUNCH,
    LAUNCHES_HEADER,
    LAUNCHES_HEADER_SIZE,
    LAUNCHES_MAGIC,
    MAX_KERNELS,
    REASON_SLOTS,
    LaunchState,
)
from neutrino.abi.levels import LEVELS, PERS, Level
from neutrino.abi.reasons import Reason
from neutrino.abi.records import lay_out_fields
from neutrino.abi.results import FRAME, FRAME_MAGIC, MAP_DESCRIPTOR, RESULT_HEADER, RESULT_MAGIC
from neutrino.abi.scalars import ScalarType
from neutrino.abi.structures import align_up
from neutrino.abi.versions import LAUNCHES_VERSION, RESULT_VERSION
from neutrino.errors import Span
from neutrino.maps.declaration import Layout, Map
from neutrino.maps.histogram import Histogram
from neutrino.maps.regions import LANES, copies_of, copy_stride, region_layout
from neutrino.maps.registry import ARRAY, SUM, number_of

RECORDS_OFFSET = LAUNCHES_HEADER_SIZE


def make_map(name: str, kind: str, level: str, fields: Mapping[str, str], cap: int = 1) -> Map:
    placed, size, _ = lay_out_fields([(key, ScalarType(word)) for key, word in fields.items()])
    return Map(name, {"array": ARRAY, "sum": SUM}[kind], Level(level), size, cap, placed, Span(1, 1))


BLOCK_SCHED = make_map("BlockSched", "array", "warp", {"start": "u64", "elapsed": "u32", "cuid": "u32"})
GMEM_BYTES = make_map(
    "GmemBytes",
    "sum",
    "thread",
    {"load": "u64", "store": "u64", "atomic": "u64", "async": "u64", "uncounted": "u64"},
)
_VALUE, _, _ = lay_out_fields([("value", ScalarType.U32)])
VALUES = Map("Values", Histogram(), Level.THREAD, Histogram().size(_VALUE), 1, _VALUE, Span(1, 1))


def write_histogram(path: Path, **changes: Any) -> Path:
    """Write a trace of one launch with the map ``VALUES``. changes: members of the map's object in the manifest."""
    writer = TraceWriter(path)
    writer.kernel(1, "vecadd", maps=[VALUES])
    writer.launch(1, (1, 1, 1), (32, 1, 1), fill_regions([VALUES], 1, {"Values": []}))
    written = writer.write()
    manifest = written / "kernel/1/manifest.json"
    document = json.loads(manifest.read_text())
    document["maps"][0] |= changes
    manifest.write_text(json.dumps(document))
    return written


def fill_regions(
    maps: Sequence[Map], warps: int, values: Mapping[str, Any], *, blocks: int = 1,
    lanes: int = LANES,
) -> bytes:
    """Regions of one launch. values: map → records in the order of the slots, ``NAME.counts`` → counts.

    warps: of each block; blocks matter to maps at block level alone.
    """
    regions, size = region_layout(maps, blocks, warps, lanes)
    data = bytearray(size)
    for entry, region in zip(maps, regions, strict=True):
        records = np.asarray(values[entry.name], entry.dtype).reshape(-1)
        if entry.kind.layout is not Layout.SLOTS:
            assert len(records) <= copies_of(entry, blocks * warps)
            for copy, record in enumerate(records):
                start = region.records + copy * copy_stride(entry.size)
                data[start : start + entry.size] = record.tobytes()
            continue
        assert records.nbytes == region.records_size
        data[region.records : region.records + region.records_size] = records.tobytes()
        if region.counts is not None:
            counts = np.asarray(values[f"{entry.name}.counts"], "<u4").reshape(-1)
            assert counts.nbytes == region.counts_size
            data[region.counts : region.counts + region.counts_size] = counts.tobytes()
    return bytes(data)


@dataclass
class TraceWriter:
    """Collects what a process did; ``write`` puts it into the folder."""

    path: Path
    device: str = "NVIDIA H200"
    events: list[dict[str, Any]] = field(default_factory=list)
    records: list[Any] = field(default_factory=list)
    kernels: dict[int, tuple[Map, ...]] = field(default_factory=dict)
    frames: dict[int, bytearray] = field(default_factory=dict)
    counters: Any = field(default_factory=lambda: np.zeros((MAX_KERNELS, REASON_SLOTS), "<u8"))

    def __post_init__(self) -> None:
        (self.path / "kernel").mkdir(parents=True)
        (self.path / "result").mkdir()
        self.event(
            "process", time_ns=1, pid=4242, ppid=1, host="node", argv=["python", "train.py"],
            executable="/usr/bin/python", version="0.1.0", driver="libcuda.so.1", driver_version=13000,
            probes="0" * 64,
        )  # fmt: skip
        self.event("device", ordinal=0, name=self.device, arch="sm_90")
        self.event("image", id=0, kind="fatbin", size=1000, source="")

    def event(self, event: str, /, **members: Any) -> None:
        self.events.append({"event": event, **members})

    def kernel(
        self,
        identity: int,
        name: str,
        reason: Reason = Reason.PROBED,
        detail: str = "",
        maps: Sequence[Map] = (),
        *,
        assembled: bool = True,
        **more: Any,
    ) -> None:
        self.event("kernel", id=identity, image=0, name=name, reason=reason.word, detail=detail)
        if reason is not Reason.PROBED:
            return
        self.kernels[identity] = tuple(maps)
        manifest = {
            "name": name,
            "demangled": f"{name}(int*)",
            "twin": f"{name}__neutrino",
            "arch": "sm_90",
            "parameters": [{"offset": 0, "size": 8}],
            "block": {"offset": 8, "size": 24},
            "maps": [
                entry.document() for entry in maps
            ],
            "variables": [],
            "registers": {"original": 18, "twin": 20, "capped": None},
            "spills": {
                "original": {"stores": 0, "loads": 0}, "twin": {"stores": 8, "loads": 16}, "capped": None,
            },
            "frame": {"original": 0, "twin": 0},
            "sites": [{"probe": "p", "tracepoint": "kernel", "line": 9, "instruction": "ret;"}],
            "numerics": {"original": {}, "twin": {}, "own": {}},
            "assembler": "ptxas 13.0.88",
        } | more  # fmt: skip
        if not assembled:
            manifest |= dict.fromkeys(("registers", "spills", "frame", "numerics", "assembler"))
        folder = self.path / "kernel" / str(identity)
        folder.mkdir()
        (folder / "manifest.json").write_text(json.dumps(manifest))
        header = np.zeros((), RESULT_HEADER.dtype)
        header["magic"], header["version"] = RESULT_MAGIC, RESULT_VERSION
        header["kernel"], header["maps"], header["map_size"] = identity, len(maps), MAP_DESCRIPTOR.size
        rows = np.zeros(len(maps), MAP_DESCRIPTOR.dtype)
        for row, entry in zip(rows, maps, strict=True):
            row["name"], row["record_size"], row["cap"] = entry.name.encode(), entry.size, entry.cap
            row["kind"], row["level"] = number_of(entry.kind), LEVELS.index(entry.level)
            row["per"] = PERS.index(entry.per)
        data = bytearray(header.tobytes() + rows.tobytes())
        data.extend(bytes(-len(data) % 64))
        self.frames[identity] = data

    def launch(
        self,
        kernel: int,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        regions: bytes | None,
        state: LaunchState = LaunchState.WRITTEN,
        lanes: int = 0,
    ) -> int:
        """One launch of a probed kernel. regions: None where no data came back. Returns its number."""
        number = len(self.records)
        record = np.zeros((), LAUNCH.dtype)
        record["kernel"], record["state"] = kernel, state if regions is not None else min(state, 1)
        record["grid"], record["block"], record["submit_ns"] = grid, block, number
        record["lanes"] = lanes
        if regions is not None:
            data = self.frames[kernel]
            frame = np.zeros((), FRAME.dtype)
            frame["magic"], frame["launch"], frame["size"] = FRAME_MAGIC, number, len(regions)
            frame["grid"], frame["block"] = grid, block
            frame["lanes"] = lanes
            record["data_offset"], record["data_size"] = len(data), len(regions)
            data.extend(frame.tobytes() + regions)
            data.extend(bytes(align_up(len(data), 64) - len(data)))
        self.records.append(record)
        self.counters[kernel, Reason.PROBED] += 1
        return number

    def count(self, kernel: int, reason: Reason, launches: int) -> None:
        self.counters[kernel, reason] += launches

    def write(self, ended: bool = True) -> Path:
        if ended:
            self.event("end", time_ns=2)
        lines = "".join(json.dumps(event) + "\n" for event in self.events)
        (self.path / "events.jsonl").write_text(lines)
        header = np.zeros((), LAUNCHES_HEADER.dtype)
        header["magic"], header["version"], header["record_size"] = (
            LAUNCHES_MAGIC,
            LAUNCHES_VERSION,
            LAUNCH.size,
        )
        header["records_offset"] = RECORDS_OFFSET
        header["records_used"], header["ended"], header["pid"] = len(self.records), ended, 4242
        header["realtime_ns"] = 1_763_600_000_000_000_000
        data = header.tobytes().ljust(LAUNCHES_HEADER_SIZE, b"\0")
        (self.path / "counters.bin").write_bytes(self.counters.tobytes())
        data += b"".join(record.tobytes() for record in self.records) + bytes(3 * LAUNCH.size)
        (self.path / "launches.bin").write_bytes(data)
        for kernel, frames in self.frames.items():
            (self.path / "result" / f"{kernel}.bin").write_bytes(frames)
        return self.path
