"""What is found or built once for all tests of this folder."""

from __future__ import annotations

import pytest

from neutrino.errors import ToolMissingError
from neutrino.toolchain.ptxas import Assembler
from neutrino.toolchain.tool_choice import find_assembler
from tests.patched_files.hosts import Workshop


@pytest.fixture(scope="session")
def assembler() -> Assembler:
    try:
        return find_assembler()
    except ToolMissingError as error:
        pytest.skip(f"no ptxas: {error}")


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("hosts"))
