"""What ``neutrino`` prints when COMMAND has ended: results of one-liners, of ``--benchmark`` and of ``--memusage``."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from neutrino.cli.progress import Progress
from neutrino.run.start import say
from neutrino.run.traces import RunTraces

if TYPE_CHECKING:
    from neutrino.tracing.trace import Trace

RESULTS_FILE = "results.txt"
"""Where a trace keeps what could not be printed."""


def print_results(options: argparse.Namespace, traces: RunTraces, status: int) -> None:
    """Print the results of a run's traces on stderr. options: of the command line. status: of COMMAND.

    What cannot be printed, since the terminal is closed or the disk full, goes into ``results.txt`` of its trace.
    """
    found = traces.find()
    for path in traces.find_unnamed():
        say(f"the results of {path} cannot be shown: its first event is missing; was the disk full?")
    # With these, as env(1) has them, COMMAND was not started, which has been said.
    if not found and not traces.has_any() and not options.quiet and status not in (125, 126, 127):
        say("nothing was recorded by the end of COMMAND: no process of it was seen loading GPU code")
    for number, path in enumerate(found, 1):
        progress = Progress("neutrino")
        whose = f"trace {number} of {len(found)}" if len(found) > 1 else "the records"
        # Shown before the long part, and again with each kernel.
        reading = _Reading(progress, whose, path)
        text = _result_text(options, path, reading)
        progress.clear()
        _print(text, path)
    if options.open and status not in (125, 126, 127):
        # Imported here: it needs NumPy.
        from neutrino.cli.run_page import open_page

        open_page(traces)


class _Reading:
    """Shows how much of a trace's records has been read."""

    def __init__(self, progress: Progress, whose: str, path: Path) -> None:
        """Prepare to show how much of a trace's records was read. progress: the line that is shown. whose: of which
        process the trace is, in words. path: of the trace."""
        self._progress, self._whose = progress, whose
        self._sizes = {}
        with contextlib.suppress(OSError):
            self._sizes = {file.name: file.stat().st_size for file in (path / "result").iterdir()}
        self._read = 0

    def __call__(self, kernel: int) -> None:
        """Note that the records of a kernel, by its id, are being read."""
        size = self._sizes.pop(f"{kernel}.bin", 0)
        total = self._read + size + sum(self._sizes.values())
        # Of less it would say nothing, after a slow start.
        if total >> 20:
            self._progress.show(f"reading {self._whose}: {self._read >> 20:,} of {total >> 20:,} MiB")
        self._read += size


def _result_text(options: argparse.Namespace, path: Path, reading: _Reading) -> str:
    """Return what is printed at the end of a run of one of its traces: results of -e, --benchmark or --memusage.

    reading: shows the progress.
    """
    # Imported here, after COMMAND has ended: it needs NumPy.
    from neutrino.cli.benchmark_report import benchmark_text
    from neutrino.cli.memory_report import memory_results
    from neutrino.cli.one_liner_results import results_of
    from neutrino.errors import NeutrinoError
    from neutrino.tracing.trace import Trace

    if options.memusage:
        text = memory_results(path)
    else:
        text = benchmark_text(path) if options.benchmark else ""
        text += results_of(options.expression, options.rows, reading)(path) if options.expression else ""
    try:
        return text + _incompleteness(Trace(path))
    except NeutrinoError:
        # The text says that it cannot be read.
        return text


def _incompleteness(trace: Trace) -> str:
    """Return a line about a trace that its process has not completed; "" for one that is complete."""
    if trace.complete:
        return ""
    lost, note = trace.lost
    if lost:
        return f"Process {trace.process.get('pid')}: {note}; see neutrino-report {trace.path}\n\n"
    if trace.has_end:
        return f"The last records could not be written: launches may be missing; see neutrino-report {trace.path}\n\n"
    # Whether it still runs cannot be told where it is in another PID namespace.
    return (
        f"Process {trace.process.get('pid')} was killed or still runs: its last launches may be missing; "
        f"see neutrino-report {trace.path}\n\n"
    )


def harmless(text: str) -> str:
    """Return a text with what a terminal might obey replaced."""
    return "".join(letter if letter == "\n" or letter.isprintable() else "?" for letter in text)


def _print(text: str, path: Path) -> None:
    """Print results; keep them in the trace if that fails."""
    shown = harmless(text)
    try:
        if sys.stderr is None:
            raise OSError
        sys.stderr.write(shown)
        sys.stderr.flush()
    except OSError:
        with contextlib.suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            with os.fdopen(os.open(path / RESULTS_FILE, flags, 0o600), "w", encoding="utf-8") as file:
                file.write(shown)
