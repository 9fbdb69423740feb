"""Drive the road on a GPU: every workload without Neutrino and with each probe; keep what came out.

    python3 -m bench.road record [--out FILE] [--only NAME …] [--jobs N]     on a GPU, with nvcc, PyTorch and CuPy
    python3 -m bench.road judge [--out FILE]                                  recomputes the verdicts

The file has what is there so far, also while it runs. What failing runs said is on stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shlex
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.cases import (
    SUBMIT_LAUNCHES,
    SUBMIT_MODES,
    SUBMIT_PROCESSES,
    SUBMIT_REPETITIONS,
    WARM,
    WORKLOADS,
    Mode,
    Workload,
    workload,
)
from bench.command_line import Bench
from bench.programs import Finished, build, command, find_cuda_tool, query_gpu, run_program
from bench.recorded import save
from bench.road_verdicts import RESULTS, judge
from bench.tree import ROOT, made_of

Json = Any

WATCH = ROOT / "bench" / "watch"
DIGEST_DIGITS = 32
NO_PATCHER = (
    "ptx", "isa", "instrument", "scalars", "modifiers", "opcodes", "snippet", "snippet_faults", "snippet_forms",
    "snippet_helpers", "snippet_table", "snippets", "verifier", "operands", "forms", "form_table", "lowering",
)  # fmt: skip
"""Modules under a watched name that verify a probe file's snippets, which every start does; by their last name."""
MOST_IMPORTS = 5
LIMIT = 90.0
PYTHON_LIMIT = 150.0


