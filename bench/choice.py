"""What launches cost that are not chosen, on a GPU: with ``--every 100``, and after ``neutrino-ctl off``.

    python3 -m bench.choice record [--out FILE] [--rounds N]    runs `workloads/passing.cu`: a loop of small launches
    python3 -m bench.choice judge [--out FILE]                  recomputes table and verdicts

A launch of one warp is the worst case: it takes the GPU two microseconds, and the host as long to submit it. The
program submits batches through the hook and past it, in turns; without Neutrino both ways are the driver's own
function. The verdicts hold that the kernel's counts were right, that as many launches ran with the probe as were
chosen, and that launches through the hook are complete within ``MOST_TIMES`` of the time of those past it. Exit status:
0 all good, 1 a verdict is not, 2 the file cannot be judged.
"""

from __future__ import annotations

import json
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.command_line import Bench
from bench.probed import made_with
from bench.programs import SOURCES, build_command, must_run
from bench.tree import ROOT
from bench.verdicts import Missed, Verdict, need, run_checks
from neutrino.tracing import Trace, find_traces

Json = Any

RESULTS = ROOT / "bench" / "results" / "choice_h200.json"
PROBE = "block_sched"
PLAIN, PROBED, EVERY, OFF = "plain", "probed", "every 100", "off"
MODES = (PLAIN, PROBED, EVERY, OFF)
MOST_TIMES = {PLAIN: 1.005, EVERY: 1.01, OFF: 1.01}
"""By the mode: how many times as long as past the hook, in the median of processes. Without a hook it is a control."""
NOT_REACHED = {EVERY: 1.02}
"""Where ``MOST_TIMES`` is not reached: what it takes now, with some room. A tenth of it is the hundredth launch itself,
which is probed; the rest is some 45 ns for each of the others."""
FEWEST = 5
BATCH, WARM, BATCHES = 500, 20, 400
"""As in the program: launches of a batch, untimed batches, timed ones."""
TIMES = ("through_us", "past_us")
_LIMIT = 60.0


