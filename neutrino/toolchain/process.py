"""Running an external tool to its end, without a shell."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from neutrino.errors import ToolError, ToolMissingError


@dataclass(frozen=True)
class ToolResult:
    """The output of a tool that ended with status 0. argv: its command line."""

    argv: list[str]
    stdout: bytes
    stderr: str


def run_tool(argv: Sequence[str | Path], *, input: bytes | None = None, timeout: float) -> ToolResult:
    """Run a tool to its end, without a shell, and return its output.

    input: bytes for its standard input. timeout: seconds. Raises ToolMissingError when argv[0] does not exist.
    Raises ToolError, with the exit status, when that is not 0 (negative for a signal); and, with the status None, when
    the tool cannot be started or does not end within the timeout.
    """
    command = [str(argument) for argument in argv]
    try:
        process = subprocess.run(
            command, input=input, capture_output=True, timeout=timeout, check=False, close_fds=True
        )
    except FileNotFoundError as error:
        raise ToolMissingError(command[0], "the file does not exist") from error
    except OSError as error:
        raise ToolError(command, None, str(error)) from error
    except subprocess.TimeoutExpired as error:
        raise ToolError(command, None, f"no result within {timeout:g} s") from error
    stderr = process.stderr.decode("utf-8", "replace")
    if process.returncode:
        raise ToolError(command, process.returncode, stderr or process.stdout.decode("utf-8", "replace"))
    return ToolResult(command, process.stdout, stderr)
