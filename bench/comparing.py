"""Is ``neutrino-report --diff`` silent where nothing changed, and does it name a kernel that is 5 % slower first?

    python3 -m bench.comparing record [--out FILE]     runs workloads/comparing.cu: seven times as it is, three slowed
    python3 -m bench.comparing judge [--out FILE]      recomputes the verdicts

Each two of the seven runs of one build are compared, and each of the three of the other build with one of these. That
the other is slower is measured without probes. Exit status: 0 all good, 1 a verdict is not, 2 the file is no such one.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.command_line import Bench
from bench.probed import made_with, with_probe
from bench.programs import SOURCES, build_command, run_program
from bench.tree import ROOT
from bench.verdicts import Verdict, need, run_checks
from neutrino.tracing import find_traces
from neutrino.tracing.comparison import Comparison, compare
from neutrino.tracing.comparison import Verdict as Judged
from neutrino.tracing.trace import Trace

Json = Any

RESULTS = ROOT / "bench" / "results" / "comparing_h200.json"
KERNELS = ("arithmetic", "brief", "copy", "rows")
SLOWED, MORE = "arithmetic", 5
RUNS = {"same": 7, "slowed": 3}
PAIRS = 20
"""Of runs of one build, at least."""


def record() -> Json:
    """Build and run both programs, with a probe and without; return what comparing says of each pair of traces.

    SystemExit: a program failed.
    """
    results: Json = {**made_with("comparing_h200"), "without_probes": {}, "same": [], "slowed": []}
    with tempfile.TemporaryDirectory(prefix="comparing_", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        traces: dict[str, list[Trace]] = {}
        for title, count in RUNS.items():
            program = folder / title
            flags = [f"-DMORE={MORE}"] if title == "slowed" else []
            _run(build_command(SOURCES / "comparing.cu", program, flags), folder, f"build-{title}")
            results["without_probes"][title] = [_times(_run([str(program)], folder, title)) for _ in range(3)]
            traces[title] = []
            for number in range(count):
                path = folder / f"{title}-{number}"
                _run(with_probe([str(program)], "block_sched", path), folder, path.name)
                traces[title] += [Trace(found) for found in find_traces(path)]
        results["same"] = [_said(compare(*pair)) for pair in itertools.combinations(traces["same"], 2)]
        results["slowed"] = [
            _said(compare(first, second)) for first, second in zip(traces["same"], traces["slowed"], strict=False)
        ]
    return results


def _run(argv: Sequence[str], folder: Path, name: str) -> str:
    """Run a command within 120 seconds, with a cache of Neutrino's own; return its output. SystemExit: it failed."""
    done = run_program(argv, {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}, folder, f"out-{name}", 120)
    if done.status != 0:
        raise SystemExit(f"{' '.join(argv)}: exit status {done.status}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def _times(printed: str) -> dict[str, float]:
    """Return what a program printed: microseconds by kernel."""
    return {name: float(time) for name, time in (line.split() for line in printed.splitlines())}


def _said(comparison: Comparison) -> Json:
    """Return what a comparison says, in plain values: kernels in its order, and of each the figures by interval."""
    return {
        "figures": comparison.figures,
        "kernels": [
            {
                "name": kernel.first.kernel.name, "changed": kernel.is_changed, "code_differs": kernel.code_differs,
                "figures": {
                    change.key.name: [
                        change.verdict is Judged.CHANGED, change.interval and change.interval.low,
                        change.interval and change.interval.ratio, change.interval and change.interval.high,
                    ]
                    for change in kernel.changes
                },
            }
            for kernel in comparison.kernels
        ],
        "alone": len(comparison.only_first) + len(comparison.only_second),
    }  # fmt: skip


def judge(results: Json) -> list[Verdict]:
    """Check each pair, and that the slowed kernel is slowed; return a verdict, good or bad, on each."""
    checks = [("pairs", partial(_enough, results)), ("without probes", partial(_is_slower, results["without_probes"]))]
    checks += [(f"same {number}", partial(_is_silent, pair)) for number, pair in enumerate(results["same"], 1)]
    checks += [(f"slowed {number}", partial(_names, pair)) for number, pair in enumerate(results["slowed"], 1)]
    return run_checks(checks)


def _enough(results: Json) -> str:
    """Check that there are as many pairs as are wanted."""
    count = len(results["same"]), len(results["slowed"])
    need(count[0] >= PAIRS and count[1] >= RUNS["slowed"], f"{count} pairs, {PAIRS} and {RUNS['slowed']} are wanted")
    return f"{count[0]} of one build, {count[1]} of two"


def _is_slower(runs: Json) -> str:
    """Check that without probes the one kernel takes about 5 % longer; of each program's runs the best."""
    best = {title: {name: min(run[name] for run in found) for name in KERNELS} for title, found in runs.items()}
    ratios = {name: best["slowed"][name] / best["same"][name] for name in KERNELS}
    need(1.03 <= ratios[SLOWED] <= 1.07, f"{SLOWED} takes {ratios[SLOWED]:.3f} times as long, 1.03 to 1.07 are wanted")
    return ", ".join(f"{name} {best['same'][name]:.1f} µs, {ratio:.3f} times" for name, ratio in ratios.items())


def _judged(pair: Json) -> dict[str, Json]:
    """Return the kernels of a pair by name. Checks that all are there, with a time that was judged by an interval."""
    kernels = {kernel["name"]: kernel for kernel in pair["kernels"]}
    need(sorted(kernels) == sorted(KERNELS) and not pair["alone"], f"kernels: {sorted(kernels)}")
    unjudged = [name for name, kernel in kernels.items() if kernel["figures"]["time"][2] is None]
    need(not unjudged, f"the time was not judged of {unjudged}")
    return kernels


def _is_silent(pair: Json) -> str:
    """Check that nothing is said to have changed."""
    kernels = _judged(pair)
    changed = [name for name, kernel in kernels.items() if kernel["changed"]]
    need(not changed, f"said to have changed: {changed}")
    widest = max(abs(kernel["figures"]["time"][2] - 1) for kernel in kernels.values())
    return f"{pair['figures']} figures, times within {100 * widest:.1f} %"


def _names(pair: Json) -> str:
    """Check that the slowed kernel is the first that is named, with 5 % in its interval, and no other is."""
    kernels = _judged(pair)
    changed = [kernel["name"] for kernel in pair["kernels"] if kernel["changed"]]
    need(changed == [SLOWED], f"said to have changed: {changed}")
    _, low, ratio, high = kernels[SLOWED]["figures"]["time"]
    need(1 < low <= ratio <= high and 1.03 <= ratio <= 1.07, f"{low:.3f} to {high:.3f} times as long")
    return f"{SLOWED}: {100 * (ratio - 1):+.1f} % ({100 * (low - 1):+.1f} to {100 * (high - 1):+.1f})"


main = Bench(
    "comparing", RESULTS, ("without_probes", *RUNS), lambda options, neutrino: record(), judge,
).main  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
