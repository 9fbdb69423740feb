"""``neutrino-probe codes``: what the codes of diagnostics mean."""

from __future__ import annotations

import argparse

from neutrino.cli.probe_status import BAD_INPUT, DONE, Commands, say
from neutrino.cli.table import table


def configure(commands: Commands) -> None:
    """Add the command ``neutrino-probe codes``. commands: the subparsers of ``neutrino-probe``."""
    parser = commands.add_parser(
        "codes",
        help="what the codes of errors and warnings mean",
        description="List the codes that errors and warnings of probes end with, and --json of check has, with what "
        "each means.",
    )
    parser.add_argument("code", nargs="?", metavar="CODE", help="one code, such as early-clock; all without it")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the codes, or one of them, with their meanings. Returns the exit status."""
    from neutrino.fault_codes import CODES
    from neutrino.probing.nearest import nearest

    rows = [
        (code, where, meaning)
        for where, codes in CODES.items() for code, meaning in codes.items() if options.code in (None, code)
    ]  # fmt: skip
    if not rows:
        guess = nearest(options.code, [code for codes in CODES.values() for code in codes])
        say(f"{options.code}: no code of a diagnostic" + (f"; did you mean {guess}?" if guess else ""))
        return BAD_INPUT
    for line in table(("code", "of", "meaning"), rows):
        print(line)
    return DONE
