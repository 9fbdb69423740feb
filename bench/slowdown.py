"""How much longer kernels take with each shipped probe, on a GPU.

    python3 -m bench.slowdown record [--out FILE] [--rounds N]     runs `workloads/timed.cu` plain and with each probe
    python3 -m bench.slowdown judge                                recomputes the verdicts and the table

The kernels time themselves by events around each launch, twenty times a process after two that do not count. Rounds
of all modes take turns. The probed runs' twins are in the cache before they are timed. There is no bound on the times:
what a probe does is its price. The verdicts hold that outputs were the same, and that with the probes that record
little every launch that was timed was probed; those that record for each thread can fill the pool.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.judged import say_verdicts
from bench.programs import SOURCES, build_command, run_program
from bench.road import COMMAND, ROOT, query_gpu
from bench.tree import tree_hash
from neutrino.probing.layout import Reason
from neutrino.resources import shipped_probes
from neutrino.tracing import find_traces
from neutrino.tracing.trace import Trace

Json = Any

RESULTS = ROOT / "bench" / "results" / "slowdown_h200.json"
PLAIN = "plain"
KERNELS = ("vecadd", "matmul", "softmax", "collatz", "histogram", "tensor")
LIGHT = ("block_sched", "branch_divergence", "gmem_bytes", "inst_count", "tensorop")
FEWEST = 3
"""Processes a mode, at least."""
_TIMED = 20
_LAUNCHES = _TIMED + 2
_LIMIT = 60.0


def record(neutrino: Sequence[str], rounds: int) -> Json:
    """Raw samples: mode → one report of the program a process; of probed ones how many launches of each
    kernel ran probed.

    SystemExit: a program could not be built or run.
    """
    start = time.time()
    results: Json = {
        "device": query_gpu("name"), "driver": query_gpu("driver_version"), "tree": tree_hash(ROOT),
        "started": int(start),
    }  # fmt: skip
    modes = (PLAIN, *shipped_probes())
    runs: dict[str, list[Json]] = {mode: [] for mode in modes}
    with tempfile.TemporaryDirectory(prefix="slowdown_", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        program = folder / "timed"
        _run(build_command(SOURCES / "timed.cu", program), dict(os.environ), folder, "build")
        for number in range(rounds + 1):
            for mode in modes:
                report = _once(neutrino, mode, program, folder, f"{mode}_{number}")
                # The first round fills the cache of twins.
                if number:
                    runs[mode].append(report)
    return results | {"seconds": round(time.time() - start, 1), "runs": runs}


def _once(neutrino: Sequence[str], mode: str, program: Path, folder: Path, name: str) -> Json:
    report, traces = folder / f"{name}.json", folder / name
    argv = [str(program), "--rounds", str(_TIMED), "--out", str(report)]
    if mode != PLAIN:
        argv = [*neutrino, "-q", "-p", mode, "--tracedir", str(traces), *argv]
    _run(argv, {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}, folder, name)
    result: Json = json.loads(report.read_text())
    if mode != PLAIN:
        result["probed"] = _probed(traces)
    return result


def _probed(folder: Path) -> dict[str, int]:
    """Launches of each kernel that ran probed, by the traces below a folder."""
    found: dict[str, int] = {}
    for path in find_traces(folder):
        for kernel in Trace(path).kernels:
            found[kernel.name] = found.get(kernel.name, 0) + kernel.counters.get(Reason.PROBED, 0)
    return found


def _is_probed(run: Json, kernel: str) -> bool:
    """Every launch of it; of some that did, because the pool was full, a time would say nothing."""
    return bool(run["probed"].get(kernel) == _LAUNCHES)


def _run(argv: Sequence[str], environment: dict[str, str], folder: Path, name: str) -> None:
    done = run_program(argv, environment, folder, name, _LIMIT)
    if done.status != 0:
        raise SystemExit(f"{shlex.join(argv)}: exit status {done.status}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def milliseconds(results: Json, mode: str, kernel: str) -> float:
    """The median over all processes and launches."""
    return float(statistics.median(ms for run in results["runs"][mode] for ms in run["kernels"][kernel]["ms"]))


def judge(results: Json) -> list[str]:
    """What of the results is not as it must be; nothing when all is."""
    wrong = []
    plain = results["runs"][PLAIN][0]["kernels"]
    if tuple(plain) != KERNELS:
        wrong.append(f"kernels are {', '.join(plain)}")
    for mode, runs in results["runs"].items():
        if len(runs) < FEWEST:
            wrong.append(f"{mode}: {len(runs)} processes, not {FEWEST}")
        for run in runs:
            changed = [name for name in plain if run["kernels"][name]["output"] != plain[name]["output"]]
            if changed:
                wrong.append(f"{mode}: other outputs of {', '.join(changed)}")
            if any(len(run["kernels"][name]["ms"]) != _TIMED for name in plain):
                wrong.append(f"{mode}: not {_TIMED} times of every kernel")
            others = [name for name in plain if mode in LIGHT and not _is_probed(run, name)]
            if others:
                wrong.append(f"{mode}: not every launch of {', '.join(others)} was probed")
    missing = {*shipped_probes()} - results["runs"].keys()
    if missing:
        wrong.append(f"no runs with {', '.join(sorted(missing))}")
    return wrong


def table(results: Json) -> str:
    """Times with each probe as multiples of those without; ``-``: not all launches were probed."""
    lines = [f"{results['device']}, driver {results['driver']}"]
    lines.append(f"{'':20}" + "".join(f"{name:>11}" for name in KERNELS))
    times = {name: milliseconds(results, PLAIN, name) for name in KERNELS}
    lines.append(f"{'plain, ms':20}" + "".join(f"{times[name]:11.3f}" for name in KERNELS))
    for mode, runs in results["runs"].items():
        if mode != PLAIN:
            every = {name: all(_is_probed(run, name) for run in runs) for name in KERNELS}
            words = [
                f"{milliseconds(results, mode, name) / times[name]:.2f}" if every[name] else "-" for name in KERNELS
            ]
            lines.append(f"{mode:20}" + "".join(f"{word:>11}" for word in words))
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line above. Returns 1 when a verdict is not good."""
    parser = argparse.ArgumentParser(prog="bench.slowdown")
    parser.add_argument("action", choices=("record", "judge"))
    parser.add_argument("--neutrino", default=COMMAND, help="the command that probes a program")
    parser.add_argument("--rounds", type=int, default=FEWEST, help="timed processes a mode")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the raw samples go, as JSON")
    options = parser.parse_args(arguments)
    if options.action == "record":
        results = record(shlex.split(options.neutrino), options.rounds)
        options.out.write_text(json.dumps(results, separators=(",", ":")) + "\n")
    else:
        results = json.loads(options.out.read_text())
    return say_verdicts(results, table, judge)


if __name__ == "__main__":
    sys.exit(main())
