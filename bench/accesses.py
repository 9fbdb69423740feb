"""Does ``dmat`` record each access, and does ``latency`` measure what a program measures of itself? On a GPU.

    python3 -m bench.accesses record [--out FILE]     runs workloads/accesses.cu plain and with both probes
    python3 -m bench.accesses judge [--out FILE]      recomputes table and verdicts

Addresses follow from a formula for each kernel, so the digest of all of them, by thread and order, is computed again
here. The chases of pointers read the clock around all of their loads; in the mean, ``latency`` less what its own
clocks cost has to be within ``MOST_APART`` of that, in a run without a probe.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.command_line import Bench
from bench.probed import made_with, with_probe
from bench.programs import SOURCES, build_command, must_run
from bench.tree import ROOT
from bench.verdicts import Verdict, need, run_checks
from neutrino.tracing import find_traces
from neutrino.tracing.trace import Trace, TraceKernel

Json = Any
Addresses = npt.NDArray[np.uint64]

RESULTS = ROOT / "bench" / "results" / "accesses_h200.json"
ACCESSES = ("linear", "strided", "gathered", "broadcast", "scattered")
CHASES = ("chase_l1", "chase_l2", "chase_hbm")
MOST_APART = 0.05
_WORDS = 1 << 24
_WARP = 32


def record() -> Json:
    """Run accesses.cu on the GPU without a probe, with ``dmat`` and with ``latency``; what it reported and what was
    traced. Raises SystemExit when the program cannot be built or run.
    """
    results: Json = made_with("accesses_h200")
    with tempfile.TemporaryDirectory(prefix="accesses_", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        program = folder / "accesses"
        must_run(build_command(SOURCES / "accesses.cu", program), folder, "build")
        results["plain"] = _report([str(program)], folder, "plain")
        for probe in ("dmat", "latency"):
            traces = folder / f"traces_{probe}"
            argv = with_probe([str(program)], probe, traces)
            # Every load is measured.
            argv[3:3] = ["-D", "SAMPLE=1"] if probe == "latency" else []
            results[probe] = _report(argv, folder, probe)
            (path,) = find_traces(traces)
            kernels = {kernel.name: kernel for kernel in Trace(path).kernels}
            if probe == "dmat":
                results["traced"] = {name: _traced(kernels[name]) for name in ACCESSES}
            else:
                results["measured"] = {name: _measured(kernels[name]) for name in CHASES}
    return results


def _report(argv: Sequence[str], folder: Path, name: str) -> Json:
    """Run the bench's GPU program, and return the JSON report that it writes about its kernels (addresses, cycles).

    name: of the report.
    """
    path = folder / f"{name}.json"
    must_run([*argv, "--out", str(path)], folder, name)
    return json.loads(path.read_text())


def _traced(kernel: TraceKernel) -> Json:
    """Return what the probe ``dmat`` recorded of a kernel's launch: a digest of each thread's accesses in order, and
    clocks that go back."""
    launches = [*kernel.launches()]
    if len(launches) != 1:
        counts = {reason.word: count for reason, count in kernel.counters.items()}
        raise SystemExit(f"{kernel.name}: data of {len(launches)} launches, expected 1; launches by reason: {counts}")
    launch = launches[0]
    view = launch.maps["GlobalAccesses"]
    rows, places = view.valid().reshape(-1), view.places()
    by_thread = np.lexsort([places[name] for name in ("order", "lane", "warp", "block")])
    threads = np.stack([places[name][by_thread] for name in ("block", "warp", "lane")])
    same = (threads[:, 1:] == threads[:, :-1]).all(axis=0)
    clocks = rows["clock"][by_thread].astype(np.int64)
    return {
        "records": len(rows), "dropped": view.dropped, "bytes": int(launch.record["data_size"]),
        "sha256": _digest(rows["address"][by_thread]), "sizes": sorted({*rows["bytes"].tolist()}),
        "clocks_back": int((same & (clocks[1:] < clocks[:-1])).sum()),
    }  # fmt: skip


def _measured(kernel: TraceKernel) -> list[Json]:
    """What ``latency`` recorded of each launch of a kernel that chases pointers: [instruction's number (site), count,
    sum, min, max] of its loads, and the cycles that reading two clocks takes.
    """
    found = []
    for launch in kernel.launches():
        rows = launch.maps["PerLoad"].valid().reshape(-1)
        found.append({
            "loads": [[int(row[name]) for name in ("key", "count", "sum", "min", "max")] for row in rows],
            "clock": int(launch.maps["ClockOverhead"].valid()["cycles"].reshape(-1)[0]),
        })  # fmt: skip
    return found


def _digest(addresses: Addresses) -> str:
    """SHA-256, in hex, of addresses as 64-bit little-endian words: stands for all of them in the results."""
    return hashlib.sha256(addresses.astype("<u8").tobytes()).hexdigest()


def _mixed(values: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """A hash of each 32-bit number, the same as the kernel computes: scatters indices over the memory."""
    values = (values ^ values >> 16) * np.uint32(0x7FEB352D)
    values = (values ^ values >> 15) * np.uint32(0x846CA68B)
    return (values ^ values >> 16).astype(np.uint32)


def expected(name: str, row: Json) -> Addresses:
    """The address of every access that a kernel makes, by thread and, in a thread, in order. Computed from the kernel's
    formula, to be compared with what the probe recorded.

    name: one of ACCESSES. row: the program's report on it: grid, block (threads), addresses of its buffers, rounds.
    """
    threads = np.arange(row["grid"] * row["block"], dtype=np.uint32)
    loads = {
        "linear": threads, "strided": threads * 33, "gathered": _mixed(threads) % _WORDS,
        "broadcast": threads // row["block"],
    }  # fmt: skip
    stores = row["out"] + 4 * threads.astype(np.uint64)
    if name == "scattered":
        rounds = np.arange(row["rounds"], dtype=np.uint32)
        at = row["in"] + 4 * (_mixed(threads[:, None] * 64 + rounds) % _WORDS).astype(np.uint64)
        # A column more, for the store after the last round.
        order = np.concatenate([at, stores[:, None]], axis=1)
        last = threads % row["rounds"] + 1
        order[threads, last] = stores
        kept: Addresses = order[np.arange(row["rounds"] + 1) <= last[:, None]]
        return kept
    columns = [row["in"] + 4 * loads[name].astype(np.uint64), stores]
    if name == "gathered":
        columns.insert(0, row["index"] + 4 * threads.astype(np.uint64))
    return np.stack(columns, axis=1).reshape(-1)


def judge(results: Json) -> list[Verdict]:
    """Check the recorded results; return a verdict (good or bad, with a line of figures) on each kernel of the bench.

    That is whether the probe ``dmat`` recorded the kernel's accesses, or whether ``latency`` measured its loads.
    """
    return run_checks([
        *((f"dmat: {name}", partial(_check_traced, results, name)) for name in ACCESSES),
        *((f"latency: {name}", partial(_check_measured, results, name)) for name in CHASES),
    ])  # fmt: skip


def _check_traced(results: Json, name: str) -> str:
    """Check that ``dmat`` (a probe that records addresses) recorded the addresses that the kernel's formula gives.

    Returns a line of figures for the verdict; raises BrokenError (by ``need``) at the first difference.
    """
    found, addresses = results["traced"][name], expected(name, results["dmat"]["accesses"][name])
    need(found["dropped"] == 0, f"{found['dropped']} records dropped")
    need(found["records"] == len(addresses), f"{found['records']:,} records of {len(addresses):,} accesses")
    need(found["sha256"] == _digest(addresses), "other addresses")
    need(found["sizes"] == [4], f"sizes of {found['sizes']} bytes")
    need(found["clocks_back"] == 0, f"{found['clocks_back']} clocks before those of earlier accesses of the thread")
    return f"{found['records']:,} accesses, {found['bytes'] / found['records']:.2f} bytes each"


def cycles(results: Json, name: str) -> tuple[float, float]:
    """Return how many cycles a load takes in a kernel that chases pointers, median over launches.

    Two figures: by the kernel's own clock without a probe, and as the ``latency`` probe measured it.
    """
    own = statistics.median(row["cycles"] / row["loads"] for row in results["plain"]["chases"][name])
    loads = results["plain"]["chases"][name][0]["loads"]
    means = []
    for launch in results["measured"][name]:
        # The last site (instruction): an earlier loop may make as many loads, to warm the cache.
        _, count, total = max(row[:3] for row in launch["loads"] if row[1] == loads)
        means.append(total / count - launch["clock"])
    return own, statistics.median(means)


def _check_measured(results: Json, name: str) -> str:
    """Check that the mean latency by the probe differs from that by the kernel's own clock by at most MOST_APART (a
    fraction). Returns a line of figures for the verdict; raises BrokenError (by ``need``)."""
    need(len(results["measured"][name]) == len(results["plain"]["chases"][name]), "not every launch was probed")
    own, measured = cycles(results, name)
    need(abs(measured / own - 1) <= MOST_APART, f"{measured:.1f} cycles, {own:.1f} by the program's own clock")
    return f"{measured:.1f} cycles a load, {own:.1f} by the program's own clock"


def table(results: Json) -> str:
    """Return the results as a table for people: cycles of a load from each memory, by the program's own clock and by
    ``latency``."""
    rows = [f"{results['device']}, driver {results['driver']}", f"{'':12}{'program':>10}{'latency':>10}"]
    return "\n".join([*rows, *(f"{name:12}{own:10.1f}{got:10.1f}" for name in CHASES
                               for own, got in [cycles(results, name)])])  # fmt: skip


main = Bench(
    "accesses", RESULTS, ("device", "plain", "traced"), lambda options, neutrino: record(), judge, table,
).main  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
