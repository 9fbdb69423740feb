"""Programs of random driver calls on a GPU, with the hook and without: what they print must be the same.

    python3 -m bench.calls record --out FOLDER    on a machine with a GPU and a C compiler: FOLDER/calls_h200.json

The program is ``tests/loader/programs/random.c``, with the kernels and the probe of the hook's own tests; there it
runs in front of the stand-in driver, here in front of NVIDIA's.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.device import read_device
from bench.tree import made_of
from neutrino.tracing import Trace, find_traces

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results" / "calls_h200.json"
LOADER_TESTS = ROOT / "tests" / "loader"
PATIENCE = 60
"""Seconds that a program may take."""
RUNS = [(seed, 1 + seed % 5, 300 if seed % 5 == 0 else 120) for seed in range(1, 25)]
"""Seed, threads, calls of each thread."""


def _compile(folder: Path) -> Path:
    """Build the program of random driver calls in folder; its path."""
    program = folder / "random"
    sources = [LOADER_TESTS / "programs" / name for name in ("program.c", "random.c")]
    subprocess.run(
        ["cc", "-std=gnu11", "-D_GNU_SOURCE", "-O1", f"-I{ROOT / 'neutrino/loader/csrc'}", *map(str, sources),
         "-o", str(program), "-ldl", "-lpthread"],
        check=True,
    )  # fmt: skip
    return program


def _run(command: Sequence[str], environment: dict[str, str], folder: Path) -> tuple[str, int | str]:
    """Run a command in a new folder; return its standard output, and its exit status or, after PATIENCE seconds, "no
    end"."""
    folder.mkdir()
    try:
        result = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, timeout=PATIENCE, check=False, text=True
        )
    except subprocess.TimeoutExpired:
        return "", "no end"
    return result.stdout, result.returncode


def _launches(folder: Path) -> dict[str, int]:
    """Count the launches in the traces below a folder by what became of them: ``probed``, or the reason why not."""
    counted: Counter[str] = Counter()
    for path in find_traces(folder / "trace"):
        for kernel in Trace(path).kernels:
            counted += Counter({reason.word: count for reason, count in kernel.counters.items() if count})
    return dict(sorted(counted.items()))


def record(out: Path) -> int:
    """Run all programs of random driver calls with the hook and without, and write what differs into the folder out.

    Returns 0.
    """
    rows: list[dict[str, Any]] = []
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = _compile(folder)
        environment = dict(os.environ, HOST_IMAGE=str(LOADER_TESTS / "kernels.ptx"), XDG_CACHE_HOME=str(folder / "c"))
        for seed, threads, calls in RUNS:
            command = [str(program), str(seed), str(threads), str(calls)]
            plain, status = _run(command, environment, folder / f"plain{seed}")
            hooked = [sys.executable, "-m", "neutrino.cli.run", "-q", "-p", str(LOADER_TESTS / "tickets.toml"),
                      *command]  # fmt: skip
            probed, probed_status = _run(hooked, environment, folder / f"probed{seed}")
            differing = [pair for pair in zip(plain.splitlines(), probed.splitlines(), strict=False)
                         if pair[0] != pair[1]]  # fmt: skip
            rows.append(
                {
                    "seed": seed, "threads": threads, "calls": calls, "status": [status, probed_status],
                    "lines": len(plain.splitlines()), "same": plain == probed,
                    "sha256": [hashlib.sha256(text.encode()).hexdigest() for text in (plain, probed)],
                    "differing": differing[:3], "launches": _launches(folder / f"probed{seed}"),
                }
            )  # fmt: skip
            print(json.dumps(rows[-1]))
    device, driver = read_device()
    result = {
        **made_of("calls_h200"), "device": device, "driver": driver,
        "seconds": round(time.monotonic() - begin, 1), "runs": rows,
    }  # fmt: skip
    (out / RESULTS.name).write_text(json.dumps(result, indent=1) + "\n")
    good = sum(row["same"] and row["status"] == [0, 0] for row in rows)
    print(f"{good} of {len(rows)} programs print the same with the hook and without")
    return 0


def faults(results: dict[str, Any]) -> list[str]:
    """Return what is wrong with recorded runs of random driver calls, a line each.

    Every program must have run and printed the same with the hook (Neutrino's library in the program) as without, and
    its launches must be probed or left alone for an expected reason.
    """
    found = []
    if [(row["seed"], row["threads"], row["calls"]) for row in results["runs"]] != RUNS:
        found.append("not every program was run")
    if "NVIDIA" not in results["device"]:
        found.append(f"run on {results['device']}")
    for row in results["runs"]:
        plain, hooked = row["sha256"]
        launches = row["launches"]
        if plain != hooked or row["status"] != [0, 0]:
            found.append(f"seed {row['seed']}: exit status {row['status']}, {row['differing']}")
        if row["lines"] <= 100 or launches["probed"] <= 100:
            found.append(f"seed {row['seed']}: {row['lines']} lines, {launches['probed']} launches probed")
        if not launches.keys() <= {"probed", "graph", "refused"}:
            found.append(f"seed {row['seed']}: {launches}")
    return found


def main() -> int:
    """The command line: ``record --out FOLDER``. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["record"])
    parser.add_argument("--out", type=Path, required=True)
    return record(parser.parse_args().out)


if __name__ == "__main__":
    sys.exit(main())
