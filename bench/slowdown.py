"""How much longer kernels take with each shipped probe, on a GPU.

    python3 -m bench.slowdown record [--out FILE] [--rounds N]     runs `workloads/timed.cu` plain and with each probe
    python3 -m bench.slowdown judge [--out FILE]                   recomputes the table and the verdicts

The kernels time themselves by events around each launch, twenty times a process after two that do not count. Rounds
of all modes take turns. The probed runs' twins are in the cache before they are timed. The verdicts hold that outputs
were the same, that with the probes that record little every launch that was timed was probed, and that these cost at
most so many times; those that record for each thread can fill the pool, and what they do is their price. Exit status:
0 all good, 1 a verdict is not, 2 the file cannot be judged.
"""

from __future__ import annotations

import json
import os
import shlex
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.command_line import Bench
from bench.programs import SOURCES, build_command, run_program
from bench.registers import PROBES
from bench.road import ROOT, query_gpu
from bench.tree import made_of
from bench.verdicts import Verdict, need, run_checks
from neutrino.abi.reasons import Reason
from neutrino.tracing import find_traces
from neutrino.tracing.trace import Trace

Json = Any

RESULTS = ROOT / "bench" / "results" / "slowdown_h200.json"
PLAIN = "plain"
KERNELS = ("vecadd", "matmul", "softmax", "collatz", "histogram", "tensor")
MOST_TIMES = {"block_sched": 1.10, "branch_divergence": 3.2, "gmem_bytes": 1.15, "inst_count": 1.6, "tensorop": 1.10}
"""Probes that record little → how many times longer a kernel may take, at most: what they add is a few instructions at
ends, at branches or at the ends of basic blocks, and sums over warps, whose cost an H200 shows with room."""
FEWEST = 3
"""Processes a mode, at least."""
_TIMED = 20
_LAUNCHES = _TIMED + 2
_LIMIT = 60.0


def record(neutrino: Sequence[str], rounds: int) -> Json:
    """Run the timed program in every mode on the GPU, several times; return the raw samples.

    Mode → one report of the program a process; of probed ones how many launches of each kernel ran probed, and why
    others did not. SystemExit: a program could not be built or run.
    """
    start = time.time()
    results: Json = {
        "device": query_gpu("name"), "driver": query_gpu("driver_version"), **made_of("slowdown_h200"),
        "started": int(start),
    }  # fmt: skip
    modes = (PLAIN, *PROBES)
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
    """Run the timed program in one process, plain or with a probe (mode); return its report and which launches had the
    probe.

    name: of the run's files.
    """
    report, traces = folder / f"{name}.json", folder / name
    argv = [str(program), "--rounds", str(_TIMED), "--out", str(report)]
    if mode != PLAIN:
        argv = [*neutrino, "-q", "-p", mode, "--tracedir", str(traces), *argv]
    _run(argv, {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}, folder, name)
    result: Json = json.loads(report.read_text())
    if mode != PLAIN:
        result |= _launched(traces)
    return result


def _launched(folder: Path) -> Json:
    """Count the launches in the traces below a folder, by kernel: how many ran probed, and by reason those that did
    not."""
    counts: dict[str, Counter[Reason]] = {}
    for path in find_traces(folder):
        for kernel in Trace(path).kernels:
            counts.setdefault(kernel.name, Counter()).update(kernel.counters)
    return {
        "probed": {name: found[Reason.PROBED] for name, found in counts.items()},
        "originals": {
            name: {reason.word: count for reason, count in found.items() if count and reason is not Reason.PROBED}
            for name, found in counts.items()
        },
    }


def _is_probed(run: Json, kernel: str) -> bool:
    """Whether every launch of a kernel in a run had the probe.

    Where some did not, as the pool of memory was full, its time says nothing.
    """
    return bool(run["probed"].get(kernel) == _LAUNCHES)


