"""Recompute every verdict of the GPU run from its committed raw numbers.

    python -m bench.verdicts [FILE]

Prints one line a verdict. Exit status: 0 all good, 1 a bound is broken or a case is missing, 2 the file
cannot be judged. Nothing in the file says "good": each verdict is worked out here, from counts, bytes, cycles, digests
and times.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
)
from bench.measure import GMEM_CLASSES, GMEM_COLUMNS, LAUNCH_COLUMNS, SCHED_COLUMNS
from bench.recorded import file_parser, judge_files

Json = Any

RESULTS = Path(__file__).parent / "results" / "road_h200.json"
LANES = 32
RESIDENT_WARPS = 64
"""Warps that one multiprocessor of compute capability 9.0 holds (CUDA C++ Programming Guide, table of
technical specifications per compute capability)."""
CLOCK_MARGIN = 1.05
CLOCK_SLACK = 4000
"""Cycles: the events' own resolution is half a microsecond on either side of a launch."""
BLOCKS_A_MULTIPROCESSOR = 4
"""A grid of so many blocks for each multiprocessor must have been on all of them."""
EXCESS_MEDIAN = 5000
"""Cycles that entry and end may lie outside the program's own clocks, for half of the warps."""
FURTHER_LAUNCHES = 200
RELOADS = 50
READY_MS = 5.0
SCHEMA = 2
"""Of results. In those of 1, graphs were not probed: programs told nothing of replays, and launches that were captured
ran originals, reason ``graph``."""
NOT_PROBED_US = 1.0
PROBED_US = 5.0
"""Guards of a submission's added cost: not targets, but no callback, allocation or wait for the device
fits in."""
FUSED = {"pairs_half2": "HFMA2", "pairs_bfloat162": "HFMA2", "dot_half": "HFMA2", "pairs_float": "FFMA",
         "pairs_double": "DFMA", "pairs_around_memory": "FFMA"}  # fmt: skip
"""Kernels of the workload ``half`` whose pairs the assembler fuses in the original, and into what."""
PRODUCTS = {"DMUL", "FMUL", "FMUL2", "HMUL2"}
PROOFS = ("counts", "no-pair", "pinned", "lines")
NO_PATCHER = (
    "ptx", "isa", "instrument", "scalars", "modifiers", "opcodes", "snippet", "snippet_faults", "snippet_forms",
    "snippet_helpers", "snippet_table", "snippets", "verifier", "operands", "forms", "form_table", "lowering",
)  # fmt: skip
"""Modules under a watched name that verify a probe file's snippets, which every start does; by their last name, since
results of earlier trees have them in other packages."""
PATCHER = {"neutrino.maker.patcher", "neutrino.patch"}
"""The module that makes twins, and the package that it was in when some results were recorded."""


@dataclass(frozen=True)
class Verdict:
    """One recomputed answer. figure: what it rests on, or what is wrong. missed: what is wanted is not reached, though
    it is no worse than it was when that was accepted.
    """

    case: str
    good: bool
    figure: str
    missed: bool = False

    @property
    def word(self) -> str:
        """How a table marks this verdict: ok, missed or FAIL."""
        return "FAIL" if not self.good else "missed" if self.missed else "ok"


class Missed(str):
    """What a check returns where what is wanted is not reached, and what is accepted is."""

    __slots__ = ()


class BrokenError(Exception):
    """A bound is broken, or something is missing; the message says which."""


def need(holds: bool, message: str) -> None:
    """Raise BrokenError with a message, which becomes the verdict of the check that calls this, unless a condition
    holds."""
    if not holds:
        raise BrokenError(message)


class Table:
    """The launches of one run, by column."""

    def __init__(self, trace: Mapping[str, Json]) -> None:
        """Set up a table of a run's launches. trace: what ``bench.measure`` made of a trace, with ``columns`` and
        ``rows``."""
        self.columns: list[str] = trace["columns"]
        self.rows: list[list[Json]] = trace["rows"]

    def need(self, columns: Sequence[str]) -> None:
        """Raise BrokenError when the launches lack one of these columns."""
        missing = [name for name in columns if name not in self.columns]
        need(not missing, f"columns {', '.join(missing)} are missing")

    def __iter__(self) -> Iterator[dict[str, Json]]:
        """Yield each launch as a dict from column to value."""
        for row in self.rows:
            yield dict(zip(self.columns, row, strict=True))


