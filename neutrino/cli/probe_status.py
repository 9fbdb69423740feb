"""What the commands of ``neutrino-probe`` share: exit statuses, and messages on stderr."""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import TypeAlias

from neutrino.cli.streams import escaped

DONE, DIFFERENT, BAD_INPUT, NOTHING = 0, 1, 2, 3
"""Exit status: done; outputs differ with the probe; bad input or a fault; nothing was found to probe."""

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def say(message: str) -> None:
    """Print a message on stderr, each line after the command's name. Errors of stderr itself are ignored."""
    # With stderr closed, sys.stderr is None, and print(file=None) would write to stdout.
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            for line in message.splitlines():
                print(f"neutrino-probe: {escaped(line)}", file=sys.stderr)
