"""What these tests compile of the interpreter's kernels is compiled once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.emulator.gcn import judge
from tests.once import kept


@pytest.fixture(scope="session", autouse=True)
def _kept_objects() -> None:
    if judge.CLANG is not None:
        sources = [judge.SOURCE, Path(judge.__file__)]
        judge.KEPT = kept("judged-objects", [judge.CLANG], (), sources, lambda _: None)
