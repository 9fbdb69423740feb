"""Run the scripts that probe files name, in separate processes beside the program, with this Python.

Each runs once for each dump: a callback for what launches of a kernel have added to its data, an analyze hook for a
trace that was written as a whole, which it is at its end, and whenever ``neutrino-ctl`` asks for it (a flush).
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
from pathlib import Path

from neutrino.abi.control_file import Command, last_answer
from neutrino.late_dataclass import dataclass
from neutrino.run.probes import RunProbes
from neutrino.run.script_log import ScriptLog

LIMIT_S = 300.0
"""Seconds after which a script is ended."""
_INTERVAL_S = 1.0
"""Seconds between two looks at a trace."""
_MOST_CONTROL = 4096
"""Bytes of the file ``control`` that are read, which are more than it has."""
LONGEST_PATH = 4096
"""Bytes of a trace's path that are accepted, at most; Linux allows no longer paths."""


@dataclass(frozen=True)
class Scripts:
    """Paths of scripts, absolute. limit: seconds that one may run.

    analyze_hooks: run when a trace was written as a whole, with its folder as argument. callbacks: run for each result
    file (the data of one kernel) that has new launches, with the file as argument.
    """

    analyze_hooks: tuple[str, ...] = ()
    callbacks: tuple[str, ...] = ()
    limit: float = LIMIT_S

    @classmethod
    def of(cls, probes: RunProbes) -> Scripts:
        """Return the scripts that the probe files of a run name."""
        return cls(probes.analyze_hooks, probes.callbacks)

    def __bool__(self) -> bool:
        """Whether the probes name any script that runs on results."""
        return bool(self.analyze_hooks or self.callbacks)


NO_SCRIPTS = Scripts()


def attend(trace: Path, process: int | None, scripts: Scripts) -> None:
    """Run callbacks while a trace grows, and analyze hooks after each flush and at its end; return after the last one.

    trace: its folder. process: a pidfd of the program that makes the trace, None if that has ended already. Failures
    are written into the trace.
    """
    callbacks = _Callbacks(trace, scripts)
    hooks = _Hooks(trace, scripts)
    while process is not None:
        ended = select.poll()
        ended.register(process, select.POLLIN)
        # In milliseconds; None waits until the process has ended.
        if ended.poll(1000 * _INTERVAL_S if scripts else None):
            break
        callbacks.run()
        hooks.run_after_flush()
    # For what was written since the last time.
    callbacks.run()
    hooks.run()


def analyze(trace: Path, scripts: Scripts) -> list[str]:
    """Run the scripts once on a trace that has ended; return a sentence for each failure."""
    failures = [
        failure
        for result in _result_files(trace)
        for failure in _run_each(scripts.callbacks, trace, result, scripts.limit)
    ]
    return failures + list(_run_each(scripts.analyze_hooks, trace, trace, scripts.limit))


class _Runner:
    """Runs scripts of one trace, one after the other; notes a failure in the trace once, and does not run a script
    again that was ended for taking too long.
    """

    def __init__(self, trace: Path, limit: float) -> None:
        """Prepare to run scripts. trace: its folder. limit: seconds that one may run."""
        self._trace = trace
        self._limit = limit
        self._timed_out: set[str] = set()
        self._noted: set[str] = set()

    def run(self, script: str, argument: Path) -> None:
        """Run a script, unless it took too long before. argument: the path that is passed to it."""
        if script in self._timed_out:
            return
        try:
            failure = _run_script(script, self._trace, argument, self._limit)
        except subprocess.TimeoutExpired as error:
            self._timed_out.add(script)
            failure = _timeout_text(script, error)
        # The same note every second would bury the trace's other events.
        if failure is not None and failure not in self._noted:
            self._noted.add(failure)
            _note(self._trace, failure)


class _Callbacks:
    """Runs the callbacks of one trace for each result file that has grown.

    sizes: in bytes, of each result file when the callbacks were last run for it.
    """

    def __init__(self, trace: Path, scripts: Scripts) -> None:
        """Prepare to run the callbacks of probe files' scripts for one trace. trace: its folder."""
        self._trace = trace
        self._scripts = scripts.callbacks
        self._runner = _Runner(trace, scripts.limit)
        self._sizes: dict[Path, int] = {}

    def run(self) -> None:
        """Run the callbacks for each file that has grown since the last call."""
        if not self._scripts:
            return
        for result in _result_files(self._trace):
            # If the size cannot be found out, the callbacks are run.
            with contextlib.suppress(OSError):
                if not result.exists():
                    # Removed meanwhile, to keep to the limit of the trace's size.
                    continue
                size = result.stat().st_size
                if self._sizes.get(result) == size:
                    continue
                # The size before the script starts: what is written while it runs is for the next call.
                self._sizes[result] = size
            for script in self._scripts:
                self._runner.run(script, result)


