"""Reads a trace directory straight by ``layout``, so that the hook's files are judged without the reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from neutrino.probing.layout import (
    FRAME,
    LAUNCH,
    LAUNCHES_HEADER,
    LAUNCHES_HEADER_SIZE,
    MAX_KERNELS,
    REASON_SLOTS,
    LaunchState,
    Reason,
)

RECORD = np.dtype([("serial", "<u8"), ("warp", "<u4"), ("seven", "<u4")])


class Files:
    def __init__(self, parent: Path) -> None:
        folders = list(parent.iterdir())
        assert len(folders) == 1, folders
        self.path = folders[0]
        data = (self.path / "launches.bin").read_bytes()
        self.header = np.frombuffer(data, LAUNCHES_HEADER.dtype, 1)[0]
        self.counters = np.frombuffer(data, "<u8", MAX_KERNELS * REASON_SLOTS, LAUNCHES_HEADER_SIZE).reshape(
            MAX_KERNELS, REASON_SLOTS
        )
        self.launches = np.frombuffer(
            data, LAUNCH.dtype, int(self.header["records_used"]), int(self.header["records_offset"])
        )
        self.events: list[dict[str, Any]] = [
            json.loads(line) for line in (self.path / "events.jsonl").read_text().splitlines()
        ]

    def kernel(self, name: str) -> int:
        return int(
            next(event["id"] for event in self.events if event["event"] == "kernel" and event["name"] == name)
        )

    def counted(self, name: str) -> dict[str, int]:
        row = self.counters[self.kernel(name)]
        return {reason.word: int(row[reason]) for reason in Reason if row[reason]}

    def written(self) -> np.ndarray[Any, np.dtype[np.void]]:
        return self.launches[self.launches["state"] == LaunchState.WRITTEN]

    def records(self, launch: np.void) -> np.ndarray[Any, np.dtype[np.void]]:
        """The records of a written launch of the fake kernels: one a warp."""
        data = (self.path / "result" / f"{launch['kernel']}.bin").read_bytes()
        offset = int(launch["data_offset"])
        frame = np.frombuffer(data, FRAME.dtype, 1, offset)[0]
        assert frame["magic"] == b"NTFRAME"
        assert list(frame["grid"]) == list(launch["grid"])
        warps = int(np.prod(launch["grid"].astype(np.uint64))) * -(-int(np.prod(launch["block"])) // 32)
        return np.frombuffer(data, RECORD, warps, offset + FRAME.size)

    def check_records(self) -> None:
        """Every written launch: all its warps, one serial throughout, no two launches with the same."""
        serials = []
        for launch in self.written():
            records = self.records(launch)
            assert (records["seven"] == 7).all()
            assert (records["warp"] == np.arange(len(records))).all()
            assert (records["serial"] == records["serial"][0]).all()
            serials.append(int(records["serial"][0]))
        assert len(set(serials)) == len(serials)
