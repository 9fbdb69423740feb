"""What each shipped probe costs on kernels that hurt, measured in one run by ``neutrino --benchmark``, on a GPU.

    python3 -m bench.prices record [--out FILE] [--rounds N] [--probes PROBE …] [--sizes SIZE …] [--caches FOLDER]
                                                                                  on a GPU, with Triton
    python3 -m bench.prices judge [--out FILE]                                    recomputes table and verdicts

``workloads/triton_prices.py`` has the kernels and their sizes, fixed before anything was measured. Of each launch
either the original or the twin runs, drawn at random; so a clock that changes meets both alike. ``PLAIN`` compares
every other launch of the originals with those between: what is left is noise. Kernels and twins are made beforehand,
several at a time, and each probe is then measured alone. ``record`` adds to a file of the same tree, rounds and sizes,
so that probes can be measured one after another. The verdicts hold that every launch gave the same bits, and what
probes cost (``LIMITS``).
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.command_line import Bench
from bench.programs import Finished, query_gpu, run_program
from bench.tree import ROOT, made_of
from bench.verdicts import Missed, Verdict, need, run_checks
from neutrino.abi.benchmark_file import SampleKind
from neutrino.resources import shipped_probes
from neutrino.tracing import find_traces
from neutrino.tracing.trace import Trace

Json = Any

RESULTS = ROOT / "bench" / "results" / "prices_h200.json"
PROGRAM = ROOT / "bench" / "workloads" / "triton_prices.py"
PLAIN = "plain"
SIZES = ("quarter", "usual", "large")
VARIANTS = ("transposed", "odd", "fp32")
KERNELS = (
    "gemm", "streamk_gemm", "conv", "grouped_gemm", "attention", "layernorm", "softmax", "total", "pool", "embedding",
    "gather",
    *(f"{name}_{variant}" for name in ("softmax", "layernorm", "embedding", "rotary") for variant in VARIANTS),
)  # fmt: skip
"""Those of the program, in its order."""
FUNCTIONS = frozenset((
    *KERNELS[:11], "row_softmax", "row_layernorm", "row_embedding", "rotary",
))  # fmt: skip
"""Names of their functions, in traces."""
_UNTIMED = 2
_DIGITS = 16
"""Of an output's digest."""
_AT_ONCE = 8
"""Processes that make kernels and twins: their tensors share the GPU's memory."""
LONG_US = 50.0
"""Limits of ratios are for kernels that take so long without a probe; of shorter ones, for microseconds added."""
_LIMIT = 400.0


@dataclass(frozen=True)
class Limit:
    """What a probe may cost. mean, each: times as long, kernels of ``LONG_US``. added: microseconds, shorter ones."""

    mean: float
    each: float
    added: float = 1.0


_LIGHT = Limit(1.01, 1.05, 0.3)
_COUNTING = Limit(1.05, 1.12)
_OTHER = Limit(1.5, 2.5)
LIMITS: Mapping[str, Limit] = {
    "block_sched": _LIGHT, "gmem_bytes": _LIGHT, "tensorop": _LIGHT, "branch_divergence": _LIGHT,
    "inst_count": _COUNTING, "opcode_mix": _COUNTING, "work_per_warp": _COUNTING,
    "barrier_wait": Limit(1.15, 1.3), "latency": Limit(1.3, 1.8), "value_watch": Limit(1.2, 2.0),
    "nan_finder": Limit(1.15, 2.0), "coalescing": Limit(1.8, 3.0), "hot_lines": Limit(1.5, 4.0),
    "smem_bank_conflict": _OTHER, "reuse_distance": _OTHER, "atomic_contention": _OTHER, "program_progress": _OTHER,
    "dmat": Limit(2.0, 3.5), "launch_skew": _LIGHT, "warp_timeline": _OTHER,
}  # fmt: skip
"""By the probe: what is wanted."""
COMPLETE = frozenset({"dmat"})
"""Probes that record every access: nothing may be dropped."""
LOGGING = COMPLETE | {"program_progress"}
"""Probes with large logs: with a large pool, and fewer launches, as a full log does not cost what recording does."""


