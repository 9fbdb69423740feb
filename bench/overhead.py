"""How much longer eleven Triton kernels take with each probe that is promised to be cheap, on a GPU.

    python3 -m bench.overhead record [--out FILE] [--rounds N] [--modes MODE …]     on a GPU, with PyTorch and Triton
    python3 -m bench.overhead judge [--out FILE]                                    recomputes table and verdicts

``workloads/triton_eleven.py`` has the kernels, their shapes and types; it times each launch by events, with a pause
after it, so that what a launch recorded is on its way while nothing is timed. Processes with and without probes take
turns, and twins are in the cache before a process counts. The verdicts hold that outputs are the same bits, that every
launch was probed, that ``dmat`` lost nothing, and that times stay within ``LIMITS`` or, where these are not reached,
within ``NOT_REACHED``. Exit status: 0 all good, 1 a verdict is not, 2 the file cannot be judged.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.command_line import Bench
from bench.probed import made_with
from bench.programs import must_run
from bench.tree import ROOT
from bench.verdicts import Missed, Verdict, need, run_checks
from neutrino.abi.reasons import Reason
from neutrino.maps.declaration import Layout
from neutrino.tracing import find_traces
from neutrino.tracing.trace import Trace

Json = Any

RESULTS = ROOT / "bench" / "results" / "overhead_h200.json"
PROGRAM = ROOT / "bench" / "workloads" / "triton_eleven.py"
PLAIN = "plain"
KERNELS = (
    "gemm", "streamk_gemm", "conv", "grouped_gemm", "attention", "layernorm", "softmax", "total", "pool", "embedding",
    "gather",
)  # fmt: skip
FEWEST = 2
"""Processes a mode, at least."""
_UNTIMED = 2
_TIMED, _TIMED_FULL = 20, 6
"""Launches that count, in a process; and with a probe that records every access."""
_PAUSE, _PAUSE_FULL = 0.002, 0.1
_LIMIT = 240.0


@dataclass(frozen=True)
class Limit:
    """How many times longer the kernels may take: in the mean, and each. bytes: of the trace, for an access."""

    mean: float | None = None
    each: float | None = None
    bytes: float | None = None


LIMITS = {
    "block_sched": Limit(1.02, 1.06), "gmem_bytes": Limit(1.02, 1.06), "tensorop": Limit(1.02, 1.06),
    "inst_count": Limit(1.10), "branch_divergence": Limit(1.10), "value_watch": Limit(1.10),
    "bench/probes/loaded_bytes.toml": Limit(1.10), "smem_bank_conflict": Limit(1.5), "latency": Limit(each=2.5),
    "dmat": Limit(2.0, 4.0, 4.0),
}  # fmt: skip
"""By the probe: what is wanted. Set before anything was measured."""
NOT_REACHED = {
    "block_sched": Limit(1.03, 1.08), "gmem_bytes": Limit(1.06, 1.22), "value_watch": Limit(1.65, 4.2),
    "latency": Limit(1.7, 3.1), "dmat": Limit(2.6, 4.3, 4.0),
}  # fmt: skip
"""By the probe, where ``LIMITS`` is not reached: what it takes now, with some room. README.md says why."""
COMPLETE = {"dmat"}
"""Probes that record every access: a large pool, and fewer launches."""


def record(neutrino: Sequence[str], rounds: int, modes: Sequence[str]) -> Json:
    """Run the Triton program in every mode on the GPU, several times; return what ``summarize`` keeps.

    Mode → one report of the program a process, with what the trace has of the probed ones. SystemExit: the program
    cannot be run.
    """
    start = time.time()
    results: Json = {**made_with("overhead_h200"), "started": int(start)}
    runs: dict[str, list[Json]] = {mode: [] for mode in (PLAIN, *modes)}
    with tempfile.TemporaryDirectory(prefix="overhead_", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        # The first round fills the caches of Triton and of twins.
        with ThreadPoolExecutor(len(runs)) as pool:
            firsts = [pool.submit(_once, neutrino, mode, folder, 0) for mode in runs]
        for first in firsts:
            first.result()
        for number in range(rounds):
            for mode, reports in runs.items():
                reports.append(_once(neutrino, mode, folder, number + 1))
    return summarize(results | {"seconds": round(time.time() - start, 1), "runs": runs})


def _once(neutrino: Sequence[str], mode: str, folder: Path, number: int) -> Json:
    """Run the program of eleven kernels once.

    mode: PLAIN or a probe. number: of the round; round 0 only fills the caches. Returns its report and, of a probe,
    what the traces recorded.
    """
    name = f"{Path(mode).stem}_{number}"
    report, traces = folder / f"{name}.json", folder / name
    full = mode in COMPLETE
    timed = 1 if not number else _TIMED_FULL if full else _TIMED
    argv = [
        sys.executable, str(PROGRAM), "--rounds", str(timed), "--pause", str(_PAUSE_FULL if full else _PAUSE),
        "--out", str(report),
    ]  # fmt: skip
    if mode != PLAIN:
        room = ["--max-device-memory", "16G"] if full else []
        probe = str(ROOT / mode) if "/" in mode else mode
        argv = [*neutrino, "-q", "-p", probe, *room, "--tracedir", str(traces), *argv]
    done = must_run(argv, folder, name, _LIMIT, {"TRITON_CACHE_DIR": str(folder / "triton")})
    result: Json = json.loads(report.read_text())
    begin = time.time()
    if mode != PLAIN and number:
        result |= _recorded(traces)
    print(f"{name}: {done.seconds} s, {time.time() - begin:.1f} s to read", file=sys.stderr)
    # What records every access takes gigabytes.
    shutil.rmtree(traces, ignore_errors=True)
    return result


def _recorded(folder: Path) -> Json:
    """Summarize, by kernel, what the traces below a folder have: probed launches, others by reason, bytes, and log
    records.

    Of the last launch, records of logs, what these dropped, and bytes.
    """
    probed: Counter[str] = Counter()
    originals: dict[str, Counter[str]] = {}
    logs: dict[str, Json] = {}
    drained = []
    for path in find_traces(folder):
        trace = Trace(path)
        lines = (path / "events.jsonl").read_text().split("\n")
        drained += [json.loads(line)["drain_ms"] for line in lines if line.startswith('{"event":"end"')]
        for kernel in trace.kernels:
            if kernel.name not in KERNELS:
                continue
            probed[kernel.name] += kernel.counters.get(Reason.PROBED, 0)
            others = {reason.word: count for reason, count in kernel.counters.items() if reason is not Reason.PROBED}
            originals.setdefault(kernel.name, Counter()).update(others)
            launches = list(kernel.launches())
            if not launches:
                continue
            views = [view for view in launches[-1].maps.values() if view.map.kind.layout is Layout.CHUNKS]
            if views:
                logs[kernel.name] = {
                    "records": sum(view.record_count for view in views),
                    "dropped": sum(view.dropped for launch in launches for view in launch.maps.values()
                                   if view.map.kind.layout is Layout.CHUNKS),
                    "bytes": int(launches[-1].record["data_size"]),
                }  # fmt: skip
    return {
        "probed": dict(probed), "originals": {name: dict(counts) for name, counts in originals.items() if counts},
        "logs": logs, "drain_ms": drained,
    }  # fmt: skip


def summarize(results: Json) -> Json:
    """Return results with medians over all processes and launches in place of times, by mode and kernel, and with the
    number of launches and the beginning of digests."""
    ms = {
        mode: {name: statistics.median(one for run in runs for one in run["kernels"][name]["ms"]) for name in KERNELS}
        for mode, runs in results["runs"].items() if runs
    }  # fmt: skip
    runs = {
        mode: [run | {"kernels": {
            name: {"launches": len(row["ms"]), "output": " ".join(digest[:16] for digest in row["output"].split())}
            for name, row in run["kernels"].items()
        }} for run in runs]
        for mode, runs in results["runs"].items()
    }  # fmt: skip
    return results | {"ms": ms, "runs": runs}


def milliseconds(results: Json, mode: str, kernel: str) -> float:
    """Return how many milliseconds a launch of a kernel takes in a mode: the median over all processes and launches."""
    return float(results["ms"][mode][kernel])


def times(results: Json, mode: str) -> dict[str, float]:
    """Return by kernel how many times as long it takes with a probe (mode) as without."""
    return {name: milliseconds(results, mode, name) / milliseconds(results, PLAIN, name) for name in KERNELS}


def judge(results: Json) -> list[Verdict]:
    """Check the recorded runs of the probes; return a verdict, good or bad, on each check, for the table that people
    read.

    That outputs are the same, every launch was probed, times are within the limits, and no record was lost.
    """
    runs = results["runs"]
    plain = runs.get(PLAIN) or [{"kernels": {}}]
    outputs = {name: row["output"] for name, row in plain[0]["kernels"].items()}
    found = run_checks([(f"{PLAIN}: outputs", partial(_outputs, runs.get(PLAIN, []), outputs))])
    for mode, limit in LIMITS.items():
        checks = [
            ("outputs", partial(_outputs, runs.get(mode, []), outputs)),
            ("launches", partial(_launches, runs.get(mode, []))),
            ("times", partial(_times, results, mode, NOT_REACHED.get(mode, limit), limit)),
        ]
        if mode in COMPLETE:
            checks.append(("records", partial(_complete, runs.get(mode, []), limit)))
        found += run_checks([(f"{mode}: {title}", check) for title, check in checks])
    return found


def _outputs(runs: Sequence[Json], outputs: dict[str, str]) -> str:
    """Check that all processes computed what the first plain one did.

    outputs: digests by kernel. runs: what processes reported. Returns a line for the verdict; raises BrokenError (by
    ``need``).
    """
    need(len(runs) >= FEWEST, f"{len(runs)} processes, expected {FEWEST} or more")
    need(tuple(outputs) == KERNELS, f"kernels of the plain run are {', '.join(outputs) or 'none'}")
    varied = [name for name, output in outputs.items() if " " in output]
    need(not varied, f"launches of {', '.join(varied)} gave several outputs")
    for run in runs:
        need(tuple(run["kernels"]) == KERNELS, f"kernels are {', '.join(run['kernels'])}")
        changed = [name for name, output in outputs.items() if run["kernels"][name]["output"] != output]
        need(not changed, f"other outputs of {', '.join(changed)}")
    return f"{len(runs)} processes, {len(outputs)} kernels, as in the first plain one"


def _launches(runs: Sequence[Json]) -> str:
    """Check that every launch of each process ran with the probe.

    runs: what processes reported. Returns a line for the verdict; raises BrokenError (by ``need``).
    """
    need(bool(runs), "no runs")
    for run in runs:
        for name in KERNELS:
            expected = _UNTIMED + run["kernels"][name]["launches"]
            found = run["probed"].get(name, 0)
            need(found == expected, f"{name}: {found} of {expected} launches probed; {run['originals'].get(name)}")
    return f"{len(runs)} processes, every launch probed"


def _times(results: Json, mode: str, limit: Limit, wanted: Limit) -> str:
    """Check how many times as long the kernels take with a probe as without. Returns a line for the verdict.

    limit: what must hold. wanted: what was promised; where only that is not reached, the line is a ``Missed``. Raises
    BrokenError (by ``need``).
    """
    need(bool(results["runs"].get(mode)), "no runs")
    found = times(results, mode)
    mean = statistics.fmean(found.values())
    name, most = max(found.items(), key=lambda entry: entry[1])
    need(limit.mean is None or mean <= limit.mean, f"{mean:.3f} times as long in the mean, {limit.mean} is wanted")
    need(limit.each is None or most <= limit.each, f"{name} takes {most:.2f} times as long, {limit.each} is wanted")
    missed = [f"{kind} {bound:g}" for kind, bound, found in (("mean", wanted.mean, mean), ("each", wanted.each, most))
              if bound is not None and found > bound]  # fmt: skip
    said = f"{mean:.3f} times as long in the mean, at most {most:.2f} ({name})"
    return Missed(f"{said}; wanted: {', '.join(missed)}") if missed else said


def _complete(runs: Sequence[Json], limit: Limit) -> str:
    """Check that a probe which records every access lost none, and how many bytes each takes.

    runs: what processes reported. Returns a line of figures; raises BrokenError (by ``need``).
    """
    need(bool(runs), "no runs")
    records = data = 0
    for run in runs:
        need(set(run["logs"]) == set(KERNELS), f"logs of {', '.join(run['logs'])}")
        lost = {name: row["dropped"] for name, row in run["logs"].items() if row["dropped"]}
        need(not lost, f"records dropped: {lost}")
        records += sum(row["records"] for row in run["logs"].values())
        data += sum(row["bytes"] for row in run["logs"].values())
    size = data / max(records, 1)
    need(limit.bytes is None or size <= limit.bytes, f"{size:.2f} bytes a record, {limit.bytes} are wanted")
    return f"nothing dropped, {records // len(runs):,} records in a launch of each kernel, {size:.2f} bytes a record"


def table(results: Json) -> str:
    """Return a table for people: each kernel's time without a probe, and with each probe as multiples of that."""
    lines = [f"{results['device']}, driver {results['driver']}", f"{'':14}" + "".join(f"{n[:9]:>10}" for n in KERNELS)]
    lines.append(f"{'plain, ms':14}" + "".join(f"{milliseconds(results, PLAIN, name):10.4f}" for name in KERNELS))
    for mode in LIMITS:
        if results["runs"].get(mode):
            words = "".join(f"{times(results, mode)[name]:10.3f}" for name in KERNELS)
            lines.append(f"{Path(mode).stem[:13]:14}" + words)
    return "\n".join(lines)


def _add_modes(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--modes PROBE …`` to the command line."""
    parser.add_argument("--modes", nargs="+", choices=LIMITS, default=list(LIMITS), help="probes; all by default")


main = Bench(
    "overhead", RESULTS, ("device", "driver", "runs", "ms"),
    lambda options, neutrino: record(neutrino, options.rounds, options.modes), judge, table, FEWEST, _add_modes,
).main  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
