"""Whether twins compute bit for bit what their originals do, on a GPU: kernels that show each changed fusion.

    python3 -m bench.rounding --out FOLDER [--budget SECONDS] [--only SUITE,SUITE] [--device embedded]

Builds the kernels of ``rounding_kernels.py`` with nvcc, with options that decide on fusions, runs them, kernels of
``tests/kernels`` and Triton's as they are and under ``neutrino`` with probes that come between products and sums, and
writes what came out, as digests, to FOLDER/rounding_h200.json, which ``rounding_verdicts`` judges. With ``--device
embedded`` the embedded device runs those of ``tests/kernels``: FOLDER/rounding_embedded.json. Exit status: 0 when every
verdict is good, 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import rounding_verdicts
from bench.programs import Finished, build_all, find_cuda_tool, run_program
from bench.road import COMMAND, ROOT, query_gpu
from bench.rounding_kernels import FAMILIES, PRELUDE, kernels
from bench.rounding_verdicts import BUILDS, CASES, LETTERS, PLAIN, TRITON, UNJUDGED
from bench.tree import made_of
from bench.verdicts import table
from neutrino.errors import TraceError
from neutrino.loader.embedded_driver import EmbeddedDevice, stand_in
from neutrino.tracing import Trace, find_traces

Json = Any

RESULT, EMBEDDED_RESULT = "rounding_h200.json", "rounding_embedded.json"
DIAGNOSTICS = "rounding_diagnostics.txt"
LARGEST_RESULT = 300 << 10
RUN_LIMIT = 80.0
PROBES = ROOT / "bench" / "probes"
FILES = ("elementwise", "floats", "matrices", "reductions", "scans", "attention", "gelu", "layernorm", "softmax")
"""How the files of tests/kernels begin whose kernels are run."""
EMBEDDED_FILES = ("floats", "gelu", "layernorm")


@dataclass
class Bench:
    """One run of the whole. folder: scratch. end: of the budget, by the monotonic clock."""

    neutrino: Sequence[str]
    folder: Path
    end: float
    embedded: bool = False
    jobs: int = 3
    result: dict[str, Json] = field(default_factory=dict)
    diagnostics: list[str] = field(default_factory=list)

    def environment(self, *, plain: bool) -> dict[str, str]:
        """Return the environment variables for a program of the bench.

        plain: it runs without Neutrino; on the embedded device (a CPU that stands in for a GPU) with that device's
        driver in front.
        """
        left_out = {"LD_AUDIT", "NEUTRINO_TRACEDIR"}
        kept = {name: value for name, value in os.environ.items() if name not in left_out}
        path = [str(ROOT), *filter(None, kept.get("PYTHONPATH", "").split(os.pathsep))]
        kept |= {"PYTHONPATH": os.pathsep.join(path), "XDG_CACHE_HOME": str(self.folder / "cache")}
        if self.embedded and plain:
            kept |= EmbeddedDevice().environment(kept)
            kept["LD_LIBRARY_PATH"] = str(stand_in().parent)
        return kept

    def run(self, name: str, argv: Sequence[str], *, plain: bool = True, limit: float = RUN_LIMIT) -> Finished:
        """Run a command, for at most ``limit`` seconds and what is left of the budget; what a failing one said is kept.

        name: of the files that take its output. plain: see ``environment``.
        """
        left = self.end - time.monotonic()
        done = run_program(argv, self.environment(plain=plain), self.folder, name, min(limit, max(left, 1.0)))
        print(f"{name:28} exit {done.status} in {done.seconds:5.1f} s", file=sys.stderr, flush=True)
        if done.status != 0:
            said = f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
            self.diagnostics.append(f"=== {name}: exit {done.status}, timed out: {done.timed_out}\n"
                                    f"{shlex.join(argv)}\n{said}")  # fmt: skip
        return done

    def build_suites(self) -> dict[str, list[Path]]:
        """Compile the random kernels with each set of nvcc's options; the images of each, by its name."""
        sources = {family: self.folder / f"{family}.cu" for family in FAMILIES}
        for family, source in sources.items():
            source.write_text(PRELUDE + "".join(kernel.source for kernel in kernels() if kernel.family == family))
        images: dict[str, list[Path]] = {}
        commands: dict[str, list[str]] = {}
        for build, options in BUILDS.items():
            (self.folder / build).mkdir()
            images[build] = [self.folder / build / f"{family}.fatbin" for family in FAMILIES]
            for image in images[build]:
                commands[f"{build}_{image.stem}"] = [
                    str(find_cuda_tool("nvcc")), "-w", "-O3", "-std=c++17", "-fatbin",
                    "-gencode", "arch=compute_90,code=[sm_90,compute_90]", *options,
                    "-o", str(image), str(sources[image.stem]),
                ]  # fmt: skip
        for name, said in build_all(commands, self.folder).items():
            self.diagnostics.append(f"=== nvcc {name}\n{said[-2000:]}")
        return images

    def suite(self, suite: str, probe: str, argv: Sequence[str]) -> Json:
        """Run a suite of kernels once, as it is or under a probe: digests of what each computed and what became of it.

        probe: its name, or one that begins with PLAIN (no probe) or UNJUDGED (copies with probes are kept even if their
        arithmetic differs). argv: the program.
        """
        name = f"{suite}_{probe or 'plain'}"
        report, traces = self.folder / f"{name}.json", self.folder / f"{name}.trace"
        argv = [*argv, "--out", str(report)]
        if not probe.startswith(PLAIN):
            neutrino = list(self.neutrino)
            if probe.startswith(UNJUDGED):
                # Not with the others' entries, nor they with these.
                cache = f"XDG_CACHE_HOME={self.folder / 'unjudged'}"
                neutrino = ["env", cache, sys.executable, "-m", "bench.rounding_unjudged"]
            device = ["--device", "embedded"] if self.embedded else []
            argv = [*neutrino, *device, "-p", _probe(probe.removeprefix(UNJUDGED)), "--tracedir", str(traces), *argv]
        done = self.run(name, argv, plain=probe.startswith(PLAIN), limit=RUN_LIMIT)
        kept: dict[str, Json] = {"suite": suite, "probe": probe, "exit": done.status, "seconds": done.seconds}
        kept["outputs"] = (_read(report) or {}).get("outputs", {})
        try:
            kept["kernels"] = [row for path in find_traces(traces) for row in _kernels(Trace(path))]
        except TraceError as error:
            if not probe.startswith(PLAIN):
                self.diagnostics.append(f"=== {name}: {error!r}")
        for path in traces.glob("*/event.log"):
            if done.status != 0:
                self.diagnostics.append(path.read_text(errors="replace")[-1500:])
        shutil.rmtree(traces, ignore_errors=True)
        return _packed(kept)

    def drive(self, only: set[str]) -> None:
        """Run every suite under each of its probes (only: these suites).

        ``result`` holds what was measured so far, also when this is interrupted.
        """
        runs = self.result["runs"] = []
        program = [sys.executable, "-m", "bench.rounding_program"]
        files = EMBEDDED_FILES if self.embedded else FILES
        commands: dict[str, list[str]] = {CASES: [*program, "--cases", ",".join(files)]}
        if not self.embedded:
            built = self.build_suites()
            # The longest first.
            commands = {
                TRITON: [sys.executable, str(ROOT / "bench" / "workloads" / "triton_once.py")],
                **{build: [*program, *map(str, images)] for build, images in built.items()},
                **commands,
            }
        wanted = [
            (suite, probe)
            for suite in commands
            for probe in rounding_verdicts.probes_of(suite, embedded=self.embedded)
            if not only or suite in only
        ]

        def keep(pair: tuple[str, str]) -> Json:
            """Run a suite under a probe: a row of the results."""
            suite, probe = pair
            return self.suite(suite, probe, commands[suite])

        # No figure is a time, and each run has a trace and memory of its own.
        with ThreadPoolExecutor(self.jobs) as pool:
            for row in pool.map(keep, wanted):
                runs.append(row)


