"""Tracepoints inside functions and at source lines, and instructions between lanes, on a GPU.

    python3 -m bench.placed --out FOLDER [--budget SECONDS] [--only CASE,CASE] [--device embedded]

Builds ``workloads/placed.cu`` with nvcc, runs every case of ``placed_model`` as it is and under ``neutrino`` with its
probes, and writes what the probes recorded, raw, to FOLDER/placed_h200.json, which ``placed_verdicts`` judges. With
``--device embedded`` clang compiles it, and the embedded device runs it: FOLDER/placed_embedded.json. Exit status: 0
when every verdict is good, 1 otherwise.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench import placed_verdicts
from bench.placed_model import SOURCE, Case, cases
from bench.programs import Finished, find_cuda_tool, run_program
from bench.road import COMMAND, ROOT, query_gpu
from bench.tree import made_of
from bench.verdicts import table
from neutrino.errors import TraceError
from neutrino.loader.embedded_driver import EmbeddedDevice, stand_in
from neutrino.maps.registry import SUM
from neutrino.tracing import MapView, Trace, find_traces

Json = Any

RESULT, EMBEDDED_RESULT = "placed_h200.json", "placed_embedded.json"
DIAGNOSTICS = "placed_diagnostics.txt"
LARGEST_RESULT = 300 << 10
PROGRAM = ROOT / "bench" / "workloads" / "placed.py"
PROBES = ROOT / "bench" / "probes"
_GPU = ("-gencode", "arch=compute_90,code=[sm_90,compute_90]")
BUILDS: Mapping[str, tuple[str, ...]] = {
    "usual": _GPU,
    "less": (*_GPU, "-Xptxas", "-O1"),
    "ptx": ("-gencode", "arch=compute_90,code=compute_90"),
}
"""Options of nvcc: as one would, with less optimisation, and without machine code, which leaves it to the driver."""
_CLANG = (
    "clang-19", "-x", "cuda", "--cuda-device-only", "-nocudainc", "-nocudalib", "-Wno-unknown-cuda-version", "-Werror",
    "-S", "-O2", "--cuda-gpu-arch=sm_80", "--cuda-feature=+ptx80", "-gline-tables-only",
)  # fmt: skip
BUILD_LIMIT, RUN_LIMIT = 90.0, 60.0


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

    def build(self) -> dict[str, Path]:
        """Compile the kernels in every way that is asked about; the images that the program loads, by the
        build's name.
        """
        images = {name: self.folder / f"{name}.fatbin" for name in BUILDS}
        if self.embedded:
            images = {"usual": self.folder / "placed.ptx"}
            commands = {"usual": [*_CLANG, str(SOURCE), "-o", str(images["usual"])]}
        else:
            nvcc = [str(find_cuda_tool("nvcc")), "-O3", "-lineinfo", "-fatbin", str(SOURCE)]
            commands = {name: [*nvcc, *BUILDS[name], "-o", str(image)] for name, image in images.items()}
        with ThreadPoolExecutor(len(commands)) as pool:
            list(pool.map(lambda name: self.run(f"build_{name}", commands[name], limit=BUILD_LIMIT), commands))
        return images

    def probed(self, name: str, probes: str, argv: Sequence[str]) -> Json:
        """Run a program under ``neutrino``; return its exit status and, raw, all that its traces hold.

        probes: a file in bench/probes, "" for none.
        """
        traces = self.folder / f"{name}.trace"
        device = ["--device", "embedded"] if self.embedded else []
        options = ["-p", str(PROBES / f"{probes}.toml")] if probes else []
        argv = [*self.neutrino, *device, *options, "--tracedir", str(traces), *argv]
        done = self.run(name, argv, plain=False)
        kept: dict[str, Json] = {"exit": done.status, "seconds": done.seconds}
        try:
            kept["traces"] = [_trace(Trace(path)) for path in find_traces(traces)]
        except TraceError as error:
            self.diagnostics.append(f"=== {name}: {error!r}")
            kept["traces"] = []
        for path in traces.glob("*/event.log"):
            if done.status != 0:
                self.diagnostics.append(path.read_text(errors="replace")[-3000:])
        shutil.rmtree(traces, ignore_errors=True)
        return kept

    def drive(self, only: set[str]) -> None:
        """Run all cases (only: these), plain and probed.

        ``result`` holds what was measured so far, also when this is interrupted.
        """
        images = self.build()
        program = [sys.executable, str(PROGRAM), "--image"]
        usual = [*program, str(images["usual"])]
        contexts = ["--contexts", "--child"]
        kept = self.result["runs"] = {}
        chosen = [case for case in cases(embedded=self.embedded) if not only or case.name in only]
        words = [word for case in chosen for word in ("--case", case.name)]
        report, child = self.folder / "plain.json", self.folder / "child.json"
        self.run("plain", [*usual, *words, "--out", str(report)])
        self.result["plain"] = _read(report)

        def keep(case: Case) -> None:
            """Run one case under its probes, and keep what was recorded and what the program reported."""
            report = self.folder / f"{case.name}.json"
            argv = [*program, str(images[case.build]), "--case", case.name, "--out", str(report)]
            kept[case.name] = self.probed(case.name, case.probes, argv) | {"program": _read(report)}

        # No figure is a time, and each run has a cache entry, a trace and memory of its own.
        with ThreadPoolExecutor(self.jobs) as pool:
            list(pool.map(keep, chosen))
        if not only or "contexts" in only:
            report = self.folder / "contexts_plain.json"
            self.run("contexts_plain", [*usual, *contexts, str(child), "--out", str(report)])
            self.result["contexts_plain"] = {"program": _read(report), "child": _read(child)}
            child.unlink(missing_ok=True)
            report = self.folder / "contexts.json"
            argv = [*usual, *contexts, str(child), "--out", str(report)]
            kept["contexts"] = self.probed("contexts", "placed_counts", argv)
            kept["contexts"] |= {"program": _read(report), "child": _read(child)}
        if not self.embedded and (not only or "linked" in only):
            self.result["linked"] = self.linked()

    def linked(self) -> Json:
        """Run a program of two translation units linked by nvlink in three ways: as it is, under ``neutrino``, and
        patched ahead of time."""
        program, patched = self.folder / "linked", self.folder / "patched" / "linked"
        patched.parent.mkdir()
        sources = [str(SOURCE.parent / name) for name in ("linked.cu", "linked_part.cu")]
        nvcc = [str(find_cuda_tool("nvcc")), "-O3", "-std=c++17", *_GPU, "-rdc=true", "-o", str(program), *sources]
        self.run("linked_build", [*nvcc, "-cudart", "static", "-ldl", "-lpthread"], limit=BUILD_LIMIT)
        patch = [sys.executable, "-m", "neutrino.cli.patch", str(program), "-p", str(PROBES / "placed_linked.toml")]
        kept: dict[str, Json] = {"patch": self.run("linked_patch", [*patch, "-o", str(patched)]).status}
        reports = {way: self.folder / f"linked_{way}.json" for way in ("plain", "command", "patched")}
        commands = {
            way: [str(patched if way == "patched" else program), "--seeds", "2", "--out", str(report)]
            for way, report in reports.items()
        }
        self.run("linked_plain", commands["plain"])
        kept["plain"] = {"program": _read(reports["plain"])}
        for way, probes in (("command", "placed_linked"), ("patched", "")):
            kept[way] = self.probed(f"linked_{way}", probes, commands[way]) | {"program": _read(reports[way])}
        return kept


def _read(report: Path) -> Json:
    """Read a program's report, a JSON file; None when it is not there or not whole, which the verdicts then say."""
    try:
        return json.loads(report.read_text())
    except (OSError, ValueError):
        return None


