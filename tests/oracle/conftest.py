"""What the tests of the oracle share: the assembler, and how many random kernels."""

from __future__ import annotations

import pytest

from neutrino.errors import ToolMissingError
from neutrino.toolchain.location import find_tool


@pytest.fixture(scope="session")
def ptxas() -> None:
    """Skip where the assembler is missing."""
    try:
        find_tool("ptxas")
    except ToolMissingError as error:
        pytest.skip(str(error))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--random-rewrites", type=int, default=0, help="random kernels to rewrite, in place of a few")