class Road:
    """One drive. neutrino: the command in front of a program. folder: scratch."""

    def __init__(self, neutrino: Sequence[str], folder: Path) -> None:
        """Begin a drive."""
        self.neutrino = list(neutrino)
        self.folder = folder
        self.result: dict[str, Json] = {}
        self._lock = threading.Lock()
        # Two programs on one GPU take turns on its multiprocessors, and may move: no probed run shares it. Measuring
        # one run's trace beside the next one is free.
        self._device = threading.Lock()

    def environment(self, log: Path, program: str, extra: Iterable[tuple[str, str]] = ()) -> dict[str, str]:
        """Environment variables of a run, with or without Neutrino: caches of the bench's own, and watches that log
        which modules and assemblers are started.

        Runs of one program share a cache, and each run has a folder for temporary files. Neutrino imports the patcher
        ahead when the run before, with the same probes and cache, asked for twins (copies with probes), and when a
        compiler writes a cubin into that folder: of neither must another program of the bench be the cause. log: where
        the watches write. extra: further variables.
        """
        cache, temporary = self.folder / "caches" / program, self.folder / "temporary" / log.stem
        for folder in (cache, temporary):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = [str(WATCH), str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        left_out = {"LD_AUDIT", "NEUTRINO_TRACEDIR"}
        return {
            **{name: value for name, value in os.environ.items() if name not in left_out},
            "PYTHONPATH": os.pathsep.join(path),
            "XDG_CACHE_HOME": str(cache),
            "TMPDIR": str(temporary),
            "TRITON_CACHE_DIR": str(self.folder / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor"),
            "CUPY_CACHE_DIR": str(self.folder / "cupy"),
            "NEUTRINO_PTXAS": str(WATCH / "ptxas"),
            "NEUTRINO_BENCH_PTXAS": str(find_cuda_tool("ptxas")),
            "NEUTRINO_BENCH_LOG": str(log),
            **dict(extra),
        }

    def run(self, name: str, entry: Workload, mode: Mode) -> dict[str, Json]:
        """Run one workload in one mode (without Neutrino or with its probes): what it computed, printed and recorded.

        name: of the files it leaves in the scratch folder.
        """
        report, traces = self.folder / f"{name}.json", self.folder / f"{name}.trace"
        log = self.folder / f"{name}.log"
        argv = command(entry, self.folder, report)
        if mode.probes:
            options = [word for probe in mode.probes for word in ("-p", probe)]
            argv = [*self.neutrino, *options, "--tracedir", str(traces), *argv]
        limit = PYTHON_LIMIT if entry.is_python else LIMIT
        with self._device if mode.probes else contextlib.nullcontext():
            environment = self.environment(log, entry.name, entry.variables.items())
            finished = run_program(argv, environment, self.folder, name, limit)
        kept = self._summary(finished, report, log)
        if mode.probes and report.exists():
            kept["trace"] = self._measured(name, report, traces)
        failed = finished.status != 0 or "trace_error" in (kept.get("trace") or {})
        if failed or (mode.probes and "trace" not in kept):
            said = f"{finished.stdout[-1500:]}\n{finished.stderr[-4000:]}\n{kept.get('trace')}"
            print(f"{name}: {shlex.join(argv)}\n{said}", file=sys.stderr)
        shutil.rmtree(traces, ignore_errors=True)
        print(f"{name:32} exit {finished.status} in {finished.seconds:5.1f} s", file=sys.stderr, flush=True)
        return kept

    def _summary(self, finished: Finished, report: Path, log: Path) -> dict[str, Json]:
        """Summarize a run for the results: how it ended, digests of what it printed and computed, and what it started.

        That is assemblers and imports. report: its JSON file; log: what was started, written by the bench's watches.
        """
        started = log.read_text().splitlines() if log.exists() else []
        modules = {line.split()[1] for line in started if line.startswith("import ")}
        kept: dict[str, Json] = {
            "exit": finished.status,
            "timed_out": finished.timed_out,
            "seconds": finished.seconds,
            "stdout": hashlib.sha256(finished.stdout.encode()).hexdigest()[:DIGEST_DIGITS],
            "ptxas_started": sum(line.startswith("ptxas ") for line in started),
            "imported": sorted(name for name in modules if name.rpartition(".")[2] not in NO_PATCHER)[:MOST_IMPORTS],
        }
        if report.exists():
            told = json.loads(report.read_text())
            outputs = told["outputs"]
            kept |= {
                "checks": told["checks"],
                "outputs": hashlib.sha256(" ".join(outputs).encode()).hexdigest()[:DIGEST_DIGITS],
                "seeds": len(outputs),
                "distinct": len(set(outputs)),
                "launches": len(told["launches"]),
                "extra": told["extra"],
            }
            if "device" in told:
                device = {name: told[name] for name in ("device", "sm_count", "clock_khz", "driver")}
                with self._lock:
                    self.result["device"] = device
        return kept

    def _measured(self, name: str, report: Path, traces: Path) -> dict[str, Json]:
        """Let a process of its own read a run's trace into figures; ``trace_error`` with the end of what it said when
        that fails.
        """
        out = self.folder / f"{name}.measured"
        device = json.dumps(self.result.get("device", {}))
        argv = [sys.executable, "-m", "bench.measure", str(report), str(traces), device, str(out)]
        environment = self.environment(self.folder / f"{name}.measure.log", "measure")
        finished = run_program(argv, environment, self.folder, f"{name}.measure", 120)
        if finished.status == 0:
            measured: dict[str, Json] = json.loads(out.read_text())
            return measured
        return {"trace_error": finished.stderr[-400:]}

    def submit(self) -> dict[str, list[dict[str, Json]]]:
        """Measure what submitting a launch costs, in each mode by several processes, which take turns.

        Returns mode → what each process reported.
        """
        samples: dict[str, list[dict[str, Json]]] = {mode: [] for mode in SUBMIT_MODES}
        for process in range(SUBMIT_PROCESSES):
            for mode, options in SUBMIT_MODES.items():
                name = f"submit_{mode}_{process}"
                report, traces = self.folder / f"{name}.json", self.folder / f"{name}.trace"
                argv = [str(self.folder / "submit"), "--seeds", "1", "--out", str(report)]
                argv += ["--launches", str(SUBMIT_LAUNCHES), "--repetitions", str(SUBMIT_REPETITIONS)]
                if options is not None:
                    argv = [*self.neutrino, *options, "--tracedir", str(traces), *argv]
                log = self.folder / f"{name}.log"
                finished = run_program(argv, self.environment(log, "submit"), self.folder, name, 60)
                kept = self._summary(finished, report, log)
                if options is not None and report.exists():
                    measured = self._measured(name, report, traces)
                    kept["trace"] = {key: measured[key] for key in ("kernels", "trace_error") if key in measured}
                shutil.rmtree(traces, ignore_errors=True)
                samples[mode].append(kept)
        return samples

    def drive(self, workloads: Sequence[Workload], jobs: int, keep_so_far: Callable[[Json], None]) -> None:
        """Run all workloads in all modes, plain ones ``jobs`` at once. keep_so_far: takes what there is after each."""
        self.result |= {
            **made_of("road_h200"), "driver": query_gpu("driver_version"), "gpu": query_gpu("name"),
            "max_sm_mhz": query_gpu("clocks.max.sm"), "started": int(time.time()),
            "build_failures": build(self.folder, workloads), "runs": {entry.name: {} for entry in workloads},
            "warm": {}, "submit": {},
        }  # fmt: skip
        tasks = [(entry, mode) for mode in Mode for entry in workloads if mode in entry.modes]

        def keep(task: tuple[Workload, Mode]) -> None:
            """Run a workload in a mode (a pair of both, task), and keep what came out in the results."""
            entry, mode = task
            kept = self.run(f"{entry.name}_{mode.value}", entry, mode)
            with self._lock:
                self.result["runs"][entry.name][mode.value] = kept

        # Each mode's runs together: a workload's plain run comes before its probed ones, which compare with
        # it.
        for mode in Mode:
            with ThreadPoolExecutor(jobs) as pool:
                list(pool.map(keep, [task for task in tasks if task[1] is mode and not task[0].alone]))
            keep_so_far(self.result)
        for task in tasks:
            if task[0].alone:
                keep(task)
        names = {entry.name for entry in workloads}
        for name in WARM:
            if name in names:
                self.result["warm"][name] = self.run(f"{name}_warm", workload(name), Mode.BLOCK_SCHED)
        self.result["submit"] = self.submit()


def record(options: argparse.Namespace, neutrino: Sequence[str]) -> Json:
    """Run the workloads that the options name, and return what came out."""
    chosen = [entry for entry in WORKLOADS if not options.only or entry.name in options.only]
    start = time.time()
    with tempfile.TemporaryDirectory(prefix="road_", ignore_cleanup_errors=True) as folder:
        road = Road(neutrino, Path(folder))
        road.drive(chosen, options.jobs, lambda result: save(options.out, result))
        return road.result | {"seconds": round(time.time() - start, 1)}


def _add_options(parser: argparse.ArgumentParser) -> None:
    """Add this bench's options to the command line."""
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="workloads; all by default")
    parser.add_argument("--jobs", type=int, default=3, help="plain runs at once, and traces measured beside runs")


main = Bench("road", RESULTS, ("device", "runs"), record, judge, add=_add_options).main


if __name__ == "__main__":
    sys.exit(main())
