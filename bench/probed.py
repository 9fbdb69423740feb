"""Programs run plain and with probes: what they print, and what their traces say, in plain numbers."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.programs import must_run
from bench.tree import made_of

Json = Any
_NUMBERS = itertools.count()

WITHOUT_PTX = frozenset({"no-ptx", "vendor", "variant"})
"""Reasons of kernels that have no PTX of their own: of that architecture, and not a vendor's."""
UNKNOWN = {"(kernels that were loaded before Neutrino)", "(functions that the hook never saw obtained)"}
"""What functions are called whose look-up the hook did not see; the second name is that of older traces."""


def made_with(name: str) -> dict[str, Json]:
    """Return what results are made with, to be kept in their file: digests of the sources, the first GPU and its
    driver.

    name: the stem of the file.
    """
    listed = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                            capture_output=True, text=True, check=True).stdout  # fmt: skip
    device, driver = (word.strip() for word in listed.splitlines()[0].split(","))
    return {**made_of(name), "device": device, "driver": driver}


def environment(folder: Path) -> dict[str, str]:
    """Return environment variables with which frameworks keep PTX, compute the same each time, and have caches in
    folder."""
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "CUPY_COMPILE_WITH_PTX": "1",
        "CUPY_CACHE_DIR": str(folder / "cupy"),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "XLA_FLAGS": "--xla_gpu_generate_line_info=true --xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0",
    }


@dataclass(frozen=True)
class Ended:
    """A program that has ended well: the words of each line that it printed, and the lines of its standard error."""

    words: list[list[str]]
    errors: list[str]


def run(
    command: Sequence[str], folder: Path, *, more: Mapping[str, str] | None = None, limit: float = 280
) -> Ended:  # fmt: skip
    """Run a program, which must succeed, for at most ``limit`` seconds; return what it printed, in words.

    more: environment variables. Raises SystemExit with its output when it fails.
    """
    name = f"run_{next(_NUMBERS)}"
    done = must_run(command, folder, name, limit, {**environment(folder), **(more or {})})
    return Ended([line.split() for line in done.stdout.splitlines()], done.stderr.splitlines())


def with_probe(command: Sequence[str], probe: str, traces: Path, options: Sequence[str] = ()) -> list[str]:
    """Return the command that runs a program with a probe. traces: the folder for its traces; options: of neutrino."""
    return [sys.executable, "-m", "neutrino.cli.run", "-p", probe, "--tracedir", str(traces), *options, *command]


def recorded(path: Path, *, sums: bool = False) -> dict[str, Json]:
    """Read a trace; return what it says as plain data: launches by kernel and by what became of them ("probed" or a
    reason).

    sums: also the totals of every field of all records.
    """
    from neutrino.tracing import Trace

    trace = Trace(path)
    totals: Counter[str] = Counter()
    for kernel in trace.kernels if sums else ():
        for views in kernel.stacks():
            for view in views.values():
                rows = view.valid()
                totals.update({field: int(rows[field].sum()) for field in rows.dtype.names or ()})
    return {
        "totals": dict(totals),
        "kernels": [[kernel.demangled, {reason.word: count for reason, count in kernel.counters.items()}]
                    for kernel in trace.kernels if kernel.counters],
        "complete": trace.complete,
        "notes": list(trace.notes),
    }  # fmt: skip


def probed(
    command: Sequence[str], probe: str, folder: Path, name: str, options: Sequence[str] = ()
) -> tuple[list[list[str]], dict[str, Json]]:
    """Run a program under a probe; return the words of each line that it printed, and what its one trace says.

    name: of the traces; options: of neutrino.
    """
    from neutrino.tracing import find_traces

    traces = folder / f"{name}.{probe}"
    words = run(with_probe(command, probe, traces, options), folder).words
    (path,) = find_traces(traces)
    return words, recorded(path, sums=probe == "gmem_bytes")


def launches(trace: Json) -> Counter[str]:
    """Count a trace's launches by what became of them ("probed" or a reason), over all kernels. trace: from
    ``recorded``."""
    counts: Counter[str] = Counter()
    for _, reasons in trace["kernels"]:
        counts.update(reasons)
    return counts


def uncovered(trace: Json) -> float:
    """Return the share (0 to 1) of a trace's launches that ran without the probe; 1 when there are none.

    Only of kernels that have PTX of their own.
    """
    counts: Counter[str] = Counter()
    for name, reasons in trace["kernels"]:
        if name not in UNKNOWN and not WITHOUT_PTX.intersection(reasons):
            counts.update(reasons)
    return 1 - counts["probed"] / counts.total() if counts else 1.0
