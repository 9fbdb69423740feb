"""``neutrino-ctl``: steer a process that runs with probes: recording on and off, its records written or shown now."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from neutrino.abi.control_file import Command, Recording
from neutrino.abi.reasons import REASON_TEXT
from neutrino.cli.arguments import Parser
from neutrino.errors import NeutrinoError
from neutrino.loader.steering import Answer, Steered, find
from neutrino.version import __version__

DONE, FAILED = 0, 2
_TIMEOUT_S = 60.0
_OFF_TEXT = {
    Recording.STEERED: "off, by neutrino-ctl",
    Recording.SWITCHED: "off, as no neutrino.trace() block is open",
    Recording.OVER: "off, as the --duration is over",
    Recording.ENDING: "off, as the process ends",
}
_TOP = "top"
"""A command of this side alone: the process is asked to write what it has, and its trace is read."""
_HELP = {
    Command.STATUS: "print what it records",
    Command.ON: "record again",
    Command.OFF: "record nothing: from now on launches run their own machine code, and count as not-selected",
    Command.FLUSH: "write all that is recorded into the trace, and return when it can be read there",
}


_COMMANDS = (*(command.name.lower() for command in Command), _TOP)


def _seconds(text: str) -> float:
    """Parse an option's number of seconds, for argparse: above 0, at most a day."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds such as 30 or 2.5")
    return seconds


def _count(text: str) -> int:
    """Parse how many reports are wanted, for argparse."""
    if not text.isascii() or not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of reports from 1 on")
    return int(text)


def _pid(text: str) -> int:
    """Parse the number of a process, for argparse."""
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 1 << 31:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not the number of a process, which ends the name of its trace and comes first: "
            "neutrino-ctl PID COMMAND"
        )
    return int(text)


def _parser() -> argparse.ArgumentParser:
    """The command line's parser, with all options and their help."""
    parser = Parser(
        prog="neutrino-ctl",
        description="Steer a process that runs with probes, as neutrino has started it. It answers within a second.",
        epilog="Commands: " + "; ".join(f"{command.name.lower()}: {text}" for command, text in _HELP.items())
        + f"; {_TOP}: print the report of what it has recorded so far, again and again until it ends.",
    )
    parser.add_argument("pid", type=_pid, metavar="PID", help="the process: its number ends the name of its trace")
    parser.add_argument(
        "command", choices=_COMMANDS, metavar="COMMAND", help=", ".join(_COMMANDS),
    )  # fmt: skip
    parser.add_argument(
        "--timeout", type=_seconds, default=_TIMEOUT_S, metavar="SECONDS",
        help=f"how long to wait for the answer; a flush waits for the kernels that run (default: {_TIMEOUT_S:.0f})",
    )  # fmt: skip
    parser.add_argument(
        "--interval", type=_seconds, default=2.0, metavar="SECONDS",
        help=f"of {_TOP}: between two reports, or more where reading the trace takes long (default: 2)",
    )  # fmt: skip
    parser.add_argument("--count", type=_count, default=0, metavar="N", help=f"of {_TOP}: end after N reports")
    parser.add_argument("--version", action="version", version=f"neutrino-ctl {__version__}")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask the process, and print its answer. Returns the exit status: 0 if it has done so, 2 if not."""
    options = _parser().parse_args(arguments)
    if options.command == _TOP:
        return _top(options)
    command = Command[options.command.upper()]
    try:
        with find(options.pid) as process:
            answer = process.ask(command, options.timeout)
            lines = list(_status(process, answer)) if command is Command.STATUS else [_recording(answer)]
    except NeutrinoError as error:
        print(f"neutrino-ctl: {error}", file=sys.stderr)
        return FAILED
    if command is Command.FLUSH:
        lines = [f"written: {process.trace_dir}"]
    # The reader of a pipe may have had enough.
    with contextlib.suppress(BrokenPipeError):
        print("\n".join(lines), flush=True)
    return DONE


def _top(options: argparse.Namespace) -> int:
    """Print reports until the process ends. Returns the exit status, as ``main`` does."""
    from neutrino.cli.ctl_top import show

    try:
        with find(options.pid) as process, contextlib.suppress(BrokenPipeError):
            show(process, options)
    except NeutrinoError as error:
        print(f"neutrino-ctl: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        # The usual way to leave it.
        return DONE
    return DONE


def _recording(answer: Answer) -> str:
    """The line that says whether the process records, and if not, who turned it off.

    answer: what the process says of itself.
    """
    reasons = [text for off, text in _OFF_TEXT.items() if off in answer.off]
    return f"recording: {'; '.join(reasons) or 'on'}"


def _status(process: Steered, answer: Answer) -> Iterator[str]:
    """Yield the lines that say what a process records and where. answer: what the process says of itself."""
    yield _recording(answer)
    yield f"trace: {process.trace_dir}"
    yield from _contents(process.trace_dir)
    yield f"device memory for maps: {answer.pool_bytes / (1 << 20):.0f} MiB"


def _contents(path: Path) -> Iterator[str]:
    """Yield what the trace says of probes and launches; nothing of one that this user or namespace does not see."""
    from neutrino.tracing.trace import Trace

    try:
        trace = Trace(path)
        coverage = trace.coverage
    except (OSError, NeutrinoError):
        return
    yield f"probes: {trace.process.get('probes') or '(none)'}"
    yield f"launches probed: {coverage.probed:,}"
    yield f"launches not chosen: {coverage.left_out:,}"
    for reason, count in coverage.not_probed.items():
        yield f"launches {reason.word}: {count:,} ({REASON_TEXT[reason]})"


if __name__ == "__main__":
    raise SystemExit(main())
