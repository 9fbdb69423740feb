"""What threads of AMD's kernels save to maps is what a plain model of the map says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gcn.map_cases import CASES, expected
from tests.gcn.map_runs import rows, run
from tests.gcn.objects import code_objects, need_llvm

BUILDS = {
    "gfx90a-O2": 64, "gfx942-O2": 64, "gfx1030-O2": 32, "gfx1030-wave64": 64, "gfx1100-O2": 32, "gfx1100-wave64": 64,
    "gfx1201-O2": 32, "gfx1201-wave64": 64,
}  # fmt: skip
"""Lanes of a wave by the object."""
PAIRS = [(name, list(BUILDS)[number * 3 % len(BUILDS)]) for number, name in enumerate(CASES)]
"""Each map on one processor, each processor with several maps; ``bench.maps_amd`` has all of both."""


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    need_llvm()
    return code_objects(tmp_path_factory)


@pytest.mark.parametrize(("name", "build"), PAIRS)
def test_a_map_has_what_was_saved(objects: dict[str, Path], tmp_path: Path, name: str, build: str) -> None:
    ran = run(objects[build], build.partition("-")[0], "saxpy", CASES[name], tmp_path)
    assert ran.lanes == BUILDS[build]
    found = rows(ran)
    if name == "histogram":
        # Without the buckets' edges.
        found = [row[2:] for row in found]
    assert found == expected(name, CASES[name], ran.lanes)
    assert ran.is_same
