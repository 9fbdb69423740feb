"""Whether training in eager PyTorch is the same with a probe in all of its kernels, bit by bit, on a GPU.

    python3 -m bench.training record [--out FILE]    on a GPU, with PyTorch
    python3 -m bench.training judge [--out FILE]     recomputes the verdicts; exit 0 good, 1 not

PyTorch's kernels are machine code without PTX, so nearly all twins are made of that. Each model is trained twice
without Neutrino, and twice with it, the second time with the twins of the first in the cache. Where the two plain runs
differ, nothing can be said of the others.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.command_line import Bench
from bench.probed import launches, made_with, recorded, run
from bench.tree import ROOT
from bench.verdicts import Verdict

Json = Any

RESULTS = ROOT / "bench" / "results" / "training_h200.json"
MODELS = ("transformer", "resnet", "unet")
STEPS = 100
PROBE = "block_sched"
WAYS = ("plain", "plain again", "first", "second")
LEAST = 0.95
"""The share of launches to be probed, without those of vendors' libraries."""
_RESULTS = 8
"""Words of a line that tell of losses and weights; two more tell of time."""


def _record(options: argparse.Namespace, command: Sequence[str]) -> Json:
    """Train each model in each of ``WAYS``; return what the program prints, how long it took, and what traces say."""
    from neutrino.tracing import find_traces

    results = {**made_with("training_h200"), "steps": STEPS, "models": {}}
    with tempfile.TemporaryDirectory() as temporary:
        for model in MODELS:
            program = [sys.executable, str(ROOT / "bench" / "workloads" / "training_steps.py"), model, str(STEPS)]
            folder = Path(temporary) / model
            folder.mkdir()
            found = results["models"][model] = {}
            for way in WAYS:
                traces = folder / way.replace(" ", "_")
                probing = [] if way.startswith("plain") else [*command, "-p", PROBE, "--tracedir", str(traces)]
                begin = time.monotonic()
                (words,) = run([*probing, *program], folder, more={"XDG_CACHE_HOME": str(folder)}).words
                found[way] = {"words": words, "seconds": round(time.monotonic() - begin, 2)}
                if probing:
                    (path,) = find_traces(traces)
                    found[way]["launches"] = dict(launches(recorded(path)))
    return results


def judge(results: Json) -> list[Verdict]:
    """Judge results: the same losses and weights in all runs, and enough launches probed."""
    verdicts = []
    for model in MODELS:
        found = results["models"][model]
        digests = [found[way]["words"][:_RESULTS] for way in WAYS]
        same = all(digest == digests[0] and len(digest) == _RESULTS for digest in digests)
        steady = digests[0] == digests[1]
        said = "the same losses and weights" if same else "other losses or weights"
        verdicts.append(Verdict(f"{model}, results", same, said if steady else "two plain runs differ"))
        for way in WAYS[2:]:
            counts = {reason: count for reason, count in found[way]["launches"].items() if reason != "vendor"}
            total = sum(counts.values())
            part = counts.get("probed", 0) / total if total else 0.0
            others = ", ".join(f"{count:,} {reason}" for reason, count in sorted(counts.items()) if reason != "probed")
            said = f"{part:.1%} of {total:,} launches that are no vendor's probed; {others or 'no others'}"
            verdicts.append(Verdict(f"{model}, {way} run", part >= LEAST, said))
    return verdicts


def table(results: Json) -> str:
    """Return a table for people: milliseconds of a step, and seconds of the whole program, over those without a
    probe."""
    lines = [f"{results['device']}, driver {results['driver']}, {results['steps']} steps with {PROBE}",
             f"{'':14}{'plain ms':>10}{'probed ms':>11}{'plain s':>9}{'first s':>9}{'second s':>10}"]  # fmt: skip
    for model in MODELS:
        found = results["models"][model]
        each = {way: float(found[way]["words"][-1]) for way in WAYS}
        plain = statistics.fmean(found[way]["seconds"] for way in WAYS[:2])
        lines.append(
            f"{model:14}{statistics.fmean((each['plain'], each['plain again'])):10.2f}{each['second']:11.2f}"
            f"{plain:9.1f}{found['first']['seconds']:9.1f}{found['second']['seconds']:10.1f}"
        )
    return "\n".join(lines)


BENCH = Bench("training", RESULTS, ("device", "driver", "models"), _record, judge, table)

if __name__ == "__main__":
    sys.exit(BENCH.main())
