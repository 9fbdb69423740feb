"""The launches of a trace whose program does not tell of them, in plain numbers: ``REPORT TRACEDIR OUT``."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.measure import SCHED_COLUMNS, Launch, Pair, Pairing, kernel_rows, sched_columns
from neutrino.tracing import Trace, find_traces


def main(arguments: Sequence[str]) -> int:
    """Read the trace of a program that reports no launches itself: kernels, reasons and, launch by launch, grid, block
    and the figures of ``block_sched``.

    arguments: a report (not used), the folder of the traces, the JSON file to write. Returns the exit status 0.
    """
    _, folder, out = map(Path, arguments)
    traces = [Trace(path) for path in find_traces(folder)]
    trace = max(traces, key=lambda one: len(one.launches))
    launches = [(kernel.name, launch) for kernel in trace.kernels for launch in kernel.launches()]
    launches.sort(key=lambda entry: int(entry[1].record["submit_ns"]))
    own = [Launch(name, tuple(map(int, launch.record["grid"])), tuple(map(int, launch.record["block"])), 0.0, ())
           for name, launch in launches]  # fmt: skip
    pairing = Pairing([Pair(one, launch) for one, (_, launch) in zip(own, launches, strict=True)])
    rows = [[one.kernel, list(one.grid or ()), list(one.block or ()), *row]
            for one, row in zip(own, sched_columns(pairing), strict=True)]  # fmt: skip
    kernels = [{key: row[key] for key in ("name", "reason", "counters")} for row in kernel_rows(trace)]
    out.write_text(json.dumps({
        "traces": len(traces), "complete": trace.complete, "notes": list(trace.notes[:20]),
        "kernels": [row for row in kernels if row["reason"] == "probed"],
        "columns": ["kernel", "grid", "block", *SCHED_COLUMNS], "rows": rows,
    }))  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
