"""The notebook of the examples prints what stands in it."""

from __future__ import annotations

import shutil

import pytest

from bench.examples import comparable
from tests.docs import notebook


def test_its_cells_print_what_it_has() -> None:
    if not shutil.which("make"):
        pytest.skip("make is not on this machine")
    read = notebook.read()
    printed = [notebook.outputs(one) for one in notebook.run(read)]
    stored = [cell["outputs"] for cell in notebook.code_cells(read)]
    assert len(stored) >= 5
    assert [comparable(repr(one)) for one in printed] == [comparable(repr(one)) for one in stored]
