"""One way to run an external tool: to its end, without a shell."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from neutrino.errors import ToolError, ToolMissingError


@dataclass(frozen=True)
class ToolResult:
    """A tool's run that ended with status 0."""

    argv: list[str]
    stdout: bytes
    stderr: str


def run_tool(argv: Sequence[str | Path], *, input: bytes | None = None, timeout: float) -> ToolResult:
    """Run a tool to its end, without a shell. timeout: seconds.

    Raises ToolError when it cannot be started, ends with another status than 0 (a signal is negative) or runs
    past the timeout (status None); ToolMissingError when argv[0] does not exist.
    """
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(words, input=input, capture_output=True, timeout=timeout, check=False, close_fds=True)
    except FileNotFoundError as error:
        raise ToolMissingError(words[0], "the file does not exist") from error
    except OSError as error:
        raise ToolError(words, None, str(error)) from error
    except subprocess.TimeoutExpired as error:
        raise ToolError(words, None, f"no result within {timeout:g} s") from error
    stderr = done.stderr.decode("utf-8", "replace")
    if done.returncode:
        raise ToolError(words, done.returncode, stderr or done.stdout.decode("utf-8", "replace"))
    return ToolResult(words, done.stdout, stderr)
