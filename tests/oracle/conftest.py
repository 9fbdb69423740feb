"""The summary line of the oracle."""

from __future__ import annotations

from typing import Any

import pytest

from neutrino.errors import ToolMissingError
from neutrino.toolchain import find_tool
from tests.oracle.tally import TALLY


@pytest.fixture(scope="session")
def ptxas() -> None:
    """Skip where the assembler is missing."""
    try:
        find_tool("ptxas")
    except ToolMissingError as error:
        pytest.skip(str(error))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--random-rewrites", type=int, default=0, help="random kernels to rewrite, in place of a few")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if TALLY.runs:
        terminalreporter.write_line(
            f"oracle: {TALLY.kernels} kernels x {TALLY.probes} probe files: {TALLY.twins} twins, "
            f"{TALLY.runs} runs under fixed and random schedules in {TALLY.seconds:.1f} s"
        )
    for line in TALLY.lines:
        terminalreporter.write_line(line)
