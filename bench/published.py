"""Faults of kernels that were published with their remedies: does a finding name each, and what does its remedy gain?

    python3 -m bench.published record [--out FILE] [--only CASE …]     on a GPU, with nvcc, PyTorch and Triton
    python3 -m bench.published judge [--out FILE]                      recomputes table and verdicts

``workloads/published.py`` has the kernels of each case: with the fault, with the remedy that the finding names, and
some for comparison. It runs once without a probe, where each launch is timed by events, and once with ``block_sched``,
whose findings are those of ``neutrino-report --json``. Scheduling and tails are computed here a second time, from the
records, block by block, and Nsight Compute says how long multiprocessors were active and how many warps they had. A
case that fails is recorded with what it said, and the others go on.
"""

from __future__ import annotations

import argparse
import csv
import heapq
import importlib.util
import json
import math
import os
import shutil
import statistics
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.command_line import Bench
from bench.probed import made_with
from bench.programs import SOURCES, build_command, find_cuda_tool, run_program
from bench.tree import ROOT
from bench.verdicts import Missed, Verdict, need, run_checks
from neutrino.abi.reasons import Reason
from neutrino.errors import TraceError
from neutrino.tracing import find_traces
from neutrino.tracing.trace import Trace

Json = Any

RESULTS = ROOT / "bench" / "results" / "published_h200.json"
PROGRAM = SOURCES / "published.py"
PROBE = "block_sched"
ANALYSES = {"scheduling": "share", "tail": "idle"}
"""Analysis → the figure that it judges by."""
ROUNDS, ROUNDS_PROBED = 60, 6
FEWEST = 30
"""Launches that are timed, at least."""
WEAKER = 0.8
"""Of the faulty kernel's figure: a remedied one in the same state has at most this."""
FASTER = 0.98
"""Of the faulty kernel's time: a remedied one takes at most this."""
STATES = ("ok", "minor", "issue")
FILL = "_ZN2at6native29vectorized_elementwise_kernelILi8ENS0_11FillFunctorIN3c104HalfEEESt5arrayIPcLm1EEEEviT0_T1_"
"""What PyTorch launches for ``torch.zeros`` of halves on compute capability 9.0."""
_SAME = 1e-6
"""By which shares may differ that are computed in two ways."""
ACTIVE, ACTIVE_MOST, WARPS = (
    "sm__cycles_active.avg", "sm__cycles_active.max", "sm__warps_active.avg.pct_of_peak_sustained_active"
)  # fmt: skip
"""Nsight Compute's: cycles in which multiprocessors had a warp, their mean and the most; warps that they had while
active, of as many as they can have, in percent."""
NEAR = 0.05
"""By which the idle share may differ from that of Nsight Compute, which has other launches."""
_FIT = 16
"""Blocks of 128 threads that fit on a multiprocessor: 2,048 threads."""
_LIMIT = 60.0
_BUDGET = 120.0
"""Seconds after which no case begins."""
_SAID = 3000
"""Characters that are kept of what a failing program said."""
_STUBS = {
    "cusparse.h": "typedef struct cusparseContext* cusparseHandle_t; typedef int cusparseStatus_t;",
    "cublas_v2.h": "typedef struct cublasContext* cublasHandle_t; typedef int cublasStatus_t;",
    "cublasLt.h": "typedef struct cublasLtContext* cublasLtHandle_t;",
    "cusolverDn.h": "typedef struct cusolverDnContext* cusolverDnHandle_t;",
    "cusolver_common.h": "typedef int cusolverStatus_t;",
}
"""What ATen's headers declare host functions with; searched last, for toolkits without these libraries."""


@dataclass(frozen=True)
class Pair:
    """A fault, and a remedy that the finding names. kernels: with the one and with the other. resident: blocks that the
    case says a multiprocessor runs at once of each; 0: whatever fits.
    """

    case: str
    analysis: str
    faulty: str
    remedied: str
    resident: tuple[int, int] = (0, 0)


