"""Threads that launch, load, unload and get signals, thousands a second, under ThreadSanitizer."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from neutrino.abi.reasons import Reason
from neutrino.maker.keys import image_key
from neutrino.maker.store import Cache
from neutrino.tracing import Trace, find_traces

from .conftest import IMAGE, RUN_KEY, entry_of, sanitized_bench
from .null_driver import PROGRAMS, build_driver, compile_c, hooked_environment

LOADS = 8_000
"""Work rather than time ends the run, so that a slow machine does as much."""
_FLAGS = ("-O1", "-g", "-fsanitize=thread")


def _reports_in(stderr: str) -> int:
    """How many reports of ThreadSanitizer a program's stderr tells of. Their texts may be missing: threads of the hook
    have descriptors of their own, and no stderr among them. At its end the program says how many there were."""
    last = re.search(r"^ThreadSanitizer: reported (\d+) warnings$", stderr, re.MULTILINE)
    return max(stderr.count("WARNING: ThreadSanitizer"), int(last[1]) if last else 0)


def test_nothing_races(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    hook = sanitized_bench(tmp_path_factory, "thread").folder / "lib"
    driver = build_driver(tmp_path, *_FLAGS)
    compile_c(PROGRAMS / "signals.c", tmp_path / "signals", *_FLAGS)
    (tmp_path / "image").write_bytes(IMAGE)
    cache, traces = tmp_path / "cache", tmp_path / "traces"
    for path in (cache, traces):
        path.mkdir(mode=0o700)
    Cache(cache).write(image_key(RUN_KEY, "sm_90", IMAGE), entry_of(IMAGE))
    environment = {
        **hooked_environment(driver, hook, cache, traces),
        # Files of the trace come and go, too.
        "NEUTRINO_MAX_TRACE_SIZE": str(64 << 20),
        "TSAN_OPTIONS": "exitcode=0:halt_on_error=0:atexit_sleep_ms=0",
    }
    done = subprocess.run(
        [tmp_path / "signals", tmp_path / "image", "count_p2", "250", str(LOADS)],
        env=environment, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert (done.returncode, _reports_in(done.stderr)) == (0, 0), done.stderr[:6000]
    launches, loads, signals = map(int, done.stdout.split())
    assert loads >= LOADS
    assert signals > 0
    counters = [kernel.counters for path in find_traces(traces) for kernel in Trace(path).kernels]
    assert sum(sum(one.values()) for one in counters) == launches
    assert sum(one.get(Reason.PROBED, 0) for one in counters) > 0


def test_reports_of_threads_without_stderr_are_counted() -> None:
    text = "==================\nWARNING: ThreadSanitizer: data race (pid=1)\n"
    assert _reports_in("neutrino: trace in /tmp/t\n") == 0
    assert _reports_in(text) == 1
    assert _reports_in("neutrino: trace in /tmp/t\nThreadSanitizer: reported 2 warnings\n") == 2
    assert _reports_in(text + "ThreadSanitizer: reported 1 warnings\n") == 1
