"""The options of ``neutrino-report`` for what replaces the report: files for other programs, and ``--diff``."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence


def add_files(parser: argparse.ArgumentParser) -> None:
    """Add these options to a command line parser."""
    group = parser.add_argument_group("files for other programs, in place of the report")
    group.add_argument(
        "--perfetto",
        metavar="OUT[.gz]",
        help="write when blocks and warps ran, on which multiprocessor, and what they marked, for ui.perfetto.dev: of "
        "one trace, from maps with begin and end, or start and elapsed, of each warp, such as those of the probes "
        "warp_timeline and block_sched",
    )
    group = parser.add_argument_group("two traces compared, in place of the report")
    group.add_argument(
        "--diff",
        metavar="B",
        help="compare the trace with the trace B, of another build or run: which kernels changed by more than their "
        "launches differ, by which figures, lines and ranges, those with most effect first. Exit status 1 if something "
        "changed",
    )
    group.add_argument(
        "--threshold",
        type=_percent,
        metavar="PCT",
        default=2.0,
        help="with --diff: how many percent a figure may differ beyond the noise (2)",
    )


def is_file_asked(options: argparse.Namespace) -> bool:
    """Whether the options ask for something in place of the report."""
    return options.perfetto is not None or options.diff is not None


def run_asked(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Do what these options ask for. Returns the exit status."""
    asked = [name for name in ("perfetto", "diff") if getattr(options, name) is not None]
    # A comparison may be a page, too.
    html = () if options.diff is not None else ("html",)
    others = _given(options, parser, (*html, "why", "rows", "records", "where", "group_by", "sort", "csv", "analyze"))
    if len(asked) > 1 or others or (options.json and (options.diff is None or options.html)):
        words = [*(f"--{name}" for name in asked), *others, *(["--json"] if options.json else [])]
        parser.error(f"{' and '.join(words)} do not go together")
    # Imported here: most reports need neither.
    if options.diff is not None:
        from neutrino.cli.comparison_report import print_comparison

        return print_comparison(options)
    from neutrino.cli.report_files import write_files

    return write_files(options)


def _given(options: argparse.Namespace, parser: argparse.ArgumentParser, names: Sequence[str]) -> list[str]:
    """Return which options were given, as they are written."""
    return [
        f"--{name.replace('_', '-')}"
        for name in names if getattr(options, name, None) != parser.get_default(name)
    ]  # fmt: skip


def _percent(text: str) -> float:
    """Parse a number of percent, for argparse."""
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = -1.0
    if not math.isfinite(value) or value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of percent from 0 on")
    return value
