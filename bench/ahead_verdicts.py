"""Recompute every verdict on libraries patched ahead of time from the committed raw numbers.

    python -m bench.ahead_verdicts [FILE]

Prints one line a verdict. Exit status: 0 all good, 1 a bound is broken or a case is missing, 2 the file cannot be
judged.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.ahead_cases import (
    ALL_PROBES,
    EMITTED,
    LEAST_FUNCTIONS,
    LEAST_OF_CTRANSLATE2,
    LIBRARIES,
    RECORDS,
    SEEDS,
    SILENT,
    SUBMIT_PROCESSES,
    Way,
)
from bench.measure import GMEM_COLUMNS, LAUNCH_COLUMNS, SCHED_COLUMNS
from bench.recorded import file_parser, judge_files
from bench.verdicts import (
    BrokenError,
    Table,
    Verdict,
    ended_well,
    gmem_row,
    need,
    numerics_kept,
    run_checks,
    say,
    sched_row,
)  # fmt: skip

Json = Any

RESULTS = Path(__file__).parent / "results" / "ahead_h200.json"
NOT_RECORDING_US = 0.2
"""By how much a submission may be slower with a stub that does not record: the noise from process to process."""
_OTHER_PROBES = ("gmem_bytes",)


def judge(results: Mapping[str, Json]) -> list[Verdict]:
    """Check recorded runs of libraries patched ahead of time; return a verdict, good or bad, on each check, in a fixed
    order."""
    checks: list[tuple[str, Callable[[], str]]] = [
        ("provenance", partial(_provenance, results)),
        ("patched", partial(_patched, results)),
    ]
    cases = {library.name: library.ways for library in LIBRARIES}
    cases |= {f"emit_{emit}": (Way.STUB,) for emit in EMITTED}
    cases |= {"loader": (Way.BARE, Way.STUB, Way.COMMAND)}
    cases |= {f"torch_{name}": (Way.BARE, Way.STUB) for name in ("vecadd", "linked")}
    for name, ways in cases.items():
        checks.append((f"{name}: outputs", partial(_outputs, results, name, ways)))
        checks += [(f"{name}: {way.value}", partial(_recorded, results, name, way)) for way in ways if way in RECORDS]
    checks += [("torch: its own work", partial(_torch, results)), ("submit: not recording", partial(_submit, results)),
               ("ctranslate2: patched", partial(_ctranslate2_patched, results)),
               ("ctranslate2: used", partial(_ctranslate2_used, results))]  # fmt: skip
    return run_checks(checks)


def _provenance(results: Mapping[str, Json]) -> str:
    """Check that the results name an H200, the source tree they were made from, and no failed build.

    Returns a line on them; raises BrokenError (by ``need``).
    """
    device = results["device"]
    need("H200" in device["device"], f"device is {device['device']!r}, not an H200")
    need(device["sm_count"] > 0 and device["clock_khz"] > 0, "multiprocessors or clock are not known")
    tree = results["tree"]
    need(len(tree) == 64 and set(tree) <= set("0123456789abcdef"), f"source tree hash is {tree!r}")
    need(not results.get("interrupted"), "the run was interrupted")
    failures = {**results["build_failures"], **results["link_failures"]}
    need(not failures, f"the build failed for {', '.join(failures)}")
    return f"{device['device']}, driver {results['driver']}, {device['sm_count']} SMs, tree {tree[:12]}"


def _patched(results: Mapping[str, Json]) -> str:
    """Check that patching every library succeeded, passed ``--check`` and probed each kernel.

    Returns a line of figures; raises BrokenError (by ``need``).
    """
    wanted = {f"{library.name}_both" for library in LIBRARIES} | {f"vecadd_emit_{emit}" for emit in EMITTED}
    wanted |= {"vecadd_single", "submit_single"}
    kernels = 0
    for name in sorted(wanted):
        kept = results["patched"][name]
        need(kept["exit"] == 0, f"{name}: exit status {kept['exit']}")
        need(kept["check"] == 0, f"{name}: --check says {kept['check']}")
        need(kept["reasons"] == {"probed": kept["kernels"]}, f"{name}: {kept['reasons']}")
        kernels += kept["kernels"]
    return f"{len(wanted)} libraries, {kernels} kernels, all probed"


def _run(results: Mapping[str, Json], name: str, way: Way) -> dict[str, Json]:
    """Return what was recorded of a workload run in a way. Raises BrokenError (by ``need``) if it did not run or end
    well."""
    run: dict[str, Json] = results["runs"][name][way.value]
    need("not_run" not in run, f"{way.value}: not run: {run.get('not_run')}")
    ended_well(run, way.value)
    return run


def _outputs(results: Mapping[str, Json], name: str, ways: tuple[Way, ...]) -> str:
    """Check that a program computed, printed and launched the same with its original library and in each of the ways
    with the patched one, and that only ways that record left a trace. ways: in which it was used. Returns a line of
    figures; raises BrokenError.
    """
    plain = _run(results, name, Way.PLAIN)
    need(len(set(plain["outputs"])) == len(plain["outputs"]) or name == "loader", "seeds with the same outputs")
    need(len(plain["outputs"]) >= SEEDS, f"{len(plain['outputs'])} seeds")
    for way in (Way.PLAIN, *ways):
        run = _run(results, name, way)
        need(run["outputs"] == plain["outputs"], f"{way.value}: other outputs than the original library's")
        need(run["stdout"] == plain["stdout"], f"{way.value}: stdout differs")
        need(run["launches"] == plain["launches"] > 0, f"{way.value}: {run['launches']} launches")
        traces = 0 if way in SILENT else 1
        need(run["traces"] == traces, f"{way.value}: {run['traces']} traces, not {traces}")
    return f"{len(plain['outputs'])} seeds bit-identical in {len(ways) + 1} ways"


def _recorded(results: Mapping[str, Json], name: str, way: Way) -> str:
    """Check that what a patched library's probes recorded fits what the program itself says of its launches.

    It must be complete, without a launch too many or too few, and plausible. Returns a line of figures; raises
    BrokenError.
    """
    run = _run(results, name, way)
    trace = run["trace"]
    need("trace_error" not in trace, f"trace: {trace.get('trace_error', '').strip()[-200:]}")
    need(trace["complete"], "the trace is not complete")
    if not name.startswith("torch"):
        need(trace["unmatched"] == 0, f"{trace['unmatched']} traced launches that the program did not make")
    probes = _OTHER_PROBES if way is Way.OTHER else ALL_PROBES
    table = Table(trace)
    table.need(LAUNCH_COLUMNS)
    table.need(GMEM_COLUMNS)
    if way is Way.OTHER:
        need("records" not in table.columns, "the library's own probe recorded beside the run's")
    else:
        table.need(SCHED_COLUMNS)
    need(len(table.rows) == run["launches"] > 0, f"{len(table.rows)} rows for {run['launches']} launches")
    for index, row in enumerate(table):
        where = f"launch {index} of {row['kernel']}"
        need(row["got_load"] is not None, f"{where}: no data")
        try:
            gmem_row(row, results["device"])
            if "block_sched" in probes:
                sched_row(row, results["device"])
        except BrokenError as fault:
            raise BrokenError(f"{where}: {fault}") from None
    twins = [kernel for kernel in trace["kernels"] if kernel["reason"] == "probed"]
    need(bool(twins), "no kernel was probed")
    for kernel in twins:
        if kernel["numerics"]:
            numerics_kept(kernel["name"], kernel["numerics"])
    kernels = len({kernel["name"] for kernel in twins})
    return f"{len(table.rows)} launches of {kernels} kernels as {' and '.join(probes)} must have them"


def _torch(results: Mapping[str, Json]) -> str:
    """Check that PyTorch's own results were the same in all runs, before and after it loaded a library.

    Raises BrokenError.
    """
    seen = set()
    for name in ("torch_vecadd", "torch_linked"):
        for way in (Way.PLAIN, Way.BARE, Way.STUB):
            digests = _run(results, name, way)["torch"]["digests"]
            need(len(digests) == 3, f"{name}: {way.value}: {len(digests)} digests")
            seen.update(digests)
    need(len(seen) == 1, f"PyTorch computed {len(seen)} different results")
    return "the same results before and after loading, with and without a patched library"


def _submit(results: Mapping[str, Json]) -> str:
    """Check that a patched library that does not record adds at most NOT_RECORDING_US to each submission of a launch.

    Returns the medians in microseconds; raises BrokenError.
    """
    medians = {}
    for mode in ("plain", "bare"):
        runs = results["submit"][mode]
        need(len(runs) == SUBMIT_PROCESSES, f"{mode}: {len(runs)} processes")
        for run in runs:
            ended_well(run, mode)
            need(run["traces"] == 0, f"{mode}: recorded")
        # Whatever else the machine does only adds: a process's fastest repetition is nearest to the cost itself.
        medians[mode] = statistics.median(min(run["extra"]["submit_us"]) for run in runs)
    added = medians["bare"] - medians["plain"]
    need(added <= NOT_RECORDING_US, f"a submission takes {added:.3f} µs more than {medians['plain']:.3f} µs")
    return f"{medians['plain']:.3f} µs a launch, {added:+.3f} µs with the stub that does not record"


def _ctranslate2_patched(results: Mapping[str, Json]) -> str:
    """Check that every kernel of CTranslate2's library was probed. Returns a line of figures; raises BrokenError."""
    kept = results["ctranslate2"]["patched"]
    need(kept["exit"] == 0 and kept["check"] == 0, f"exit status {kept['exit']}, --check {kept.get('check')}")
    need(kept["kernels"] >= LEAST_OF_CTRANSLATE2, f"{kept['kernels']} kernels")
    need(kept["reasons"] == {"probed": kept["kernels"]}, str(kept["reasons"]))
    return f"all {kept['kernels']} kernels in {kept['seconds']:.0f} s"


