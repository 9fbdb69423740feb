"""The verdicts on replays of graphs, on what a run of the road leaves on the embedded device."""

from __future__ import annotations

import copy
import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import programs, road, verdicts
from bench.cases import ALL, Mode, Workload, workload
from bench.road import Road
from neutrino import emulator
from tests.embedded.conftest import settings

Json = Any
SEEDS = 2
ENTRY = replace(workload("graph"), source="graph_program.py", modes=ALL, seeds=SEEDS)
DRIVER = {"LD_LIBRARY_PATH": str(Path(emulator.__file__).parent / "lib"), "NEUTRINO_EMBEDDED": settings()}
PROBED = [mode for mode in ALL if mode is not Mode.PLAIN]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Json:
    """Each mode's run. What only an assembler knows of the twin, as its registers, is that of the committed results."""
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
        pytest.skip("cuda-bindings is not installed")
    folder = tmp_path_factory.mktemp("road")
    device = [sys.executable, "-m", "neutrino.cli.run", "--device", "embedded"]
    runs = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "SOURCES", Path(__file__).parent)
        patch.setattr(road, "find_cuda_tool", lambda name: folder / name)
        drive = Road(device, folder, 300)
        for mode in ALL:
            entry = replace(ENTRY, variables=DRIVER if mode is Mode.PLAIN else {})
            runs[mode.value] = drive.run(f"graph_{mode.value}", entry, mode)
    assert drive.diagnostics == []
    recorded = json.loads(verdicts.RESULTS.read_text())["runs"]["graph"]["gmem_bytes"]["trace"]["kernels"][0]
    for mode in PROBED:
        for kernel in runs[mode.value]["trace"]["kernels"]:
            kernel |= {name: recorded[name] for name in ("registers", "spills", "numerics")}
    return {"schema": verdicts.SCHEMA, "device": drive.result["device"], "runs": {"graph": runs}}


def judge(results: Json, mode: Mode, entry: Workload = ENTRY) -> str:
    return verdicts._probed(results, entry, mode)


@pytest.mark.parametrize("mode", PROBED)
def test_every_launch_of_every_replay_is_judged(results: Json, mode: Mode) -> None:
    assert "2 seeds bit-identical in 4 modes" in verdicts._outputs(results, ENTRY)
    assert f"{16 * SEEDS} launches" in judge(results, mode)
    assert f"{15 * SEEDS} of them in replays" in judge(results, mode)


def lose_data(run: Json) -> None:
    columns, rows = run["trace"]["columns"], run["trace"]["rows"]
    rows[5][columns.index("got_load")] = None


def swap(run: Json) -> None:
    rows = run["trace"]["rows"]
    first = run["trace"]["columns"].index("got_load")
    rows[1][first:], rows[2][first:] = rows[2][first:], rows[1][first:]


def lose_row(run: Json) -> None:
    run["trace"]["rows"].pop()


def lose_replay_of_both(run: Json) -> None:
    for _ in range(3):
        run["trace"]["rows"].pop()
    run["launches"] -= 3
    run["extra"]["replayed"] -= 3
    run["trace"]["kernels"][0]["counters"]["probed"] -= 3


def lose_count(run: Json) -> None:
    run["trace"]["kernels"][0]["counters"]["probed"] -= 1


def run_original(run: Json) -> None:
    run["trace"]["kernels"][0]["counters"]["graph"] = 1


def add_one(run: Json) -> None:
    run["trace"]["unmatched"] = 1


@pytest.mark.parametrize("fault", [lose_data, swap, lose_row, lose_replay_of_both, lose_count, run_original, add_one])
def test_a_replay_that_is_lost_or_out_of_order_is_seen(results: Json, fault: Callable[[Json], None]) -> None:
    changed = copy.deepcopy(results)
    fault(changed["runs"]["graph"]["gmem_bytes"])
    with pytest.raises(verdicts.BrokenError):
        judge(changed, Mode.GMEM_BYTES)


def test_results_of_the_first_schema_are_judged_by_what_they_hold(results: Json) -> None:
    old = {**copy.deepcopy(results), "schema": 1}
    run = old["runs"]["graph"]["gmem_bytes"]
    with pytest.raises(KeyError, match="captured"):
        judge(old, Mode.GMEM_BYTES)
    run["trace"]["rows"] = run["trace"]["rows"][:: len(run["trace"]["rows"]) // SEEDS]
    run |= {"launches": SEEDS, "extra": {"captured": 3 * SEEDS}}
    run["trace"]["kernels"][0]["counters"] = {"probed": SEEDS, "graph": 3 * SEEDS}
    assert "6 captured launches ran originals, replays not counted" in judge(old, Mode.GMEM_BYTES)
    with pytest.raises(KeyError, match="replayed"):
        judge({**old, "schema": verdicts.SCHEMA}, Mode.GMEM_BYTES)
    run["trace"]["kernels"][0]["counters"]["graph"] -= 1
    with pytest.raises(verdicts.BrokenError, match="captured launches"):
        judge(old, Mode.GMEM_BYTES)