PAIRS = (
    Pair("fill", "scheduling", FILL, "fill_persistent"),
    Pair("fill", "scheduling", "fill_published", "fill_persistent"),
    Pair("gemm", "tail", "gemm_tiles", "gemm_stream_k", (1, 1)),
    Pair("attention", "tail", "attention_one", "attention_two", (1, 2)),
)
CASES = ("gemm", "attention", "fill", "attention_published")
"""Those of the program. ``attention_published`` has the published shape, whose tail depends on the multiprocessors."""


def record(neutrino: Sequence[str], only: Sequence[str]) -> Json:
    """Run the cases on the GPU, with and without the probe; return the raw samples by case."""
    start = time.time()
    results: Json = {**made_with("published_h200"), "started": int(start), "cases": {}}
    with tempfile.TemporaryDirectory(prefix="published_", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        # The compiler runs beside the other cases.
        with ThreadPoolExecutor(1) as pool:
            image = pool.submit(_build, folder / "fill.fatbin")
            for case in only or CASES:
                begin = time.time()
                if begin - start > _BUDGET:
                    results["cases"][case] = {"failed": f"not run: {_BUDGET} s were spent"}
                    continue
                try:
                    found = _case(neutrino, case, folder, image)
                except (AttributeError, LookupError, OSError, TypeError, ValueError) as error:
                    found = {"failed": f"{type(error).__name__}: {error}"}
                results["cases"][case] = found
                print(f"{case}: {time.time() - begin:.1f} s {found.get('failed', '')}", file=sys.stderr, flush=True)
    return results | {"seconds": round(time.time() - start, 1)}


def _case(neutrino: Sequence[str], case: str, folder: Path, built: Future[Json]) -> Json:
    """Run a case without a probe and with it. Returns the reports, findings and launches, or as ``failed`` what went
    wrong.

    built: what the compiler said of the fill kernels.
    """
    found: Json = {}
    argv = [sys.executable, str(PROGRAM), "--case", case]
    caches = {"XDG_CACHE_HOME": str(folder / "cache"), "TRITON_CACHE_DIR": str(folder / "triton")}
    if case == "fill":
        found["build"] = built.result()
        if found["build"]["status"] != 0:
            return found | {"failed": f"nvcc: {found['build']['said']}"}
        argv += ["--image", str(folder / "fill.fatbin")]
    traces, reports = folder / f"{case}_traces", [folder / f"{case}_{mode}.json" for mode in ("plain", "probed")]
    commands = {
        "plain": [*argv, "--rounds", str(ROUNDS), "--profile", "--out", str(reports[0])],
        # PyTorch's own fill kernel has the name of the one that was built, and no PTX.
        "probed": [
            *neutrino, "-q", "-p", PROBE, "--machine-code", "off", "--tracedir", str(traces),
            *argv, "--rounds", str(ROUNDS_PROBED), "--out", str(reports[1]),
        ],
    }  # fmt: skip
    for (mode, command), report in zip(commands.items(), reports, strict=True):
        done = run_program(command, {**os.environ, **caches}, folder, f"{case}_{mode}", _LIMIT)
        if done.status != 0:
            return found | {"failed": f"{mode}: exit status {done.status}: {(done.stdout + done.stderr)[-_SAID:]}"}
        found[mode] = json.loads(report.read_text())
    kernels = kernels_of(found)
    if case in {pair.case for pair in PAIRS}:
        once = [*argv, "--rounds", "1", "--out", str(folder / "ncu.json")]
        found["counters"] = _counters(once, kernels, folder, caches)
    try:
        found |= _recorded(kernels, traces, folder, caches)
    except (TraceError, ValueError, KeyError, OSError) as error:
        found["failed"] = f"trace: {type(error).__name__}: {error}"
    shutil.rmtree(traces, ignore_errors=True)
    return found


def _build(image: Path) -> Json:
    """Compile the fill kernels with PyTorch's headers to an image with machine code and PTX.

    Returns seconds, status, and of a failure what nvcc said.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return {"seconds": 0.0, "status": 1, "said": "PyTorch is not installed"}
    torch = Path(spec.origin).parent
    stubs = image.parent / "stubs"
    stubs.mkdir(exist_ok=True)
    for name, line in _STUBS.items():
        (stubs / name).write_text(line + "\n")
    # PyTorch's headers, and those of NVIDIA's libraries as pip installs them.
    paths = [torch / "include", torch / "include/torch/csrc/api/include"]
    found = [*paths, *sorted((torch.parent / "nvidia").glob("*/include")), stubs]
    # As PyTorch compiles its kernels; none of these paths must come before those of the compiler's own headers.
    flags = ["--expt-relaxed-constexpr", "--expt-extended-lambda", *(f"-isystem={path}" for path in found)]
    command = build_command(SOURCES / "published_fill.cu", image, flags)
    done = run_program(command, os.environ, image.parent, "nvcc", _BUDGET)
    return {"seconds": done.seconds, "status": done.status, "said": done.stderr[-_SAID:] if done.status else ""}


def kernels_of(case: Json) -> list[str]:
    """Return the kernels that a case was recorded with, without PyTorch's own."""
    return [name for name in case["plain"]["kernels"] if name != "torch"]


def _counters(argv: Sequence[str], kernels: Sequence[str], folder: Path, variables: Mapping[str, str]) -> Json:
    """Return what Nsight Compute counts in each launch of a case's kernels, or what kept it from that, as a text."""
    try:
        ncu = str(find_cuda_tool("ncu"))
    except FileNotFoundError as error:
        return str(error)
    names = "|".join(map(short, kernels))
    command = [
        ncu, "--target-processes", "all", "--clock-control", "none", "--cache-control", "none", "-k",
        f"regex:^({names})$", "--metrics", ",".join((ACTIVE, ACTIVE_MOST, WARPS)), "--csv", "--page", "raw",
        "--print-units", "base", "--print-kernel-base", "function", *argv,
    ]  # fmt: skip
    done = run_program(command, {**os.environ, **variables}, folder, "ncu", _LIMIT)
    if done.status != 0:
        return f"exit status {done.status}: {(done.stdout + done.stderr)[-_SAID:]}"
    try:
        return read_counters(done.stdout)
    except (KeyError, ValueError) as error:
        return f"{type(error).__name__}: {error}: {done.stdout[-_SAID:]}"


def read_counters(text: str) -> Json:
    """Return of each launch on a page ``raw`` of ncu's: the kernel's name, blocks, and the three metrics.

    Raises KeyError or ValueError for another page.
    """
    # What ncu and the program print between begins with no quotation mark; the row below the titles has units.
    rows = list(csv.DictReader(line for line in text.splitlines() if line.startswith('"')))
    launches = [row for row in rows if row["ID"].strip()]
    if not launches:
        raise ValueError("no launches")
    return [
        {
            "kernel": row["Kernel Name"].partition("(")[0].strip(),
            "blocks": math.prod(int(number) for number in row["Grid Size"].strip("()").split(",")),
            **{name: float(row[name].replace(",", "")) for name in (ACTIVE, ACTIVE_MOST, WARPS)},
        }
        for row in launches
    ]


def _recorded(kernels: Sequence[str], folder: Path, scratch: Path, variables: Mapping[str, str]) -> Json:
    """Return what the trace of a case has: findings of its kernels, figures of each launch, and counts of launches.

    scratch: a folder for what the report prints. Raises ValueError when there are several traces or no findings.
    """
    # Children that launched nothing may have traces of their own.
    (path,) = [path for path in find_traces(folder) if Trace(path).kernels]
    argv = [sys.executable, "-m", "neutrino.cli.run", "report", str(path), "--json"]
    argv += [word for name in ANALYSES for word in ("--analysis", name)]
    done = run_program(argv, {**os.environ, **variables}, scratch, "report", _LIMIT)
    if done.status != 0:
        raise ValueError(f"report: exit status {done.status}: {done.stderr[-_SAID:]}")
    (document,) = json.loads(done.stdout)["traces"]
    findings = [
        {
            "kernel": found["name"], "analysis": found["analysis"], "state": found["state"],
            "sentence": found["sentence"], "remedies": found["remedies"], "sure": found["sure"]["word"],
            "figures": {figure["name"]: figure["value"] for figure in found["figures"]},
        }
        for found in document["findings"] if found["name"] in kernels
    ]  # fmt: skip
    launches: Json = {}
    counts = []
    for kernel in Trace(path).kernels:
        if kernel.name not in kernels and "FillFunctor" not in kernel.name:
            continue
        counts.append([kernel.name, {reason.word: count for reason, count in kernel.counters.items() if count}])
        if kernel.counters.get(Reason.PROBED, 0):
            launches[kernel.name] = [measured(launch.maps["BlockSched"].records) for launch in kernel.launches()]
    return {"findings": findings, "launches": launches, "counts": counts}


def measured(records: np.ndarray[Any, Any]) -> Json:
    """Return what one launch's blocks say of their multiprocessors, by a walk over all of them.

    records: of ``BlockSched``, ``[block][warp]``. ``empty`` and ``working`` are cycles of all places for blocks:
    between two blocks and in one. A multiprocessor has as many places as it ran blocks at once; each is taken by a
    first block, then by the next one that begins, that which was left first before others. ``spans``: of each
    multiprocessor, cycles from its first block's begin to its last one's end. ``resident``: the most places of one.
    """
    records = records.reshape(records.shape[0], -1)
    blocks: dict[int, list[tuple[int, int]]] = {}
    for row in records:
        begin = min(int(start) for start in row["start"])
        end = max(int(start) + int(elapsed) for start, elapsed in zip(row["start"], row["elapsed"], strict=True))
        blocks.setdefault(int(row["cuid"][0]), []).append((begin, end))
    empty = working = places = resident = 0
    spans = []
    for pieces in blocks.values():
        pieces.sort()
        room = _at_once(pieces)
        left: list[int] = []
        for begin, end in pieces:
            working += end - begin
            if len(left) < room:
                heapq.heappush(left, end)
            else:
                empty += begin - heapq.heapreplace(left, end)
        places += room
        resident = max(resident, room)
        spans.append(max(end for _, end in pieces) - pieces[0][0])
    return {
        "blocks": len(records), "empty": empty, "working": working, "places": places, "resident": resident,
        "spans": {"count": len(spans), "sum": sum(spans), "max": max(spans)},
    }  # fmt: skip


def _at_once(pieces: Sequence[tuple[int, int]]) -> int:
    """Return how many of the blocks, each with its begin and end, ran at once at most; by begin."""
    running: list[int] = []
    most = 0
    for begin, end in pieces:
        while running and running[0] <= begin:
            heapq.heappop(running)
        heapq.heappush(running, end)
        most = max(most, len(running))
    return most


def milliseconds(case: Json, kernel: str, mode: str = "plain") -> float:
    """Return how many milliseconds a launch of a kernel takes: the median. mode: ``plain`` or ``probed``."""
    return float(statistics.median(case[mode]["kernels"][kernel]["ms"]))


def finding(case: Json, kernel: str, analysis: str) -> Json:
    """Return the finding of an analysis on a kernel. Raises KeyError without one."""
    for found in case["findings"]:
        if (found["kernel"], found["analysis"]) == (kernel, analysis):
            return found
    raise KeyError(f"no finding of {analysis} on {kernel}")


def judge(results: Json) -> list[Verdict]:
    """Check the recorded cases; return a verdict, good or bad, on the outputs, findings, figures and gain of each."""
    checks = []
    for name in CASES:
        case = results["cases"].get(name, {})
        checks += [(f"{name}: outputs", partial(_outputs, case)), (f"{name}: figures", partial(_figures, case))]
    checks.append(("fill: the kernel of PyTorch", partial(_same_kernel, results["cases"].get("fill", {}))))
    for pair in PAIRS:
        case = results["cases"].get(pair.case, {})
        title = f"{pair.case}: {short(pair.faulty)}"
        checks += [
            (f"{title}: finding", partial(_finding, case, pair)), (f"{title}: gain", partial(_gain, case, pair)),
            (f"{title}: Nsight Compute", partial(_agreed, case, pair)),
        ]  # fmt: skip
    return run_checks(checks)


def _complete(case: Json) -> None:
    """Raise BrokenError (by ``need``) for a case that was not recorded to its end."""
    need(bool(case), "not recorded")
    said = str(case.get("failed", "")).split()
    need(not said, f"failed: {' '.join(said)[-300:]}")


def _outputs(case: Json) -> str:
    """Check that every kernel gave the same right bits in all launches, with the probe and without, and that all of the
    launches were probed."""
    _complete(case)
    kernels = kernels_of(case)
    for kernel in kernels:
        plain, probed = (case[mode]["kernels"][kernel] for mode in ("plain", "probed"))
        need(len(plain["ms"]) >= FEWEST, f"{kernel}: {len(plain['ms'])} launches were timed, expected {FEWEST} or more")
        need(len(plain["outputs"]) == 1, f"{kernel}: {len(plain['outputs'])} different outputs")
        need(plain["outputs"] == probed["outputs"], f"{kernel}: other outputs with the probe")
        rows = [counts for name, counts in case["counts"] if name == kernel and Reason.PROBED.word in counts]
        need(len(rows) == 1 and len(rows[0]) == 1, f"{kernel}: launches by outcome: {rows}")
        need(rows[0][Reason.PROBED.word] == len(case["launches"][kernel]), f"{kernel}: launches are missing")
    return f"{len(kernels)} kernels, the same bits in all launches, probed or not"


def _figures(case: Json) -> str:
    """Check that the findings' figures are those of the records, computed in another way."""
    _complete(case)
    kernels = kernels_of(case)
    for kernel in kernels:
        launches = case["launches"][kernel]
        empty, working = (sum(launch[key] for launch in launches) for key in ("empty", "working"))
        share = finding(case, kernel, "scheduling")["figures"]["share"]
        need(abs(share - empty / (empty + working)) < _SAME, f"{kernel}: share {share}, {empty} of {empty + working}")
        count = case["plain"]["multiprocessors"]
        idle = sorted(1 - launch["spans"]["sum"] / (count * launch["spans"]["max"]) for launch in launches)
        said = finding(case, kernel, "tail")["figures"]["idle"]
        need(abs(said - idle[(len(idle) - 1) // 2]) < _SAME, f"{kernel}: idle {said}, by the records {idle}")
    return f"scheduling and tail of {len(kernels)} kernels are those of the records"


def _same_kernel(case: Json) -> str:
    """Check that the fill kernel has the name and geometry of what PyTorch itself launches for zeros."""
    _complete(case)
    profiled, mine = case["plain"]["profiled"], case["plain"]["kernels"][FILL]
    names = [name for name, _ in case["counts"]]
    need(names.count(FILL) == 2, f"kernels of that name in the trace, PyTorch's and this one: {names.count(FILL)}")
    need(isinstance(profiled, list) and len(profiled) == 1, f"profiled: {profiled}")
    (row,) = profiled
    shape = [row["grid"][0], row["block"][0]]
    need(shape == [mine["grid"], mine["block"]], f"PyTorch launches {shape}, this {[mine['grid'], mine['block']]}")
    times = [milliseconds(case, kernel) * 1000 for kernel in ("torch", FILL)]
    return f"PyTorch {case['plain']['torch']}: {shape[0]:,} blocks of {shape[1]} threads; " \
           f"torch.zeros takes {times[0]:.1f} µs, this {times[1]:.1f} µs"


def _finding(case: Json, pair: Pair) -> str:
    """Check that the finding is there for the fault, and absent or weaker for the remedy.

    A fault that this GPU does not show is ``Missed``.
    """
    _complete(case)
    faulty, remedied = (finding(case, kernel, pair.analysis) for kernel in (pair.faulty, pair.remedied))
    for wanted, kernel in zip(pair.resident, (pair.faulty, pair.remedied), strict=True):
        resident = max(launch["resident"] for launch in case["launches"][kernel])
        need(wanted in (0, resident), f"{kernel}: {resident} blocks on a multiprocessor at once, expected {wanted}")
    name = ANALYSES[pair.analysis]
    before, after = (found["figures"][name] for found in (faulty, remedied))
    said = (f"{pair.analysis}, {name} {100 * before:.1f} % ({faulty['state']}); {short(pair.remedied)} "
            f"{100 * after:.1f} % ({remedied['state']})")  # fmt: skip
    if faulty["state"] == "ok":
        return Missed(f"{said}; wanted: not ok")
    levels = [STATES.index(found["state"]) for found in (faulty, remedied)]
    need(levels[1] < levels[0] or after <= WEAKER * before, f"{said}: no weaker")
    need(bool(faulty["remedies"]), "no remedy is named")
    return said


def _agreed(case: Json, pair: Pair) -> str:
    """Check that Nsight Compute sees the fault and the remedy as well: of a tail, the same idle share in one of its
    launches; of scheduling, fewer warps with the fault.

    It counts a warp from its launch to its retirement, so it must have more than ran by the records. ``Missed`` where
    it could not be run.
    """
    _complete(case)
    counters = case.get("counters", "not recorded")
    if isinstance(counters, str):
        return Missed(f"{' '.join(counters.split())[-200:]}; wanted: its counters")
    found = []
    for kernel in (pair.faulty, pair.remedied):
        launches = case["launches"][kernel]
        rows = [it for it in counters
                if (it["kernel"], it["blocks"]) == (short(kernel), launches[0]["blocks"])]  # fmt: skip
        need(bool(rows), f"no launch of {kernel}")
        if pair.analysis == "tail":
            ours = finding(case, kernel, "tail")["figures"]["idle"]
            # Launches of one kernel differ: 11, 12 and 21 % were idle in three of attention's.
            theirs = min((1 - row[ACTIVE] / row[ACTIVE_MOST] for row in rows), key=lambda idle: abs(idle - ours))
            need(abs(theirs - ours) <= NEAR, f"{kernel}: idle {ours:.3f}, by Nsight Compute {theirs:.3f}")
        else:
            theirs = statistics.median(row[WARPS] / 100 for row in rows)
            ours = statistics.median(_running(launch) for launch in launches)
            need(theirs >= ours - NEAR, f"{kernel}: {ours:.3f} of all places ran, by Nsight Compute {theirs:.3f}")
        found.append((ours, theirs))
    if pair.analysis == "scheduling":
        need(found[0][1] < found[1][1], f"warps by Nsight Compute: {found[0][1]:.3f}, remedied {found[1][1]:.3f}")
    what = "idle" if pair.analysis == "tail" else "blocks that run, of those that fit"
    return f"{what}: " + ", ".join(
        f"{short(kernel)} {100 * ours:.1f} %, by Nsight Compute {100 * theirs:.1f} %"
        for kernel, (ours, theirs) in zip((pair.faulty, pair.remedied), found, strict=True)
    )


def _running(launch: Json) -> float:
    """Return how many blocks of a fill kernel ran on average, from first to last instruction, of as many as fit."""
    return float(launch["working"] / (_FIT * launch["spans"]["sum"]))


def _gain(case: Json, pair: Pair) -> str:
    """Check that the remedied kernel is faster. One that is not is ``Missed``."""
    _complete(case)
    before, after = (milliseconds(case, kernel) for kernel in (pair.faulty, pair.remedied))
    said = f"{before * 1000:.1f} → {after * 1000:.1f} µs, {after / before:.2f} times"
    return said if after <= FASTER * before else Missed(f"{said}; wanted: {FASTER}")


def short(kernel: str) -> str:
    """Return a kernel's name for tables."""
    return "vectorized_elementwise_kernel" if kernel == FILL else kernel


def table(results: Json) -> str:
    """Return for people what the gallery shows: each kernel's time, geometry, scheduling and tail, and of each fault
    the finding's sentence, what it says to try, and what that gained."""
    head = ("µs", "probed", "blocks", "at once", "waves", "cycles between blocks", "idle")
    lines = [f"{results['device']}, driver {results['driver']}"]
    lines.append(f"{'':31}" + "".join(f"{word:>{max(9, len(word) + 2)}}" for word in head))
    for name, case in results["cases"].items():
        if "failed" in case:
            lines.append(f"{name}: failed")
            continue
        lines.append(name)
        for kernel in kernels_of(case):
            cells = zip(_cells(case, kernel), head, strict=True)
            lines.append(f"  {short(kernel):29}" + "".join(f"{cell:>{max(9, len(word) + 2)}}" for cell, word in cells))
    for pair in PAIRS:
        case = results["cases"].get(pair.case, {"failed": ""})
        if "failed" not in case:
            lines += ["", *_in_words(case, pair)]
    return "\n".join(lines)


def _cells(case: Json, kernel: str) -> Iterator[str]:
    """Yield the cells of a kernel's row: its time without the probe and with it. Cycles are those of all places of a
    multiprocessor, of each launch."""
    launches = case["launches"][kernel]
    yield f"{milliseconds(case, kernel) * 1000:.1f}"
    yield f"{milliseconds(case, kernel, 'probed') * 1000:.1f}"
    yield f"{launches[0]['blocks']:,}"
    yield str(max(launch["resident"] for launch in launches))
    yield f"{finding(case, kernel, 'tail')['figures']['waves']:.2f}"
    empty, whole = cycles(case, kernel)
    yield f"{empty:,.0f} of {whole:,.0f}"
    yield f"{100 * finding(case, kernel, 'tail')['figures']['idle']:.1f} %"


def _in_words(case: Json, pair: Pair) -> Iterator[str]:
    """Yield lines on a fault: the finding, the remedy, the finding after it, and both times."""
    faulty, remedied = (finding(case, kernel, pair.analysis) for kernel in (pair.faulty, pair.remedied))
    words = [f"{faulty['state']}: {pair.analysis} in {short(pair.faulty)}", f"  {faulty['sentence']}"]
    if pair.analysis == "scheduling":
        launches = case["launches"][pair.faulty]
        each = statistics.median(launch["spans"]["max"] / launch["blocks"] for launch in launches)
        words.append(f"  on the whole GPU a block begins every {each:.2f} cycles")
    words += [f"  try: {remedy}" for remedy in faulty["remedies"]]
    before, after = (milliseconds(case, kernel) * 1000 for kernel in (pair.faulty, pair.remedied))
    words.append(f"  tried: {short(pair.remedied)}: {before:.1f} → {after:.1f} µs; then {remedied['state']}: "
                 f"{remedied['sentence']}")  # fmt: skip
    for line in words:
        yield from textwrap.wrap(line, 118, subsequent_indent="    ", break_on_hyphens=False)


def cycles(case: Json, kernel: str) -> tuple[float, float]:
    """Return cycles between blocks, and all cycles of places for blocks, per multiprocessor and launch."""
    launches = case["launches"][kernel]
    count = sum(launch["spans"]["count"] for launch in launches)
    empty, working = (sum(launch[key] for launch in launches) for key in ("empty", "working"))
    return empty / count, (empty + working) / count


def _add_only(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--only CASE …`` to the command line."""
    parser.add_argument("--only", nargs="+", choices=CASES, default=[], help="cases; all by default")


main = Bench(
    "published", RESULTS, ("device", "driver", "cases"),
    lambda options, neutrino: record(neutrino, options.only), judge, table, add=_add_only,
).main  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
