"""Whether ``neutrino --benchmark`` says of kernels what timing them apart says, on a GPU.

    python3 -m bench.benchmark_option record [--out FILE] [--rounds N]    runs `workloads/timed.cu` in three ways
    python3 -m bench.benchmark_option judge [--out FILE]                  recomputes the table and the verdicts

The six kernels of ``bench.slowdown`` run plain, with a probe, and with the probe and ``--benchmark``, in turns; they
time themselves in each way, by events around each launch. The first two give the slowdown as ``bench.slowdown`` takes
it, the third that of the option. The verdicts hold that outputs were the same, that each launch was drawn and timed,
half of them with the probe, and that both slowdowns of each kernel differ by at most two points. Exit status: 0 all
good, 1 a verdict is not, 2 the file cannot be judged.
"""

from __future__ import annotations

import json
import os
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.command_line import Bench
from bench.programs import SOURCES, build_command, run_program
from bench.road import ROOT, query_gpu
from bench.slowdown import FEWEST, KERNELS, MOST_TIMES
from bench.tree import made_of
from bench.verdicts import Verdict, need, run_checks
from neutrino.tracing import Trace, find_traces

Json = Any

RESULTS = ROOT / "bench" / "results" / "benchmark_option_h200.json"
PROBES = tuple(MOST_TIMES)
"""Those that record little: of others not every launch is probed."""
MOST_APART = 0.02
"""How much both slowdowns may differ: two points."""
PLAIN, PROBED, DRAWN = "plain", "probed", "drawn"
_TIMED = 60
_LAUNCHES = _TIMED + 2
_LIMIT = 120.0