def judge(results: Mapping[str, Json]) -> list[Verdict]:
    """Check the recorded GPU run; return a verdict, good or bad, on each check, in a fixed order."""
    checks: list[tuple[str, Callable[[], str]]] = [
        ("provenance", partial(_provenance, results)),
        ("build", partial(_build, results)),
    ]
    for entry in WORKLOADS:
        if not entry.required and not results.get("runs", {}).get(entry.name):
            continue
        checks.append((f"{entry.name}: outputs", partial(_outputs, results, entry)))
        for mode in entry.modes:
            if mode is not Mode.PLAIN and entry.required:
                name = f"{entry.name}: {mode.value}"
                checks.append((name, partial(_probed, results, entry, mode)))
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


def run_checks(checks: Sequence[tuple[str, Callable[[], str]]]) -> list[Verdict]:
    """Run checks, each with a title; return a verdict for each: good with the line that it returns, bad with what it
    raises."""
    verdicts = []
    for case, check in checks:
        try:
            figure = check()
            verdicts.append(Verdict(case, True, figure, isinstance(figure, Missed)))
        except BrokenError as fault:
            verdicts.append(Verdict(case, False, str(fault)))
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            # Results that lack what they should have; the case is named, whatever form the lack takes.
            verdicts.append(Verdict(case, False, f"missing or malformed: {type(error).__name__}: {error}"))
    return verdicts


def _provenance(results: Mapping[str, Json]) -> str:
    """Check that the results name an H200, its driver, and the source tree they were made from.

    Returns a line for the verdict; raises BrokenError (by ``need``).
    """
    device = results["device"]
    need("H200" in device["device"], f"device is {device['device']!r}, not an H200")
    need(device["sm_count"] > 0 and device["clock_khz"] > 0, "multiprocessors or clock are not known")
    need(results["driver"].count(".") >= 1, f"driver is {results['driver']!r}")
    tree = results["tree"]
    need(results["schema"] in (1, SCHEMA), f"schema is {results['schema']!r}")
    need(len(tree) == 64 and set(tree) <= set("0123456789abcdef"), f"source tree hash is {tree!r}")
    need(not results.get("interrupted"), "the run was interrupted")
    return f"{device['device']}, driver {results['driver']}, {device['sm_count']} SMs, tree {tree[:12]}"


def _build(results: Mapping[str, Json]) -> str:
    """Check that nvcc compiled every program. Returns a line for the verdict; raises BrokenError (by ``need``)."""
    failures = results["build_failures"]
    need(not failures, f"nvcc failed for {', '.join(failures)}")
    return "all programs built"


def _run(results: Mapping[str, Json], entry: Workload, mode: Mode) -> dict[str, Json]:
    """Return what was recorded of a workload run in a mode. Raises BrokenError when it did not run."""
    run: dict[str, Json] | None = results["runs"].get(entry.name, {}).get(mode.value)
    if run is None:
        raise BrokenError(f"{mode.value}: not in the results")
    if "not_run" in run:
        raise BrokenError(f"{mode.value}: not run: {run['not_run']}")
    return run


def ended_well(run: Mapping[str, Json], what: str) -> None:
    """Raise BrokenError when a program timed out, failed, or found its own results wrong.

    what: names the run in the message.
    """
    need(not run["timed_out"], f"{what}: did not end")
    need(run["exit"] == 0, f"{what}: exit status {run['exit']}")
    need(run.get("checks") == "ok", f"{what}: {run.get('checks', 'no report')}")


