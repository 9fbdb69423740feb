"""Which traces and which of their launches a report is about: ``--rank`` and ``--launch``."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from neutrino.abi.launches import LaunchState
from neutrino.cli.kernel_names import some_of
from neutrino.cli.report_messages import DONE, fail, say
from neutrino.cli.streams import escaped
from neutrino.cli.table import counted
from neutrino.errors import NeutrinoError, TraceError
from neutrino.tracing import Trace, find_traces

_DEFAULT_FOLDER = "trace"
"""Where ``neutrino`` writes traces without ``--tracedir``."""


def add_choices(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose launches and traces to a command line parser."""
    parser.add_argument(
        "--launch",
        type=_launches,
        metavar="N|A:B",
        help="only the records of the launch with the number N in the trace, or of those from A on and before B, of "
        "which one may be missing",
    )
    parser.add_argument(
        "--all-traces",
        action="store_true",
        help="of a folder of traces all, oldest first; without it the newest one",
    )
    parser.add_argument(
        "--rank",
        type=_rank,
        action="append",
        default=[],
        metavar="N",
        help="of several traces, only those of processes that a launcher (torchrun, mpirun, srun) gave rank N; "
        "repeatable",
    )


def _rank(text: str) -> int:
    """Parse the value of the option --rank (which process of a parallel job), for argparse."""
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is not the number of a rank")
    return int(text)


def _launches(text: str) -> range:
    """Parse the value of --launch, ``N`` or ``A:B``, into the numbers of launches, for argparse."""
    match = re.fullmatch(r"(\d{1,18})|(\d{0,18}):(\d{0,18})", text, re.ASCII)
    if not match or text == ":":
        raise argparse.ArgumentTypeError(f"{text!r} is neither the number of a launch nor A:B")
    if match[1]:
        return range(int(match[1]), int(match[1]) + 1)
    return range(int(match[2] or 0), int(match[3] or sys.maxsize))


def of_ranks(paths: Sequence[Path], ranks: Sequence[int]) -> list[Path]:
    """Return the traces of processes with some ranks, in their order, and those that cannot be read, whose fault is
    reported when they are. ranks: all traces without any. Raises NeutrinoError if no trace is left.
    """
    if not ranks:
        return list(paths)
    found: dict[Path, int | None] = {}
    damaged = []
    for path in paths:
        try:
            found[path] = Trace(path).rank
        except TraceError:
            damaged.append(path)
    kept = [path for path in paths if path in damaged or found[path] in ranks]
    if not kept:
        known = sorted({rank for rank in found.values() if rank is not None})
        there = f"there are {', '.join(map(str, known))}" if known else "no process was given a rank"
        raise NeutrinoError(f"--rank {' --rank '.join(map(str, ranks))}: no trace of it; {there}")
    return kept


def traces_at(path: str, options: argparse.Namespace) -> list[Path]:
    """Return the traces that the report of a path is about: those of ``newest_traces``, and a line on stderr says how
    many others there are. Raises NeutrinoError if there are none.
    """
    paths = _traces_in(path)
    chosen = newest_traces(paths, options)
    if len(chosen) < len(paths):
        others = counted(len(paths) - len(chosen), "other trace")
        say(f"{path}: the newest {'run' if len(chosen) > 1 else 'trace'}; {others} there (--all-traces)")
    return chosen


def _traces_in(path: str) -> list[Path]:
    """Return the traces at a path, oldest first. Raises NeutrinoError if there are none; of a folder that there is not,
    with the one that may be meant.
    """
    try:
        return find_traces(path)
    except TraceError:
        folder = Path(path)
        if os.path.lexists(folder):
            raise
        # Imported here: only a mistake needs it.
        from neutrino.probing.nearest import nearest

        with contextlib.suppress(OSError):
            meant = nearest(folder.name, [each.name for each in folder.parent.iterdir() if each.is_dir()])
            if meant:
                raise NeutrinoError(f"{path}: no such folder; did you mean {folder.parent / meant}?") from None
        makes = "'neutrino -p PROBE COMMAND' makes a trace in ./trace"
        raise NeutrinoError(f"{path}: no such folder; {makes}") from None


