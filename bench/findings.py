"""Whether findings on eleven Triton kernels agree with Nsight Compute's figures, on a GPU.

    python3 -m bench.findings record [--out FILE] [--keep FOLDER]     on a GPU, with PyTorch, Triton and ncu
    python3 -m bench.findings judge [--out FILE]                      recomputes table and verdicts

``workloads/triton_eleven.py`` has the kernels. It runs once as it is, once for each set of probes of ``RUNS``, those
about times alone on the GPU, and once under ncu. The file has the findings of each run, and of each kernel's last
launch under ncu all metrics and what its source page has, by opcode. ``findings_verdicts.py`` says which metric
confirms or denies an analysis, and from which value on. FOLDER: for ncu's own pages. Exit status: 0 all good, 1 a
verdict is not, 2 the file cannot be judged.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.command_line import Bench
from bench.findings_ncu import page_command, read, record_command
from bench.findings_verdicts import KERNELS, RUNS, Run, judge, table
from bench.programs import Finished, find_cuda_tool, run_program
from bench.road import ROOT, query_gpu
from bench.tree import made_of
from neutrino.abi.reasons import Reason
from neutrino.tracing import find_traces

Json = Any

RESULTS = ROOT / "bench" / "results" / "findings_h200.json"
PROGRAM = ROOT / "bench" / "workloads" / "triton_eleven.py"
_LIMIT = 150.0
_KERNEL = f"/^({'|'.join(KERNELS)})$/"


class _FailedError(Exception):
    """A command failed; the message has what it said."""


@dataclass(frozen=True)
class _Drive:
    """One recording. neutrino: its words. folder: scratch."""

    neutrino: Sequence[str]
    folder: Path

    def program(self, name: str, rounds: int) -> list[str]:
        """Return the program's command line; it reports to NAME.json."""
        report = self.folder / f"{name}.json"
        return [sys.executable, str(PROGRAM), "--rounds", str(rounds), "--pause", "0.01", "--out", str(report)]

    def run(self, name: str, argv: Sequence[str]) -> Finished:
        """Run a command with caches of its own. Raises _FailedError."""
        caches = {"XDG_CACHE_HOME": str(self.folder / "cache"), "TRITON_CACHE_DIR": str(self.folder / "triton")}
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        done = run_program(argv, {**os.environ, **caches, "PYTHONPATH": path}, self.folder, name, _LIMIT)
        print(f"{name}: {done.seconds} s", file=sys.stderr, flush=True)
        if done.status != 0:
            said = f"{done.stdout[-2000:]}{done.stderr[-4000:]}"
            raise _FailedError(f"{shlex.join(argv)}: exit status {done.status}\n{said}")
        return done

    def outputs(self, name: str) -> dict[str, str]:
        """Return the digests of the outputs that a run of the program reported, by kernel."""
        report = json.loads((self.folder / f"{name}.json").read_text())
        return {kernel: row["output"] for kernel, row in report["kernels"].items()}

    def probed(self, run: Run) -> Json:
        """Run the program with a set of probes. Returns its findings, the launches of each kernel by outcome, and the
        outputs; or what it said if it failed.
        """
        try:
            self._probe(run)
            return self._found(run)
        except _FailedError as error:
            print(error, file=sys.stderr)
            return {"failed": str(error)}

    def _probe(self, run: Run) -> None:
        """Run the program with a set of probes."""
        options = [word for probe in run.probes for word in ("-p", probe)]
        traces = self.folder / f"{run.name}_traces"
        words = [*self.neutrino, "-q", *options, *run.options, "-k", _KERNEL, "--tracedir", str(traces)]
        self.run(run.name, [*words, *self.program(run.name, run.rounds)])

    def _found(self, run: Run) -> Json:
        """Return the findings of a run that has ended, the launches of each kernel by outcome, and the outputs."""
        (trace,) = find_traces(self.folder / f"{run.name}_traces")
        argv = [*self.neutrino, "report", str(trace), "--json"]
        for name in run.analyses:
            argv += ["--analysis", name]
        (document,) = json.loads(self.run(f"{run.name}_report", argv).stdout)["traces"]
        return {
            "outputs": self.outputs(run.name),
            "launches": {kernel["name"]: kernel["launches"] for kernel in document["kernels"]},
            # Of a kernel with --benchmark some launches are drawn to run as they are.
            "not_probed": [[row["name"], row["reason"], row["detail"]] for row in document["not_probed"]
                           if row["name"] in KERNELS and row["reason"] != Reason.NOT_SELECTED.word],
            "findings": [_finding(row) for row in document["findings"]],
        }  # fmt: skip

    def profiled(self, keep: Path | None) -> Json:
        """Run the program under ncu. Returns what its pages say of the last launch of each kernel, by name.

        keep: a folder for the pages.
        """
        ncu, report = str(find_cuda_tool("ncu")), self.folder / "profile"
        pages = {}
        try:
            self.run("ncu", record_command(ncu, report, self.program("ncu", 0), KERNELS))
            for name in ("raw", "source", "details"):
                pages[name] = self.run(f"ncu_{name}", page_command(ncu, report, name)).stdout
                if keep is not None:
                    keep.mkdir(parents=True, exist_ok=True)
                    (keep / f"{name}.csv").write_text(pages[name])
            launches = read(pages["raw"], pages["source"])
        except (_FailedError, ValueError) as error:
            print(error, file=sys.stderr)
            return {"failed": str(error)}
        # Before the first launch of each its code is in no cache: the last one counts.
        return {launch["kernel"]: _rounded(launch) for launch in launches}