def _run(argv: Sequence[str], environment: dict[str, str], folder: Path, name: str) -> None:
    """Run a command within _LIMIT seconds.

    name: of the files that take its output. Raises SystemExit with the end of it when it fails.
    """
    done = run_program(argv, environment, folder, name, _LIMIT)
    if done.status != 0:
        raise SystemExit(f"{shlex.join(argv)}: exit status {done.status}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def milliseconds(results: Json, mode: str, kernel: str) -> float:
    """Return how many milliseconds a launch of a kernel takes in a mode (plain, or a probe): the median over all
    processes."""
    return float(statistics.median(ms for run in results["runs"][mode] for ms in run["kernels"][kernel]["ms"]))


def judge(results: Json) -> list[Verdict]:
    """Check the recorded runs; return a verdict, good or bad, on each check: two for each mode, three for probes that
    record little."""
    plain = results["runs"].get(PLAIN) or [{"kernels": {}}]
    outputs = {name: row["output"] for name, row in plain[0]["kernels"].items()}
    found = []
    for mode in (PLAIN, *sorted({*PROBES, *MOST_TIMES, *results["runs"]} - {PLAIN})):
        runs = results["runs"].get(mode, [])
        checks = [("outputs", partial(_outputs, runs, outputs))]
        if mode != PLAIN:
            checks.append(("launches", partial(_launches, runs, every=mode in MOST_TIMES)))
        if mode in MOST_TIMES:
            checks.append(("times", partial(_times, results, mode)))
        found += run_checks([(f"{mode}: {title}", check) for title, check in checks])
    return found


def _outputs(runs: Sequence[Json], outputs: dict[str, str]) -> str:
    """Check that all processes computed what the first plain one did, and timed every launch.

    outputs: digests by kernel. runs: what processes reported. Returns a line for the verdict; raises BrokenError (by
    ``need``).
    """
    need(len(runs) >= FEWEST, f"{len(runs)} processes, expected {FEWEST} or more")
    need(tuple(outputs) == KERNELS, f"kernels of the plain run are {', '.join(outputs) or 'none'}")
    for run in runs:
        need(tuple(run["kernels"]) == KERNELS, f"kernels are {', '.join(run['kernels'])}")
        changed = [name for name, output in outputs.items() if run["kernels"][name]["output"] != output]
        need(not changed, f"other outputs of {', '.join(changed)}")
        few = [name for name, row in run["kernels"].items() if len(row["ms"]) != _TIMED]
        need(not few, f"not {_TIMED} times of {', '.join(few)}")
        need(all(ms > 0 for row in run["kernels"].values() for ms in row["ms"]), "a time is not positive")
    return f"{len(runs)} processes, {len(outputs)} kernels, as in the first plain one"


def _launches(runs: Sequence[Json], *, every: bool) -> str:
    """Check how many launches had the probe.

    every: all must have; else the line counts those that had not, with reasons as far as recorded. runs: what processes
    reported. Raises BrokenError (by ``need``).
    """
    need(bool(runs), "no runs")
    originals, reasons = Counter[str](), Counter[str]()
    for run in runs:
        odd = [name for name, count in run["probed"].items() if name not in KERNELS or not 0 <= count <= _LAUNCHES]
        need(not odd, f"more than {_LAUNCHES} launches, or of another program: {', '.join(odd)}")
        for name in KERNELS:
            left = _LAUNCHES - run["probed"].get(name, 0)
            originals += Counter({name: left})
            if "originals" in run:
                counted = run["originals"].get(name, {})
                need(sum(counted.values()) == left, f"{name}: {left} launches not probed, reasons of {counted}")
                reasons += Counter(counted)
    total = _LAUNCHES * len(runs)
    if not originals:
        return f"{total} launches of each kernel, all probed"
    said = ", ".join(f"{name} {count}" for name, count in originals.items())
    need(not every, f"of {total} launches each ran the original: {said}")
    why = ", ".join(f"{word} {count}" for word, count in reasons.items())
    return f"of {total} launches each ran the original: {said}" + (f"; {why}" if why else "")


def _times(results: Json, mode: str) -> str:
    """Check how many times as long the slowest kernel takes with a probe as without. mode: which probe, a key of
    ``MOST_TIMES``.

    Returns a line for the verdict; raises BrokenError (by ``need``).
    """
    times = {name: milliseconds(results, mode, name) / milliseconds(results, PLAIN, name) for name in KERNELS}
    name, most = max(times.items(), key=lambda entry: entry[1])
    need(most <= MOST_TIMES[mode], f"{name} takes {most:.2f} times as long, at most {MOST_TIMES[mode]:.2f} is wanted")
    return f"at most {most:.2f} times as long ({name}), {MOST_TIMES[mode]:.2f} may be"


def table(results: Json) -> str:
    """Return a table for people: each kernel's time without a probe, and with each probe as multiples of that.

    ``-``: not all launches were probed.
    """
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


main = Bench(
    "slowdown", RESULTS, ("device", "driver", "runs"), lambda options, neutrino: record(neutrino, options.rounds),
    judge, table, rounds=FEWEST,
).main  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