class _Hooks:
    """Runs the analyze hooks of one trace when it has been written as a whole.

    answered: the number of the last request of ``neutrino-ctl`` that the process had answered at the last look. sizes:
    of the result files, in bytes, when the hooks were last run.
    """

    def __init__(self, trace: Path, scripts: Scripts) -> None:
        """Prepare to run the hooks of probe files' scripts for one trace. trace: its folder."""
        self._trace = trace
        self._scripts = scripts.analyze_hooks
        self._runner = _Runner(trace, scripts.limit)
        self._answered = 0
        self._sizes: dict[str, int] = {}

    def run_after_flush(self) -> None:
        """Run the hooks if there was a flush since the last look, and something new was written."""
        if not self._scripts:
            return
        before = self._answered
        self._answered, command = _last_answer(self._trace)
        # Of several answers only the last one is seen: any may have been that of a flush.
        if self._answered == before or (self._answered == before + 1 and command != Command.FLUSH):
            return
        if _sizes(self._trace) != self._sizes:
            self.run()

    def run(self) -> None:
        """Run the hooks."""
        # The sizes before they start: what is written meanwhile is for the next time.
        self._sizes = _sizes(self._trace)
        for script in self._scripts:
            self._runner.run(script, self._trace)


def _last_answer(trace: Path) -> tuple[int, int]:
    """Return the number and the command of the last request of ``neutrino-ctl`` that the process of a trace answered;
    zeros for none.
    """
    try:
        descriptor = os.open(trace / "control", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return 0, 0
    try:
        return last_answer(os.read(descriptor, _MOST_CONTROL))
    except OSError:
        return 0, 0
    finally:
        os.close(descriptor)


def _sizes(trace: Path) -> dict[str, int]:
    """Return the sizes of the result files of a trace in bytes, by name."""
    found = {}
    for path in _result_files(trace):
        # Removed meanwhile, to keep to the limit of the trace's size.
        with contextlib.suppress(FileNotFoundError):
            found[path.name] = path.stat().st_size
    return found


def _result_files(trace: Path) -> list[Path]:
    """Return the result files of a trace, ``result/ID.bin`` or ``result/ID.PART.bin``, by their numbers."""
    # By lengths first, so that 10.bin follows 9.bin.
    return sorted(
        trace.glob("result/*.bin"), key=lambda path: [(len(number), number) for number in path.stem.split(".")]
    )


def _run_each(scripts: tuple[str, ...], trace: Path, argument: Path, limit: float) -> Iterator[str]:
    """Run scripts one after the other; yield a sentence for each that fails.

    argument: the path that is passed to them: the trace's folder, or a result file in it. limit: seconds that one may
    run.
    """
    for script in scripts:
        try:
            failure = _run_script(script, trace, argument, limit)
        except subprocess.TimeoutExpired as error:
            failure = _timeout_text(script, error)
        if failure is not None:
            yield failure


def _run_script(script: str, trace: Path, argument: Path, limit: float) -> str | None:
    """Run one script with this Python; return a sentence about its failure, None if it succeeds.

    argument: the path that is passed to it: the trace's folder, or a result file in it. Its output goes to the trace's
    log. limit: seconds, after which it is killed and TimeoutExpired is raised.
    """
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
            # It was started in a session of its own, so that this also ends the processes that it has started.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            raise
    if status == 0:
        return None
    # subprocess gives the number of a signal as a negative status.
    how = f"ended by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
    return f"{script} failed ({how}); see analyze.log"


def _timeout_text(script: str, error: subprocess.TimeoutExpired) -> str:
    """Return the sentence that says that a script ran too long."""
    return f"{script} was ended: it ran longer than {error.timeout:g} s"


def _environment() -> dict[str, str]:
    """Return this process's environment without the variables that would load the hook into a script."""
    return {
        name: value for name, value in os.environ.items() if name != "LD_AUDIT" and not name.startswith("NEUTRINO_")
    }


def _note(trace: Path, text: str) -> None:
    """Write a text into both event files of a trace, in the hook's format. Does nothing if they cannot be written."""
    event = {"event": "note", "time_ns": time.time_ns(), "text": text}
    with contextlib.suppress(OSError):
        _append(trace / "event.log", f"{time.strftime('%H:%M:%S')} {text}\n")
        # Nothing may follow a line that a killed process has not finished: readers accept one only at the end.
        with (trace / "events.jsonl").open("rb") as events:
            size = events.seek(0, os.SEEK_END)
            if size:
                events.seek(size - 1)
                if events.read(1) != b"\n":
                    return
        _append(trace / "events.jsonl", json.dumps(event) + "\n")


def _append(path: Path, line: str) -> None:
    """Append a line by one write, as the hook does, since both may write at the same time. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(descriptor, line.encode("utf-8", "surrogateescape"))
    finally:
        os.close(descriptor)
