"""How much longer programs take when their kernels are probed for the first time, and the second time.

    python3 -m bench.first_runs record [--out FILE] [--only NAME …]     on a GPU, with PyTorch, Triton and JAX
    python3 -m bench.first_runs judge [--out FILE]                      recomputes table and verdicts

Each program runs without a probe, then with an empty cache of twins, again with that cache, with an empty one and
``--hot 4``, and without a probe once more; what frameworks compile is compiled anew each time. Some programs do so in
several rounds, of which the fastest runs are compared. CPU time is that of the whole machine, which has nothing else to
do.
"""

from __future__ import annotations

import argparse
import compileall
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.command_line import Bench
from bench.probed import made_with
from bench.programs import SOURCES, must_run
from bench.tree import ROOT
from bench.verdicts import Missed, Verdict, need, run_checks
from neutrino.abi.reasons import Reason
from neutrino.tracing import find_traces
from neutrino.tracing.trace import Trace

Json = Any

RESULTS = ROOT / "bench" / "results" / "first_runs_h200.json"
PROBE = "block_sched"
PROGRAMS = {
    # XLA keeps PTX in its images only with line information.
    "JAX": (("jax_step.py", "300"), {"XLA_FLAGS": "--xla_gpu_generate_line_info=true"}),
    "torch.compile": (("torch_steps.py", "5", "--compile"), {}),
    "PyTorch": (("torch_steps.py", "5"), {}),
}
"""By name: the workload's arguments and its environment."""
MODES = ("plain", "first", "second", "hot", "plain again")
ONCE = ("hot", "plain again")
"""Only in a program's first round."""
ROUNDS = {"JAX": 2, "torch.compile": 2, "PyTorch": 6}
"""By the program. Runs of a short one differ by a fifth."""
STARTS = 10
"""How often ``neutrino true`` is timed, whose probes are verified already."""
HOT = ("--hot", "4")
FIRST = {"JAX": 2.0, "torch.compile": 1.3, "PyTorch": 1.05}
"""By the program: how many times longer the first run may take."""
SECOND = 1.03
WHEN_HOT = 1.2
"""With ``--hot 4``, of JAX: its autotuning throws most kernels away."""
NOT_REACHED = {"JAX, second": 1.4}
"""Where ``FIRST`` or, of "NAME, second", ``SECOND`` is not reached: what it takes now, with some room."""
_LIMIT = 150.0


def record(neutrino: Sequence[str], only: Sequence[str]) -> Json:
    """Run each program in every mode on the GPU, several times; return the raw samples.

    Program → mode → of each round seconds, CPU seconds, the result, and of probed ones what was probed. SystemExit: a
    program could not be run.
    """
    results: Json = {
        **made_with("first_runs_h200"), "cores": os.cpu_count(), "started": int(time.time()), "runs": {},
    }  # fmt: skip
    # As pip does, which installs it; a lent machine may keep Python from writing any.
    compileall.compile_dir(ROOT / "neutrino", quiet=1)
    with tempfile.TemporaryDirectory(prefix="first_runs_", ignore_cleanup_errors=True) as name:
        for program in only or PROGRAMS:
            runs: Json = {mode: [] for mode in MODES}
            results["runs"][program] = runs
            for number in range(ROUNDS[program]):
                for mode in MODES:
                    if number and mode in ONCE:
                        continue
                    run = _once(neutrino, program, mode, Path(name), number)
                    runs[mode].append(run)
                    print(f"{program}, {mode}: {run}", file=sys.stderr)
        results["starts"] = [_start(neutrino, Path(name)) for _ in range(1 + STARTS)][1:]
    return results


