"""How many rows of a table a command prints, as an option says it."""

from __future__ import annotations

import argparse
import re

MOST_ROWS = 20
"""Rows of a ``print`` of a one-liner that are printed, unless the command says how many."""


def number_of_rows(text: str) -> int:
    """Parse an option's number of rows, for argparse."""
    if not re.fullmatch(r"\d{1,6}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rows from 0 to 999999")
    return int(text)
