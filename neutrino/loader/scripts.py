"""Run the scripts that probe files name, in separate processes beside the program, with this Python.

An analyze hook is run once when a trace has ended, a callback whenever there are new launches in the data of a kernel.
Their output goes to ``analyze.log`` in the trace, up to a limit; the trace's events note scripts that failed or were
ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from neutrino.loader.script_log import ScriptLog
from neutrino.probing.ir.probe_set import ProbeSet

LIMIT_S = 300.0
"""Seconds after which a script is ended."""
_PAUSE_S = 1.0
# Longer than the name of any trace; a name that is longer is none.
LONGEST_PATH = 4096


@dataclass(frozen=True)
class Scripts:
    """Paths of scripts, absolute. limit: seconds that one may run."""

    analyze_hooks: tuple[str, ...] = ()
    callbacks: tuple[str, ...] = ()
    limit: float = LIMIT_S

    @classmethod
    def of(cls, probes: ProbeSet) -> Scripts:
        """Those that probe files name."""
        return cls(probes.analyze_hooks, probes.callbacks)

    def __bool__(self) -> bool:
        return bool(self.analyze_hooks or self.callbacks)


NO_SCRIPTS = Scripts()


def attend(trace: Path, process: int | None, scripts: Scripts) -> None:
    """Run the scripts of one trace, as it grows and once it has ended; returns after the last one.

    process: a pidfd of the program that makes the trace, None where it has ended already.
    """
    callbacks = _Callbacks(trace, scripts)
    while process is not None:
        ended = select.poll()
        ended.register(process, select.POLLIN)
        if ended.poll(1000 * _PAUSE_S if scripts.callbacks else None):
            break
        callbacks.run()
    callbacks.run()
    for problem in _run_each(scripts.analyze_hooks, trace, trace, scripts.limit):
        _note(trace, problem)


def analyze(trace: Path, scripts: Scripts) -> list[str]:
    """Run the scripts on a trace that has ended; returns a sentence for each failure."""
    callbacks = [
        problem
        for result in _results(trace)
        for problem in _run_each(scripts.callbacks, trace, result, scripts.limit)
    ]
    return callbacks + list(_run_each(scripts.analyze_hooks, trace, trace, scripts.limit))


class _Callbacks:
    """The callbacks of one trace: for each file that has grown, one after the other."""

    def __init__(self, trace: Path, scripts: Scripts) -> None:
        self._trace = trace
        self._scripts = scripts
        self._hanging: set[str] = set()
        self._noted: set[str] = set()
        self._seen: dict[Path, int] = {}

    def run(self) -> None:
        if not self._scripts.callbacks:
            return
        for result in _results(self._trace):
            with contextlib.suppress(OSError):
                size = result.stat().st_size
                if self._seen.get(result) == size:
                    continue
                # Before the script, which may see more; what comes after it is for the next round.
                self._seen[result] = size
            for script in self._scripts.callbacks:
                if script not in self._hanging:
                    self._run(script, result)

    def _run(self, script: str, result: Path) -> None:
        try:
            problem = _run(script, self._trace, result, self._scripts.limit)
        except subprocess.TimeoutExpired as error:
            self._hanging.add(script)
            problem = _ended(script, error)
        # Every second the same would bury the other events.
        if problem is not None and problem not in self._noted:
            self._noted.add(problem)
            _note(self._trace, problem)


def _results(trace: Path) -> list[Path]:
    return sorted(trace.glob("result/*.bin"), key=lambda path: (len(path.name), path.name))


def _run_each(scripts: tuple[str, ...], trace: Path, argument: Path, limit: float) -> Iterator[str]:
    for script in scripts:
        try:
            problem = _run(script, trace, argument, limit)
        except subprocess.TimeoutExpired as error:
            problem = _ended(script, error)
        if problem is not None:
            yield problem


def _run(script: str, trace: Path, argument: Path, limit: float) -> str | None:
    """Run one script; what went wrong. Raises TimeoutExpired once it was ended for taking too long."""
    try:
        log = ScriptLog(trace / "analyze.log")
    except OSError as error:
        return f"{script} was not run: analyze.log: {error.strerror}"
    with log:
        try:
            child = subprocess.Popen(
                [sys.executable, script, str(argument)], cwd=trace, env=_environment(), stdin=subprocess.DEVNULL,
                stdout=log.write, stderr=log.write, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return f"{script} was not run: {error.strerror}"
        try:
            status = log.follow(child, limit)
        except BaseException:
            # Its own session, so that what it started ends with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            raise
    if status == 0:
        return None
    how = f"ended by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
    return f"{script} failed ({how}); see analyze.log"


def _ended(script: str, error: subprocess.TimeoutExpired) -> str:
    return f"{script} was ended: it ran longer than {error.timeout:g} s"


def _environment() -> dict[str, str]:
    """This process's environment, without the variables that load the hook."""
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD" and name[:9] != "NEUTRINO_"}


def _note(trace: Path, text: str) -> None:
    """Write an event and a line for people, as the hook does. Nothing is reported if neither can be written."""
    event = {"event": "note", "time_ns": time.time_ns(), "text": text}
    with contextlib.suppress(OSError):
        _append(trace / "event.log", f"{time.strftime('%H:%M:%S')} {text}\n")
        # A line that a killed process has not finished must stay the last one.
        with (trace / "events.jsonl").open("rb") as events:
            if events.seek(0, os.SEEK_END) and (events.seek(-1, os.SEEK_END), events.read(1))[1] != b"\n":
                return
        _append(trace / "events.jsonl", json.dumps(event) + "\n")


def _append(path: Path, line: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(descriptor, line.encode("utf-8", "surrogateescape"))
    finally:
        os.close(descriptor)
