"""``neutrino-report events.json``: a report of a file of IKET's events, and the file written again."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from neutrino.cli.kernel_names import shorten
from neutrino.cli.report_messages import NOTHING, fail, say
from neutrino.cli.streams import escaped, print_anything
from neutrino.cli.trace_choice import print_lines
from neutrino.demangle import demangle
from neutrino.errors import NeutrinoError
from neutrino.probing.selection import Selection
from neutrino.tracing.iket import document_of, read_iket
from neutrino.tracing.iket_summary import KernelEvents, Times, kernel_events

SCHEMA = "neutrino-iket 1"
"""Name and version of the JSON document: the version rises when a member changes or goes."""
_NAME_WIDTH = 100
_MOST_ROWS = 20
"""Warps, ranges and marks of a kernel that are shown without ``--all``."""


def report_events(options: argparse.Namespace) -> int:
    """Print what a file of events says, or write it again.

    Returns the exit status: 0 done, 2 bad input, 3 no kernel is left.
    """
    print_anything()
    (path,) = options.trace
    try:
        selection = Selection(tuple(options.kernel), tuple(options.filter))
        file = read_iket(path)
        if options.iket is not None:
            Path(options.iket).write_text(json.dumps(document_of(file)) + "\n")
            return print_lines([escaped(f"{options.iket}: {_counted(len(file.all_launches))}")])
    except NeutrinoError as error:
        return fail(error)
    except OSError as error:
        return fail(f"{options.iket}: {error.strerror or error}")
    kernels = [one for one in kernel_events(file) if selection.selects(one.kernel, demangle(one.kernel))]
    if options.json:
        document: dict[str, Any] = {
            "schema": SCHEMA, "file": path, "doubts": file.faults,
            "kernels": [asdict(one) | {"demangled": demangle(one.kernel)} for one in kernels],
        }  # fmt: skip
        return print_lines([json.dumps(document, indent=1)]) or (0 if kernels else NOTHING)
    lines = [f"{path}: events of IKET, {_counted(len(file.all_launches))}"]
    for one in kernels:
        lines += ["", *_kernel_lines(one, options.all, options.wide)]
    lines += [f"note: {fault}" for fault in file.faults]
    if not kernels:
        say("no kernel to report")
    return print_lines(map(escaped, lines)) or (0 if kernels else NOTHING)


def _kernel_lines(events: KernelEvents, show_all: bool, is_wide: bool) -> Iterator[str]:
    """Yield the lines about one kernel."""
    name = demangle(events.kernel)
    grid, block = ("x".join(map(str, size)) for size in (events.grid, events.block))
    yield f"{name if is_wide else shorten(name, _NAME_WIDTH)}: grid {grid}, block {block}"
    where = f" on {events.sms:,} multiprocessors" if events.sms else ""
    yield f"  {_counted(events.launches)}{where}, times in {events.timebase}"
    rows = ([events.span] if events.span else []) + list(events.warps[: None if show_all else _MOST_ROWS])
    yield from _table("lifetime of", rows)
    if len(events.warps) > _MOST_ROWS and not show_all:
        yield f"    and {len(events.warps) - _MOST_ROWS:,} warps more (--all)"
    shown = events.ranges[: None if show_all else _MOST_ROWS]
    yield from _table("range", shown)
    if len(events.ranges) > len(shown):
        yield f"    and {len(events.ranges) - len(shown):,} ranges more (--all)"
    for mark, count in events.marks[: None if show_all else _MOST_ROWS]:
        yield f"    mark {mark}: {count:,} times"


def _counted(launches: int) -> str:
    """Return a number of launches with the noun."""
    return f"{launches:,} {'launch' if launches == 1 else 'launches'}"


def _table(title: str, rows: Sequence[Times]) -> Iterator[str]:
    """Yield the lines of a table of times; none without rows."""
    if not rows:
        return
    cells: list[tuple[str, ...]] = [(title, "count", "mean", "least", "most", "in all")]
    for row in rows:
        whole = (f"{number:,}" for number in (row.least, row.most, row.total))
        cells.append((row.name, f"{row.count:,}", f"{row.mean:,.1f}", *whole))
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    for first, *others in cells:
        numbers = "  ".join(f"{text:>{width}}" for text, width in zip(others, widths[1:], strict=True))
        yield f"    {first:<{widths[0]}}  {numbers}"