def record(
    neutrino: Sequence[str], rounds: int, probes: Sequence[str], sizes: Sequence[str], caches: Path | None, out: Path
) -> Json:
    """Run the program once with each probe under ``--benchmark``; return medians by probe, kernel and size.

    rounds: launches of each kernel, half of them without the probe. caches: where kernels and twins are kept, a folder
    of this run alone by default. out: what it has of the same tree, rounds and sizes stays. A probe whose run fails has
    its ``error``, and the others go on.
    """
    start = time.time()
    results: Json = {
        "device": query_gpu("name"), "driver": query_gpu("driver_version"), **made_of("prices_h200"),
        "started": int(start), "seconds": 0.0, "rounds": rounds, "sizes": list(sizes), "runs": {},
    }  # fmt: skip
    if out.exists():
        earlier = json.loads(out.read_text())
        if all(earlier.get(key) == results[key] for key in ("device", "files", "rounds", "sizes")):
            results |= {key: earlier[key] for key in ("started", "seconds", "runs")}
    with tempfile.TemporaryDirectory(prefix="prices_", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        _make(neutrino, probes, sizes, folder, caches or folder)
        print(f"made in {time.time() - start:.1f} s", file=sys.stderr)
        for probe in probes:
            results["runs"][probe] = _run(neutrino, probe, rounds, sizes, folder, caches or folder)
            print(f"{probe}: {results['runs'][probe]['seconds']} s {results['runs'][probe].get('error', '')}",
                  file=sys.stderr)  # fmt: skip
    results["seconds"] = round(results["seconds"] + time.time() - start, 1)
    return results


def _make(neutrino: Sequence[str], probes: Sequence[str], sizes: Sequence[str], folder: Path, caches: Path) -> None:
    """Fill the caches of Triton and of twins. All sizes of a kernel are one text, so the first one is launched.

    What fails here fails again when it is measured, and is said there.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        plain = [KERNELS[number::_AT_ONCE] for number in range(_AT_ONCE)]
        list(pool.map(lambda kernels: _launch(
            [], f"make_{kernels[0]}", ["--rounds", "0", "--kernels", *kernels, "--sizes", sizes[0]], folder, caches,
        ), plain))  # fmt: skip
        list(pool.map(lambda probe: _launch(
            _under(neutrino, probe, folder / f"make_{probe}"), f"make_{probe}", ["--rounds", "0", "--sizes", sizes[0]],
            folder, caches,
        ), probes))  # fmt: skip


def _under(neutrino: Sequence[str], probe: str, traces: Path) -> list[str]:
    """The command that probes these kernels, and none of PyTorch's, in front of the program."""
    room = ["--max-device-memory", "24G", "--max-trace-size", "12G"] if probe in LOGGING else []
    ours = f"/^(?:{'|'.join(sorted(FUNCTIONS))})$/"
    return [*neutrino, "-q", "--benchmark", "-p", probe, "-k", ours, *room, "--tracedir", str(traces)]


def _launch(
    under: Sequence[str], name: str, options: Sequence[str], folder: Path, caches: Path
) -> tuple[Finished, str]:
    """Run the program under a command, its report in NAME.json in ``folder``. Returns how it ended, and its words."""
    argv = [*under, sys.executable, str(PROGRAM), *options, "--out", str(folder / f"{name}.json")]
    kept = {"XDG_CACHE_HOME": str(caches / "cache"), "TRITON_CACHE_DIR": str(caches / "triton")}
    return run_program(argv, {**os.environ, **kept}, folder, name, _LIMIT), shlex.join(argv)


def _run(
    neutrino: Sequence[str], probe: str, rounds: int, sizes: Sequence[str], folder: Path, caches: Path
) -> Json:
    """Run the program once with a probe: rows by kernel and size, or an error."""
    traces = folder / probe
    rounds = max(8, rounds // 2) if probe in LOGGING else rounds
    # So that a launch seldom waits for the memory of earlier ones, while the GPU gets idle.
    pause = ["--pause", "0.05"] if probe in LOGGING else []
    done, words = _launch(
        _under(neutrino, probe, traces), probe, ["--rounds", str(rounds), *pause, "--sizes", *sizes], folder, caches
    )
    try:
        if done.status != 0:
            return {"seconds": done.seconds, "error": f"{words}: exit status {done.status}: {done.stderr[-600:]}"}
        rows = json.loads((folder / f"{probe}.json").read_text())["kernels"]
        return {"seconds": done.seconds, **_measured(traces, rows)}
    finally:
        shutil.rmtree(traces, ignore_errors=True)


def _measured(traces: Path, rows: Mapping[str, Json]) -> Json:
    """Give each row the samples of the trace that were submitted while it ran.

    A row without samples had nothing to probe; launches for which a log had no room have none.
    """
    (path,) = find_traces(traces)
    trace = Trace(path)
    benchmark = trace.benchmark
    if benchmark is None:
        return {"error": "the trace has no benchmark"}
    ours = [kernel.id for kernel in trace.kernels if kernel.name in FUNCTIONS]
    samples = benchmark.samples[benchmark.samples["kind"] <= SampleKind.PROBED]
    samples = samples[np.isin(samples["kernel"], ours)]
    found = {
        row: {
            **summary(samples, *report["submitted_ns"]),
            "output": " ".join(digest[:_DIGITS] for digest in report["output"].split()),
        }
        for row, report in rows.items()
    }
    lost = len(samples) - sum(int(_between(samples, *report["submitted_ns"]).sum()) for report in rows.values())
    if lost:
        return {"error": f"{lost} samples belong to no row", "rows": found}
    views = [view for kernel in trace.kernels for launch in kernel.launches() for view in launch.maps.values()]
    return {"rows": found, "dropped": sum(int(view.dropped) for view in views)}


def summary(samples: np.ndarray[Any, Any], begin: int, end: int) -> dict[str, Json]:
    """Return medians and numbers of the samples submitted from ``begin`` to ``end`` (ns), without the first ones.

    Nothing where there are no more than those: ``_UNTIMED``.
    """
    part = samples[_between(samples, begin, end)]
    part = part[np.argsort(part["submit_ns"], kind="stable")][_UNTIMED:]
    if not len(part):
        return {}
    sides = [part["elapsed_ns"][part["kind"] == kind].tolist() for kind in (SampleKind.ORIGINAL, SampleKind.PROBED)]
    return {
        "ns": [_median(side) for side in sides], "launches": [len(side) for side in sides],
        "halves": [_median(sides[0][::2]), _median(sides[0][1::2])],
    }  # fmt: skip


def _between(samples: np.ndarray[Any, Any], begin: int, end: int) -> np.ndarray[Any, Any]:
    """Which samples were submitted from ``begin`` to ``end`` (ns)."""
    return np.asarray((samples["submit_ns"] >= begin) & (samples["submit_ns"] <= end))


def _median(values: Sequence[float]) -> float:
    """The median, 0 of nothing."""
    return float(np.median(values)) if len(values) else 0.0


def ratios(results: Json, probe: str, least_us: float = 0.0) -> dict[str, float]:
    """Return by row how many times as long it takes with a probe, of rows of so many microseconds without it."""
    rows = _probed(results, probe)
    return {name: row["ns"][1] / row["ns"][0] for name, row in rows.items() if row["ns"][0] >= 1e3 * least_us}


def _probed(results: Json, probe: str) -> dict[str, Json]:
    """The rows of a probe in which there was something to probe."""
    rows = results["runs"][probe].get("rows", {})
    return {name: row for name, row in rows.items() if row.get("ns", (0,))[0]}


def judge(results: Json) -> list[Verdict]:
    """Check the recorded runs; return a verdict, good or bad, on each check, for the table that people read."""
    runs = results["runs"]
    outputs: dict[str, str] = {}
    for run in runs.values():
        for name, row in run.get("rows", {}).items():
            outputs.setdefault(name, row["output"])
    found = run_checks([("every shipped probe", partial(_all_probes, runs))])
    for probe in runs:
        checks = [("outputs", partial(_outputs, results, probe, outputs)), ("times", partial(_times, results, probe))]
        found += run_checks([(f"{probe}: {title}", check) for title, check in checks])
    return found


def _all_probes(runs: Mapping[str, Json]) -> str:
    """Check that every probe that is shipped was measured, and has limits."""
    shipped = set(shipped_probes())
    need(set(LIMITS) == shipped, f"limits of {sorted(set(LIMITS) ^ shipped)} or no such probe")
    missing = sorted(shipped - set(runs))
    said = f"{len(runs)} probes"
    return Missed(f"{said}; not measured: {', '.join(missing)}") if missing else said


def _outputs(results: Json, probe: str, outputs: Mapping[str, str]) -> str:
    """Check that all launches of each kernel, probed or not, gave the same bits."""
    run = results["runs"][probe]
    need("error" not in run, str(run.get("error")))
    expected = [f"{name} {size}" for size in results["sizes"] for name in KERNELS]
    need(list(run["rows"]) == expected, f"{len(run['rows'])} rows, {len(expected)} are wanted")
    varied = [name for name, row in run["rows"].items() if " " in row["output"] or row["output"] != outputs[name]]
    need(not varied, f"launches of {', '.join(varied)} gave several outputs")
    few = [name for name, row in _probed(results, probe).items() if min(row["launches"]) < 3]
    need(not few, f"fewer than 3 launches with or without the probe: {', '.join(few)}")
    need(probe not in COMPLETE or not run["dropped"], f"{run['dropped']} records were dropped")
    return f"{len(expected)} kernels, {len(_probed(results, probe))} of them probed, the same bits with and without"


def _times(results: Json, probe: str) -> str:
    """Check what a probe costs; a ``Missed`` where more than is wanted."""
    run, limit = results["runs"][probe], LIMITS[probe]
    need("error" not in run and bool(run.get("rows")), "no rows")
    long = ratios(results, probe, LONG_US)
    need(bool(long), f"no kernel takes {LONG_US:g} µs")
    mean = statistics.fmean(long.values())
    worst, most = max(long.items(), key=lambda entry: entry[1])
    rows = _probed(results, probe)
    added = {name: (row["ns"][1] - row["ns"][0]) / 1e3 for name, row in rows.items() if name not in long}
    slowest, longest = max(added.items(), key=lambda entry: entry[1], default=("none", 0.0))
    missed = [text for broken, text in (
        (mean > limit.mean, f"mean {limit.mean:g}"), (most > limit.each, f"each {limit.each:g}"),
        (longest > limit.added, f"+{limit.added:g} µs")) if broken]  # fmt: skip
    said = f"mean {mean:.3f}, at most {most:.2f} ({worst}); short ones +{longest:.1f} µs at most ({slowest})"
    return Missed(f"{said}; wanted: {', '.join(missed)}") if missed else said


def table(results: Json) -> str:
    """Return a table for people: by probe the mean and the worst ratio of long kernels, and by size the mean of all."""
    runs = results["runs"]
    sizes = "".join(f"{size:>9}" for size in results["sizes"])
    lines = [f"{results['device']}, driver {results['driver']}",
             f"{'':20}{'mean':>8}{'worst':>8}  {'worst kernel':26}{sizes}"]  # fmt: skip
    halves = [row["halves"] for probe in runs for row in _probed(results, probe).values() if all(row["halves"])]
    if halves:
        noise = [max(one, two) / min(one, two) for one, two in halves]
        lines.append(f"{PLAIN + ' against plain':20}{statistics.fmean(noise):8.3f}{max(noise):8.2f}")
    for probe in runs:
        long = ratios(results, probe, LONG_US)
        if not long:
            continue
        worst, most = max(long.items(), key=lambda entry: entry[1])
        every = ratios(results, probe)
        of_size = [[ratio for name, ratio in every.items() if name.endswith(f" {size}")] for size in results["sizes"]]
        means = [statistics.fmean(values) if values else float("nan") for values in of_size]
        lines.append(f"{probe:20}{statistics.fmean(long.values()):8.3f}{most:8.2f}  {worst:26}"
                     + "".join(f"{mean:9.3f}" for mean in means))  # fmt: skip
    return "\n".join(lines)


def page_table(results: Json) -> str:
    """Return the prices as a table of docs/library.md, a row for each probe that was measured."""
    lines = [f"{results['device']}, driver {results['driver']}:", "",
             "| probe | in the mean | at most | where | adds µs | at most |",
             "| --- | ---: | ---: | --- | ---: | ---: |"]  # fmt: skip
    for probe in sorted(results["runs"]):
        rows, long = _probed(results, probe), ratios(results, probe, LONG_US)
        added = sorted((row["ns"][1] - row["ns"][0]) / 1e3 for name, row in rows.items() if name not in long)
        worst, most = max(long.items(), key=lambda entry: entry[1], default=("", 0.0))
        of_long = [f"{statistics.fmean(long.values()):.2f}", f"{most:.2f}", worst] if long else ["-", "-", ""]
        of_short = [f"{statistics.median(added):.1f}", f"{added[-1]:.1f}"] if added else ["-", "-"]
        lines.append(f"| `{probe}` | {' | '.join([*of_long, *of_short])} |")
    return "\n".join(lines) + "\n"


def _add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of what is measured to the command line."""
    parser.add_argument("--probes", nargs="+", choices=LIMITS, default=list(LIMITS), help="all by default")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES), help="all by default")
    parser.add_argument("--caches", type=Path, help="keep kernels and twins in this folder, for the next time")


main = Bench(
    "prices", RESULTS, ("device", "driver", "runs"),
    lambda options, neutrino: record(
        neutrino, options.rounds, options.probes, options.sizes, options.caches, options.out
    ), judge, table, 16, _add_options,
).main  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
