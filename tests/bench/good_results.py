"""Results as a GPU run without a fault would leave them, for every case that the verdicts ask for."""

from __future__ import annotations

import hashlib
import math
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
)
from bench.measure import GMEM_COLUMNS, LAUNCH_COLUMNS, SCHED_COLUMNS
from bench.verdicts import FUSED

Json = Any

DEVICE = {"device": "NVIDIA H200", "sm_count": 132, "clock_khz": 1980000, "driver": 13000}


def _kernels(entry: Workload) -> list[str]:
    """One kernel name a launch, in order."""
    if entry.name == "half":
        return list(FUSED) * entry.seeds
    if entry.name == "spin":
        return ["spin", *["further"] * 8, *(["spin", *["further"] * 200] * entry.seeds)]
    if entry.name == "streams":
        return ["left", "right"] * entry.seeds
    return [*entry.originals, *entry.captured, "work"] * entry.seeds


def _sched(grid: list[int], block: list[int], ms: float) -> list[Json]:
    slots = math.prod(grid) * -(-math.prod(block) // 32)
    span = int(ms * DEVICE["clock_khz"] * 0.9)
    seen = min(math.prod(grid), DEVICE["sm_count"])
    return [slots, 0, 0, 900, 1200, span - 10, span, seen - 1, seen, min(slots, 16)]


def _trace(entry: Workload, mode: Mode) -> dict[str, Json]:
    columns = list(LAUNCH_COLUMNS)
    columns += SCHED_COLUMNS if Mode.BLOCK_SCHED.value in mode.probes else ()
    columns += GMEM_COLUMNS if Mode.GMEM_BYTES.value in mode.probes else ()
    rows: list[list[Json]] = []
    for index, kernel in enumerate(_kernels(entry)):
        grid, block, ms = [1000 if index % 2 else 3, 1, 1], [48, 1, 1], 0.02
        row: list[Json] = [kernel, grid, block, ms]
        if "records" in columns:
            data = _sched(grid, block, ms)
            row += [None] * len(data) if kernel in entry.originals else data
        if "got_load" in columns:
            want = [None if kernel == "spin" else 8000, 4000, 0, 512 if entry.name == "triton_matmul" else 0]
            got = [None] * 5 if kernel in entry.originals else [want[0] or 77, *want[1:], 0]
            row += [*want, *got]
        rows.append(row)
    kernels = []
    for name in dict.fromkeys(_kernels(entry)):
        launches = _kernels(entry).count(name)
        counts = {FUSED.get(name, "FFMA"): 2, "FMUL": 1}
        kernel = {
            "name": name,
            "reason": entry.originals.get(name, "probed"),
            "detail": "",
            "registers": {"original": 20, "twin": 24, "capped": None},
            "spills": {
                "original": {"stores": 0, "loads": 0},
                "twin": {"stores": 0, "loads": 0},
                "capped": None,
            },
            "frame": {"original": 0, "twin": 0},
            "numerics": {"original": counts, "twin": {**counts, "FMUL": 2}, "own": {"FMUL": 2}},
            "sites": 2,
            "loaded": 1,
            "counters": {entry.originals.get(name, "probed"): launches},
        }
        if name in entry.captured:
            kernel["counters"]["graph"] = 60
        kernels.append(kernel)
    trace = {
        "traces": 1,
        "complete": True,
        "notes": [],
        "kernels": kernels,
        "images": [["fatbin", 5000, False, 180.5]],
        "unmatched": 0,
        "columns": columns,
        "rows": rows,
    }
    if mode is Mode.BLOCK_SCHED and entry.name == "clocks":
        trace["clocks"] = {
            "columns": ["warps", "other_sm", "started_late", "ended_early", "excess_median", "excess_max"],
            "rows": [[2400, 0, 0, 0, 300, 900]] * entry.seeds,
            "samples": [[1000 + i, 5000 + i, i % 132, 900 + i, 4300, i % 132] for i in range(256)],
        }
    if mode is Mode.BLOCK_SCHED and entry.name == "streams":
        trace["overlaps"] = [0] + [132] * (entry.seeds - 1)
    return trace


def _run(entry: Workload, mode: Mode) -> dict[str, Json]:
    digest = [hashlib.sha256(f"{entry.name} {seed}".encode()).hexdigest()[:32] for seed in range(entry.seeds)]
    extra: dict[str, Json] = {}
    if entry.name == "spin":
        extra = {"spun_ms": [3.5] * entry.seeds, "further_each": 200}
    if entry.name == "reload":
        extra = {
            "module_handles_of_both": 3,
            "function_handles_of_both": 2,
            "image_addresses": 1,
            "rounds": 50,
        }
    run: dict[str, Json] = {
        "exit": 0,
        "timed_out": False,
        "seconds": 1.5,
        "stdout": digest[0],
        "ptxas_started": 2 if mode.probes else 0,
        "imported": ["neutrino.patch", "neutrino.ptx", "neutrino.ptx.text.module"] if mode.probes else [],
        "checks": "ok",
        "outputs": digest,
        "launches": len(_kernels(entry)),
        "extra": extra,
    }
    if mode.probes:
        run["trace"] = _trace(entry, mode)
    return run


def _submit(mode: str) -> dict[str, Json]:
    cost = {"plain": 2.8, "not_probed": 2.9, "block_sched": 3.4, "gmem_bytes": 3.5}[mode]
    run: dict[str, Json] = {
        "exit": 0,
        "timed_out": False,
        "checks": "ok",
        "outputs": ["5" * 32],
        "extra": {
            "launches": SUBMIT_LAUNCHES,
            "submit_us": [cost + 0.01 * i for i in range(SUBMIT_REPETITIONS)],
        },
    }
    if mode != "plain":
        total = SUBMIT_LAUNCHES * (SUBMIT_REPETITIONS + 1)
        word = "not-selected" if mode == "not_probed" else "probed"
        run["trace"] = {"kernels": [{"name": "small", "counters": {word: total}}], "notes": []}
    return run


def good_results() -> dict[str, Json]:
    """A new copy each time, for tests to break."""
    warm = {}
    for name in WARM:
        entry = next(entry for entry in WORKLOADS if entry.name == name)
        warm[name] = {**_run(entry, Mode.BLOCK_SCHED), "ptxas_started": 0, "imported": ["neutrino.ptx"]}
        warm[name]["trace"]["images"] = [["fatbin", 5000, True, 1.5]]
    return {
        "schema": 1,
        "tree": hashlib.sha256(b"tree").hexdigest(),
        "driver": "580.159.04",
        "gpu": "NVIDIA H200",
        "max_sm_mhz": "1980",
        "device": dict(DEVICE),
        "build_failures": {},
        "runs": {
            entry.name: {mode.value: _run(entry, mode) for mode in entry.modes} for entry in WORKLOADS if entry.required
        },
        "warm": warm,
        "submit": {mode: [_submit(mode) for _ in range(SUBMIT_PROCESSES)] for mode in SUBMIT_MODES},
    }
