"""``neutrino-ctl PID top``: the report of a running process, again and again, until it ends."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from neutrino.abi.control_file import Command
from neutrino.cli.intervals import pause_after
from neutrino.cli.table import counted
from neutrino.errors import NeutrinoError
from neutrino.loader.steering import Steered

_HOME = "\x1b[H\x1b[J"
"""Of a terminal: clear all of the screen."""
_BELOW = 2
"""Lines of the screen that are left free."""


def show(process: Steered, options: argparse.Namespace) -> None:
    """Print what a process has recorded so far, each ``options.interval`` seconds, ``options.count`` times or until it
    ends; at its end all of its report, as ``neutrino-report`` prints it.

    On a terminal the screen shows the newest report, as much as fits. Raises NeutrinoError for a trace that cannot be
    read.
    """
    is_screen = sys.stdout is not None and sys.stdout.isatty()
    shown = 0
    while process.is_running():
        began = time.monotonic()
        # What is not written yet is written, unless a kernel runs on, for which that waits.
        with contextlib.suppress(NeutrinoError):
            process.ask(Command.FLUSH, max(options.interval, 0.5))
        text = _report(process.trace_dir)
        # The last report is that of the end.
        if not process.is_running():
            break
        shown += 1
        _print(text, process, is_screen, shown)
        if shown == options.count:
            return
        _sleep(pause_after(options.interval, time.monotonic() - began), process.is_running)
    text = _report(process.trace_dir)
    if is_screen:
        print(_HOME, end="")
    elif shown:
        print()
    print(f"process {process.pid} has ended\n{text}", flush=True)


def _report(trace_dir: Path) -> str:
    """Return the report of a trace, as ``neutrino-report`` prints it. Raises NeutrinoError if it cannot be read."""
    # Imported here: other commands of neutrino-ctl answer without NumPy.
    from neutrino.cli.report import report_of

    return report_of(trace_dir)


def _print(text: str, process: Steered, is_screen: bool, number: int) -> None:
    """Print a report: on a terminal in place of the one before, cut where the screen ends."""
    heading = f"process {process.pid}, {time.strftime('%H:%M:%S')}: what it has recorded so far"
    if not is_screen:
        print(("\n" if number > 1 else "") + f"{heading}\n{text}", flush=True)
        return
    lines = text.splitlines()
    room = max(shutil.get_terminal_size().lines - _BELOW - 1, 1)
    if len(lines) > room:
        left_out = counted(len(lines) - room + 1, "more line")
        lines = [*lines[: room - 1], f"… {left_out}: neutrino-report {process.trace_dir}"]
    print(_HOME + "\n".join([heading, *lines]), flush=True)


def _sleep(seconds: float, is_running: Callable[[], bool]) -> None:
    """Wait, but no longer than the process runs."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and is_running():
        time.sleep(min(left, 0.1))
