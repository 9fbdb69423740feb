"""``-e 'interval:1s { print(@bytes) }'``: what one-liners have recorded so far, printed while COMMAND runs."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from neutrino.errors import NeutrinoError
from neutrino.late_dataclass import dataclass

if TYPE_CHECKING:
    from neutrino.run.traces import RunTraces

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0}
_LEAST_S = 0.1
_MOST_S = 86400.0
_PAUSES = 4
"""Pauses are at least so many times as long as reading took, so that this takes a fifth of a core at most."""
_WORD = re.compile(r"(?:^|(?<=[};]))\s*interval\s*:", re.ASCII)
_CLAUSE = re.compile(
    r"(?:^|(?<=[};]))\s*interval:(?P<number>\d+(?:\.\d+)?)(?P<unit>ms|s|m)\s*"
    r"\{\s*(?P<body>[^{}]*?)\s*;?\s*\}\s*;?",
    re.ASCII,
)  # fmt: skip
_OTHER_UNIT = re.compile(r"(?:^|(?<=[};]))\s*interval:(?P<number>\d+(?:\.\d+)?)(?P<unit>[a-z]*)\s*\{", re.ASCII)
_BODY = re.compile(r"print(?:\s*\(\s*(?P<maps>(?:@\w*\s*(?:,\s*@\w*\s*)*)?)\))?", re.ASCII)
_FORM = "write it as in 'interval:1s { print(@bytes) }', or { print } for all maps"


@dataclass(frozen=True)
class Interval:
    """A clause. seconds: between two printings. maps: names of the maps (what probes save to) that are printed, without
    the @; all without any.
    """

    seconds: float
    maps: tuple[str, ...]


def take_intervals(texts: Sequence[str]) -> tuple[list[str], list[Interval]]:
    """Return one-liners without their clauses ``interval:``, and these.

    Raises NeutrinoError for a wrong one, and where there is no other clause whose maps could be printed.
    """
    others: list[str] = []
    found: list[Interval] = []
    for text in texts:
        rest = text
        while match := _CLAUSE.search(rest):
            found.append(_interval(match))
            # Places in what is left stay as they are, for messages.
            rest = rest[: match.start()] + " " * len(match[0]) + rest[match.end() :]
        if _WORD.search(rest):
            unit = _OTHER_UNIT.search(rest)
            if unit:
                form = f"interval:{unit['number']}"
                lacks = f"has no unit: write {form}s" if not unit["unit"] else "has another unit than ms, s and m"
                raise NeutrinoError(f"-e: {form}{unit['unit']} {lacks}")
            raise NeutrinoError(f"-e {text!r}: that is no clause of interval; {_FORM}")
        if rest.strip():
            others.append(rest)
    if found and not others:
        raise NeutrinoError("-e 'interval: …' prints what other one-liners have saved: give one of these, too")
    return others, found


def _interval(match: re.Match[str]) -> Interval:
    """Return what a clause says. Raises NeutrinoError for another body than print, and for too short or long a time."""
    body = _BODY.fullmatch(match["body"])
    if body is None:
        if re.match(r"print\s*\(", match["body"]):
            raise NeutrinoError(f"-e: interval: {match['body']}: the names of maps begin with @; {_FORM}")
        raise NeutrinoError(f"-e: interval: {{ {match['body']} }} is not print; {_FORM}")
    seconds = float(match["number"]) * _UNITS[match["unit"]]
    if not _LEAST_S <= seconds <= _MOST_S:
        raise NeutrinoError(f"-e: interval:{match['number']}{match['unit']}: from 100ms to 1440m")
    return Interval(seconds, tuple(re.findall(r"@(\w*)", body["maps"] or "")))


def print_meanwhile(
    texts: Sequence[str], intervals: Sequence[Interval], rows: int, traces: RunTraces, ended: threading.Event
) -> None:
    """Print on stderr what one-liners have recorded so far, as the intervals say, until COMMAND has ended.

    texts: the one-liners. rows: of a ``print`` that are printed at most. traces: of the run. ended: is set at the end.
    """
    began = time.monotonic()
    due = [interval.seconds for interval in intervals]
    least = 0.0
    while True:
        number = min(range(len(due)), key=due.__getitem__)
        if ended.wait(max(began + max(due[number], least) - time.monotonic(), 0)):
            return
        now = time.monotonic() - began
        for path in traces.find():
            _flush(path, intervals[number].seconds)
            text = _so_far(path, texts, intervals[number], rows)
            if ended.is_set():
                # What is printed at the end has all of it.
                return
            with contextlib.suppress(OSError, AttributeError):
                sys.stderr.write(f"after {now:.3g} s:\n{text}")
                sys.stderr.flush()
        taken = time.monotonic() - began - now
        due[number] = now + intervals[number].seconds
        least = now + taken + pause_after(0, taken)


def pause_after(interval: float, taken: float) -> float:
    """Return how long to wait after results were printed. interval: from one printing to the next; taken: by this one.
    All in seconds.
    """
    return max(interval - taken, _PAUSES * taken)


def _so_far(path: Path, texts: Sequence[str], interval: Interval, rows: int) -> str:
    """Return what a trace has of the maps that an interval prints, as text for a terminal."""
    from neutrino.cli.one_liner_results import results_of
    from neutrino.cli.run_results import harmless

    return harmless(results_of(texts, rows, only=interval.maps)(path))


def _flush(path: Path, seconds: float) -> None:
    """Have a process write what it has recorded: one that has ended or takes longer leaves its trace as it is."""
    from neutrino.abi.control_file import Command
    from neutrino.loader.steering import find

    with contextlib.suppress(NeutrinoError, OSError, ValueError), find(int(path.name.rpartition("_")[2])) as process:
        process.ask(Command.FLUSH, max(seconds, 0.5))
