"""The command line of ``neutrino-report``."""

from __future__ import annotations

import argparse
from typing import Any

from neutrino.cli.arguments import Parser, given, given_target
from neutrino.cli.file_options import add_files
from neutrino.cli.findings_options import add_findings
from neutrino.cli.record_options import add_queries
from neutrino.cli.row_options import number_of_rows
from neutrino.cli.trace_choice import add_choices
from neutrino.version import __version__


def report_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line, with all options and their help."""
    parser = Parser(
        prog="neutrino-report",
        description="Summarize traces: for each kernel and map the number of records and the range of each field, "
        "and which kernels were not probed, with the reason.",
        epilog="Exit status: 0 done, 2 a trace that cannot be read or whose records were lost, a wrong expression, or "
        "a script that failed or was not run, 3 no kernel was probed; with --fail-if 1 where its condition holds, "
        "with --diff 1 where something changed, for better or worse, 2 where nothing could be judged.",
    )
    parser.add_argument(
        "trace", nargs="*", type=given,
        help="a trace directory, or a folder of them (default: the newest trace in ./trace)",
    )  # fmt: skip
    names: dict[str, Any] = {"action": "append", "default": [], "metavar": "NAME"}
    parser.add_argument("-k", "--kernel", help="only these kernels", **names)
    parser.add_argument("--filter", help="exclude these kernels", **names)
    parser.add_argument(
        "--why",
        nargs="?",
        const="",
        metavar="KERNEL",
        help="instead of the report: for each kernel why launches were not probed, what is known about that, and what "
        "helps; those with most such launches first. with KERNEL, a pattern as for -k, those kernels in any case",
    )
    parser.add_argument("--map", help="only these maps, by their names", **names)
    add_choices(parser)
    parser.add_argument(
        "--rows",
        type=number_of_rows,
        default=0,
        metavar="N",
        help="also print the first N records of each map that keeps records: by launch, block, warp, lane and order; "
        "and the N greatest results of each map per block, warp, thread or sm, of which a few are printed in any case",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="all of every kernel, every site, and kernels that were never launched; without it there is an "
        "overview where more than a few kernels were probed, unless -k chooses some",
    )
    parser.add_argument("--wide", action="store_true", help="whole kernel names")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument(
        "--html",
        type=given_target,
        metavar="FILE",
        help="a page of pictures in place of the report: one HTML file with everything in it, which needs no network",
    )
    parser.add_argument(
        "--png",
        type=given_target,
        metavar="FOLDER",
        help="the page's pictures as files for papers, in place of the report or with --html; with --diff the changes. "
        "The overview and the findings are sentences and tables, and have none. Needs Matplotlib "
        "(pip install 'neutrino-gpu[viz]')",
    )
    parser.add_argument("--svg", type=given_target, metavar="FOLDER", help="the same as SVG")
    parser.add_argument(
        "--source",
        action="append",
        default=[],
        metavar="FOLDER",
        help="with --html: where the program's sources are, for those that are not where they were compiled",
    )
    parser.add_argument(
        "--sass",
        action="store_true",
        help="with --html: also machine code of the kernels launched most, their PTX assembled here by ptxas and "
        "disassembled by nvdisasm, beside the source",
    )
    parser.add_argument(
        "--open", action="store_true", help="show the page in a browser; without --html it is in the trace"
    )
    parser.add_argument(
        "--analyze",
        action="store_true",
        help="first run the scripts that the trace's probes name (callback, analyze_hook), as the neutrino command "
        "does, and print which; scripts that other users could have written are not run; their output is appended to "
        "analyze.log in the trace",
    )
    add_files(parser)
    add_findings(parser)
    add_queries(parser)
    parser.add_argument("--version", action="version", version=f"neutrino {__version__}")
    return parser


def is_drawn(options: argparse.Namespace) -> bool:
    """Whether the options ask for pictures: a page, or files."""
    return bool(options.html or options.open or options.png or options.svg)
