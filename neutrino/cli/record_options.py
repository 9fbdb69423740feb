"""The options of ``neutrino-report`` that print records of one map; ``record_query.py`` does what they ask for."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from neutrino.cli.row_options import number_of_rows

SHOWN = 20
"""Rows of the table as text, unless their number is given."""
ALL = -1
"""``--records`` without a number."""


def add_queries(parser: argparse.ArgumentParser) -> None:
    """Add the options that ask for a map's records to a command line parser."""
    group = parser.add_argument_group(
        "records of one map, in place of the report",
        "EXPR has Python's syntax and exact integers: fields of the map; launch, block, warp, lane, k, order, sm where "
        "records have them; numbers, < <= > >= == !=, and, or, not, + - * // % & | ^ << >> ~ and parentheses.",
    )
    group.add_argument(
        "--records",
        type=_number,
        nargs="?",
        const=ALL,
        metavar="N",
        help=f"print the first N records or groups, records by launch, block, warp, lane and order ({SHOWN}; with "
        "--csv and --json all)",
    )
    group.add_argument("--where", metavar="EXPR", help="only records for which EXPR is true: 'elapsed > 10000'")
    group.add_argument(
        "--group-by",
        metavar="EXPR",
        help="in place of records, for each value of EXPR (a field, 'addr >> 7', block …), or for each kernel, line or "
        "site: how many records there are, and least value, mean, greatest value and sum of each field. Of a table by "
        "site, kernel, line and site add up its rows: the count, sum, least, greatest and mean of all saves there",
    )
    group.add_argument(
        "--sort",
        metavar="[-]EXPR",
        help="by EXPR, least first; -EXPR: greatest first. groups: by records or a column of --csv, as "
        "-elapsed_sum; without it those with most records first",
    )
    group.add_argument(
        "--csv", action="store_true", help="the table as CSV (RFC 4180) on stdout, whole and with whole names"
    )


def _number(text: str) -> int:
    """Parse the value of --records: a number of rows, or ALL without one."""
    return number_of_rows(text) if text else ALL


def prepared(arguments: Sequence[str]) -> list[str]:
    """Return a command line as argparse takes it: ``--records TRACE`` has no number, ``--sort -x`` has a value."""
    result: list[str] = []
    for argument in arguments:
        if result and result[-1] in ("--sort", "--where", "--group-by", "--fail-if") and argument.startswith("-"):
            result[-1] += f"={argument}"
        elif result and result[-1] == "--records" and not argument.isdecimal():
            result[-1:] = ["--records=", argument]
        else:
            result.append(argument)
    return result


def is_asked(options: argparse.Namespace) -> bool:
    """Return whether the options of a command line ask for records of a map, rather than the report."""
    given = (options.records, options.where, options.group_by, options.sort)
    return options.csv or any(value is not None for value in given)
