"""Whether findings on eleven Triton kernels agree with Nsight Compute's figures, on a GPU.

    python3 -m bench.findings record [--out FILE]     on a GPU, with PyTorch, Triton and ncu
    python3 -m bench.findings judge [--out FILE]      recomputes table and verdicts

``workloads/triton_eleven.py`` has the kernels. It runs once as it is, once for each set of probes of ``RUNS``, those
about times alone on the GPU, and once under ncu. The file has the findings of each run, and of each kernel's last
launch under ncu metrics and what its source page has, by opcode. ``findings_verdicts.py`` says which metric
confirms or denies an analysis, and from which value on.
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
from bench.findings_verdicts import COLUMNS, KERNELS, METRICS, RUNS, Run, judge, table
from bench.probed import made_with
from bench.programs import Finished, find_cuda_tool, run_program
from bench.tree import ROOT
from neutrino.abi.reasons import Reason
from neutrino.tracing import find_traces

Json = Any

RESULTS = ROOT / "bench" / "results" / "findings_h200.json"
PROGRAM = ROOT / "bench" / "workloads" / "triton_eleven.py"
_LIMIT = 150.0
_DIGITS = 16
"""Of an output's digest."""
_NO_FAULT = {Reason.NOT_SELECTED.word, Reason.NO_SITE.word}
"""Why launches ran without probes: drawn by --benchmark, or there is no instruction that the probes look at."""
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
        return {kernel: row["output"][:_DIGITS] for kernel, row in report["kernels"].items()}

    def probe(self, run: Run) -> str:
        """Run the program with a set of probes. Returns what it said if it failed, else ""."""
        options = [word for probe in run.probes for word in ("-p", probe)]
        traces = self.folder / f"{run.name}_traces"
        words = [*self.neutrino, "-q", *options, *run.options, "-k", _KERNEL, "--tracedir", str(traces)]
        try:
            self.run(run.name, [*words, *self.program(run.name, run.rounds)])
        except _FailedError as error:
            print(error, file=sys.stderr)
            return str(error)
        return ""

    def found(self, run: Run, failed: str) -> Json:
        """Return the findings of a run that has ended, the launches of each kernel by outcome, and the outputs; or, if
        it failed, what was said.
        """
        try:
            return {"failed": failed} if failed else self._found(run)
        except (_FailedError, ValueError) as error:
            print(error, file=sys.stderr)
            return {"failed": str(error)}

    def _found(self, run: Run) -> Json:
        """Return what ``found`` returns of a run that did not fail. Raises _FailedError; ValueError: it has no trace.

        Where every access was recorded each kernel has a report of its own, all at once, since these take long.
        """
        (trace,) = find_traces(self.folder / f"{run.name}_traces")
        argv = [*self.neutrino, "report", str(trace), "--json"]
        for name in run.analyses:
            argv += ["--analysis", name]
        names = KERNELS if "dmat" in run.probes else ("",)
        with ThreadPoolExecutor(len(names)) as pool:
            done = list(pool.map(lambda name: self.run(f"{run.name}_report_{name}", argv + _only(name)), names))
        documents = [json.loads(one.stdout)["traces"][0] for one in done]
        return {
            "outputs": self.outputs(run.name),
            "launches": {row["name"]: {"written": row["launches"]["written"]}
                         for document in documents for row in document["kernels"]},
            "not_probed": [[row["name"], row["reason"], row["detail"]] for row in documents[0]["not_probed"]
                           if row["name"] in KERNELS and row["reason"] not in _NO_FAULT],
            "findings": [_finding(row) for document in documents for row in document["findings"]],
        }  # fmt: skip

    def profile(self) -> str:
        """Run the program under ncu. Returns what it said if it failed, else ""."""
        argv = record_command(str(find_cuda_tool("ncu")), self._profile, self.program("ncu", 0), KERNELS)
        try:
            self.run("ncu", argv)
        except _FailedError as error:
            print(error, file=sys.stderr)
            return str(error)
        return ""

    def profiled(self, failed: str) -> Json:
        """Return what ncu's pages say of the last launch of each kernel, by name; or what was said if it failed."""
        ncu, pages = str(find_cuda_tool("ncu")), {}
        try:
            for name in () if failed else ("raw", "source"):
                pages[name] = self.run(f"ncu_{name}", page_command(ncu, self._profile, name)).stdout
            launches = [] if failed else read(pages["raw"], pages["source"])
        except (_FailedError, ValueError) as error:
            print(error, file=sys.stderr)
            failed = str(error)
        if failed:
            return {"failed": failed}
        # Before the first launch of each its code is in no cache: the last one counts.
        return {launch["kernel"]: _judged(launch) for launch in launches}

    @property
    def _profile(self) -> Path:
        """Where ncu writes its report, without the suffix."""
        return self.folder / "profile"


def _only(kernel: str) -> list[str]:
    """Return the options that choose a kernel; none for ""."""
    return ["-k", f"/^{kernel}$/"] if kernel else []


def _finding(row: Json) -> Json:
    """Return what is kept of a finding: of its figures those that are judged."""
    figures = {figure["name"]: figure["value"] for figure in row["figures"] if figure["name"] == "side"}
    return {"analysis": row["analysis"], "kernel": row["name"], "state": row["state"], "figures": figures}


def record(options: argparse.Namespace, neutrino: Sequence[str]) -> Json:
    """Run the program plain, with every set of probes, and under ncu; return the raw samples.

    What fails leaves its message in place of its samples.
    """
    begin = time.time()
    results: Json = {**made_with("findings_h200"), "started": int(begin)}
    with tempfile.TemporaryDirectory(prefix="findings_", ignore_cleanup_errors=True) as name:
        drive = _Drive(neutrino, Path(name))
        # Fills the cache of Triton.
        drive.run("plain", drive.program("plain", 0))
        results["plain"] = drive.outputs("plain")
        results["runs"] = {}
        said_by_ncu = drive.profile()
        with ThreadPoolExecutor(len(RUNS) + 1) as pool:
            pages = pool.submit(drive.profiled, said_by_ncu)
            # Times are of a GPU to itself; reports are read meanwhile.
            timed = [run for run in RUNS if run.is_timed]
            counted = [run for run in RUNS if not run.is_timed]
            said = dict(zip((run.name for run in counted), pool.map(drive.probe, counted), strict=True))
            reports = {run.name: pool.submit(drive.found, run, said[run.name]) for run in counted}
            for run in timed:
                reports[run.name] = pool.submit(drive.found, run, drive.probe(run))
            results["ncu"] = pages.result()
            for run in RUNS:
                results["runs"][run.name] = reports[run.name].result()
                results["seconds"] = round(time.time() - begin, 1)
                # What there is, should the rest not come.
                options.out.write_text(json.dumps(results, separators=(",", ":")))
    return results


def _judged(launch: Json) -> Json:
    """Return what is judged of a profile, with seven digits of each number, which is what ncu's own have at most."""
    metrics = {name: float(f"{value:.7g}") for name, value in launch["metrics"].items() if METRICS.fullmatch(name)}
    opcodes = {
        opcode: {title: value for title, value in row.items() if COLUMNS.fullmatch(title)}
        for opcode, row in launch["opcodes"].items()
    }
    return {"metrics": metrics, "opcodes": {opcode: row for opcode, row in opcodes.items() if row}}


main = Bench("findings", RESULTS, ("device", "driver", "plain", "runs", "ncu"), record, judge, table).main


if __name__ == "__main__":
    sys.exit(main())
