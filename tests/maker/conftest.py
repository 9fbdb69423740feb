"""What the tests of patching share: the assembler, and the repository on the path."""

import sys
from pathlib import Path

import pytest

from neutrino.errors import ToolMissingError
from neutrino.toolchain.ptxas import Assembler
from neutrino.toolchain.tool_choice import find_assembler

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


@pytest.fixture(scope="session")
def assembler() -> Assembler:
    try:
        return find_assembler()
    except ToolMissingError as error:
        pytest.skip(f"no ptxas: {error}")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "xdg"))
