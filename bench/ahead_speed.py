"""What patching a library costs beside the assembler: its wall time against the same ``ptxas`` commands alone.

    python -m bench.ahead_speed LIBRARY --arch sm_90 -p block_sched -j 2

The library is patched once with an assembler that writes down what it is asked, then again and again with the real
one, in turns with the commands that were written down, by as many at a time as neutrino-patch has processes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from neutrino.toolchain import find_assembler

LIMIT = 1.25
"""Patching may take this many times what its assembler takes alone."""

_RECORDER = """#!/bin/sh
case "$*" in *--version*) exec {ptxas} "$@";; esac
kept=$(mktemp -d {folder}/XXXXXXXX)
for word; do
  case "$word" in
  *.ptx) cp "$word" "$kept/module.ptx"; word="$kept/module.ptx" ;;
  *.cubin) word="$kept/module.cubin" ;;
  esac
  printf '%s\\n' "$word" >> "$kept/argv"
done
exec {ptxas} "$@"
"""


def record(command: Sequence[str], ptxas: Path, folder: Path) -> list[list[str]]:
    """Run a command, which must succeed, and return the argv of each assembly, with the text kept in folder."""
    wrapper = folder / "ptxas"
    wrapper.write_text(_RECORDER.format(ptxas=shlex.quote(str(ptxas)), folder=shlex.quote(str(folder))))
    wrapper.chmod(0o755)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"NEUTRINO_PTXAS": str(wrapper)})
    kept = sorted(folder.glob("*/argv"), key=lambda path: -(path.parent / "module.ptx").stat().st_size)
    return [[str(ptxas), *path.read_text().splitlines()] for path in kept]


def replay(commands: Sequence[Sequence[str]], jobs: int) -> None:
    """Run the commands, jobs of them at a time, the biggest text first."""

    def assemble(argv: Sequence[str]) -> None:
        subprocess.run(argv, check=False, capture_output=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(assemble, commands))


def timed(action: Callable[[], object]) -> tuple[float, float]:
    """Seconds of wall time, and of processor time of the processes that were started."""

    def used() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    begin, before = time.monotonic(), used()
    action()
    return time.monotonic() - begin, used() - before


def measure(library: Path, options: Sequence[str], jobs: int, rounds: int) -> dict[str, Any]:
    """Raw samples: (wall, processor) seconds of patching and of its assembler alone, in turns."""
    ptxas = find_assembler().path
    environment = os.environ | {"NEUTRINO_PTXAS": str(ptxas)}
    with tempfile.TemporaryDirectory(prefix="neutrino-speed-") as name:
        folder = Path(name)
        command = [sys.executable, "-m", "neutrino.cli.patch", str(library), *options]
        command += ["-j", str(jobs), "-o", str(folder / "patched")]
        commands = record(command, ptxas, folder)
        patching, assembling = [], []
        for _ in range(rounds):
            patching.append(timed(lambda: subprocess.run(command, check=True, capture_output=True, env=environment)))
            assembling.append(timed(lambda: replay(commands, jobs)))
    return {
        "library": library.name, "bytes": library.stat().st_size, "options": list(options), "jobs": jobs,
        "assemblies": len(commands), "patching_s": patching, "assembling_s": assembling,
    }  # fmt: skip


def ratio(samples: dict[str, Any], column: int = 0) -> float:
    """Patching over assembling, by the medians: of wall time, or of processor time (1)."""
    patching, assembling = (
        statistics.median(row[column] for row in samples[name]) for name in ("patching_s", "assembling_s")
    )
    return patching / assembling


def main() -> int:
    """Measure, print, and say by the exit status whether the limit is kept."""
    parser = argparse.ArgumentParser(prog="python -m bench.ahead_speed", description=__doc__)
    parser.add_argument("library", type=Path)
    parser.add_argument("--arch", action="append", default=[])
    parser.add_argument("-p", "--probe", action="append", default=[])
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="where the raw samples go, as JSON")
    options = parser.parse_args()
    words = [word for arch in options.arch for word in ("--arch", arch)]
    words += [word for probe in options.probe or ["block_sched"] for word in ("-p", probe)]
    samples = measure(options.library, words, options.jobs, options.rounds)
    if options.out:
        options.out.write_text(json.dumps(samples, indent=1) + "\n")
    print(json.dumps(samples))
    print(f"{ratio(samples):.3f} × the assembler alone (limit {LIMIT}); {ratio(samples, 1):.3f} × its processor time")
    return 0 if ratio(samples) <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
