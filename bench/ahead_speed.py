"""What patching a library costs beside the assembler: its wall time against the same ``ptxas`` commands alone.

    python -m bench.ahead_speed record LIBRARY --arch sm_90 -p block_sched --case 2:2:3 --case 8:16:5
    python -m bench.ahead_speed judge             recomputes the verdicts from bench/results/ahead_speed.json

A case is JOBS:CORES:ROUNDS. The library is patched once with an assembler that writes down what it is asked: those very
commands, with the texts and options that they had, are run again by JOBS processes at a time, those that take longest
first, in turns with neutrino-patch -j JOBS, on the same cores. Patching starts no more assemblers at a time than that.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.recorded import judge_files, say_verdicts
from bench.tree import made_of
from neutrino.toolchain.tool_choice import find_assembler

Json = Any
_ROOT = Path(__file__).resolve().parent.parent
RESULTS = _ROOT / "bench" / "results" / "ahead_speed.json"
LIMIT = 1.25
"""Patching may take this many times what its assembler takes alone."""
WANTED = {2: 2, 4: 4, 8: 16}
"""Cores by jobs."""
FEWEST = 3
"""Rounds of a case that counts."""

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


@dataclass(frozen=True)
class Case:
    """jobs: processes of neutrino-patch, or assemblers alone. cores: that they run on. rounds: of both, in turns."""

    jobs: int
    cores: int
    rounds: int

    @classmethod
    def parse(cls, text: str) -> Case:
        """Parse a case of the command line, such as ``8:16:5`` (jobs, cores, rounds). Raises ValueError."""
        jobs, cores, rounds = map(int, text.split(":"))
        return cls(jobs, cores, rounds)


def recorded(command: Sequence[str], ptxas: Path, folder: Path) -> list[list[str]]:
    """Run a patching command, which must succeed, with an assembler that writes down how it is called.

    Returns the argv of each assembly, whose input texts are kept in folder, so that they can run again alone.
    """
    wrapper = folder / "ptxas"
    wrapper.write_text(_RECORDER.format(ptxas=shlex.quote(str(ptxas)), folder=shlex.quote(str(folder))))
    wrapper.chmod(0o755)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"NEUTRINO_PTXAS": str(wrapper)})
    return [[str(ptxas), *path.read_text().splitlines()] for path in sorted(folder.glob("*/argv"))]


def replay(commands: Sequence[Sequence[str]], jobs: int) -> list[float]:
    """Run the commands in their order, jobs of them at a time. Returns the seconds that each took."""

    def assemble(argv: Sequence[str]) -> float:
        """Run one assembler command; return the seconds that it took."""
        begin = time.monotonic()
        subprocess.run(argv, check=False, capture_output=True)
        return time.monotonic() - begin

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(assemble, commands))


def timed(action: Callable[[], object]) -> tuple[float, float]:
    """Run an action: seconds of wall clock, and of processor time of the processes that it started."""

    def used() -> float:
        """Seconds of processor time of all child processes that have ended so far."""
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    begin, before = time.monotonic(), used()
    action()
    return time.monotonic() - begin, used() - before


def record(library: Path, options: Sequence[str], cases: Sequence[Case]) -> Json:
    """Raw samples, case by case: (wall, processor) seconds of patching and of its assembler alone, in turns."""
    assembler = find_assembler()
    cores = sorted(os.sched_getaffinity(0))
    environment = os.environ | {"NEUTRINO_PTXAS": str(assembler.path)}
    with tempfile.TemporaryDirectory(prefix="neutrino-speed-") as name:
        folder = Path(name)
        command = [sys.executable, "-m", "neutrino.cli.patch", str(library), *options, "-o", str(folder / "patched")]
        commands = recorded([*command, "-j", str(len(cores))], assembler.path, folder)
        seconds = replay(commands, max(1, len(cores) // 2))
        longest = [argv for _, argv in sorted(zip(seconds, commands, strict=True), key=lambda pair: -pair[0])]
        rows = [
            {"jobs": case.jobs, "cores": min(case.cores, len(cores)), "patching_s": [], "assembling_s": []}
            for case in cases
        ]
        for number in range(max(case.rounds for case in cases)):
            for case, row in zip(cases, rows, strict=True):
                if number < case.rounds:
                    os.sched_setaffinity(0, cores[: case.cores])
                    _round([*command, "-j", str(case.jobs)], longest, case.jobs, row, environment)
        os.sched_setaffinity(0, cores)
        return {
            **made_of("ahead_speed"),
            "python": platform.python_version(),
            "assembler": assembler.name,
            "library": library.name,
            "bytes": library.stat().st_size,
            "options": list(options),
            "assemblies": len(commands),
            "alone_s": sorted(seconds, reverse=True),
            "cases": rows,
        }


def _round(command: Sequence[str], commands: Sequence[Sequence[str]], jobs: int, row: Json, environment: Any) -> None:
    """Time one patching of a library and, after it, its assemblies alone; add both to the lists of row.

    command: of neutrino-patch. commands: the assemblies, run ``jobs`` at a time.
    """
    run = timed(lambda: subprocess.run(command, check=True, capture_output=True, env=environment))
    row["patching_s"].append(run)
    row["assembling_s"].append(timed(lambda: replay(commands, jobs)))


def ratio(case: Json, column: int = 0) -> float:
    """How many times as long patching takes as its assemblies alone, by medians.

    column: 0 for wall time, 1 for processor time.
    """
    patching, assembling = (
        statistics.median(row[column] for row in case[name]) for name in ("patching_s", "assembling_s")
    )
    return patching / assembling


def judge(results: Json) -> list[str]:
    """Return what the recorded results lack, a line each: cases not measured, too few rounds, patching that takes too
    long."""
    wrong = []
    cases = {case["jobs"]: case for case in results["cases"]}
    for jobs, cores in WANTED.items():
        case = cases.get(jobs)
        if case is None or case["cores"] != cores:
            wrong.append(f"-j {jobs}: not measured on {cores} cores")
        elif min(len(case["patching_s"]), len(case["assembling_s"])) < FEWEST:
            wrong.append(f"-j {jobs}: fewer than {FEWEST} rounds")
        elif ratio(case) > LIMIT:
            wrong.append(f"-j {jobs}: {ratio(case):.3f} times the assembler alone, at most {LIMIT}")
    return wrong


def table(results: Json) -> str:
    """Return the figures as a table for people, a line for each number of jobs."""
    lines = [f"{results['library']}: {results['assemblies']} assemblies by {results['assembler']}"]
    for case in results["cases"]:
        patching, assembling = (
            statistics.median(row[0] for row in case[name]) for name in ("patching_s", "assembling_s")
        )
        lines.append(
            f"-j {case['jobs']} on {case['cores']} cores: {patching:.2f} s, the assembler alone {assembling:.2f} s: "
            f"{ratio(case):.3f} (limit {LIMIT}); {ratio(case, 1):.3f} of its processor time"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Record, if asked to, and print figures and unmet bounds.

    Returns the exit status: 1 when there are any, 2 without results.
    """
    parser = argparse.ArgumentParser(prog="python -m bench.ahead_speed")
    parser.add_argument("action", choices=("record", "judge"))
    parser.add_argument("library", nargs="?", type=Path)
    parser.add_argument("--arch", action="append", default=[])
    parser.add_argument("-p", "--probe", action="append", default=[])
    parser.add_argument("--case", action="append", type=Case.parse, default=[], metavar="JOBS:CORES:ROUNDS")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the raw samples go, as JSON")
    options = parser.parse_args(arguments)
    if options.action == "record":
        if options.library is None:
            parser.error("no LIBRARY")
        words = [word for arch in options.arch for word in ("--arch", arch)]
        words += [word for probe in options.probe or ["block_sched"] for word in ("-p", probe)]
        cases = options.case or [Case(jobs, cores, FEWEST) for jobs, cores in WANTED.items()]
        results = record(options.library, words, cases)
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    command = "python -m bench.ahead_speed record LIBRARY --arch sm_90"
    return judge_files([options.out], command, ("cases",), lambda results: say_verdicts(results, table, judge))


if __name__ == "__main__":
    sys.exit(main())
