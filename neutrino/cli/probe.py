"""``neutrino-probe``: check and try probes before they are used on a program. One module per command."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from neutrino.cli import (
    probe_check,
    probe_codes,
    probe_compile,
    probe_list,
    probe_new,
    probe_opcodes,
    probe_show,
    probe_sites,
    probe_try,
)
from neutrino.cli.arguments import Parser
from neutrino.cli.diagnostics import print_diagnostics
from neutrino.cli.probe_status import BAD_INPUT, DONE, Commands, say
from neutrino.cli.streams import print_anything
from neutrino.cli.termination import exiting_on_sigterm
from neutrino.errors import NeutrinoError, ProbeError
from neutrino.version import __version__

_DESCRIPTION = "Check and try probes before they are used on a program. No GPU is needed."
_EPILOG = """\
PROBE is a path, with a / or ending in .toml or .py, the name of a probe that ships with Neutrino, or probes in one
line, as for neutrino -e: 'ld.global { @bytes = sum(BYTES) }'.
See neutrino-probe COMMAND --help for the options of a command.

exit status: 0 done; 1 the kernel's outputs differ with the probe (try); 2 bad input, an invalid probe or a fault;
3 no kernel to probe"""


@exiting_on_sigterm()
def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of the commands. Returns the exit status: 0 done, 1 outputs differ, 2 bad input, 3 nothing was probed."""
    parser, commands = _parser()
    # Only the known ones: parse_args would report the others itself, with the usage of neutrino-probe.
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        # Reported by the command's own parser, whose error shows the usage of that command.
        commands.choices[options.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    print_anything()
    try:
        status = int(options.run(options))
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The reader closed the pipe (| head). Python would print an error when it closes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except ProbeError as error:
        print_diagnostics(error.diagnostics)
        return BAD_INPUT
    except OSError as error:
        return _fail(f"{os.fsdecode(error.filename)}: {error.strerror}" if error.filename else str(error))
    except NeutrinoError as error:
        return _fail(str(error))
    except MemoryError:
        return _fail("out of memory")
    except KeyboardInterrupt:
        _end_as_interrupted()


def _fail(message: str) -> int:
    """Print a message on stderr; the exit status for bad input."""
    say(message)
    return BAD_INPUT


def _end_as_interrupted() -> NoReturn:
    """End the process by SIGINT itself: the shell then knows that it was interrupted."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
    # Only if the signal is blocked: the status that a shell would give.
    raise SystemExit(128 + signal.SIGINT)


def _parser() -> tuple[argparse.ArgumentParser, Commands]:
    """Return the parser of the command line, and its subparsers by command."""
    parser: argparse.ArgumentParser = Parser(
        prog="neutrino-probe",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"neutrino {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    every = (
        probe_new, probe_check, probe_codes, probe_compile, probe_list, probe_opcodes, probe_sites, probe_show,
        probe_try,
    )  # fmt: skip
    for command in every:
        command.configure(commands)
    return parser, commands


if __name__ == "__main__":
    sys.exit(main())
