"""What the tests of map types need of the machine."""

from __future__ import annotations

import pytest

from neutrino.errors import ToolMissingError
from neutrino.toolchain.location import find_tool


@pytest.fixture(scope="session")
def ptxas() -> None:
    try:
        find_tool("ptxas")
    except ToolMissingError as error:
        pytest.skip(str(error))
