"""Verdicts on the GPU run of the road, from its committed figures."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
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
from bench.measure import GMEM_MAP, SCHED_MAP
from bench.verdicts import BrokenError, Verdict, need, run_checks

Json = Any
Results = Mapping[str, Json]

RESULTS = Path(__file__).parent / "results" / "road_h200.json"
MAPS = {Mode.BLOCK_SCHED.value: SCHED_MAP, Mode.GMEM_BYTES.value: GMEM_MAP}
FURTHER_LAUNCHES = 200
RELOADS = 50
READY_MS = 5.0
NOT_PROBED_US, PROBED_US = 1.0, 5.0
"""Guards of a submission's added cost: not targets, but no callback, allocation or wait for the device fits in."""
FUSED = {"pairs_half2": "HFMA2", "pairs_bfloat162": "HFMA2", "dot_half": "HFMA2", "pairs_float": "FFMA",
         "pairs_double": "DFMA", "pairs_around_memory": "FFMA"}  # fmt: skip
"""Kernels of the workload ``half`` whose pairs the assembler fuses in the original, and into what."""


def judge(results: Results) -> list[Verdict]:
    """Check the recorded GPU run; return a verdict, good or bad, on each check, in a fixed order."""
    checks: list[tuple[str, Callable[[], str]]] = [("provenance", partial(_provenance, results))]
    for entry in WORKLOADS:
        checks.append((f"{entry.name}: outputs", partial(_outputs, results, entry)))
        checks += [(f"{entry.name}: {mode.value}", partial(_probed, results, entry, mode)) for mode in entry.modes[1:]]
    checks += [
        ("half: fused pairs", partial(_fused, results)),
        ("clocks: bracketed", partial(_clocks, results)),
        ("streams: at once", partial(_streams, results)),
        ("spin: ends", partial(_spin, results)),
        ("reload: same address", partial(_reload, results)),
        ("triton_matmul: wgmma", partial(_asynchronous, results)),
        ("first runs", partial(_first, results)),
        *[(f"{name}: second run", partial(_warm, results, name)) for name in WARM],
        *[(f"submit: {mode}", partial(_submit, results, mode)) for mode in SUBMIT_MODES],
    ]
    return run_checks(checks)


def _provenance(results: Results) -> str:
    """Check that the results name an H200, its driver, and the source tree, and that all was built. As all below: a
    line for the verdict, or BrokenError (by ``need``)."""
    device, tree = results["device"], results["tree"]
    need("H200" in device["device"], f"device is {device['device']!r}, not an H200")
    need(device["sm_count"] > 0 and device["clock_khz"] > 0, "multiprocessors or clock are not known")
    need(results["driver"].count(".") >= 1, f"driver is {results['driver']!r}")
    need(len(tree) == 64 and set(tree) <= set("0123456789abcdef"), f"source tree hash is {tree!r}")
    need(not results["build_failures"], f"nvcc failed for {', '.join(results['build_failures'])}")
    return f"{device['device']}, driver {results['driver']}, {device['sm_count']} SMs, tree {tree[:12]}"


def _run(results: Results, entry: Workload, mode: Mode) -> dict[str, Json]:
    """Return what was recorded of a workload run in a mode, which has ended well."""
    run: dict[str, Json] | None = results["runs"].get(entry.name, {}).get(mode.value)
    if run is None:
        raise BrokenError(f"{mode.value}: not in the results")
    return ended_well(run, mode.value)


def ended_well(run: dict[str, Json], what: str) -> dict[str, Json]:
    """Return a run that has ended, without an error and with right results. what: names it."""
    need(not run["timed_out"], f"{what}: did not end")
    need(run["exit"] == 0, f"{what}: exit status {run['exit']}")
    need(run.get("checks") == "ok", f"{what}: {run.get('checks', 'no report')}")
    return run


def _outputs(results: Results, entry: Workload) -> str:
    """Check that a workload computed and printed the same, bit for bit, in every mode."""
    plain = _run(results, entry, Mode.PLAIN)
    need(plain["seeds"] == entry.seeds, f"{plain['seeds']} seeds, not {entry.seeds}")
    need(plain["distinct"] == entry.seeds, "different seeds gave the same outputs")
    for mode in entry.modes[1:]:
        run = _run(results, entry, mode)
        for what in ("outputs", "stdout", "launches"):
            need(run[what] == plain[what], f"{mode.value}: {what} differ from the plain run's")
    return f"{entry.seeds} seeds bit-identical in {len(entry.modes)} modes"


