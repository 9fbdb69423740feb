"""Reads a trace directory straight by ``layout``, so that the hook's files are judged without the reader."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from neutrino.abi.launches import LAUNCH, LAUNCHES_HEADER, NO_KERNEL, REASON_SLOTS, LaunchState
from neutrino.abi.reasons import Reason
from neutrino.abi.records import record_dtype
from neutrino.abi.results import FRAME
from neutrino.maps.declaration import Map
from neutrino.maps.regions import copies_in, copy_stride, region_layout

ALL_PROBED = r"neutrino: (\d+) of \1 launches probed \(100 %\), 1 of 1 kernels\n"
"""A regular expression: what a process says at its end if all launches of its one kernel were probed."""
_COUNTING = ("count_p2", "count_p6")
"""Kernels of kernels.ptx whose warps take tickets of a counter of the program's."""


class Files:
    """A trace of a program of the tests, made with the maps Tickets and Entered."""

    def __init__(self, parent: Path) -> None:
        """The only trace in the folder parent."""
        folders = list(parent.iterdir())
        assert len(folders) == 1, folders
        self._read(folders[0])

    @classmethod
    def of(cls, trace: Path) -> Files:
        files = cls.__new__(cls)
        files._read(trace)
        return files

    def _read(self, path: Path) -> None:
        self.path = path
        data = (self.path / "launches.bin").read_bytes()
        self.header = np.frombuffer(data, LAUNCHES_HEADER.dtype, 1)[0]
        # A row for each kernel up to the last one with a launch; those after it have none.
        rows = np.frombuffer((self.path / "counters.bin").read_bytes(), "<u8").reshape(-1, REASON_SLOTS)
        self.counters = np.zeros((max(len(rows), 1024), REASON_SLOTS), "<u8")
        self.counters[: len(rows)] = rows
        records = np.frombuffer(
            data, LAUNCH.dtype, int(self.header["records_used"]), int(self.header["records_offset"])
        )
        # Threads take numbers in advance, and leave some.
        self.numbers = np.flatnonzero(records["state"] != LaunchState.EMPTY)
        self.launches = records[self.numbers]
        self.events: list[dict[str, Any]] = [
            json.loads(line) for line in (self.path / "events.jsonl").read_text().splitlines()
        ]
        self._data: dict[int, bytes] = {}

    def kernels(self, *names: str) -> list[int]:
        """Ids of the kernels of these names: one for each image."""
        # It is reported again when its reason changes.
        return sorted(
            {int(event["id"]) for event in self.events if event["event"] == "kernel" and event["name"] in names}
        )

    def counted(self, *names: str) -> dict[str, int]:
        """Launches of the kernels of these names by what became of them."""
        rows = self.counters[self.kernels(*names)].sum(axis=0)
        return {reason.word: int(rows[reason]) for reason in Reason if rows[reason]}

    def written(self) -> np.ndarray[Any, np.dtype[np.void]]:
        """Records of launches whose data was written; a replay of a graph has one for each of its kernels."""
        of_kernel = self.launches["kernel"] != NO_KERNEL
        return self.launches[(self.launches["state"] == LaunchState.WRITTEN) & of_kernel]

    def replays(self) -> np.ndarray[Any, np.dtype[np.void]]:
        """Records of the replays of graphs."""
        return self.launches[self.launches["kernel"] == NO_KERNEL]

    def frame(self, launch: np.void) -> bytes:
        """The data of a written launch after its frame header, which must be this launch's."""
        kernel = int(launch["kernel"])
        if kernel not in self._data:
            self._data[kernel] = (self.path / "result" / f"{kernel}.bin").read_bytes()
        data, offset = self._data[kernel], int(launch["data_offset"])
        frame = np.frombuffer(data, FRAME.dtype, 1, offset)[0]
        assert frame["magic"] == b"NTFRAME"
        assert list(frame["grid"]) == list(launch["grid"])
        assert list(frame["block"]) == list(launch["block"])
        begin = offset + int(FRAME.size)
        return data[begin : begin + int(launch["data_size"])]

    def check_tickets(self, maps: Sequence[Map]) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """Every written launch holds what its kernel did: all its threads, a ticket a warp, each once in the process.

        Returns the tickets in order.
        """
        tickets, entered = maps
        counting = self.kernels(*_COUNTING)
        taken = [np.zeros(0, np.uint64)]
        for launch in self.written():
            blocks, threads = (int(np.prod(launch[name].astype(np.uint64))) for name in ("grid", "block"))
            warps_per_block = -(-threads // 32)
            warps = blocks * warps_per_block
            (first, total), size = region_layout(maps, blocks, warps_per_block, 32)
            data = self.frame(launch)
            assert len(data) == size
            ran = np.frombuffer(data, np.uint8, copies_in(warps) * copy_stride(entered.size), total.records)
            copies = np.ascontiguousarray(ran.reshape(copies_in(warps), -1)[:, :8]).view("<u8")
            assert int(copies.sum()) == blocks * threads
            if int(launch["kernel"]) not in counting:
                continue
            dtype = record_dtype(tickets.fields, tickets.size)
            records = np.frombuffer(data, dtype, warps * tickets.cap, first.records)[:: tickets.cap]
            assert (records["seven"] == 7).all(), launch
            if int(launch["grid"][1]) == int(launch["grid"][2]) == 1:
                assert (records["block"] == np.repeat(np.arange(blocks), warps_per_block)).all()
            if first.counts is not None:
                assert (np.frombuffer(data, "<u4", warps, first.counts) == 1).all()
            taken.append(records["ticket"])
        every = np.sort(np.concatenate(taken))
        assert (np.diff(every) > 0).all(), "a ticket was taken twice"
        return every
