"""Whether one process can be asked several questions: three sets of probes in one notebook, each as right as alone.

    python3 -m bench.questions record [--out FILE] [--only NAME …]    on a GPU, with PyTorch, Triton and JAX
    python3 -m bench.questions record --embedded FOLDER               on the embedded device
    python3 -m bench.questions judge [--out FILE]                     recomputes the verdicts

Needs the packages jupyter_client and ipykernel. A notebook asks ``PROBES`` one after the other of the same step, whose
kernels were loaded, and whose graph was captured, under the first ones; then it changes the probes ``CHANGES`` times.
Between the questions, launches are timed, which run their originals then. Another notebook, without Neutrino, has the
results and times to compare with; and one for each question asks that alone.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.command_line import Bench
from bench.notebook import run_cells
from bench.programs import SOURCES, query_gpu
from bench.tree import ROOT, made_of
from bench.verdicts import Verdict, need, run_checks

Json = Any

RESULTS = ROOT / "bench" / "results" / "questions_h200.json"
EMBEDDED_RESULTS = ROOT / "bench" / "results" / "questions.json"
PROBES = ("gmem_bytes", "inst_count", "opcode_mix")
WORKLOADS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "PyTorch": ("questions_torch.py", {}),
    # XLA keeps PTX in its images only with line information. Tuning chooses other kernels in one process of eight.
    "JAX": ("questions_jax.py", {"XLA_FLAGS": "--xla_gpu_generate_line_info=true --xla_gpu_autotune_level=0"}),
}
"""By name: the program, whose text is a cell, and its environment."""
WITH_GRAPHS = frozenset({"PyTorch"})
EMBEDDED = ("questions_vector.py", {"NEUTRINO_BENCH_DEVICE": "embedded"})
"""On the embedded device, with the library of ``examples/embedded``."""
CHANGES, FROM = 200, 20
"""Changes of the probes, and after how many of them memory is measured first."""
MOST_GROWN = 24 << 20
"""Bytes of the process's memory, by records of launches and pages of allocators."""
MOST_DEVICE_GROWN = 4 << 20
MOST_TIMES = 1.10
"""A launch between questions takes at most so many times as long as one of a process without Neutrino. They are of two
notebooks, whose times differ by a few percent by themselves."""
_START = """import json, os, resource
from bench.notebook import digests
device = os.environ.get("NEUTRINO_BENCH_DEVICE")"""
_PLAIN = 'prepare(); print(json.dumps({"results": [digest(step())], "pace": [pace() for _ in range(3)]}))'
_ASK = """
def ask(probe):
    with neutrino.trace(probe, device=device, quiet=True) as t:
        result = digest(step())
    return {"result": result, "records": digests((kernel.name, kernel.launches) for kernel in t.kernels),
            "probed": t.coverage.probed, "launches": t.coverage.launches,
            "in_graphs": sum(int(launch.record["graph"]) > 0 for launch in t.launches)}
with neutrino.trace(FIRST, device=device, quiet=True):
    prepare()
"""
_THREE = """
asked = [ask(FIRST)]
times = [pace()]
for probe in OTHERS:
    asked.append(ask(probe))
    times.append(pace())
asked.append(ask(FIRST))
probes = [neutrino.load_probes(probe) for probe in (FIRST, *OTHERS)]
def size():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
memory = []
begin = time.perf_counter()
for i in range(CHANGES + 1):
    with neutrino.trace(probes[i % len(probes)]):
        launch()
    if i in (FROM, CHANGES):
        memory.append([size(), device_memory()])
seconds = time.perf_counter() - begin
print(json.dumps({"asked": asked, "pace": times, "memory": memory, "seconds": seconds, "results": [digest(step())]}))
"""


def _cells(mode: str) -> tuple[str, ...]:
    """The cells of a mode's notebook: "plain", "three", or a probe that is asked alone. WORKLOAD: the program."""
    if mode == "plain":
        return ("import json", "WORKLOAD", _PLAIN)
    first, others = (PROBES[0], PROBES[1:]) if mode == "three" else (mode, ())
    values = f"FIRST, OTHERS, CHANGES, FROM = {first!r}, {others!r}, {CHANGES}, {FROM}\nimport time"
    last = _THREE if mode == "three" else "print(json.dumps({'asked': [ask(FIRST)], 'results': [digest(step())]}))"
    return (_START, "import neutrino", values, "WORKLOAD", _ASK, last)


MODES = ("plain", *PROBES, "three")


def record(only: Sequence[str], library: Path | None) -> Json:
    """Run each workload in a notebook for each mode; return the raw samples.

    Workload → mode → what its last cell printed, or why a cell failed. library: the folder of the library for the
    embedded device, whose workload then is the only one.
    """
    workloads = {"vector": EMBEDDED} if library else {name: WORKLOADS[name] for name in only or WORKLOADS}
    results: Json = {
        "device": "embedded" if library else query_gpu("name"),
        "driver": "" if library else query_gpu("driver_version"),
        **made_of("questions" if library else "questions_h200"), "started": int(time.time()), "runs": {},
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="questions_", ignore_cleanup_errors=True) as name:
        for workload, (script, extra) in workloads.items():
            runs = results["runs"][workload] = {}
            for mode in MODES:
                folder = Path(name) / f"{workload}_{mode}"
                folder.mkdir()
                paths = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
                environment = {**os.environ, **extra, "XDG_CACHE_HOME": f"{name}/cache", "PYTHONPATH": paths}
                if library:
                    environment["NEUTRINO_BENCH_LIBRARY"] = str(library.resolve() / "libvector.so")
                begin = time.monotonic()
                text = (SOURCES / script).read_text()
                try:
                    printed = run_cells(mode, _cells(mode), text, environment, folder, is_plain=mode == "plain")
                    runs[mode] = json.loads(printed)
                except SystemExit as failed:
                    # The others are recorded all the same, since a GPU is not always at hand.
                    runs[mode] = {"failed": str(failed)[-4000:]}
                runs[mode]["took"] = round(time.monotonic() - begin, 1)
                print(f"{workload}, {mode}: {str(runs[mode])[:400]}", file=sys.stderr)
    return results


