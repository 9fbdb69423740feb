"""Executable graphs with probes, on a GPU: results, records and the cost of submitting a replay.

    python3 -m bench.graphs record [--out FILE]    on a GPU, with nvcc and PyTorch
    python3 -m bench.graphs judge [--out FILE]     recomputes the verdicts; exit 0 good, 1 not

Each case of ``workloads/replays.cu`` computes the bytes that its replays move; ``workloads/torch_graph.py`` runs
a compiled transformer's training steps as launches and as a CUDA graph, whose sums must be the same: with
``--machine-code off``, since PyTorch's own kernels copy the graph's inputs, and fill its weights.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from bench.command_line import Bench
from bench.probed import launches, made_with, probed, run, uncovered
from bench.programs import find_cuda_tool
from bench.tree import ROOT
from bench.verdicts import Verdict

Json = Any

RESULTS = ROOT / "bench" / "results" / "graphs_h200.json"
REPLAYS = ("queue", "alternate", "updates", "nested", "memory", "loop")
TORCH = ("launches", "graph")
STEPS = 20
ROUNDS = 9
SUBMITS = ("plain", "gmem_bytes", "block_sched")
WANTED_MICROSECONDS, MOST_MICROSECONDS = 1.5, 3.5
"""That a replay of 200 kernels should, and may take longer to submit. The write of the cell alone takes 1.0."""
MOST_UNCOVERED = 0.02
"""Share of the launches of kernels with PTX of their own that may run unprobed."""


def record() -> Json:
    """Build the programs, run every case plain and probed, and return what they printed and recorded."""
    results: dict[str, Json] = {**made_with("graphs_h200"), "cases": {}, "submit": {name: [] for name in SUBMITS}}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        program = folder / "replays"
        source = ROOT / "bench" / "workloads" / "replays.cu"
        run([str(find_cuda_tool("nvcc")), "-std=c++17", "-gencode", "arch=compute_90,code=[sm_90,compute_90]",
                 str(source), "-o", str(program)], folder)  # fmt: skip
        commands = {name: [str(program), name] for name in REPLAYS}
        torch = ROOT / "bench" / "workloads" / "torch_graph.py"
        commands |= {f"torch {form}": [sys.executable, str(torch), form, str(STEPS)] for form in TORCH}
        for name, command in commands.items():
            plain = run(command, folder).words
            options = ("--machine-code", "off") if name.startswith("torch") else ()
            words, trace = probed(command, "gmem_bytes", folder, name.replace(" ", "_"), options)
            results["cases"][name] = {"plain": plain, "probed": words, **trace}
        for number in range(ROUNDS):
            for name in SUBMITS:
                command = [str(program), "submit"]
                if name == "plain":
                    words = run(command, folder).words
                else:
                    words, _ = probed(command, name, folder, f"s{number}")
                results["submit"][name].append(float(words[0][-1]))
    return results


def verdicts(results: Json) -> list[str]:
    """Return what is wrong with the recorded results, a message each; nothing when all is as it should be."""
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
        if name != "loop" and uncovered(case) > MOST_UNCOVERED:
            wrong.append(f"{name}: {uncovered(case):.1%} of the launches of kernels with PTX ran unprobed")
    if not wrong and results["cases"]["torch graph"]["totals"] != results["cases"]["torch launches"]["totals"]:
        wrong.append("the sums of the CUDA graph are not those of the launches")
    for name, more in added(results).items():
        if len(results["submit"][name]) < ROUNDS or more > MOST_MICROSECONDS:
            wrong.append(f"submit with {name}: +{more:.2f} µs, expected at most {MOST_MICROSECONDS}")
    return wrong


def added(results: Json) -> dict[str, float]:
    """Return how many µs longer submitting a graph's replay takes with each probe than without: medians over rounds."""
    plain = results["submit"]["plain"]
    return {
        name: median(with_probe - own for with_probe, own in zip(results["submit"][name], plain, strict=True))
        for name in SUBMITS[1:]
    }


def judge(results: Json) -> list[Verdict]:
    """Return verdicts on what was recorded, and on what is wanted of a replay's cost."""
    wrong = verdicts(results)
    found = [Verdict("replays", not wrong, "; ".join(wrong) or "all as without probes, and every sum as expected")]
    for name, more in added(results).items():
        said = f"+{more:.2f} µs; wanted: {WANTED_MICROSECONDS}"
        found.append(Verdict(f"submit with {name}", more <= MOST_MICROSECONDS, said, more > WANTED_MICROSECONDS))
    return found


def table(results: Json) -> str:
    """Return the launches of each case by what became of them, and the cost of a replay, as lines for people."""
    lines = [f"{name:16} {dict(launches(case))}" for name, case in results["cases"].items()]
    return "\n".join([*lines, f"submit, 200 kernels: {median(results['submit']['plain']):.2f} µs"])


main = Bench("graphs", RESULTS, ("cases", "submit"), lambda options, neutrino: record(), judge, table).main


if __name__ == "__main__":
    sys.exit(main())