def newest_traces(paths: Sequence[Path], options: argparse.Namespace) -> list[Path]:
    """Return the newest of the traces in a folder; all with --all-traces, and with --rank, which chooses among them;
    with --fail-if those of the newest run, whose processes belong together. paths: oldest first.
    """
    if len(paths) == 1 or options.all_traces or options.rank:
        return list(paths)
    return _of_newest_run(paths) if options.fail_if else list(paths[-1:])


def _of_newest_run(paths: Sequence[Path]) -> list[Path]:
    """Return the traces of the processes that one command started last; those that cannot be read, too. paths: oldest
    first."""
    runs: dict[Path, object] = {}
    for path in paths:
        with contextlib.suppress(TraceError):
            runs[path] = Trace(path, is_tolerant=True).process.get("run")
    newest = next((runs[path] for path in reversed(paths) if path in runs), None)
    if newest is None:
        return list(paths[-1:])
    return [path for path in paths if path not in runs or runs[path] == newest]


def newest_of_ranks(paths: Sequence[Path], ranks: Sequence[int]) -> list[Path]:
    """Return the newest trace alone, of those of processes with some ranks (all if there are none).

    paths: oldest first. Raises NeutrinoError if no trace is left.
    """
    for path in reversed(paths) if ranks else ():
        with contextlib.suppress(TraceError):
            if Trace(path).rank in ranks:
                return [path]
    return of_ranks(paths, ranks)[-1:]


def one_trace(names: Sequence[str], ranks: Sequence[int]) -> Path:
    """Return the one trace at some paths: of a folder, and of ``./trace`` without a path, the newest. ranks: of the
    processes.

    Raises NeutrinoError if there is none, or several paths.
    """
    found: list[Path] = []
    try:
        for name in names or [_DEFAULT_FOLDER]:
            found += _traces_in(name)
    except NeutrinoError as error:
        if names:
            raise
        raise NeutrinoError(f"{error}; give the path of a trace") from error
    if len(names) == 1 and len(found) > 1 and not ranks:
        say(f"{names[0]}: the newest trace; {counted(len(found) - 1, 'other trace')} there")
    found = of_ranks(found, ranks) if len(names) > 1 else newest_of_ranks(found, ranks)
    if len(found) != 1:
        raise NeutrinoError(f"{' '.join(names)}: {len(found)} traces; one is needed: name it, or choose it by --rank")
    return found[0]


def print_lines(lines: Iterable[str]) -> int:
    """Print lines on stdout. Returns the exit status: 0, also if nobody reads them any more, else 2."""
    try:
        for line in lines:
            print(line)
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        # What is left in the buffer must not fail a second time when Python closes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE if isinstance(error, BrokenPipeError) else fail(error.strerror or str(error))
    return DONE


def require_launches(traces: Sequence[Trace], chosen: range | None) -> None:
    """Raise NeutrinoError if no trace has a launch of the chosen numbers, with those that there are. chosen: None for
    all."""
    if chosen is None:
        return
    least: int | None = None
    greatest = 0
    for trace in traces:
        numbers = np.flatnonzero(trace.launches["state"] != LaunchState.EMPTY)
        numbers = numbers[numbers >= trace.first_launch]
        if not numbers.size:
            continue
        if ((numbers >= chosen.start) & (numbers < chosen.stop)).any():
            return
        least = int(numbers[0]) if least is None else min(least, int(numbers[0]))
        greatest = max(greatest, int(numbers[-1]))
    end = "" if chosen.stop == sys.maxsize else chosen.stop
    wanted = chosen.start if len(chosen) == 1 else f"{chosen.start}:{end}"
    there = "there are none" if least is None else f"there are launches {least:,} to {greatest:,}"
    raise NeutrinoError(f"--launch {wanted}: no such launch; {there}")


def why_no_kernel(traces: Sequence[Trace], options: argparse.Namespace) -> str:
    """Return what to say where no kernel is left: by -k and --filter, or because there is none."""
    names = [kernel.name for trace in traces for kernel in trace.kernels]
    if not names or not (options.kernel or options.filter):
        return "no kernel to report"
    return escaped(f"-k and --filter leave no kernel; there are {some_of(names)}")