def record(neutrino: Sequence[str], rounds: int) -> Json:
    """Run the program of small launches in every mode, several times; return medians.

    Mode → of each process the µs per launch of each batch, and how many launches were probed. SystemExit: the program
    could not be built or run.
    """
    start = time.time()
    results: Json = {**made_with("choice_h200"), "started": int(start), "runs": {mode: [] for mode in MODES}}
    with tempfile.TemporaryDirectory(prefix="choice_", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        program = folder / "passing"
        must_run(build_command(SOURCES / "passing.cu", program), folder, "build", _LIMIT)
        for number in range(rounds):
            for mode in MODES:
                results["runs"][mode].append(_once(neutrino, mode, program, folder, number))
    return summarize(results) | {"seconds": round(time.time() - start, 1)}


def summarize(results: Json) -> Json:
    """Return results with the median of each process in place of its batches, and that of all batches of a mode."""
    runs = results["runs"]
    medians = {mode: {what: statistics.median(us for run in runs[mode] for us in run[what]) for what in TIMES}
               for mode in runs}  # fmt: skip
    kept = {mode: [run | {what: statistics.median(run[what]) for what in TIMES} for run in runs[mode]] for mode in runs}
    return results | {"runs": kept, "medians": medians}


def _once(neutrino: Sequence[str], mode: str, program: Path, folder: Path, number: int) -> Json:
    """Run the program of small launches once: return µs per launch, of each batch, and how many launches were probed.

    Times are taken through the hook (Neutrino's library in the program) and past it. mode: one of MODES; number: of the
    process, for file names.
    """
    name = f"{mode.replace(' ', '_')}_{number}"
    report, traces = folder / f"{name}.json", folder / name
    argv = [str(program), "--batches", str(BATCHES), "--out", str(report)]
    if mode != PLAIN:
        options = ["--every", "100"] if mode == EVERY else []
        argv = [*neutrino, "-q", "-p", PROBE, *options, "--tracedir", str(traces), *argv]
    if mode == OFF:
        # The shell's parent is the program.
        argv += ["--then", f"{shlex.quote(sys.executable)} -m neutrino.cli.ctl $PPID off > /dev/null"]
    must_run(argv, folder, name, _LIMIT)
    found: Json = json.loads(report.read_text())
    kept: Json = {key: found["extra"][key] for key in ("is_hooked", *TIMES)}
    kept["checks"] = found["checks"]
    if mode != PLAIN:
        (path,) = find_traces(traces)
        (kernel,) = Trace(path).kernels
        kept["launches"] = {reason.word: count for reason, count in kernel.counters.items() if count}
    return kept


def times(results: Json, mode: str) -> float:
    """How many times as long launches take through the hook (Neutrino's library in the program) as past it: the median
    over processes of the ratios of their batches' medians.
    """
    return float(statistics.median(run["through_us"] / run["past_us"] for run in results["runs"][mode]))


def judge(results: Json) -> list[Verdict]:
    """Check the recorded runs; return two verdicts for each mode: on how many launches were probed, and on what others
    cost."""
    checks = [(f"{mode}: launches", partial(_launches, results, mode)) for mode in MODES]
    checks += [(f"{mode}: time", partial(_time, results, mode)) for mode in MOST_TIMES]
    return run_checks(checks)


def _launches(results: Json, mode: str) -> str:
    """Check that the kernel counted right and that as many launches were probed as the mode chooses.

    Returns a line of counts; raises BrokenError (by ``need``).
    """
    runs = results["runs"][mode]
    need(len(runs) >= FEWEST, f"{len(runs)} processes, expected {FEWEST} or more")
    need(all(run["checks"] == "ok" for run in runs), "the kernel counted wrongly")
    need(all(run["is_hooked"] == (mode != PLAIN) for run in runs), "the hook was there, or was not")
    warm, total = BATCH * WARM, BATCH * (WARM + BATCHES)
    if mode == PLAIN:
        return f"{len(runs)} processes of {total:,} launches, and as many past the hook"
    expected = {PROBED: {"probed": total}, EVERY: {"probed": total // 100, "not-selected": total - total // 100},
                OFF: {"probed": warm, "not-selected": total - warm}}[mode]  # fmt: skip
    for run in runs:
        need(run["launches"] == expected, f"{run['launches']}, expected {expected}")
    return ", ".join(f"{count:,} {word}" for word, count in expected.items())


def _time(results: Json, mode: str) -> str:
    """Check how many times as long launches take through the hook (Neutrino's library in the program).

    Returns a line, which is a ``Missed`` when the wanted bound is exceeded but the accepted one is not; raises
    BrokenError (by ``need``).
    """
    found, wanted = times(results, mode), MOST_TIMES[mode]
    accepted = NOT_REACHED.get(mode, wanted)
    need(found <= accepted, f"{found:.4f} of the driver's, expected at most {accepted}")
    said = f"{found:.4f} of the driver's"
    return Missed(f"{said}; wanted: {wanted}") if found > wanted else said


def table(results: Json) -> str:
    """Return a table for people: µs per launch through the hook (Neutrino's library in the program) and past it, and
    their ratio."""
    lines = [f"{results['device']}, driver {results['driver']}"]
    lines.append(f"{'':12}{'through µs':>12}{'past µs':>10}{'ratio':>8}")
    for mode in results["runs"]:
        through, past = (results["medians"][mode][what] for what in TIMES)
        lines.append(f"{mode:12}{through:>12.3f}{past:>10.3f}{times(results, mode):>8.3f}")
    return "\n".join(lines)


main = Bench(
    "choice", RESULTS, ("device", "driver", "runs", "medians"),
    lambda options, neutrino: record(neutrino, options.rounds), judge, table, FEWEST,
).main  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