def _ctranslate2_used(results: Mapping[str, Json]) -> str:
    """Check that CTranslate2's functions computed the same when patched, and that enough of their kernels were
    recorded. Returns a line of figures; raises BrokenError.
    """
    plain, probed = (results["ctranslate2"][way.value] for way in (Way.PLAIN, Way.STUB))
    for what, run in (("plain", plain), ("patched", probed)):
        ended_well(run, what)
        need(len(run["outputs"]) >= LEAST_FUNCTIONS, f"{what}: {len(run['outputs'])} functions")
    need(plain["outputs"] == probed["outputs"], "other outputs than the original library's")
    trace = probed["trace"]
    need("trace_error" not in trace, f"trace: {trace.get('trace_error', '').strip()[-200:]}")
    need(trace["complete"], "the trace is not complete")
    launched = set()
    for row in Table(trace):
        if row["records"] is None:
            continue
        # The program does not time these launches: all of block_sched that needs no time.
        sched_row({**row, "ms": 1e6}, results["device"])
        launched.add(row["kernel"])
    need(len(launched) >= LEAST_FUNCTIONS, f"{len(launched)} kernels were recorded")
    return f"{len(plain['outputs'])} functions bit-identical, {len(launched)} kernels recorded"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the verdicts on a file of results.

    Returns the exit status: 0 all good, 1 one is not, 2 there is no such file.
    """
    options = file_parser("bench.ahead_verdicts", __doc__, RESULTS).parse_args(arguments)
    command = "python -m bench.ahead --out out --wheel ctranslate2-*.whl"
    return judge_files([options.file], command, ("device", "runs", "patched"), lambda results: say(judge(results)))


if __name__ == "__main__":
    sys.exit(main())
