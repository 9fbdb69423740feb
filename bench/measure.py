"""What a trace and the program's own report say of the same launches, side by side, in plain numbers.

Nothing here judges: the rows go into the results as they are, and ``verdicts`` reads them there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from neutrino.tracing import MapView, Trace, TraceLaunch, find_traces

Json = Any

SCHED_MAP = "BlockSched"
GMEM_MAP = "GmemBytes"
LAUNCH_COLUMNS = ("kernel", "grid", "block", "ms")
SCHED_COLUMNS = (
    "records",
    "zero_start",
    "zero_elapsed",
    "elapsed_min",
    "elapsed_median",
    "elapsed_max",
    "span_max",
    "sm_max",
    "sm_seen",
    "resident_max",
)
GMEM_CLASSES = ("load", "store", "atomic", "async")
GMEM_COLUMNS = (
    *(f"want_{name}" for name in GMEM_CLASSES),
    *(f"got_{name}" for name in GMEM_CLASSES),
    "uncounted",
)

OWN_CLOCKS = np.dtype([("first", "<u8"), ("last", "<u8"), ("sm", "<u4"), ("zero", "<u4")])
"""One warp's record in the file that the workload ``clocks`` writes."""


@dataclass(frozen=True)
class Launch:
    """One launch as the program reports it. grid, block: None where it does not know."""

    kernel: str
    grid: tuple[int, ...] | None
    block: tuple[int, ...] | None
    ms: float
    asked: tuple[int | None, ...]

    @classmethod
    def read(cls, row: Sequence[Any]) -> Launch:
        """Parse a launch from its row in the program's report: kernel, grid, block, milliseconds, and bytes that it
        asked for by kind."""
        kernel, grid, block, ms, asked = row
        return cls(kernel, tuple(grid) if grid else None, tuple(block) if block else None, ms, tuple(asked))

    def matches(self, name: str, record: Any) -> bool:
        """Whether a launch in the trace, of the kernel ``name``, can be this launch that the program reports.

        A kernel name with ``*`` at its end stands for all that begin so.
        """
        named = name.startswith(self.kernel[:-1]) if self.kernel.endswith("*") else name == self.kernel
        return (
            named
            and (self.grid is None or self.grid == _three(record["grid"]))
            and (self.block is None or self.block == _three(record["block"]))
        )


@dataclass(frozen=True)
class Pair:
    """A launch of the program and the trace's launch that belongs to it, None when there is none."""

    own: Launch
    traced: TraceLaunch | None


@dataclass
class Pairing:
    """All launches of one run, in the program's order.

    unmatched: traced launches that the program did not tell of.
    """

    pairs: list[Pair] = field(default_factory=list)
    unmatched: int = 0


def _three(size: Any) -> tuple[int, ...]:
    """The three sizes of a grid or block as plain integers."""
    return tuple(int(part) for part in size)


def pair(launches: Sequence[Launch], trace: Trace) -> Pairing:
    """Match each launch that a program reports with one in the trace: by kernel, grid and block, in the order of
    submission."""
    traced = [(kernel.name, launch) for kernel in trace.kernels for launch in kernel.launches()]
    traced.sort(key=lambda entry: int(entry[1].record["submit_ns"]))
    waiting: dict[str, list[TraceLaunch]] = {}
    for name, launch in traced:
        waiting.setdefault(name, []).append(launch)
    pairing = Pairing()
    for own in launches:
        found = None
        for name, queue in waiting.items():
            # Only the first of a queue: launches of one kernel come in order, so a later one is another
            # launch.
            if queue and own.matches(name, queue[0].record):
                found = queue.pop(0)
                break
        pairing.pairs.append(Pair(own, found))
    pairing.unmatched = sum(len(queue) for queue in waiting.values())
    return pairing


def _written(launch: TraceLaunch | None, name: str) -> MapView | None:
    """What a launch recorded in the map (what probes save to) of that name; None without the launch or the map."""
    return None if launch is None else launch.maps.get(name)


def launch_columns(pairing: Pairing) -> list[list[Json]]:
    """Return a table row (LAUNCH_COLUMNS) for each launch: kernel, grid, block and milliseconds.

    Grid and block come from the trace where the program does not know them.
    """
    rows: list[list[Json]] = []
    for entry in pairing.pairs:
        sizes: list[Json] = []
        for known, name in ((entry.own.grid, "grid"), (entry.own.block, "block")):
            size = known or (_three(entry.traced.record[name]) if entry.traced is not None else None)
            sizes.append(list(size) if size else None)
        rows.append([entry.own.kernel, *sizes, round(entry.own.ms, 5)])
    return rows


