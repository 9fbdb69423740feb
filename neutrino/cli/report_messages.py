"""Messages of ``neutrino-report`` on stderr."""

from __future__ import annotations

import contextlib
import sys

from neutrino.cli.streams import escaped
from neutrino.errors import NeutrinoError

DONE, BAD_INPUT, NOTHING = 0, 2, 3
"""Exit statuses."""


def fail(error: NeutrinoError | str) -> int:
    """Print an error, each line after the command's name. Returns the exit status."""
    for line in str(error).splitlines():
        say(line)
    return BAD_INPUT


def say(line: str) -> None:
    """Print a line on stderr after the command's name. Errors of stderr itself are ignored."""
    # With stderr closed, sys.stderr is None, and print(file=None) would write to stdout.
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(f"neutrino-report: {escaped(line)}", file=sys.stderr)
