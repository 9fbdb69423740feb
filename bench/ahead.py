"""Libraries patched ahead of time, on a GPU: every way of using one, and what it computed and recorded, in raw numbers.

    python -m bench.ahead --out FOLDER [--wheel CTRANSLATE2.whl] [--only NAME,NAME] [--budget SECONDS]

writes FOLDER/ahead_h200.json (what ``ahead_verdicts`` reads) and FOLDER/ahead_diagnostics.txt (what failing runs
said), and prints the verdicts. Exit status: 0 when every verdict is good, 1 otherwise.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench import ahead_verdicts
from bench.ahead_cases import ALL_PROBES, EMITTED, LIBRARIES, SEEDS, SUBMIT_PROCESSES, Library, Way
from bench.cases import SUBMIT_LAUNCHES, SUBMIT_REPETITIONS
from bench.programs import SOURCES, Finished, find_cuda_tool, run_program
from bench.road import query_gpu
from bench.tree import made_of

Json = Any

ROOT = Path(__file__).resolve().parent.parent
RESULT = "ahead_h200.json"
DIAGNOSTICS = "ahead_diagnostics.txt"
LIMIT = 60.0
DIGEST_DIGITS = 32
_ARCHITECTURE = ("-gencode", "arch=compute_90,code=[sm_90,compute_90]")
_AS_LIBRARY = ("-Dmain=workload_main", "-shared", "-Xcompiler", "-fPIC", "-Xlinker", "-Bsymbolic", "-cudart", "static")


class Ahead:
    """One run of the bench in a scratch folder.

    package: a copy of Neutrino, so that the libraries' stub can be hidden without hiding the bench. seconds: after
    which nothing more is started.
    """

    def __init__(self, folder: Path, seconds: float) -> None:
        """Begin a run of the bench.

        folder: for scratch files. seconds: time from now after which nothing more is started.
        """
        self.folder = folder
        self.package = folder / "package"
        self.result: dict[str, Json] = {"runs": {}, "patched": {}, "submit": {}}
        self.diagnostics: list[str] = []
        self._end = time.monotonic() + seconds

    def remaining(self) -> float:
        """Seconds that are left of the time budget of this run of the bench; nothing is started without any."""
        return self._end - time.monotonic()

    def environment(self, hidden: bool = False, **more: str) -> dict[str, str]:
        """Environment variables of a run: this process's, less Neutrino's own, with the scratch copy of Neutrino on
        PYTHONPATH.

        hidden: neither Neutrino nor its cache can be found. more: further variables.
        """
        left_out = {"LD_AUDIT", "NEUTRINO_TRACEDIR", "NEUTRINO_CACHE"}
        kept = {name: value for name, value in os.environ.items() if name not in left_out}
        path = [] if hidden else [str(self.package), str(ROOT)]
        path += filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)) if not hidden else []
        return {
            **kept, "PYTHONPATH": os.pathsep.join(path), "CUDA_CACHE_PATH": str(self.folder / "nv"),
            # Else the folder that the bench runs in, with its Neutrino, would come before the copy.
            "PYTHONSAFEPATH": "1",
            "XDG_CACHE_HOME": str(self.folder / ("nowhere" if hidden else "cache")), **more,
        }  # fmt: skip

    def prepare(self) -> None:
        """Copy the package into the scratch folder, build all libraries and programs there, and patch the libraries in
        every variant that the runs need. What failed is in ``result`` and ``diagnostics``.
        """
        (self.folder / "cache").mkdir(mode=0o700)
        if not list((ROOT / "neutrino/loader/lib").glob("libneutrino_stub*")):
            subprocess.run([sys.executable, "-m", "neutrino.loader.build"], cwd=ROOT, check=False, timeout=120)
        for name in ("neutrino", "probes", "tools"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, self.package / name, ignore=ignored, symlinks=True)
        commands = {f"lib{library.name}": self._nvcc(library) for library in LIBRARIES}
        commands["libsubmit"] = self._nvcc(Library("submit", ("submit.cu",)))
        for name, sources in (("ahead_loader", ("-ldl",)),):
            commands[name] = ["g++", "-O2", "-o", str(self.folder / name), str(SOURCES / f"{name}.cpp"), *sources]
        self._build_in_parallel("build_failures", commands)
        program = SOURCES / "ahead_program.cpp"
        self._build_in_parallel("link_failures", {
            f"program_{name}": ["g++", "-O2", "-o", str(self.folder / f"program_{name}"), str(program),
                                f"-L{self.folder / 'plain'}", f"-l{name}"]
            for name in (*(library.name for library in LIBRARIES), "submit")
        })  # fmt: skip
        both = [(library.name, "both", ALL_PROBES, ()) for library in LIBRARIES]
        single = [("vecadd", "single", ("block_sched",), ()), ("submit", "single", ("block_sched",), ())]
        emitted = [("vecadd", f"emit_{emit}", ALL_PROBES, ("--emit", emit)) for emit in EMITTED]
        with ThreadPoolExecutor(4) as pool:
            done = list(pool.map(lambda entry: self._patch(*entry), (*both, *single, *emitted)))
        self.result["patched"] |= dict(done)

    def _nvcc(self, library: Library) -> list[str]:
        """The command that compiles a workload into ``plain/lib<name>.so``."""
        (self.folder / "plain").mkdir(exist_ok=True)
        target = self.folder / "plain" / f"lib{library.name}.so"
        sources = [str(SOURCES / source) for source in library.sources]
        return [str(find_cuda_tool("nvcc")), "-O3", "-std=c++17", *_ARCHITECTURE, *library.flags, *_AS_LIBRARY,
                "-o", str(target), *sources]  # fmt: skip

    def _build_in_parallel(self, what: str, commands: Mapping[str, list[str]]) -> None:
        """Run build commands side by side; keep in the results what the failed ones printed.

        what: the key of ``result`` for that. commands: argv by name.
        """
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            done = pool.map(lambda item: (item[0], run_program(item[1], os.environ, self.folder, item[0], 200)),
                            commands.items())  # fmt: skip
            failed = {name: finished.stderr for name, finished in done if finished.status != 0}
        self.result[what] = failed
        self.diagnostics += [f"=== {name}\n{said}" for name, said in failed.items()]

    def _patch(self, name: str, variant: str, probes: Sequence[str], options: Sequence[str],
               source: Path | None = None) -> tuple[str, dict[str, Json]]:  # fmt: skip
        """Run neutrino-patch on a library, into the folder of a variant, and check the outcome with ``--check``.

        probes: names for ``-p``. options: further ones. source: the library, if not ``plain/lib<name>.so``. Returns the
        key for the results, and exit statuses, seconds, and how many kernels were probed or left alone for which
        reason.
        """
        source = source or self.folder / "plain" / f"lib{name}.so"
        words = [word for probe in probes for word in ("-p", probe)]
        argv = [sys.executable, "-m", "neutrino.cli.patch", str(source), *words, "--arch", "sm_90", *options,
                "--json", "-o", f"{self.folder / variant}/"]  # fmt: skip
        finished = run_program(argv, self.environment(), self.folder, f"patch_{name}_{variant}", 200)
        kept: dict[str, Json] = {"exit": finished.status, "seconds": finished.seconds}
        if finished.status == 0:
            kernels = json.loads(finished.stdout)["kernels"]
            reasons: dict[str, int] = {}
            for kernel in kernels:
                word = kernel["status"] if kernel["status"] == "probed" else kernel["reason"]
                reasons[word] = reasons.get(word, 0) + 1
            kept |= {"kernels": len(kernels), "reasons": reasons}
            check = [sys.executable, "-m", "neutrino.cli.patch", "--check", str(self.folder / variant / source.name)]
            checked = run_program(check, self.environment(), self.folder, f"check_{name}_{variant}", 100)
            kept["check"] = checked.status
        if finished.status or kept.get("check"):
            self._diagnose(f"patch {name} {variant}", argv, finished, None)
        return f"{name}_{variant}", kept

    def use(self, key: str, argv: Sequence[str], reports: Sequence[Path], way: Way, variant: str) -> dict[str, Json]:
        """Run a program once with the libraries of a variant, and return what it computed (digests) and what Neutrino
        recorded.

        key: name of the run. argv: the program. reports: the JSON files that it writes. way: how Neutrino takes part.
        variant: folder of the libraries. Without time left nothing runs, and ``not_run`` says so.
        """
        if self.remaining() < 5:
            return {"not_run": "the time budget was spent"}
        traces = self.folder / f"{key}.trace"
        environment = self.environment(hidden=way is Way.HIDDEN, LD_LIBRARY_PATH=str(self.folder / variant))
        if way in (Way.STUB, Way.HIDDEN):
            environment["NEUTRINO_TRACEDIR"] = str(traces)
        elif way in (Way.COMMAND, Way.OTHER):
            other = ["-p", "gmem_bytes"] if way is Way.OTHER else []
            argv = [sys.executable, "-m", "neutrino.cli.run", *other, "--tracedir", str(traces), *argv]
        hiding = way is Way.HIDDEN
        if hiding:
            self.package.rename(self.folder / "hidden")
        try:
            finished = run_program(argv, environment, self.folder, key, min(LIMIT, max(5.0, self.remaining())))
        finally:
            if hiding:
                (self.folder / "hidden").rename(self.package)
        kept: dict[str, Json] = {
            "way": way.value, "exit": finished.status, "timed_out": finished.timed_out, "seconds": finished.seconds,
            "stdout": hashlib.sha256(finished.stdout.encode()).hexdigest()[:DIGEST_DIGITS],
            "traces": len(list(traces.glob("*/events.jsonl"))),
        }  # fmt: skip
        told = self._merged(reports, self.folder / f"{key}.report")
        if told:
            kept |= {"checks": told["checks"], "outputs": told["outputs"], "launches": len(told["launches"]),
                     "extra": told["extra"]}  # fmt: skip
            if "device" in told:
                device = {name: told[name] for name in ("device", "sm_count", "clock_khz", "driver")}
                self.result["device"] = device
        if kept["traces"] and told:
            kept["trace"] = self._measured(key, traces)
        failed = finished.status != 0 or "trace_error" in kept.get("trace", {})
        if failed or (way not in (Way.PLAIN, Way.BARE, Way.HIDDEN) and "trace" not in kept):
            self._diagnose(key, argv, finished, traces)
        shutil.rmtree(traces, ignore_errors=True)
        print(f"{key:32} exit {finished.status} in {finished.seconds:5.1f} s", file=sys.stderr, flush=True)
        return kept

    def _merged(self, reports: Sequence[Path], merged: Path) -> dict[str, Json] | None:
        """Join the reports that one process wrote, in their order, into one, which also goes to the file ``merged``.

        Returns None when a report is missing.
        """
        if not all(report.exists() for report in reports):
            return None
        told = [json.loads(report.read_text()) for report in reports]
        wrong = [one["checks"] for one in told if one["checks"] != "ok"]
        whole: dict[str, Json] = {
            **told[0], "checks": wrong[0] if wrong else "ok",
            "outputs": [digest[:DIGEST_DIGITS] for one in told for digest in one["outputs"]],
            "launches": [launch for one in told for launch in one["launches"]],
        }  # fmt: skip
        merged.write_text(json.dumps(whole))
        return whole

    def _measured(self, key: str, traces: Path, module: str = "bench.measure") -> dict[str, Json]:
        """Let a process of its own read the traces of a run into figures.

        key: the run's. module: what reads them, called with report, traces and output. Returns ``trace_error`` with the
        end of what it said when that fails.
        """
        out = self.folder / f"{key}.measured"
        argv = [sys.executable, "-m", module, str(self.folder / f"{key}.report"), str(traces), str(out)]
        finished = run_program(argv, self.environment(), self.folder, f"{key}.measure", 120)
        if finished.status == 0:
            measured: dict[str, Json] = json.loads(out.read_text())
            return measured
        return {"trace_error": finished.stderr[-400:]}

    def _diagnose(self, name: str, argv: Sequence[str], finished: Finished, traces: Path | None) -> None:
        """Keep what may explain why a program failed: its command, the ends of its output, and the logs in its traces
        (None: none)."""
        text = [f"=== {name}: exit {finished.status}, timed out: {finished.timed_out}", shlex.join(argv)]
        text += ["--- stdout", finished.stdout[-1500:], "--- stderr", finished.stderr[-4000:]]
        measure = self.folder / f"{name}.measure.err"
        if measure.exists():
            text += ["--- measure", measure.read_text()[-2000:]]
        for path in [*traces.glob("*/event.log"), *traces.glob("*/events.jsonl")] if traces else []:
            text += [f"--- {path.name}", path.read_text(errors="replace")[-4000:]]
        self.diagnostics.append("\n".join(text))

    def program(self, name: str, way: Way, variant: str) -> dict[str, Json]:
        """Run the ordinary program of a workload, which is linked against its library, whose variant is given."""
        key = f"{name}_{variant}_{way.value}"
        report = self.folder / f"{key}.json"
        argv = [str(self.folder / f"program_{name}"), "--seeds", str(SEEDS), "--out", str(report)]
        return self.use(key, argv, [report], way, variant)

    def loader(self, key: str, way: Way, variant: str) -> dict[str, Json]:
        """Run a program that loads two patched libraries, closes one of them and loads it again while the other stays.

        key: name of the run.
        """
        reports = [self.folder / f"{key}.{index}.json" for index in range(4)]
        one, two = (str(self.folder / variant / f"lib{name}.so") for name in ("vecadd", "histogram"))

        def run(name: str, index: int) -> list[str]:
            """Words of the program's command line: call this library with 2 seeds, and report into the file of that
            index.
            """
            return ["run", name, "2", str(reports[index])]

        argv = [str(self.folder / "ahead_loader"), "load", "vecadd", one, *run("vecadd", 0), "load", "histogram", two,
                *run("histogram", 1), "close", "vecadd", "load", "vecadd", one, *run("vecadd", 2),
                *run("histogram", 3)]  # fmt: skip
        return self.use(key, argv, reports, way, variant)

    def torch(self, key: str, name: str, way: Way, variant: str) -> dict[str, Json]:
        """Run a PyTorch process that loads a patched library while it works; PyTorch's own results are kept, too.

        key: name of the run. name: the library's.
        """
        report = self.folder / f"{key}.json"
        library = self.folder / variant / f"lib{name}.so"
        argv = [sys.executable, str(SOURCES / "ahead_torch.py"), str(library), "--seeds", str(SEEDS)]
        argv += ["--out", str(report)]
        kept = self.use(key, argv, [report], way, variant)
        digests = report.with_name(report.name + ".torch")
        if digests.exists():
            kept["torch"] = json.loads(digests.read_text())
        return kept

    def submit(self) -> None:
        """Measure what submitting a launch costs with the original library, and with a patched one that records
        nothing: SUBMIT_PROCESSES processes each, in turns.
        """
        ways = {"plain": (Way.PLAIN, "plain"), "bare": (Way.BARE, "single")}
        for process in range(SUBMIT_PROCESSES):
            # First one, then the other comes first, so that a drift of the machine favours neither.
            for mode, (way, variant) in list(ways.items())[:: 1 if process % 2 else -1]:
                key = f"submit_{mode}_{process}"
                report = self.folder / f"{key}.json"
                argv = [str(self.folder / "program_submit"), "--seeds", "1", "--out", str(report)]
                argv += ["--launches", str(SUBMIT_LAUNCHES), "--repetitions", str(SUBMIT_REPETITIONS)]
                self.result["submit"].setdefault(mode, []).append(self.use(key, argv, [report], way, variant))

    def ctranslate2(self, wheel: Path) -> dict[str, Json]:
        """Patch the library in a wheel of CTranslate2, and let PyTorch launch some of its kernels, original and
        patched. Returns what patching said and, for each way, what was computed and recorded.
        """
        plain, kept = self.folder / "wheel", dict[str, Json]()
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                if member.startswith("ctranslate2.libs/"):
                    target = plain / Path(member).name
                    target.parent.mkdir(exist_ok=True)
                    target.write_bytes(archive.read(member))
        (library,) = plain.glob("libctranslate2*")
        _, kept["patched"] = self._patch("ctranslate2", "wheel_patched", ("block_sched",), (), library)
        for other in plain.iterdir():
            if other != library:
                shutil.copy(other, self.folder / "wheel_patched")
        for way, variant in ((Way.PLAIN, "wheel"), (Way.STUB, "wheel_patched")):
            key = f"ctranslate2_{way.value}"
            report, traces = self.folder / f"{key}.json", self.folder / f"{key}.trace"
            argv = [sys.executable, str(SOURCES / "ahead_ctranslate2.py"), str(self.folder / variant / library.name),
                    "--out", str(report)]  # fmt: skip
            environment = self.environment(False, **({"NEUTRINO_TRACEDIR": str(traces)} if way is Way.STUB else {}))
            finished = run_program(argv, environment, self.folder, key, min(150.0, max(5.0, self.remaining())))
            run: dict[str, Json] = {"exit": finished.status, "timed_out": finished.timed_out}
            run["seconds"] = finished.seconds
            if report.exists():
                run |= json.loads(report.read_text())
            if traces.exists():
                report.rename(self.folder / f"{key}.report")
                run["trace"] = self._measured(key, traces, "bench.ahead_measure")
            if finished.status != 0 or "trace_error" in run.get("trace", {}):
                self._diagnose(key, argv, finished, traces)
            kept[way.value] = run
            print(f"{key:32} exit {finished.status} in {finished.seconds:5.1f} s", file=sys.stderr, flush=True)
        return kept

    def drive(self, wheel: Path | None, only: set[str]) -> None:
        """Run the whole bench. ``result`` holds all that was measured so far, also when this is interrupted.

        wheel: CTranslate2's; None leaves it out. only: names of the parts to run; empty runs all.
        """
        self.result |= {"schema": 1, **made_of("ahead_h200")}
        self.result |= {"driver": query_gpu("driver_version"), "gpu": query_gpu("name")}
        self.prepare()
        runs = self.result["runs"]
        for library in LIBRARIES:
            if only and library.name not in only:
                continue
            runs[library.name] = {Way.PLAIN.value: self.program(library.name, Way.PLAIN, "plain")}
            for way in library.ways:
                variant = "single" if way is Way.OTHER else "both"
                runs[library.name][way.value] = self.program(library.name, way, variant)
        if not only or "emit" in only:
            for emit in EMITTED:
                runs[f"emit_{emit}"] = {
                    Way.PLAIN.value: self.program("vecadd", Way.PLAIN, "plain"),
                    Way.STUB.value: self.program("vecadd", Way.STUB, f"emit_{emit}"),
                }  # fmt: skip
        if not only or "loader" in only:
            runs["loader"] = {way.value: self.loader(f"loader_{way.value}", way, variant)
                              for way, variant in ((Way.PLAIN, "plain"), (Way.BARE, "both"), (Way.STUB, "both"),
                                                   (Way.COMMAND, "both"))}  # fmt: skip
        for name in ("vecadd", "linked"):
            if not only or "torch" in only:
                runs[f"torch_{name}"] = {
                    way.value: self.torch(f"torch_{name}_{way.value}", name, way, variant)
                    for way, variant in ((Way.PLAIN, "plain"), (Way.BARE, "both"), (Way.STUB, "both"))
                }
        if not only or "submit" in only:
            self.submit()
        if wheel is not None and (not only or "ctranslate2" in only):
            self.result["ctranslate2"] = self.ctranslate2(wheel)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench, write results and diagnostics below ``--out``, and print the verdicts.

    Returns 0 when all are good.
    """
    parser = argparse.ArgumentParser(prog="bench.ahead", description="Use patched libraries on a GPU.")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "bench/results")))
    parser.add_argument("--wheel", type=Path, help="ctranslate2's; without it that case is left out")
    parser.add_argument("--only", default="", help="names of libraries, or emit, loader, torch, submit, ctranslate2")
    parser.add_argument("--budget", type=float, default=280, help="seconds after which no further run is started")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    # A limit on the whole command ends it with SIGTERM: then, too, what there is gets written.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="ahead_", ignore_cleanup_errors=True) as folder:
        bench = Ahead(Path(folder), options.budget)
        start = time.time()
        try:
            bench.drive(options.wheel, set(filter(None, options.only.split(","))))
        except KeyboardInterrupt:
            bench.result["interrupted"] = True
        finally:
            bench.result |= {"started": int(start), "seconds": round(time.time() - start, 1)}
            text = json.dumps(bench.result, separators=(",", ":")).replace('{"way"', '\n{"way"')
            (options.out / RESULT).write_text(text + "\n")
            (options.out / DIAGNOSTICS).write_text("\n".join(bench.diagnostics))
    print(f"{options.out / RESULT}: {len(text)} bytes, {bench.result['seconds']} s")
    judged = ahead_verdicts.judge(json.loads(text))
    for verdict in judged:
        print(f"{'good' if verdict.good else 'BAD '}  {verdict.case}: {verdict.figure}")
    return 0 if all(verdict.good for verdict in judged) else 1


if __name__ == "__main__":
    sys.exit(main())
