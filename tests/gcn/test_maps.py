"""What threads of AMD's kernels save to maps is what a plain model of the map says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from neutrino.emulator.gcn.errors import GcnFaultError
from neutrino.gcn.instrument import saves
from neutrino.gcn.instrument.code import Scalar, Value, Vector
from neutrino.gcn.instrument.machine import Machine
from neutrino.gcn.instrument.map_memory import GlobalMemory, Where
from neutrino.gcn.instrument.map_places import Places
from neutrino.gcn.instrument.map_statements import MapStatements
from neutrino.gcn.instrument.map_together import MapTogether
from neutrino.gcn.instrument.saves import Saving
from tests.gcn.map_cases import CASES, expected_of, is_right, sums
from tests.gcn.map_runs import BLOCK, GRID, as_gfx950, rows, run
from tests.gcn.objects import code_objects, need_llvm

BUILDS = {
    "gfx90a-O2": 64, "gfx942-O2": 64, "gfx1030-O2": 32, "gfx1030-wave64": 64, "gfx1100-O2": 32, "gfx1100-wave64": 64,
    "gfx1201-O2": 32, "gfx1201-wave64": 64,
}  # fmt: skip
"""Lanes of a wave by the object."""
NAMES = (
    "array", "array with counts", "ring", "log", "sum", "sum of a value", "sum of groups", "avg of s32", "min", "hash",
    "hash of a key", "histogram", "histogram of powers", "histogram of steps", "histogram of floats", "sum of floats",
    "avg of floats", "min of floats", "hash of floats",
)  # fmt: skip
GFX950 = "gfx950-O2"
WHERE = (("saxpy", ""), ("histogram", "load"))
"""Kernels, and the instructions at which is saved; "" at the entry and the ends."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each processor with several maps, at kernels' ends; with ``--thorough`` all on each, also at instructions."""
    if "position" in metafunc.fixturenames:
        pairs = [(name, list(BUILDS)[number * 3 % len(BUILDS)]) for number, name in enumerate(NAMES)]
        rows = [(name, build, *WHERE[0]) for name, build in (*pairs, ("topk", GFX950), ("sum of floats", GFX950))]
        if metafunc.config.getoption("--thorough"):
            rows = [(name, build, *where) for build in (*BUILDS, GFX950) for name in CASES for where in WHERE]
        metafunc.parametrize(("name", "build", "kernel", "position"), rows)


@pytest.fixture(scope="module")
def objects() -> dict[str, Path]:
    need_llvm()
    return code_objects()


def test_a_map_has_what_was_saved(
    objects: dict[str, Path], tmp_path: Path, name: str, build: str, kernel: str, position: str
) -> None:
    path = as_gfx950(objects["gfx942-O2"], tmp_path) if build == GFX950 else objects[build]
    case = replace(CASES[name], position=position)
    ran = run(path, build.partition("-")[0], kernel, case, tmp_path)
    assert ran.lanes == BUILDS.get(build, 64)
    assert is_right(name, case, ran, saved=case.at_sites(ran.executed, ran.lanes) if position else None)
    assert ran.is_same