def sched_columns(pairing: Pairing) -> list[list[Json]]:
    """Return a table row (SCHED_COLUMNS) for each launch: figures of what ``block_sched`` recorded of its warps, or all
    None."""
    rows: list[list[Json]] = []
    for entry in pairing.pairs:
        view = _written(entry.traced, SCHED_MAP)
        rows.append([None] * len(SCHED_COLUMNS) if view is None else _sched(view.valid()))
    return rows


def _sched(records: np.ndarray[Any, Any]) -> list[Json]:
    """Compute a table row (SCHED_COLUMNS) from one launch's records: of each warp start, elapsed (cycles) and
    multiprocessor."""
    start, elapsed, sm = records["start"], records["elapsed"], records["cuid"]
    if not len(records):
        return [0] * len(SCHED_COLUMNS)
    end = start + elapsed
    # The clock belongs to the multiprocessor: spans and residence are taken on each by itself.
    span = max(int(end[sm == one].max()) - int(start[sm == one].min()) for one in np.unique(sm))
    return [
        len(records),
        int((start == 0).sum()),
        int((elapsed == 0).sum()),
        int(elapsed.min()),
        int(np.median(elapsed)),
        int(elapsed.max()),
        span,
        int(sm.max()),
        len(np.unique(sm)),
        most_resident(start, end, sm),
    ]


def most_resident(start: np.ndarray[Any, Any], end: np.ndarray[Any, Any], sm: np.ndarray[Any, Any]) -> int:
    """The most warps that were on one multiprocessor at once.

    start, end: clocks of each warp, sm: its multiprocessor.
    """
    moments = np.concatenate([start, end])
    places = np.concatenate([sm, sm])
    steps = np.concatenate([np.ones(len(start), np.int64), -np.ones(len(end), np.int64)])
    # Every multiprocessor's steps add up to zero, so one running sum serves all of them. Ends come before
    # starts.
    order = np.lexsort((steps, moments, places))
    return int(np.cumsum(steps[order]).max(initial=0))


def gmem_columns(pairing: Pairing) -> list[list[Json]]:
    """Return a table row (GMEM_COLUMNS) for each launch: bytes of memory accesses as the program says, then those that
    the probe ``gmem_bytes`` counted, both by kind of access.

    pairing: each launch as the program reported it (own) with the same launch in the trace (traced). None stands for
    counts that the trace does not have.
    """
    rows: list[list[Json]] = []
    for entry in pairing.pairs:
        view = _written(entry.traced, GMEM_MAP)
        got: list[Json] = [None] * (len(GMEM_CLASSES) + 1)
        if view is not None:
            total = view.total()
            got = [int(total[name]) for name in (*GMEM_CLASSES, "uncounted")]
        rows.append([*entry.own.asked, *got])
    return rows


def kernel_rows(trace: Trace) -> list[dict[str, Json]]:
    """Summarize what became of each kernel of a trace: probed or why not, registers, sites (probed instructions),
    launches.

    Kernels that differ in nothing (a module loaded again) are one row, their counters added.
    """
    rows: dict[str, dict[str, Json]] = {}
    for kernel in trace.kernels:
        manifest = kernel.manifest.raw if kernel.manifest else {}
        row: dict[str, Json] = {
            "name": kernel.name,
            "reason": kernel.reason.word,
            "detail": kernel.detail,
            "registers": manifest.get("registers"),
            "spills": manifest.get("spills"),
            "frame": manifest.get("frame"),
            "numerics": manifest.get("numerics"),
            "sites": len(manifest.get("sites", ())),
        }
        kept = rows.setdefault(json.dumps(row, sort_keys=True), {**row, "loaded": 0, "counters": {}})
        kept["loaded"] += 1
        for reason, count in kernel.counters.items():
            kept["counters"][reason.word] = kept["counters"].get(reason.word, 0) + count
    return list(rows.values())