def judge(results: Json) -> list[Verdict]:
    """Check the recorded runs; return a verdict on each workload's results, questions, memory and times between."""
    checks = []
    is_embedded = results["device"] == "embedded"
    for workload in results["runs"] if is_embedded else WORKLOADS:
        runs = results["runs"].get(workload, {})
        checks.append((f"{workload}: results", partial(_results, runs)))
        for number, probe in enumerate((*PROBES, PROBES[0])):
            title = f"{workload}: question {number + 1}"
            checks.append((title, partial(_question, runs, number, probe, workload in WITH_GRAPHS)))
        checks.append((f"{workload}: memory", partial(_memory, runs)))
        if not is_embedded:
            checks.append((f"{workload}: between", partial(_between, runs)))
    return run_checks(checks)


def _results(runs: Json) -> str:
    """Check that all steps in all notebooks computed the same. Raises BrokenError (by ``need``), as all below."""
    need(tuple(runs) == MODES, f"runs are {', '.join(runs) or 'none'}")
    failed = [mode for mode, run in runs.items() if "failed" in run]
    need(not failed, f"failed: {', '.join(failed)}")
    outputs = {run["results"][0] for run in runs.values()}
    outputs |= {asked["result"] for run in runs.values() for asked in run.get("asked", ())}
    need(len(outputs) == 1, f"{len(outputs)} different results")
    return f"the same in {len(runs)} notebooks"


def _question(runs: Json, number: int, probe: str, has_graphs: bool) -> str:
    """Check that a question of the one notebook was answered as in a notebook of its own."""
    need("asked" in runs.get("three", {}) and "asked" in runs.get(probe, {}), "a notebook failed")
    asked, alone = runs["three"]["asked"][number], runs[probe]["asked"][0]
    need(asked["records"] == alone["records"], f"{probe}: other records than alone")
    count = len(asked["records"])
    need(count == asked["probed"] >= 2, f"{count} records of {asked['probed']} launches")
    need([asked["probed"], asked["launches"]] == [alone["probed"], alone["launches"]], "other launches than alone")
    in_graphs = asked["in_graphs"]
    need(in_graphs == alone["in_graphs"] and (in_graphs or not has_graphs), "launches in graphs differ")
    graphs = f", {asked['in_graphs']} in graphs" if asked["in_graphs"] else ""
    return f"{probe}: {asked['probed']} of {asked['launches']} launches probed{graphs}, as alone"


def _memory(runs: Json) -> str:
    """Check that changes of the probes take no memory after the first ones."""
    need("memory" in runs.get("three", {}), "the notebook failed")
    (host, device), (host_after, device_after) = runs["three"]["memory"]
    need(host_after - host < MOST_GROWN, f"{(host_after - host) >> 20} MiB more after {CHANGES} changes")
    need(device_after - device < MOST_DEVICE_GROWN, f"{(device_after - device) >> 20} MiB more on the device")
    each = runs["three"]["seconds"] / (CHANGES + 1) * 1e3
    return (
        f"{(host_after - host) / 2**20:+.1f} MiB, on the device {(device_after - device) / 2**20:+.1f} MiB, over "
        f"{CHANGES - FROM} changes; {each:.0f} ms each"
    )


def _between(runs: Json) -> str:
    """Check that launches between questions take no longer than without Neutrino: by the least of three medians, as a
    notebook's process has other work, too.
    """
    need("pace" in runs.get("plain", {}) and "pace" in runs.get("three", {}), "a notebook failed")
    found = runs["three"]["pace"]
    # Early records have one median of a plain notebook.
    plain = [rows if isinstance(rows, list) else runs["plain"]["pace"] for rows in runs["plain"]["pace"]]
    pairs = [(min(times[i] for times in found), min(times[i] for times in plain)) for i in range(len(plain[0]))]
    ratios = [one / other for one, other in pairs]
    need(max(ratios) <= MOST_TIMES, f"{max(ratios):.3f} times as long as without Neutrino")
    texts = [f"{one:.1f} for {other:.1f} us" for one, other in pairs]
    return f"a launch and a replay: {', '.join(texts)} without Neutrino"


def _add_options(parser: argparse.ArgumentParser) -> None:
    """Add this bench's options to the command line."""
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, default=[], help="workloads; all by default")
    parser.add_argument(
        "--embedded", type=Path, metavar="FOLDER", help="on the embedded device: the folder of libvector.so, which "
        "make -C examples/embedded builds",
    )  # fmt: skip


main = Bench(
    "questions", RESULTS, ("device", "driver", "runs"),
    lambda options, _neutrino: record(options.only, options.embedded), judge, add=_add_options,
).main  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