def _read(report: Path) -> Json:
    """Read a program's report, a JSON file; None when it is not there or not whole, which the verdicts then say."""
    try:
        return json.loads(report.read_text())
    except (OSError, ValueError):
        return None


def _version(folder: Path) -> str:
    """The line in which nvcc says its release; "" when it does not."""
    done = run_program([str(find_cuda_tool("nvcc")), "--version"], os.environ, folder, "version", 30)
    return next((line.strip() for line in done.stdout.splitlines() if "release" in line), "")


def _probe(name: str) -> str:
    """Return a probe as the option ``-p`` takes it: the file in bench/probes of that name if there is one, else the
    shipped probe."""
    own = PROBES / f"{name}.toml"
    return str(own) if own.exists() else name


def _kernels(trace: Trace) -> list[tuple[str, str]]:
    """List the kernels of a trace that were launched: of each its name and what shows that its instrumented copy
    computes the same, else the reason why it has no copy."""
    rows = []
    for kernel in trace.kernels:
        launched = {reason.word for reason, count in kernel.counters.items() if count}
        if not launched:
            continue
        word = kernel.reason.word
        if word == "probed":
            manifest: Mapping[str, Json] = kernel.manifest.raw if kernel.manifest else {}
            word = (manifest.get("numerics") or {}).get("proof") or "unassembled"
            if launched != {"probed"}:
                word = "unlaunched"
        rows.append((kernel.name, word))
    return rows