def _trace(results: Results, entry: Workload, mode: Mode) -> dict[str, Json]:
    """Return what the trace of a workload's run in a mode says."""
    trace: dict[str, Json] | None = _run(results, entry, mode).get("trace")
    if trace is None:
        raise BrokenError("no trace")
    need("trace_error" not in trace, f"trace: {trace.get('trace_error', '')[-200:]}")
    return trace


def _probed(results: Results, entry: Workload, mode: Mode) -> str:
    """Check that all launches of a workload were probed and no fault was found in what was recorded of any."""
    trace, launches = _trace(results, entry, mode), _run(results, entry, mode)["launches"]
    need(trace["complete"], "the trace is not complete")
    need(trace["unmatched"] == 0, f"{trace['unmatched']} traced launches that the program did not make")
    need(not trace["faults"], "; ".join(trace["faults"]))
    for probe in mode.probes:
        count = sum(trace["good"][MAPS[probe]].values())
        need(count == launches > 0, f"{probe}: {count} of {launches} launches are right")
    twins = [kernel for kernel in trace["kernels"] if kernel["reason"] == "probed"]
    need(bool(twins), "no kernel was probed")
    wrong = [f"{kernel['name']}: {kernel['fault']}" for kernel in twins if "fault" in kernel]
    need(not wrong, "; ".join(wrong))
    registers = {f"{kernel['name']} {'→'.join(map(str, kernel['registers']))}" for kernel in twins}
    return f"{launches} launches right; registers {', '.join(sorted(registers))}"


def _fused(results: Results) -> str:
    """Check that the originals of kernels full of products and sums have fused instructions, so that their twins
    (copies with probes) were really tried."""
    counts = []
    for mode in workload("half").modes[1:]:
        kernels = {kernel["name"]: kernel for kernel in _trace(results, workload("half"), mode)["kernels"]}
        for name, mnemonic in FUSED.items():
            counts.append(kernels[name]["fused"].get(mnemonic, 0))
            need(counts[-1] > 0, f"{name}: no {mnemonic} in the original: the case does not try what it should")
    return f"{sum(counts)} fused instructions in {len(counts)} twins' originals, all kept"


def _clocks(results: Results) -> str:
    """Check the times that ``block_sched`` recorded of warps against clocks that the program read itself."""
    clocks = _trace(results, workload("clocks"), Mode.BLOCK_SCHED)["clocks"]
    need(clocks["launches"] == workload("clocks").seeds, f"{clocks['launches']} launches compared")
    need(not clocks["faults"], "; ".join(clocks["faults"]))
    return f"{clocks['warps']} warps bracketed, median excess {statistics.median(clocks['excess']):.0f} cycles"


def _streams(results: Results) -> str:
    """Check that kernels in two streams still ran at once when probed."""
    counts = _trace(results, workload("streams"), Mode.BLOCK_SCHED)["overlaps"]
    need(len(counts) == workload("streams").seeds, f"{len(counts)} pairs of launches")
    together = sum(count > 0 for count in counts)
    need(2 * together >= len(counts), f"only {together} of {len(counts)} pairs ran at once")
    return f"{together} of {len(counts)} pairs at once, on {max(counts)} multiprocessors at most"


def _spin(results: Results) -> str:
    """Check that a kernel which waits for others still ends when all are probed."""
    entry = workload("spin")
    for mode in (Mode.BLOCK_SCHED, Mode.GMEM_BYTES):
        run, good = _run(results, entry, mode), _trace(results, entry, mode)["good"][MAPS[mode.value]]
        need(good["spin"] > entry.seeds, f"{mode.value}: {good['spin']} spinning launches with data")
        further = good["further"]
        need(further >= entry.seeds * FURTHER_LAUNCHES, f"{mode.value}: {further} further launches with data")
        need(len(run["extra"]["spun_ms"]) == entry.seeds, f"{mode.value}: not every round ended")
        need(run["extra"]["further_each"] >= FURTHER_LAUNCHES, f"{mode.value}: too few further launches")
    return f"{entry.seeds} rounds of {FURTHER_LAUNCHES} further probed launches ended with each probe"