def _outputs(results: Mapping[str, Json], entry: Workload) -> str:
    """Check that a workload computed and printed the same, bit for bit, in every mode.

    entry: the workload. Returns a line for the verdict; raises BrokenError.
    """
    plain = _run(results, entry, Mode.PLAIN)
    ended_well(plain, "plain")
    need(len(plain["outputs"]) == entry.seeds, f"{len(plain['outputs'])} seeds, not {entry.seeds}")
    need(len(set(plain["outputs"])) == entry.seeds, "different seeds gave the same outputs")
    for mode in entry.modes[1:]:
        run = _run(results, entry, mode)
        ended_well(run, mode.value)
        different = sum(one != other for one, other in zip(plain["outputs"], run["outputs"], strict=True))
        need(different == 0, f"{mode.value}: outputs of {different} seeds differ from the plain run's")
        need(run["stdout"] == plain["stdout"], f"{mode.value}: stdout differs from the plain run's")
        need(run["launches"] == plain["launches"], f"{mode.value}: {run['launches']} launches")
    return f"{entry.seeds} seeds bit-identical in {len(entry.modes)} modes"


def _trace(results: Mapping[str, Json], entry: Workload, mode: Mode) -> dict[str, Json]:
    """Return the trace of a workload's run in a mode, as figures. Raises BrokenError when it is missing or could not be
    read."""
    run = _run(results, entry, mode)
    trace: dict[str, Json] | None = run.get("trace")
    if trace is None:
        raise BrokenError("no trace")
    if "trace_error" in trace:
        raise BrokenError(f"trace: {trace['trace_error'].strip().splitlines()[-1]}")
    return trace


def _probed(results: Mapping[str, Json], entry: Workload, mode: Mode) -> str:
    """Check what probes recorded of every launch of a workload against what the program says of it.

    entry: the workload. Returns a line of figures; raises BrokenError.
    """
    trace = _trace(results, entry, mode)
    need(trace["complete"], "the trace is not complete")
    need(trace["unmatched"] == 0, f"{trace['unmatched']} traced launches that the program did not make")
    table = Table(trace)
    table.need(LAUNCH_COLUMNS)
    launches = _run(results, entry, mode)["launches"]
    need(len(table.rows) == launches > 0, f"{len(table.rows)} rows for {launches} launches")
    figures = []
    for probe in mode.probes:
        judge_row = sched_row if probe == Mode.BLOCK_SCHED.value else gmem_row
        table.need(SCHED_COLUMNS if judge_row is sched_row else GMEM_COLUMNS)
        data_column = "records" if judge_row is sched_row else "got_load"
        count = 0
        for index, row in enumerate(table):
            where = f"launch {index} of {row['kernel']}"
            if row["kernel"] in entry.originals:
                need(row[data_column] is None, f"{where}: has data, but the kernel cannot be probed")
                continue
            need(row[data_column] is not None, f"{where}: no data")
            try:
                judge_row(row, results["device"])
            except BrokenError as fault:
                raise BrokenError(f"{where}: {fault}") from None
            count += 1
        figures.append(f"{count} launches {'plausible' if judge_row is sched_row else 'exact'}")
    if entry.replayed:
        figures.append(_replays(results, entry, mode))
    return f"{', '.join(figures)}; {_kernels(trace, entry)}"


def _replays(results: Mapping[str, Json], entry: Workload, mode: Mode) -> str:
    """Check that each launch in replays of graphs was probed, as many as the program and the list of cases say, and no
    other. entry: the workload. Returns a line for the verdict; raises BrokenError.
    """
    run, trace = _run(results, entry, mode), _trace(results, entry, mode)
    counters: dict[str, dict[str, int]] = {name: {} for name in entry.replayed}
    for kernel in trace["kernels"]:
        for word, count in kernel["counters"].items() if kernel["name"] in counters else ():
            counters[kernel["name"]][word] = counters[kernel["name"]].get(word, 0) + count
    if results["schema"] == 1:
        need(sum(it.get("graph", 0) for it in counters.values()) == run["extra"]["captured"] > 0,
             f"captured launches on record: {counters}")  # fmt: skip
        return f"{run['extra']['captured']} captured launches ran originals, replays not counted"
    expected = sum(entry.replayed.values()) * entry.seeds
    need(run["extra"]["replayed"] == expected, f"{run['extra']['replayed']} launches in replays, not {expected}")
    own = [row["kernel"] for row in Table(trace)]
    for name, each in entry.replayed.items():
        launches = own.count(name)
        need(launches > each * entry.seeds, f"{name}: {launches} launches, of which {each * entry.seeds} in replays")
        need(counters[name] == {"probed": launches}, f"{name}: {counters[name]}, not {launches} probed launches")
    return f"{expected} of them in replays"


