"""What these tests compile of the interpreter's kernels is compiled once a run."""

from __future__ import annotations

import pytest

from tests.emulator.gcn import judge
from tests.once import once


@pytest.fixture(scope="session", autouse=True)
def _kept_objects(tmp_path_factory: pytest.TempPathFactory) -> None:
    judge.KEPT = once(tmp_path_factory, "judged-objects", lambda _: None)