def own_clocks(pairing: Pairing, file: Path, keep: int = 256) -> dict[str, Json]:
    """Compare a program's own clocks with those that the probe recorded, warp by warp, for the workload ``clocks``.

    columns/rows: per launch how many warps, how many on another multiprocessor, how many that started after the
    program's first clock or ended before its last, and the cycles by which the probe's time exceeds the program's.
    samples: ``keep`` warps of the first launch, spread over it: own first, last, sm; the probe's start, elapsed, sm.
    """
    own = np.fromfile(file, dtype=OWN_CLOCKS)
    rows: list[list[Json]] = []
    samples: list[list[int]] = []
    position = 0
    for entry in pairing.pairs:
        view = _written(entry.traced, SCHED_MAP)
        if entry.own.grid is None or entry.own.block is None:
            continue
        warps = int(np.prod(entry.own.grid)) * -(-int(np.prod(entry.own.block)) // 32)
        mine = own[position : position + warps]
        position += warps
        if view is None:
            continue
        theirs = view.records.reshape(-1)
        if len(theirs) != warps or len(mine) != warps:
            rows.append([len(theirs), None, None, None, None, None])
            continue
        end = theirs["start"] + theirs["elapsed"]
        excess = theirs["elapsed"].astype(np.int64) - (mine["last"] - mine["first"]).astype(np.int64)
        rows.append(
            [
                warps,
                int((theirs["cuid"] != mine["sm"]).sum()),
                int((theirs["start"] > mine["first"]).sum()),
                int((end < mine["last"]).sum()),
                int(np.median(excess)),
                int(excess.max()),
            ]
        )
        if not samples:
            chosen = np.linspace(0, warps - 1, min(keep, warps)).astype(int)
            samples = [
                [
                    int(part)
                    for part in (
                        *mine[i].tolist()[:3],
                        *(theirs[i][name] for name in ("start", "elapsed", "cuid")),
                    )
                ]
                for i in chosen
            ]
    columns = ["warps", "other_sm", "started_late", "ended_early", "excess_median", "excess_max"]
    return {"columns": columns, "rows": rows, "samples": samples}


def overlaps(pairing: Pairing, left: str, right: str) -> list[int]:
    """Show whether launches of two kernels ran at once, as streams let them: on how many multiprocessors both had
    warps.

    For each launch of ``left`` and the launch of ``right`` in its place.
    """
    windows: dict[str, list[dict[int, tuple[int, int]]]] = {left: [], right: []}
    for entry in pairing.pairs:
        view = _written(entry.traced, SCHED_MAP)
        if view is None or entry.own.kernel not in windows:
            continue
        records = view.valid()
        end = records["start"] + records["elapsed"]
        windows[entry.own.kernel].append(
            {
                int(sm): (
                    int(records["start"][records["cuid"] == sm].min()),
                    int(end[records["cuid"] == sm].max()),
                )
                for sm in np.unique(records["cuid"])
            }
        )
    counts = []
    for one, other in zip(windows[left], windows[right], strict=False):
        both = one.keys() & other.keys()
        counts.append(sum(max(one[sm][0], other[sm][0]) < min(one[sm][1], other[sm][1]) for sm in both))
    return counts


def measure(report: Path, trace_directory: Path) -> dict[str, Json]:
    """Return everything that the results keep of one run under Neutrino, from the program's report and its trace.

    trace_directory: the folder given to ``--tracedir``, with the one trace of the program's process in it. Raises
    TraceError when there is none or it cannot be read.
    """
    told = json.loads(report.read_text())
    traces = [Trace(path) for path in find_traces(trace_directory)]
    # Helper processes of a framework may leave traces of their own: the program's is the one that launched
    # most.
    trace = max(traces, key=lambda one: len(one.launches))
    launches = [Launch.read(row) for row in told["launches"]]
    # A program that reports no launches has too many to look at each (``submit``).
    pairing = pair(launches, trace) if launches else Pairing()
    maps = {entry.name for kernel in trace.kernels if kernel.manifest for entry in kernel.manifest.maps}
    columns = list(LAUNCH_COLUMNS)
    rows = launch_columns(pairing)
    for name, names, table in (
        (SCHED_MAP, SCHED_COLUMNS, sched_columns),
        (GMEM_MAP, GMEM_COLUMNS, gmem_columns),
    ):
        if name in maps:
            columns += names
            rows = [[*row, *more] for row, more in zip(rows, table(pairing), strict=True)]
    measured: dict[str, Json] = {
        "traces": len(traces),
        "complete": trace.complete,
        "notes": list(trace.notes[:20]),
        "kernels": kernel_rows(trace),
        "images": image_rows(trace),
        "unmatched": pairing.unmatched,
        "columns": columns,
        "rows": rows,
    }
    if SCHED_MAP in maps:
        clocks = report.with_name(report.name + ".clocks")
        if clocks.exists():
            measured["clocks"] = own_clocks(pairing, clocks)
        if told["workload"] == "streams":
            measured["overlaps"] = overlaps(pairing, "left", "right")
    return measured


def image_rows(trace: Trace) -> list[list[Json]]:
    """[kind, bytes, found in the cache, ms until its twins (copies with probes) were ready] of each image that was
    looked up.

    None in place of the third when a patched file's section had the twins.
    """
    return [
        [image["kind"], image["size"], bool(image["cached"]) if "cached" in image else None, image["ready_ms"]]
        for image in trace.images
        if "ready_ms" in image
    ]


def main(arguments: Sequence[str]) -> int:
    """Measure one run, as ``measure.py REPORT TRACEDIR OUT``: in a process of its own, so that a broken trace costs no
    other run."""
    report, trace, out = map(Path, arguments)
    out.write_text(json.dumps(measure(report, trace)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
