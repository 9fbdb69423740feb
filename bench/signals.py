"""Data races in the hook: threads that launch, load, unload and get signals, under ThreadSanitizer.

    python -m bench.signals record [SECONDS]    300 seconds by default; writes bench/results/signals.json
    python -m bench.signals judge               recomputes the verdicts

Three threads launch, in streams that they make and destroy, two load and unload modules and libraries, and all get
signals, some thousands a second, half of which interrupt system calls. The driver does nothing; it, the hook and the
program are compiled with -fsanitize=thread. Needs no GPU; the machine need not be idle.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.null_driver import build_driver, compile_c, hooked_environment
from bench.recorded import judge_files
from bench.tree import made_of
from neutrino.abi.reasons import Reason
from neutrino.loader import build
from neutrino.maker.keys import image_key
from neutrino.maker.store import Cache
from neutrino.tracing import Trace, find_traces
from tests.loader.conftest import IMAGE, RUN_KEY, entry_of

_ROOT = Path(__file__).resolve().parents[1]
RESULTS = _ROOT / "bench" / "results" / "signals.json"
SECONDS = 300
_KERNEL = "count_p2"
_FLAGS = ("-O1", "-g", "-fsanitize=thread")
_KEYS = ("tree", "machine", "seconds", "launches", "loads", "signals", "probed", "counted", "reports", "status")

Json = dict[str, Any]


def run(folder: Path, seconds: float, loads: int = 0) -> tuple[Json, str]:
    """Run the program that is interrupted by signals; return its figures, and what it wrote on stderr.

    ThreadSanitizer's reports are in that. folder: empty, for all files. seconds: when it ends at the latest. loads: of
    modules, after which it ends; 0 for no such limit. Raises CalledProcessError where something cannot be compiled.
    """
    driver = build_driver(folder, *_FLAGS)
    build.build(folder / "lib", flags=_FLAGS)
    compile_c("signals.c", folder / "signals", *_FLAGS)
    (folder / "image").write_bytes(IMAGE)
    cache, traces = folder / "cache", folder / "traces"
    for path in (cache, traces):
        path.mkdir(mode=0o700)
    Cache(cache).write(image_key(RUN_KEY, "sm_90", IMAGE), entry_of(IMAGE))
    environment = {
        **hooked_environment(driver, folder / "lib", cache, traces),
        # Files of the trace come and go, too.
        "NEUTRINO_MAX_TRACE_SIZE": str(64 << 20),
        "TSAN_OPTIONS": "exitcode=0:halt_on_error=0:atexit_sleep_ms=0",
    }
    begin = time.monotonic()
    done = subprocess.run(
        [folder / "signals", folder / "image", _KERNEL, str(seconds), str(loads)],
        env=environment, capture_output=True, text=True, check=False, timeout=seconds + 120,
    )  # fmt: skip
    took = time.monotonic() - begin
    printed = re.fullmatch(r"(\d+) (\d+) (\d+)\n", done.stdout)
    counts = [int(text) for text in printed.groups()] if printed else [0, 0, 0]
    counters = [kernel.counters for path in find_traces(traces) for kernel in Trace(path).kernels]
    figures = {
        "seconds": round(took, 1),
        **dict(zip(("launches", "loads", "signals"), counts, strict=True)),
        "probed": sum(one.get(Reason.PROBED, 0) for one in counters),
        "counted": sum(sum(one.values()) for one in counters),
        "reports": reports_in(done.stderr),
        "status": done.returncode,
    }
    return figures, done.stderr


def reports_in(stderr: str) -> int:
    """Return how many reports of ThreadSanitizer a program's stderr tells of.

    Their texts may be missing: threads of the hook have descriptors of their own, and no stderr among them. At its end
    the program says how many there were.
    """
    last = re.search(r"^ThreadSanitizer: reported (\d+) warnings$", stderr, re.MULTILINE)
    return max(stderr.count("WARNING: ThreadSanitizer"), int(last[1]) if last else 0)


def judge(results: Json) -> list[str]:
    """Return what is wrong with the figures of a run, a sentence each: races reported, launches lost, nothing done."""
    wrong = []
    if results["status"] != 0:
        wrong.append(f"the program ended with status {results['status']}")
    if results["reports"]:
        wrong.append(f"ThreadSanitizer reported {results['reports']} times")
    if results["counted"] != results["launches"]:
        wrong.append(f"of {results['launches']} launches {results['counted']} are in the trace")
    wrong += [f"no {name}" for name in ("launches", "loads", "signals", "probed") if not results[name]]
    return wrong


def verdicts(results: Json) -> list[str]:
    """Return what is wrong with a recorded run: what ``judge`` says of its figures, and that it was too short."""
    short = [f"it ran for less than {SECONDS} s"] if results["seconds"] < SECONDS else []
    return [*judge(results), *short]


def _print(results: Json) -> int:
    """Print the figures of a run and what is wrong with them. Returns 1 when anything is."""
    print(
        f"{results['seconds']} s on {results['machine']}: {results['launches']} launches ({results['probed']} probed), "
        f"{results['loads']} loads, {results['signals']} signals, {results['reports']} reports"
    )
    wrong = verdicts(results)
    for line in wrong:
        print(f"not met: {line}")
    return 1 if wrong else 0


def _record(seconds: float) -> int:
    """Run the program for so many seconds, write its figures to the committed file and print them.

    Returns 1 when anything is wrong with them.
    """
    sources = made_of("signals")
    with tempfile.TemporaryDirectory() as folder:
        figures, errors = run(Path(folder), seconds)
    print(errors, end="", file=sys.stderr)
    version = subprocess.run([*build.compiler(), "--version"], capture_output=True, text=True, check=True).stdout
    results = {
        **sources,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.libc_ver()[0]} {platform.libc_ver()[1]}",
        "compiler": version.splitlines()[0],
        **figures,
    }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    return _print(results)


def main() -> int:
    """Record a run, or print what is wrong with the recorded one, as the command line says. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.signals", description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("seconds", nargs="?", type=float, default=SECONDS)
    commands.add_parser("judge")
    options = parser.parse_args()
    if options.command == "record":
        return _record(options.seconds)
    return judge_files([RESULTS], "python -m bench.signals record", _KEYS, _print)


if __name__ == "__main__":
    raise SystemExit(main())