def _finding(row: Json) -> Json:
    """Return what is kept of a finding."""
    return {
        "analysis": row["analysis"], "kernel": row["name"], "state": row["state"], "sentence": row["sentence"],
        "figures": {figure["name"]: figure["value"] for figure in row["figures"]}, "sure": row["sure"]["word"],
        "places": [f"{place['place']}: {place['instruction']}: {place['note']}" for place in row["places"][:2]],
    }  # fmt: skip


def record(options: argparse.Namespace, neutrino: Sequence[str]) -> Json:
    """Run the program plain, with every set of probes, and under ncu; return the raw samples.

    options: ``keep``, a folder for ncu's pages or None. What fails leaves its message in place of its samples.
    """
    begin = time.time()
    results: Json = {
        "device": query_gpu("name"), "driver": query_gpu("driver_version"), **made_of("findings_h200"),
        "started": int(begin),
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="findings_", ignore_cleanup_errors=True) as name:
        drive = _Drive(neutrino, Path(name))
        # Fills the cache of Triton.
        drive.run("plain", drive.program("plain", 0))
        results["plain"] = drive.outputs("plain")
        with ThreadPoolExecutor(len(RUNS)) as pool:
            counted = [run for run in RUNS if not run.is_timed]
            found = dict(zip((run.name for run in counted), pool.map(drive.probed, counted), strict=True))
            # Times are of a GPU to itself.
            found |= {run.name: drive.probed(run) for run in RUNS if run.is_timed}
        results["runs"] = {run.name: found[run.name] for run in RUNS}
        results["ncu"] = drive.profiled(options.keep)
    return results | {"seconds": round(time.time() - begin, 1)}


def _rounded(launch: Json) -> Json:
    """Return a profile with seven digits of each number, which is what ncu's own have at most."""
    return {
        "metrics": {name: float(f"{value:.7g}") for name, value in launch["metrics"].items()},
        "opcodes": launch["opcodes"],
    }


def _add_keep(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--keep FOLDER`` to the command line."""
    parser.add_argument("--keep", type=Path, help="a folder for the pages of ncu")


main = Bench(
    "findings", RESULTS, ("device", "driver", "plain", "runs", "ncu"), record, judge, table, add=_add_keep,
).main  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
