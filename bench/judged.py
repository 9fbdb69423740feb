"""What benches that need no GPU share: one run of a command, measured, and the end of a command line."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Json = Any


def timed_run(
    command: Sequence[str | Path], *, cwd: Path | None = None, env: Mapping[str, str] | None = None, quiet: bool = False
) -> Json:
    """Run a command to its end: seconds of wall clock and of processor, and the most bytes that it held.

    quiet: its standard error goes nowhere, as its output does. SystemExit: it failed. The peak is ru_maxrss, which
    getrusage(2) gives in KiB; pages of a mapped file count, and what this process held when it started the command.
    """
    begin = time.perf_counter()
    process = subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL if quiet else None, cwd=cwd, env=env,
    )  # fmt: skip
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command}: exit status {process.returncode}")
    return {
        "seconds": round(seconds, 6),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 6),
        "peak_bytes": usage.ru_maxrss << 10,
    }


def say_verdicts(results: Json, table: Callable[[Json], str], judge: Callable[[Json], list[str]]) -> int:
    """Print the figures and the bounds that are not met. Returns the exit status: 1 when there are any."""
    print(table(results))
    wrong = judge(results)
    for line in wrong:
        print(f"not met: {line}")
    return 1 if wrong else 0