def _once(neutrino: Sequence[str], program: str, mode: str, folder: Path, number: int) -> Json:
    """Run a program once in a mode, with fresh caches if the mode wants them; return its times, result and what was
    probed.

    Seconds, and CPU seconds of the machine. number: of the round.
    """
    (script, *arguments), extra = PROGRAMS[program]
    argv = [sys.executable, str(SOURCES / script), *arguments]
    traces = folder / "traces"
    probed = not mode.startswith("plain")
    if probed:
        argv = [*neutrino, *(HOT if mode == "hot" else ()), "-p", PROBE, "--tracedir", str(traces), *argv]
    compiled, cache = folder / "compiled", folder / f"cache_{program}_{number}{'_hot' if mode == 'hot' else ''}"
    variables = {
        **extra, "XDG_CACHE_HOME": str(cache), "TRITON_CACHE_DIR": str(compiled / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(compiled / "inductor"), "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }  # fmt: skip
    before = _busy()
    done = must_run(argv, folder, f"{program}_{mode}", _LIMIT, variables)
    busy = _busy() - before
    result: Json = {"seconds": done.seconds, "cpu_seconds": round(busy, 2), "result": done.stdout.split()[-1]}
    if probed:
        result |= _probed(traces)
    shutil.rmtree(traces, ignore_errors=True)
    shutil.rmtree(compiled, ignore_errors=True)
    return result


def _start(neutrino: Sequence[str], folder: Path) -> float:
    """Return how many seconds ``neutrino true`` takes: what Neutrino itself needs before a program starts."""
    variables = {"XDG_CACHE_HOME": str(folder / "cache_start")}
    return must_run([*neutrino, "-q", "-p", PROBE, "true"], folder, "start", _LIMIT, variables).seconds


def _busy() -> float:
    """Return how many CPU seconds the machine has spent since it started (proc(5), /proc/stat: user, nice and system).
    """
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return sum(map(int, words[1:4])) / os.sysconf("SC_CLK_TCK")


def _probed(folder: Path) -> Json:
    """Count kernels and launches in the traces below a folder: how many kernels ran and were probed, and launches
    likewise."""
    kernels = [kernel for path in find_traces(folder) for kernel in Trace(path).kernels]
    ran = [kernel for kernel in kernels if sum(kernel.counters.values())]
    return {
        "kernels": len(ran), "probed_kernels": sum(kernel.counters.get(Reason.PROBED, 0) > 0 for kernel in ran),
        "launches": sum(sum(kernel.counters.values()) for kernel in ran),
        "probed": sum(kernel.counters.get(Reason.PROBED, 0) for kernel in ran),
    }  # fmt: skip


def times(runs: Json, mode: str) -> float:
    """Return how many times as long a program takes in a mode as without a probe, each by its fastest run."""
    plain = min(_fastest(runs, "plain")["seconds"], _fastest(runs, "plain again")["seconds"])
    return float(_fastest(runs, mode)["seconds"] / plain)


def _fastest(runs: Json, mode: str) -> Json:
    """Return that run of a mode, of several, which took the fewest seconds."""
    return min(runs[mode], key=lambda run: run["seconds"])


def judge(results: Json) -> list[Verdict]:
    """Check the recorded runs; return a verdict, good or bad, on each program's results and on its first and second
    run's time."""
    found = []
    for program in PROGRAMS:
        runs = results["runs"].get(program, {})
        second = f"{program}, second"
        checks = [
            ("results", partial(_results, runs)),
            ("first run", partial(_times, runs, "first", FIRST[program], NOT_REACHED.get(program))),
            ("second run", partial(_times, runs, "second", SECOND, NOT_REACHED.get(second))),
        ]
        if program == "JAX":
            checks.append(("first run, --hot 4", partial(_times, runs, "hot", WHEN_HOT, None)))
        found += run_checks([(f"{program}: {title}", check) for title, check in checks])
    return found


def _results(runs: Json) -> str:
    """Check that all runs of a program printed the same result and probed the same share of launches.

    Returns a line for the verdict; raises BrokenError (by ``need``).
    """
    need(tuple(runs) == MODES, f"runs are {', '.join(runs) or 'none'}")
    first, second = runs["first"][0], runs["second"][0]
    # Autotuning launches kernels as often as its time allows.
    shares = [run["probed"] / run["launches"] for run in (first, second)]
    need(abs(shares[0] - shares[1]) < 0.001, f"{first['probed']} and {second['probed']} launches probed")
    launches = f"{first['probed']:,} of {first['launches']:,} launches probed"
    # XLA chooses algorithms by their times.
    if len({run["result"] for mode in ("plain", "plain again") for run in runs[mode]}) > 1:
        return f"not compared, two runs without a probe differ; {launches}"
    outputs = {run["result"] for samples in runs.values() for run in samples}
    need(len(outputs) == 1, f"{len(outputs)} different results")
    return f"the same in all runs; {launches}"


def _times(runs: Json, mode: str, wanted: float, accepted: float | None) -> str:
    """Check how many times as long a program takes in a mode as without a probe.

    wanted: at most this; accepted: what is let pass above it for now, or None. Returns a line for the verdict, a
    ``Missed`` when it is between the two; raises BrokenError (by ``need``).
    """
    need(mode in runs, "no run")
    found = times(runs, mode)
    run = _fastest(runs, mode)
    if mode == "hot":
        need(found <= wanted, f"{found:.2f} times as long, {wanted} is wanted")
        return f"{found:.2f} times as long; {run['probed']:,} of {run['launches']:,} launches probed"
    if accepted is not None and found > wanted:
        need(found <= accepted, f"{found:.2f} times as long, {accepted} is accepted")
        return Missed(f"{found:.2f} times as long; wanted: {wanted}")
    need(found <= wanted, f"{found:.2f} times as long, {wanted} is wanted")
    return f"{found:.2f} times as long"


def table(results: Json) -> str:
    """Return a table for people: seconds and CPU seconds of each program's fastest run in each mode, and kernels
    probed."""
    lines = [f"{results['device']}, driver {results['driver']}, {results['cores']} cores",
             f"{'':<14}" + "".join(f"{mode:>18}" for mode in MODES) + f"{'kernels probed':>18}"]  # fmt: skip
    for program, runs in results["runs"].items():
        fastest = [_fastest(runs, mode) for mode in MODES]
        cells = "".join(f"{run['seconds']:>8.1f} s{run['cpu_seconds']:>6.0f} s" for run in fastest)
        first = runs["first"][0]
        lines.append(f"{program:<14}" + cells + f"{first['probed_kernels']:>8} of {first['kernels']:>6}")
    lines.append(f"neutrino -p {PROBE} true: {statistics.median(results['starts']):.2f} s")
    return "\n".join(lines)


def _add_only(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--only PROGRAM …`` to the command line."""
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=[], help="programs; all by default")


main = Bench(
    "first_runs", RESULTS, ("device", "driver", "runs", "starts"),
    lambda options, neutrino: record(neutrino, options.only), judge, table, add=_add_only,
).main  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