@pytest.mark.parametrize(("per", "build"), [("block", "gfx1201-O2"), ("warp", "gfx1100-O2"), ("thread", "gfx942-O2")])
def test_each_owner_has_a_row(objects: dict[str, Path], tmp_path: Path, per: str, build: str) -> None:
    case = replace(CASES["sum"], declared=f'type="sum", per="{per}"')
    ran = run(objects[build], build.partition("-")[0], "saxpy", case, tmp_path)
    owner = {"block": BLOCK[0], "warp": ran.lanes, "thread": 1}[per]
    saved = case.saves(ran.lanes)
    owners = [(block, first) for block in range(GRID[0]) for first in range(0, BLOCK[0], owner)]
    expected_rows = []
    for block, first in owners:
        mine = [one for one in saved if one.block == block and one.thread // owner == first // owner]
        expected_rows += sums(mine, case)
    assert rows(ran) == expected_rows
    assert ran.is_same


@pytest.mark.parametrize(("per", "build"), [("sm", "gfx1100-wave64"), ("run", "gfx90a-O2"), ("sm", "gfx90a-O2")])
def test_units_and_runs_have_sums_of_their_own(
    objects: dict[str, Path], tmp_path: Path, per: str, build: str
) -> None:
    case = replace(CASES["sum of a constant"], declared=f'type="sum", per="{per}"')
    ran = run(objects[build], build.partition("-")[0], "saxpy", case, tmp_path)
    saved = case.saves(ran.lanes)
    # The interpreter gives each work-group a unit of its own.
    groups = [saved] if per == "run" else [[one for one in saved if one.block == block] for block in range(GRID[0])]
    assert rows(ran) == [row for group in groups for row in sums(group, case)]


def test_where_units_have_more_numbers_than_rows_a_map_per_unit_is_refused(
    objects: dict[str, Path], tmp_path: Path
) -> None:
    case = replace(CASES["sum"], declared='type="sum", per="sm"')
    with pytest.raises(AssertionError, match="256 rows, too few for the compute units of gfx942"):
        run(objects["gfx942-O2"], "gfx942", "saxpy", case, tmp_path)


SMALL = [
    ("array with counts", "gfx942-O2"), ("ring of one", "gfx1201-O2"), ("array of blocks", "gfx1100-O2"),
    ("log", "gfx1030-O2"), ("log of warps", "gfx90a-O2"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "build"), SMALL)
def test_waves_without_memory_store_nothing(objects: dict[str, Path], tmp_path: Path, name: str, build: str) -> None:
    case = CASES[name]
    few = run(objects[build], build.partition("-")[0], "saxpy", case, tmp_path, capacity=2)
    # In the order of slots.
    waves = -(-BLOCK[0] // few.lanes)
    kept = [save for save in case.saves(few.lanes) if save.block * waves + save.thread // few.lanes < 2]
    assert 0 < len(kept) < len(case.saves(few.lanes))
    assert rows(few) == expected_of(name, kept, case, few.lanes)
    assert few.is_same


@pytest.mark.parametrize("name", ["array with counts", "log"])
def test_in_a_graph_addresses_are_behind_what_the_cell_holds(
    objects: dict[str, Path], tmp_path: Path, name: str
) -> None:
    ran = run(objects["gfx1100-O2"], "gfx1100", "saxpy", CASES[name], tmp_path, cell=True)
    assert is_right(name, CASES[name], ran)


@pytest.mark.parametrize(("name", "units"), [("log", 12), ("log of warps", 6), ("log of blocks", 4)])
def test_a_log_counts_what_has_no_room(objects: dict[str, Path], tmp_path: Path, name: str, units: int) -> None:
    case = CASES[name]
    ran = run(objects["gfx942-O2"], "gfx942", "saxpy", case, tmp_path, log_units=units)
    all_saves = [save.values for save in case.saves(ran.lanes)]
    found = rows(ran)
    assert 0 < len(found) < len(all_saves)
    assert set(found) <= set(all_saves)
    assert ran.view.dropped == len(all_saves) - len(found)


def test_waves_have_the_first_units_of_a_log(objects: dict[str, Path], tmp_path: Path) -> None:
    for name in ("log of warps", "log of blocks"):
        ran = run(objects["gfx1100-O2"], "gfx1100", "saxpy", CASES[name], tmp_path / name, log_first=1)
        assert is_right(name, CASES[name], ran)


AT_SITES = [
    ("hash", "gfx942-O2"), ("log", "gfx1100-wave64"), ("ring of three", "gfx1030-O2"), ("max", "gfx1201-O2"),
    ("sum of groups", "gfx1100-O2"), ("sum of floats", "gfx1201-wave64"), ("topk", "gfx90a-O2"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "build"), AT_SITES)
def test_what_is_saved_at_instructions(objects: dict[str, Path], tmp_path: Path, name: str, build: str) -> None:
    case = replace(CASES[name], position="load")
    ran = run(objects[build], build.partition("-")[0], "histogram", case, tmp_path)
    saved = case.at_sites(ran.executed, ran.lanes)
    assert saved
    assert is_right(name, case, ran, saved=saved)
    assert ran.is_same


@contextmanager
def _all_lanes_at_once(self: MapTogether) -> Iterator[Scalar]:
    with self.code.scope():
        number = self.code.scalar()
        self.code.emit(f"s_bcnt1_i32_{self.code.machine.mask} {number.text}, {self.code.machine.exec}")
        yield number


def _swapped(memory: GlobalMemory, old: Vector, where: Where, desired: Value, expected_: Value) -> None:
    _SWAP(memory, old, where, expected_, desired)


_SWAP = GlobalMemory.swap
FAULTS = [
    # What is wrong, and a case that notices it.
    ("sum of a value", MapTogether, "_lowest_of_all", _all_lanes_at_once),
    ("hash", GlobalMemory, "swap", _swapped),
    ("hash", Machine, "wait_vector", ()),
    ("array with counts", Places, "add", lambda *_: None),
    ("log", MapStatements, "only", lambda *_, **__: nullcontext()),
    ("ring of three", saves, "_has_row", lambda _: False),
    ("max", MapStatements, "_combines", False),
    ("sum of groups", Saving, "_find_leader", lambda self, leader: self._code.emit(f"s_mov_b64 {leader.text}, -1")),
]  # fmt: skip
"""All but that of ``max``, which costs time alone."""


@pytest.mark.parametrize(("name", "owner", "attribute", "wrong"), FAULTS)
def test_a_fault_is_noticed(
    objects: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, owner: object,
    attribute: str, wrong: object,
) -> None:  # fmt: skip
    monkeypatch.setattr(owner, attribute, wrong)
    try:
        ran = run(objects["gfx942-O2"], "gfx942", "saxpy", CASES[name], tmp_path)
        is_noticed = not is_right(name, CASES[name], ran)
    except GcnFaultError:
        is_noticed = True
    assert is_noticed == (name != "max")