def _packed(run: dict[str, Json]) -> Json:
    """Compress a run's row of the results: names in one text, digests in another, and a letter for each proof."""
    outputs, found = run.pop("outputs"), run.pop("kernels", [])
    run["names"], run["digests"] = " ".join(outputs), " ".join(outputs.values())
    run["proofs"] = " ".join(f"{LETTERS.get(word, word)}" for _, word in found)
    names = [name for name, _ in found]
    if names != list(outputs):
        run["kernels"] = " ".join(names)
    return run


def without_repeats(runs: Sequence[Json]) -> list[Json]:
    """Return rows without names and digests that are those of their suite's first row: digests become a point."""
    kept = []
    for run in runs:
        first = next(one for one in runs if one["suite"] == run["suite"])
        row = dict(run)
        if first is not run and run["names"] == first["names"]:
            del row["names"]
            pairs = zip(run["digests"].split(), first["digests"].split(), strict=True)
            row["digests"] = " ".join("." if own == known else own for own, known in pairs)
        kept.append(row)
    return kept


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench, write results and diagnostics below ``--out``, and print the verdicts.

    Returns 0 when all are good.
    """
    parser = argparse.ArgumentParser(prog="bench.rounding", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "bench/results")))
    parser.add_argument("--neutrino", default=COMMAND, help="the command that probes a program")
    parser.add_argument("--only", default="", help="names of suites, with commas between")
    parser.add_argument("--device", choices=("gpu", "embedded"), default="gpu")
    parser.add_argument("--jobs", type=int, default=8, help="runs at once")
    parser.add_argument("--budget", type=float, default=90, help="seconds for everything")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    embedded = options.device == "embedded"
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    start = time.time()
    with tempfile.TemporaryDirectory(prefix="rounding_", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "cache").mkdir(mode=0o700)
        bench = Bench(shlex.split(options.neutrino), folder, time.monotonic() + options.budget, embedded, options.jobs)
        bench.result |= {
            "device": "embedded" if embedded else query_gpu("name"),
            "driver": query_gpu("driver_version"),
            **made_of("rounding_h200"),
            "nvcc": "" if embedded else _version(folder),
            "started": int(start),
        }
        try:
            bench.drive(set(filter(None, options.only.split(","))))
        except KeyboardInterrupt:
            bench.result["interrupted"] = True
        finally:
            bench.result["seconds"] = round(time.time() - start, 1)
            bench.result["runs"] = without_repeats(bench.result.get("runs", []))
            text = json.dumps(bench.result, separators=(",", ":")).replace('{"suite"', '\n{"suite"')
            path = options.out / (EMBEDDED_RESULT if embedded else RESULT)
            path.write_text(text + "\n")
            (options.out / DIAGNOSTICS).write_text("\n".join(bench.diagnostics))
    print(f"{path}: {len(text)} bytes, {bench.result['seconds']} s")
    judged = rounding_verdicts.judge(json.loads(text))
    print(table(judged))
    return 0 if all(verdict.good for verdict in judged) and len(text) <= LARGEST_RESULT else 1


if __name__ == "__main__":
    sys.exit(main())