def _reload(results: Results) -> str:
    """Check that images loaded again at the same address were told apart."""
    entry = workload("reload")
    for mode in entry.modes:
        extra = _run(results, entry, mode)["extra"]
        need(extra["rounds"] >= RELOADS, f"{mode.value}: {extra['rounds']} rounds")
        need(extra["image_addresses"] == 1, f"{mode.value}: images from {extra['image_addresses']} addresses")
    extra = _run(results, entry, Mode.BLOCK_SCHED)["extra"]
    shared = f"{extra['module_handles_of_both']} module and {extra['function_handles_of_both']} function handles"
    return f"{RELOADS} rounds; {shared} served both images"


def _asynchronous(results: Results) -> str:
    """Check that bytes of asynchronous copies were counted."""
    copied = _trace(results, workload("triton_matmul"), Mode.GMEM_BYTES)["copied"]
    need(copied > 0, "no asynchronous copies were counted")
    return f"{copied} B copied asynchronously"


def _first(results: Results) -> str:
    """Check that first runs started ptxas and imported the patcher, or the watches that second runs rely on see
    nothing."""
    runs = [run for modes in results["runs"].values() for run in modes.values() if run.get("trace")]
    starts, imports = sum(run["ptxas_started"] for run in runs), sum(bool(run["imported"]) for run in runs)
    need(starts > 0, "no start of ptxas was seen in any first run: the watch does not work")
    need(imports > 0, "no import of the patcher was seen in any first run: the watch does not work")
    return f"{starts} starts of ptxas, patcher imported in {imports} runs"


def _warm(results: Results, name: str) -> str:
    """Check that a second run took every twin (copy with probes) from the cache: no ptxas, no patcher, ready in
    time."""
    run = ended_well(results["warm"][name], "second run")
    need(run["outputs"] == results["runs"][name]["plain"]["outputs"], "outputs differ from the plain run's")
    need(run["ptxas_started"] == 0, f"ptxas was started {run['ptxas_started']} times")
    need(not run["imported"], f"imported {', '.join(run['imported'])}")
    images = run["trace"]["images"]
    need(bool(images), "no image on record")
    for kind, size, cached, ready_ms in images:
        need(cached, f"{kind} of {size} B was not found in the cache")
        need(0 <= ready_ms <= READY_MS, f"{kind} of {size} B took {ready_ms} ms to be ready")
    slowest = max(image[3] for image in images)
    return f"{len(images)} cached images, the slowest ready in {slowest:.2f} ms; no ptxas, no patcher"


def submitted(results: Results, mode: str) -> float:
    """Return the median of the microseconds that submitting a launch took in a mode."""
    runs: Sequence[Json] = results["submit"][mode]
    return float(statistics.median(us for run in runs for us in run["extra"]["submit_us"]))


def _submit(results: Results, mode: str) -> str:
    """Check what submitting a launch costs in a mode beside the plain one."""
    runs, total = results["submit"][mode], SUBMIT_LAUNCHES * (SUBMIT_REPETITIONS + 1)
    need(len(runs) == SUBMIT_PROCESSES, f"{len(runs)} processes, not {SUBMIT_PROCESSES}")
    counters: Counter[str] = Counter()
    for run in runs:
        ended_well(run, mode)
        need(run["extra"]["launches"] == SUBMIT_LAUNCHES, f"{run['extra']['launches']} launches")
        samples = run["extra"]["submit_us"]
        need(len(samples) == SUBMIT_REPETITIONS and min(samples) > 0, f"samples are {samples}")
        need(run["outputs"] == results["submit"]["plain"][0]["outputs"], "outputs differ from the plain run's")
        if mode != "plain":
            counters = Counter()
            for kernel in run["trace"]["kernels"]:
                counters.update(kernel["counters"])
            need(counters.total() == total, f"{counters.total()} launches on record of {total}")
            expected = "not-selected" if mode == "not_probed" else "probed"
            need(counters[expected] > 0, f"no launch was {expected}: {dict(counters)}")
            need(mode != "not_probed" or set(counters) == {expected}, f"not all were {expected}: {dict(counters)}")
    median, plain = submitted(results, mode), submitted(results, "plain")
    guard = NOT_PROBED_US if mode == "not_probed" else PROBED_US
    need(median - plain <= guard, f"{median:.2f} µs against {plain:.2f} µs: more than {guard} µs above")
    listed = "".join(f", {word} {count}" for word, count in sorted(counters.items()))
    return f"{median:.2f} µs, {median - plain:+.2f} µs{listed}"
