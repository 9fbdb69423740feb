"""Whether twins compute bit for bit what their originals do, on a GPU: kernels that show each changed fusion.

    python3 -m bench.rounding record [--out FILE] [--only SUITE …] [--device embedded]
    python3 -m bench.rounding judge [--out FILE]                      recomputes the verdicts

Builds the kernels of ``rounding_kernels.py`` with nvcc, with options that decide on fusions, runs them, kernels of
``tests/kernels`` and Triton's as they are and under ``neutrino`` with probes that come between products and sums, and
keeps digests of what came out, which ``rounding_verdicts`` judges. With ``--device embedded`` the embedded device runs
those of ``tests/kernels``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import command_line
from bench.programs import build_all, find_cuda_tool, query_gpu, run_program
from bench.rounding_kernels import FAMILIES, PRELUDE, kernels
from bench.rounding_program import DIGITS
from bench.rounding_verdicts import BUILDS, CASES, LETTERS, PLAIN, RESULTS, TRITON, UNJUDGED, judge, probes_of
from bench.tree import ROOT, made_of
from neutrino.errors import TraceError
from neutrino.loader.embedded_driver import EmbeddedDevice, stand_in
from neutrino.tracing import Trace, find_traces

Json = Any

RUN_LIMIT = 80.0
PROBES = ROOT / "bench" / "probes"
FILES = ("elementwise", "floats", "matrices", "reductions", "scans", "attention", "gelu", "layernorm", "softmax")
"""How the files of tests/kernels begin whose kernels are run."""
EMBEDDED_FILES = ("floats", "gelu", "layernorm")


@dataclass
class Bench:
    """One run of the whole. folder: scratch."""

    neutrino: Sequence[str]
    folder: Path
    embedded: bool

    def environment(self, *, plain: bool) -> dict[str, str]:
        """Return the environment variables for a program. plain: it runs without Neutrino; on the embedded device with
        that device's driver in front."""
        left_out = {"LD_AUDIT", "NEUTRINO_TRACEDIR"}
        kept = {name: value for name, value in os.environ.items() if name not in left_out}
        path = [str(ROOT), *filter(None, kept.get("PYTHONPATH", "").split(os.pathsep))]
        kept |= {"PYTHONPATH": os.pathsep.join(path), "XDG_CACHE_HOME": str(self.folder / "cache")}
        if self.embedded and plain:
            kept |= EmbeddedDevice().environment(kept)
            kept["LD_LIBRARY_PATH"] = str(stand_in().parent)
        return kept

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
            print(f"nvcc {name}: {said[-2000:]}", file=sys.stderr)
        return images

    def suite(self, suite: str, probe: str, argv: Sequence[str]) -> Json:
        """Run a suite of kernels once, as it is or under a probe: digests of what each computed and what became of it.

        probe: its name, or one that begins with PLAIN (no probe) or UNJUDGED (copies with probes are kept even if their
        arithmetic differs). argv: the program.
        """
        name = f"{suite}_{probe}"
        report, traces = self.folder / f"{name}.json", self.folder / f"{name}.trace"
        argv = [*argv, "--out", str(report)]
        is_plain = probe.startswith(PLAIN)
        if not is_plain:
            neutrino = list(self.neutrino)
            if probe.startswith(UNJUDGED):
                # Not with the others' entries, nor they with these.
                cache = f"XDG_CACHE_HOME={self.folder / 'unjudged'}"
                neutrino = ["env", cache, sys.executable, "-m", "bench.rounding_unjudged"]
            device = ["--device", "embedded"] if self.embedded else []
            argv = [*neutrino, *device, "-p", _probe(probe.removeprefix(UNJUDGED)), "--tracedir", str(traces), *argv]
        done = run_program(argv, self.environment(plain=is_plain), self.folder, name, RUN_LIMIT)
        print(f"{name:28} exit {done.status} in {done.seconds:5.1f} s", file=sys.stderr, flush=True)
        found: list[tuple[str, str]] = []
        try:
            found = [row for path in find_traces(traces) for row in _kernels(Trace(path))]
        except TraceError as error:
            print("" if is_plain else f"{name}: {error!r}", file=sys.stderr)
        if done.status != 0:
            print(done.stdout[-3000:], done.stderr[-6000:], file=sys.stderr)
        shutil.rmtree(traces, ignore_errors=True)
        outputs = _outputs(json.loads(report.read_text())) if report.exists() else {}
        row = {
            "suite": suite, "probe": probe, "exit": done.status, "seconds": done.seconds,
            "names": " ".join(outputs), "digests": " ".join(outputs.values()),
            "proofs": " ".join(LETTERS.get(word, word) for _, word in found),
        }  # fmt: skip
        names = [name for name, _ in found]
        return row if names == list(outputs) else {**row, "kernels": " ".join(names)}


def record(neutrino: Sequence[str], only: Sequence[str], embedded: bool, jobs: int) -> Json:
    """Run every suite under each of its probes; return what came out. only: these suites. jobs: runs at once."""
    start = time.time()
    with tempfile.TemporaryDirectory(prefix="rounding_", ignore_cleanup_errors=True) as name:
        bench = Bench(neutrino, Path(name), embedded)
        (bench.folder / "cache").mkdir(mode=0o700)
        program = [sys.executable, "-m", "bench.rounding_program"]
        commands = {CASES: [*program, "--cases", ",".join(EMBEDDED_FILES if embedded else FILES)]}
        if not embedded:
            built = bench.build_suites()
            # The longest first.
            commands = {
                TRITON: [sys.executable, str(ROOT / "bench" / "workloads" / "triton_eleven.py"), "--rounds", "1"],
                **{build: [*program, *map(str, images)] for build, images in built.items()},
                **commands,
            }
        wanted = [(suite, probe) for suite in only or commands for probe in probes_of(suite, embedded=embedded)]
        # No figure is a time, and each run has a trace and memory of its own.
        with ThreadPoolExecutor(jobs) as pool:
            runs = list(pool.map(lambda pair: bench.suite(pair[0], pair[1], commands[pair[0]]), wanted))
        nvcc = "" if embedded else _version(bench.folder)
    return {
        "device": "embedded" if embedded else query_gpu("name"), "driver": query_gpu("driver_version"),
        **made_of("rounding_h200"), "nvcc": nvcc, "started": int(start), "seconds": round(time.time() - start, 1),
        "runs": without_repeats(runs),
    }  # fmt: skip


def _outputs(report: Json) -> dict[str, str]:
    """Return the digests of what the kernels wrote, by their names."""
    if "outputs" in report:
        return dict(report["outputs"])
    return {name: row["output"][:DIGITS] for name, row in report["kernels"].items()}


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


def _add_options(parser: argparse.ArgumentParser) -> None:
    """Add this bench's options to the command line."""
    parser.add_argument("--only", nargs="+", choices=(TRITON, *BUILDS, CASES), default=[], help="suites")
    parser.add_argument("--device", choices=("gpu", "embedded"), default="gpu")
    parser.add_argument("--jobs", type=int, default=8, help="runs at once")


main = command_line.Bench(
    "rounding", RESULTS, ("device", "runs"),
    lambda options, neutrino: record(neutrino, options.only, options.device == "embedded", options.jobs),
    judge, add=_add_options,
).main  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
