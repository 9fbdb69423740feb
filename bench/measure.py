"""What a trace says of a run of the road beside what the program itself says: counts, and every fault of a launch.

    python -m bench.measure REPORT TRACEDIR DEVICE OUT

Each launch is looked at here: whether what ``block_sched`` recorded of its warps is possible, and whether
``gmem_bytes`` counted the bytes that the program asked for. The results keep how many launches were looked at, and the
first faults in words.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.verdicts import PROOFS
from neutrino.tracing import Trace, TraceLaunch, find_traces

Json = Any
Records = np.ndarray[Any, Any]

SCHED_MAP, GMEM_MAP = "BlockSched", "GmemBytes"
GMEM_CLASSES = ("load", "store", "atomic", "async")
MOST_FAULTS = 5
LANES = 32
RESIDENT_WARPS = 64
"""Warps that one multiprocessor of compute capability 9.0 holds (CUDA C++ Programming Guide, table of
technical specifications per compute capability)."""
CLOCK_MARGIN, CLOCK_SLACK = 1.05, 4000
"""Of a launch's cycles: the events' own resolution is half a microsecond on either side."""
BLOCKS_A_MULTIPROCESSOR = 4
"""A grid of so many blocks for each multiprocessor must have been on all of them."""
EXCESS_MEDIAN = 5000
"""Cycles that entry and end may lie outside the program's own clocks, for half of the warps."""
FUSED = ("DFMA", "FFMA", "HFMA2")
PRODUCTS = {"DMUL", "FMUL", "FMUL2", "HMUL2"}
OWN_CLOCKS = np.dtype([("first", "<u8"), ("last", "<u8"), ("sm", "<u4"), ("zero", "<u4")])
"""One warp's record in the file that the workload ``clocks`` writes."""


@dataclass(frozen=True)
class Launch:
    """One launch as the program reports it. grid, block: None where it does not know. asked: bytes by kind; None: as
    often as it takes, but at least once."""

    kernel: str
    grid: tuple[int, ...] | None
    block: tuple[int, ...] | None
    ms: float
    asked: tuple[int | None, ...]

    @classmethod
    def read(cls, row: Sequence[Any]) -> Launch:
        """Parse a launch from its row in the program's report."""
        kernel, grid, block, ms, asked = row
        return cls(kernel, tuple(grid) if grid else None, tuple(block) if block else None, ms, tuple(asked))

    def matches(self, name: str, record: Any) -> bool:
        """Whether a launch in the trace, of the kernel ``name``, can be this one. A name with ``*`` at its end stands
        for all that begin so."""
        named = name.startswith(self.kernel[:-1]) if self.kernel.endswith("*") else name == self.kernel
        sizes = ((self.grid, "grid"), (self.block, "block"))
        return named and all(known is None or known == _three(record[size]) for known, size in sizes)


Pair = tuple[Launch, TraceLaunch | None]
"""A launch of the program and the trace's launch that belongs to it."""


def _three(size: Any) -> tuple[int, ...]:
    """The three sizes of a grid or block as plain integers."""
    return tuple(int(part) for part in size)


def pair(launches: Sequence[Launch], trace: Trace) -> tuple[list[Pair], int]:
    """Match each launch that a program reports with one in the trace, by kernel, grid and block, in the order of
    submission; and how many are left in the trace."""
    traced = [(kernel.name, launch) for kernel in trace.kernels for launch in kernel.launches()]
    traced.sort(key=lambda entry: int(entry[1].record["submit_ns"]))
    waiting: dict[str, list[TraceLaunch]] = {}
    for name, launch in traced:
        waiting.setdefault(name, []).append(launch)
    pairs: list[Pair] = []
    for own in launches:
        # Only the first of a queue: launches of one kernel come in order, so a later one is another launch.
        queues = [queue for name, queue in waiting.items() if queue and own.matches(name, queue[0].record)]
        pairs.append((own, queues[0].pop(0) if queues else None))
    return pairs, sum(map(len, waiting.values()))


def most_resident(start: Records, end: Records, sm: Records) -> int:
    """The most warps that were on one multiprocessor at once. start, end: clocks of each, sm: its multiprocessor."""
    moments, places = np.concatenate([start, end]), np.concatenate([sm, sm])
    steps = np.concatenate([np.ones(len(start), np.int64), -np.ones(len(end), np.int64)])
    # Every multiprocessor's steps add up to zero, so one running sum serves all of them. Ends come before starts.
    order = np.lexsort((steps, moments, places))
    return int(np.cumsum(steps[order]).max(initial=0))


