"""What placed_h200.json holds of one probed launch, decoded, and compared with what had to be recorded."""

from __future__ import annotations

import base64
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from bench.placed_model import LANES, Case, Launch, Shape, Thread, threads
from bench.verdicts import BrokenError, need

Json = Any
Place = tuple[int, int, int]
Slots = Mapping[Any, Sequence[tuple[int, ...]]]
"""Slot (block; block, warp; or block, warp, lane) → the records that were saved to it, in order."""


@lru_cache(maxsize=64)
def ran(launch: Launch) -> list[Thread | None]:
    """Return what every thread of a launch does, as ``placed_model.threads`` computes it; remembered for several
    checks."""
    return threads(launch)


def active(launch: Launch) -> list[tuple[Place, Thread]]:
    """Return the threads of a launch that have an element to work on, each with its block, warp and lane."""
    return [(launch.shape.place(i), thread) for i, thread in enumerate(ran(launch)) if thread is not None]


@dataclass(frozen=True)
class Recorded:
    """One probed launch: what the program reported, and what the probes saved. sites: number → source."""

    launch: Launch
    table: int
    maps: Mapping[str, Json]
    sites: Mapping[int, str]

    def address(self, index: int) -> int:
        """The device address of a word of the table that the program's kernels read."""
        return self.table + 4 * index


def recorded_launches(run: Json, case: Case, trace: Json | None = None, program: Json | None = None) -> list[Recorded]:
    """Match a run's launches with what the trace recorded of them.

    case: what the program launches. trace, program: by default the run's only trace and its report. Raises BrokenError
    when one was not probed, or is missing.
    """
    if trace is None:
        need(len(run["traces"]) == 1, f"{len(run['traces'])} traces")
        trace = run["traces"][0]
    program = program or run["program"]
    need(trace["complete"], "the trace is not complete")
    names = Counter(launch.kernel for launch in case.launches)
    probed = Counter[str]()
    for kernel in trace["kernels"]:
        only_probed = kernel["reason"] == "probed" and set(kernel["launches"]) == {"probed"}
        need(only_probed, f"{kernel['name']}: {kernel['reason']}: {kernel['detail']} {kernel['launches']}")
        probed[kernel["name"]] += kernel["launches"]["probed"]
    need(probed == names, f"launches that were probed: {dict(probed)}, expected {dict(names)}")
    rows = trace["launches"]
    told = [row["kernel"] for row in rows]
    need(told == [launch.kernel for launch in case.launches], f"records of launches of {told}")
    sites: dict[str, dict[int, str]] = {name: {} for name in names}
    for kernel in trace["kernels"]:
        for number, source, _ in kernel["sites"]:
            if number is not None:
                sites[kernel["name"]][number] = source or ""
    addresses = [row["table"] for row in program["launches"]]
    return [
        Recorded(launch, address, row["maps"], sites[launch.kernel])
        for launch, address, row in zip(case.launches, addresses, rows, strict=True)
    ]


def same_sums(recorded: Recorded, name: str, expected: Mapping[str, int]) -> None:
    """Check that a map (what probes save to) of sums holds exactly these fields with these values.

    name: the map's. Raises BrokenError.
    """
    found = recorded.maps[name]
    for key, value in expected.items():
        need(found[key] == value, f"seed {recorded.launch.seed}, {name}.{key}: {found[key]}, expected {value}")
    need(set(found) == set(expected), f"{name} has the fields {', '.join(found)}")


def unpack(text: str) -> bytes:
    """The bytes that ``placed.pack`` put into a JSON text."""
    return zlib.decompress(base64.b64decode(text))


def _shape(shape: Shape, level: str) -> tuple[int, ...]:
    """Return the lengths of the axes of a map with a slot per thread, warp or block (level): blocks, warps, lanes, as
    far as needed."""
    axes = (shape.grid, shape.warps, LANES)
    return axes[: {"thread": 3, "warp": 2, "block": 1}[level]]


def _records(row: Json) -> np.ndarray[Any, Any]:
    """Decode the records in a row of the results: a NumPy array of the map's fields."""
    return np.frombuffer(unpack(row["records"]), np.dtype([(name, kind) for name, kind, *_ in row["fields"]]))


def slots_of(recorded: Recorded, name: str) -> dict[tuple[int, ...], list[tuple[int, ...]]]:
    """Return the records of each slot of a map (a thread, warp or block), in order.

    Raises BrokenError where these are not as many as its counts say, up to the map's cap.
    """
    row, shape = recorded.maps[name], recorded.launch.shape
    records = iter(_records(row).tolist())
    axes = _shape(shape, row["level"])
    if row["counts"] is None:
        exists = np.array([shape.place(i) for i in range(shape.grid * shape.block)])
        counts = np.zeros(axes, np.uint32)
        counts[tuple(exists.T)] = 1
    else:
        counts = np.frombuffer(unpack(row["counts"]), "<u4").reshape(axes)
    slots: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    by_lane = row["level"] == "thread"
    for outer in np.ndindex(axes[:-1] if by_lane else axes):
        for k in range(row["cap"]):
            for slot in (((*outer, lane) for lane in range(LANES)) if by_lane else (outer,)):
                if k < counts[slot]:
                    record = next(records, None)
                    if record is None:
                        raise BrokenError(f"{name}: fewer records than its counts say")
                    slots.setdefault(slot, []).append(record)
    need(next(records, None) is None, f"{name}: more records than its counts say")
    return slots


def same_records(recorded: Recorded, name: str, expected: Slots) -> int:
    """Check that every slot of a map has the expected records, in order, and count. Returns how many were saved; raises
    BrokenError."""
    row, seed = recorded.maps[name], recorded.launch.seed
    found = slots_of(recorded, name)
    cap = row["cap"]
    if row["counts"] is not None:
        counts = np.zeros(_shape(recorded.launch.shape, row["level"]), np.uint32)
        for slot, records in expected.items():
            counts[slot] = len(records)
        kept = np.frombuffer(unpack(row["counts"]), "<u4").reshape(counts.shape)
        for slot in np.argwhere(kept != counts)[:1]:
            place = tuple(slot)
            said = f"{kept[place]} saves, expected {counts[place]}"
            raise BrokenError(f"seed {seed}, {name}{list(map(int, place))}: {said}")
    dropped = sum(max(len(records) - cap, 0) for records in expected.values())
    need(row["dropped"] == dropped, f"seed {seed}, {name}: {row['dropped']} dropped, expected {dropped}")
    for slot in sorted({*expected, *found}):
        want, got = list(expected.get(slot, ()))[:cap], found.get(slot, [])
        need(got == want, f"seed {seed}, {name}{list(slot)}: {got[:3]}, expected {want[:3]}")
    return sum(len(records) for records in expected.values())


def existing_lanes(shape: Shape) -> dict[tuple[int, int], int]:
    """Return for each warp (block, warp) the mask of the lanes that it has: a block's last warp may be partly filled.
    """
    masks: dict[tuple[int, int], int] = {}
    for i in range(shape.grid * shape.block):
        block, warp, lane = shape.place(i)
        masks[block, warp] = masks.get((block, warp), 0) | 1 << lane
    return masks