def _slots(row: Mapping[str, Json]) -> int:
    """Return how many warps a launch has, of each of which the probe ``block_sched`` keeps a record."""
    return math.prod(row["grid"]) * -(-math.prod(row["block"]) // LANES)


def sched_row(row: Mapping[str, Json], device: Mapping[str, Json]) -> None:
    """Check that what ``block_sched`` recorded of a launch is possible on the device: a record a warp, cycles within
    the launch's time, multiprocessors that exist. row: column → value. Raises BrokenError.
    """
    slots = _slots(row)
    need(row["records"] == slots, f"{row['records']} records in {slots} slots")
    need(row["zero_start"] == 0, f"{row['zero_start']} slots without a start")
    need(row["zero_elapsed"] == 0, f"{row['zero_elapsed']} slots without an elapsed time")
    need(
        0 < row["elapsed_min"] <= row["elapsed_median"] <= row["elapsed_max"],
        "elapsed times are out of order",
    )
    bound = row["ms"] * device["clock_khz"] * CLOCK_MARGIN + CLOCK_SLACK
    for name in ("elapsed_max", "span_max"):
        need(row[name] <= bound, f"{name} is {row[name]} cycles; {row['ms']} ms hold {bound:.0f}")
    need(row["elapsed_max"] <= row["span_max"], "a warp outlasted its multiprocessor's span")
    blocks, multiprocessors = math.prod(row["grid"]), device["sm_count"]
    need(0 <= row["sm_max"] < multiprocessors, f"multiprocessor {row['sm_max']} of {multiprocessors}")
    most = min(blocks, multiprocessors)
    least = multiprocessors if blocks >= BLOCKS_A_MULTIPROCESSOR * multiprocessors else 1
    need(least <= row["sm_seen"] <= most, f"{row['sm_seen']} multiprocessors for {blocks} blocks")
    need(
        1 <= row["resident_max"] <= RESIDENT_WARPS,
        f"{row['resident_max']} warps at once on one multiprocessor",
    )


def gmem_row(row: Mapping[str, Json], _device: Mapping[str, Json]) -> None:
    """Check that ``gmem_bytes`` counted the bytes that the program says it asked for.

    row: column → value. Raises BrokenError.
    """
    for name in GMEM_CLASSES:
        want, got = row[f"want_{name}"], row[f"got_{name}"]
        if want is None:  # spinning: as often as it takes, but at least once by each lane
            need(got > 0, f"{name}: nothing counted")
        else:
            need(got == want, f"{name}: {got} B counted, {want} B by hand")
    need(row["uncounted"] == 0, f"{row['uncounted']} accesses of unknown size")


def _kernels(trace: Mapping[str, Json], entry: Workload) -> str:
    """Check that every twin (the copy with the probe) has its registers, spills and arithmetic on record, and what was
    not probed its reason. entry: the workload. Returns a line on registers; raises BrokenError.
    """
    twins = []
    listed: dict[str, set[str]] = {}
    for kernel in trace["kernels"]:
        name = kernel["name"]
        listed.setdefault(name, set()).update({kernel["reason"], *kernel["counters"]})
        if kernel["reason"] != "probed":
            continue
        registers, spills, numerics = kernel["registers"], kernel["spills"], kernel["numerics"]
        for which in ("original", "twin"):
            need(0 < registers[which] <= 255, f"{name}: {registers[which]} registers in the {which}")
            need(set(spills[which]) == {"stores", "loads"}, f"{name}: no spills given for the {which}")
        numerics_kept(name, numerics)
        twins.append(f"{name} {registers['original']}→{registers['twin']}")
    need(bool(twins), "no kernel was probed")
    for name, reason in entry.originals.items():
        need(reason in listed.get(name, ()), f"{name}: {reason!r} is not on record")
    return "registers " + ", ".join(sorted(set(twins)))


def numerics_kept(name: str, numerics: Mapping[str, Json]) -> None:
    """Check that a twin (copy of a kernel with a probe) has the original's fused and unfused floating-point
    instructions.

    The probe's own are left out. The assembler may fold the probe's copy of a product into one that is there anyway.
    Where a text holds nothing that could be fused otherwise (``proof``), it may repeat code: then only the kinds of
    instructions must be the same.
    """
    proof = numerics.get("proof", "counts")
    need(proof in PROOFS, f"{name}: shown by {proof!r}")
    counts = [numerics[which] for which in ("original", "twin", "own")]
    for mnemonic in sorted(set().union(*counts)):
        original, twin, own = (count.get(mnemonic, 0) for count in counts)
        if proof != "counts":
            good = (twin > 0) == (original > 0) or (twin > 0 and own > 0)
        elif numerics.get("contractible") is False:
            good = (twin > own) == (original > 0)
        else:
            least = original if mnemonic in PRODUCTS else original + own
            good = least <= twin <= original + own
        need(good, f"{name}: {mnemonic}: {original} in the original, {twin} in the twin, {own} its own")


def _workload(name: str) -> Workload:
    """Return the workload (a test program of the bench) with that name."""
    return {entry.name: entry for entry in WORKLOADS}[name]


def _fused(results: Mapping[str, Json]) -> str:
    """Check that the originals of kernels full of products and sums have fused instructions, so that their twins
    (copies with probes) were really tried. Returns a line for the verdict; raises BrokenError.
    """
    counts = []
    for mode in (Mode.BLOCK_SCHED, Mode.GMEM_BYTES, Mode.BOTH):
        trace = _trace(results, _workload("half"), mode)
        kernels = {kernel["name"]: kernel for kernel in trace["kernels"]}
        for name, mnemonic in FUSED.items():
            fused = kernels[name]["numerics"]["original"].get(mnemonic, 0)
            need(fused > 0, f"{name}: no {mnemonic} in the original: the case does not try what it should")
            counts.append(fused)
    return f"{sum(counts)} fused instructions in {len(counts)} twins' originals, all kept"


def _clocks(results: Mapping[str, Json]) -> str:
    """Check the times that ``block_sched`` recorded of warps against clocks that the program read itself.

    Returns a line for the verdict; raises BrokenError.
    """
    clocks = _trace(results, _workload("clocks"), Mode.BLOCK_SCHED)["clocks"]
    rows = [dict(zip(clocks["columns"], row, strict=True)) for row in clocks["rows"]]
    need(len(rows) == _workload("clocks").seeds, f"{len(rows)} launches compared")
    for index, row in enumerate(rows):
        for name in ("other_sm", "started_late", "ended_early"):
            need(row[name] == 0, f"launch {index}: {row[name]} warps: {name}")
        median = row["excess_median"]
        need(0 < median <= EXCESS_MEDIAN, f"launch {index}: the median warp's excess is {median} cycles")
    need(len(clocks["samples"]) >= 100, f"{len(clocks['samples'])} samples")
    for first, last, sm, start, elapsed, probed_sm in clocks["samples"]:
        need(
            start <= first < last <= start + elapsed,
            f"sample [{first}, {last}] is not in [{start}, {start + elapsed}]",
        )
        need(sm == probed_sm, f"sample on multiprocessor {sm}, recorded {probed_sm}")
    warps = sum(row["warps"] for row in rows)
    excess = statistics.median(row["excess_median"] for row in rows)
    return f"{warps} warps bracketed, median excess {excess:.0f} cycles"


def _streams(results: Mapping[str, Json]) -> str:
    """Check that kernels in two streams still ran at once when probed. Returns a line for the verdict; raises
    BrokenError."""
    counts = _trace(results, _workload("streams"), Mode.BLOCK_SCHED)["overlaps"]
    need(len(counts) == _workload("streams").seeds, f"{len(counts)} pairs of launches")
    together = sum(count > 0 for count in counts)
    need(2 * together >= len(counts), f"only {together} of {len(counts)} pairs ran at once")
    return f"{together} of {len(counts)} pairs at once, on {max(counts)} multiprocessors at most"


def _spin(results: Mapping[str, Json]) -> str:
    """Check that a kernel which waits for others still ends when all are probed. Returns a line for the verdict; raises
    BrokenError."""
    entry = _workload("spin")
    for mode in (Mode.BLOCK_SCHED, Mode.GMEM_BYTES):
        run = _run(results, entry, mode)
        ended_well(run, mode.value)
        table = Table(_trace(results, entry, mode))
        data_column = "records" if mode is Mode.BLOCK_SCHED else "got_load"
        kernels = [row["kernel"] for row in table if row[data_column] is not None]
        spins, further = kernels.count("spin"), kernels.count("further")
        need(spins > entry.seeds, f"{mode.value}: {spins} spinning launches with data")
        need(further >= entry.seeds * FURTHER_LAUNCHES, f"{mode.value}: {further} further launches with data")
        need(len(run["extra"]["spun_ms"]) == entry.seeds, f"{mode.value}: not every round ended")
        need(run["extra"]["further_each"] >= FURTHER_LAUNCHES, f"{mode.value}: too few further launches")
    return f"{entry.seeds} rounds of {FURTHER_LAUNCHES} further probed launches ended with each probe"


def _reload(results: Mapping[str, Json]) -> str:
    """Check that images loaded again at the same address were told apart. Returns a line for the verdict; raises
    BrokenError."""
    entry = _workload("reload")
    for mode in entry.modes:
        extra = _run(results, entry, mode)["extra"]
        need(extra["rounds"] >= RELOADS, f"{mode.value}: {extra['rounds']} rounds")
        need(extra["image_addresses"] == 1, f"{mode.value}: images from {extra['image_addresses']} addresses")
    extra = _run(results, entry, Mode.BLOCK_SCHED)["extra"]
    shared = f"{extra['module_handles_of_both']} module and {extra['function_handles_of_both']} function handles"
    return f"{RELOADS} rounds; {shared} served both images"


def _asynchronous(results: Mapping[str, Json]) -> str:
    """Check that bytes of asynchronous copies were counted. Returns a line for the verdict; raises BrokenError."""
    table = Table(_trace(results, _workload("triton_matmul"), Mode.GMEM_BYTES))
    copied = sum(row["got_async"] for row in table)
    need(copied > 0, "no asynchronous copies were counted")
    return f"{copied} B copied asynchronously"


def _first(results: Mapping[str, Json]) -> str:
    """Check that first runs started ptxas and imported the patcher, or the watches that second runs rely on see
    nothing. Returns a line for the verdict; raises BrokenError.
    """
    runs = [run for modes in results["runs"].values() for run in modes.values() if run.get("trace")]
    starts = sum(run["ptxas_started"] for run in runs)
    imports = sum(bool(PATCHER.intersection(run["imported"])) for run in runs)
    need(starts > 0, "no start of ptxas was seen in any first run: the watch does not work")
    need(imports > 0, "no import of the patcher was seen in any first run: the watch does not work")
    return f"{starts} starts of ptxas, patcher imported in {imports} runs"


def _warm(results: Mapping[str, Json], name: str) -> str:
    """Check that a second run took every twin (copy with probes) from the cache: no ptxas, no patcher, ready in time.

    Returns a line for the verdict; raises BrokenError.
    """
    run = results["warm"][name]
    need("not_run" not in run, "not run")
    ended_well(run, "second run")
    plain = results["runs"][name]["plain"]
    need(run["outputs"] == plain["outputs"], "outputs differ from the plain run's")
    need(run["ptxas_started"] == 0, f"ptxas was started {run['ptxas_started']} times")
    imported = [module for module in run["imported"] if module.rpartition(".")[2] not in NO_PATCHER]
    need(not imported, f"imported {', '.join(imported)}")
    images = run["trace"]["images"]
    need(bool(images), "no image on record")
    for kind, size, cached, ready_ms in images:
        need(cached, f"{kind} of {size} B was not found in the cache")
        need(0 <= ready_ms <= READY_MS, f"{kind} of {size} B took {ready_ms} ms to be ready")
    slowest = max(image[3] for image in images)
    return f"{len(images)} cached images, the slowest ready in {slowest:.2f} ms; no ptxas, no patcher"


def _submit_samples(results: Mapping[str, Json], mode: str) -> list[float]:
    """Return how many microseconds submitting a launch took in a mode, of all processes. Raises BrokenError when some
    are missing."""
    runs = results["submit"][mode]
    need(len(runs) == SUBMIT_PROCESSES, f"{len(runs)} processes, not {SUBMIT_PROCESSES}")
    samples: list[float] = []
    for run in runs:
        ended_well(run, mode)
        need(run["extra"]["launches"] == SUBMIT_LAUNCHES, f"{run['extra']['launches']} launches")
        samples += run["extra"]["submit_us"]
    need(len(samples) == SUBMIT_PROCESSES * SUBMIT_REPETITIONS, f"{len(samples)} samples")
    need(all(sample > 0 for sample in samples), "a sample is not positive")
    return samples


def _submit(results: Mapping[str, Json], mode: str) -> str:
    """Check what submitting a launch costs in a mode beside the plain one. Returns a line for the verdict; raises
    BrokenError."""
    median = statistics.median(_submit_samples(results, mode))
    plain = statistics.median(_submit_samples(results, "plain"))
    outputs = {digest for run in results["submit"][mode] for digest in run["outputs"]}
    need(outputs == set(results["submit"]["plain"][0]["outputs"]), "outputs differ from the plain run's")
    if mode == "plain":
        return f"{median:.2f} µs"
    listed = ""
    total = SUBMIT_LAUNCHES * (SUBMIT_REPETITIONS + 1)
    for run in results["submit"][mode]:
        counters: dict[str, int] = {}
        for kernel in run["trace"]["kernels"]:
            for word, count in kernel["counters"].items():
                counters[word] = counters.get(word, 0) + count
        need(sum(counters.values()) == total, f"{sum(counters.values())} launches on record of {total}")
        expected = "not-selected" if mode == "not_probed" else "probed"
        need(counters.get(expected, 0) > 0, f"no launch was {expected}: {counters}")
        if mode == "not_probed":
            need(set(counters) == {expected}, f"not all launches were {expected}: {counters}")
        listed = ", ".join(f"{word} {count}" for word, count in sorted(counters.items()))
    guard = NOT_PROBED_US if mode == "not_probed" else PROBED_US
    need(median - plain <= guard, f"{median:.2f} µs against {plain:.2f} µs: more than {guard} µs above")
    return f"{median:.2f} µs, {median - plain:+.2f} µs, {median / plain:.2f} × plain; {listed}"


def table(verdicts: Sequence[Verdict]) -> str:
    """Return the verdicts as a table for people: a line each, marked, and how many are good."""
    width = max(len(verdict.case) for verdict in verdicts)
    lines = [f"{verdict.word:6} {verdict.case:{width}}  {verdict.figure}" for verdict in verdicts]
    missed = sum(verdict.word == "missed" for verdict in verdicts)
    said = f"{sum(verdict.word == 'ok' for verdict in verdicts)} of {len(verdicts)} verdicts are good"
    return "\n".join([*lines, said + (f", {missed} missed" if missed else "")])


def say(verdicts: Sequence[Verdict]) -> int:
    """Print verdicts. Returns the exit status: 1 when one is not good."""
    print(table(verdicts))
    return 0 if all(verdict.good for verdict in verdicts) else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the verdicts on a file of results.

    Returns the exit status: 0 all good, 1 one is not, 2 there is no such file.
    """
    options = file_parser("bench.verdicts", __doc__, RESULTS).parse_args(arguments)
    return judge_files([options.file], "python -m bench.road --out out", ("device", "runs"), lambda it: say(judge(it)))


if __name__ == "__main__":
    sys.exit(main())