def pack(array: np.ndarray[Any, Any]) -> str:
    """Return an array's bytes, compressed and in base64, to be kept in a JSON file; ``unpack`` is the way back."""
    return base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 9)).decode()


def _map(view: MapView) -> Json:
    """Return what a launch recorded in one map (a store that probes save to), as plain data for JSON.

    Totals of a map of sums; of another its records and how many each slot (thread, warp or block) saved.
    """
    if view.map.kind == SUM:
        return view.total()
    return {
        "level": view.map.level.value,
        "cap": view.cap,
        "fields": view.records.dtype.descr,
        "dropped": view.dropped,
        "counts": None if view.counts is None else pack(view.counts.astype("<u4")),
        "records": pack(view.valid()),
    }


def _trace(trace: Trace) -> Json:
    """Return all that a trace says, as plain data for JSON: what became of each kernel, and the maps of each launch.

    Launches are in order of submission; maps are what probes save to.
    """
    rows: list[tuple[int, Json]] = []
    kernels = []
    contexts: dict[int, int] = {}
    for kernel in trace.kernels:
        views = {launch.index: launch.maps for launch in kernel.launches()}
        manifest: Mapping[str, Json] = kernel.manifest.raw if kernel.manifest else {}
        kernels.append({
            "name": kernel.name,
            "reason": kernel.reason.word,
            "detail": kernel.detail,
            "launches": {reason.word: count for reason, count in kernel.counters.items() if count},
            "registers": manifest.get("registers"),
            "sites": [[site["site"], site["source"], site["function"]] for site in manifest.get("sites", ())],
        })  # fmt: skip
        for index, record in zip(kernel.indices, kernel.records, strict=True):
            rows.append((int(record["submit_ns"]), {
                "kernel": kernel.name,
                "context": contexts.setdefault(int(record["context"]), len(contexts)),
                "device": int(record["device"]),
                "capped": int(record["variant"]),
                "maps": {name: _map(view) for name, view in views.get(int(index), {}).items()},
            }))  # fmt: skip
    return {
        "pid": trace.process.get("pid"),
        "complete": trace.complete,
        "kernels": [kernel for kernel in kernels if kernel["launches"]],
        "launches": [row for _, row in sorted(rows, key=lambda entry: entry[0])],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench, write results and diagnostics below ``--out``, and print the verdicts.

    Returns 0 when all are good.
    """
    parser = argparse.ArgumentParser(prog="bench.placed", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "bench/results")))
    parser.add_argument("--neutrino", default=COMMAND, help="the command that probes a program")
    parser.add_argument("--only", default="", help="names of cases, contexts, linked; with commas between")
    parser.add_argument("--device", choices=("gpu", "embedded"), default="gpu")
    parser.add_argument("--jobs", type=int, default=3, help="runs at once")
    parser.add_argument("--budget", type=float, default=90, help="seconds for everything")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    embedded = options.device == "embedded"
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    start = time.time()
    with tempfile.TemporaryDirectory(prefix="placed_", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "cache").mkdir(mode=0o700)
        bench = Bench(shlex.split(options.neutrino), folder, time.monotonic() + options.budget, embedded, options.jobs)
        bench.result |= {
            "device": "embedded" if embedded else query_gpu("name"),
            "driver": query_gpu("driver_version"),
            **made_of("placed_h200"),
            "nvcc": "" if embedded else _version(folder),
            "started": int(start),
        }
        try:
            bench.drive(set(filter(None, options.only.split(","))))
        except KeyboardInterrupt:
            bench.result["interrupted"] = True
        finally:
            bench.result["seconds"] = round(time.time() - start, 1)
            text = json.dumps(bench.result, separators=(",", ":")).replace('{"kernel"', '\n{"kernel"')
            path = options.out / (EMBEDDED_RESULT if embedded else RESULT)
            path.write_text(text + "\n")
            (options.out / DIAGNOSTICS).write_text("\n".join(bench.diagnostics))
    print(f"{path}: {len(text)} bytes, {bench.result['seconds']} s")
    judged = placed_verdicts.judge(json.loads(text))
    print(table(judged))
    return 0 if all(verdict.good for verdict in judged) and len(text) <= LARGEST_RESULT else 1


def _version(folder: Path) -> str:
    """The line in which nvcc says its release; "" when it does not."""
    done = run_program([str(find_cuda_tool("nvcc")), "--version"], os.environ, folder, "version", 30)
    return next((line.strip() for line in done.stdout.splitlines() if "release" in line), "")


if __name__ == "__main__":
    sys.exit(main())