def record(neutrino: Sequence[str], rounds: int) -> Json:
    """Run the timed program on the GPU, plain and under each probe in each way; return the raw samples.

    Way → one report of the program a process, for each probe but plain; with ``--benchmark`` also what the trace has of
    each kernel. SystemExit: a program could not be built or run.
    """
    start = time.time()
    results: Json = {
        "device": query_gpu("name"), "driver": query_gpu("driver_version"), **made_of("benchmark_option_h200"),
        "started": int(start),
    }  # fmt: skip
    plain: list[Json] = []
    probes: dict[str, dict[str, list[Json]]] = {probe: {PROBED: [], DRAWN: []} for probe in PROBES}
    with tempfile.TemporaryDirectory(prefix="benchmark_", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        program = folder / "timed"
        _run(build_command(SOURCES / "timed.cu", program), dict(os.environ), folder, "build")
        for number in range(rounds + 1):
            report = _once([], program, folder, f"plain_{number}")
            # The first round fills the cache of twins.
            plain += [report] if number else []
            for probe, ways in probes.items():
                for way, option in ((PROBED, []), (DRAWN, ["--benchmark"])):
                    traces = folder / f"{probe}_{way}_{number}_traces"
                    before = [*neutrino, "-q", *option, "-p", probe, "--tracedir", str(traces)]
                    report = _once(before, program, folder, f"{probe}_{way}_{number}")
                    if way == DRAWN:
                        report["benchmark"] = _measured(traces)
                    ways[way] += [report] if number else []
    return results | {"seconds": round(time.time() - start, 1), "plain": plain, "probes": probes}


def _once(before: Sequence[str], program: Path, folder: Path, name: str) -> Json:
    """Run the timed program in one process and return its report, a JSON object. before: a command before it, as
    ``neutrino``.

    name: of the run.
    """
    report = folder / f"{name}.json"
    argv = [*before, str(program), "--rounds", str(_TIMED), "--out", str(report)]
    _run(argv, {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}, folder, name)
    found: Json = json.loads(report.read_text())
    return found


def _measured(folder: Path) -> Json:
    """What ``--benchmark`` wrote into the one trace below a folder: for each kernel the nanoseconds of its launches
    with and without the probe. Raises SystemExit when nothing was timed.
    """
    (path,) = find_traces(folder)
    trace = Trace(path)
    found = trace.benchmark
    if found is None:
        raise SystemExit(f"{path}: nothing was timed")
    names = {kernel.id: kernel.name for kernel in trace.kernels}
    return {
        "floor": found.floor_ns,
        "untimed": found.untimed,
        "kernels": {
            names[group.kernel]: {
                "originals": group.originals.tolist(), "probed": group.probed.tolist(), "warm_up": group.warm_up,
                "verdict": group.verdict,
            }
            for group in found.groups if group.kernel is not None
        },
    }  # fmt: skip


def _run(argv: Sequence[str], environment: dict[str, str], folder: Path, name: str) -> None:
    """Run a command within _LIMIT seconds.

    name: of the files that take its output. Raises SystemExit with the end of it when it fails.
    """
    done = run_program(argv, environment, folder, name, _LIMIT)
    if done.status != 0:
        raise SystemExit(f"{shlex.join(argv)}: exit status {done.status}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def slowdown_apart(results: Json, probe: str, kernel: str) -> float:
    """Return how many times as long a kernel takes with a probe as without, timed in separate processes; by medians."""
    plain, probed = (
        statistics.median(ms for run in runs for ms in run["kernels"][kernel]["ms"])
        for runs in (results["plain"], results["probes"][probe][PROBED])
    )
    return float(probed / plain)


def slowdown_drawn(results: Json, probe: str, kernel: str) -> float:
    """Return how many times as long a kernel takes with a probe as without, as ``--benchmark`` timed it in one process;
    by medians.

    It draws by lot which launches run with the probe.
    """
    original, probed = (
        statistics.median(
            ns for run in results["probes"][probe][DRAWN] for ns in run["benchmark"]["kernels"][kernel][side]
        )
        for side in ("originals", "probed")
    )
    return float(probed / original)


def judge(results: Json) -> list[Verdict]:
    """Check the recorded runs; return a verdict (good or bad, with a line of figures) on each of three checks for each
    probe."""
    plain = results["plain"] or [{"kernels": {}}]
    outputs = {name: row["output"] for name, row in plain[0]["kernels"].items()}
    checks = [("plain: outputs", partial(_outputs, results["plain"], outputs))]
    for probe in PROBES:
        ways = results["probes"].get(probe, {PROBED: [], DRAWN: []})
        checks += [
            (f"{probe}: outputs", partial(_outputs, [*ways[PROBED], *ways[DRAWN]], outputs)),
            (f"{probe}: draws", partial(_draws, ways[DRAWN])),
            (f"{probe}: slowdowns", partial(_slowdowns, results, probe)),
        ]
    return run_checks(checks)


def _outputs(runs: Sequence[Json], outputs: dict[str, str]) -> str:
    """Check that all runs of the program computed the same as the first plain one, and timed every launch.

    outputs: digests by kernel. runs: what processes reported. Returns a line of figures; raises BrokenError (by
    ``need``).
    """
    need(len(runs) >= FEWEST, f"{len(runs)} processes, expected {FEWEST} or more")
    need(tuple(outputs) == KERNELS, f"kernels of the plain run are {', '.join(outputs) or 'none'}")
    for run in runs:
        changed = [name for name in KERNELS if run["kernels"].get(name, {}).get("output") != outputs[name]]
        need(not changed, f"other outputs of {', '.join(changed)}")
        few = [name for name in KERNELS if len(run["kernels"][name]["ms"]) != _TIMED]
        need(not few, f"not {_TIMED} times of {', '.join(few)}")
    return f"{len(runs)} processes, {len(outputs)} kernels, as in the first plain one"


def _draws(runs: Sequence[Json]) -> str:
    """Check that ``--benchmark`` timed each launch, half of them with the probe.

    runs: what processes reported. Returns a line of figures; raises BrokenError.
    """
    need(bool(runs), "no runs")
    half = (_LAUNCHES - 2) // 2
    for run in runs:
        found = run["benchmark"]
        need(found["untimed"] == 0, f"{found['untimed']} launches were not timed")
        for name in KERNELS:
            row = found["kernels"].get(name, {"originals": [], "probed": [], "warm_up": 0})
            counts = len(row["originals"]), len(row["probed"]), row["warm_up"]
            need(counts == (half, half, 2), f"{name}: original, probed, warm-up: {counts}, expected {(half, half, 2)}")
    floors = [run["benchmark"]["floor"] / 1000 for run in runs]
    return f"{half} launches of each kernel without and with the probe; floor {min(floors):.1f} to {max(floors):.1f} µs"


def _slowdowns(results: Json, probe: str) -> str:
    """Check that ``--benchmark`` and separate processes agree on each kernel's slowdown, to MOST_APART.

    Returns a line of figures; raises BrokenError.
    """
    off = {name: slowdown_drawn(results, probe, name) - slowdown_apart(results, probe, name) for name in KERNELS}
    name, most = max(off.items(), key=lambda entry: abs(entry[1]))
    need(
        abs(most) <= MOST_APART,
        f"{name}: {slowdown_drawn(results, probe, name):.3f} by --benchmark, "
        f"{slowdown_apart(results, probe, name):.3f} apart; {MOST_APART} may be between",
    )
    return f"at most {abs(most):.3f} apart ({name}), {MOST_APART} may be"


def table(results: Json) -> str:
    """Return a table for people: the slowdown of each kernel under each probe by ``--benchmark`` and, after a slash, by
    processes."""
    lines = [f"{results['device']}, driver {results['driver']}"]
    lines.append(f"{'':18}" + "".join(f"{name:>15}" for name in KERNELS))
    for probe in results["probes"]:
        both = [(slowdown_drawn(results, probe, name), slowdown_apart(results, probe, name)) for name in KERNELS]
        words = [f"{by_option:.3f}/{by_processes:.3f}" for by_option, by_processes in both]
        lines.append(f"{probe:18}" + "".join(f"{word:>15}" for word in words))
    return "\n".join(lines)


main = Bench(
    "benchmark_option", RESULTS, ("device", "driver", "plain", "probes"),
    lambda options, neutrino: record(neutrino, options.rounds), judge, table, FEWEST,
).main  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
