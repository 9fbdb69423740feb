"""The option ``-D NAME=VALUE``: another value for a constant of a probe file in Python."""

from __future__ import annotations

import argparse
import re

_DEFINE = re.compile(r"(?P<name>[^\W\d]\w*)=(?P<value>.+)")
_MAX_DIGITS = 100


def add_define(parser: argparse.ArgumentParser) -> None:
    """Add the option ``-D NAME=VALUE`` to a command's parser."""
    parser.add_argument(
        "-D", "--define", type=_define, action="append", default=[], metavar="NAME=VALUE",
        help="give a constant of a probe in Python another value: a number, true or false; repeatable",
    )  # fmt: skip


def _define(text: str) -> tuple[str, int | float]:
    """Return the name and value of ``NAME=VALUE``. Raises ArgumentTypeError, which argparse reports."""
    match = _DEFINE.fullmatch(text)
    if match is None or len(text) > _MAX_DIGITS:
        raise argparse.ArgumentTypeError(f"{text[:_MAX_DIGITS]!r} is not NAME=VALUE, as in LIMIT=4")
    name, value = match["name"], match["value"]
    if value in {"true", "True", "false", "False"}:
        return name, value.lower() == "true"
    for kind in (_integer, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    raise argparse.ArgumentTypeError(f"{value!r} is no number, nor true or false")


def _integer(text: str) -> int:
    """Return the integer that a text is, in any base that Python writes: ``12``, ``0xff``, ``0b11``."""
    return int(text, 0)
