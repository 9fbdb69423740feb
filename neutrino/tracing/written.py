"""Writes a trace of one launch, for kernels that no driver launches; the hook writes the same files in C."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.abi.launches import (
    LAUNCH,
    LAUNCHES_HEADER,
    LAUNCHES_HEADER_SIZE,
    LAUNCHES_MAGIC,
    REASON_SLOTS,
    LaunchState,
)
from neutrino.abi.levels import LEVELS
from neutrino.abi.reasons import Reason
from neutrino.abi.results import FRAME, FRAME_MAGIC, MAP_DESCRIPTOR, RESULT_HEADER, RESULT_MAGIC
from neutrino.abi.structures import align_up
from neutrino.abi.versions import LAUNCHES_VERSION, RESULT_VERSION
from neutrino.late_dataclass import dataclass
from neutrino.maps.declaration import Map
from neutrino.maps.registry import number_of
from neutrino.version import __version__

Extents = tuple[int, int, int]
_FRAME_ALIGN = 64
_IMAGE, _KERNEL = 1, 1
"""Their ids in the trace."""


@dataclass(frozen=True)
class OneLaunch:
    """A kernel and its launch.

    device: its name. arch: its architecture. image: kind and size in bytes of the image. kernel: mangled. reason,
    detail: why it has no twin (copy with probes). probes: as the user named them. grid: in blocks; block: in threads.
    shared: bytes of dynamic shared memory. lanes: of a warp. files: of ``kernel/ID``, by name; others: of the trace.
    maps: of the twin. frame: what the launch left in them. log_units: of each log in the frame. whole_run: what it left
    in maps per run.
    """

    device: str
    arch: str
    image: tuple[str, int]
    kernel: str
    reason: Reason
    detail: str
    probes: str
    grid: Extents
    block: Extents
    shared: int
    lanes: int = 0
    files: Mapping[str, bytes] = field(default_factory=dict)
    others: Mapping[str, bytes] = field(default_factory=dict)
    maps: Sequence[Map] = ()
    frame: bytes = b""
    log_units: int = 0
    whole_run: bytes = b""


def write_trace(parent: Path, launch: OneLaunch) -> Path:
    """Write a trace into a new folder under ``parent``, which is made if need be; return the folder's path.

    Raises OSError.
    """
    begin = time.time_ns()
    name = f"{time.strftime('%b%d_%H%M%S', time.localtime(begin / 1e9))}_{os.getpid()}"
    path = parent / name
    number = 1
    while path.exists():
        number += 1
        path = parent / f"{name}_{number}"
    folder = path / "kernel" / str(_KERNEL)
    folder.mkdir(parents=True)
    for file, data in launch.files.items():
        (folder / file).write_bytes(data)
    for file, data in launch.others.items():
        (path / file).write_bytes(data)
    is_probed = launch.reason is Reason.PROBED
    size = 0
    if is_probed:
        head = _result_head(launch.maps)
        (path / "result").mkdir()
        frame = _frame(launch, launch.frame, 0)
        (path / "result" / f"{_KERNEL}.bin").write_bytes(head + frame)
        if launch.whole_run:
            # How many launches it is of is in the place of the launch's number.
            frame = _frame(launch, launch.whole_run, 1)
            (path / "result" / f"{_KERNEL}.run").write_bytes(head + frame)
        size = len(head)
    (path / "launches.bin").write_bytes(_launches(launch, size, begin, is_probed=is_probed))
    counters = np.zeros((_KERNEL + 1, REASON_SLOTS), "<u8")
    counters[_KERNEL, launch.reason] = 1
    (path / "counters.bin").write_bytes(counters.tobytes())
    events = "".join(json.dumps(event, separators=(",", ":")) + "\n" for event in _events(launch, begin))
    (path / "events.jsonl").write_text(events)
    return path


def _events(launch: OneLaunch, begin: int) -> list[dict[str, Any]]:
    """Return the rows of ``events.jsonl``. begin: in nanoseconds since the epoch."""
    kind, size = launch.image
    rows: list[dict[str, Any]] = [
        {
            "event": "process", "pid": os.getpid(), "ppid": os.getppid(), "host": platform.node(),
            "argv": sys.argv, "executable": sys.executable, "folder": str(Path.cwd()), "version": __version__,
            "driver": "", "driver_version": 0, "probes": launch.probes,
        },
        {"event": "device", "ordinal": 0, "name": launch.device, "arch": launch.arch},
        {"event": "image", "id": _IMAGE, "kind": kind, "size": size, "source": ""},
        {
            "event": "kernel", "id": _KERNEL, "image": _IMAGE, "name": launch.kernel, "reason": launch.reason.word,
            "detail": launch.detail,
        },
        {"event": "end", "drained": 1, "drain_ms": 0.0},
    ]  # fmt: skip
    return [{"event": row["event"], "time_ns": begin + at, **row} for at, row in enumerate(rows)]


def _result_head(maps: Sequence[Map]) -> bytes:
    """Return the beginning of a file of results: its header and the descriptors of the maps."""
    header = np.zeros((), RESULT_HEADER.dtype)
    header["magic"], header["version"], header["kernel"] = RESULT_MAGIC, RESULT_VERSION, _KERNEL
    header["maps"], header["map_size"] = len(maps), MAP_DESCRIPTOR.size
    rows = np.zeros(len(maps), MAP_DESCRIPTOR.dtype)
    for row, entry in zip(rows, maps, strict=True):
        row["name"], row["record_size"], row["cap"] = entry.name.encode(), entry.size, entry.cap
        row["kind"], row["level"], row["per"] = number_of(entry.kind), LEVELS.index(entry.level), entry.per_number
    return _padded(header.tobytes() + rows.tobytes())


def _frame(launch: OneLaunch, data: bytes, number: int) -> bytes:
    """Return a frame (the results of one launch in a trace's result file): its header and its data.

    number: of the launch.
    """
    frame = np.zeros((), FRAME.dtype)
    frame["magic"], frame["launch"], frame["size"] = FRAME_MAGIC, number, len(data)
    frame["grid"], frame["block"] = launch.grid, launch.block
    frame["lanes"], frame["log_units"] = launch.lanes, launch.log_units
    return _padded(frame.tobytes() + data)


def _launches(launch: OneLaunch, offset: int, begin: int, *, is_probed: bool) -> bytes:
    """Return the contents of the trace's file ``launches.bin``, with its one launch.

    offset: of the launch's frame in the file of results. begin: in nanoseconds since the epoch.
    """
    header = np.zeros((), LAUNCHES_HEADER.dtype)
    header["magic"], header["version"], header["record_size"] = LAUNCHES_MAGIC, LAUNCHES_VERSION, LAUNCH.size
    header["records_offset"], header["records_used"] = LAUNCHES_HEADER_SIZE, int(is_probed)
    header["monotonic_ns"], header["realtime_ns"] = time.monotonic_ns(), begin
    header["pid"], header["ended"] = os.getpid(), 1
    record: npt.NDArray[Any] = np.zeros((), LAUNCH.dtype)
    record["state"], record["kernel"] = LaunchState.WRITTEN, _KERNEL
    record["submit_ns"], record["data_offset"], record["data_size"] = time.monotonic_ns(), offset, len(launch.frame)
    record["grid"], record["block"], record["shared"] = launch.grid, launch.block, launch.shared
    record["lanes"], record["log_units"] = launch.lanes, launch.log_units
    data = header.tobytes().ljust(LAUNCHES_HEADER_SIZE, b"\0")
    # Only launches of a twin have records.
    return data + record.tobytes() * is_probed


def _padded(data: bytes) -> bytes:
    """Return bytes with zeros after them, up to where a frame may begin."""
    return data.ljust(align_up(len(data), _FRAME_ALIGN), b"\0")
