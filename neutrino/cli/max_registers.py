"""The option ``--max-registers`` of several commands."""

from __future__ import annotations

import argparse
import re

from neutrino.device.register_limits import LEAST_CAP, MOST_CAP


def add_max_registers(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--max-registers N`` to a command's parser; without it the value is None."""
    parser.add_argument(
        "--max-registers",
        type=_registers,
        metavar="N",
        help=f"twins get at most N registers per thread ({LEAST_CAP} to {MOST_CAP}), so that more of their blocks fit "
        "on a multiprocessor, and may spill more; the program's own kernels stay as they are. Nothing for the embedded "
        "device",
    )


def _registers(text: str) -> int:
    """Parse the value of --max-registers, for argparse.

    Raises ArgumentTypeError for a number that ptxas does not take.
    """
    if not re.fullmatch(r"\d{1,4}", text, re.ASCII) or not LEAST_CAP <= int(text) <= MOST_CAP:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number from {LEAST_CAP} to {MOST_CAP}: ptxas takes no fewer registers for a "
            "thread, and none has more"
        )
    return int(text)
