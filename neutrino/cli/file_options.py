"""The options of ``neutrino-report`` that write files for other programs; ``report_files.py`` writes them."""

from __future__ import annotations

import argparse


def add_files(parser: argparse.ArgumentParser) -> None:
    """Add the options that write files for other programs to a command line parser."""
    group = parser.add_argument_group("files for other programs, in place of the report")
    group.add_argument(
        "--perfetto",
        metavar="OUT[.gz]",
        help="write when blocks and warps ran, on which multiprocessor, and what they marked, for ui.perfetto.dev: of "
        "one trace, from maps with begin and end, or start and elapsed, of each warp, such as those of the probes "
        "warp_timeline and block_sched",
    )


def is_file_asked(options: argparse.Namespace) -> bool:
    """Whether the options ask for a file in place of the report."""
    return options.perfetto is not None
