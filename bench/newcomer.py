"""What a new user waits for: a clone, ``make setup``, a first result, a probe of their own, a picture of its records.

    python -m bench.newcomer record    clones this checkout's last commit and runs the commands there (minutes)
    python -m bench.newcomer           prints what was recorded

Only the commands are timed, not reading and typing. Packages are downloaded: pip's cache is not used. No GPU is needed.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.tree import ROOT, made_of

Json = Any

RESULTS = ROOT / "bench" / "results" / "newcomer.json"
PROGRAM = "examples/embedded/build/program"
STEPS = (
    ("setup", ("make setup",)),
    ("first result", (
        "make -C examples/embedded",
        f"neutrino --device embedded -q -e 'memory & global {{ @moved[line] = sum(BYTES) }}' {PROGRAM}",
    )),
    ("demo", ("make demo",)),
    ("own probe", (
        "neutrino-probe new mine.py", "neutrino-probe check mine.py",
        f"neutrino --device embedded -p ./mine.py {PROGRAM}", "neutrino-report trace",
    )),
    ("picture", ("neutrino-report trace --html picture.html",)),
)  # fmt: skip
"""Steps in order, with the commands of each, as README.md and docs/tutorial.md have them."""
MOST_SECONDS = {"first result": 180, "own probe": 600, "picture": 720}
"""By the step: how long after the clone it may be done."""


def record() -> Json:
    """Run the steps in a clone, and return how long each command took and what there is on the disk afterwards."""
    with tempfile.TemporaryDirectory() as scratch:
        checkout = Path(scratch) / "neutrino"
        started = time.perf_counter()
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(checkout)], check=True)
        commands = [("clone", "git clone", round(time.perf_counter() - started, 2))]
        environment = {
            **os.environ, "PIP_NO_CACHE_DIR": "1", "XDG_CACHE_HOME": f"{scratch}/cache",
            "PATH": f"{checkout}/.venv/bin:{os.environ['PATH']}",
        }  # fmt: skip
        for name in ("VIRTUAL_ENV", "PYTHONPATH", "MAKEFLAGS", "MAKELEVEL"):
            environment.pop(name, None)
        for step, texts in STEPS:
            for text in texts:
                started = time.perf_counter()
                subprocess.run(shlex.split(text), cwd=checkout, env=environment, check=True, stdout=subprocess.DEVNULL)
                commands.append((step, text, round(time.perf_counter() - started, 2)))
        files = checkout / "neutrino"
        sizes = {"environment": _bytes(checkout / ".venv"), "built": sum(map(_bytes, files.glob("*/lib")))}
        assert (checkout / "picture.html").stat().st_size
    return {
        **made_of("newcomer"), "processors": os.cpu_count(), "python": sys.version.split()[0],
        "load": round(os.getloadavg()[1], 1), "commands": commands, "bytes": sizes,
    }  # fmt: skip


def _bytes(folder: Path) -> int:
    """Bytes that the files below a folder take on the disk."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


def seconds(results: Json, steps: Iterable[str]) -> float:
    """How long the commands of these steps took."""
    wanted = set(steps)
    return float(sum(taken for step, _, taken in results["commands"] if step in wanted))


def after(results: Json, step: str) -> float:
    """How long after the clone was begun a step was done, without ``make demo``, which no other step needs."""
    names = ["clone", *(name for name, _ in STEPS)]
    return seconds(results, (name for name in names[: names.index(step) + 1] if name != "demo"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Record, or print what was recorded; 1 where a step took longer than it may."""
    parser = argparse.ArgumentParser(prog="python -m bench.newcomer")
    parser.add_argument("action", nargs="?", choices=("record", "print"), default="print")
    if parser.parse_args(arguments).action == "record":
        RESULTS.write_text(json.dumps(record(), indent=1) + "\n")
    results = json.loads(RESULTS.read_text())
    for step, most in MOST_SECONDS.items():
        print(f"{step}: {after(results, step):.0f} s after the clone was begun; at most {most} s")
    return int(any(after(results, step) > most for step, most in MOST_SECONDS.items()))


if __name__ == "__main__":
    sys.exit(main())
