"""The command line's parser: an option that there is not is answered with the nearest one."""

from __future__ import annotations

import argparse
import re
from typing import NoReturn

_UNKNOWN = re.compile(r"unrecognized arguments: (?P<words>.*)", re.DOTALL)


class Parser(argparse.ArgumentParser):
    """argparse's, whose errors suggest options."""

    def error(self, message: str) -> NoReturn:
        """Exit with argparse's status 2, its usage, and a message."""
        super().error(suggested(self, message))


def suggested(parser: argparse.ArgumentParser, message: str) -> str:
    """Return an error of argparse; of an option that the parser has not, with the one that may be meant."""
    match = _UNKNOWN.fullmatch(message)
    option = next((word for word in match["words"].split() if word.startswith("--")), "") if match else ""
    if not option:
        return message
    # Imported here: only a mistake needs it.
    from neutrino.probing.nearest import nearest

    guess = nearest(option.partition("=")[0], [name for name in parser._option_string_actions if name.startswith("--")])
    return f"{message}; did you mean {guess}?" if guess else message
