"""How many launches of CuPy and Numba are probed that compile in the process and keep no PTX, on a GPU.

    python3 -m bench.passing record [--out FILE]    on a GPU, with CuPy and Numba
    python3 -m bench.passing judge [--out FILE]     recomputes the verdicts; exit 0 good, 1 not

CuPy compiles anew, by NVRTC, into an empty cache. Each program runs plain and with a probe, and must print the same.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.command_line import Bench
from bench.probed import launches, made_with, recorded, run
from bench.tree import ROOT
from bench.verdicts import Verdict

Json = Any

RESULTS = ROOT / "bench" / "results" / "passing_h200.json"
PROGRAMS = {"cupy": ("cupy_mix.py", "4"), "numba": ("numba_mix.py", "4")}
LEAST = 0.9
"""The share of launches that are to be probed, of kernels that were compiled in the process."""
LEFT_OUT = frozenset({"vendor", "variant"})
"""Reasons of launches of prebuilt kernels: vendors' libraries, and Thrust's in CuPy's wheel, whose PTX is for another
architecture."""


def _record(options: argparse.Namespace, command: Sequence[str]) -> Json:
    """Run the programs plain and with a probe; return what they print, and what the traces say."""
    from neutrino.tracing import find_traces

    results = made_with("passing_h200")
    with tempfile.TemporaryDirectory() as temporary:
        for name, (script, rounds) in PROGRAMS.items():
            program = [sys.executable, str(ROOT / "bench" / "workloads" / script), rounds]
            traces = Path(temporary) / f"{name}.traces"
            printed = []
            probing = [*command, "-p", "gmem_bytes", "--tracedir", str(traces)]
            for way, words in (("plain", []), ("probed", probing)):
                folder = Path(temporary) / f"{name}.{way}"
                folder.mkdir()
                more = {"CUPY_COMPILE_WITH_PTX": "0", "NUMBA_CACHE_DIR": str(folder / "numba")}
                printed.append(run([*words, *program], folder, more=more).words)
            (path,) = find_traces(traces)
            results[name] = {"plain": printed[0], "printed": printed[1], "trace": recorded(path)}
    return results


def share(trace: Json) -> float:
    """Return the share (0 to 1) of launches that were probed, without those of prebuilt kernels.

    trace: from ``recorded``.
    """
    counts: Counter[str] = Counter({
        reason: count for reason, count in launches(trace).items() if reason not in LEFT_OUT
    })  # fmt: skip
    return counts["probed"] / counts.total() if counts else 0.0


def judge(results: Json) -> list[Verdict]:
    """Judge results: the same output with the probe, and enough launches probed."""
    verdicts = []
    for name in PROGRAMS:
        found = results[name]
        same = found["plain"] == found["printed"] != []
        verdicts.append(Verdict(f"{name}, results", same, f"{'' if same else 'not '}the same with the probe"))
        part = share(found["trace"])
        counts = ", ".join(f"{count} {reason}" for reason, count in sorted(launches(found["trace"]).items()))
        verdicts.append(Verdict(f"{name}, launches", part >= LEAST, f"{part:.0%} probed ({counts})"))
    return verdicts


BENCH = Bench("passing", RESULTS, ("device", "driver", *PROGRAMS), _record, judge)

if __name__ == "__main__":
    sys.exit(BENCH.main())
