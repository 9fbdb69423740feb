"""What a Python workload owes the runner: the same report as ``harness.cuh`` describes."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]


class Event(Protocol):
    """A recorded device event."""

    def record(self) -> Any:
        """Record the event on the device's stream: it notes the time when the work before it is done."""


class Run:
    """One workload's run.

    event() makes an event; elapsed(a, b) gives the milliseconds between two that have happened.
    """

    def __init__(self, workload: str, event: Callable[[], Event], elapsed: Callable[[Any, Any], float]) -> None:
        """Parse the command line, ``--seeds`` and ``--out``. workload: its name.

        event: makes an event of the device. elapsed: gives the milliseconds between two events that have happened.
        """
        parser = argparse.ArgumentParser()
        parser.add_argument("--seeds", type=int, default=20)
        parser.add_argument("--out", type=Path, required=True)
        arguments = parser.parse_args()
        self.seeds: int = arguments.seeds
        self._out: Path = arguments.out
        self._workload = workload
        self._event = event
        self._elapsed = elapsed
        self._digest = hashlib.sha256()
        self._outputs: list[str] = []
        self._launches: list[list[Any]] = []
        self._pending: list[tuple[Event, Event]] = []
        self._failure = ""

    def launch(
        self,
        kernel: str,
        grid: Sequence[int] | None,
        block: Sequence[int] | None,
        bytes_asked: Sequence[int | None],
        submit: Callable[[], object],
    ) -> None:
        """Record one launch that submit() makes. kernel: exact name, or a prefix followed by ``*``.

        grid, block: None where a framework chooses. bytes_asked: load, store, atomic, async.
        """
        before, after = self._event(), self._event()
        before.record()
        submit()
        after.record()
        self._pending.append((before, after))
        self._launches.append([kernel, _three(grid), _three(block), 0.0, list(bytes_asked)])

    def output(self, values: Array) -> None:
        """Add an array of results to the digest of the current seed, by which runs are compared."""
        self._digest.update(np.ascontiguousarray(values).tobytes())

    def near(self, what: str, got: Array, want: Array, absolute: float, relative: float) -> None:
        """Check results against expected ones, each within ``absolute + relative * |want|``; keep the first that is not
        (a NaN never is). what: names them.
        """
        good = np.abs(got.astype(np.float64) - want) <= absolute + relative * np.abs(want)
        if not self._failure and (got.shape != want.shape or not good.all()):
            where = np.unravel_index(int(np.argmin(good)), good.shape)
            self._failure = f"{what}{[int(i) for i in where]} is {got[where]}, expected {want[where]}"

    def end_seed(self) -> None:
        """Close the current seed: read the times of its launches, and keep its digest. Call when the device is idle."""
        first = len(self._launches) - len(self._pending)
        for launch, (before, after) in zip(self._launches[first:], self._pending, strict=True):
            launch[3] = round(self._elapsed(before, after), 6)
        self._pending.clear()
        self._outputs.append(self._digest.hexdigest())
        self._digest = hashlib.sha256()

    def finish(self) -> int:
        """Write the report and print a line. Returns the exit status: 1 when a result was wrong."""
        report = {
            "workload": self._workload,
            "checks": self._failure or "ok",
            "outputs": self._outputs,
            "launches": self._launches,
            "extra": {},
        }
        self._out.write_text(json.dumps(report))
        counts = f"{len(self._outputs)} seeds, {len(self._launches)} launches"
        print(f"{self._workload}: {counts}: {report['checks']}")
        sys.stdout.flush()
        return 1 if self._failure else 0


def _three(size: Sequence[int] | None) -> list[int] | None:
    """A grid or block as three sizes; None for one that is not known."""
    return None if size is None else [*size, 1, 1][:3]
