"""``neutrino-probe opcodes``: the instructions of PTX, and what probes can read of each."""

from __future__ import annotations

import argparse

from neutrino.cli.probe_status import BAD_INPUT, DONE, Commands, say
from neutrino.cli.table import table


def configure(commands: Commands) -> None:
    """Add the command ``neutrino-probe opcodes``. commands: the subparsers of ``neutrino-probe``."""
    parser = commands.add_parser(
        "opcodes",
        help="the instructions of PTX, and what probes can read of each",
        description="List the instructions of PTX (ISA 9.0) with their classes and operands, as tracepoints and probes "
        "take them.",
    )
    parser.add_argument(
        "word", nargs="?", metavar="WORD",
        help="a class (atomic), an instruction (ld.global.v4.f32) or the beginning of names (mbarrier); all without it",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the instructions that the word names. Returns the exit status."""
    from neutrino import opcode_rows as opcodes
    from neutrino.probing.nearest import nearest

    rows = list(opcodes.rows(options.word))
    if not rows:
        guess = nearest(options.word, opcodes.words())
        say(f"{options.word}: no class or instruction of PTX ISA 9.0" + (f"; did you mean {guess}?" if guess else ""))
        return BAD_INPUT
    # Columns that are empty in all of these rows say nothing.
    shown = [column for column in range(len(opcodes.HEAD)) if any(row[column] for row in rows)]
    for line in table([opcodes.HEAD[column] for column in shown], [[row[column] for column in shown] for row in rows]):
        print(line)
    print(f"\n{opcodes.LEGEND}")
    return DONE
