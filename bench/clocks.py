"""Do clocks that probes read after a barrier show how long the warp waited there? On a GPU.

    python3 -m bench.clocks record [--out FILE]     runs workloads/barriers.cu with three probes
    python3 -m bench.clocks judge [--out FILE]      recomputes the verdicts

The second warp of each kernel comes to its barrier ``SPIN`` cycles after the first, which is known without a clock of
a probe. So the first warp's wait must not be shorter: by ``barrier_wait``, by a probe that reads both clocks in 64 bits
and, where the kernel ends after the barrier, by ``block_sched``.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.command_line import Bench
from bench.probed import made_with, with_probe
from bench.programs import SOURCES, build_command, must_run
from bench.tree import ROOT
from bench.verdicts import Verdict, need, run_checks
from neutrino.tracing import find_traces
from neutrino.tracing.trace import Trace

Json = Any

RESULTS = ROOT / "bench" / "results" / "clocks_h200.json"
BARRIERS = ("constant_barrier", "constant_count", "barrier_in_register", "both_in_registers", "cluster")
KERNELS = (*BARRIERS, "ends_after")
SPIN = 30_000
"""As the source has it: cycles from the first warp's coming until the second one's."""
EARLIEST = 29_000
MOST = 2_000
"""The first warp comes some hundred cycles after the second begins to count, and probes' own code delays both."""
FASTEST_GHZ = 2.1
PROBES = {
    "barrier_wait": "barrier_wait", "both_clocks": "bench/probes/clocks_at_barriers.py", "block_sched": "block_sched",
}  # fmt: skip


def record() -> Json:
    """Run the program with each probe; return what its traces have, by probe and kernel. SystemExit: it failed."""
    results: Json = made_with("clocks_h200")
    with tempfile.TemporaryDirectory(prefix="clocks_", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        program = folder / "barriers"
        must_run(build_command(SOURCES / "barriers.cu", program), folder, "build")
        for title, probe in PROBES.items():
            traces = folder / title
            must_run(with_probe([str(program)], str(ROOT / probe) if "/" in probe else probe, traces), folder, title)
            (path,) = find_traces(traces)
            kernels = {kernel.name: kernel for kernel in Trace(path).kernels}
            results[title] = {kernel: _figures(title, kernels[kernel]) for kernel in KERNELS}
    return results


def _figures(title: str, kernel: Any) -> Json:
    """What a probe recorded of the kernel's one launch, in plain numbers by the name of the field."""
    (launch,) = kernel.launches()
    if title == "barrier_wait":
        rows = launch.maps["PerWait"].valid().reshape(-1)
        return {name: [int(value) for value in rows[name]] for name in ("count", "max", "min")}
    if title == "both_clocks":
        rows = launch.maps["Waits"].valid().reshape(-1)
        return {name: [int(value) for value in rows[name]] for name in ("cycles", "nanoseconds")}
    rows = launch.maps["BlockSched"].valid().reshape(-1)
    return {"elapsed": [int(value) for value in rows["elapsed"]]}


def judge(results: Json) -> list[Verdict]:
    """Check every kernel's wait by every probe; return a verdict, good or bad, on each."""
    checks = [(f"barrier_wait: {kernel}", partial(_longest, results["barrier_wait"][kernel]["max"], 1))
              for kernel in KERNELS]  # fmt: skip
    for kernel in KERNELS:
        row = results["both_clocks"][kernel]
        checks.append((f"clock: {kernel}", partial(_longest, row["cycles"], 2)))
        checks.append((f"time: {kernel}", partial(_nanoseconds, row["nanoseconds"])))
    checks += [(f"block_sched: {kernel}", partial(_elapsed, results["block_sched"][kernel]["elapsed"]))
               for kernel in KERNELS]  # fmt: skip
    return run_checks(checks)


def _longest(cycles: Sequence[int], least: int) -> str:
    """Check that the longest wait is the first warp's. least: records at least."""
    need(len(cycles) >= least, f"{len(cycles)} records, {least} are wanted")
    longest = max(cycles)
    need(EARLIEST <= longest <= SPIN + MOST, f"{longest:,} cycles, {EARLIEST:,} to {SPIN + MOST:,} are right")
    return f"{longest:,} cycles"


def _nanoseconds(found: Sequence[int]) -> str:
    """Check the longest wait by the timer, which every GPU of this kind moves on with its clock or more slowly."""
    need(len(found) == 2, f"{len(found)} records, 2 are wanted")
    need(max(found) >= EARLIEST / FASTEST_GHZ, f"{max(found):,} ns, {EARLIEST / FASTEST_GHZ:,.0f} at least are right")
    return f"{max(found):,} ns"


def _elapsed(found: Sequence[int]) -> str:
    """Check that both warps end after the barrier."""
    need(len(found) == 2, f"{len(found)} records, 2 are wanted")
    need(min(found) >= EARLIEST, f"a warp ends after {min(found):,} cycles, {EARLIEST:,} at least are right")
    return f"both warps {min(found):,} to {max(found):,} cycles"


main = Bench(
    "clocks", RESULTS, tuple(PROBES), lambda options, neutrino: record(), judge,
).main  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
