"""Executable graphs with probes, on a GPU: results, records and the cost of submitting a replay.

    python -m bench.graphs record --out FOLDER    on a machine with a GPU: FOLDER/graphs_h200.json
    python -m bench.graphs verdicts [FILE]        recompute the verdicts from the file; exit 0 good, 1 not

Each case of ``workloads/replays.cu`` computes the bytes that its replays move; ``workloads/torch_graph.py`` runs
a compiled transformer's training steps as launches and as a CUDA graph, whose sums must be the same.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.programs import find_cuda_tool
from bench.recorded import judge_files
from bench.tree import tree_hash

Json = Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results" / "graphs_h200.json"
REPLAYS = ("queue", "alternate", "updates", "nested", "memory", "loop")
TORCH = ("launches", "graph")
STEPS = 20
ROUNDS = 9
SUBMITS = ("plain", "gmem_bytes", "block_sched")
MOST_MICROSECONDS = 3.5
"""That a replay of 200 kernels may take longer to submit. The aim is 1.5; the write of the cell alone takes 1.0."""
MOST_UNCOVERED = 0.02
"""Share of the launches of kernels with PTX of their own that may run unprobed."""
WITHOUT_PTX = frozenset({"no-ptx", "vendor"})


def _environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }


def _output(command: Sequence[str], folder: Path) -> list[list[str]]:
    """The words of each line that a program prints. SystemExit: it failed."""
    done = subprocess.run(
        command, env=_environment(folder), capture_output=True, text=True, timeout=280, check=False
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}\n{done.stderr[-3000:]}")
    return [line.split() for line in done.stdout.splitlines()]


def _probed(command: Sequence[str], probe: str, folder: Path, name: str) -> tuple[list[list[str]], Json]:
    """A program's output under a probe, and what its trace says: launches by kernel and reason, sums over all."""
    from neutrino.tracing import Trace, find_traces

    traces = folder / f"{name}.{probe}"
    words = _output(
        [sys.executable, "-m", "neutrino.cli.run", "-p", probe, "--tracedir", str(traces), *command], folder
    )
    (path,) = find_traces(traces)
    trace = Trace(path)
    totals: Counter[str] = Counter()
    for kernel in trace.kernels:
        for views in kernel.stacks():
            for view in views.values():
                if probe == "gmem_bytes":
                    rows = view.valid()
                    totals.update({field: int(rows[field].sum()) for field in rows.dtype.names or ()})
    return words, {
        "totals": dict(totals),
        "kernels": [[kernel.demangled, {reason.word: count for reason, count in kernel.counters.items()}]
                    for kernel in trace.kernels if kernel.counters],
        "complete": trace.complete,
        "notes": list(trace.notes),
    }  # fmt: skip


def record(out: Path) -> None:
    """Build, run every case plain and probed, and write what they printed and recorded."""
    results: dict[str, Json] = {"tree": tree_hash(ROOT), "cases": {}, "submit": {name: [] for name in SUBMITS}}
    said = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                          capture_output=True, text=True, check=True).stdout  # fmt: skip
    results["device"], results["driver"] = (word.strip() for word in said.splitlines()[0].split(","))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        program = folder / "replays"
        source = ROOT / "bench" / "workloads" / "replays.cu"
        _output([str(find_cuda_tool("nvcc")), "-std=c++17", "-gencode", "arch=compute_90,code=[sm_90,compute_90]",
                 str(source), "-o", str(program)], folder)  # fmt: skip
        commands = {name: [str(program), name] for name in REPLAYS}
        torch = ROOT / "bench" / "workloads" / "torch_graph.py"
        commands |= {f"torch {form}": [sys.executable, str(torch), form, str(STEPS)] for form in TORCH}
        for name, command in commands.items():
            plain = _output(command, folder)
            probed, trace = _probed(command, "gmem_bytes", folder, name.replace(" ", "_"))
            results["cases"][name] = {"plain": plain, "probed": probed, **trace}
        for number in range(ROUNDS):
            for name in SUBMITS:
                command = [str(program), "submit"]
                words = _output(command, folder) if name == "plain" else _probed(command, name, folder, f"s{number}")[0]
                results["submit"][name].append(float(words[0][-1]))
    (out / RESULTS.name).write_text(json.dumps(results, indent=1) + "\n")