def sched_fault(records: Records, grid: Sequence[int], block: Sequence[int], ms: float, device: Json) -> str:
    """Return what is impossible in what ``block_sched`` recorded of a launch; "" for nothing.

    A record a warp, cycles within the launch's time, multiprocessors that exist. records: start, elapsed (cycles) and
    multiprocessor of each warp.
    """
    start, elapsed, sm = records["start"], records["elapsed"], records["cuid"]
    blocks, multiprocessors = math.prod(grid), device["sm_count"]
    slots = blocks * -(-math.prod(block) // LANES)
    if len(records) != slots:
        return f"{len(records)} records in {slots} slots"
    if not (start.all() and elapsed.all()):
        return f"{(start == 0).sum()} slots without a start, {(elapsed == 0).sum()} without an elapsed time"
    end = start + elapsed
    # The clock belongs to the multiprocessor: spans are taken on each by itself.
    span = max(int(end[sm == one].max()) - int(start[sm == one].min()) for one in np.unique(sm))
    bound = ms * device["clock_khz"] * CLOCK_MARGIN + CLOCK_SLACK
    seen, resident = len(np.unique(sm)), most_resident(start, end, sm)
    least = multiprocessors if blocks >= BLOCKS_A_MULTIPROCESSOR * multiprocessors else 1
    faults = [
        (span > bound, f"a span of {span} cycles; {ms} ms hold {bound:.0f}"),
        (int(elapsed.max()) > span, "a warp outlasted its multiprocessor's span"),
        (int(sm.max()) >= multiprocessors, f"multiprocessor {sm.max()} of {multiprocessors}"),
        (not least <= seen <= min(blocks, multiprocessors), f"{seen} multiprocessors for {blocks} blocks"),
        (not 1 <= resident <= RESIDENT_WARPS, f"{resident} warps at once on one multiprocessor"),
    ]
    return next((words for is_one, words in faults if is_one), "")


def gmem_fault(asked: Sequence[int | None], total: Mapping[str, int]) -> str:
    """Return what ``gmem_bytes`` counted otherwise than the program says; "" for nothing."""
    for name, want in zip(GMEM_CLASSES, asked, strict=True):
        got = int(total[name])
        if got != want if want is not None else got <= 0:
            return f"{name}: {got} B counted, {want or 'some'} B by hand"
    return f"{total['uncounted']} accesses of unknown size" if total["uncounted"] else ""


def numerics_fault(numerics: Mapping[str, Json]) -> str:
    """Return in which floating-point instructions a twin differs from its original; "" for none.

    The probe's own are left out. The assembler may fold the probe's copy of a product into one that is there anyway.
    Where a text holds nothing that could be fused otherwise (``proof``), it may repeat code: then only the kinds of
    instructions must be the same.
    """
    proof = numerics.get("proof", "counts")
    if proof not in PROOFS:
        return f"shown by {proof!r}"
    counts = [numerics[which] for which in ("original", "twin", "own")]
    for mnemonic in sorted(set().union(*counts)):
        original, twin, own = (count.get(mnemonic, 0) for count in counts)
        if proof != "counts":
            good = (twin > 0) == (original > 0) or (twin > 0 and own > 0)
        elif numerics.get("contractible") is False:
            good = (twin > own) == (original > 0)
        else:
            least = original if mnemonic in PRODUCTS else original + own
            good = least <= twin <= original + own
        if not good:
            return f"{mnemonic}: {original} in the original, {twin} in the twin, {own} its own"
    return ""


def kernel_rows(trace: Trace) -> list[dict[str, Json]]:
    """Say what became of each kernel of a trace: probed or why not, registers of original and twin, the fused
    instructions of the original, launches by reason, and what is wrong with the twin.

    Kernels that differ in nothing (a module loaded again) are one row, their launches added.
    """
    rows: dict[str, dict[str, Json]] = {}
    for kernel in trace.kernels:
        row: dict[str, Json] = {"name": kernel.name, "reason": kernel.reason.word}
        if kernel.manifest and kernel.reason.word == "probed":
            manifest = kernel.manifest.raw
            row |= twin_row(manifest.get("registers") or {}, manifest.get("spills"), manifest.get("numerics") or {})
        kept = rows.setdefault(json.dumps(row, sort_keys=True), {**row, "loaded": 0, "counters": {}})
        kept["loaded"] += 1
        counters: Counter[str] = Counter(kept["counters"])
        counters.update({reason.word: count for reason, count in kernel.counters.items() if count})
        kept["counters"] = dict(counters)
    return list(rows.values())


def twin_row(registers: Json, spills: Json, numerics: Json) -> dict[str, Json]:
    """Return what the row of a probed kernel has of its twin, from the manifest's parts of these names."""
    fault = numerics_fault(numerics) if numerics.get("original") is not None else "no arithmetic on record"
    used = [registers.get(which) or 0 for which in ("original", "twin")]
    if not all(0 < number <= 255 for number in used):
        fault = f"{used} registers"
    if not spills or any(set(spills[which] or ()) != {"stores", "loads"} for which in ("original", "twin")):
        fault = "no spills given"
    fused = {name: count for name, count in (numerics.get("original") or {}).items() if name in FUSED}
    return {"registers": used, "fused": fused, **({"fault": fault} if fault else {})}


def own_clocks(pairs: Sequence[Pair], file: Path) -> dict[str, Json]:
    """Compare a program's own clocks with those that the probe recorded, warp by warp, for the workload ``clocks``.

    Of each launch, warps, and the median of the cycles by which the probe's time exceeds the program's; and faults.
    """
    own = np.fromfile(file, dtype=OWN_CLOCKS)
    warps, excesses, faults = 0, [], []
    for launch, traced in pairs:
        view = None if traced is None else traced.maps.get(SCHED_MAP)
        if view is None or launch.grid is None or launch.block is None:
            continue
        count = math.prod(launch.grid) * -(-math.prod(launch.block) // LANES)
        mine, theirs = own[warps : warps + count], view.records.reshape(-1)
        warps += count
        if not len(theirs) == len(mine) == count:
            faults.append(f"{len(theirs)} records of {count} warps")
            continue
        end = theirs["start"] + theirs["elapsed"]
        wrong = {
            "on another multiprocessor": theirs["cuid"] != mine["sm"],
            "started late": theirs["start"] > mine["first"],
            "ended early": end < mine["last"],
            "without time": mine["first"] >= mine["last"],
        }
        faults += [f"{which.sum()} warps {words}" for words, which in wrong.items() if which.any()]
        excess = theirs["elapsed"].astype(np.int64) - (mine["last"] - mine["first"]).astype(np.int64)
        excesses.append(int(np.median(excess)))
        if not 0 < excesses[-1] <= EXCESS_MEDIAN:
            faults.append(f"the median warp's excess is {excesses[-1]} cycles")
    return {"launches": len(excesses), "warps": warps, "excess": excesses, "faults": faults[:MOST_FAULTS]}


def overlaps(pairs: Sequence[Pair], left: str, right: str) -> list[int]:
    """On how many multiprocessors launches of two kernels had warps at once, for each launch of ``left`` and the launch
    of ``right`` in its place."""
    windows: dict[str, list[dict[int, tuple[int, int]]]] = {left: [], right: []}
    for own, traced in pairs:
        view = None if traced is None else traced.maps.get(SCHED_MAP)
        if view is None or own.kernel not in windows:
            continue
        records = view.valid()
        start, end, sm = records["start"], records["start"] + records["elapsed"], records["cuid"]
        windows[own.kernel].append(
            {int(one): (int(start[sm == one].min()), int(end[sm == one].max())) for one in np.unique(sm)}
        )
    counts = []
    for one, other in zip(windows[left], windows[right], strict=False):
        both = one.keys() & other.keys()
        counts.append(sum(max(one[sm][0], other[sm][0]) < min(one[sm][1], other[sm][1]) for sm in both))
    return counts


def measure(report: Path, trace_directory: Path, device: Mapping[str, Json]) -> dict[str, Json]:
    """Return what the results keep of one run under Neutrino, from the program's report and its trace.

    trace_directory: the folder given to ``--tracedir``. device: its ``sm_count`` and ``clock_khz``. Raises TraceError
    when there is no trace or it cannot be read.
    """
    told = json.loads(report.read_text())
    # Helper processes of a framework may leave traces of their own: the program's is the one that launched most.
    trace = max((Trace(path) for path in find_traces(trace_directory)), key=lambda one: len(one.launches))
    launches = [Launch.read(row) for row in told["launches"]]
    # A program that reports no launches has too many to look at each (``submit``).
    pairs, unmatched = pair(launches, trace) if launches else ([], 0)
    maps = {entry.name for kernel in trace.kernels if kernel.manifest for entry in kernel.manifest.maps}
    good: dict[str, Counter[str]] = {name: Counter() for name in (SCHED_MAP, GMEM_MAP) if name in maps}
    faults, copied = [], 0
    for number, (own, traced) in enumerate(pairs):
        for name, kernels in good.items():
            view = None if traced is None else traced.maps.get(name)
            if traced is None or view is None:
                fault = "no data"
            elif name == SCHED_MAP:
                sizes = (own.grid or _three(traced.record["grid"]), own.block or _three(traced.record["block"]))
                fault = sched_fault(view.valid(), *sizes, own.ms, device)
            else:
                total = view.total()
                copied += int(total["async"])
                fault = gmem_fault(own.asked, total)
            kernels[own.kernel] += not fault
            if fault:
                faults.append(f"launch {number} of {own.kernel}: {fault}")
    measured: dict[str, Json] = {
        "complete": trace.complete,
        "kernels": kernel_rows(trace),
        "images": [[image["kind"], image["size"], bool(image.get("cached")), image["ready_ms"]]
                   for image in trace.images if "ready_ms" in image],
        "unmatched": unmatched,
        "good": {name: dict(kernels) for name, kernels in good.items()},
        "faults": faults[:MOST_FAULTS],
        "copied": copied,
    }  # fmt: skip
    if SCHED_MAP in maps:
        clocks = report.with_name(report.name + ".clocks")
        if clocks.exists():
            measured["clocks"] = own_clocks(pairs, clocks)
        if told["workload"] == "streams":
            measured["overlaps"] = overlaps(pairs, "left", "right")
    return measured


if __name__ == "__main__":
    # In a process of its own, so that a broken trace costs no other run.
    found = measure(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
    Path(sys.argv[4]).write_text(json.dumps(found))
