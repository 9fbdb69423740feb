"""The options of ``neutrino-report`` for what replaces the report: files for other programs, and ``--diff``."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from neutrino.cli.arguments import given, given_target

_USUAL_THRESHOLD = 2.0
"""Percent that a figure of two traces may differ beyond the noise, if --threshold does not say otherwise."""
_ASKED = ("perfetto", "iket", "diff")
"""Of which one can be asked for."""
_ALLOWED = {
    "perfetto": ("launch", "rank"), "iket": ("launch", "rank"), "events": ("json", "all", "wide"),
    "diff": ("threshold", "rank", "json", "all", "wide", "html", "png", "svg", "open", "source", "sass"),
}  # fmt: skip
"""The options that go with each; a file of events is one more."""


def add_files(parser: argparse.ArgumentParser) -> None:
    """Add these options to a command line parser."""
    group = parser.add_argument_group("files for other programs, in place of the report")
    group.add_argument(
        "--perfetto",
        type=given_target,
        metavar="OUT[.gz]",
        help="write when blocks and warps ran, on which multiprocessor, and what they marked, for ui.perfetto.dev: of "
        "one trace, from maps with begin and end, or start and elapsed, of each warp, such as those of the probes "
        "warp_timeline and block_sched",
    )
    group.add_argument(
        "--iket",
        type=given_target,
        metavar="OUT.json",
        help="write the same as events in the JSON of NVIDIA's IKET, which scripts read; such a file is read in place "
        "of a trace: 'neutrino-report events.json'",
    )
    group = parser.add_argument_group("two traces compared, in place of the report")
    group.add_argument(
        "--diff",
        type=given,
        metavar="B",
        help="compare the trace with the trace B, of another build or run: which kernels changed by more than their "
        "launches differ, by which figures, lines and ranges, those with most effect first. Exit status 1 if something "
        "changed",
    )
    group.add_argument(
        "--threshold",
        type=_percent,
        metavar="PCT",
        help=f"with --diff: how many percent a figure may differ beyond the noise ({_USUAL_THRESHOLD:g})",
    )


def is_file_asked(options: argparse.Namespace) -> bool:
    """Whether the options ask for something in place of the report."""
    return any(getattr(options, name) is not None for name in _ASKED) or _is_events(options)


def _is_events(options: argparse.Namespace) -> bool:
    """Whether the report is asked of a file that may have IKET's events: the first thing in it is an object of JSON."""
    path = Path(options.trace[0]) if len(options.trace) == 1 else None
    try:
        if path is None or not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(64).lstrip().startswith(b"{")
    except (OSError, ValueError):
        return False


def run_asked(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Do what these options ask for. Returns the exit status."""
    asked = [name for name in _ASKED if getattr(options, name) is not None]
    is_events = _is_events(options)
    mode = "events" if is_events else asked[0]
    allowed = {"trace", "kernel", "filter", *asked[:1], *_ALLOWED[mode]}
    given = [name for name, value in vars(options).items() if value != parser.get_default(name)]
    others = [name for name in given if name not in allowed]
    if options.json and options.diff is not None and (options.html or options.open):
        others.append("json")
    if others:
        words = [f"--{name.replace('_', '-')}" for name in (*asked[:1], *others)]
        words = words if asked else [options.trace[0], *words]
        parser.error(f"{' and '.join(words)} do not go together")
    if is_events and asked not in ([], ["iket"]):
        parser.error(f"--{asked[0]} is of a trace, which {options.trace[0]} is not")
    # Imported here: most reports need none.
    if is_events:
        from neutrino.cli.iket_report import report_events

        return report_events(options)
    if options.diff is not None:
        from neutrino.cli.comparison_report import print_comparison

        if options.threshold is None:
            options.threshold = _USUAL_THRESHOLD
        return print_comparison(options)
    from neutrino.cli.report_files import write_files

    return write_files(options)


def _percent(text: str) -> float:
    """Parse a number of percent, for argparse."""
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = -1.0
    if not math.isfinite(value) or value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of percent from 0 on")
    return value