def _uncovered(case: Json) -> float:
    """The share of launches that ran unprobed, among those of kernels that have PTX of their own."""
    counts: Counter[str] = Counter()
    for _, reasons in case["kernels"]:
        if not WITHOUT_PTX.intersection(reasons):
            counts.update(reasons)
    return 1 - counts["probed"] / counts.total() if counts else 1.0


def verdicts(results: Json) -> list[str]:
    """What is wrong with the results, in words; nothing when all is as it should be."""
    wrong = [f"no {name}" for name in ("tree", "device", "driver") if not results.get(name)]
    for name in (*REPLAYS, *(f"torch {form}" for form in TORCH)):
        case = results["cases"].get(name)
        if case is None:
            wrong.append(f"{name}: missing")
            continue
        if not case["plain"] or case["plain"] != case["probed"]:
            wrong.append(f"{name}: the program's output differs")
        if not case["complete"]:
            wrong.append(f"{name}: the trace is not complete")
        if name in REPLAYS:
            loads, stores = (int(word) for word in case["plain"][1][1:])
            if name == "loop":
                # The kernel that sets the condition calls the device runtime, so that it has no twin.
                loads, stores = loads // 1000 * 1000, stores // 1000 * 1000
            if [case["totals"].get("load"), case["totals"].get("store")] != [loads, stores]:
                wrong.append(f"{name}: {case['totals']}, expected {loads} B loaded and {stores} B stored")
        if name != "loop" and _uncovered(case) > MOST_UNCOVERED:
            wrong.append(f"{name}: {_uncovered(case):.1%} of the launches of kernels with PTX ran unprobed")
    if not wrong and results["cases"]["torch graph"]["totals"] != results["cases"]["torch launches"]["totals"]:
        wrong.append("the sums of the CUDA graph are not those of the launches")
    for name, more in added(results).items():
        if len(results["submit"][name]) < ROUNDS or more > MOST_MICROSECONDS:
            wrong.append(f"submit with {name}: +{more:.2f} µs, expected at most {MOST_MICROSECONDS}")
    return wrong


def added(results: Json) -> dict[str, float]:
    """By probe, microseconds that a replay takes longer to submit: the median over rounds of the differences."""
    plain = results["submit"]["plain"]
    return {
        name: median(probed - own for probed, own in zip(results["submit"][name], plain, strict=True))
        for name in SUBMITS[1:]
    }


def _say(results: Json) -> int:
    wrong = verdicts(results)
    for name, case in results["cases"].items():
        counts: Counter[str] = Counter()
        for _, reasons in case["kernels"]:
            counts.update(reasons)
        print(f"{name:16} {dict(counts)}")
    print(f"submit, 200 kernels: {median(results['submit']['plain']):.2f} µs, " + ", ".join(
        f"{name} +{more:.2f}" for name, more in added(results).items()))  # fmt: skip
    print("\n".join(wrong) or "all as without probes, and every sum as expected")
    return 1 if wrong else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line above."""
    parser = argparse.ArgumentParser(prog="python -m bench.graphs")
    parser.add_argument("action", choices=("record", "verdicts"))
    parser.add_argument("file", nargs="?", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path, default=RESULTS.parent)
    options = parser.parse_args(arguments)
    path = options.file
    if options.action == "record":
        record(options.out)
        path = options.out / RESULTS.name
    return judge_files([path], "python -m bench.graphs record --out out", ("cases", "submit"), _say)


if __name__ == "__main__":
    sys.exit(main())
