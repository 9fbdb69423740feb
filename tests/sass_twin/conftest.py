"""Kernels as ptxas assembles them, all in one cubin."""

from __future__ import annotations

import pytest

from tests.sass_twin.listing import PTX, assemble


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The cubin of all kernels of ``kernels.ptx`` for sm_90."""
    return assemble(PTX.read_text(), "sm_90", tmp_path_factory.mktemp("whole"))
